"""Batch norm, ReLU and pooling at once: blocks against plain layers, kernels against formulas."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import engram.models as models
from engram.models import conv_blocks, norm_pool
from engram.models.context import PLAIN, forward_context
from engram.models.conv_blocks import ConvBlocks
from engram.models.layers import BatchNorm
from engram.models.resnet import BasicBlock

WORKS = norm_pool.works.__wrapped__  # without its cache
SHAPES = ((3, 9, 10), (4, 8, 8))  # odd edges; channels that need no padding


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
        here, middle = torch.var_mean(x[:, : len(mean)], (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        mean.lerp_(middle if offset is None else middle + offset, momentum)
        var.lerp_(here * count / (count - 1), momentum)
        return middle, (here + eps).rsqrt()

    def backward(dy, x, shortcut, mean, rstd, weight, beta, relu, pool):
        given = (x, shortcut, weight, beta)
        own = [None if one is None else one.detach().requires_grad_() for one in given]
        with torch.enable_grad():
            y = norm_pool.plain_train(*own, 1e-5, relu, pool)[0]
        found = iter(torch.autograd.grad(y, [one for one in own if one is not None], dy))
        return [None if one is None else next(found) for one in own]

    twin = SimpleNamespace(
        statistics=statistics, forward=norm_pool.plain_forward, backward=backward
    )
    monkeypatch.setattr(models, "norm_pool_kernels", twin, raising=False)
    monkeypatch.setitem(sys.modules, "engram.models.norm_pool_kernels", twin)
    monkeypatch.setattr(conv_blocks, "FUSES", True)
    monkeypatch.setattr(norm_pool, "applies", lambda x: not PLAIN.get())
    monkeypatch.setattr(norm_pool, "works", lambda *_: True)
    monkeypatch.setattr(conv_blocks, "_multiple", lambda x: 4)
    monkeypatch.setattr(conv_blocks, "_channels_last", lambda x: True)


@pytest.mark.parametrize("shape", SHAPES)
def test_at_once_is_the_sequence(formulas, shape, monkeypatch):
    monkeypatch.setattr(conv_blocks, "TURNS", shape[0] == 3)
    x = torch.randn(4, *shape, dtype=torch.float64, requires_grad=True)
    net, plain = blocks(shape[0]).double(), blocks(shape[0]).double()
    for one in net:
        one.in_place = shape[0] == 4
    token = PLAIN.set(True)
    wanted = passed(plain, x)
    PLAIN.reset(token)
    found = passed(net, x)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert found[3].abs().max() == 0  # a bias before a batch norm: torch finds rounding errors
    assert wanted[3].abs().max() > 0


@pytest.mark.parametrize("block", [BasicBlock(6, 4, 2), BasicBlock(4, 4, 1, relu=False)])
def test_residual_blocks(formulas, block):
    x = torch.randn(2, block.first.in_channels, 5, 6, dtype=torch.float64, requires_grad=True)
    plain, block = copy.deepcopy(block).double(), block.double()
    token = PLAIN.set(True)
    wanted = passed(plain, x)
    PLAIN.reset(token)
    for one, two in zip(passed(block, x), wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_gradients_of_gradients(formulas):
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    for net in (blocks(2)[:3], BasicBlock(2, 2, 1)):
        assert torch.autograd.gradgradcheck(net.double().train(), (x,))


def test_where_the_plain_sequence_runs(formulas, monkeypatch):
    net, x, taken = blocks(3).train(), torch.randn(4, 3, 8, 8), []
    own = conv_blocks.at_once

    def at_once(*args, pool):
        taken.append(pool)
        return own(*args, pool=pool)

    monkeypatch.setattr(conv_blocks, "at_once", at_once)
    net(x)
    assert taken == [True, False]
    with forward_context(torch.tensor([1.0, 1.0, 1.0, 0.0])):  # padding rows
        net(x)
    net.eval()(x)  # with gradient
    hook = net[2].register_forward_hook(lambda *_: None)
    net.train()(x)
    hook.remove()
    monkeypatch.setattr(conv_blocks, "FUSES", False)
    net(x)
    assert len(taken) == 2


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
    monkeypatch.setattr(norm_pool, "_gap", tried)
    with pytest.warns(UserWarning, match=f"more slowly: .*{said}"):
        assert not WORKS(6, 8, False, True, True, torch.float32, torch.device("cpu"))
    assert said in norm_pool._broken[0]
    monkeypatch.setattr(norm_pool, "works", lambda *_: False)
    x, net = torch.randn(4, 3, 8, 8), blocks(3).train()
    torch.testing.assert_close(net(x), nn.Sequential(*blocks(3).train())(x))


KERNELS = """
import torch
from engram.models import norm_pool, norm_pool_kernels as kernels
device = torch.device(DEVICE)
for tile, parts in ((64, 3), (4096, 528)):
    kernels.TILE, kernels.PARTS = tile, parts
    for kind in (
        (5, 8, False, True, True), (3, 3, False, True, False), (20, 20, False, False, True),
        (1, 4, True, True, False), (5, 5, True, False, False),
    ):
        assert norm_pool._gap(*kind, torch.float32, device) < 1e-4, kind
        assert norm_pool._gap(*kind, torch.bfloat16, device) < 0.05, kind

from tests.models.test_norm_pool import SHAPES, blocks, passed
from engram.models import conv_blocks
norm_pool.applies = lambda x: True
conv_blocks._multiple = lambda x: 4
for shape in SHAPES:
    x = torch.randn(4, *shape, device=device).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    answers = []
    for conv_blocks.FUSES in (True, False):
        answers.append(passed(blocks(shape[0]).to(device), x))
    for one, two in zip(*answers, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
print("equal")
"""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED),
    reason="needs a GPU, or triton's interpreter: TRITON_INTERPRET=1",
)
def test_kernels_equal_the_formulas():
    code = f"DEVICE = {'cpu' if INTERPRETED else 'cuda'!r}\n{KERNELS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr
