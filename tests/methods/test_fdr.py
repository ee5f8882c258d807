"""FDR against a loop in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import FDR
from tests.engine.plain_loop import OPTIMIZERS, Twin, away, beside
from tests.engine.test_plain_loop import DECAYED

METHOD = FDR(alpha=0.7, memory=Memory(total=12, shared_by="task"))
PLAIN_SGD = Training(
    epochs=2, batch_size=4, lr=0.1, optimizer="sgd", momentum=0.0, precision="float64"
)


@dataclass
class FDRTwin(Twin):
    """Penalises the distance of probabilities over the classes of the tasks so far."""

    kept: dict[int, Tensor] = field(default_factory=dict)  # row to its logits after its task

    def distance(self, stage: int, epoch: int, number: int) -> Tensor:
        size = min(self.training.batch_size, len(self.stream.tasks[stage].train))
        key = keys.fold(keys.fold(self.seed, "step", stage, epoch, number), "memory", 0)
        every = list(self.kept)
        drawn = torch.tensor([every[i] for i in keys.randint(key, len(every), size).tolist()])
        seen = int((self.stream.opening <= stage).sum())
        then = torch.stack([self.kept[row] for row in drawn.tolist()])[:, :seen].softmax(1)
        now = self.net(self.x(drawn), stage + 1).softmax(1)
        gaps = [a - b for a, b in zip(now, then, strict=True)]
        lengths = [one.norm() for one in gaps if float(one.detach().norm()) > 1e-6]
        return METHOD.alpha * sum(lengths, 0 * now.sum()) / len(gaps)

    def run(self, stage: int) -> None:
        self.net.train()
        used = self.net.in_use(stage + 1)
        optimizer = OPTIMIZERS[self.training.optimizer](used, self.training)
        train, size = self.stream.tasks[stage].train, self.training.batch_size
        for epoch in range(self.training.epochs):
            key = keys.fold(self.seed, "order", stage, epoch)
            order = train[keys.permutation(key, len(train), len(train))]
            for number, rows in enumerate(order.split(size)):
                task = F.cross_entropy(self.net(self.x(rows), stage + 1), self.y(rows))
                self.descend(optimizer, task, stage, epoch, number)

    def descend(self, optimizer, task, stage, epoch, number) -> None:
        loss = task + self.distance(stage, epoch, number) if self.kept else task
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        self.net.eval()
        old = self.kept
        now = self.net(self.x(rows), len(self.net.heads))
        self.kept = {row: old.get(row, z) for row, z in zip(rows.tolist(), now, strict=True)}


@dataclass
class Alternating(FDRTwin):
    """Two steps, as the released code takes them."""

    def descend(self, optimizer, task, stage, epoch, number) -> None:
        optimizer.zero_grad()
        task.backward()
        optimizer.step()
        if self.kept:
            optimizer.zero_grad()
            self.distance(stage, epoch, number).backward()
            optimizer.step()


CASES = [
    ("joint", FDRTwin, DECAYED, "plain"),
    ("joint", FDRTwin, DECAYED, "normed"),
    ("alternating", Alternating, PLAIN_SGD, "plain"),
]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(("update", "kind", "training", "model"), CASES)
def test_weights_are_those_of_a_plain_loop(update, kind, training, model, together):
    count, method = 0, replace(METHOD, update=update)
    for twin, stage in beside(method, kind, training, model=model, together=together):
        assert away(twin, stage.learner) < 1e-10
        kept = stage.learner.exemplars
        twin.keep(kept.rows)
        then = torch.stack([twin.kept[row] for row in kept.rows.tolist()])
        assert (then - stage.learner.values["logits"]).abs().max() < 1e-10
        count += 1
    assert count == 9


def test_a_loop_in_one_step_is_not_one_in_two():
    method = replace(METHOD, update="alternating")
    gaps = []
    for twin, stage in beside(method, FDRTwin, PLAIN_SGD, model="plain", together=False):
        gaps.append(away(twin, stage.learner))
        twin.keep(stage.learner.exemplars.rows)
    assert max(gaps) > 1e-4


@pytest.mark.parametrize(
    "values", [{"alpha": -1.0}, {"update": "both"}, {"size": -1}, {"memory": 5}]
)
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        FDR(**values)
