"""Methods that meet label sets against loops in plain PyTorch, on single labels and on label sets.

Which rows are in a batch is taken from the engine, and the correction that BiC fits; networks,
losses, imprinting, frozen rows and steps are written once more, without masks and padding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engram
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.memory import Memory
from engram.methods import AGEM, LUCIR, BiC, ICaRL, LwF

SETTINGS = {"epochs": 2, "batch_size": 8, "optimizer": "sgd", "lr": 0.05, "momentum": 0.9,
            "weight_decay": 1e-3, "precision": "float64"}  # fmt: skip
FEW = Memory(per_class=3, policy="herding")


def clouds(sizes, names):
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(sizes), 6))[y] * 1.5 + rng.normal(size=(len(y), 6))
    return engram.Data.from_arrays(x, np.array(names)[y], test=(x[::5], np.array(names)[y[::5]]))


def single():
    """One class, two, three; tasks and classes of unequal size."""
    data = clouds([9, 14, 7, 20, 11, 8], range(6))
    return engram.class_incremental(data, order=[0, 3, 1, 2, 4, 5], classes_per_task=[1, 2, 3])


def label_sets():
    """Three levels: Q above P above a, b, c."""
    tasks = [["Q", "e"], ["P"], ["a", "d"], ["b", "c", "f"]]
    tree = {"P": ["a", "b", "c"], "Q": ["P", "d"]}
    data = clouds([20] * 6, list("abcdef"))
    return engram.hierarchical(data, hierarchy=tree, tasks=tasks, valid=0.0, post_valid=0.0)


class Net(nn.Module):
    """The engine's network, its weights held by torch alone."""

    def __init__(self, params):
        super().__init__()
        self.own = nn.ParameterDict({k.replace(".", "/"): v.clone() for k, v in params.items()})

    def features(self, x):
        for name in self.own:
            if "backbone" in name and name.endswith("weight"):
                x = F.linear(x, self.own[name], self.own[name[:-6] + "bias"]).relu()
        return x

    def cosines(self, features):
        return F.normalize(features) @ F.normalize(self.own["net/head/weight"]).T

    def forward(self, x):
        features = self.features(x)
        if "net/head/scale" in self.own:
            return self.own["net/head/scale"] * self.cosines(features)
        return F.linear(features, self.own["net/head/weight"], self.own["net/head/bias"])


class Loop:
    """One run, task by task."""

    def __init__(self, method, stream, params):
        self.method, self.stream, self.net = method, stream, Net(params)
        self.corrected = None  # what BiC made of the last network's answers
        self.against = 0  # steps in which A-GEM's gradients disagreed

    def enter(self, stage):
        opening = self.stream.opening
        self.new, self.known = opening == stage, opening < stage
        self.seen = opening <= stage
        self.teacher = copy.deepcopy(self.net).requires_grad_(False) if stage else None
        self.speed = {name: torch.zeros_like(p) for name, p in self.net.own.items()}
        if stage and isinstance(self.method, LUCIR):
            self.imprint(self.stream.tasks[stage].train)
        if stage and getattr(self.method, "reset_scale", False):
            self.net.own["net/head/scale"].data.fill_(self.method.scale)

    @torch.no_grad()
    def imprint(self, rows):
        head, labels = self.net.own["net/head/weight"], self.stream.targets[rows]
        x, length = self.stream.data.gather(rows).double(), head[self.known].norm(dim=1).mean()
        for column in self.new.nonzero()[:, 0]:
            mine = self.net.features(x[(labels == column).any(1)])
            direction = F.normalize(mine).mean(0)
            head[column] = direction / direction.norm() * length

    def targets(self, y):
        none = torch.zeros(len(self.seen), dtype=torch.float64)
        return torch.stack([none.index_fill(0, row[row >= 0], 1) for row in y])

    def yes_or_no(self, z, targets, among):
        return F.binary_cross_entropy_with_logits(z[:, among], targets[:, among])

    def softened(self, x, y):
        """Labels, and the old network's answers for old classes."""
        found = self.targets(y)
        if self.teacher is not None:
            found[:, self.known] = self.teacher(x).sigmoid()[:, self.known]
        return found

    def plain(self, z, y):
        if self.stream.labels == "set":
            return self.yes_or_no(z, self.targets(y), self.seen)
        return F.cross_entropy(z[:, self.seen], y[:, 0])  # columns in order of introduction

    def loss(self, x, y, old):
        z, method = self.net(x), self.method
        if isinstance(method, ICaRL):
            return self.yes_or_no(z, self.softened(x, y), self.seen)
        if isinstance(method, AGEM):
            return self.yes_or_no(z, self.targets(y), self.known if old.all() else self.new)
        forms = {LUCIR: self.lucir, BiC: self.bic, LwF: self.lwf}
        return forms[type(method)](z, x, y, old)

    def lucir(self, z, x, y, old):
        distils = "distil" in self.method.variant
        soft = self.softened(x, y) if distils else None
        found = self.yes_or_no(z, soft, self.seen) if distils else self.plain(z, y)
        if self.teacher is None:
            return found
        features, before = self.net.features(x), self.teacher.features(x)
        grown = (int(self.known.sum()) / int(self.new.sum())) ** 0.5
        found = found + 5 * grown * (1 - F.cosine_similarity(features, before)).mean()
        short = [] if "no_margin" in self.method.variant else self.short(features, y, old)
        return found + torch.stack(short).mean() if short else found

    def short(self, features, y, old):
        cosines, found = self.net.cosines(features), []
        for row, labels in zip(cosines[old], y[old], strict=True):
            rivals = row[self.new].topk(min(2, int(self.new.sum()))).values
            each = [(0.5 - row[c] + rivals).clamp(min=0).mean() for c in labels if c >= 0]
            found.append(torch.stack(each).mean())
        return found

    def bic(self, z, x, y, old):
        method = self.method
        among = self.new if method.label_scope == "new" else self.seen
        softmax = method.variant == "softmax"
        task = self.plain(z, y) if softmax else self.yes_or_no(z, self.targets(y), among)
        if self.teacher is None:
            return task
        scale, shift = self.corrected
        before, now = (self.teacher(x) * scale + shift)[:, self.known], z[:, self.known]
        if softmax:
            distilled = F.cross_entropy(now / 2, (before / 2).softmax(1))
        else:
            distilled = F.binary_cross_entropy_with_logits(now, before.sigmoid())
        share = int(self.known.sum()) / int(self.seen.sum())
        return share * distilled + (1 - share) * task

    def lwf(self, z, x, y, old):
        task = self.plain(z, y)
        if self.teacher is None:
            return task
        heat, before = self.method.temperature, self.teacher(x)[:, self.known]
        soft = (before / heat).sigmoid()
        return task + F.binary_cross_entropy_with_logits(z[:, self.known] / heat, soft)

    def gradients(self, batch):
        return torch.autograd.grad(self.loss(*batch), list(self.net.own.values()))

    def projected(self, batch, memory):
        """The gradient of a batch, without what goes against that of the memory's."""
        pairs = list(zip(self.gradients(batch), self.gradients(memory), strict=True))
        along = sum((a * b).sum() for a, b in pairs)
        self.against += int(along < 0)
        share = along / sum((b * b).sum() for _, b in pairs) if along < 0 else 0.0
        return [a - share * b for a, b in pairs]

    def step(self, batch, memory=None):
        own = dict(self.net.own.items())
        grads = self.gradients(batch) if memory is None else self.projected(batch, memory)
        moving = self.new if isinstance(self.method, LUCIR) else self.seen
        with torch.no_grad():
            for (name, p), grad in zip(own.items(), grads, strict=True):
                grad = grad + SETTINGS["weight_decay"] * p
                if name in ("net/head/weight", "net/head/bias"):
                    grad[~moving] = 0  # columns to come, and LUCIR's old rows
                self.speed[name] = SETTINGS["momentum"] * self.speed[name] + grad
                p -= SETTINGS["lr"] * self.speed[name]


