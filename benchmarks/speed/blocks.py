"""Milliseconds of a captured step of LeNet and ResNet-32 on CUDA: torch's layers and fused ones.

    python -m benchmarks.speed.blocks [--model lenet resnet32] [--ways torch fused compiled turned]

LeNet: 100 x 100 images, Adam; ResNet-32: 32 x 32, SGD with momentum; batches of 128, tf32, channels
last, a plain loop around the networks of the package. ``torch`` has torch's own batch norms,
``fused`` the kernels of `engram.models.norm_pool`, ``compiled`` is ``torch`` through torch.compile.
``turned`` is fused, and takes the gradient of a convolution's input by another convolution
forwards: a trial, no part of the package. Each line tells how far the first loss and gradient are
from those of the first line, and how long the first pass took, compiling included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.engine.backend import numerics
from engram.engine.trainers.cuda_graph import Captured
from engram.models.build import build
from engram.models.conv_blocks import Fusable
from engram.models.layers import BatchNorm

SIZES = {"lenet": 100, "resnet32": 32}
WAYS = ("torch", "fused", "compiled", "turned")
CLASSES, REPEATS = 10, 6


class Turned(nn.Conv2d):
    """A convolution whose input has its gradient by a convolution forwards, at stride 1."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.stride != (1, 1) or bias is not None:
            return super()._conv_forward(x, weight, bias)
        found: Tensor = _Turned.apply(x, weight, self.padding)  # type: ignore[no-untyped-call]
        return found


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, padding=padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x, weight), padding = ctx.saved_tensors, ctx.padding
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            turned = weight.flip(2, 3).transpose(0, 1)
            turned = turned.contiguous(memory_format=torch.channels_last)
            edge = [k - 1 - p for k, p in zip(weight.shape[2:], padding, strict=True)]
            dx = F.conv2d(dy, turned, padding=edge)
        if ctx.needs_input_grad[1]:
            dweight = torch.nn.grad.conv2d_weight(x, weight.shape, dy, padding=padding)
        return dx, dweight, None


def network(model: str, way: str, device: str, size: int) -> nn.Module:
    net: Any = build(model, sample_shape=(3, size, size), classes=CLASSES, seed=0)
    for module in list(net.modules()):
        if isinstance(module, Fusable):
            module.fused = way in ("fused", "turned")
        if isinstance(module, nn.Conv2d) and way == "turned":
            module.__class__ = Turned
        for name, child in list(module.named_children()):
            if isinstance(child, BatchNorm) and way in ("torch", "compiled"):
                kind = nn.BatchNorm1d if name == "norm" else nn.BatchNorm2d
                setattr(module, name, kind(child.features))
                getattr(module, name).num_batches_tracked = None  # nobody counts batches
            elif isinstance(child, BatchNorm):
                child.in_place = True
    found: nn.Module = net.to(device).train().to(memory_format=torch.channels_last)
    return found


def step_of(model: str, way: str, given: Any) -> tuple[Callable[[], Tensor], Callable[[], None]]:
    """The loss of a batch, and a whole step."""
    size = given.size or SIZES[model]
    net, generator = network(model, way, given.device, size), torch.Generator().manual_seed(1)
    x = torch.rand(given.batch, 3, size, size, generator=generator).to(given.device)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, CLASSES, (given.batch,), generator=generator).to(given.device)
    cuda = given.device == "cuda"
    if model == "lenet":
        optimizer: Any = torch.optim.Adam(net.parameters(), lr=2.5e-4, capturable=cuda, fused=cuda)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=cuda)

    def forward(x: Tensor) -> Tensor:
        logits: Tensor = net(x).logits
        return logits

    run = torch.compile(forward, dynamic=False) if way == "compiled" else forward

    def loss() -> Tensor:
        return F.cross_entropy(run(x), y)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    loss.weights = list(net.parameters())  # type: ignore[attr-defined]
    return loss, step


def timed(step: Callable[[], None], steps: int) -> float:
    """Milliseconds of a step, the least of several stretches."""
    captured, found = Captured(step), []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        captured()
        first.record()
        for _ in range(steps):
            captured()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / steps)
    return min(found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--precision", choices=("float32", "tf32"), default="tf32")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=0, help="of images, where not as above")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda", help="on the CPU nothing is timed")
    given = parser.parse_args(arguments)
    for model in given.model:
        base: tuple[float, Tensor] | None = None
        for way in given.ways:
            with numerics(given.precision):
                loss, step = step_of(model, way, given)
                began = time.perf_counter()
                value = loss()
                parts = torch.autograd.grad(value, loss.weights)  # type: ignore[attr-defined]
                slope, number = torch.cat([part.flatten() for part in parts]), value.item()
                first = time.perf_counter() - began
                base = base or (number, slope)
                off = float((slope - base[1]).norm() / base[1].norm())
                spent = f"{timed(step, given.steps):7.3f} ms" if given.device == "cuda" else ""
            told = f"loss {number - base[0]:+.1e}, gradient {off:.1e} off, first {first:.1f} s"
            print(f"{model:9s} {way:9s}{spent}  {told}", flush=True)


if __name__ == "__main__":
    main()
