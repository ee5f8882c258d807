"""DynamicER against a loop by hand; older extractors stand still."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.memory import Memory
from engram.methods import DynamicER
from tests.methods import small
from tests.refusals import refuses

ON = small.stream()
EVERY = Memory(total=600, policy="herding")  # keeps all rows
WHOLE = replace(small.EXACT, batch_size=0, epochs=3, lr=0.05, momentum=0.0)
HEADS = ("net.head.weight", "extractor1.head.weight", "extractor2.head.weight")
BACKBONES = ("net.backbone.", "extractor1.backbone.", "extractor2.backbone.")


def drawn(_self, _learner, purpose, count, width):
    """Stands in for random rows."""
    numbers = torch.arange(count * 8, dtype=torch.float64).reshape(count, 8)
    return torch.sin(numbers + len(purpose)) * width**-0.5


def features_of(weights, x, count):
    layers = [
        [weights[f"{start}lower.0.{name}"] for name in ("weight", "bias")]
        for start in BACKBONES[:count]
    ]
    return [torch.relu(F.linear(x, *layer)) for layer in layers]


def classify(weights, found):
    parts = [F.linear(one, weights[name]) for one, name in zip(found, HEADS, strict=False)]
    return torch.stack(parts).sum(0) + weights["net.head.bias"]


def descend(weights, names, cost):
    leaves = {name: weights[name].clone().requires_grad_() for name in names}
    slopes = torch.autograd.grad(cost({**weights, **leaves}), list(leaves.values()))
    for name, slope in zip(names, slopes, strict=True):
        weights[name] = weights[name] - WHOLE.lr * slope


def test_is_the_plain_loop(monkeypatch):
    monkeypatch.setattr(DynamicER, "_draw", drawn)
    method = DynamicER(memory=EVERY, auxiliary=0.7, balance=2, temperature=3.0)
    run = Run(stream=ON, method=method, model=small.MODEL, training=WHOLE)
    learner = Engine([run], device="cpu").learner(run)
    weights = {name: value.clone() for name, value in learner.params.items()}
    rows = torch.zeros(0, dtype=torch.long)
    for found in Engine([run], device="cpu", together=False).stages():
        stage, task = found.stage, ON.tasks[found.stage]
        rows = torch.cat([rows, task.train])
        x, y = learner.feed(rows).double(), ON.targets[rows, 0]
        seen, heads = 2 * stage + 2, [*HEADS[: stage + 1], "net.head.bias"]
        own = [name for name in weights if name.startswith(BACKBONES[stage])] + heads
        if stage:
            for name in ("lower.0.weight", "lower.0.bias"):
                weights[BACKBONES[stage] + name] = weights[BACKBONES[stage - 1] + name]
            weights["auxiliary.old.weight"] = drawn(None, None, "auxiliary", 1, 8)
            weights["auxiliary.old.bias"] = torch.zeros(1).double()
            own += [name for name in weights if name.startswith("auxiliary.")]

        def cost(now, x=x, y=y, stage=stage, seen=seen):
            parts = features_of(now, x, stage + 1)
            task = F.cross_entropy(classify(now, parts)[:, :seen], y)
            if not stage:
                return task
            new, old = (
                F.linear(
                    parts[-1], *(now[f"auxiliary.{which}.{name}"] for name in ("weight", "bias"))
                )
                for which in ("new", "old")
            )
            said = torch.cat([new[:, seen - 2 : seen], old], 1)
            aim = torch.where(y >= seen - 2, y - seen + 2, 2)
            return task + 0.7 * F.cross_entropy(said, aim)

        def balanced(now, x=x, y=y, stage=stage, seen=seen):
            logits = classify(now, features_of(now, x, stage + 1))[:, :seen]
            return F.cross_entropy(logits / 3.0, y)

        for _ in range(WHOLE.epochs):
            descend(weights, own, cost)
        if stage:
            for name in HEADS[: stage + 1]:
                weights[name] = weights[name].clone()
                weights[name][:seen] = drawn(None, None, name, 6, 8 * (stage + 1))[:seen]
            weights["net.head.bias"] = weights["net.head.bias"].clone()
            weights["net.head.bias"][:seen] = 0.0
            for _ in range(2):
                descend(weights, heads, balanced)
        for name, value in found.learner.params.items():
            assert torch.allclose(value, weights[name], rtol=0, atol=1e-10), (stage, name)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_older_extractors_stand_still(together):
    runs = [
        Run(stream=small.stream(seed=seed), method=DynamicER(balance=1), model=small.Normed,
            training=small.EXACT, seed=seed)
        for seed in range(2)
    ]  # fmt: skip
    kept: dict[tuple[int, str], torch.Tensor] = {}
    for found in Engine(runs, device="cpu", together=together).stages():
        learner = found.learner
        for name, value in {**learner.params, **learner.buffers}.items():
            for number, start in enumerate(BACKBONES[: found.stage + 1]):
                if name.startswith(start):
                    before = kept.setdefault((found.run, name), value.clone())
                    assert torch.equal(before, value), (number, name)
    assert len(kept) == 2 * 3 * 6  # two layers of two tensors, two statistics


def test_lockstep():
    few = Memory(total=12, policy="herding")
    methods = [DynamicER(memory=few, auxiliary=a, balance=2) for a in (0.0, 1.0, 2.0)]
    assert small.gap(methods) < 1e-9


def test_refusals():
    for options in ({"temperature": 0.0}, {"auxiliary": -1.0}, {"balance": -1}):
        with refuses(next(iter(options))):
            DynamicER(**options)
    with refuses("model"):
        small.after(DynamicER(), model={**small.MODEL, "head": "cosine"})
