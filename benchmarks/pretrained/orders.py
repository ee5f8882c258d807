"""Accuracy of closed forms over many orders of the classes, which papers report for one or a few.

    python -m benchmarks.pretrained.orders --data cifar100 --tasks 10 --orders 200 \\
        --model '{"name": "efficientnet_lite0", "pretrained": true}'

The frozen network passes over all rows once. Every order is then a run of each method, and adds a
line to the file, so that an interrupted call goes on where it ended. At the end the mean, the
deviation, the least and the largest value over orders are printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import engram
from engram import keys
from engram.data.dataset import Data
from engram.engine.factory import LearnerFactory
from engram.engine.run_definition import Run
from engram.methods import NCM, SLDA, Finetune, RanPAC
from engram.methods.method import Method

COLUMNS = ("method", "order", "final", "incremental", "seconds")
METHODS = "NCM,SLDA,RanPAC"


class Given(nn.Module):
    """A backbone for data that are features already."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        (self.features,) = sample_shape

    def forward(self, x: Tensor) -> Tensor:
        return x


def make_features(name: str, model: Any) -> Data:
    """Return a data set with the features of a frozen network as inputs."""
    data = engram.load(name)
    stream = engram.class_incremental(data, classes_per_task=data.n_classes)
    own = model if isinstance(model, dict) else {"name": model}
    frozen = {"freeze": True, **own}  # or what the model says about its cache
    run = Run(stream=stream, method=Finetune(), model=frozen)
    found: Data = LearnerFactory(torch.device("cpu")).feed(run).data
    return found


def choose_methods(names: str, width: int, ridge: float) -> dict[str, Method]:
    """Return the methods by name."""
    every: dict[str, Method] = {
        "NCM": NCM(), "SLDA": SLDA(), "SLDA relative": SLDA(relative=True, shrinkage=0.1),
        "RanPAC": RanPAC(width=width, ridge=ridge),
    }  # fmt: skip
    if odd := set(names.split(",")) - set(every):
        raise SystemExit(f"--methods: {', '.join(sorted(odd))}; known are {', '.join(every)}")
    return {name: every[name] for name in names.split(",")}


def measure(data: Data, method: Method, order: Sequence[int], per_task: int) -> tuple[float, float]:
    """Return the accuracy after the last task, and its mean over all stages."""
    stream = engram.class_incremental(data, classes_per_task=per_task, order=list(order))
    result = engram.run(stream, method=method, model=Given, device="cpu", epochs=1)
    table = result.summary()
    return float(table["average_accuracy"].iloc[0]), float(
        table["average_incremental_accuracy"].iloc[0]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default='{"name": "mlp", "hidden": [200]}', help="as JSON")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--ridge", type=float, default=0.0, help="0: chosen after each task")
    parser.add_argument("--out", type=Path, default=Path("orders.csv"))
    given = parser.parse_args(arguments)
    methods = choose_methods(given.methods, given.width, given.ridge)
    began = time.perf_counter()
    warnings.filterwarnings("ignore", "features with extreme scales")  # of a backbone, as they are
    data = make_features(given.data, json.loads(given.model))
    shape = f"{len(data):,} rows of {data.sample_shape[0]} features"
    print(f"{shape} in {time.perf_counter() - began:.0f} s", flush=True)
    done = set()
    if given.out.exists():
        with given.out.open(encoding="utf-8", newline="") as file:
            done = {(row["method"], int(row["order"])) for row in csv.DictReader(file)}
    with given.out.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not done:
            writer.writerow(COLUMNS)
        for number in range(given.orders):
            order = keys.permutation(
                keys.fold(0, "orders", number), data.n_classes, data.n_classes
            ).tolist()
            for name, method in methods.items():
                if (name, number) in done:
                    continue
                began = time.perf_counter()
                final, mean = measure(data, method, order, data.n_classes // given.tasks)
                spent = time.perf_counter() - began
                writer.writerow([name, number, f"{final:.5f}", f"{mean:.5f}", f"{spent:.2f}"])
                file.flush()
    describe(given.out)


def describe(path: Path) -> None:
    """Print the spread over orders."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        print(
            f"{name}: {len(own)} orders, {np.mean([float(r['seconds']) for r in own]):.1f} s each"
        )
        for column in ("final", "incremental"):
            found = 100 * np.array([float(row[column]) for row in own])
            spread = f"{found.std(ddof=1):.2f}" if len(found) > 1 else "-"
            ends = f"{found.min():.2f} to {found.max():.2f}"
            print(f"  {column:12} {found.mean():.2f}, deviation {spread}, {ends}")


if __name__ == "__main__":
    main()
