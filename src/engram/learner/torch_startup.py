"""Warm-up of torch, so that one-time costs do not count as training time of the first run.

The first mapped gradient of a process sets up torch's rules for mapped operations, and the first
matrix product on a device loads a library. Both happen here on dummy tensors; the seconds are
counted, and stages subtract them from their time.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.func import vmap

from engram.losses import ce_rows
from engram.models.functional_call import differentiate

_done: set[tuple[str, str]] = set()
_spent = 0.0


def warm_up_seconds() -> float:
    """Return the seconds spent on warm-up so far in this process."""
    return _spent


class Stopwatch:
    """Measure seconds since construction, plus `before`, without the time of warm-ups."""

    def __init__(self, before: float = 0.0) -> None:
        self._began = time.perf_counter() - warm_up_seconds() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - warm_up_seconds() - self._began


def warm_up(device: torch.device) -> None:
    """Prepare a device for its first training step."""
    _run_once("plain", device)


def warm_up_mapped(device: torch.device) -> None:
    """Prepare a device for its first mapped or functional gradient."""
    _run_once("mapped", device)


def _run_once(kind: str, device: torch.device) -> None:
    global _spent
    # once per type of device ("cuda" and "cuda:0" are the same); inside a transform it is too late
    if (kind, device.type) in _done or maybe_current_level() is not None:
        return
    _done.add((kind, device.type))
    began = time.perf_counter()
    _WARM_UPS[kind](device)
    _spent += time.perf_counter() - began


def _warm_up_plain(device: torch.device) -> None:
    weight = torch.zeros(2, 2, device=device, requires_grad=True)
    with torch.enable_grad():
        _loss(weight, torch.zeros(3, 2, device=device)).backward()


def _warm_up_mapped(device: torch.device) -> None:
    _warm_up_plain(device)
    vmap(differentiate(_loss))(
        torch.zeros(2, 2, 2, device=device), torch.zeros(2, 3, 2, device=device)
    )


def _loss(weight: Tensor, x: Tensor) -> Tensor:
    logits = x @ weight
    return ce_rows(logits, x.argmax(1), torch.ones_like(logits, dtype=torch.bool)).mean()


_WARM_UPS = {"plain": _warm_up_plain, "mapped": _warm_up_mapped}
