"""Per-sample Fisher information of LeNet on faces of 100 x 100: outer products against matrices.

    python -m benchmarks.speed.fisher [--rows 24] [--repeats 3] [--device cpu] [--out FILE.json]

The network's fully connected layer has 24,200 x 500 weights. Taken sample by sample, its gradient
is a matrix of 48 MB for each; as an outer product it is a row of 24,200 and one of 500 numbers.
Either way is timed in a process of its own, which also says what memory it took at its peak.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.learner import gradients
from engram.learner.learner import RunLearner
from engram.methods import EWC
from engram.methods.fisher import fisher_information
from engram.streams import class_incremental

WAYS = ("matrices", "outer products")


def faces(rows: int, device: str) -> RunLearner:
    """A learner inside its first task of two classes; the work is that of real faces."""
    count, draw = 2 * rows, torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 100, 100), dtype=torch.uint8, generator=draw)
    labels = torch.arange(count) % 4
    data = Data.from_arrays(images, labels, test=(images[:4], labels[:4]))
    run = Run(stream=class_incremental(data), method=EWC(), model="lenet", training=Training())
    return Engine([run], device=device).learner(run)


def measure(way: str, rows: int, repeats: int, device: str, answer: Any) -> None:
    """Seconds of a pass and bytes at the peak above those before it."""
    torch.set_num_threads(1)
    if way == "matrices":
        gradients.LARGE_MATRIX = 1 << 62
    learner = faces(rows, device)
    learner.open_classes(0)
    cuda = learner.device.type == "cuda"
    fisher_information(learner, rows=learner.task.train[:2])  # torch prepares
    before = torch.cuda.memory_allocated() if cuda else _resident()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = fisher_information(learner, rows=learner.task.train[:rows])
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if cuda else _resident()
    total = float(found.double().sum())
    answer.send({"seconds": statistics.median(times), "bytes": peak - before, "sum": total})


def _resident() -> int:
    """The largest number of bytes that were resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"rows": given.rows, "device": given.device, "torch": torch.__version__}
    context = multiprocessing.get_context("spawn")
    for way in WAYS:
        ours, theirs = context.Pipe(duplex=False)
        arguments = (way, given.rows, given.repeats, given.device, theirs)
        process = context.Process(target=measure, args=arguments)
        process.start()
        theirs.close()
        found[way] = ours.recv()
        process.join()
        print(f"{way}: {found[way]['seconds']:.3f} s, {found[way]['bytes'] / 2**20:.0f} MiB")
    first, second = (found[way] for way in WAYS)
    found["ratio of seconds"] = round(first["seconds"] / second["seconds"], 1)
    found["ratio of bytes"] = round(first["bytes"] / max(second["bytes"], 1), 1)
    found["machine"] = platform.machine()
    print(f"{found['ratio of seconds']} times as fast, {found['ratio of bytes']} times less memory")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
