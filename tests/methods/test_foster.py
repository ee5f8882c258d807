"""FOSTER against a loop by hand; one network answers, two at most are held."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.memory import Memory
from engram.methods import FOSTER
from tests.methods import small
from tests.refusals import refuses

ON = small.stream()
EVERY = Memory(total=600, policy="herding")  # keeps all rows
FEW = Memory(total=12, policy="herding")
WHOLE = replace(small.EXACT, batch_size=0, epochs=3, lr=0.05, momentum=0.0)
LAYER, HEAD = ("lower.0.weight", "lower.0.bias"), ("net.head.weight", "net.head.bias")


def drawn(_self, _learner, purpose, count, fan):
    """Stands in for random rows."""
    numbers = torch.arange(count * 8, dtype=torch.float64).reshape(count, 8)
    return torch.sin(numbers + len(purpose)) * fan**-0.5


def features_of(weights, start, x):
    return torch.relu(F.linear(x, *(weights[f"{start}.backbone.{name}"] for name in LAYER)))


def head_of(weights, features):
    return F.linear(features, *(weights[name] for name in HEAD))


def soft(said, wanted, temperature, factor=1.0):
    """Distillation written with probabilities."""
    wanted = (wanted / temperature).softmax(-1) * factor
    wanted = wanted / wanted.sum(-1, keepdim=True)
    return -(wanted * (said / temperature).softmax(-1).log()).sum(-1).mean()


def factors(y, beta):
    counts = y.bincount().double()
    found = (1 - beta) / (1 - beta**counts)
    return found / found.sum() * len(counts)


def descend(weights, names, cost):
    leaves = {name: weights[name].clone().requires_grad_() for name in names}
    slopes = torch.autograd.grad(cost({**weights, **leaves}), list(leaves.values()))
    for name, slope in zip(names, slopes, strict=True):
        weights[name] = weights[name] - WHOLE.lr * slope


def test_is_the_plain_loop(monkeypatch):
    monkeypatch.setattr(FOSTER, "_draw", drawn)
    method = FOSTER(
        memory=EVERY, hold=0.7, temperature=3.0, balance=0.8, compression_balance=0.9, compression=2
    )
    run = Run(stream=ON, method=method, model=small.MODEL, training=WHOLE)
    learner = Engine([run], device="cpu").learner(run)
    weights = {name: value.clone() for name, value in learner.params.items()}
    rows = torch.zeros(0, dtype=torch.long)
    first = [f"net.backbone.{name}" for name in LAYER]
    for found in Engine([run], device="cpu", together=False).stages():
        stage, task = found.stage, ON.tasks[found.stage]
        rows = torch.cat([rows, task.train])
        x, y, seen = learner.feed(rows).double(), ON.targets[rows, 0], 2 * stage + 2
        before = dict(weights)
        if stage:
            for name in LAYER:
                weights[f"booster.backbone.{name}"] = weights[f"net.backbone.{name}"]
            for name, fan in (("head", 16), ("own", 8)):
                fresh = weights[f"booster.{name}.weight"].clone()
                fresh[:seen] = drawn(None, None, name, 6, fan)[:seen]
                weights[f"booster.{name}.weight"] = fresh
            weights["booster.own.bias"] = weights["booster.own.bias"].clone()
            weights["booster.own.bias"][:seen] = 0.0

        def boosted(now, x=x):
            new = features_of(now, "booster", x)
            return head_of(now, features_of(now, "net", x)) + new @ now["booster.head.weight"].T

        def cost(now, x=x, y=y, stage=stage, seen=seen, before=before):
            if not stage:
                return F.cross_entropy(head_of(now, features_of(now, "net", x))[:, :seen], y)
            logits, known = boosted(now)[:, :seen], seen - 2
            old = head_of(before, features_of(before, "net", x))[:, :known]
            new = features_of(now, "booster", x)
            own = F.linear(new, now["booster.own.weight"], now["booster.own.bias"])[:, :seen]
            task = F.cross_entropy(logits / factors(y, 0.8), y)
            return task + F.cross_entropy(own, y) + 0.7 * soft(logits[:, :known], old, 3.0)

        own = [*HEAD, *(name for name in weights if name.startswith("booster."))]
        for _ in range(WHOLE.epochs):
            descend(weights, own if stage else [*first, *HEAD], cost)
        if stage:
            wanted = boosted(weights)[:, :seen]
            weights.update({name: before[name] for name in HEAD})

            def compressed(now, x=x, y=y, seen=seen, wanted=wanted):
                said = head_of(now, features_of(now, "net", x))[:, :seen]
                return soft(said, wanted, 3.0, factors(y, 0.9))

            for _ in range(2):
                descend(weights, [*first, *HEAD], compressed)
        for name, value in found.learner.params.items():
            assert torch.allclose(value, weights[name], rtol=0, atol=1e-13), (stage, name)


def test_one_network_is_left():
    """The state is empty after each task, and bytes stay those of two networks."""
    run = Run(stream=ON, method=FOSTER(memory=FEW), model=small.Normed, training=small.EXACT)
    sizes = []
    for found in Engine([run], device="cpu", together=False).stages():
        learner, x = found.learner, torch.zeros(2, 5, dtype=torch.float64)
        assert learner.state == {}
        said = learner.net()(x).logits
        assert torch.equal(learner.answer(learner.net(), x, {}, torch.tensor(-1)).logits, said)
        parts = learner.nbytes()
        sizes.append(sum(size for name, size in parts.items() if name != "memory"))
    assert sizes[0] < sizes[1] == sizes[2]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_the_first_network_stands_still_while_it_is_boosted(together, monkeypatch):
    start, begin, kept, checked = FOSTER.start, FOSTER.begin_compression, {}, []

    def backbone(learner):
        own = {**learner.params, **learner.buffers}
        return {name: own[name].clone() for name in own if name.startswith("net.backbone.")}

    def keep(self, learner, task):
        start(self, learner, task)
        kept[learner.seed] = backbone(learner)

    def compare(self, learner, task):
        now = backbone(learner)
        assert all(torch.equal(now[name], value) for name, value in kept[learner.seed].items())
        checked.append(len(now))
        begin(self, learner, task)

    monkeypatch.setattr(FOSTER, "start", keep)
    monkeypatch.setattr(FOSTER, "begin_compression", compare)
    runs = [
        Run(stream=small.stream(seed=seed), method=FOSTER(memory=FEW), model=small.Normed,
            training=small.EXACT, seed=seed)
        for seed in range(2)
    ]  # fmt: skip
    for found in Engine(runs, device="cpu", together=together).stages():
        moved = backbone(found.learner)
        same = [torch.equal(moved[name], value) for name, value in kept[found.learner.seed].items()]
        assert not all(same)  # it learns from both afterwards
    assert checked == [6] * 4  # two layers of two tensors, two statistics


def test_lockstep():
    methods = [
        FOSTER(memory=FEW, hold=h, temperature=t, balance=b, compression=2)
        for h, t, b in ((0.0, 1.0, 0.0), (1.0, 2.0, 0.96), (2.0, 3.0, 0.5))
    ]
    assert small.gap(methods) < 1e-9


def test_refusals():
    for options in (
        {"temperature": 0.0}, {"hold": -1.0}, {"compression": -1}, {"balance": 1.0},
        {"compression_balance": 1.0},
    ):  # fmt: skip
        with refuses(next(iter(options))):
            FOSTER(**options)
    with refuses("model"):
        small.after(FOSTER(), model={**small.MODEL, "head": "cosine"})
