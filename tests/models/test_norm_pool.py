"""Batch norm, ReLU and pooling at once: blocks against plain layers, kernels against formulas."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._C._functorch import maybe_current_level

import engram.models as models
from engram import methods
from engram.checks.toy_runs import largest_gap
from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.models import conv_blocks
from engram.models.conv_blocks import ConvBlocks
from engram.models.forward_pass import PLAIN, forward_context
from engram.models.kernels import norm_pool
from engram.models.layers import BatchNorm
from engram.streams import class_incremental
from tests.models.kernel_process import INTERPRETED, assert_equal, needs_kernels

WORKS = norm_pool.kernels_work.__wrapped__  # without its cache
SHAPES = ((3, 9, 10), (4, 8, 8))  # odd edges, even ones


def blocks(channels: int) -> ConvBlocks:
    torch.manual_seed(0)
    net = ConvBlocks(
        *(nn.Conv2d(channels, 6, 3, padding=1), BatchNorm(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 5, 2, bias=False), BatchNorm(5), nn.ReLU(), nn.Flatten()),
    )
    for layer in net:
        if isinstance(layer, BatchNorm):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return net


def fused(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, ConvBlocks):
            module.fused = True
    return net


def passed(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Answers in training, gradients, running statistics, answers by them."""
    y = net.train()(x)
    slope = torch.linspace(-1, 1, y.numel()).to(y).view_as(y)
    found = [y, *torch.autograd.grad((y * slope).sum(), [x, *net.parameters()])]
    with torch.no_grad():
        return [*found, *net.buffers(), net.eval()(x)]


