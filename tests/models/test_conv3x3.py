"""Convolutions of few channels: kernels against torch's formulas, and who uses them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram import methods
from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.engine.run import Run
from engram.engine.training import Training
from engram.models import conv3x3, conv_blocks, norm_pool, residual
from engram.models.resnet import BasicBlock
from tests.models.kernels import INTERPRETED, assert_equal, needs_kernels

LAST = {"memory_format": torch.channels_last}


@pytest.fixture
def formulas(monkeypatch):
    """The blocks as on CUDA, in float32, the formulas in place of the kernels; counts uses."""
    taken = []

    def block(x, layers, *, stride, momentum, eps, relu):
        taken.append(len(layers))
        middle = None
        for one, seen, step in zip(layers, (x, None, x), (stride, 1, stride), strict=False):
            seen = middle if seen is None else seen
            z = conv3x3.plain_convolve(seen, one.weight, step, x.dtype)
            var, mean = torch.var_mean(z.detach().float(), (0, 2, 3))
            one.mean.lerp_(mean, momentum)
            one.var.lerp_(var, momentum)
            if middle is None:
                middle = norm_pool.plain_train(z, None, one.gamma, one.beta, eps, True, False)[
                    0
                ].to(x.dtype)
        return residual.plain_block(x, layers, stride=stride, eps=eps, relu=relu)

    def convolve(x, weight, stride, kind):
        taken.append(1)
        return conv3x3.plain_convolve(x, weight, stride, kind)

    monkeypatch.setattr(norm_pool, "applies", lambda x: True)
    monkeypatch.setattr(conv3x3, "KIND", torch.float32)
    monkeypatch.setattr(conv3x3, "convolve", convolve)
    monkeypatch.setattr(residual, "block", block)
    for module in (conv3x3, residual):
        monkeypatch.setattr(module, "works", lambda *_: True)
    return taken


def passed(block, x):
    y = block(x)
    slope = torch.linspace(-1, 1, y.numel()).view_as(y)
    return [y, *torch.autograd.grad((y * slope).sum(), [x, *block.parameters()]), *block.buffers()]


def fused(block):
    block.fused = True
    return block.train()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("channels", [(16, 16, 1), (16, 32, 2)])
def test_a_block_at_once_is_the_block(formulas, channels, in_place):
    torch.manual_seed(0)
    plain = BasicBlock(*channels, relu=in_place).train()
    block = fused(copy.deepcopy(plain))
    block.first_norm.in_place = block.second_norm.in_place = in_place
    held = block.first_norm.mean
    x = torch.randn(3, 16, 8, 8, requires_grad=True)
    for one, two in zip(passed(block, x), passed(plain, x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert formulas == [2 if channels[2] == 1 else 3]
    assert (held is block.first_norm.mean) is in_place


def test_where_blocks_are_not_done_at_once(formulas, monkeypatch):
    def whole(block, x):
        found = conv_blocks.block_at_once(block._layers(), x, relu=True)
        return found is not None

    x, block = torch.randn(2, 16, 8, 8), BasicBlock(16, 32, 2).train()
    assert whole(block, x)
    assert not whole(block, torch.randn(2, 16, 7, 8))  # halves are not whole
    assert not whole(copy.deepcopy(block).eval(), x)
    assert not whole(BasicBlock(20, 20, 1).train(), torch.randn(2, 20, 8, 8))
    other = copy.deepcopy(block)
    other.second_norm.eps = 1e-3
    assert not whole(other, x)
    other = copy.deepcopy(block)
    other.first.bias = nn.Parameter(torch.zeros(32))
    assert not whole(other, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not whole(block, x)
        monkeypatch.setattr(conv3x3, "KIND", torch.bfloat16)
        assert whole(block, x)
    assert not whole(block, x)
    assert whole(block, x.bfloat16())
    monkeypatch.setattr(residual, "works", lambda *_: False)
    assert not whole(block, x.bfloat16())
    monkeypatch.setattr(residual, "works", lambda *_: True)
    monkeypatch.setattr(conv3x3, "_broken", ["no compiler"])
    assert not whole(block, x.bfloat16())


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (nn.Conv2d(3, 16, 3, 1, 1), True),
        (nn.Conv2d(3, 16, 3, 2, 1), False),
        (nn.Conv2d(16, 32, 1, 2), True),
        (nn.Conv2d(16, 16, 3, 1, 0), False),
        (nn.Conv2d(16, 16, 5, 1, 2), False),
        (nn.Conv2d(16, 16, 3, 3, 1), False),
        (nn.Conv2d(16, 16, 3, 1, 2, 2), False),
        (nn.Conv2d(32, 32, 3, 1, 1, groups=2), False),
        (nn.Conv2d(16, 16, 3, 1, 1, padding_mode="reflect"), False),
        (nn.Conv2d(16, 16, 3, 1, 1).double(), False),
    ],
)
def test_layers_alone(formulas, layer, known):
    assert conv3x3.knows(layer) is known
    x = torch.randn(2, layer.in_channels, 8, 8).contiguous(**LAST)
    wanted = layer._conv_forward(x.to(layer.weight.dtype), layer.weight, None)
    found = conv_blocks._convolved(layer, x.to(layer.weight.dtype))
    torch.testing.assert_close(found, wanted)
    assert bool(formulas) is known
    assert conv3x3.serves(layer, x.requires_grad_()) is (known and layer.in_channels > 3)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize(("model", "few"), [("resnet32", True), ("resnet18_slim", False)])
def test_the_engine_asks_for_them_in_bf16(model, few, proven, precision, monkeypatch):
    monkeypatch.setattr(conv3x3, "PROVEN", proven)
    x, y = np.zeros((40, 3, 16, 16), np.float32), np.arange(40) % 4
    stream = engram.class_incremental(Data.from_arrays(x, y, test=(x[:4], y[:4])))
    training = Training(precision=precision)
    run = Run(stream=stream, method=methods.Finetune(), model=model, training=training)
    fused = proven and few and precision == "bf16"
    engine = Engine([run], device="cpu", plan_for="cuda", compile=True)
    assert engine._ways([0])[0].mapped is not fused
    networks = LearnerFactory(torch.device("cpu"), fused=True).networks(run)
    assert networks.fused is networks.channels_last is fused


@pytest.mark.parametrize(
    ("gap", "said"), [(FileNotFoundError("no compiler"), "no compiler"), (0.5, "by 5.0e-01")]
)
def test_kernels_that_do_not_work_are_said_once(monkeypatch, gap, said):
    def tried(*_):
        if isinstance(gap, Exception):
            raise gap
        return gap

    monkeypatch.setattr(conv3x3, "_broken", [])
    monkeypatch.setattr(residual, "_gap", tried)
    with pytest.warns(UserWarning, match=f"more slowly: .*{said}"):
        assert not residual.works.__wrapped__(16, 16, 1, 8, 8, torch.device("cpu"))
    assert said in conv3x3._broken[0]
    with monkeypatch.context() as other:
        other.setattr(residual, "_gap", lambda *_: 0.01)
        assert residual.works.__wrapped__(16, 16, 1, 8, 8, torch.device("cpu"))


KERNELS = """
import torch
from engram.models import conv3x3, residual, conv3x3_launch as launch
device = torch.device(DEVICE)
half = torch.float16  # as bfloat16, of which the interpreter cannot make products
torch.backends.cudnn.allow_tf32 = False
for shape in (
    (3, 16, 3, 1, 8, 8), (16, 16, 3, 1, 6, 5), (16, 16, 3, 1, 2, 2), (32, 32, 3, 1, 8, 16),
    (16, 32, 3, 2, 8, 8), (16, 32, 1, 2, 8, 6), (64, 64, 3, 1, 4, 4), (32, 64, 3, 2, 4, 4),
):
    assert conv3x3._gap(*shape, half, device) < 2e-3, shape
