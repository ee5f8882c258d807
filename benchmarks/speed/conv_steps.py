"""Whole steps of ResNet-32 in bf16 on CUDA: torch's layers, and kernels of our own.

    python -m benchmarks.speed.conv_steps                      # milliseconds of a captured step
    python -m benchmarks.speed.conv_steps --only gradients     # how far from float32's
    python -m benchmarks.speed.conv_steps --only training      # losses and accuracies, three seeds
    python -m benchmarks.speed.conv_steps --only kernels       # where a step spends its time

SGD with momentum, batches of 128 images of 32 x 32, a plain loop around the networks of the
package. ``torch`` has torch's own layers, ``torch+convs`` our convolutions instead of cuDNN's,
``fused`` the kernels of `engram.models.norm_pool` around cuDNN's convolutions, ``fused+convs``
both, and ``blocks`` whole residual blocks (`engram.models.residual`): the engine's way.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.blocks import network, timed
from engram.engine.backend import numerics
from engram.engine.trainers.cuda_graph import Captured
from engram.models import conv3x3, conv_blocks, resnet

LAST: Any = {"memory_format": torch.channels_last}
WAYS = ("torch", "torch+convs", "fused", "fused+convs", "blocks")
AT_ONCE = resnet.block_at_once
SIZE, CLASSES = 32, 10


class Own(nn.Conv2d):
    """A convolution by our kernels, and nothing else at once."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return conv_blocks._convolved(self, x.contiguous(**LAST))


def network_of(way: str, device: str, size: int = SIZE) -> nn.Module:
    """ResNet-32; what is done at once is set for all networks, until the next is made."""
    net = network("resnet32", "torch" if way.startswith("torch") else "fused", device, size)
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and way == "torch+convs":
            module.__class__ = Own
    conv3x3._broken[:] = ["not asked for"] if way in ("torch", "fused") else []
    whole = way == "blocks"
    resnet.block_at_once = AT_ONCE if whole else lambda *_, **__: None  # type: ignore[assignment]
    return net


class Steps:
    """A network in training on one batch, which may be written over."""

    def __init__(self, way: str, given: Any, autocast: bool = True) -> None:
        self.net = network_of(way, given.device, given.size)
        self.x = torch.rand(given.batch, 3, given.size, given.size).to(given.device)
        self.x = self.x.contiguous(**LAST)
        self.y = torch.randint(0, CLASSES, (given.batch,)).to(given.device)
        cuda = given.device == "cuda"
        self.autocast = torch.autocast("cuda", torch.bfloat16, enabled=cuda and autocast)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, fused=cuda)
        self.value = torch.zeros((), device=given.device)

    def loss(self) -> Tensor:
        with self.autocast:
            logits = self.net(self.x).logits
        return F.cross_entropy(logits.float(), self.y)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.value.copy_(loss.detach())

    def gradient(self) -> Tensor:
        parts = torch.autograd.grad(self.loss(), list(self.net.parameters()))
        return torch.cat([part.flatten().float() for part in parts])


def show_steps(given: Any) -> None:
    first = 0.0
    for way in given.ways:
        with numerics("bf16"):
            began = time.perf_counter()
            steps = Steps(way, given)
            steps()
            torch.cuda.synchronize()
            waited = time.perf_counter() - began
            spent = timed(Steps(way, given), given.steps)
        first, rate = first or spent, given.batch / spent * 1e3
        told = f"{spent:7.3f} ms {rate:9,.0f} images/s {first / spent:5.2f} times"
        print(f"{way:12s} {told}, first step after {waited:.1f} s", flush=True)


