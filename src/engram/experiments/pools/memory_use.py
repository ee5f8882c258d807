"""Memory that runs need, measured by training a few of their steps."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from engram.engine.backend import resolve_device
from engram.engine.engine import Engine
from engram.engine.run_definition import Run

MEASURED_STEPS = 3  # steps of a measurement
SAFETY = 1.5  # factor: evaluation, importances and later tasks need more than the first steps


class MemoryNeed(NamedTuple):
    """Bytes that runs need: `base` for any number, plus `each` for every run.

    `room` is the total memory of the device.
    """

    base: int
    each: int
    room: int

    def bytes_for(self, runs: int) -> int:
        """Return the bytes that so many runs need."""
        return int(SAFETY * (self.base + self.each * runs))

    def most_runs(self, room: float) -> int:
        """Return how many runs fit into so many bytes, at least one.

        Examples
        --------
        >>> MemoryNeed(base=100, each=10, room=1000).most_runs(300)
        10
        """
        return max(1, int((room / SAFETY - self.base) // max(self.each, 1)))


class _StopMeasuring(Exception):
    """Raised when enough steps are done."""


def measure_memory(runs: Sequence[Run], device: str) -> MemoryNeed:
    """Measure the need of runs that train together, by the first steps of one and of two."""
    where = resolve_device(device)
    one = _peak(runs[:1], where)
    parameters = 4 * Engine(runs[:1], device="cpu").parameters(runs[0])
    least = 4 * parameters  # weights, gradient and two moments of the optimiser
    each = max(_peak(runs[:2], where) - one, least) if len(runs) > 1 else max(one, least)
    return MemoryNeed(base=max(one - each, 0), each=each, room=_device_memory(where))


def _peak(runs: Sequence[Run], device: torch.device) -> int:
    """Measure the peak memory of the first steps of some runs."""
    engine = Engine(runs, device=device, together=True if len(runs) > 1 else None)
    peak = _cuda_peak(device) if device.type == "cuda" else _host_peak()
    left = MEASURED_STEPS

    def count(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise _StopMeasuring

    try:
        for _ in engine.stages(progress=lambda places, stage: count):
            break
    except _StopMeasuring:
        pass
    return peak()


def _cuda_peak(device: torch.device) -> Callable[[], int]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return lambda: int(torch.cuda.max_memory_reserved(device))


def _host_peak() -> Callable[[], int]:
    """Return a function for the peak resident memory since now, or since the process started."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    return peak


def _device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
