"""Choices that Engram makes for the user, as ratios of CPU time on one thread.

    python -m benchmarks.speed.choices [gem modes] [--repeats 3] [--out FILE.json]

`gem`: MNIST (or noise of its shape) in five tasks of two digits, the default of GEM over
finetuning. `modes`: 32 runs on digits, lockstep over one by one as whole runs, and what the
measurement of their first steps says; its share of the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.__main__ import images
from engram import class_incremental, load, methods
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training

MODELS: dict[str, Any] = {
    "MLP": "mlp",
    "MLP, 32 units": {"name": "mlp", "hidden": [32]},
    "slim ResNet-18, 2 channels": {"name": "resnet18_slim", "nf": 2},
}


def cpu_seconds(runs: list[Run], together: bool) -> float:
    engine = Engine(runs, device="cpu", together=together)
    began = time.process_time()
    for _ in engine.stages():
        pass
    return time.process_time() - began


def gem(repeats: int) -> Iterator[dict[str, Any]]:
    """GEM's default over finetuning."""
    stream = class_incremental(images(), classes_per_task=2)
    ratios = []
    for _ in range(repeats):
        base, gem = (
            cpu_seconds([Run(stream=stream, method=one, training=Training(batch_size=64))], False)
            for one in (methods.Finetune(), methods.GEM())
        )
        ratios.append(gem / base)
    yield {"what": "GEM over Finetune", "ratio": round(statistics.median(ratios), 2)}


def modes(repeats: int) -> Iterator[dict[str, Any]]:
    """Lockstep over one by one: whole runs, and as measured."""
    stream, training = class_incremental(load("digits")), Training(batch_size=64, epochs=17)
    for name, model in MODELS.items():
        runs = [
            Run(stream=stream, method=methods.Finetune(), model=model, training=training, seed=seed)
            for seed in range(32)
        ]
        whole, told, shares, mapped = [], [], [], []
        for _ in range(repeats):
            alone = cpu_seconds(runs, False)
            whole.append(cpu_seconds(runs, True) / alone)
            grouping, began = Engine(runs, device="cpu"), time.process_time()
            (found,) = grouping.measure_modes()
            shares.append((time.process_time() - began) / alone)
            told.append(found.ratio)
            mapped.append(found.mapped)
        yield {
            "what": name, "lockstep_over_alone": round(statistics.median(whole), 3),
            "measured": [round(one, 3) for one in told], "lockstep_chosen": mapped,
            "share_of_measurement": round(statistics.median(shares), 3),
        }  # fmt: skip


PARTS = {"gem": gem, "modes": modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for part in given.parts:
        for row in PARTS[part](given.repeats):
            rows.append(row)
            print(row, flush=True)
    if given.out:
        given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