for tile in (launch.Tile(64, 16, 3, 0, 4), launch.Tile(128, 16, 3, 2, 4)):
    launch.TILES[16, 16] = launch.TURNED[16, 16] = tile
    assert conv3x3._gap(16, 16, 3, 1, 8, 8, half, device) < 2e-3, tile
for parts in (launch.Parts(32, 3, 1, 2, 4, 3), launch.Parts(32, 1, 1, 2, 4, 2)):
    launch.PARTS[16, 16] = parts
    assert conv3x3._gap(16, 16, 3, 1, 8, 8, half, device) < 2e-3, parts

for shape in ((16, 16, 1, 6, 6), (16, 32, 2, 8, 8), (64, 64, 1, 2, 2)):
    assert residual._gap(*shape, half, device) < 2e-2, shape

# statistics far from 0, running ones, the same bits twice
x = (100 + conv3x3.waves(3, 8, 8, 16, device=device)).permute(0, 3, 1, 2)
weight = conv3x3.waves(16, 3, 3, 16, device=device).permute(0, 3, 1, 2).contiguous()
conv = launch.convolve(x, weight, moments=True)
again = launch.convolve(x, launch.pack(weight, torch.float32), moments=True)
running = torch.zeros(16, device=device), torch.ones(16, device=device)
mean, rstd = launch.settle(conv, running, 0.5, 0.0)
torch.testing.assert_close(mean, conv.y.mean((0, 2, 3)), rtol=1e-5, atol=1e-4)
torch.testing.assert_close(rstd ** -2, conv.y.var((0, 2, 3), correction=0), rtol=1e-3, atol=0)
torch.testing.assert_close(running[0], mean / 2)
torch.testing.assert_close(running[1], 0.5 + conv.y.var((0, 2, 3)) / 2, rtol=1e-3, atol=0)
torch.testing.assert_close(conv.y, again.y)
one, two = (launch.weight_slope(x, conv.y, weight) for _ in range(2))
assert torch.equal(one, two)
print("equal")
"""


@needs_kernels
def test_kernels_equal_the_formulas():
    assert_equal(KERNELS)


@needs_kernels
def test_gradients_of_gradients():
    """They are the formulas', whatever the products of the kernels are rounded to."""
    assert_equal("""
import torch
from engram.models import conv3x3, residual
device = torch.device(DEVICE)
torch.backends.cudnn.allow_tf32 = False
x = conv3x3.waves(2, 4, 4, 16, device=device).permute(0, 3, 1, 2).requires_grad_()
layers = []
for i in (1, 2):
    weight = conv3x3.waves(16, 3, 3, 16, device=device).permute(0, 3, 1, 2) / 12 / i
    kept = torch.zeros(2, 16, device=device)
    layers.append(residual.Layer(weight.requires_grad_(), 1 + kept[0], 0.1 * i + kept[1], *kept))
weights = [one.weight for one in layers]
def twice(y, *own):
    slope = conv3x3.waves(*y.shape, device=device)
    first = torch.autograd.grad(y, x, slope, create_graph=True)[0]
    return torch.autograd.grad((first ** 2).sum(), own)
convolved = conv3x3.convolve(x, weights[0]), conv3x3.plain_convolve(x, weights[0], 1, x.dtype)
pairs = [[twice(one, weights[0]) for one in convolved]]
block = residual.block(x, layers, momentum=0.1, eps=1e-5), residual.plain_block(x, layers, eps=1e-5)
pairs.append([twice(one, x, *weights) for one in block])
for ours, plain in pairs:
    for one, two in zip(ours, plain, strict=True):
        assert two.abs().max() > 0.1
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * float(two.abs().max()))
print("equal")
""")


