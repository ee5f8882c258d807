"""XdG against a loop that shuts units."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engram import keys
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import XdG
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, clouds, spied, train
from tests.refusals import refuses

STREAM = task_incremental(clouds(), classes_per_task=2)
DEEP = {"name": "mlp", "hidden": (8, 6)}
NAMES = ("lower.0", "upper.0")
METHOD = XdG(share=0.5)


def gates_of(stage):
    """Half of the units, by the order that the engine draws."""
    key, found = keys.fold(0, "gates", stage), []
    for place, size in enumerate((8, 6)):
        order = keys.permutation(keys.fold(key, place), size, size)
        found.append((torch.arange(size)[:, None] == order[size // 2 :]).any(1).double())
    return found


def scores(weights, x, stage):
    for name, gate in zip(NAMES, gates_of(stage), strict=True):
        layer = weights[f"backbone.{name}.weight"], weights[f"backbone.{name}.bias"]
        x = gate * torch.relu(F.linear(x, *layer))
    return F.linear(x, weights["head.weight"], weights["head.bias"])


def test_a_loop_that_shuts_units_trains_the_same_weights(monkeypatch):
    seen = spied(monkeypatch, XdG)
    run = Run(stream=STREAM, method=METHOD, model=DEEP, training=Training(**SGD, momentum=0.5))
    start = Engine([run], device="cpu").learner(run)
    net = {k.removeprefix("net."): v.clone() for k, v in start.params.items()}
    ended = train(METHOD, STREAM, model=DEEP, momentum=0.5)[-1]
    for stage in range(3):
        moved = {k: torch.zeros_like(v) for k, v in net.items()}
        for batch in seen.of(stage):
            leaves = {k: v.clone().requires_grad_() for k, v in net.items()}
            logits = scores(leaves, batch.x, stage).masked_fill(~STREAM.visible[stage], -torch.inf)
            cost = F.cross_entropy(logits, batch.target)
            slopes = torch.autograd.grad(cost, list(leaves.values()))
            for (name, weight), slope in zip(net.items(), slopes, strict=True):
                moved[name] = 0.5 * moved[name] + slope
                net[name] = weight - SGD["lr"] * moved[name]
    for name, one in net.items():
        assert torch.allclose(ended.learner.params[f"net.{name}"], one, rtol=0, atol=1e-9), name


def test_the_task_of_a_row_says_which_units_answer():
    last = train(METHOD, STREAM, model=DEEP)[-1].learner
    net = {k.removeprefix("net."): v for k, v in last.params.items()}
    x = STREAM.data.gather(STREAM.tasks[0].test[:5]).double()
    found = []
    for stage in range(3):
        given = METHOD.answer(last.net(), x, last.state, torch.tensor(stage)).logits
        assert torch.allclose(given, scores(net, x, stage), rtol=0, atol=1e-9)
        found.append(given)
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("share", [-0.1, 1.0, "half"])
def test_bad_shares(share):
    with refuses("share"):
        XdG(share=share)
