"""HAT against a loop that gates activations, and tasks that are not forgotten."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engram
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import HAT, Finetune
from engram.methods.hat import GATES, Compensated, find_gated
from engram.models.build import build
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, TINY, Normed, clouds, spied, train
from tests.refusals import refuses

STREAM = task_incremental(clouds(), classes_per_task=2)
DEEP = {"name": "mlp", "hidden": (8, 6)}
NAMES = ("lower.0", "upper.0")


def test_a_loop_that_gates_activations_trains_the_same_weights(monkeypatch):
    seen = spied(monkeypatch, HAT)
    method = HAT(scale=20.0, sparsity=0.5)
    ends = [
        (one.params[GATES].clone(), one.state["used"].clone(), one)
        for one in iter_learners(method, DEEP, momentum=0.0, epochs=3)
    ]
    batches = [seen.of(stage) for stage in range(3)]
    run = Run(stream=STREAM, method=method, model=DEEP, training=Training(**SGD))
    start = Engine([run], device="cpu").learner(run)
    net = {k.removeprefix("net."): v.clone() for k, v in start.params.items() if k != GATES}
    used = [torch.zeros(8).double(), torch.zeros(6).double()]
    for stage in range(3):
        drawn = engram.keys.normal(engram.keys.fold(0, "gates", stage), 14).double()
        embedding = list(drawn.split([8, 6]))
        steps = len(batches[stage]) // 3
        for number, batch in enumerate(batches[stage]):
            s = 1 / 20 + (20 - 1 / 20) * (number % steps) / (steps - 1)
            leaves = {k: v.clone().requires_grad_() for k, v in net.items()}
            own = [e.clone().requires_grad_() for e in embedding]
            gates, hidden, w = [torch.sigmoid(s * e) for e in own], batch.x, leaves
            for name, gate in zip(NAMES, gates, strict=True):
                layer = w[f"backbone.{name}.weight"], w[f"backbone.{name}.bias"]
                hidden = gate * torch.relu(F.linear(hidden, *layer))
            scores = F.linear(hidden, w["head.weight"], w["head.bias"])
            scores = scores.masked_fill(~STREAM.visible[stage], -torch.inf)
            left = [1 - u for u in used]
            more = sum((g * u).sum() for g, u in zip(gates, left, strict=True))
            cost = F.cross_entropy(scores, batch.target)
            cost = cost + 0.5 * more / sum(u.sum() for u in left)
            found = torch.autograd.grad(cost, [*own, *leaves.values()])
            slopes = dict(zip(leaves, found[2:], strict=True))
            if stage:
                a, b = used
                slopes["backbone.lower.0.weight"] *= 1 - a[:, None]
                slopes["backbone.lower.0.bias"] *= 1 - a
                slopes["backbone.upper.0.weight"] *= 1 - torch.minimum(b[:, None], a)
                slopes["backbone.upper.0.bias"] *= 1 - b
            for name, slope in slopes.items():
                net[name] = net[name] - 0.05 * slope
            for k, e in enumerate(embedding):
                factor = 20 / s * ((s * e).clamp(-50, 50).cosh() + 1) / (e.cosh() + 1)
                embedding[k] = e - 0.05 * factor * found[k]
        used = [torch.maximum(u, (e > 0).double()) for u, e in zip(used, embedding, strict=True)]
        gates, marks, last = ends[stage]
        assert torch.allclose(gates, torch.cat(embedding), rtol=0, atol=1e-9)
        assert torch.equal(marks, torch.cat(used))
    for name, one in net.items():
        assert torch.allclose(last.params[f"net.{name}"], one, rtol=0, atol=1e-9), name


def test_no_gradient_leads_gates_far_out():
    gates = torch.tensor([5.9, 6.1, 6.1, -6.1, -6.1], requires_grad=True)
    slopes, one = torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0]), torch.tensor(1.0)
    (found,) = torch.autograd.grad((Compensated.apply(gates, one, one) * slopes).sum(), gates)
    assert torch.equal(found, torch.tensor([-1.0, 0.0, 1.0, 0.0, -1.0]))


class Residual(nn.Module):
    """Convolutions with norms and a sum in between, which no gate shuts as a whole."""

    features = 12

    def __init__(self, sample_shape):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3)
        self.pool = nn.AdaptiveAvgPool2d(2)

    def forward(self, x):
        below = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(below)) + below
        return self.pool(torch.relu(self.last(x))).flatten(1)


def test_gates_of_inputs_are_found():
    model = build(Residual, sample_shape=(1, 8, 8), classes=2, seed=0)
    first, second, last = find_gated(model, (1, 8, 8))
    assert first.gated == "net.backbone.norm"
    assert (first.inputs, second.inputs, last.inputs) == ((-1,), (0, 1, 2), (-1, -1, -1))
    lenet = build("lenet", sample_shape=(1, 16, 16), classes=2, seed=0, hidden=5)
    hidden = find_gated(lenet, (1, 16, 16))[-1]
    assert hidden.inputs == tuple(20 + place for place in range(50))
    assert hidden.gated == "net.backbone.norm"


def pictures():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 12)
    x = (rng.standard_normal((48, 1, 8, 8)) + y[:, None, None, None]).astype(np.float32)
    return task_incremental(engram.Data.from_arrays(x, y, test=(x, y)), classes_per_task=2)


PICTURES = pictures()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(
    ("model", "stream"),
    [(DEEP, STREAM), (Normed, STREAM), (Residual, PICTURES), ({"name": "cnn"}, PICTURES)],
    ids=["plain", "normed", "residual", "cnn"],
)
def test_no_score_of_a_task_ever_changes(together, model, stream):
    """Not by a bit, with normalisation, dropout, weight decay and Adam."""
    settings = Training(
        precision="float64", batch_size=16, epochs=2, optimizer="adamw", lr=0.01, weight_decay=0.1
    )
    methods = HAT(), HAT(sparsity=0.1)
    runs = [
        Run(stream=stream, method=method, model=model, training=settings, seed=seed)
        for seed, method in enumerate(methods)
    ]
    first: dict[tuple[int, int], np.ndarray] = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        tasks = items_of(stage.learner.stream)[1][: len(stage.scores)].numpy()
        for task in range(stage.stage + 1):
            own = stage.learner.stream.visible[task].numpy()
            found = stage.scores[tasks == task][:, own]
            kept = first.setdefault((stage.run, task), found)
            assert np.array_equal(found, kept)
    assert len(first) == 2 * len(stream)


def test_running_statistics_follow_training():
    """Those before the first gate are finetuning's in the first step; each task keeps its own."""
    name, once = "net.backbone.norm.var", {"batch_size": 0, "epochs": 1}
    ours, plain = (next(iter_learners(m, Normed, **once)) for m in (HAT(), Finetune()))
    assert torch.equal(ours.buffers[name], plain.buffers[name])
    last = train(HAT(), STREAM, model=Normed, **once)[-1].learner
    kept = last.state["statistics"][name]
    assert torch.equal(kept[0], ours.buffers[name])
    assert torch.equal(kept[2], last.buffers[name])
    assert float((kept[1] - kept[0]).abs().max()) > 0.01


def iter_learners(method, model, **training):
    settings = Training(**{**SGD, **training})
    run = Run(stream=STREAM, method=method, model=model, training=settings)
    return (one.learner for one in Engine([run], device="cpu", together=False).stages())


def test_bad_use():
    with refuses("sparsity"):
        HAT(sparsity=-1.0)
    with refuses("stream"):
        engram.run(engram.class_incremental(clouds(), classes_per_task=2), method=HAT(),
                   model=TINY, device="cpu")  # fmt: skip

    class Bare(nn.Module):
        features = 5

        def forward(self, x):
            return x

    with refuses("model"):
        engram.run(STREAM, method=HAT(), model=Bare(), device="cpu")