@pytest.fixture
def formulas(monkeypatch):
    """The blocks as on CUDA, the formulas in place of the kernels."""

    def statistics(x, offset, mean, var, momentum, eps):
        here, middle = torch.var_mean(x, (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        mean.lerp_(middle if offset is None else middle + offset, momentum)
        var.lerp_(here * count / (count - 1), momentum)
        return middle, (here + eps).rsqrt()

    def backward(dy, x, shortcut, mean, rstd, weight, beta, relu, pool):
        given = (x, shortcut, weight, beta)
        own = [None if one is None else one.detach().requires_grad_() for one in given]
        with torch.enable_grad():
            y = norm_pool.plain_training(*own, 1e-5, relu, pool)[0]
        found = iter(torch.autograd.grad(y, [one for one in own if one is not None], dy))
        return [None if one is None else next(found) for one in own]

    twin = SimpleNamespace(
        statistics=statistics, forward=norm_pool.plain_forward, backward=backward
    )
    monkeypatch.setattr(models, "norm_pool_launch", twin, raising=False)
    monkeypatch.setitem(sys.modules, "engram.models.kernels.norm_pool_kernels", twin)
    monkeypatch.setattr(norm_pool, "applies", lambda x: maybe_current_level() is None)
    monkeypatch.setattr(norm_pool, "kernels_work", lambda *_: True)
    monkeypatch.setattr(conv_blocks, "_channels_last", lambda x: True)


@pytest.mark.parametrize("shape", SHAPES)
def test_at_once_is_the_sequence(formulas, shape):
    x = torch.randn(4, *shape, dtype=torch.float64, requires_grad=True)
    net, plain = fused(blocks(shape[0])).double(), blocks(shape[0]).double()
    for one in net:
        one.in_place = shape[0] == 4
    found, wanted = passed(net, x), passed(plain, x)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert found[3].abs().max() == 0  # a bias before a batch norm: torch finds rounding errors
    assert wanted[3].abs().max() > 0


def test_gradients_of_gradients(formulas):
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(fused(blocks(2)[:3]).double().train(), (x,))


def test_where_the_plain_sequence_runs(formulas, monkeypatch):
    net, x, taken = fused(blocks(3)).train(), torch.randn(4, 3, 8, 8), []
    own = conv_blocks.run_fused

    def at_once(*args, pool):
        taken.append(pool)
        return own(*args, pool=pool)

    monkeypatch.setattr(conv_blocks, "run_fused", at_once)
    net(x)
    assert taken == [True, False]
    with forward_context(torch.tensor([1.0, 1.0, 1.0, 0.0])):  # padding rows
        net(x)
    net.eval()(x)  # with gradient
    hook = net[2].register_forward_hook(lambda *_: None)
    net.train()(x)
    hook.remove()
    blocks(3)(x)  # not asked for
    assert len(taken) == 2


@pytest.mark.parametrize("method", [methods.EWC(), methods.LwF(), methods.DGR(width=8, noise=3)])
def test_a_run_with_fused_layers(formulas, method, monkeypatch):
    """Through the engine: training, old networks, importances, evaluation."""
    y = torch.arange(24) % 4
    x = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + y.view(-1, 1, 1, 1)
    data = Data.from_arrays(x, y.numpy(), test=(x[:8], y[:8].numpy()))
    training = Training(epochs=1, batch_size=8, lr=1e-3, optimizer="sgd", precision="float64")
    run = Run(
        stream=class_incremental(data), method=method, training=training,
        model={"name": "lenet", "padding": 2, "hidden": 4},
    )  # fmt: skip
    taken, ends, infer = [], [], norm_pool.run_inference
    monkeypatch.setattr(
        norm_pool, "run_inference", lambda *a, **k: taken.append(1) or infer(*a, **k)
    )
    for fused in (False, True):
        engine = Engine([run], device="cpu", together=False)
        engine._factory = LearnerFactory(engine.device, fused=fused)
        last = list(engine.stages())[-1]
        ends.append((last.learner.vector, last.learner.buffers, last.learner.state))
        assert bool(taken) is fused
    assert largest_gap(*ends) < 1e-9


def test_mapped_traced_and_small_passes_are_plain(monkeypatch):
    """A tensor that says it is on CUDA; whether kernels apply is asked before they are met."""

    class Cuda(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(norm_pool, "_has_triton", lambda: True)
    x = torch.zeros(2, 4, 4, 4).as_subclass(Cuda)
    assert norm_pool.applies(x)
    assert not norm_pool.applies(x.double())
    assert not norm_pool.applies(x[:1, :, :1, :1])  # no variance
    assert not norm_pool.applies(x.flatten(1))
    token = PLAIN.set(True)
    assert not norm_pool.applies(x)
    PLAIN.reset(token)
    asked = []
    torch.func.vmap(lambda _: asked.append(norm_pool.applies(x)) or torch.zeros(1))(torch.zeros(2))
    assert asked == [False]
    monkeypatch.setattr(norm_pool, "_broken", ["no compiler"])
    assert not norm_pool.applies(x)


def test_the_kernels_are_for_cuda_only():
    assert not norm_pool.applies(torch.zeros(2, 4, 4, 4))


@pytest.mark.parametrize(
    ("gap", "said"), [(FileNotFoundError("no compiler"), "no compiler"), (0.5, "by 5.0e-01")]
)
def test_kernels_that_do_not_work_are_said_once(formulas, monkeypatch, gap, said):
    def tried(*_):
        if isinstance(gap, Exception):
            raise gap
        return gap

    monkeypatch.setattr(norm_pool, "_broken", [])
    monkeypatch.setattr(norm_pool, "_measure_gap", tried)
    with pytest.warns(UserWarning, match=f"more slowly: .*{said}"):
        assert not WORKS(6, False, True, True, torch.float32, torch.device("cpu"))
    assert said in norm_pool._broken[0]
    monkeypatch.setattr(norm_pool, "kernels_work", lambda *_: False)
    x, net = torch.randn(4, 3, 8, 8), fused(blocks(3)).train()
    torch.testing.assert_close(net(x), nn.Sequential(*blocks(3).train())(x))


KERNELS = """
import torch
from engram.models import norm_pool, norm_pool_launch
from tests.models.test_norm_pool import SHAPES, blocks, fused, passed
device = torch.device(DEVICE)
for tile, parts in ((64, 3), (4096, 528)):
    norm_pool_launch.TILE, norm_pool_launch.PARTS = tile, parts
    for kind in (
        (5, False, True, True), (3, False, True, False), (20, False, False, True),
        (1, True, True, False), (5, True, False, False),
    ):
        assert norm_pool._gap(*kind, torch.float32, device) < 1e-4, kind
        assert norm_pool._gap(*kind, torch.bfloat16, device) < 0.05, kind

norm_pool.applies = lambda x: True
torch.backends.cudnn.allow_tf32 = False
for rows, shape in ((4, SHAPES[0]), (1, SHAPES[1])):
    x = torch.randn(rows, *shape, device=device).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    plain, ours = blocks(shape[0]), fused(blocks(shape[0]))
    for one, two in zip(passed(ours.to(device), x), passed(plain.to(device), x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
print("equal")
"""


@needs_kernels
def test_kernels_equal_the_formulas():
    assert_equal(KERNELS)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.filterwarnings("ignore:TRITON_")  # defaults of Triton that will change
@pytest.mark.parametrize(("channels", "corners"), [(20, 4), (50, 1)])
def test_kernels_compile_for_a_gpu_that_is_not_here(channels, corners):
    """For the architecture of an H100 or H200; needs Triton, no device."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from engram.models.kernels import norm_pool_kernels as kernels

    found = {"C": channels, "WIDE": 64, "ROWS": 32, "CORNERS": corners}
    found |= {"ADDS": True, "SOME": 256, "FEW": 4}
    numbers = {
        "floor": "fp32",
        "eps": "fp32",
        "momentum": "fp32",
        "M": "i32",
        "CHUNK": "i32",
        "parts": "i32",
    }
    numbers |= dict.fromkeys(("adds", "windows", "H", "W", "HP", "WP", "HC", "WC"), "i32")
    for name in ("_moments", "_settle", "_forward", "_slopes", "_gather", "_backward"):
        kernel = getattr(kernels, name)
        own = [arg for arg in kernel.arg_names if arg in found]
        types = {arg: numbers.get(arg, "*fp32") for arg in kernel.arg_names}
        types |= dict.fromkeys(own, "constexpr")
        if name in ("_settle", "_gather"):
            types["M"] = "fp32"
        constants = {(kernel.arg_names.index(arg),): found[arg] for arg in own}
        source = ASTSource(fn=kernel, signature=types, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"], name