def watched(method, seen):
    """The method, which writes down the rows of every batch."""

    @dataclass(frozen=True, kw_only=True)
    class Watched(type(method)):
        def loss(self, net, batch, state):
            seen.append((batch.x.clone(), batch.y.clone(), batch.old > 0))
            return super().loss(net, batch, state)

    return Watched(**{one.name: getattr(method, one.name) for one in fields(method)})


EITHER = [
    LUCIR(memory=FEW), LUCIR(memory=FEW, variant="distil"), LUCIR(memory=FEW, variant="no_margin"),
    BiC(memory=Memory(per_class=4), variant="sigmoid"),
    BiC(memory=Memory(per_class=4), variant="distil", label_scope="new"),
    ICaRL(memory=FEW, variant="norm", scale=4.0, reset_scale=True),
    ICaRL(memory=FEW, variant="cnn"), LwF(form="sigmoid"),
]  # fmt: skip
CASES = [(make, method) for make in (single, label_sets) for method in EITHER]
CASES += [
    (single, BiC(memory=Memory(per_class=4), hold_every=2)),
    (label_sets, LUCIR(memory=FEW, variant="distil_no_margin")),
    (label_sets, AGEM(memory=Memory(per_class=4), size=6, masks=True)),
]


@pytest.mark.parametrize(
    ("make", "method"), CASES,
    ids=lambda one: getattr(one, "__name__", "") or
    f"{type(one).__name__}-{getattr(one, 'variant', '')}",
)  # fmt: skip
def test_weights_are_those_of_a_plain_loop(make, method):
    stream, batches = make(), []
    run = Run(stream=stream, method=watched(method, batches), training=Training(**SETTINGS),
              model={"name": "mlp", "hidden": [7, 5]}, seed=3)  # fmt: skip
    engine = Engine([run], device="cpu", together=False)
    loop, done = Loop(method, stream, engine.learner(run).params), 0
    for stage in engine.stages():
        loop.enter(stage.stage)
        steps, done = batches[done:], len(batches)
        if stage.stage and isinstance(method, AGEM):  # asks for the batch, then for the memory's
            for batch, memory in zip(steps[::2], steps[1::2], strict=True):
                loop.step(batch, memory)
        else:
            for batch in steps:
                loop.step(batch)
        state = stage.learner.state
        loop.corrected = (state["scale"], state["shift"]) if "scale" in state else None
        for name, found in stage.learner.params.items():
            torch.testing.assert_close(
                loop.net.own[name.replace(".", "/")], found, rtol=0, atol=1e-12
            )
    assert done > 15
    assert loop.against > 3 or not isinstance(method, AGEM)
