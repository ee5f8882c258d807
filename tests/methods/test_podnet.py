"""PODNet against a loop by hand; what is pooled, and where proxies begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.memory import Memory
from engram.methods import PODNet, podnet
from engram.streams import class_incremental
from tests.methods import small
from tests.refusals import refuses

ON = small.stream()
EVERY = Memory(total=600, policy="herding")  # keeps all rows
FEW = Memory(total=12, policy="herding")
WHOLE = replace(small.EXACT, batch_size=0, epochs=3, lr=0.05, momentum=0.0)
DEEP = {"name": "mlp", "hidden": (8, 6)}
BELOW, ABOVE = "net.backbone.lower.0.", "net.backbone.upper.0."
HEAD = ("net.head.weight", "net.head.scale", "proxies.weight")


def first_points(points, count, _key):
    """Stands in for clusters."""
    return points[:count] + 0.1


def layers_of(weights, x):
    below = F.linear(x, *(weights[BELOW + name] for name in ("weight", "bias")))
    above = F.linear(torch.relu(below), *(weights[ABOVE + name] for name in ("weight", "bias")))
    return below, torch.relu(above)


def score(weights, features, seen):
    vectors = torch.cat([weights[HEAD[0]][:, None], weights[HEAD[2]]], 1)[:seen]
    cosines = F.cosine_similarity(features[:, None, None], vectors[None], dim=-1)
    return (cosines * cosines.exp()).sum(-1) / cosines.exp().sum(-1)


def separate(weights, features, y, seen):
    said, scale = score(weights, features, seen), weights[HEAD[1]]
    own = torch.stack([row[c] for row, c in zip(said, y, strict=True)])
    rivals = torch.stack([row[torch.arange(seen) != c] for row, c in zip(said, y, strict=True)])
    ratio = (scale * (own - 0.4)).exp() / (scale * rivals).exp().sum(-1)
    return torch.relu(-ratio.log()).mean()


def descend(weights, names, cost):
    leaves = {name: weights[name].clone().requires_grad_() for name in names}
    slopes = torch.autograd.grad(cost({**weights, **leaves}), list(leaves.values()))
    for name, slope in zip(names, slopes, strict=True):
        weights[name] = weights[name] - WHOLE.lr * slope


def test_is_the_plain_loop(monkeypatch):
    monkeypatch.setattr(podnet, "cluster_centres", first_points)
    method = PODNet(
        memory=EVERY, proxies=3, scale=4.0, margin=0.4, strength=2.0, flat=0.5, balance=2
    )
    run = Run(stream=ON, method=method, model=DEEP, training=WHOLE)
    learner = Engine([run], device="cpu").learner(run)
    weights = {name: value.clone() for name, value in learner.params.items()}
    rows = torch.zeros(0, dtype=torch.long)
    for found in Engine([run], device="cpu", together=False).stages():
        stage, task = found.stage, ON.tasks[found.stage]
        rows = torch.cat([rows, task.train])
        x, y, seen = learner.feed(rows).double(), ON.targets[rows, 0], 2 * stage + 2
        before = dict(weights)
        if stage:
            lengths = torch.cat([weights[HEAD[0]][:, None], weights[HEAD[2]]], 1).norm(dim=-1)
            weights[HEAD[0]], weights[HEAD[2]] = (weights[n].clone() for n in (HEAD[0], HEAD[2]))
            for c in (seen - 2, seen - 1):
                own = layers_of(weights, learner.feed(task.train[ON.targets[task.train, 0] == c]))
                made = first_points(F.normalize(own[1], dim=-1), 3, None)
                made = F.normalize(made, dim=-1) * lengths[: seen - 2].mean()
                weights[HEAD[0]][c], weights[HEAD[2]][c] = made[0], made[1:]

        def cost(now, x=x, y=y, stage=stage, seen=seen, before=before):
            below, features = layers_of(now, x)
            task = separate(now, features, y, seen)
            if not stage:
                return task
            below_then, features_then = layers_of(before, x)
            away = F.normalize(below, dim=-1) - F.normalize(below_then, dim=-1)
            pooled = ((away.square().sum(-1) + 1e-8).sqrt() - 1e-4).mean()
            flat = (1 - F.cosine_similarity(features, features_then)).mean()
            return task + (seen / 2) ** 0.5 * (2.0 * pooled + 0.5 * flat)

        def balanced(now, x=x, y=y, seen=seen):
            return separate(now, layers_of(now, x)[1], y, seen)

        for _ in range(WHOLE.epochs):
            descend(weights, list(weights), cost)
        for _ in range(2 if stage else 0):
            descend(weights, HEAD, balanced)
        for name, value in found.learner.params.items():
            assert torch.allclose(value, weights[name], rtol=0, atol=1e-10), (stage, name)


def test_maps_are_pooled_over_width_and_over_height():
    maps = torch.rand(3, 2, 4, 5, dtype=torch.float64) - 0.5
    sums = [torch.cat([(m**2).sum(1).flatten(), (m**2).sum(2).flatten()]) for m in maps]
    wanted = torch.stack([one / one.norm() for one in sums])
    assert torch.allclose(podnet.pool_places(maps, 3), wanted)
    frames = maps.reshape(3, 2, 4, 5)[:, :, None].flatten(0, 1)  # two maps a row, apart
    assert podnet.pool_places(frames, 3).shape == (3, 2 * 9)


def test_the_slope_of_equal_layers_is_none():
    one = torch.rand(2, 3, dtype=torch.float64).requires_grad_()
    podnet.pooled_distance(one, one.detach() + 1e-16, 2).sum().backward()
    assert float(one.grad.abs().max()) < 1e-10


def test_proxies_begin_at_clusters():
    rng = torch.Generator().manual_seed(0)
    middles = 10 * torch.eye(3, dtype=torch.float64)
    spread = 0.01 * torch.randn(30, 3, generator=rng, dtype=torch.float64)
    points = middles.repeat(10, 1) + spread
    found = [podnet.cluster_centres(points, 3, key) for key in range(6)]
    best = min(float(torch.cdist(middles, one).min(1).values.max()) for one in found)
    assert best < 0.02
    few = podnet.cluster_centres(points[:2], 5, 0)
    assert few.shape == (5, 3)


@pytest.mark.parametrize("options", [{"layers": ("lower", "upper")}, {}], ids=["named", "found"])
def test_images(options):
    """On maps, together and alone."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 6)
    x = rng.standard_normal((24, 1, 8, 8)).astype(np.float32)
    on = class_incremental(Data.from_arrays(x, y, test=(x, y)), classes_per_task=2)
    model = {"name": "cnn", "dropout": 0.0}
    training = replace(small.EXACT, epochs=1, lr=1e-3)
    methods = [PODNet(memory=FEW, strength=s, proxies=2, balance=1, **options) for s in (0.0, 3.0)]
    assert small.gap(methods, training, model=model, streams=[on, on]) < 1e-9
    ends = [small.after(one, training=training, on=on, model=model).vector for one in methods]
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    "options", [{"variant": "nme"}, {"proxies": 1, "balance": 0}], ids=["nme", "one"]
)
def test_lockstep(options):
    methods = [
        PODNet(memory=FEW, scale=s, margin=m, flat=f, **options)
        for s, m, f in ((10.0, 0.6, 1.0), (4.0, 0.0, 0.0), (1.0, 0.2, 5.0))
    ]
    assert small.gap(methods, model=DEEP) < 1e-9


def test_nearest_means_answer():
    learner = small.after(PODNet(memory=FEW, variant="nme"), model=DEEP)
    kept = learner.exemplars
    unit = F.normalize(learner.outputs(kept.rows, kept.stages).features, dim=-1)
    means = torch.stack([unit[kept.columns == c].mean(0) for c in range(6)])
    said = learner.answers(kept.rows, kept.stages)
    wanted = (F.normalize(said.features, dim=-1) @ F.normalize(means, dim=-1).T).argmax(-1)
    assert torch.equal(said.logits.argmax(-1), wanted)


def test_refusals():
    for options in (
        {"proxies": 0}, {"scale": 0.0}, {"margin": -1.0}, {"strength": -1.0}, {"flat": -1.0},
        {"balance": -1}, {"variant": "ncm"}, {"layers": "lower.0"},
    ):  # fmt: skip
        with refuses(next(iter(options))):
            PODNet(**options)
    with refuses("layers"):
        small.after(PODNet(layers=("lower.7",)), model=DEEP)
    with refuses("layers"):  # a list of layers, which is not called itself
        small.after(PODNet(layers=("lower",)), model=DEEP)
