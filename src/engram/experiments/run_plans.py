"""`execute`: train plans by the engine, in one process or several ranks, and record the results."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from engram import distributed
from engram.data.photos.imagenet import is_unread
from engram.distributed import Ranks
from engram.engine import backend
from engram.engine.backend import deterministic_algorithms, resolve_device
from engram.engine.checkpoints import copy_from_first_rank
from engram.engine.engine import Engine
from engram.engine.run_definition import Run, check_exemplars, check_validation
from engram.errors import bad, check_bool
from engram.experiments.callbacks import Callback, StageHook
from engram.experiments.changed_recipes import merge_equal_plans
from engram.experiments.checkpointing import DEFAULT_INTERVAL
from engram.experiments.plain_values import parse_duration
from engram.experiments.plan import Plan
from engram.experiments.recorder import Recorder
from engram.learner.learner import RunLearner
from engram.models.adapter import explain_no_split
from engram.probes import Probe
from engram.process import END_SIGNALS
from engram.records import Result, RunDirectory, read
from engram.records.stage_result import StageResult

Out = str | Path | RunDirectory | None


def execute(
    plans: Sequence[Plan],
    *,
    out: Out = None,
    device: Any = "auto",
    together: bool | None = None,
    compile: bool = False,
    deterministic: bool = False,
    exact: bool = False,
    pool: str = "",
    checkpoint_every: float | str = DEFAULT_INTERVAL,
    callback: Callback | StageHook | str | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    rerun: bool = False,
) -> Recorder:
    """Train the plans that are not finished, and return a recorder with the runs of all plans.

    With `out`, finished stages are never run again and an interrupted run resumes at its last
    checkpoint, as does one that was trained up to `Plan.until`; `rerun` repeats all of them.
    `deadline` (``time.monotonic``) stops cleanly between groups of runs and, with `out`, within a
    task, which is saved. `compile`, `deterministic`, `exact`, `checkpoint_every` and `rerun`: see
    `engram.run`. `pool` is the name of the pool that calls this, for the record.
    """
    flags = {"compile": compile, "deterministic": deterministic, "exact": exact, "rerun": rerun}
    for name, value in flags.items():
        check_bool(name, value)
    if together is not None:
        check_bool("together", together)
    if exact and together:
        raise bad("together", "None or False with exact=True, which trains each run alone", True)
    deterministic, together = deterministic or exact, False if exact else together
    plans = merge_equal_plans(plans)
    _check_runs(plans)
    how = {"device": device, "together": together, "compile": compile, "group_size": group_size}
    kept = {
        "callback": callback, "rerun": rerun, "deadline": deadline,
        "checkpoint_every": parse_duration(checkpoint_every, "checkpoint_every"),
        "execution": {
            "pool": pool or {None: "auto", True: "together", False: "serial"}[together],
            "compile": compile, "deterministic": deterministic, "exact": exact,
        },
    }  # fmt: skip
    with backend.one_thread(exact), distributed.join_ranks(resolve_device(device)) as ranks:
        if exact and ranks is not None:
            raise bad("exact", "False where several processes share a run", True)
        recorder, engine = _prepare_runs(plans, out, ranks, how, kept)
        if engine is None:
            return recorder
        resume = recorder.resume if ranks is None else broadcast_resume(ranks, recorder)
        try:
            steady = deterministic_algorithms(deterministic, recorder.device)
            quiet = freeze_garbage(len(recorder.open))
            with recorder.save_on_signals(), steady, backend.limit_threads(), quiet:
                for stage in engine.stages(
                    resume=resume, progress=recorder.progress, deadline=deadline,
                    stop_inside=out is not None, checkpointer=recorder.saver,
                    until=[plan.stages for plan in recorder.open],
                ):  # fmt: skip
                    with distributed.without_ranks():
                        recorder.add(stage)
                    if recorder.is_ending and recorder.nothing_pending:
                        break
            recorder.close()
            if ranks is not None and not recorder.is_ending:
                ranks.broadcast(None)  # wait until all is written
        finally:
            recorder.release()
    if recorder.saver is not None and recorder.is_ending:
        recorder.saver.end()  # the signal came between groups; the caller must end as well
    recorder.report_busy_runs()
    return recorder


def _check_runs(plans: Sequence[Plan]) -> None:
    """Raise if a plan cannot be trained."""
    for run in {(id(p.run.stream), id(p.run.method)): p.run for p in plans}.values():
        check_exemplars(run)
        check_data_was_read(run)
    for plan in plans:
        run = plan.run
        check_validation(run.stream, run.training, range(len(run.stream)))


def _prepare_runs(
    plans: Sequence[Plan], out: Out, ranks: Ranks | None, how: dict[str, Any],
    kept: dict[str, Any],
) -> tuple[Recorder, Engine | None]:  # fmt: skip
    """Make the recorder of plans, and the engine for those that are not finished, if any.

    `how` has options of the engine, `kept` options of the recorder. Several ranks train run by run.
    """
    if ranks is not None:
        how = {**how, "device": ranks.device, "together": False}
    with distributed.without_ranks():
        recorder = make_recorder(
            ranks, plans, out, device=how["device"], together=how["together"], **kept
        )
    if ranks is not None:
        broadcast_open_plans(ranks, recorder)
    if not recorder.open:
        return recorder, None
    runs = [plan.run for plan in recorder.open]
    engine = Engine(runs, capture=None if ranks is None else False, **how)
    with backend.limit_threads():
        measured = engine.measure_modes(recorder.known_modes())
    recorder.record_modes(measured, engine.lockstep_groups())
    if ranks is not None:
        check_ranks(engine, ranks)
    _check_probes(recorder.open, engine)
    recorder.prepare()
    return recorder, engine


def check_data_was_read(run: Run) -> None:
    """Raise for data loaded as an index, whose pictures are blank."""
    if is_unread(run.stream.data):
        how = "lazy=True, or packed=FILE"
        expected = f"pictures that were read (the option {how}); an index is for plans alone"
        raise bad("data", expected, run.stream.data.name)


def _check_probes(plans: Sequence[Plan], engine: Engine) -> None:
    """Raise for runs that their probes cannot measure, before anything is trained."""
    known: set[tuple[str, str]] = set()
    for plan in plans:
        for key, probe in plan.probes.items():
            if (plan.recipe, key) not in known and type(probe).check is not Probe.check:
                known.add((plan.recipe, key))
                probe.check(engine.learner(plan.run))


# Large studies and Python's garbage collector.


MANY_RUNS = 256  # runs from which on freezing pays


@contextmanager
def freeze_garbage(runs: int) -> Iterator[None]:
    """Exclude existing objects from garbage collection while many runs train.

    Plans, streams and modules of thousands of runs are a million objects that live to the end. The
    collector visits all of them again whenever a stage has made a quarter as many, which
    takes longer than recording the stage.
    """
    if runs < MANY_RUNS or gc.get_freeze_count():  # the caller may have frozen already
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# Several ranks: rank 0 reads and writes records, the others follow.


class _SilentCallback(Callback):
    """A callback that shows nothing: only rank 0 reports."""

    def note(self, text: str) -> None:
        pass


class ReadOnlyRecorder(Recorder):
    """Recorder of a rank that does not write; without a directory it keeps results in memory."""

    def __init__(
        self, plans: Sequence[Plan], out: str | Path | RunDirectory | None, **options: Any
    ) -> None:
        options.update(callback=_SilentCallback(), rerun=False)
        super().__init__(plans, None, **options)
        where = out.path if isinstance(out, RunDirectory) else out
        self._shared = None if where is None else Path(where)

    def add(self, result: StageResult) -> None:
        if self._shared is None:
            super().add(result)

    def save_on_signals(self) -> AbstractContextManager[None]:
        """Ignore signals to end: rank 0 saves, and this rank ends after it."""
        return _ignore_signals()

    def result(self) -> Result:
        """Return what rank 0 has written, or the results in memory."""
        if self._shared is None:
            return super().result()
        return read(self._shared, recipes={plan.recipe for plan in self.plans})


@contextmanager
def _ignore_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    all_of_them = (*END_SIGNALS, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in all_of_them}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_recorder(
    ranks: Ranks | None, plans: Sequence[Plan], out: str | Path | RunDirectory | None,
    **options: Any,
) -> Recorder:  # fmt: skip
    """Make the recorder of this rank; only that of rank 0 writes to the directory."""
    kind = Recorder if ranks is None or ranks.rank == 0 else ReadOnlyRecorder
    return kind(plans, out, **options)


def broadcast_open_plans(ranks: Ranks, recorder: Recorder) -> None:
    """Send the open plans of rank 0 to all ranks."""
    known = {id(plan): place for place, plan in enumerate(recorder.plans)}
    places = ranks.broadcast([known[id(plan)] for plan in recorder.open])
    recorder.open = [recorder.plans[place] for place in places]


def broadcast_resume(ranks: Ranks, recorder: Recorder) -> Callable[[int, RunLearner], int]:
    """Return a `resume` that sends the state found by rank 0 to all ranks."""

    def resume(place: int, learner: RunLearner) -> int:
        with distributed.without_ranks():
            stage = recorder.resume(place, learner)
        stage, inside = ranks.broadcast((stage, learner.resume_point is not None))
        if stage or inside:
            copy_from_first_rank(ranks, learner)
        return stage

    return resume


def check_ranks(engine: Engine, ranks: Ranks) -> None:
    """Raise for runs whose numbers would differ from those of one process."""
    if engine.compile:
        raise bad("compile", "False where several processes share a run", True)
    for run in engine.runs:
        size = run.training.batch_size
        if size and size < ranks.world:
            wanted = f"at least {ranks.world} rows, one for each process"
            raise bad("batch_size", wanted, size)
        for reason in explain_no_split(engine.networks(run).train):
            raise bad("model", "layers whose rows can be shared between processes", reason)
