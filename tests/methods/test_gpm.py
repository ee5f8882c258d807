"""GPM against a loop that uses singular vectors, and what its projection promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engram.methods import GPM, Finetune
from engram.methods.gpm import extend
from tests.methods import small
from tests.refusals import refuses

ON = small.stream(multi=True)
WHOLE = replace(small.EXACT, optimizer="adam", batch_size=0, epochs=4)


def test_is_the_plain_loop():
    """One batch per epoch: Adam, whose step on the hidden layer is projected."""
    method = GPM(threshold=0.8, increase=0.05, samples=1000)
    learner = small.after(Finetune(), 0, replace(WHOLE, lr=1e-30), on=ON)  # as good as untrained
    weights = {
        name.removeprefix("net."): nn.Parameter(value.clone())
        for name, value in learner.layout(learner.vector).items()
    }
    hidden = [weights["backbone.lower.0.weight"], weights["backbone.lower.0.bias"]]
    head = [weights["head.weight"], weights["head.bias"]]
    base, counts = torch.zeros(6, 0).double(), []
    for stage, task in enumerate(ON.tasks):
        x, y = learner.feed(task.train).double(), ON.targets[task.train, 0]
        optimizer = torch.optim.Adam([*hidden, *head], lr=WHOLE.lr)
        open_ = torch.full((6,), float("-inf")).double()
        open_[2 * stage : 2 * stage + 2] = 0.0
        for _ in range(WHOLE.epochs):
            old = [one.detach().clone() for one in hidden]
            optimizer.zero_grad()
            features = torch.relu(F.linear(x, *hidden))
            F.cross_entropy(F.linear(features, *head) + open_, y).backward()
            optimizer.step()
            moved = torch.cat([hidden[0] - old[0], (hidden[1] - old[1])[:, None]], 1).detach()
            moved = moved - moved @ base @ base.T
            hidden[0].data, hidden[1].data = old[0] + moved[:, :-1], old[1] + moved[:, -1]
        given = F.pad(x, (0, 1), value=1.0).T
        u, s, _ = torch.linalg.svd(given - base @ base.T @ given)
        total, share = given.square().sum(), 0.8 + 0.05 * stage
        held, count = 1 - s.square().sum() / total, 0
        while held < share:
            held, count = held + s[count].square() / total, count + 1
        base = torch.cat([base, u[:, :count]], 1)
        counts.append(count)
        twin = small.after(method, stage, WHOLE, on=ON)
        found = twin.layout(twin.vector)
        for name, value in weights.items():
            assert torch.allclose(found[f"net.{name}"], value, atol=1e-9), (stage, name)
    assert counts[0] > 0
    assert sum(counts) < 6


def test_all_directions_of_a_task_are_kept_once():
    """A share of 1 of few rows: their features stay as they were."""
    method, rows = GPM(threshold=1.0, samples=3), torch.eye(6)[:3].double()
    first = extend(None, rows.T @ rows, share=1.0)
    assert torch.allclose(extend(first, rows.T @ rows, share=1.0), first)
    ends = [small.after(method, stage, on=ON) for stage in (0, 1)]
    held = ends[0].state["held"]["net.backbone.lower.0"]
    assert round(float(held.trace())) >= 3
    weights = [one.layout(one.vector).backbone.lower for one in ends]
    joined = [torch.cat([w["0.weight"], w["0.bias"][:, None]], 1) for w in weights]
    assert float(((joined[1] - joined[0]) @ small_held(method)).abs().max()) < 1e-12
    assert float((joined[1] - joined[0]).abs().max()) > 1e-3


def small_held(method):
    return small.after(method, 0, on=ON).state["held"]["net.backbone.lower.0"]


@pytest.mark.parametrize("model", [None, small.Normed])
def test_lockstep_is_the_loop(model):
    streams = [small.stream(multi=True, seed=seed) for seed in range(2)]
    assert small.gap([GPM(threshold=0.8)] * 2, streams=streams, model=model) < 1e-10


def test_bad_options():
    with refuses("threshold"):
        GPM(threshold=1.5)
    with refuses("samples"):
        GPM(samples=0)
