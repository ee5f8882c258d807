"""CLS-ER against a loop in plain PyTorch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import BadArgument
from engram.methods import CLSER
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, rows_of, same_memory

METHOD = CLSER(
    strength=0.5, plastic_rate=0.8, stable_rate=0.4, plastic_decay=0.7, stable_decay=0.9,
    memory=MEMORY,
)  # fmt: skip


@dataclass
class CLSERTwin(ReservoirTwin):
    """Two copies of the network that follow it, one more slowly."""

    means: dict[str, nn.Module] = field(default_factory=dict)
    steps: int = 0
    stable_decay: float = 0.9

    def follow(self, key: int) -> None:
        self.steps += 1
        rates = {"plastic": (0.8, 0.7), "stable": (0.4, self.stable_decay)}
        for name, (rate, decay) in rates.items():
            if float(keys.uniform(keys.fold(key, name))) < rate:
                keep = min(1 - 1 / (self.steps + 1), decay)
                pairs = zip(self.means[name].parameters(), self.net.parameters(), strict=True)
                for mean, weight in pairs:
                    mean.data.mul_(keep).add_((1 - keep) * weight.data)

    def teach(self, name: str, x: Tensor, stage: int) -> Tensor:
        """In eval mode, with the statistics of the network that trains."""
        mean = self.means[name].eval()
        if self.net.norm is not None:
            mean.norm.load_state_dict({
                **mean.norm.state_dict(),
                **{k: v for k, v in self.net.norm.state_dict().items() if "running" in k},
            })  # fmt: skip
        with torch.no_grad():
            return mean(x, stage + 1)

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        if not self.means:
            self.means = {name: copy.deepcopy(self.net) for name in ("plastic", "stable")}
        else:
            self.follow(self.last)  # a step has been taken
        self.last = key
        if not self.slots:
            logits = self.net(self.x(rows), stage + 1)
            return F.cross_entropy(logits, self.y(rows)), torch.zeros(len(rows))
        old = rows_of(self.drawn(stage, key, 0))
        x, labels = self.x(old), self.y(old)
        # the pass that trains comes first: teachers have the statistics after it
        logits = self.net(torch.cat([self.x(rows), x]), stage + 1)
        own = logits[len(rows) :]
        said = {name: self.teach(name, x, stage) for name in self.means}
        sure = {name: one.softmax(1).gather(1, labels[:, None]) for name, one in said.items()}
        wanted = torch.where(sure["stable"] > sure["plastic"], said["stable"], said["plastic"])
        total = F.cross_entropy(logits, torch.cat([self.y(rows), labels]))
        total = total + 0.5 * F.mse_loss(own, wanted)
        return total, torch.zeros(len(rows))


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_averages_and_memory_are_those_of_a_plain_loop(model, together):
    count = 0
    for twin, stage in beside(METHOD, CLSERTwin, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        assert same_memory(twin, learner)
        unfollowed = copy.deepcopy(twin)
        unfollowed.follow(twin.last)
        for name, mean in unfollowed.means.items():
            theirs = learner.layout(learner.state[name])
            gaps = [float((a.detach() - b).abs().max()) for a, b in mean.pairs(theirs)]
            assert max(gaps) < 1e-10
        count += 1
    assert count == 9


def test_a_twin_with_another_average_differs():
    pairs = beside(METHOD, SlowTwin, DECAYED, model="plain", together=False)
    assert max(away(twin, stage.learner) for twin, stage in pairs) > 1e-4


@dataclass
class SlowTwin(CLSERTwin):
    stable_decay: float = 0.99


def test_the_stable_network_answers():
    for _, stage in beside(METHOD, CLSERTwin, DECAYED, model="plain", together=False):
        learner = stage.learner
        rows = learner.task.train
        x, stable = learner.batch(rows).x, learner.state["stable"]
        snapshot = {"vector": stable, "buffers": learner.buffers}
        logits = learner.net().frozen(snapshot)(x).logits
        assert torch.allclose(learner.answers(rows).logits, logits, rtol=0, atol=1e-12)
        assert not torch.allclose(learner.outputs(rows).logits, logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "values",
    [{"strength": -1.0}, {"plastic_rate": 2.0}, {"stable_rate": -0.1}, {"plastic_decay": 1.5},
     {"stable_decay": "much"}, {"size": -1}, {"memory": 5}],
)  # fmt: skip
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        CLSER(**values)
