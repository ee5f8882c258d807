"""Convolutional networks on the CPU: images with the channels last in memory, and first.

    python -m benchmarks.speed.channels_last [--rounds 3] [--out FILE.json]

One run of the engine on one thread, batches of noise. Seconds are the process's own, so that other
work on the machine counts little; rounds of both orders alternate, and the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.speed.throughput import facts
from engram.data import Data
from engram.engine import factory
from engram.engine.engine import Engine
from engram.engine.loop import train_task
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import Finetune
from engram.streams import class_incremental

# network, shape of an image, rows of a batch, precision, steps
WORKS = (
    ("lenet", (1, 28, 28), 64, "float32", 40),
    ("lenet", (3, 32, 32), 128, "float32", 20),
    ("lenet", (3, 100, 100), 128, "float32", 4),
    ("lenet", (3, 32, 32), 128, "bf16", 20),
    ("cnn", (3, 32, 32), 64, "float32", 12),
    ("resnet18_slim", (3, 32, 32), 32, "float32", 8),
    ("resnet32", (3, 32, 32), 128, "float32", 6),
    ("resnet32", (3, 32, 32), 128, "bf16", 6),
    ("vgg11_slim", (3, 64, 64), 32, "float32", 4),
)


def run_of(model: str, shape: tuple[int, ...], batch: int, precision: str, steps: int) -> Run:
    """Plain training on noise, one task of ten classes."""
    x = torch.randint(0, 256, (4 * batch, *shape), dtype=torch.uint8)
    y = (torch.arange(len(x)) % 10).numpy()
    data = Data.from_arrays(x, y, test=(x[:10], y[:10]), name="noise")
    training = Training(batch_size=batch, precision=precision, iterations=steps)
    stream = class_incremental(data, classes_per_task=10)
    return Run(stream=stream, method=Finetune(), model=model, training=training)


def seconds(run: Run, last: bool) -> float:
    """Of a task's training, in one order of memory."""
    with mock.patch.object(factory, "_channels_last_pays", return_value=last):
        learner = Engine([run], device="cpu").learner(run)
    assert learner.networks.channels_last is last
    began = time.process_time()
    train_task([learner], [run.method], run.training, 0, mapped=False, capture=False)
    return time.process_time() - began


def figures(rounds: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of a step in either order."""
    for work in WORKS:
        model, shape, batch, precision, steps = work
        run = run_of(*work)
        seconds(run, True), seconds(run, False)  # oneDNN makes its kernels
        first, last = (
            min(each) * 1e3 / steps
            for each in zip(
                *((seconds(run, False), seconds(run, True)) for _ in range(rounds)), strict=True
            )
        )
        yield {
            "model": model, "image": list(shape), "batch": batch, "precision": precision,
            "first_ms": round(first, 2), "last_ms": round(last, 2), "ratio": round(first / last, 2),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table: dict[str, Any] = {**facts("cpu"), "rows": []}
    for row in figures(given.rounds):
        print(
            f"{row['model']:14s} {'x'.join(map(str, row['image'])):10s} {row['precision']:8s}"
            f"{row['first_ms']:9.2f} ms first {row['last_ms']:9.2f} ms last  x{row['ratio']:.2f}",
            flush=True,
        )
        table["rows"].append(row)
    if given.out:
        given.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
