"""Digits, five methods, eight detectors, with a report; and LwF against Finetune over ten seeds.

``python -m benchmarks.novelty.digits`` writes ``digits-seeds.csv`` and ``digits-detectors.csv``
beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pandas as pd

import engram
from engram.report import build, from_directories

METHODS = ("Finetune", "LwF", "MAS", "EWC", "ER")
DETECTORS = ("Softmax", "ODIN", "Mahalanobis", "VAE", "B1", "B2", "Energy", "KNN")
MODEL = {"name": "mlp", "hidden": [64], "head": {"name": "linear", "bias": False}}
METRICS = ("combined_auroc", "recent_auroc", "previous_auroc", "inside_forgotten_detection_error")


def stream() -> engram.Stream:
    return engram.task_incremental(engram.load("digits"), classes_per_task=2, valid=0.2)


def table(result: engram.Result, part: str) -> pd.DataFrame:
    """Lines of the metrics that are kept, stages from 1."""
    found = result.novelty()
    found = found[found["metric"].isin(METRICS)]
    return found.assign(part=part, stage=found["stage"] + 1).round(4)


def eight_detectors(epochs: int) -> tuple[pd.DataFrame, dict[str, float]]:
    """Everything once, into a directory, and the report of it."""
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = engram.run(
            stream(), method=list(METHODS), detectors=list(DETECTORS), model=MODEL, epochs=epochs,
            out=folder, device="cpu",
        )  # fmt: skip
        trained = time.perf_counter() - began
        build(from_directories(folder), Path(folder) / "report.html")
        seconds = time.perf_counter() - began
        found = table(result, "five methods, eight detectors")  # scores are read when asked for
    spent = {"seconds": seconds, "of training and detectors": trained,
             "of the processor": time.process_time() - cpu}  # fmt: skip
    return found, spent


def ten_seeds(epochs: int, seeds: int = 10) -> tuple[pd.DataFrame, list[float]]:
    """P.AUC of Softmax after the fourth task: LwF less Finetune, seed by seed."""
    values = {}
    frames = []
    for name in ("Finetune", "LwF"):
        result = engram.run(
            stream(), method=name, detectors=["Softmax"], seeds=seeds, epochs=epochs,
            device="cpu",
        )  # fmt: skip
        frames.append(table(result, "ten seeds"))
        each = [result.of_runs([run]).novelty() for run in result.runs]
        at = [one[(one["stage"] == 3) & (one["metric"] == "previous_auroc")] for one in each]
        values[name] = [float(one["mean"].item()) for one in at]
    away = [b - a for a, b in zip(values["Finetune"], values["LwF"], strict=True)]
    return pd.concat(frames), away


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=["seeds", "detectors"], help="one of the two parts")
    given = parser.parse_args()
    columns = ["part", "label", "detector", "stage", "metric", "mean", "std", "runs"]
    if given.only != "detectors":
        found, away = ten_seeds(given.epochs, given.seeds)
        mean, higher = sum(away) / len(away), sum(one > 0 for one in away)
        print(
            f"P.AUC of Softmax after task 4, LwF less Finetune: {mean:+.3f}, "
            f"higher in {higher} of {len(away)} seeds"
        )
        found[columns].to_csv(Path(__file__).with_name("digits-seeds.csv"), index=False)
    if given.only != "seeds":
        found, spent = eight_detectors(given.epochs)
        for name, seconds in spent.items():
            print(f"{seconds:8.1f} s {name}")
        found[columns].to_csv(Path(__file__).with_name("digits-detectors.csv"), index=False)


if __name__ == "__main__":
    main()
