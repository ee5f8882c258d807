"""The pass of frozen networks with published weights: images per second of one core, and memory.

    python -m benchmarks.encoders --out benchmarks/encoders.csv

Each line is a process of its own with as many threads as asked for. Images are counted per second
of processor time, so that other work on the machine matters little; memory is the peak of the whole
process, torch included.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = (
    "network", "pixels", "threads", "images", "rows at once", "images per core second",
    "peak MB", "MB before",
)  # fmt: skip
IMAGES = {128: 256, 224: 96}
PIXELS_OF_DATA = 32


def measure(network: str, pixels: int, threads: int) -> list[object]:
    """One line of the table, in this process."""
    import torch

    from engram import Data
    from engram.learner.feed import Feed, encode_rows
    from engram.models import build

    torch.set_num_threads(threads)
    count, shape = IMAGES[pixels], (3, PIXELS_OF_DATA, PIXELS_OF_DATA)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    feed = Feed(Data.from_arrays(x, torch.arange(count) % 10), device=torch.device("cpu"))
    model = {"name": network, "pretrained": True, "freeze": True, "size": pixels}
    encoder = build(model, sample_shape=shape, classes=10, seed=0).frozen
    assert encoder is not None
    before, rows = peak(), encoder.rows_at_once(feed(torch.arange(1)))
    began = time.process_time()
    encode_rows(feed, encoder)
    rate = count / (time.process_time() - began)
    return [network, pixels, threads, count, rows, round(rate, 1), round(peak()), round(before)]


def peak() -> float:
    """Megabytes of this process at their peak."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> None:
    from engram.models.mobile_networks import NAMES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "PIXELS"), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.one:
        print(*measure(told.one[0], int(told.one[1]), told.threads), sep=",")
        return
    lines = []
    for network in NAMES:
        for pixels in IMAGES:
            command = [sys.executable, "-m", "benchmarks.encoders", "--out", str(told.out),
                       "--threads", str(told.threads), "--one", network, str(pixels)]  # fmt: skip
            # threads that wait for each other must not count as work
            env = {**os.environ, "OMP_NUM_THREADS": str(told.threads), "OMP_WAIT_POLICY": "PASSIVE"}
            found = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            lines.append(found.stdout.strip().split(","))
            print(*lines[-1])
    with told.out.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *lines])


if __name__ == "__main__":
    main()
