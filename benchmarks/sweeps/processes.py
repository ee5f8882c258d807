"""How much faster `processes` is than `serial`, for runs that do not fit into lockstep.

    python -m benchmarks.sweeps.processes [--recipes 8] [--epochs 120] [--repeats 2] [--out FILE]

The same sweep by both pools, one after the other, several times: networks too large for lockstep on
the CPU, with progress (a callback) and a budget, into a run directory. Serial as it is, with a
thread for every core, and with one thread. Numbers must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import engram
from engram.experiments import Callback, Plan
from engram.records import Rows


class Progress(Callback):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.steps = self.stages = 0

    def step(self, *_: Any) -> None:
        self.steps += 1

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.stages += 1


def timed(recipes: list[dict[str, Any]], pool: str, workers: int) -> tuple[float, Any]:
    """Seconds of a sweep, and its result."""
    told = Progress()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = engram.sweep(
            recipes, pool=pool, out=folder, device="cpu", workers=workers, callback=told,
            deadline=time.monotonic() + 3600,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        matrix = result.matrix.copy()
    if told.stages != matrix.shape[0] * matrix.shape[1] or not told.steps:
        raise RuntimeError(f"{pool}: {told.stages} stages told, {told.steps} steps")
    return seconds, matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    methods = ("ER", "EWC", "LwF", "SI")
    recipes = [
        {"stream": {"data": "digits"}, "method": methods[i % 4], "seeds": [i // 4],
         "model": {"name": "mlp", "hidden": [400, 400]}, "training": {"epochs": given.epochs}}
        for i in range(given.recipes)
    ]  # fmt: skip
    threads, rows = torch.get_num_threads(), []
    for repeat in range(given.repeats):
        row: dict[str, float] = {}
        one_by_one = None
        for name, pool, count in (
            ("serial", "serial", threads), ("serial_one_thread", "serial", 1),
            ("processes", "processes", threads),
        ):  # fmt: skip
            torch.set_num_threads(count)
            row[name], matrix = timed(recipes, pool, given.workers)
            if count == 1:
                one_by_one = matrix
        torch.set_num_threads(threads)
        np.testing.assert_allclose(matrix, one_by_one, atol=0.02)
        rows.append({**row, "ratio": row["serial"] / row["processes"],
                     "ratio_one_thread": row["serial_one_thread"] / row["processes"]})  # fmt: skip
        print(json.dumps({"repeat": repeat, **{k: round(v, 2) for k, v in rows[-1].items()}}),
              flush=True)  # fmt: skip
    facts = {
        "recipes": given.recipes, "epochs": given.epochs, "workers": given.workers,
        "cores": os.cpu_count(), "threads": threads, "torch": torch.__version__,
        "machine": platform.machine(), "load": round(os.getloadavg()[0], 1),
        "ratio": round(statistics.median(row["ratio"] for row in rows), 3),
        "ratio_one_thread": round(statistics.median(row["ratio_one_thread"] for row in rows), 3),
        "rows": [{k: round(v, 3) for k, v in row.items()} for row in rows],
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if given.out:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
