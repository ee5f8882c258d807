"""What the ranks of a job do about records: rank 0 reads and writes, the others hear of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from engram import parallel
from engram.ending import ENDING
from engram.engine.checkpoints.shared import from_first
from engram.engine.engine import FinishedStage
from engram.learner.learner import Learner
from engram.parallel import Ranks
from engram.recipes.callback import Callback
from engram.recipes.plan import Plan
from engram.recipes.recorder import Recorder
from engram.records import Result, RunDirectory, read


class _Silent(Callback):
    """Rank 0 speaks for all."""

    def note(self, text: str) -> None:
        pass


class Listener(Recorder):
    """The recorder of a rank that does not write: it keeps results where no directory does."""

    def __init__(
        self, plans: Sequence[Plan], out: str | Path | RunDirectory | None, **options: Any
    ) -> None:
        options.update(callback=_Silent(), again=False)
        super().__init__(plans, None, **options)
        where = out.path if isinstance(out, RunDirectory) else out
        self._shared = None if where is None else Path(where)

    def add(self, stage: FinishedStage) -> None:
        if self._shared is None:
            super().add(stage)

    def at_signals(self) -> AbstractContextManager[None]:
        """A signal to end is for rank 0, which saves; this rank goes on until that one is gone."""
        return _deaf()

    def result(self) -> Result:
        """What rank 0 has written, or the same in memory."""
        if self._shared is None:
            return super().result()
        return read(self._shared, recipes={plan.recipe for plan in self.plans})


@contextmanager
def _deaf() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    all_of_them = (*ENDING, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in all_of_them}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recorder_of(
    ranks: Ranks | None, plans: Sequence[Plan], out: str | Path | RunDirectory | None,
    **options: Any,
) -> Recorder:  # fmt: skip
    """Rank 0 has the directory."""
    kind = Recorder if ranks is None or ranks.rank == 0 else Listener
    return kind(plans, out, **options)


def share_open(ranks: Ranks, recorder: Recorder) -> None:
    """Let all train the plans that rank 0 found open."""
    known = {id(plan): place for place, plan in enumerate(recorder.plans)}
    places = ranks.of_first([known[id(plan)] for plan in recorder.open])
    recorder.open = [recorder.plans[place] for place in places]


def resume_of_first(ranks: Ranks, recorder: Recorder) -> Callable[[int, Learner], int]:
    """The state that rank 0 finds for a run goes to all of them."""

    def resume(place: int, learner: Learner) -> int:
        with parallel.apart():
            stage = recorder.resume(place, learner)
        stage, inside = ranks.of_first((stage, learner.resume_point is not None))
        if stage or inside:
            from_first(ranks, learner)
        return stage

    return resume
