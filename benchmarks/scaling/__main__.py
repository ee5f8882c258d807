"""Processor seconds and peak memory along four axes. Directories of many runs: `directories`.

    python -m benchmarks.scaling [--out FILE.json] [AXIS ...]

Each point is a process of its own, on one thread, a fork of this one with everything imported; a
small run comes before its clock starts. Memory is what the process has at its highest, less
what it has at the start. The exponent is the slope between the two largest sizes on scales of
logarithms: 1 where twice the size costs twice as much, 0 where it costs the same.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.scaling.axes import AXES, Axis, runs

Point = dict[str, float]


def measure(axis: Axis, size: int) -> Point:
    """Seconds of the processor for each part of the work, and MiB at the peak."""
    found: Point = {"size": size}

    @contextmanager
    def timer(part: str) -> Iterator[None]:
        start = time.process_time()
        yield
        found[part] = round(time.process_time() - start, 4)

    # what the first call of a function costs is no matter of size
    runs(2 if axis.work is runs and size > 1 else 1, timer)
    found = {"size": size}
    before = _peak()
    axis.work(size, timer)
    found["MiB"] = round(_peak() - before, 1)
    return found


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _send(axis: str, size: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pipe.send(measure(AXES[axis], size))


def apart(axis: str, size: int) -> Point:
    """One point, in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(axis, size, there))
    child.start()
    there.close()
    try:
        found: Point = here.recv()
    finally:
        child.join()
    return found


def exponents(points: list[Point]) -> dict[str, float]:
    """How each part grows from the last size but one to the last.

    Examples
    --------
    >>> exponents([{"size": 1, "run": 5.0}, {"size": 10, "run": 1.0}, {"size": 100, "run": 100.0}])
    {'run': 2.0}
    """
    before, last = points[-2:]
    wide = math.log(last["size"] / before["size"])
    return {
        part: round(math.log(max(last[part], 1e-3) / max(before[part], 1e-3)) / wide, 2)
        for part in last if part != "size"
    }  # fmt: skip


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=", ".join(AXES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--most", type=int, default=10**9, help="the largest size of all axes")
    chosen = parser.parse_args()
    known = chosen.out is not None and chosen.out.exists()
    found = json.loads(chosen.out.read_text()) if known else {}
    for axis in chosen.axes or AXES:
        points = []
        for size in (one for one in AXES[axis].sizes if one <= chosen.most):
            points.append(apart(axis, size))
            print(axis, points[-1], flush=True)
        grows = exponents(points) if len(points) > 1 else {}
        print(axis, "exponents", grows, flush=True)
        found[axis] = {"points": points, "exponents": grows}
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
