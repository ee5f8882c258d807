"""What a run directory costs a small run, and how a directory of many small runs grows.

    python -m benchmarks.speed.recording [--repeats 30] [--runs 10 100 1000] [--out FILE.json]

Digits in five tasks of two classes, ER, one epoch, one thread. First the same run with and without
`out=`, in turns, each time into a new directory: CPU and wall time, syncs, files and bytes. Then
one run after the other into one directory, each by a call of its own: the time of a call after so
many runs, divided by that of calls without `out=` in between; what the directory holds; and how
long it takes to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import engram

STREAM = {"classes_per_task": 2}
LAST = 20  # calls over which a time is taken


class Cost(tuple[float, float]):
    """CPU and wall time in seconds."""


def cost(call: Callable[[], Any]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return Cost((time.process_time() - cpu, time.perf_counter() - wall))


def train(stream: Any, out: Path | None, seed: int = 0) -> None:
    engram.run(stream, method="ER", seeds=[seed], out=out, device="cpu", epochs=1)


@contextmanager
def counted_syncs() -> Any:
    count, usual = [0], os.fsync

    def fsync(handle: int) -> None:
        count[0] += 1
        usual(handle)

    os.fsync = fsync
    try:
        yield count
    finally:
        os.fsync = usual


def size(folder: Path) -> tuple[int, int]:
    """Files and bytes in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def ratio(with_out: list[Cost], without: list[Cost], which: int) -> dict[str, float]:
    """The median of the ratios of calls that followed each other, and the least time of each."""
    pairs = zip(with_out, without, strict=True)
    return {
        "ratio": round(statistics.median(a[which] / b[which] for a, b in pairs), 3),
        "with_ms": round(1e3 * min(one[which] for one in with_out), 1),
        "without_ms": round(1e3 * min(one[which] for one in without), 1),
    }


def alone(stream: Any, root: Path, repeats: int) -> dict[str, Any]:
    """The same run with and without a directory, in turns."""
    train(stream, None)
    with counted_syncs() as syncs:
        train(stream, root / "first")
    files, size_of = size(root / "first")
    times: dict[bool, list[Cost]] = {False: [], True: []}
    for number in range(repeats):
        out = root / f"alone-{number}"
        times[False].append(cost(lambda: train(stream, None)))
        times[True].append(cost(lambda out=out: train(stream, out)))  # type: ignore[misc]
        shutil.rmtree(out)
    found = {name: ratio(times[True], times[False], k) for k, name in enumerate(("cpu", "wall"))}
    return {**found, "syncs": syncs[0], "files": files, "bytes": size_of}


def growth(stream: Any, root: Path, runs: list[int]) -> list[dict[str, Any]]:
    """Calls into one directory, after so many of them."""
    rows, recent, plain = [], list[Cost](), list[Cost]()
    for seed in range(max(runs)):
        recent.append(cost(lambda seed=seed: train(stream, root / "many", seed)))  # type: ignore[misc]
        plain.append(cost(lambda seed=seed: train(stream, None, seed)))  # type: ignore[misc]
        if seed + 1 in runs:
            files, size_of = size(root / "many")
            reading = cost(lambda: engram.read(root / "many"))
            row = {
                "runs": seed + 1, "files": files, "bytes": size_of,
                "cpu": ratio(recent[-LAST:], plain[-LAST:], 0),
                "wall": ratio(recent[-LAST:], plain[-LAST:], 1), "read_s": round(reading[0], 3),
            }  # fmt: skip
            rows.append(row)
            print(row, flush=True)
    assert len(engram.read(root / "many")) == max(runs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--runs", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--folder", type=Path, help="where to write; the disk matters")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    stream = engram.class_incremental(engram.load("digits"), **STREAM)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        facts: dict[str, Any] = {"torch": torch.__version__, "cores": os.cpu_count()}
        facts["alone"] = alone(stream, Path(name), given.repeats)
        print(facts["alone"], flush=True)
        facts["growth"] = growth(stream, Path(name), given.runs) if given.runs else []
    if given.out:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
