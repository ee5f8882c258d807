"""Average gradients: the fast way for linear layers, the mapped way and a plain loop agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engram.checks.toy_runs import largest_gap, make_clouds, make_runs, trees_equal
from engram.engine.engine import Engine
from engram.learner import gradients
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import mean
from engram.methods import Finetune
from engram.methods.fisher import bernoulli_nll, predicted_class_nll, visible_label_nll
from engram.streams import class_incremental

STREAM = class_incremental(make_clouds(), classes_per_task=[2, 3, 1])


def learner(model: str = "plain", stage: int = 1) -> RunLearner:
    """A learner right after a task."""
    engine = Engine(make_runs(Finetune(), [STREAM], model=model), device="cpu")
    for found in engine.stages():
        if found.stage == stage:
            return found.learner
    raise AssertionError("no such stage")


def length(net: Net, batch: Batch) -> Tensor:
    """MAS: squared length of the outputs."""
    return mean((net(batch.x, batch.w).logits * batch.open).square().sum(-1), batch.w)


def by_loop(one: RunLearner, term: Any, transform: Any, group: int) -> Tensor:
    """Plain autograd through the module in eval mode, one group at a time."""
    rows, total = one.task.train, torch.zeros_like(one.vector)
    parts = rows.split(group)
    for part in parts:
        vector = one.vector.clone().requires_grad_(True)
        net = gradients.FunctionalNet(one.networks, vector, one.buffers, training=False)
        value = term(net, one.batch(part))
        total += transform(torch.autograd.grad(value, vector)[0])
    return total / len(parts)


@pytest.mark.parametrize("transform", [torch.square, torch.abs], ids=["square", "abs"])
@pytest.mark.parametrize("term", [visible_label_nll, predicted_class_nll, bernoulli_nll, length])
class TestThreeWays:
    def test_linear_layers(self, term, transform, monkeypatch):
        one = learner()
        assert gradients.is_only_linear(one.networks)
        used = []
        original = gradients.linear_sums
        monkeypatch.setattr(
            gradients,
            "linear_sums",
            lambda *a: used.append(1) or original(*a),  # type: ignore[func-returns-value]
        )
        fast = one.average_gradient(term, transform=transform)
        assert used
        monkeypatch.setattr(gradients, "is_only_linear", lambda networks: False)
        mapped = one.average_gradient(term, transform=transform)
        assert len(used) == 1
        assert largest_gap(fast, mapped) < 1e-12
        assert largest_gap(fast, by_loop(one, term, transform, 1)) < 1e-12

    @pytest.mark.parametrize("model", ["normed", "dropped"])
    def test_other_layers(self, term, transform, model):
        one = learner(model)
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform, 1)) < 1e-12

    @pytest.mark.parametrize("group", [5, 1000])
    def test_groups(self, term, transform, group):
        one = learner("normed")
        found = one.average_gradient(term, transform=transform, group=group)
        assert largest_gap(found, by_loop(one, term, transform, group)) < 1e-12


def test_full_is_one_group():
    one = learner()
    rows = len(one.task.train)
    assert trees_equal(one.average_gradient(visible_label_nll, group="full"),
                one.average_gradient(visible_label_nll, group=rows))  # fmt: skip


def test_a_transform_of_ones_own_takes_the_mapped_way():
    one = learner()
    cube = one.average_gradient(visible_label_nll, transform=lambda g: g**3)
    assert largest_gap(cube, by_loop(one, visible_label_nll, lambda g: g**3, 1)) < 1e-12


@pytest.mark.parametrize("group", [1, 7])
def test_chunks_change_nothing(group, monkeypatch):
    one = learner("normed")
    whole = one.average_gradient(visible_label_nll, group=group)
    monkeypatch.setattr(gradients, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr("engram.learner.learner.EVAL_ROWS", 3)
    assert largest_gap(one.average_gradient(visible_label_nll, group=group), whole) < 1e-12


def test_labels_may_be_given():
    one = learner()
    rows = one.task.train
    true = one.labels(rows)[:, 0]
    assert trees_equal(
        one.average_gradient(visible_label_nll, labels=true),
        one.average_gradient(visible_label_nll),
    )
    other = one.average_gradient(visible_label_nll, labels=torch.zeros_like(true))
    assert largest_gap(other, one.average_gradient(visible_label_nll)) > 1e-3


def test_nothing_moves():
    one = learner("normed")
    kept = one.vector.clone(), {k: v.clone() for k, v in one.buffers.items()}
    one.average_gradient(visible_label_nll)
    one.average_gradient(visible_label_nll, group=8, batch_statistics=True)
    assert trees_equal((one.vector, one.buffers), kept)


def test_batch_statistics_are_the_groups_own():
    one = learner("normed")
    found = one.average_gradient(visible_label_nll, group="full", batch_statistics=True)
    batch = one.batch()
    vector = one.vector.clone().requires_grad_(True)
    net = gradients.FunctionalNet(one.networks, vector, one.buffers, training=True)
    plain = torch.autograd.grad(visible_label_nll(net, batch), vector)[0].square()
    assert largest_gap(found, plain) < 1e-12
    assert largest_gap(found, one.average_gradient(visible_label_nll, group="full")) > 1e-6


def test_unopened_columns_have_no_importance():
    one = learner(stage=0)
    found = one.layout(one.average_gradient(visible_label_nll))
    shut = ~one.seen
    assert int(shut.sum()) == 4
    for name in one.networks.class_rows:
        assert not found[name][shut].any()
        assert found[name][one.seen].any()
