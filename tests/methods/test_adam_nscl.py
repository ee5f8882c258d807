"""Adam-NSCL against a loop that projects by hand, and what its projection promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engram.data.dataset import Data
from engram.methods import AdamNSCL, Finetune
from engram.methods.layer_inputs import input_moments, input_rows
from engram.streams import task_incremental
from tests.methods import small
from tests.refusals import refuses

ON = small.stream(multi=True)
WHOLE = replace(small.EXACT, optimizer="adam", batch_size=0, epochs=4)


def moment(x):
    rows = F.pad(x, (0, 1), value=1.0)
    return rows.mT @ rows


def test_is_the_plain_loop():
    """One batch per epoch: Adam, whose step on the hidden layer is projected."""
    learner = small.after(Finetune(), 0, replace(WHOLE, lr=1e-30), on=ON)  # as good as untrained
    weights = {
        name.removeprefix("net."): nn.Parameter(value.clone())
        for name, value in learner.layout(learner.vector).items()
    }
    hidden = [weights["backbone.lower.0.weight"], weights["backbone.lower.0.bias"]]
    head = [weights["head.weight"], weights["head.bias"]]
    total, projector = 0, None
    for stage, task in enumerate(ON.tasks):
        x = learner.feed(task.train).double()
        y = ON.targets[task.train, 0]
        optimizer = torch.optim.Adam([*hidden, *head], lr=WHOLE.lr)
        open_ = torch.full((6,), float("-inf")).double()
        open_[2 * stage : 2 * stage + 2] = 0.0
        for _ in range(WHOLE.epochs):
            old = [one.detach().clone() for one in hidden]
            optimizer.zero_grad()
            features = torch.relu(F.linear(x, *hidden))
            F.cross_entropy(F.linear(features, *head) + open_, y).backward()
            optimizer.step()
            if projector is not None:
                moved = torch.cat([hidden[0] - old[0], (hidden[1] - old[1])[:, None]], 1)
                moved = moved.detach() @ projector
                hidden[0].data = old[0] + moved[:, :-1]
                hidden[1].data = old[1] + moved[:, -1]
        total = total + moment(x)
        values, vectors = torch.linalg.eigh(total)
        basis = vectors[:, values <= 10 * values[0]]
        projector = basis @ basis.mT
        twin = small.after(AdamNSCL(), stage, WHOLE, on=ON)
        found = twin.layout(twin.vector)
        for name, value in weights.items():
            assert torch.allclose(found[f"net.{name}"], value, atol=1e-9), (stage, name)


def test_moments_of_inputs():
    learner = small.after(AdamNSCL(scale=1.0), 0, on=ON)
    found = input_moments(learner, ON.tasks[0].train, "net.backbone")
    x = learner.feed(ON.tasks[0].train).double()
    assert torch.allclose(found["net.backbone.lower.0"], moment(x))


def test_convolutions_are_products_with_their_rows():
    layer = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)).double()
    x = torch.randn(4, 2, 7, 6, generator=torch.Generator().manual_seed(0)).double()
    weight = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1)
    out = (input_rows(layer, x) @ weight.mT).view(4, -1, 3).mT.reshape(layer(x).shape)
    assert torch.allclose(out, layer(x))


def test_other_parameters_stand_still_from_the_second_task_on():
    first, last = (small.after(AdamNSCL(), s, on=ON, model=small.Normed) for s in (0, 2))
    frozen = ~last.free
    assert bool(frozen.any())
    moved = last.layout((first.vector != last.vector) & first.free)
    assert not any(value.any() for name, value in moved.items() if "norm" in name)
    assert any(value.any() for name, value in moved.items() if "first" in name)


def test_what_lies_in_other_directions_is_not_forgotten():
    """Every task has two axes of its own, so that its features stay as they were."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 20)
    x = np.zeros((120, 6), np.float32)
    for row, label in enumerate(y):
        axes = slice(2 * (label // 2), 2 * (label // 2) + 2)
        x[row, axes] = rng.standard_normal(2) + 3 * (label % 2)
    on = task_incremental(Data.from_arrays(x, y, test=(x, y)), classes_per_task=2)
    away = []
    for method in (AdamNSCL(), Finetune()):
        first, last = (small.after(method, stage, on=on) for stage in (0, 2))
        rows = torch.tensor(x[:40]).double()
        hidden = [one.layout(one.vector).backbone.lower["0.weight"] for one in (first, last)]
        shift = [one.layout(one.vector).backbone.lower["0.bias"] for one in (first, last)]
        features = [F.linear(rows, *pair) for pair in zip(hidden, shift, strict=True)]
        away.append(float((features[0] - features[1]).abs().max()))
    assert away[0] < 1e-9 < 1e-3 < away[1]


@pytest.mark.parametrize("model", [None, small.Normed])
def test_lockstep_is_the_loop(model):
    streams = [small.stream(multi=True, seed=seed) for seed in range(2)]
    assert small.gap([AdamNSCL()] * 2, streams=streams, model=model) < 1e-10


def test_bad_options():
    with refuses("scale"):
        AdamNSCL(scale=0.5)
