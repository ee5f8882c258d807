"""WA against a loop by hand, the lengths that it promises, and clipped heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engram.memory import Memory
from engram.methods import WA, Finetune
from engram.methods.wa import HEAD, align_weights
from engram.streams import permuted
from tests.methods import small
from tests.refusals import refuses

ON = small.stream()
EVERY = Memory(total=600, policy="herding")  # keeps all rows
WHOLE = replace(small.EXACT, batch_size=0, epochs=4, lr=0.05, momentum=0.0)


def views(learner):
    return learner.layout(learner.vector)


@pytest.mark.parametrize("clip", [False, True])
def test_is_the_plain_loop(clip):
    learner = small.after(Finetune(), 0, replace(WHOLE, lr=1e-30), on=ON)  # as good as untrained
    weights = {k: nn.Parameter(v.clone()) for k, v in views(learner).items()}
    inner = [weights[f"net.backbone.lower.0.{name}"] for name in ("weight", "bias")]
    head = [weights[f"net.head.{name}"] for name in ("weight", "bias")]
    known = torch.zeros(0, dtype=torch.long)
    for stage, task in enumerate(ON.tasks):
        rows = torch.cat([known, task.train])
        x, y = learner.feed(rows).double(), ON.targets[rows, 0]
        seen, optimizer = 2 * stage + 2, torch.optim.SGD([*inner, *head], lr=WHOLE.lr)
        teacher = [one.detach().clone() for one in (*inner, *head)]
        for _ in range(WHOLE.epochs):
            optimizer.zero_grad()
            logits = F.linear(torch.relu(F.linear(x, *inner)), *head)[:, :seen]
            share = 2 * stage / seen
            cost = (1 - share) * F.cross_entropy(logits, y)
            if stage:
                old = F.linear(torch.relu(F.linear(x, *teacher[:2])), *teacher[2:])
                soft = (old[:, : seen - 2] / 2).softmax(1)
                rest = -(soft * (logits[:, : seen - 2] / 2).log_softmax(1)).sum(1).mean()
                cost = cost + share * rest
            cost.backward()
            optimizer.step()
            if clip:
                head[0].data[:seen].clamp_(min=0)
        if stage:
            lengths = head[0].data.norm(dim=1)
            fresh = slice(seen - 2, seen)
            head[0].data[fresh] *= lengths[: seen - 2].mean() / lengths[fresh].mean()
        known = rows
        found = views(small.after(WA(memory=EVERY, clip=clip), stage, WHOLE, on=ON))
        for name, one in weights.items():
            assert torch.allclose(found[name], one.data, rtol=0, atol=1e-10), name


def test_new_weights_are_as_long_as_old_ones():
    for stage in (1, 2):
        learner = small.after(WA(memory=Memory(total=12)), stage, on=ON)
        lengths = views(learner)[HEAD].norm(dim=1)
        old, new = learner.known, learner.new
        assert lengths[new].mean() == pytest.approx(float(lengths[old].mean()), abs=1e-12)


def test_alignment_leaves_directions_and_other_rows():
    rows = torch.randn(5, 3, dtype=torch.float64)
    old, new = torch.arange(5) < 2, torch.tensor([False, False, True, True, False])
    found = align_weights(rows, old, new)
    assert torch.equal(found[~new], rows[~new])
    assert torch.allclose(F.normalize(found, dim=1), F.normalize(rows, dim=1))


def test_clipping_is_of_opened_rows_alone():
    begun = views(small.after(Finetune(), 0, replace(WHOLE, lr=1e-30), on=ON))[HEAD]
    found = views(small.after(WA(memory=EVERY, clip=True), 1, on=ON))[HEAD]
    assert found[:4].min() == 0
    assert torch.equal(found[4:], begun[4:])


def test_lockstep():
    few = Memory(total=12, policy="herding")
    assert small.gap([WA(memory=few, temperature=t, clip=True) for t in (1.0, 2.0, 4.0)]) < 1e-9
    assert small.gap([WA(memory=few)] * 3, model=small.Normed) < 1e-9


def test_refusals():
    with refuses("temperature"):
        WA(temperature=0.0)
    with refuses("stream"):
        small.after(WA(), on=permuted(small.clouds(), tasks=2))


def test_a_step_of_its_own_is_taken_only_for_clipping():
    assert WA(clip=True).implements("step")
    assert not WA().implements("step")
