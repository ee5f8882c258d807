"""All detectors on digits: areas under the ROC curve along a stream, with old and new statistics.

``python -m benchmarks.novelty.detectors`` writes ``detectors.csv`` beside this file. Five tasks of
two classes, ER with 200 exemplars, five seeds: classified test rows of all classes so far against
those of all classes to come. Detectors that fit something keep what they fitted to a task
(``never``), or are fitted again after every task to the rows of the memory.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd

import engram
from engram.novelty import Detector, detectors

LEFT_OUT = ("Tuned", "Wrapped")  # detectors made of others
MODEL = {"name": "mlp", "hidden": [100], "head": {"name": "linear", "bias": False}}


def every_detector() -> list[Detector]:
    """All detectors with their defaults, those that fit something also fitted again."""
    made = [one() for name, one in detectors().items() if name not in LEFT_OUT]
    return made + [replace(one, refit="memory") for one in made if one.fits]


def measured(seeds: int, epochs: int) -> pd.DataFrame:
    """Areas after each of four tasks, mean and deviation over seeds."""
    stream = engram.class_incremental(engram.load("digits"), classes_per_task=2)
    asked = every_detector()
    method = engram.methods.ER(memory=engram.Memory(total=200))
    found = engram.run(
        stream, method=method, model=MODEL, detectors=asked, seeds=seeds, epochs=epochs,
        device="cpu",
    ).novelty()  # fmt: skip
    found = found[(found["metric"] == "combined_auroc") & (found["stage"] < len(stream) - 1)]
    names = {one.name: (type(one).__name__, one.refit if one.fits else "") for one in asked}
    found = found.assign(
        tasks=found["stage"] + 1,
        refit=[names[one][1] for one in found["detector"]],
        detector=[names[one][0] for one in found["detector"]],
    )
    return found[["detector", "refit", "tasks", "mean", "std", "runs"]].round(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    asked = parser.parse_args()
    began = time.perf_counter()
    found = measured(asked.seeds, asked.epochs)
    found.to_csv(Path(__file__).with_name("detectors.csv"), index=False)
    print(found.pivot(index=["detector", "refit"], columns="tasks", values="mean").to_string())
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
