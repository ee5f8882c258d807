"""Triton kernels for the draws of `engram.keys`; imported on CUDA only.

With torch a draw takes 29 kernel launches and a new key 12; here each is one kernel. All arithmetic
is on integers, so that both give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


BLOCK = 1024
STEP = tl.constexpr(-7046029254386353131)  # the constants of engram.keys
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
    """Draw [keys, count]: 63 bits per entry or, for a mask, whether the first 24 are >= `least`."""
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
    """Add a number to keys and mix them."""
    key = key.contiguous()
    mixed, count = torch.empty_like(key), key.numel()
    with torch.cuda.device_of(key):
        _mix_kernel[(triton.cdiv(count, BLOCK),)](key, mixed, add, count, BLOCK=BLOCK)
    return mixed


def bits(key: Tensor, count: int) -> Tensor:
    """Draw 63 random bits [..., count] for each key, as `engram.keys.bits`."""
    return _launch(key, count, torch.empty(*key.shape, count, dtype=torch.long, device=key.device))


def dropout_mask(key: Tensor, least: int, count: int) -> Tensor:
    """Draw a mask [..., count]: whether the first 24 bits are at least `least`."""
    kept = torch.empty(*key.shape, count, dtype=torch.bool, device=key.device)
    _launch(key, count, kept.view(torch.int8), least)
    return kept


def _launch(key: Tensor, count: int, drawn: Tensor, least: int | None = None) -> Tensor:
    grid = (triton.cdiv(count, BLOCK), key.numel())
    given = (key.contiguous(), drawn, count, least or 0)
    with torch.cuda.device_of(key):  # kernels start on the current device
        _draw_kernel[grid](*given, MASK=least is not None, BLOCK=BLOCK)
    return drawn
