"""The channels-last network against convolutions and einsum, and its products among themselves."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from engram import keys
from engram.models import STGCN, forward_context, stgcn

EDGES = [(1, 2), (3, 2), (4, 3), (5, 3)]
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return keys.normal(keys.fold(seed, "test"), *shape)


@pytest.fixture(params=["cpu", "windows"])
def way(request, monkeypatch):
    """Both ways of the convolution over time, the second being that of CUDA."""
    if request.param == "windows":
        monkeypatch.setattr(stgcn, "convolve_over_time", stgcn.convolve_by_windows)
    return request.param


def reference(net: STGCN, x: torch.Tensor, train: bool) -> torch.Tensor:
    """[B, M, C, T, V], channels first, stock operators."""

    def norm(layer, y):
        mean, var = (None, None) if train else (layer.mean, layer.var)
        return F.batch_norm(y, mean, var, layer.weight, layer.bias, train, 0.1, layer.eps)

    x = x if x.ndim == 5 else x[..., None]
    rows, channels, frames, joints, people = x.shape
    x = x.permute(0, 3, 1, 4, 2).reshape(rows, joints * channels, people, frames)
    x = norm(net.data_norm, x).reshape(rows, joints, channels, people, frames)
    x = x.permute(0, 3, 2, 4, 1).reshape(rows * people, channels, frames, joints)
    for block in net.blocks:
        parts = F.conv2d(x, block.spatial.weight, block.spatial.bias).unflatten(1, (3, -1))
        y = torch.einsum("npctv,pvw->nctw", parts, net.graph * block.importance)
        y = norm(block.spatial_norm, y).relu()
        padding = (block.temporal.weight.shape[2] // 2, 0)
        y = F.conv2d(y, block.temporal.weight, block.temporal.bias, padding=padding)
        y = norm(block.temporal_norm, y)
        x = (y + x if block.residual else y).relu()
    return x.unflatten(0, (rows, people))


def stirred(shape: tuple[int, ...], **options) -> STGCN:
    """A network with no weight and no statistic at its first value."""
    net = STGCN(shape, edges=EDGES, **options).double()
    with torch.no_grad():
        for number, value in enumerate([*net.parameters(), *net.buffers()]):
            value.add_(draw(*value.shape, seed=number).abs() / 4)
    return net


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 6, 5), {"width": 4, "tk": 1, "depth": 1}),
        ((3, 6, 5), {"width": 4, "tk": 3}),
        ((2, 7, 5), {"width": 6, "tk": 5, "depth": 3}),
        ((3, 7, 5, 2), {"width": 4, "tk": 9}),
        ((3, 3, 5, 2), {"width": 4, "tk": 9}),
    ],
)
def test_equals_convolutions(way, shape, options, train):
    net = stirred(shape, **options)
    twin = copy.deepcopy(net)
    net.train(train)
    x = draw(4, *shape)
    latent, expected = net.root(x), reference(twin, x, train)
    torch.testing.assert_close(latent, expected, **CLOSE)
    slope = draw(*expected.shape, seed=3)
    latent.backward(slope)
    expected.backward(slope)
    for (name, mine), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name, **CLOSE)


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("frames", [1, 6, 7])
@pytest.mark.parametrize("tk", [1, 3, 9])
def test_windows_mapped_over_runs_equal_a_convolution(monkeypatch, together, frames, tk):
    monkeypatch.setattr(stgcn, "FRAMES_AT_ONCE", together)
    x, weight, bias = draw(2, 3, frames, 4, 5), draw(2, 6, 5, tk, 1, seed=1), draw(2, 6, seed=2)
    slope = draw(2, 3, frames, 4, 6, seed=3)

    def convolution(x, weight, bias):
        y = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=(tk // 2, 0))
        return y.permute(0, 2, 3, 1)

    def slopes(function, run):
        def value(*inputs):
            return (function(*inputs) * slope[run]).sum()

        return grad(value, (0, 1, 2))(x[run], weight[run], bias[run])

    def value(x, weight, bias, slope):
        return (stgcn.convolve_by_windows(x, weight, bias) * slope).sum()

    mapped = vmap(grad(value, (0, 1, 2)))(x, weight, bias, slope)
    outputs = vmap(stgcn.convolve_by_windows)(x, weight, bias)
    for run in range(2):
        expected = convolution(x[run], weight[run], bias[run])
        torch.testing.assert_close(outputs[run], expected, **CLOSE)
        for mine, other in zip(mapped, slopes(convolution, run), strict=True):
            torch.testing.assert_close(mine[run], other, **CLOSE)


def test_windows_have_a_second_derivative():
    inputs = [draw(1, 3, 1, 2), draw(3, 2, 2, seed=1)]
    assert torch.autograd.gradgradcheck(
        stgcn.TemporalConvolution.apply, [value.requires_grad_() for value in inputs]
    )


def test_no_convolution_where_windows_are_taken(monkeypatch):
    """A mapped convolution is slow on CUDA, so none may come back by another way."""
    monkeypatch.setattr(stgcn, "convolve_over_time", stgcn.convolve_by_windows)
    net = STGCN((3, 6, 5), edges=EDGES, width=4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(draw(2, 3, 6, 5).float()).sum().backward()
    called = {event.key for event in profile.key_averages()}
    assert "aten::bmm" in called
    assert not [name for name in called if "conv" in name]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # from the flags below
def test_half_precision_goes_back_outside_of_its_scope(way):
    net = STGCN((3, 6, 5), edges=EDGES, width=4, tk=3)
    x = draw(4, 3, 6, 5).float()
    # not every virtual machine lets oneDNN use the half-precision units that the processor names
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
        y.float().square().sum().backward()
    twin = copy.deepcopy(net)
    twin.zero_grad()
    full = twin(x)
    full.square().sum().backward()
    torch.testing.assert_close(y.float(), full, rtol=0.1, atol=0.1)
    mine, other = (torch.cat([p.grad.flatten() for p in n.parameters()]) for n in (net, twin))
    assert torch.cosine_similarity(mine, other, 0) > 0.95


def test_dropout_mask_is_drawn_channels_first(way):
    net = STGCN((3, 6, 5), edges=EDGES, width=4, tk=3, depth=1, dropout=0.5).double()
    x, twin = draw(2, 3, 6, 5), copy.deepcopy(net)
    with forward_context(None, 5):
        latent = net.root(x)[:, 0]
    kept = keys.dropout_mask(keys.fold(5, net.blocks[0].dropout.name), 0.5, 2, 4, 6, 5)
    plain = reference(twin, x, True)[:, 0]
    torch.testing.assert_close(latent, torch.where(kept, 2 * plain, 0.0), **CLOSE)
