"""False alarms of `Learner.alarm` on digits: five detectors, ten seeds, after each of four tasks.

``python -m benchmarks.novelty.alarms`` writes ``alarms.csv`` beside this file. Every seed divides
all rows anew into test rows and others, so that both come from the same distribution; the last two
classes are never learnt, and their test rows show the power. Detectors keep what they fitted to a
task (``refit="never"``), or are fitted again after every task to the rows of the memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import betabinom, binom

import engram

DETECTORS = ("Softmax", "Energy", "ODIN", "Mahalanobis", "KNN")
TASKS, PER_TASK, TEST, CALIBRATION, RATE = 4, 2, 0.2, 60, 0.05
COVERED = 0.99  # of the bands
CELL = ("refit", "detector", "tasks", "per_class")


def one_seed(seed: int, epochs: int, refit: str) -> list[dict[str, object]]:
    """Counts of one seed: alarms among test rows of known classes, and of classes never learnt."""
    data, rng = engram.load("digits"), np.random.default_rng(seed)
    x, y = data.x.numpy(), data.labels.numpy()
    place, classes = rng.permutation(len(y)), rng.permutation(10)
    test, train = np.split(place, [round(TEST * len(y))])
    learner = engram.Learner(
        "ER", {"name": "mlp", "hidden": [100]}, memory=200, detectors=DETECTORS, epochs=epochs,
        calibration=CALIBRATION, refit=refit, device="cpu", seed=seed,
    )  # fmt: skip
    lines: list[dict[str, object]] = []
    for task in range(TASKS):
        fresh = np.isin(y[train], classes[PER_TASK * task : PER_TASK * (task + 1)])
        learner.learn(x[train[fresh]], y[train[fresh]])
        known = test[np.isin(y[test], classes[: PER_TASK * (task + 1)])]
        never = test[np.isin(y[test], classes[PER_TASK * TASKS :])]
        right = float((learner.predict(x[known]) == y[known]).mean())
        for detector in DETECTORS:
            for per_class in (False, True):
                found = [
                    learner.alarm(x[rows], RATE, detector=detector, per_class=per_class)
                    for rows in (known, never)
                ]
                lines.append({
                    "seed": seed, "refit": refit, "detector": detector, "tasks": task + 1,
                    "per_class": per_class,
                    "rows": len(known), "alarms": int(found[0].alarm.sum()),
                    "novel": len(never), "found": int(found[1].alarm.sum()), "accuracy": right,
                    "calibration": len(learner.snapshot.calibration.y),
                    "auroc": engram.metrics.detection.auroc(-found[0].novelty, -found[1].novelty),
                })  # fmt: skip
    return lines


def summary(lines: pd.DataFrame) -> pd.DataFrame:
    """Rates over all seeds, and whether they are within the bands of the stated rate.

    The binomial band is that of independent rows and an exact threshold. The second band counts
    the chance of calibration rows in, too: alarms of a seed are then beta-binomial.
    """
    rng, found = np.random.default_rng(0), []
    for name, own in lines.groupby(list(CELL), sort=False):
        rows, alarms = int(own["rows"].sum()), int(own["alarms"].sum())
        low, high = binom.interval(COVERED, rows, RATE)
        least = np.floor(RATE * (own["calibration"] + 1)).astype(int)
        drawn = sum(
            betabinom.rvs(n, k, c + 1 - k, size=20_000, random_state=rng)
            for n, k, c in zip(own["rows"], least, own["calibration"], strict=True)
        )
        near, far = np.quantile(drawn, [(1 - COVERED) / 2, (1 + COVERED) / 2])
        found.append({
            **dict(zip(CELL, name, strict=True)),
            "seeds": len(own), "rows": rows, "false_alarms": alarms / rows,
            "binomial_low": low / rows, "binomial_high": high / rows,
            "within_binomial": low <= alarms <= high,
            "low": near / rows, "high": far / rows, "within": near <= alarms <= far,
            "power": own["found"].sum() / own["novel"].sum(), "auroc": own["auroc"].mean(),
            "accuracy": own["accuracy"].mean(), "calibration": own["calibration"].mean(),
        })  # fmt: skip
    return pd.DataFrame(found).round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("alarms.csv"))
    asked = parser.parse_args()
    began = time.perf_counter()
    lines = [
        line
        for refit in ("never", "memory")
        for seed in range(asked.seeds)
        for line in one_seed(seed, asked.epochs, refit)
    ]
    found = summary(pd.DataFrame(lines))
    found.to_csv(asked.out, index=False)
    print(found.to_string())
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
