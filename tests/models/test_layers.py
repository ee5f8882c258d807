from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from engram import keys
from engram.models import BatchNorm, Dropout, forward_context
from tests.refusals import refuses

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return keys.normal(seed, *shape) * 2 + 1


def twins(features: int, stock: type[nn.Module], **options: float) -> tuple[BatchNorm, nn.Module]:
    ours, theirs = BatchNorm(features, **options).double(), stock(features, **options).double()
    with torch.no_grad():
        for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            mine.copy_(draw(features, seed=3))
            other.copy_(mine)
    return ours, theirs


def agree(ours: BatchNorm, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.mean, theirs.running_mean, **TIGHT)
    torch.testing.assert_close(ours.var, theirs.running_var, **TIGHT)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, **TIGHT)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, **TIGHT)


@pytest.mark.parametrize(
    ("stock", "shape"),
    [(nn.BatchNorm1d, (7, 4)), (nn.BatchNorm1d, (7, 4, 3)), (nn.BatchNorm2d, (7, 4, 3, 2))],
)
@pytest.mark.parametrize("padding", [None, 0, 3])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.3, "eps": 1e-3}])
def test_batch_norm_equals_torch_on_the_rows_that_count(stock, shape, padding, options):
    ours, theirs = twins(4, stock, **options)
    for step in range(3):
        x = draw(*shape, seed=step)
        weights = None
        mine = x.clone()
        if padding is not None:
            mine = torch.cat([x, 100 + draw(padding, *shape[1:], seed=9)]) if padding else mine
            weights = torch.cat([torch.ones(7), torch.zeros(padding)]).double()
        mine.requires_grad_()
        other = x.clone().requires_grad_()
        with forward_context(weights):
            y = ours(mine)
        expected = theirs(other)
        torch.testing.assert_close(y[:7], expected, **TIGHT)
        for tensor in (y[:7], expected):
            (tensor * draw(*shape, seed=50)).sum().backward()
        torch.testing.assert_close(mine.grad[:7], other.grad, **TIGHT)
        agree(ours, theirs)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x), **TIGHT)


def test_weights_say_only_which_rows_count():
    layer = BatchNorm(3).double()
    x = draw(4, 3)
    with forward_context(torch.tensor([5.0, 0.1, 2.0, 0.0])):
        y = layer(x)
    twin = nn.BatchNorm1d(3).double()
    torch.testing.assert_close(y[:3], twin(x[:3]), **TIGHT)


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 1.0, 0.0])])
def test_last_axis_equals_flattened_nodes(weights):
    layer, twin = twins(4, nn.BatchNorm1d)
    layer.axis = -1
    x = draw(3, 5, 4)
    with forward_context(weights):
        y = layer(x)
    real = 3 if weights is None else 2
    expected = twin(x[:real].reshape(-1, 4)).reshape(real, 5, 4)
    torch.testing.assert_close(y[:real], expected, **TIGHT)
    torch.testing.assert_close(layer.var, twin.running_var, **TIGHT)
    layer.eval(), twin.eval()
    torch.testing.assert_close(layer(x), twin(x.reshape(-1, 4)).reshape(x.shape), **TIGHT)


def test_folded_axis_stretches_the_weights():
    """Two persons per row: [B * 2, F], row-major."""
    layer, twin = BatchNorm(4).double(), nn.BatchNorm1d(4).double()
    x = draw(6, 4)
    with forward_context(torch.tensor([1.0, 0.0, 1.0])):
        y = layer(x)
    kept = [0, 1, 4, 5]
    torch.testing.assert_close(y[kept], twin(x[kept]), **TIGHT)
    with pytest.raises(ValueError, match="divisor of 6 rows"), forward_context(torch.ones(4)):
        layer(x)


def test_all_padding_and_garbage_rows_stay_finite():
    layer = BatchNorm(2)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with forward_context(torch.zeros(3)):
        y = layer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert layer.mean.tolist() == [0, 0]
    assert layer.var.tolist() == [1, 1]
    broken = torch.cat([x.detach(), torch.full((1, 2), float("inf"))])
    with forward_context(torch.tensor([1.0, 1.0, 1.0, 0.0])):
        assert layer(broken)[:3].isfinite().all()
    assert layer.var.isfinite().all()


@pytest.mark.parametrize("weights", [None, torch.ones(1), torch.tensor([1.0, 0.0])])
def test_one_value_per_channel_leaves_running_statistics(weights):
    layer = BatchNorm(2)
    with forward_context(weights):
        y = layer(torch.tensor([[3.0, 4.0]] * (1 if weights is None else len(weights))))
    assert y[0].tolist() == [0, 0]
    assert layer.mean.tolist() == [0, 0]
    assert layer.var.tolist() == [1, 1]


@pytest.mark.parametrize("weights", [None, torch.ones(5)])
def test_running_statistics_are_replaced(weights):
    layer = BatchNorm(2)
    mean, var = layer.mean, layer.var
    with forward_context(weights):
        layer(draw(5, 2).float())
    assert mean.tolist() == [0, 0]
    assert var.tolist() == [1, 1]
    assert layer.mean.abs().min() > 0