COMPILED = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from types import SimpleNamespace
from engram.models import conv3x3_kernels as kernels, conv3x3_launch as launch

kinds, made = {torch.float32: "*fp32", torch.bfloat16: "*bf16", float: "fp32", int: "i32"}, set()

class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.run

    def run(self, *args, num_warps=4, **constants):
        names = self.kernel.arg_names
        types = {n: kinds[getattr(a, "dtype", type(a))] for n, a in zip(names, args)}
        types |= dict.fromkeys(constants, "constexpr")
        places = {(names.index(n),): value for n, value in constants.items()}
        source = ASTSource(fn=self.kernel, signature=types, constexprs=places)
        how = {"num_warps": num_warps}
        found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how)
        assert found.asm["cubin"] and found.metadata.shared <= 232448
        made.add(self.kernel.__name__)

twin = dict(vars(kernels))
for name in ("_convolve", "_settle", "_weight_parts", "_weight_total", "_pack"):
    twin[name] = Compiled(twin[name])
launch.kernels = SimpleNamespace(**twin)
last = {"memory_format": torch.channels_last}
for C, N, size, stride in CASES:
    x = torch.zeros(2, C, size, size, dtype=torch.bfloat16).contiguous(**last)
    weight = torch.zeros(N, C, 3, 3)
    conv = launch.convolve(x, weight, stride=stride, moments=True)
    norm = [torch.zeros(N)] * 4
    launch.settle(conv, (norm[0], norm[1]), 0.1, 1e-5)
    launch.weight_slope(x, conv.y, launch.pack(weight, torch.float32), stride=stride)
    back = {"turned": True, "stride": stride}
    launch.convolve(conv.y, weight, add=x, **back)
    if C == N:
        launch.convolve(conv.y, weight, slopes=(x, norm), **back)
assert len(made) == 5, made
print("equal")
"""


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
def test_kernels_compile_for_a_gpu_that_is_not_here():
    """For the architecture of an H100 or H200; needs Triton, no device."""
    pytest.importorskip("triton")
    cases = [(16, 16, 32, 1), (16, 32, 32, 2), (64, 64, 8, 1)]
    assert_equal(f"CASES = {cases}\n{COMPILED}")
