"""MNIST task by task, one epoch, batches of 128: what Softmax finds novel, and what forgotten.

``python -m benchmarks.novelty.mnist [--root DIR]`` writes ``mnist.csv`` beside this file: P.AUC and
the detection error of In against Forg of Finetune, LwF and MAS after the fourth of five tasks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import engram

METHODS = ("Finetune", "LwF", "MAS")
METRICS = ("previous_auroc", "inside_forgotten_detection_error")
STAGE = 3  # the last one with a task to come


def measured(root: str | None, seeds: int, **changes: object) -> pd.DataFrame:
    """The two numbers of each method, means over seeds."""
    data = engram.load("mnist", root=root)
    found = engram.run(
        engram.task_incremental(data, classes_per_task=2), method=list(METHODS),
        detectors=["Softmax"], seeds=seeds, epochs=1, batch_size=128, device="cpu", **changes,
    ).novelty()  # fmt: skip
    found = found[(found["stage"] == STAGE) & found["metric"].isin(METRICS)]
    columns = ["label", "detector", "stage", "metric", "mean", "std", "runs"]
    return found.assign(stage=found["stage"] + 1)[columns].round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of data sets (default: ENGRAM_DATA)")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    found = measured(given.root, given.seeds)
    print(found.to_string(index=False))
    found.to_csv(Path(__file__).with_name("mnist.csv"), index=False)


if __name__ == "__main__":
    main()
