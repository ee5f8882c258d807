"""Convolutions of ResNet-32 in bf16 on CUDA, one by one: cuDNN's and our own.

    python -m benchmarks.speed.conv_kernels [--batch 128] [--only check times]

``check``: each kernel against torch in float32; with `--folder` several processes share the work,
most of which is compiling. ``times``: microseconds of one launch among many in a CUDA graph, for
several ways to cut the work, and of what else a step is made of.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.engine.trainers.cuda_graph import Captured
from engram.models import conv3x3, residual

LAST: Any = {"memory_format": torch.channels_last}


class Layer(NamedTuple):
    """Channels in and out, size of the images that come in, size of the filter, stride."""

    C: int
    N: int
    size: int
    filter: int = 3
    stride: int = 1


LAYERS = {
    "16": Layer(16, 16, 32), "32": Layer(32, 32, 16), "64": Layer(64, 64, 8),
    "stem": Layer(3, 16, 32), "16>32": Layer(16, 32, 32, 3, 2), "32>64": Layer(32, 64, 16, 3, 2),
    "16>32 one": Layer(16, 32, 32, 1, 2), "32>64 one": Layer(32, 64, 16, 1, 2),
}  # fmt: skip
TILES = {  # pixels, channels, taps at once, stages of the loop (0: none), warps
    "16": [(256, 16, 1, 0, 4), (128, 16, 1, 0, 4), (128, 16, 3, 0, 4), (128, 16, 1, 4, 4)],
    "32": [(128, 32, 1, 0, 4), (64, 32, 1, 0, 4), (64, 32, 3, 0, 4), (128, 32, 1, 4, 4)],
    "64": [(64, 64, 1, 4, 4), (64, 32, 1, 4, 4), (64, 64, 1, 0, 8), (32, 64, 1, 4, 4)],
}
PARTS = {  # pixels at once, taps at once, groups of taps, stages of the loop, warps, parts
    "16": [(64, 3, 3, 3, 4, 264), (64, 3, 3, 3, 4, 528), (128, 3, 3, 2, 8, 132)],
    "32": [(64, 3, 1, 3, 4, 88), (64, 3, 3, 2, 8, 132), (64, 1, 1, 3, 4, 44)],
    "64": [(64, 1, 1, 3, 4, 28), (64, 1, 1, 4, 4, 15), (64, 3, 1, 2, 8, 44)],
}
FORWARD, BACK = ("forward", "moments"), ("input", "sum", "slopes")


def images(given: Any, channels: int, size: int, count: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(channels)
    shape = (given.batch, channels, size // given.smaller, size // given.smaller)
    drawn = (torch.randn(shape, generator=generator) for _ in range(count))
    return [one.to(given.device, kind_of(given)).contiguous(**LAST) for one in drawn]


def kind_of(given: Any) -> torch.dtype:
    return torch.bfloat16 if given.device == "cuda" else torch.float32


def filters(given: Any, layer: Layer) -> Tensor:
    shape = (layer.N, layer.C, layer.filter, layer.filter)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return (weight / layer.filter / layer.C**0.5).to(given.device).contiguous(**LAST)


def off(found: Tensor, right: Tensor) -> float:
    return float((found.float() - right.float()).norm() / right.float().norm().clamp(min=1e-9))


# -- one pass --------------------------------------------------------------------------------------
def ours(given: Any, name: str, which: str, cut: Any) -> tuple[Callable[..., Any], Any]:
    """A pass (x, dy) of a layer by our kernels, and its weights."""
    from engram.models import conv3x3_launch as launch

    layer = LAYERS[name]
    weight, stride = filters(given, layer), layer.stride
    laid, how = conv3x3.laid_out(weight, kind_of(given)), {}
    if which == "weights":
        parts = None if cut is None else launch.Parts(*cut)
        return lambda x, dy: launch.weight_slope(x, dy, weight, stride=stride, cut=parts), weight
    tile = None if cut is None else launch.Tile(*cut)
    if which in FORWARD:
        how = {"moments": which == "moments", "stride": stride, "tile": tile}
        return lambda x, dy: launch.convolve(x, laid, kind=dy.dtype, **how).y, weight
    how = {"turned": True, "stride": stride, "tile": tile}
    norm = [torch.ones(layer.C, device=given.device)] * 4

    def back(x: Tensor, dy: Tensor) -> Tensor:
        more = {"add": x} if which == "sum" else {"slopes": (x, norm)} if which == "slopes" else {}
        return launch.convolve(dy, laid, **how, **more).y

    return back, weight


def torchs(layer: Layer, which: str, weight: Tensor) -> Callable[..., Tensor]:
    """The same by torch."""
    stride, edge = [layer.stride] * 2, [layer.filter // 2] * 2
    if which in FORWARD:
        return lambda x, dy: F.conv2d(x, weight, stride=stride, padding=edge)
    mask = [which != "weights", which == "weights", False]

    def back(x: Tensor, dy: Tensor) -> Tensor:
        rest = (stride, edge, [1, 1], False, [0, 0], 1, mask)
        found = torch.ops.aten.convolution_backward(dy, x, weight, None, *rest)
        slope: Tensor = found[mask.index(True)]
        return slope + x if which == "sum" else slope

    return back


def inputs(given: Any, name: str, count: int) -> list[tuple[Tensor, Tensor]]:
    layer = LAYERS[name]
    x = images(given, layer.C, layer.size, count)
    if name == "stem":
        x = [one.float() for one in x]
    return list(zip(x, images(given, layer.N, layer.size // layer.stride, count), strict=True))


# -- check -----------------------------------------------------------------------------------------
def tasks() -> Iterator[tuple[str, str, Any]]:
    """Layers, passes and ways to cut (none: as is usual), what takes long first."""
    for name in ("16>32", "32>64", "16", "32", "64"):
        yield name, "block", None
    for name in LAYERS:
        if name not in TILES:
            for which in (*FORWARD, *(() if name == "stem" else BACK[:2]), "weights"):
                yield name, which, None
            continue
        for tile in TILES[name]:
            for which in (*FORWARD, *BACK):
                yield name, which, tile
        for parts in PARTS[name]:
            yield name, "weights", parts


def check(given: Any) -> None:
    """Make and check kernels that no other process has taken."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    for number, (name, which, cut) in enumerate(tasks()):
        try:
            os.close(os.open(f"{given.folder}/{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        began = time.perf_counter()
        try:
            if which == "block":
                gap = block_gap(given, LAYERS[name])
            else:
                (x, dy), (work, weight) = inputs(given, name, 1)[0], ours(given, name, which, cut)
                rounded = weight.to(kind_of(given)).float()
                right = torchs(LAYERS[name], which, rounded)(x.to(dy.dtype).float(), dy.float())
                gap = off(work(x, dy), right)
            said = f"{gap:.1e}" if gap < 1e-2 else f"WRONG {gap:.1e}"
        except Exception as error:
            said = f"FAILED {str(error).splitlines()[0][:90]}"
        spent = f"{time.perf_counter() - began:.1f} s"
        print(f"  {name:9s} {which:8s} {cut!s:26s} off by {said}, {spent}", flush=True)


def block_gap(given: Any, layer: Layer) -> float:
    """Of a residual block: the answer and all gradients, against torch on the CPU in float64."""
    generator = torch.Generator().manual_seed(0)

    def made(C: int, size: int) -> residual.Layer:
        weight = filters(given, Layer(C, layer.N, 0, size)).requires_grad_()
        gamma, beta = torch.rand(2, layer.N, generator=generator).to(given.device).unbind()
        kept = torch.zeros_like(gamma), torch.ones_like(gamma)
        return residual.Layer(weight, (gamma + 0.5).requires_grad_(), beta.requires_grad_(), *kept)

    layers = [
        made(layer.C, 3),
        made(layer.N, 3),
        *([made(layer.C, 1)] if layer.stride == 2 else []),
    ]
    x = images(given, layer.C, layer.size)[0][:8].requires_grad_()
    own = [x, *(value for one in layers for value in one[:3])]
    y = residual.block(x, layers, stride=layer.stride, momentum=0.1, eps=1e-5, relu=False)
    slope = torch.randn(y.shape, generator=generator).to(given.device).to(y.dtype)
    slope = slope.contiguous(**LAST)
    found = torch.autograd.grad(y, own, slope)
    exact = [value.detach().cpu().double().requires_grad_() for value in own]
    copies = [residual.Layer(*exact[i : i + 3], *layers[0][3:]) for i in range(1, len(exact), 3)]
    z = residual.plain_block(exact[0], copies, stride=layer.stride, eps=1e-5, relu=False)
    right = torch.autograd.grad(z, exact, slope.cpu().double())
    gaps = [
        off(a.cpu(), b) for a, b in zip((y.detach(), *found), (z.detach(), *right), strict=True)
    ]
    print(f"  block of {layer.N}: {', '.join(f'{gap:.1e}' for gap in gaps)}", flush=True)
    return max(gaps) / 10  # bf16 twice, and ReLUs that fall on the other side


# -- times -----------------------------------------------------------------------------------------
def microseconds(
    work: Callable[..., Any], *rows: tuple[Any, ...], launches: int = 24, replays: int = 8
) -> float:
    """Of one launch among many in a graph, with each row of arguments in turn: the least found."""

    def all_of_them() -> None:
        for row in itertools.islice(itertools.cycle(rows), launches):
            work(*row)

    captured = Captured(all_of_them)
    for _ in range(5):
        captured()
    found = []
    for _ in range(4):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(replays):
            captured()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e3 / launches / replays)
    return min(found)


def times(given: Any) -> None:
    torch.backends.cudnn.benchmark = True
    for name, which in itertools.product(LAYERS, ("moments", "input", "weights")):
        if (name, which) == ("stem", "input"):
            continue
        pairs = inputs(given, name, 4)  # several: as in a step, not all is in the cache
        small = filters(given, LAYERS[name]).to(kind_of(given))
        lower = [(x.to(dy.dtype), dy) for x, dy in pairs]
        base = microseconds(torchs(LAYERS[name], which, small), *lower)
        cuts: Any = (PARTS if which == "weights" else TILES).get(name, [None])
        least, told = float("inf"), []
        for cut in cuts:
            try:
                found = microseconds(ours(given, name, which, cut)[0], *pairs)
            except Exception as error:
                print(f"  {cut!s:28s} FAILED {str(error).splitlines()[0][:90]}", flush=True)
                torch.cuda.synchronize()
                continue
            told.append(f"{found:.2f} {cut or ''}")
            least = min(found, least)
        title = f"{name} {which}: cuDNN {base:.2f} us, ours {least:.2f}, {base / least:.2f} times"
        print(f"{title}\n    {'; '.join(told)}", flush=True)
    others(given)


def others(given: Any) -> None:
    """Microseconds of what else a step is made of."""
    from engram.models import conv3x3_launch as launch
    from engram.models import norm_pool_launch as norms

    for name in TILES:
        layer, told = LAYERS[name], {}
        (x, dy, z), weight = images(given, layer.C, layer.size, 3), filters(given, layer)
        packed = launch.pack(weight, x.dtype)
        told["weights as they are"] = microseconds(launch.convolve, (x, weight))
        told["packed"] = microseconds(launch.convolve, (x, packed))
        told["pack"] = microseconds(launch.pack, (weight, x.dtype))
        told["cast"] = microseconds(weight.to, (x.dtype,))
        laid = conv3x3.laid_out(weight, x.dtype)
        conv = launch.convolve(x, laid, moments=True)
        running = torch.zeros(layer.N, device=x.device), torch.ones(layer.N, device=x.device)
        told["settle"] = microseconds(launch.settle, (conv, running, 0.1, 1e-5))
        norm = (*launch.settle(conv, running, 0.1, 1e-5), *running)
        told["norm forward"] = microseconds(norms.forward, (z, x, *norm, True, False))
        told["norm backward"] = microseconds(norms.backward, (dy, z, x, *norm, True, False))
        back = functools.partial(launch.convolve, dy, laid, turned=True, slopes=(z, norm))
        told["input with slopes"] = microseconds(back, ())
        told["through norm"] = microseconds(launch.through_norm, (back(), z, norm))
        print(f"{name}: " + ", ".join(f"{k} {v:.2f}" for k, v in told.items()), flush=True)


def main(arguments: list[str] | None = None) -> None:
    work = {"check": check, "times": times}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=tuple(work), default=list(work))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--smaller", type=int, default=1, help="how many times smaller images are")
    parser.add_argument("--folder", default="", help="where processes tell which kernels they take")
    parser.add_argument("--device", default="cuda", help="on the CPU nothing is timed")
    given = parser.parse_args(arguments)
    given.folder = given.folder or tempfile.mkdtemp()
    for name in given.only:
        work[name](given)


if __name__ == "__main__":
    main()
