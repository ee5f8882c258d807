"""The graph network's operations: formulas, gradients, mapping; kernels against the formulas."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from engram.models.forward_pass import PLAIN, forward_context
from engram.models.gcn import GCN, GraphLayer
from engram.models.kernels import graph_ops
from tests.models.kernel_process import assert_equal, needs_kernels

EDGES = [(1, 2), (2, 3), (4, 3)]
R, B, V, W = 3, 5, 4, 6
EPS = 1e-5


def mix_inputs(runs: int = R, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(runs)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    real = torch.ones(runs, B, dtype=dtype)
    real[0, -2:] = 0
    return [
        draw(runs, B, V, W), draw(runs, B, V, W), draw(runs, W), draw(runs, W), real,
        draw(runs, W) + 2, draw(runs, W),
    ]  # fmt: skip


def read_inputs(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    z = torch.randn(R, B, V, W, generator=g, dtype=dtype)
    z[0, 0, 1] = z[0, 0, 2] = z[0, 0].max() + 1  # two joints share the maximum
    offset = torch.randn(R, generator=g, dtype=dtype)
    return [z, torch.randn(R, W, generator=g, dtype=dtype), offset]


def test_mix_is_the_layer(monkeypatch):
    """On the CPU through the operation's plain form, against the layer written with modules."""
    torch.manual_seed(0)
    layer, twin = GraphLayer(7, W).double(), GraphLayer(7, W).double()
    torch.nn.init.normal_(layer.bias)
    twin.load_state_dict(layer.state_dict())
    h = torch.randn(B, V, 7, dtype=torch.float64, requires_grad=True)
    neighbours = torch.rand(V, V, dtype=torch.float64).round()
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    slope = torch.randn(B, V, W, dtype=torch.float64)
    found = []
    for one, fused in ((layer, False), (twin, True)):
        monkeypatch.setattr(graph_ops, "applies", lambda x, fused=fused: fused)
        with forward_context(weights):
            y = one(h, neighbours)
        slopes = torch.autograd.grad((y * slope).sum(), [h, *one.parameters()])
        found.append([y, one.norm.mean, one.norm.var, *slopes])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_read_is_the_networks_readout(monkeypatch):
    torch.manual_seed(0)
    net = GCN((2, 4, V), edges=EDGES, width=W, hidden=3).double().train()
    z = torch.randn(B, V, W, dtype=torch.float64, requires_grad=True)
    found = []
    for fused in (False, True):
        monkeypatch.setattr(graph_ops, "applies", lambda x, fused=fused: fused)
        y = net.body(z)
        found.append([y, *torch.autograd.grad(y.square().sum(), [z, *net.gate.parameters()])])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def mix_loss(operation, slope, *own):
    y, mean, var = operation(*own)
    return (y * slope).sum() + mean.square().sum() + var.sum()


@pytest.mark.parametrize("padding", [0.0, 1e3])
def test_mapped_gradients_of_mix(padding):
    inputs = mix_inputs()
    inputs[0] = torch.where(inputs[4][..., None, None] > 0, inputs[0], padding)
    slope = torch.randn(R, B, V, W, dtype=torch.float64) * inputs[4][..., None, None]
    places = (1, 2, 3, 4, 6, 7)

    def fused(slope, *own):
        return mix_loss(lambda *a: graph_ops.mix(*a, EPS), slope, *own)

    found = vmap(grad(fused, argnums=tuple(p for p in places)))(slope, *inputs)
    leaves = [one.clone().requires_grad_(i != 4) for i, one in enumerate(inputs)]
    total = mix_loss(lambda *a: graph_ops.plain_mix(*a, EPS), slope, *leaves)
    wanted = torch.autograd.grad(total, [leaves[p - 1] for p in places])
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_mapped_gradients_of_read():
    inputs = read_inputs()

    def total(operation, *own):
        both = operation(*own)
        return both[0].square().sum() + both[1].pow(3).sum()

    found = vmap(grad(lambda *own: total(graph_ops.read, *own), argnums=(0, 1, 2)))(*inputs)
    leaves = [one.clone().requires_grad_() for one in inputs]
    wanted = torch.autograd.grad(total(graph_ops.plain_read, *leaves), leaves)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_mapping_within_mapping():
    """As importance passes map over samples and runs; some arguments are shared."""
    near, far, bias, shift, real, weight, beta = mix_inputs(6)

    def one(near, far, real):
        return graph_ops.mix(near, far, bias[0], shift[0], real, weight[0], beta[0], EPS)[0]

    cut = [x.unflatten(0, (2, 3)) for x in (near, far, real)]
    found = vmap(vmap(one))(*cut).flatten(0, 1)
    for run in range(6):
        torch.testing.assert_close(found[run], one(near[run], far[run], real[run]))


