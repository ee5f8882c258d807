"""Run plans through the engine: the one way to numbers, whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram import parallel
from engram.data.imagenet import is_unread
from engram.engine import threads
from engram.engine.backend import determinism, device_of
from engram.engine.engine import Engine
from engram.engine.ranks import check_ranks
from engram.engine.run import Run, check_exemplars, check_validation
from engram.errors import bad, switch
from engram.parallel import Ranks
from engram.probes import Probe
from engram.recipes.callback import Callback
from engram.recipes.changes import distinct
from engram.recipes.duration import seconds
from engram.recipes.garbage import settled
from engram.recipes.plan import Plan
from engram.recipes.ranks import recorder_of, resume_of_first, share_open
from engram.recipes.recorder import Recorder
from engram.recipes.step_saver import EVERY
from engram.records import RunDirectory

Out = str | Path | RunDirectory | None


def execute(
    plans: Sequence[Plan],
    *,
    out: Out = None,
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
    groups of runs, and with `out` inside a task, which is saved there. `compile`, `deterministic`,
    `checkpoint_every` and `again`: see `engram.run`.
    """
    for name, value in (("compile", compile), ("deterministic", deterministic), ("again", again)):
        switch(name, value)
    if together is not None:
        switch("together", together)
    plans = distinct(plans)
    _check_runs(plans)
    how = {"device": device, "together": together, "compile": compile, "group_size": group_size}
    kept = {
        "callback": callback, "again": again, "deadline": deadline,
        "checkpoint_every": seconds(checkpoint_every, "checkpoint_every"),
    }  # fmt: skip
    with parallel.ranks_on(device_of(device)) as ranks:
        recorder, engine = _made_ready(plans, out, ranks, how, kept)
        if engine is None:
            return recorder
        resume = recorder.resume if ranks is None else resume_of_first(ranks, recorder)
        try:
            steady = determinism(deterministic, recorder.device)
            quiet = settled(len(recorder.open))
            with recorder.at_signals(), steady, threads.limited(), quiet:
                for stage in engine.stages(
                    resume=resume, progress=recorder.progress, deadline=deadline,
                    stop_inside=out is not None, checkpointer=recorder.saver,
                ):  # fmt: skip
                    with parallel.apart():
                        recorder.add(stage)
                    if recorder.ending and recorder.between:
                        break
            recorder.close()
            if ranks is not None and not recorder.ending:
                ranks.of_first(None)  # all is written
        finally:
            recorder.let_go()
    if recorder.saver is not None and recorder.ending:
        recorder.saver.end()  # told so while nothing trained; who called must not go on either
    recorder.say_elsewhere()
    return recorder


def _check_runs(plans: Sequence[Plan]) -> None:
    """Refuse what cannot be trained."""
    for run in {(id(p.run.stream), id(p.run.method)): p.run for p in plans}.values():
        check_exemplars(run)
        check_read(run)
    for plan in plans:
        run = plan.run
        check_validation(run.stream, run.training, range(len(run.stream)))


def _made_ready(
    plans: Sequence[Plan], out: Out, ranks: Ranks | None, how: dict[str, Any],
    kept: dict[str, Any],
) -> tuple[Recorder, Engine | None]:  # fmt: skip
    """The records of plans, and the engine for those that are not finished, if there are any.

    `how` they train, and how results are `kept`. Several ranks train run by run.
    """
    if ranks is not None:
        how = {**how, "device": ranks.device, "together": False}
    with parallel.apart():
        recorder = recorder_of(
            ranks, plans, out, device=how["device"], together=how["together"], **kept
        )
    if ranks is not None:
        share_open(ranks, recorder)
    if not recorder.open:
        return recorder, None
    runs = [plan.run for plan in recorder.open]
    engine = Engine(runs, capture=None if ranks is None else False, **how)
    if ranks is not None:
        check_ranks(engine, ranks)
    _check_probes(recorder.open, engine)
    recorder.prepare()
    return recorder, engine


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
