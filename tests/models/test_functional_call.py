"""Gradients of functions: those of `torch.func.grad`, to the last bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from engram.models.functional_call import differentiate

X = torch.linspace(-2.0, 2.0, 24).reshape(2, 3, 4)
WEIGHT = torch.linspace(-1.0, 1.0, 40).reshape(2, 4, 5)


def loss(weight, x):
    return F.cross_entropy((x @ weight).tanh(), x.argmax(1))


def with_aux(weight, x):
    logits = x @ weight
    return logits.square().sum(), {"logits": logits, "own": (x * 2,)}


def test_alone_and_mapped():
    assert torch.equal(differentiate(loss)(WEIGHT[0], X[0]), grad(loss)(WEIGHT[0], X[0]))
    assert torch.equal(vmap(differentiate(loss))(WEIGHT, X), vmap(grad(loss))(WEIGHT, X))


def test_several_arguments_and_other_results():
    (ours, other), aux = differentiate(with_aux, argnums=(0, 1), has_aux=True)(WEIGHT[0], X[0])
    (torchs, second), same = grad(with_aux, argnums=(0, 1), has_aux=True)(WEIGHT[0], X[0])
    assert torch.equal(ours, torchs)
    assert torch.equal(other, second)
    assert torch.equal(aux["logits"], same["logits"])
    assert not aux["logits"].requires_grad
    assert torch.equal(aux["own"][0], same["own"][0])


def test_trees_are_arguments():
    found = differentiate(lambda tree: (tree["a"] * tree["b"][0]).sum())({"a": X, "b": [2 * X]})
    assert torch.equal(found["a"], 2 * X)
    assert torch.equal(found["b"][0], X)


@pytest.mark.parametrize("way", [differentiate, grad])
def test_a_gradient_can_be_differentiated(way):
    def bend(x):
        return way(lambda y: (y**3).sum())(x).sum()

    assert torch.equal(way(bend)(X), 6 * X)
    assert torch.equal(vmap(way(bend))(X), 6 * X)


def test_what_does_not_matter_has_gradient_zero():
    assert torch.equal(differentiate(lambda x, y: y.sum(), argnums=(0, 1))(X, X)[0], 0 * X)
    assert torch.equal(differentiate(lambda x: torch.ones(()))(X), 0 * X)


def test_nothing_is_left_behind():
    """Neither a variable nor an open level, even after an error."""
    x = X.clone()

    def fail(x):
        raise ZeroDivisionError

    with torch.no_grad():
        assert not differentiate(lambda x: x.sum())(x).requires_grad
    with pytest.raises(ZeroDivisionError):
        differentiate(fail)(x)
    assert not x.requires_grad
    assert torch._C._functorch.maybe_current_level() is None
    assert not torch._C._functorch.get_inplace_requires_grad_allowed()


def test_only_a_number_has_a_gradient():
    with pytest.raises(RuntimeError, match="scalar"):
        differentiate(lambda x: x)(X)