@pytest.mark.parametrize("weighted", [True, False])
def test_mapped_batch_norm_equals_torch(weighted):
    """Each run with its own statistics, padding and gradient."""
    layer, runs, rows = BatchNorm(4).double(), 3, 6
    x = draw(runs, rows, 4, 2)
    real = [6, 4, 2] if weighted else [6, 6, 6]
    weights = torch.stack([(torch.arange(rows) < n).double() for n in real])
    state = {k: v.detach().expand(runs, 4).clone() for k, v in layer.state_dict().items()}

    def loss(state, x, weights):
        state = dict(state)
        with forward_context(weights if weighted else None):
            y = functional_call(layer, state, (x,))
        return (y * draw(rows, 4, 2, seed=8) * weights[:, None, None]).sum(), state

    slopes, after = vmap(grad(loss, has_aux=True))(state, x, weights)
    for run, n in enumerate(real):
        twin = nn.BatchNorm1d(4).double()
        (twin(x[run, :n]) * draw(rows, 4, 2, seed=8)[:n]).sum().backward()
        torch.testing.assert_close(after["mean"][run], twin.running_mean, **TIGHT)
        torch.testing.assert_close(after["var"][run], twin.running_var, **TIGHT)
        torch.testing.assert_close(slopes["weight"][run], twin.weight.grad, **TIGHT)
    assert layer.mean.tolist() == [0] * 4


def test_mapped_eval_uses_each_runs_statistics():
    layer = BatchNorm(3).double().eval()
    state = {k: draw(2, 3, seed=i).abs() for i, k in enumerate(layer.state_dict())}
    x = draw(4, 3)
    mapped = vmap(lambda s: functional_call(layer, s, (x,)))(state)
    for run in range(2):
        layer.load_state_dict({k: v[run] for k, v in state.items()})
        torch.testing.assert_close(mapped[run], layer(x), **TIGHT)


def test_without_affine_there_are_no_parameters():
    layer, x = BatchNorm(3, affine=False).double(), draw(5, 3)
    torch.testing.assert_close(layer(x), nn.BatchNorm1d(3, affine=False).double()(x), **TIGHT)
    with forward_context(torch.ones(5)):
        torch.testing.assert_close(layer(x), nn.BatchNorm1d(3).double()(x), **TIGHT)
    assert not list(layer.parameters())


def test_bad_axis():
    with pytest.raises(ValueError, match="axis: expected 1 or -1"):
        BatchNorm(3, axis=2)


def test_dropout_is_off_in_eval_and_at_zero():
    x = torch.ones(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dropout_needs_a_key_in_training():
    with refuses("key of dropout layer 'here'"):
        Dropout(0.5, name="here")(torch.ones(2))


def test_dropout_rate_and_scale():
    with forward_context(key=5):
        y = Dropout(0.2)(torch.ones(200, 100))
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert abs((y == 0).double().mean() - 0.2) < 0.01
    with forward_context(key=5):
        assert Dropout(1.0)(torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_dropout_depends_on_key_name_and_call():
    x, layer = torch.ones(8, 8), Dropout(0.5, name="a")

    def masks(key: int, module: Dropout, calls: int = 1) -> list[list[float]]:
        with forward_context(key=key):
            return [module(x).flatten().tolist() for _ in range(calls)]

    (first,) = masks(1, layer)
    assert masks(1, layer) == [first]
    assert masks(2, layer) != [first]
    assert masks(1, Dropout(0.5, name="b")) != [first]
    again = masks(1, layer, calls=2)
    assert again[0] == first
    assert again[1] != first


def test_dropout_of_a_row_does_not_depend_on_padding():
    layer = Dropout(0.5)
    with forward_context(key=4):
        short = layer(torch.ones(3, 6))
    with forward_context(key=4):
        assert torch.equal(layer(torch.ones(5, 6))[:3], short)


def test_channel_dropout_drops_whole_maps():
    with forward_context(key=4):
        y = Dropout(0.5, channels=True)(torch.ones(6, 5, 3, 3))
    assert torch.equal(y.amin((2, 3)), y.amax((2, 3)))
    assert len(y.unique()) == 2


def test_mapped_dropout_equals_alone():
    layer, x, key = Dropout(0.3, name="d"), draw(3, 4, 5), torch.tensor([11, -5, 7 << 60])

    def one(x, key):
        with forward_context(key=key):
            return layer(x)

    mapped = vmap(one)(x, key)
    for run in range(3):
        assert torch.equal(mapped[run], one(x[run], key[run]))
        assert torch.equal(mapped[run], one(x[run], int(key[run])))


def test_copies_keep_their_state():
    layer = BatchNorm(2)
    with forward_context(torch.ones(5)):
        layer(draw(5, 2).float())
    assert torch.equal(copy.deepcopy(layer).mean, layer.mean)
    assert set(layer.state_dict()) == {"weight", "bias", "mean", "var"}
