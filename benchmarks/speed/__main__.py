"""Engram against hand-written loops, in one process with interleaved repeats.

    python -m benchmarks.speed [--threads 1] [--repeats 5] [--out FILE.json]

Work: five tasks of two digits, MLP of two hidden layers of 256, Adam 1e-3, batch 64, one epoch per
task, evaluation of the tasks learnt so far after every task. Real MNIST where it is found
(ENGRAM_DATA), else random images of the same shape. Ratios below 1 mean that Engram is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from pathlib import Path

import torch

from benchmarks.speed.bare import LOOPS
from benchmarks.speed.throughput import made_images
from engram import methods
from engram.data import Data, load
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.streams import class_incremental


def images() -> Data:
    """MNIST, or noise of its shape: the work is the same."""
    try:
        return load("mnist")
    except BadArgument:
        return made_images(60_000)


def ours(stream, method, batch: int) -> float:  # type: ignore[no-untyped-def]
    engine = Engine(
        [Run(stream=stream, method=method, training=Training(batch_size=batch))], device="cpu"
    )
    began = time.perf_counter()
    for _ in engine.stages():
        pass
    return time.perf_counter() - began


def theirs(stream, loop, batch: int, fused: bool) -> float:  # type: ignore[no-untyped-def]
    made = loop(stream.data, fused=fused)
    began = time.perf_counter()
    made.train(stream, batch=batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--methods", nargs="+", default=list(LOOPS), choices=list(LOOPS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    data = images()
    stream = class_incremental(data, classes_per_task=2)
    rows = []
    for name in given.methods:
        method, loop = getattr(methods, name)(), LOOPS[name]
        pairs = []
        for repeat in range(given.repeats + 1):
            pair = (ours(stream, method, given.batch), theirs(stream, loop, given.batch, True))
            if repeat:  # the first pair warms up
                pairs.append(pair)
        ratio = statistics.median(a / b for a, b in pairs)
        row = {
            "method": name, "threads": given.threads, "ratio": round(ratio, 3),
            "engram_s": round(min(a for a, _ in pairs), 3),
            "bare_s": round(min(b for _, b in pairs), 3), "repeats": given.repeats,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{name:10s} {given.threads} thread(s)  engram {row['engram_s']:7.2f} s  "
            f"bare {row['bare_s']:7.2f} s  ratio {ratio:.3f}",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {
        "data": data.name, "torch": torch.__version__, "machine": platform.machine(),
        "cores": os.cpu_count(), "peak_mib_of_all": round(peak), "rows": rows,
    }  # fmt: skip
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
