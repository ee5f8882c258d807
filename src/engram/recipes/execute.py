"""Run plans through the engine: the one way to numbers, whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.data.imagenet import is_unread
from engram.engine import threads
from engram.engine.backend import determinism
from engram.engine.engine import Engine
from engram.engine.run import Run, check_exemplars
from engram.errors import bad
from engram.probes import Probe
from engram.recipes.callback import Callback
from engram.recipes.changes import distinct
from engram.recipes.duration import seconds
from engram.recipes.plan import Plan
from engram.recipes.recorder import Recorder
from engram.recipes.step_saver import EVERY
from engram.records import RunDirectory


def execute(
    plans: Sequence[Plan],
    *,
    out: str | Path | RunDirectory | None = None,
    device: Any = "auto",
    together: bool | None = None,
    compile: bool = False,
    deterministic: bool = False,
    checkpoint_every: float | str = EVERY,
    callback: Callback | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    again: bool = False,
) -> Recorder:
    """Run what is not finished yet; the ``result()`` of what is returned holds all plans' runs.

    With `out`, finished stages are never run again and an interrupted run goes on after its last
    checkpoint; with `again` all are run anew. `deadline` (``time.monotonic``) stops cleanly between
    groups of runs, and with `out` between stages. `compile`, `deterministic`,
    `checkpoint_every` and `again`: see `engram.run`.
    """
    plans = distinct(plans)
    for run in {(id(p.run.stream), id(p.run.method)): p.run for p in plans}.values():
        check_exemplars(run)
        check_read(run)
    recorder = Recorder(
        plans, out, device=device, together=together, callback=callback, again=again,
        deadline=deadline, checkpoint_every=seconds(checkpoint_every, "checkpoint_every"),
    )  # fmt: skip
    if not recorder.open:
        return recorder
    engine = Engine(
        [plan.run for plan in recorder.open], device=device, together=together, compile=compile,
        group_size=group_size,
    )  # fmt: skip
    _check_probes(recorder.open, engine)
    recorder.prepare()
    try:
        with recorder.at_signals(), determinism(deterministic, recorder.device), threads.limited():
            for stage in engine.stages(
                resume=recorder.resume, progress=recorder.progress, deadline=deadline,
                stop_inside=recorder.folder is not None, checkpointer=recorder.saver,
            ):  # fmt: skip
                recorder.add(stage)
                if recorder.ending and recorder.between:
                    break
        recorder.close()
    finally:
        recorder.let_go()
    if recorder.saver is not None and recorder.ending:
        recorder.saver.end()  # told so while nothing trained; who called must not go on either
    recorder.say_elsewhere()
    return recorder


def check_read(run: Run) -> None:
    """Refuse data of which only an index is known: its pictures are blank."""
    if is_unread(run.stream.data):
        how = "lazy=True, or packed=FILE"
        expected = f"pictures that were read (the option {how}); an index is for plans alone"
        raise bad("data", expected, run.stream.data.name)


def _check_probes(plans: Sequence[Plan], engine: Engine) -> None:
    """Refuse runs that their probes cannot measure, before anything is trained."""
    known: set[tuple[str, str]] = set()
    for plan in plans:
        for key, probe in plan.probes.items():
            if (plan.recipe, key) not in known and type(probe).check is not Probe.check:
                known.add((plan.recipe, key))
                probe.check(engine.learner(plan.run))
