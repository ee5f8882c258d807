"""Triton kernels of the draws of ``keys``; imported on CUDA only.

The arithmetic of ``keys`` is 29 of torch's kernels for a draw, be it a large mask of dropout, and
12 for a new key; here each is one. Whole numbers only, so that both give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


BLOCK = 1024
STEP = tl.constexpr(-7046029254386353131)  # those of keys
MIX_A = tl.constexpr(-4658895280553007687)
MIX_B = tl.constexpr(-7723592293110705685)
LARGEST = tl.constexpr((1 << 63) - 1)


@triton.jit
def _mix(v):
    v = (v ^ ((v >> 30) & 0x3FFFFFFFF)) * MIX_A
    v = (v ^ ((v >> 27) & 0x1FFFFFFFFF)) * MIX_B
    return v ^ ((v >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["count", "least"])
def _draw_kernel(keys, drawn, count, least, MASK: tl.constexpr, BLOCK: tl.constexpr):
    """Row by row of [keys, count]: 63 bits each, or whether 24 of them are at `least` so many."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + row)
    v = _mix(_mix(key + (place + 1) * STEP) + key) & LARGEST
    if MASK:
        v = ((v >> 39) >= least).to(tl.int8)
    tl.store(drawn + row * count + place, v, mask=place < count)


@triton.jit(do_not_specialize=["add", "count"])
def _mix_kernel(keys, mixed, add, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    key = tl.load(keys + place, mask=inside, other=0)
    tl.store(mixed + place, _mix(key + add), mask=inside)


def mix(key: Tensor, add: int) -> Tensor:
    """The keys plus a number, mixed."""
    key = key.contiguous()
    mixed, count = torch.empty_like(key), key.numel()
    with torch.cuda.device_of(key):
        _mix_kernel[(triton.cdiv(count, BLOCK),)](key, mixed, add, count, BLOCK=BLOCK)
    return mixed


def bits(key: Tensor, count: int) -> Tensor:
    """[..., count] 63 random bits of each key, as ``keys.bits``."""
    return _launch(key, count, torch.empty(*key.shape, count, dtype=torch.long, device=key.device))


def dropout_mask(key: Tensor, least: int, count: int) -> Tensor:
    """[..., count] whether the first 24 bits make a number of at least `least`."""
    kept = torch.empty(*key.shape, count, dtype=torch.bool, device=key.device)
    _launch(key, count, kept.view(torch.int8), least)
    return kept


def _launch(key: Tensor, count: int, drawn: Tensor, least: int | None = None) -> Tensor:
    grid = (triton.cdiv(count, BLOCK), key.numel())
    given = (key.contiguous(), drawn, count, least or 0)
    with torch.cuda.device_of(key):  # kernels start on the current device
        _draw_kernel[grid](*given, MASK=least is not None, BLOCK=BLOCK)
    return drawn