def test_gradients_of_gradients():
    near, far, bias, shift, real, weight, beta = (one[0] for one in mix_inputs(1))

    def value(near, weight):
        return graph_ops.mix(near, far, bias, shift, real, weight, beta, EPS)[0]

    def readout(z, w):
        return graph_ops.read(z, w, torch.tensor(0.3, dtype=z.dtype))

    near, weight = near.requires_grad_(), weight.requires_grad_()
    assert torch.autograd.gradcheck(value, (near, weight))
    assert torch.autograd.gradgradcheck(value, (near, weight))
    assert torch.autograd.gradgradcheck(readout, (near, weight))


def test_a_kernel_that_cannot_be_made_is_said_once(monkeypatch):
    """No C compiler, say: the formulas take over."""
    tries = []

    def fails(name, args):
        tries.append(name)
        raise FileNotFoundError("no compiler")

    monkeypatch.setattr(graph_ops, "_make_contiguous", lambda x: True)
    monkeypatch.setattr(graph_ops, "_kernel", fails)
    monkeypatch.setattr(graph_ops, "_proven", {})
    own = [one[0] for one in mix_inputs(1)]
    with pytest.warns(UserWarning, match="without custom kernels, more slowly: .*no compiler"):
        found = graph_ops.mix(*own, EPS)
    again = graph_ops.mix(*own, EPS)  # a second warning would be an error here
    wanted = graph_ops.plain_mix(*(one[None] for one in own), EPS)
    for one, two, three in zip(found, again, wanted, strict=True):
        assert torch.equal(one, three[0])
        assert torch.equal(two, three[0])
    assert tries == ["mix"]


def test_running_out_of_memory_is_not_the_kernels_fault(monkeypatch):
    def fails(name, args):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(graph_ops, "_make_contiguous", lambda x: True)
    monkeypatch.setattr(graph_ops, "_kernel", fails)
    monkeypatch.setattr(graph_ops, "_proven", {})
    with pytest.raises(torch.OutOfMemoryError):
        graph_ops.mix(*(one[0] for one in mix_inputs(1)), EPS)
    assert not graph_ops._proven


def test_the_kernels_are_for_cuda_only():
    assert not graph_ops.applies(torch.zeros(1))


KERNELS = """
import torch
from engram.models import graph_kernels, graph_ops
torch.manual_seed(0)
for R, B, V, W, tile in ((3, 5, 4, 6, 64), (2, 70, 20, 64, 2048), (1, 1, 3, 1, 2048)):
    graph_kernels.TILE = tile
    draw = lambda *shape: torch.randn(*shape, device=DEVICE)
    real = torch.ones(R, B, device=DEVICE)
    if B > 1:
        real[0, -2:] = 0
    near, far = draw(R, B, V, W) + 3, draw(R, B, V, W)
    own = near, far, draw(R, W), draw(R, W), real, draw(R, W), draw(R, W)
    found, wanted = graph_kernels.mix(*own, 1e-5), graph_ops.plain_mix(*own, 1e-5)
    slopes = draw(R, B, V, W), draw(R, W), draw(R, W)
    args = *slopes, *own[:6], *wanted[1:]
    z, gate, offset = near.clone(), draw(R, W), draw(R)
    z[0, 0, -2:] = 50.0  # a shared maximum
    back = draw(R, B, W), draw(R, B, W)
    pairs = [
        (found, wanted),
        (graph_kernels.mix_back(*args, 1e-5), graph_ops.plain_mix_back(*args, 1e-5)),
        (graph_kernels.read(z, gate, offset), graph_ops.plain_read(z, gate, offset)),
        (
            graph_kernels.read_back(*back, z, gate, offset),
            graph_ops.plain_read_back(*back, z, gate, offset),
        ),
    ]
    for one, two in pairs:
        assert len(one) == len(two)
        for a, b in zip(one, two):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(1.0, float(b.abs().max())))
print("equal")
"""


@needs_kernels
def test_kernels_equal_the_formulas():
    assert_equal(KERNELS)


def test_tracing_uses_plain_operations(monkeypatch):
    """A compiled step must not hold a kernel; `Compiled` says so while it traces."""
    from engram.engine.trainers import compiled

    monkeypatch.setattr(compiled, "_compile_graph", lambda graph, inputs: graph.forward)
    seen = []

    def step(x):
        seen.append(PLAIN.get())
        x.add_(1)

    x = torch.zeros(2)
    run = compiled.CompiledStep(step, lambda: [x], tuple, {})
    run()  # once for real, to make what a step makes
    run()  # traced
    run()
    assert seen == [False, True]
    assert x.tolist() == [3.0, 3.0]
    assert PLAIN.get() is False
