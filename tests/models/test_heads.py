from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from engram import keys
from engram.models import Cosine, Linear, build


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_columns_do_not_depend_on_how_many_there_are(kind):
    small, large = kind(5, 3), kind(5, 40)
    small.reset_columns(9), large.reset_columns(9)
    for name in small.class_parameters:
        assert torch.equal(getattr(small, name), getattr(large, name)[:3])
        rows = getattr(large, name)
        assert len(rows.unique(dim=0)) == 40
    before = small.weight.clone()
    small.reset_columns(10)
    assert not torch.equal(small.weight, before)


def test_column_comes_from_its_own_key():
    head = Linear(4, 6).double()
    head.reset_columns(2)
    drawn = (2 * keys.uniform(keys.fold(2, "head", 5), 5) - 1) / 2
    assert torch.equal(head.weight[5], drawn[:4])
    assert torch.equal(head.bias[5], drawn[4])


def test_spread_of_initial_columns():
    head = Linear(100, 200)
    head.reset_columns(0)
    assert head.weight.abs().max() <= 0.1
    assert abs(head.weight.std() - 0.1 / 3**0.5) < 1e-3
    cosine = Cosine(100, 200)
    cosine.reset_columns(0)
    assert abs(cosine.weight.norm(dim=1).mean() - 1) < 0.02


def test_bias_changes_no_weight():
    with_bias, without = Linear(3, 2), Linear(3, 2, bias=False)
    with_bias.reset_columns(1), without.reset_columns(1)
    assert torch.equal(with_bias.weight, without.weight)
    assert without.class_parameters == ("weight",)
    assert without.bias is None


def test_linear_is_torchs_linear():
    head, twin, x = Linear(3, 2), nn.Linear(3, 2), torch.ones(4, 3)
    twin.load_state_dict(head.state_dict())
    assert torch.equal(head(x), twin(x))
    assert (head.features, head.classes) == (3, 2)


def test_cosine_golden_numbers():
    """[T-L1], and the probabilities of [T-L6] with scale 10."""
    head = Cosine(2, 3, scale=10.0)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    x = torch.tensor([[3.0, 4.0]])
    assert head.cosines(x)[0].tolist() == pytest.approx([0.6, 0.8, -0.6], abs=1e-5)
    assert head(x)[0].tolist() == pytest.approx([6, 8, -6], abs=1e-5)
    sure = head(x).sigmoid()[0].tolist()
    assert sure == pytest.approx([0.997527, 0.999665, 0.002473], abs=1e-5)


def test_cosine_scale_is_learnt_and_no_class_row():
    head = Cosine(2, 3)
    assert head.scale.item() == 1
    assert head.scale.requires_grad
    assert head.class_parameters == ("weight",)


def test_cosine_maps_over_runs():
    head, x = Cosine(4, 3).double(), torch.randn(5, 4).double()
    state = {"weight": torch.randn(2, 3, 4).double(), "scale": torch.tensor([1.0, 7.0]).double()}
    mapped = vmap(lambda s: functional_call(head, s, (x,)))(state)
    for run in range(2):
        head.load_state_dict({k: v[run] for k, v in state.items()})
        torch.testing.assert_close(mapped[run], head(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_sizes_are_checked(kind):
    with pytest.raises(ValueError, match="classes: expected a whole number of at least 1"):
        kind(3, 0)


def test_xavier_weights_of_a_perceptron_and_its_head():
    spec = {
        "name": "mlp",
        "hidden": [50, 20],
        "xavier": True,
        "head": {"name": "linear", "xavier": True},
    }
    net = build(spec, sample_shape=(30,), classes=10, seed=1)
    for name, weight in net.named_parameters():
        if name.endswith("bias"):
            assert (weight == 0).all()
            continue
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.95 * bound < weight.abs().max() <= bound
        assert abs(float(weight.detach().std()) - bound / 3**0.5) < 0.06 * bound