# -- right -----------------------------------------------------------------------------------------
def textures(rows: int, seed: int, given: Any) -> tuple[Tensor, Tensor]:
    """Waves in a direction of their class, under noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (rows,), generator=generator)
    place, angle = torch.arange(given.size).float(), y * torch.pi / CLASSES
    across = angle.cos().view(-1, 1, 1) * place + angle.sin().view(-1, 1, 1) * place.view(-1, 1)
    phase = torch.rand(rows, 1, 1, generator=generator) * 6.28
    x = torch.randn(rows, 3, given.size, given.size, generator=generator)
    x = x + 0.5 * (0.9 * across + phase).sin().unsqueeze(1)
    return x.to(given.device).contiguous(**LAST), y.to(given.device)


def train(steps: Steps, data: tuple[Tensor, Tensor], count: int, seed: int, given: Any) -> float:
    """Mean loss of the last 50 steps of training on rows of the data."""
    step: Callable[[], None] = Captured(steps) if given.device == "cuda" else steps
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        rows = torch.randint(0, len(data[1]), (given.batch,), generator=generator)
        rows = rows.to(given.device)
        steps.x.copy_(data[0][rows])
        steps.y.copy_(data[1][rows])
        step()
        losses.append(steps.value.clone())
    return float(torch.stack(losses[-50:]).mean())


def show_gradients(given: Any) -> None:
    """Cosines with the float32 gradient of the same batch and weights, along a training."""
    data = textures(40 * given.batch, 0, given)
    with numerics("bf16"):
        teacher = Steps("torch", given)
    for count in (0, 5, 50, 150):
        with numerics("bf16"):
            train(teacher, data, count, count, given) if count else None
        weights, found = [p.detach().clone() for p in teacher.net.parameters()], {}
        for way in ("float32", "torch", "fused", "blocks"):
            exact = way == "float32"
            with numerics("float32" if exact else "bf16"):
                steps = Steps("torch" if exact else way, given, autocast=not exact)
                for own, weight in zip(steps.net.parameters(), weights, strict=True):
                    own.data.copy_(weight)
                steps.x.copy_(data[0][: given.batch])
                steps.y.copy_(data[1][: given.batch])
                found[way] = steps.gradient()
        right = found.pop("float32")
        cosines = {k: float(F.cosine_similarity(v, right, 0)) for k, v in found.items()}
        told = ", ".join(f"{way} {cosine:.4f}" for way, cosine in cosines.items())
        print(f"after {count} more steps, cosine with float32: {told}", flush=True)


def show_training(given: Any) -> None:
    """Loss at the end and accuracy on new rows."""
    for way in ("torch", "blocks"):
        for seed in range(3):
            torch.manual_seed(seed)
            data, test = textures(40 * given.batch, seed, given), textures(2000, 99, given)
            with numerics("bf16"):
                steps = Steps(way, given)
                for layer in steps.net.modules():
                    if isinstance(layer, nn.Conv2d):
                        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                loss = train(steps, data, given.steps, seed, given)
                with torch.no_grad():
                    hits = steps.net.eval()(test[0]).logits.argmax(1) == test[1]
            print(f"{way:8s} seed {seed}: loss {loss:.4f}, accuracy {hits.float().mean():.4f}")


def show_kernels(given: Any, times: int = 4) -> None:
    """Where a step that is not captured spends its device time."""
    for way in given.ways:
        with numerics("bf16"):
            steps = Steps(way, given)
            steps()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                for _ in range(times):
                    steps()
                torch.cuda.synchronize()
        found = [
            (one.self_device_time_total / times, one.count // times, one.key)
            for one in seen.key_averages()
            if one.self_device_time_total
        ]
        total, count = sum(one[0] for one in found), sum(one[1] for one in found)
        print(f"\n{way}: {total / 1e3:.3f} ms in {count} kernels a step", flush=True)
        for spent, calls, name in sorted(found, reverse=True)[:16]:
            print(f"  {spent:8.1f} us {calls:4d} x {spent / max(calls, 1):6.2f}  {name[:90]}")


def main(arguments: list[str] | None = None) -> None:
    work = {"steps": show_steps, "gradients": show_gradients, "training": show_training}
    work["kernels"] = show_kernels
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=tuple(work), default=["steps"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=SIZE, help="of images")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda", help="on the CPU nothing is timed")
    given = parser.parse_args(arguments)
    for name in given.only:
        work[name](given)


if __name__ == "__main__":
    main()
