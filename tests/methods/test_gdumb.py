"""GDumb against a loop in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.checks.toy_runs import MODELS, make_clouds, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import GDumb
from engram.streams import task_incremental
from tests.engine.plain_loop import OPTIMIZERS, Plain, Twin, away
from tests.engine.test_plain_loop import DECAYED

TOTAL, EPOCHS = 12, 4
SETTINGS = replace(DECAYED, batch_size=5)  # several batches a pass, the last one short


@dataclass
class GDumbTwin(Twin):
    """A network as it began, on what is kept, and nothing else."""

    kept: Tensor = field(default_factory=Tensor)  # rows in the memory, put there by the test

    def run(self, stage: int) -> None:
        self.net.train()
        optimizer = OPTIMIZERS[self.training.optimizer](self.net.in_use(stage + 1), self.training)
        count = len(self.kept)
        for epoch in range(EPOCHS):
            order = keys.permutation(keys.fold(self.seed, "order", stage, epoch), count, count)
            for rows in self.kept[order].split(self.training.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(self.net(self.x(rows), stage + 1), self.y(rows)).backward()
                optimizer.step()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_are_those_of_a_plain_loop(model, together):
    method = GDumb(memory=Memory(total=TOTAL), epochs=EPOCHS)
    runs = [
        Run(stream=stream, method=method, model=MODELS[model], training=SETTINGS, seed=seed)
        for seed, stream in enumerate(make_streams())
    ]
    engine, before = Engine(runs, device="cpu", together=together), {}
    for stage in engine.stages():
        run, learner = runs[stage.run], stage.learner
        net = Plain(engine.learner(run), model == "normed")
        twin = GDumbTwin(run.stream, SETTINGS, run.seed, net, kept=learner.exemplars.rows)
        twin.run(stage.stage)
        assert away(twin, learner) < 1e-10
        classes = 2 * (stage.stage + 1)  # equal shares of the classes so far
        kept = set(learner.exemplars.rows.tolist())
        assert (
            torch.bincount(twin.y(learner.exemplars.rows)).tolist() == [TOTAL // classes] * classes
        )
        now = set(run.stream.tasks[stage.stage].train.tolist())
        assert kept <= now | before.get(stage.run, set())
        before[stage.run] = kept
    assert len(before) == 3


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_exemplars_of_earlier_tasks_have_their_own_heads(together):
    """Where tasks are told apart, a row competes among the classes of its own task."""
    stream = task_incremental(make_clouds(), order=[5, 1, 3, 0, 4, 2])
    training = replace(SETTINGS, optimizer="adam", lr=0.01, batch_size=0)
    method = GDumb(memory=Memory(total=60), epochs=1)
    runs = [
        Run(stream=stream, method=method, model=MODELS["plain"], training=training, seed=seed)
        for seed in range(2)
    ]
    engine = Engine(runs, device="cpu", together=together)
    for stage in engine.stages():
        kept, fresh = stage.learner.exemplars, engine.learner(runs[stage.run])
        fresh.open_classes(2)
        net = Plain(fresh, False)
        logits = net(stream.data.gather(kept.rows).double(), 3)
        logits = logits.masked_fill(~stream.visible[kept.stages], -torch.inf)
        wanted = F.cross_entropy(logits, stream.targets[kept.rows][:, 0]).item()
        (_, terms), *_ = stage.losses
        assert terms["task"] == pytest.approx(wanted, abs=1e-10)
        assert len(kept.stages.unique()) == stage.stage + 1


def test_the_recipe_says_nothing_about_the_length():
    runs = [
        Run(stream=make_streams()[0], method=GDumb(epochs=3, memory=Memory(total=TOTAL)),
            model=MODELS["plain"], training=replace(SETTINGS, epochs=epochs, first_task_scale=2.0))
        for epochs in (1, 7)
    ]  # fmt: skip
    steps = [stage.steps for stage in Engine(runs, device="cpu").stages()]
    assert steps == [3 * 3] * 6  # three passes of three batches, in every task


@pytest.mark.parametrize("values", [{"epochs": 0}, {"memory": None}])
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        GDumb(**values)
