"""Accuracy of closed forms over many orders of the classes, which papers report for one or a few.

    python -m benchmarks.pretrained.orders --data cifar100 --tasks 10 --orders 200 \\
        --model '{"name": "efficientnet_lite0", "pretrained": true}'

The frozen network passes over all rows once. SLDA and RanPAC make statistics of each class once,
from which every order is solved (`benchmarks.pretrained.shared_statistics`); ``--check 3`` compares
three orders with `engram.run`. Other methods are run in each order. An order adds a line to the
file, so that an interrupted call goes on where it ended. At the end the mean, the deviation, the
least and the largest value over orders are printed. ``final`` is the accuracy after the last task,
``incremental`` its mean over all stages, the other columns that after each task.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

import engram
from benchmarks.pretrained.shared_statistics import SharedStatistics, share_statistics
from engram import keys
from engram.data.dataset import Data
from engram.engine.factory import LearnerFactory
from engram.engine.run_definition import Run
from engram.methods import NCM, SLDA, Finetune, RanPAC
from engram.methods.method import Method

COLUMNS = ("method", "order", "final", "incremental", "seconds", "stages")
TOLERANCE = 1e-5  # between what is shared and a run
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


def measure(data: Data, method: Method, order: Sequence[int], per_task: int) -> list[float]:
    """Return the mean accuracy of the tasks so far after each task, by a run."""
    stream = engram.class_incremental(data, classes_per_task=per_task, order=list(order))
    result = engram.run(stream, method=method, model=Given, device="cpu", epochs=1)
    (matrix,) = np.asarray(result.matrix)
    return [float(row[: stage + 1].mean()) for stage, row in enumerate(matrix)]


def draw_order(number: int, classes: int) -> list[int]:
    """Return an order of classes by its number."""
    found: list[int] = keys.permutation(keys.fold(0, "orders", number), classes, classes).tolist()
    return found


def check_statistics(
    shared: SharedStatistics, data: Data, method: Method, orders: int, per_task: int
) -> float:
    """Return the largest difference to runs over some orders; end if it is not tiny."""
    most = 0.0
    for number in range(orders):
        order = draw_order(number, data.n_classes)
        known = shared.accuracies(order, per_task)
        run = measure(data, method, order, per_task)
        most = max(most, *(abs(a - b) for a, b in zip(known, run, strict=True)))
    if most > TOLERANCE:
        raise SystemExit(f"{method}: shared statistics differ from runs by {most}")
    return most


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default='{"name": "mlp", "hidden": [200]}', help="as JSON")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--ridge", type=float, default=0.0, help="0: chosen after each task")
    parser.add_argument("--check", type=int, default=0, help="orders to compare with runs")
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
        for name, method in methods.items():
            _add_orders(writer, file, given, data, name, method, done)
    describe(given.out)


def _add_orders(
    writer: Any, file: IO[str], given: argparse.Namespace, data: Data, name: str, method: Method,
    done: set[tuple[str, int]],
) -> None:  # fmt: skip
    """Write a line for each order that has none yet."""
    per_task = data.n_classes // given.tasks
    missing = [number for number in range(given.orders) if (name, number) not in done]
    if not missing and not given.check:
        return
    began = time.perf_counter()
    shared = share_statistics(data, method)
    if shared is not None:
        print(f"{name}: statistics in {time.perf_counter() - began:.0f} s", flush=True)
        if given.check:
            most = check_statistics(shared, data, method, given.check, per_task)
            print(f"{name}: {given.check} orders differ from runs by {most:.1g}", flush=True)
    for number in missing:
        began = time.perf_counter()
        order = draw_order(number, data.n_classes)
        found = (
            measure(data, method, order, per_task)
            if shared is None
            else shared.accuracies(order, per_task)
        )
        spent = time.perf_counter() - began
        stages = " ".join(f"{one:.4f}" for one in found)
        final, mean = f"{found[-1]:.5f}", f"{np.mean(found):.5f}"
        writer.writerow([name, number, final, mean, f"{spent:.2f}", stages])
        file.flush()


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
