"""Where the seconds of a reproduction go: kernels, host, evaluation, recording, verdicts.

    python -m benchmarks.speed.seconds cgl/2 --root DIR --device cuda --cells "dataset=UCLA-CIL"

Runs a table as ``engram reproduce`` does, with a stopwatch around its parts. Every part counts its
own seconds, without those of parts inside it. On CUDA, the host launches work and goes on; so each
part ends with a synchronisation, and what that waits is its share of ``kernels``. Parts that wait
for the device themselves, as evaluation does, have that in their own seconds. The synchronisations
cost something: the sum is an upper bound of what the command takes without a stopwatch.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.speed.throughput import facts
from engram.engine import engine, loop
from engram.engine.backend import resolve_device
from engram.engine.trainers.captured import CapturedTrainer
from engram.engine.trainers.compiled import CompiledTrainer
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.experiments import recorder
from engram.reproduce import find_table
from engram.reproduce import reproduction as reproducing
from engram.reproduce.result_tables import SHORT_NUMBER_FORMAT, merge_lines

# Part to the functions that are it: owner and name.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "planning": [(reproducing, "plan")],
    "grouping": [(engine.Engine, "groups"), (engine.Engine, "_copies"), (engine.Engine, "_copied")],
    "beginning of tasks": [(loop, "open_task"), (loop.PhaseTraining, "__init__")],
    "batches": [(loop.PhaseTraining, "load")],
    "steps": [
        (one, "run") for one in (LockstepTrainer, CompiledTrainer, SingleTrainer, CapturedTrainer)
    ],
    "end of tasks": [(loop.PhaseTraining, "close"), (loop, "finish_task")],
    "evaluation": [(loop, "evaluate")],
    "recording": [(recorder.Recorder, name) for name in ("__init__", "prepare", "add", "close")],
    "reading": [(reproducing, "read"), (reproducing, "select_by_recipe")],
    "verdicts": [(reproducing, "make_lines")],
}
REST = "everything else"


class Stopwatches:
    """Seconds by part, each without those of the parts that it calls."""

    def __init__(self, *, synchronise: bool = False) -> None:
        self.host: dict[str, float] = defaultdict(float)
        self.kernels: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inner = [0.0]  # seconds of the parts inside each open one
        self._synchronise = synchronise

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            self._close(name, began)

    def _close(self, name: str, began: float) -> None:
        back = time.perf_counter()
        if self._synchronise:
            torch.cuda.synchronize()
        end = time.perf_counter()
        self.host[name] += back - began - self._inner.pop()
        self.kernels[name] += end - back
        self.calls[name] += 1
        self._inner[-1] += end - began

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*args, **options)

        return timed

    def table(self) -> list[dict[str, Any]]:
        """One row per part, the longest first."""
        rows = [
            {"part": name, "host_s": round(self.host[name], 2),
             "kernels_s": round(self.kernels[name], 2), "calls": self.calls[name]}
            for name in self.host
        ]  # fmt: skip
        return sorted(rows, key=lambda row: -(row["host_s"] + row["kernels_s"]))


@contextmanager
def watched(watches: Stopwatches) -> Iterator[None]:
    """The parts of a reproduction with a stopwatch around them."""
    patches = [
        patch.object(owner, name, watches.around(part, getattr(owner, name)))
        for part, places in PARTS.items()
        for owner, name in places
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("name", metavar="PAPER/TABLE")
    parser.add_argument("--root", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--cells", default="", metavar="EXPR")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments")
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="run directory, a new one")
    parser.add_argument("--csv", type=Path, help="our numbers beside the paper's")
    parser.add_argument("--save", type=Path, help="a JSON file")
    asked = parser.parse_args(arguments)
    device = resolve_device(asked.device)
    watches = Stopwatches(synchronise=device.type == "cuda")
    began = time.perf_counter()
    with watched(watches), watches.part(REST):
        table = find_table(asked.name, embedded=asked.embedded, assignments=asked.assignments)
        made = reproducing.reproduce(
            table, data=asked.root, cells=asked.cells, out=asked.out, device=str(device)
        )
    wall = time.perf_counter() - began
    for row in watches.table():
        print(f"{row['part']:20} host {row['host_s']:8.2f} s  kernels {row['kernels_s']:8.2f} s"
              f"  {row['calls']:7} calls")  # fmt: skip
    print(f"{wall:.1f} s in all, {len(made.plan.runs)} runs; {made.counts()}")
    found = {
        "table": asked.name, "cells": asked.cells, "set": asked.assignments,
        **facts(device.type), "runs": len(made.plan.runs), "wall_s": round(wall, 1),
        "parts": watches.table(),
    }  # fmt: skip
    if asked.csv:
        merge_lines(asked.csv, made.lines, digits=SHORT_NUMBER_FORMAT)
    if asked.save:
        asked.save.parent.mkdir(parents=True, exist_ok=True)
        asked.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
