"""What torch does once in a process, kept out of the seconds of whichever run is the first.

The first mapped gradient imports rules for hundreds of operations, the first product on a device
starts a library: seconds that say nothing about a method. They are spent here, on numbers that
nobody uses, and counted, so that a stage can leave them out of its time.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.func import grad, vmap

_done: set[tuple[str, str]] = set()
_spent = 0.0


def warm_up_seconds() -> float:
    """Seconds that went into warming up so far; the difference of two calls is no training."""
    return _spent


class Stopwatch:
    """Seconds since it was made, and `before` that, without those of warming up."""

    def __init__(self, before: float = 0.0) -> None:
        self._began = time.perf_counter() - warm_up_seconds() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - warm_up_seconds() - self._began


def warm_up(device: torch.device) -> None:
    """Before the first step on a device."""
    _run_once("plain", device)


def warm_up_mapped(device: torch.device) -> None:
    """Before the first mapped or functional gradient on a device."""
    _run_once("mapped", device)


def _run_once(kind: str, device: torch.device) -> None:
    global _spent
    # by kind of device: "cuda" and "cuda:0" are one; inside a transform it is too late
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
    vmap(grad(_loss))(torch.zeros(2, 2, 2, device=device), torch.zeros(2, 3, 2, device=device))


def _loss(weight: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x @ weight, x.argmax(1))


_WARM_UPS = {"plain": _warm_up_plain, "mapped": _warm_up_mapped}
