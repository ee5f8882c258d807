"""Thirty strengths of EWC on MNIST, searched in lockstep, against one run of the same tasks.

    python -m benchmarks.search.mnist --root DIR --device cuda -o benchmarks/search/mnist-h200.json

In one call, after a warm-up that nobody times: one trial alone, the thirty together, and the chosen
strength on the whole stream of five tasks. Each is timed on the clock from plans to records, as a
user waits for it, `--repeat` times in turn; the least of each counts. The ledger of every trial is
looked at: not one test row was scored, and no task after the first three exists. Ends with code 1
if a row was, or if the search takes more than `--most` times one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import engram
from benchmarks.speed.throughput import facts
from engram.engine.backend import resolve_device
from engram.experiments.search import Search

STRENGTHS = "1..1e6:log"


def recipe(data: str, *, epochs: int) -> dict[str, Any]:
    """Five tasks of two digits, a head for each; a tenth of the training rows decides."""
    return {
        "stream": {
            "kind": "task_incremental", "data": data, "classes_per_task": 2, "valid": 0.1,
            "seed": 0,
        },
        "method": "EWC", "model": {"name": "mlp", "hidden": [256, 256]},
        "training": {"epochs": epochs, "batch_size": 128, "lr": 1e-3},
    }  # fmt: skip


def timed(device: str, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds on the clock, and what came of it."""
    began = time.perf_counter()
    found = work()
    if resolve_device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, found


def search(content: dict[str, Any], trials: int, args: argparse.Namespace) -> Search:
    """A search in a directory of its own, as a user makes one."""
    with tempfile.TemporaryDirectory() as folder:
        return engram.search(
            content, {"strength": STRENGTHS}, trials=trials, tasks=args.tasks, out=folder,
            device=args.device, data=args.root, compile=args.compile,
        )  # fmt: skip


def rows_scored(found: Search) -> dict[str, int]:
    """Validation and test rows that the trials were judged on, by the ledger."""
    runs = [run for part in found.result.ledger for run in part["runs"]]
    stages = [counts for run in runs for counts in run["stages"].values()]
    return {kind: sum(one.get(kind, 0) for one in stages) for kind in ("held_out", "test")}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one run and of the search, in turn."""
    content = recipe(args.data, epochs=args.epochs)
    search({**content, "training": {**content["training"], "epochs": 1}}, args.trials, args)
    search({**content, "training": {**content["training"], "epochs": 1}}, 1, args)
    alone, together, whole = [], [], []
    for _ in range(args.repeat):
        alone.append(timed(args.device, lambda: search(content, 1, args))[0])
        seconds, found = timed(args.device, lambda: search(content, args.trials, args))
        together.append(seconds)
    seconds, result = timed(args.device, lambda: found.run(device=args.device))
    whole.append(seconds)
    return {
        **facts(args.device), "data": args.data, "trials": args.trials, "tasks": args.tasks,
        "epochs": args.epochs, "one_run_seconds": alone, "search_seconds": together,
        "whole_stream_seconds": whole, "ratio": min(together) / min(alone),
        "ratio_to_whole_stream": min(together) / min(whole), "chosen": found.chosen,
        "validation_accuracy": found.best.value,
        "test_accuracy_of_the_whole_stream": float(result.metric("average_accuracy")[0]),
        "tasks_of_trials": sorted({int(n) for n in found.result.tasks}),
        "rows_scored_in_trials": rows_scored(found), "cost": dict(found.cost),
        "response": found.curve("strength").drop(columns="std").to_dict("list"),
    }  # fmt: skip


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--root", help="where the data set lies (default: ENGRAM_DATA)")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--most", type=float, default=2.0, help="times one run")
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    found = measure(args)
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    untouched = found["rows_scored_in_trials"]["test"] == 0
    print(f"{args.trials} trials take {found['ratio']:.2f} times one run; test rows scored: "
          f"{found['rows_scored_in_trials']['test']}")  # fmt: skip
    return 0 if untouched and found["ratio"] <= args.most else 1


if __name__ == "__main__":
    sys.exit(main())
