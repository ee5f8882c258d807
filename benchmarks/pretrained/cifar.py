"""CIFAR-100 in 10 tasks of 10 classes on a frozen EfficientNet-Lite0: closed forms and heads.

    python -m benchmarks.pretrained.cifar --root DIR

Three orders of the classes, each with a seed of its own, all 50,000 training images at 128 pixels.
The frozen network passes over the images once; its features are kept on disk, so that a second
call takes the seconds of training alone. After every stage: the accuracy over the classes learnt so
far (single head) and forgetting. The lines are written into cifar.csv beside this file as they
come. ``Joint``, a head trained on all rows so far, is the bound of the other heads.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import engram
from benchmarks.pretrained.clinc import save
from engram import methods
from engram.memory import Memory

FILE = Path(__file__).with_suffix(".csv")
TASKS, ORDERS, EXEMPLARS = 10, 3, 2000
MODEL = {"name": "efficientnet_lite0", "pretrained": True, "freeze": True, "size": 128}
HEADS = {"epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": 0.001}


def list_methods() -> list[Any]:
    """Nine methods, and the joint head."""
    memory, reservoir = Memory(total=EXEMPLARS), Memory(total=EXEMPLARS, policy="reservoir")
    closed = [methods.NCM(), methods.SLDA(), methods.RanPAC(width=2000), methods.FeCAM()]
    replay = [methods.ER(memory=memory), methods.DERpp(memory=reservoir)]
    return [*closed, *replay, methods.LwF(), methods.EWC(), methods.Finetune(), methods.Joint()]


def measure(data: Any, order: int, made: list[Any]) -> pd.DataFrame:
    """Train methods in one order of the classes; a line for each method and stage."""
    stream = engram.class_incremental(data, classes_per_task=data.n_classes // TASKS, seed=order)
    result = engram.run(
        stream, method=made, seeds=[order], device="cpu", model=MODEL, probes=[], **HEADS
    )
    parts = []
    for name, matrix in zip(result.run_labels, np.asarray(result.matrix), strict=True):
        part = pd.DataFrame({"method": name, "order": order, "tasks": range(1, len(matrix) + 1)})
        # every task has as many test rows
        part["accuracy"] = [row[: stage + 1].mean() for stage, row in enumerate(matrix)]
        part["forgetting"] = [
            float((np.fmax.reduce(matrix[: k + 1, :k]) - matrix[k, :k]).mean()) if k else 0.0
            for k in range(len(matrix))
        ]
        seconds = result.cost().loc[name, "seconds"]
        parts.append(part.assign(seconds=[*[np.nan] * (len(part) - 1), seconds]))
    return pd.concat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--root", required=True, help="directory of CIFAR-100's files")
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--out", type=Path, default=FILE, help="the file of the lines")
    asked = parser.parse_args()
    data = engram.load("cifar100", root=asked.root)
    made = [
        one for one in list_methods() if not asked.methods or type(one).__name__ in asked.methods
    ]
    for order in range(asked.orders):
        start = time.perf_counter()
        save(measure(data, order, made), asked.out)
        print(f"order {order}: {time.perf_counter() - start:.0f} s", flush=True)
    lines = pd.read_csv(asked.out)
    last = lines[lines["tasks"] == TASKS]
    columns = ["accuracy", "forgetting", "seconds"]
    print(last.groupby("method")[columns].agg(["mean", "std"]).round(4).to_string())


if __name__ == "__main__":
    main()
