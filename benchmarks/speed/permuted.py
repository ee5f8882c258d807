"""Many permuted tasks, where evaluation is most of the work, against a hand-written loop.

    python -m benchmarks.speed.permuted [--tasks 20] [--train 4000 --test 2000] [--out FILE.json]

CPU time of `engram.run` and of `bare.Permuted`, one thread, interleaved: an MLP with two hidden
layers of 256, Adam 1e-3, batch 64, one epoch per task; after each task all those learnt so far are
evaluated. Real MNIST where it is found (ENGRAM_DATA), else random images of the same shape.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import engram
from benchmarks.speed.__main__ import images
from benchmarks.speed.bare import Permuted
from engram.data import Data
from engram.streams.stream import Stream


def take(data: Data, train: int, test: int) -> Data:
    """The first rows of the data; all for 0."""
    some = data.train[: train or None], data.test[: test or None]
    (x, y), held = ((data.x[rows], data.labels[rows]) for rows in some)
    return Data.from_arrays(x, y, test=held)


def spent(work: Callable[[Stream], object], stream: Stream) -> float:
    began = time.process_time()
    work(stream)
    return time.process_time() - began


def compare(stream: Stream, repeats: int) -> tuple[list[tuple[float, float]], list[float]]:
    """CPU seconds of (Engram, loop), and the accuracy of each on all tasks after the last one."""
    found = [0.0, 0.0]

    def ours(stream: Stream) -> None:
        result = engram.run(stream, method="Finetune", device="cpu")
        found[0] = float(result.metric("average_accuracy")[0])

    def theirs(stream: Stream) -> None:
        found[1] = statistics.mean(Permuted(stream.data).train(stream, batch=64)[-len(stream) :])

    for work in (ours, theirs):  # what only the first call of a process costs
        work(stream[:1])
    pairs = [(spent(ours, stream), spent(theirs, stream)) for _ in range(repeats)]
    return pairs, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--train", type=int, default=0, help="training rows; 0: all")
    parser.add_argument("--test", type=int, default=0, help="test rows; 0: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = images()
    stream = engram.permuted(take(whole, given.train, given.test), tasks=given.tasks)
    pairs, accuracies = compare(stream, given.repeats)
    facts = {
        "data": whole.name, "tasks": given.tasks, "training_rows": len(stream[0].train),
        "test_rows": len(stream[0].test), "repeats": given.repeats,
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "engram_s": round(min(a for a, _ in pairs), 2),
        "bare_s": round(min(b for _, b in pairs), 2),
        "accuracies": [round(one, 3) for one in accuracies],
        "torch": torch.__version__, "machine": platform.machine(), "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if given.out:
        known = json.loads(given.out.read_text()) if given.out.exists() else []
        given.out.write_text(json.dumps([*known, facts], indent=1) + "\n")


if __name__ == "__main__":
    main()
