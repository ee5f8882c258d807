"""Generators: what they replay is held against everything it could be mistaken for."""

from __future__ import annotations

from dataclasses import replace

import torch

from engram.checks.learning import LEARNS
from engram.checks.report import DoesNotApply, require
from engram.checks.tamed import tame
from engram.checks.toys import accuracies, clouds, runs_of, train
from engram.engine.engine import Engine
from engram.methods.base import Method
from engram.streams import class_incremental, task_incremental

LONG = replace(LEARNS, epochs=20)
SIZES = (24, 24, 24, 24)
ENOUGH = 0.7  # of two old classes; replayed among themselves only, they are called new ones


def check_replayed_classes_meet_new_ones(method: Method) -> None:
    """Old classes that a generator replays are still known among the new ones."""
    _need_generator(method)
    stream = class_incremental(clouds(SIZES), classes_per_task=2)
    trained = train(runs_of(tame(method, LONG), [stream], training=LONG))
    found = accuracies(trained[0, 1])[0]
    require(
        found > ENOUGH,
        f"after the second task, {found:.2f} of the first are known where all classes compete: "
        "replayed rows must be no new class, so let the softmax of their loss run over the new "
        "classes too (ce_rows over batch.seen, distill_rows with new_classes=batch.new)",
    )


def check_replayed_rows_meet_every_head(method: Method) -> None:
    """With known tasks, what a generator replays trains the head of every earlier task."""
    _need_generator(method)
    stream = task_incremental(clouds())
    engine = Engine(runs_of(tame(method), [stream]), device="cpu", together=False)
    before: dict[str, torch.Tensor] = {}
    for stage in engine.stages():
        one = stage.learner
        now = {name: one.params[name].clone() for name in one.networks.class_rows}
        for task in range(stage.stage):
            mine = stream.visible[task]
            moved = any(not torch.equal(now[k][mine], before[k][mine]) for k in before)
            require(
                moved,
                f"the head of task {task} stands still while task {stage.stage} is learnt: a "
                "replayed row may be of any earlier task, so train it through all of their heads "
                "(learner.stream.visible[:learner.stage])",
            )
        before = now


def _need_generator(method: Method) -> None:
    stream = class_incremental(clouds(SIZES), classes_per_task=2)
    (run,) = runs_of(method, [stream])
    settings = Engine([run], device="cpu").learner(run).networks.settings
    if not any(settings.counts for settings in settings.values()):
        raise DoesNotApply("no network of its own counts as memory")
