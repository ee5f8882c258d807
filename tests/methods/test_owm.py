"""OWM against a loop that meets one mean input after the other, and what projection promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engram import keys
from engram.methods import OWM, Finetune
from engram.methods.layer_inputs import input_rows, mean_inputs
from engram.methods.owm import shrink
from tests.methods import small
from tests.refusals import refuses

WHOLE = replace(small.EXACT, optimizer="adam", batch_size=0, epochs=4)
BACKBONE, HEAD = "backbone.lower.0", "head"


def project(layer, before, projector):
    moved = torch.cat([layer[0] - before[0], (layer[1] - before[1])[:, None]], 1).detach()
    moved = moved @ projector
    layer[0].data, layer[1].data = before[0] + moved[:, :-1], before[1] + moved[:, -1]


@pytest.mark.parametrize("multi", [False, True], ids=["common head", "own heads"])
def test_is_the_plain_loop(multi):
    """One batch per epoch: Adam, whose steps on hidden layer and common head are projected."""
    on, method = small.stream(multi=multi), OWM(alpha=0.3, size=10)
    learner = small.after(Finetune(), 0, replace(WHOLE, lr=1e-30), on=on)  # as good as untrained
    weights = {
        name.removeprefix("net."): nn.Parameter(value.clone())
        for name, value in learner.layout(learner.vector).items()
    }
    hidden, head = ([weights[f"{n}.weight"], weights[f"{n}.bias"]] for n in (BACKBONE, HEAD))
    projectors = {name: torch.eye(size + 1).double() for name, size in ((BACKBONE, 5), (HEAD, 8))}
    for stage, task in enumerate(on.tasks):
        x, y = learner.feed(task.train).double(), on.targets[task.train, 0]
        optimizer = torch.optim.Adam([*hidden, *head], lr=WHOLE.lr)
        open_ = torch.full((6,), float("-inf")).double()
        open_[2 * stage * multi : 2 * stage + 2] = 0.0
        for _ in range(WHOLE.epochs):
            old = [[one.detach().clone() for one in layer] for layer in (hidden, head)]
            optimizer.zero_grad()
            features = torch.relu(F.linear(x, *hidden))
            F.cross_entropy(F.linear(features, *head) + open_, y).backward()
            optimizer.step()
            if stage:
                project(hidden, old[0], projectors[BACKBONE])
            if stage and not multi:
                project(head, old[1], projectors[HEAD])
        order = keys.permutation(keys.fold(0, "inputs", stage), len(x), len(x))
        for rows in x[order].split(10):
            with torch.no_grad():
                features = torch.relu(F.linear(rows, *hidden))
            for name, given in ((BACKBONE, rows), (HEAD, features)):
                mean = F.pad(given.mean(0), (0, 1), value=1.0)
                along = projectors[name] @ mean
                projectors[name] = projectors[name] - along.outer(along) / (0.3 + mean @ along)
        twin = small.after(method, stage, WHOLE, on=on)
        assert set(twin.state["projectors"]) == {
            f"net.{BACKBONE}",
            *([] if multi else ["net.head"]),
        }
        found = twin.layout(twin.vector)
        for name, value in weights.items():
            assert torch.allclose(found[f"net.{name}"], value, atol=1e-9), (stage, name)


def test_many_inputs_at_once_are_one_after_the_other():
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    one = torch.eye(4).double()
    for row in rows:
        one = shrink(one, row[None], 0.2)
    assert torch.allclose(shrink(torch.eye(4).double(), rows, 0.2), one, atol=1e-12)
    ridge = torch.linalg.inv(torch.eye(4).double() + rows.mT @ rows / 0.2)
    assert torch.allclose(one, ridge, atol=1e-12)


def test_mean_inputs_of_a_convolution_are_those_of_the_mean_image():
    learner = small.after(Finetune(), 0)
    layer = nn.Conv2d(2, 3, 2, stride=2).double()
    x = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    mean = input_rows(layer, x).view(4, 4, -1).mean(0)
    assert torch.allclose(input_rows(layer, x.mean(0, keepdim=True)), mean)
    found = mean_inputs(learner, torch.arange(9), 4, ("net.backbone", "net.head"))
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        "net.backbone.lower.0": (3, 6), "net.head": (3, 9),
    }  # fmt: skip


def test_what_batches_gave_on_average_is_not_forgotten():
    """One mean per task: its features before the activation stay."""
    on, away = small.stream(), []
    for method in (OWM(alpha=1e-9, size=1000), Finetune()):
        first, last = (small.after(method, stage, on=on) for stage in (0, 1))
        mean = F.pad(first.feed(on.tasks[0].train).double().mean(0), (0, 1), value=1.0)
        layers = [one.layout(one.vector).backbone.lower for one in (first, last)]
        joined = [torch.cat([w["0.weight"], w["0.bias"][:, None]], 1) for w in layers]
        away.append(float(((joined[1] - joined[0]) @ mean).abs().max()))
    assert away[0] < 1e-7 < 1e-3 < away[1]


def test_bad_options():
    with refuses("alpha"):
        OWM(alpha=0.0)
    with refuses("size"):
        OWM(size=0)
