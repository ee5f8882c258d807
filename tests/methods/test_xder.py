"""X-DER against a loop in plain PyTorch, its stored logits row by row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.learner.learner import RunLearner
from engram.memory import Memory
from engram.methods import XDER
from engram.methods.xder import cap_logits
from tests.engine.plain_loop import OPTIMIZERS, Twin, away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods import small
from tests.refusals import refuses

MEMORY = Memory(total=14)
OPTIONS = {"alpha": 0.3, "beta": 0.7, "gamma": 0.6, "eta": 0.4, "margin": 0.5}


class Kept(NamedTuple):
    row: int
    stage: int


@dataclass
class XDERTwin(Twin):
    """Loops over rows; logits and counts are in dicts of the rows that are kept."""

    kept: list[Kept] = field(default_factory=list)
    logits: dict[Kept, Tensor] = field(default_factory=dict)
    counts: dict[Kept, int] = field(default_factory=dict)
    rewritten: int = 0

    def run(self, stage: int) -> None:
        self.net.train()
        optimizer = OPTIMIZERS[self.training.optimizer](self.net.in_use(stage + 1), self.training)
        train, size = self.stream.tasks[stage].train, self.training.batch_size
        for epoch in range(self.training.epochs):
            order = keys.fold(self.seed, "order", stage, epoch)
            rows = train[keys.permutation(order, len(train), len(train))]
            for number, some in enumerate(rows.split(size)):
                key = keys.fold(self.seed, "step", stage, epoch, number)
                optimizer.zero_grad()
                self.loss(some, stage, key).backward()
                optimizer.step()

    def label(self, one: Kept) -> int:
        return int(self.y(torch.tensor([one.row])))

    def excess(self, wrong: list[Tensor], right: list[Tensor]) -> Tensor:
        gaps = [a + OPTIONS["margin"] - b for a, b in zip(wrong, right, strict=True)]
        gaps = [gap for gap in gaps if gap > 0]
        return torch.stack(gaps).mean() if gaps else torch.zeros((), dtype=torch.float64)

    def loss(self, rows: Tensor, stage: int, key: int) -> Tensor:
        opening, every = self.stream.opening, len(self.net.heads)
        past, seen = int((opening < stage).sum()), int((opening <= stage).sum())
        logits, y = self.net(self.x(rows), every), self.y(rows)
        total = F.cross_entropy(logits[:, past:seen], y - past)
        pairs = [(one, int(label)) for one, label in zip(logits, y, strict=True)]
        if self.kept:
            count = min(self.training.batch_size, len(self.stream.tasks[stage].train))
            draws = []
            for number in range(2):
                memory_key = keys.fold(key, "memory", number)
                places = keys.randint(memory_key, len(self.kept), count).tolist()
                draws.append([self.kept[place] for place in places])
            said = [self.net(self.x(torch.tensor([k.row for k in one])), every) for one in draws]
            then = torch.stack([self.logits[one] for one in draws[0]])
            total = total + OPTIONS["alpha"] * F.mse_loss(said[0], then)
            truth = torch.tensor([self.label(one) for one in draws[1]])
            total = total + OPTIONS["beta"] * F.cross_entropy(said[1][:, :past], truth)
            share = logits[:, :seen].softmax(1)
            past_best = [one[:past].max().detach() for one in share]
            total = total + OPTIONS["eta"] * self.excess(
                past_best, [one[past:].max() for one in share]
            )
            done: set[Kept] = set()
            for number, (draw, found) in enumerate(zip(draws, said, strict=True)):
                rolls = keys.uniform(keys.fold(keys.fold(key, number), "rewrite"), count)
                for place, one in enumerate(draw):
                    if one in done:
                        continue
                    done.add(one)
                    pairs.append((found[place], self.label(one)))
                    self.counts[one] += 1
                    if rolls[place] * self.counts[one] < 1:
                        self.rewrite(one, found[place].detach(), past)
        if seen < len(opening):
            own = [one[opening == opening[label]].max() for one, label in pairs]
            future = [one[seen:].max() for one, _ in pairs]
            total = total + OPTIONS["eta"] * self.excess(future, own)
        return total

    def rewrite(self, one: Kept, new: Tensor, start: int) -> None:
        later, truth = new[start:].clone(), self.logits[one][self.label(one)]
        if later.max() > truth:
            later *= (OPTIONS["gamma"] * truth / later.max()).clamp(0, 1)
        self.logits[one] = torch.cat([self.logits[one][:start], later])
        self.rewritten += 1

    def store(self, learner: RunLearner, stage: int) -> None:
        """After the task, the rows that Engram keeps."""
        self.net.eval()
        past = int((self.stream.opening < stage).sum())
        held = zip(learner.exemplars.rows.tolist(), learner.exemplars.stages.tolist(), strict=True)
        self.kept = [Kept(*one) for one in held]
        for one in self.kept:
            x = self.x(torch.tensor([one.row]))
            new = self.net(x, len(self.net.heads))[0].detach()
            if one in self.logits:
                self.rewrite(one, new, past)
            else:
                truth, first = new[self.label(one)].clone(), new[:past].clone()
                if past and first.max() > truth:
                    first *= (OPTIONS["gamma"] * truth / first.max()).clamp(0, 1)
                self.logits[one] = torch.cat([first, new[past:]])
            self.counts[one] = 0


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_and_stored_logits_are_those_of_a_plain_loop(model, together):
    method, counts = XDER(memory=MEMORY, **OPTIONS), []
    for twin, stage in beside(method, XDERTwin, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        twin.store(learner, stage.stage)
        mine = torch.stack([twin.logits[one] for one in twin.kept])
        assert (mine - learner.values["logits"]).abs().max() < 1e-10
        assert learner.values["draws"].tolist() == [0.0] * len(twin.kept)
        counts.append(twin.rewritten)
    assert len(counts) == 9
    assert max(counts) > 20


def test_logits_that_stay_differ():
    """The comparison sees that stored logits are rewritten."""

    class Stays(XDERTwin):
        def rewrite(self, one, new, start):
            return

    method = XDER(memory=MEMORY, **OPTIONS)
    pairs = beside(method, Stays, DECAYED, model="plain", together=False)
    gaps = []
    for twin, stage in pairs:
        gaps.append(away(twin, stage.learner))
        twin.store(stage.learner, stage.stage)
    assert max(gaps) > 1e-4


def test_logits_of_old_classes_stay():
    """Of a stored row, those of the classes seen when it came never change."""
    run = Run(stream=small.stream(), method=XDER(memory=Memory(total=60)), model=small.MODEL,
              training=replace(small.EXACT, epochs=2))  # fmt: skip
    before: dict[tuple[int, int], Tensor] = {}
    changed = 0.0
    for stage in Engine([run], device="cpu", together=False).stages():
        learner = stage.learner
        now = dict(zip(
            zip(learner.exemplars.rows.tolist(), learner.exemplars.stages.tolist(), strict=True),
            learner.values["logits"], strict=True,
        ))  # fmt: skip
        for place, value in before.items():
            if place in now:
                known = learner.stream.opening <= place[1]
                assert torch.equal(now[place][known], value[known])
                changed = max(changed, float((now[place] - value).abs().max()))
        before = {place: value.clone() for place, value in now.items()}
    assert changed > 0.01


def test_caps_stay_finite():
    logits = torch.tensor([[-1.0, -(2.0**-40), -3.0], [0.0, 0.0, 0.0], [-1.0, 2.0, -2.0]])
    later = torch.tensor([False, True, True])
    found = cap_logits(logits, later, logits[:, 0], 0.85)
    assert found.tolist() == [[-1.0, -(2.0**-40), -3.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "values", [{"alpha": -1.0}, {"gamma": 1.5}, {"margin": -0.1}, {"size": -1}, {"memory": 5}]
)
def test_bad_values(values):
    with refuses(next(iter(values))):
        XDER(**values)
