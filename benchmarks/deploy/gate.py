"""Good and bad weeks at the gate of a `ModelStore`: digits, ten seeds, four weeks each.

``python -m benchmarks.deploy.gate`` writes ``gate.csv`` beside this file. A store begins with six
digits. Every week brings rows of the known ones; the second and the fourth week, new ones too.
Each week is offered once as it is, and before that in five bad forms. The accuracy of what is
served is measured on test rows that the store never sees. A store without a gate shows what bad
weeks would do; they are rolled back there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import engram

FIRST, PER_WEEK, WEEKS, TEST = 6, 14, 4, 0.25
NEW = {1: (6, 7), 3: (8, 9)}  # digits that begin in a week
SEEDS = 10
Rows = tuple[Any, Any]


def make_learner(seed: int) -> engram.Learner:
    """The learner that stores begin with."""
    return engram.Learner(
        "ER", {"name": "mlp", "hidden": [100]}, memory=500, epochs=15, calibration=40,
        batch_size=32, optimizer="adam", lr=0.003, device="cpu", seed=seed,
    )  # fmt: skip


def make_weeks(seed: int) -> tuple[list[Rows], Rows]:
    """Rows of the beginning and of each week, and the test rows of all digits."""
    data, rng = engram.load("digits"), np.random.default_rng(seed)
    x, y = np.float32(data.x.numpy().reshape(len(data), -1) / 255), data.labels.numpy()
    order = rng.permutation(len(y))
    test, train = np.split(order, [round(TEST * len(y))])
    queues = {c: list(train[y[train] == c]) for c in range(10)}

    def take(counts: dict[int, int]) -> Rows:
        rows = [row for c, n in counts.items() for row in (queues[c].pop() for _ in range(n))]
        return x[rows], y[rows]

    parts, known = [take(dict.fromkeys(range(FIRST), 60))], list(range(FIRST))
    for week in range(WEEKS):
        counts = dict.fromkeys(known, PER_WEEK)
        counts |= dict.fromkeys(NEW.get(week, ()), 60)
        known += NEW.get(week, ())
        parts.append(take(counts))
    return parts, (x[test], y[test])


# -- bad weeks -------------------------------------------------------------------------------------
def shuffle_labels(x: Any, y: Any, rng: Any, week: int) -> dict[str, Any]:
    """Labels in another order."""
    return {"x": x, "y": rng.permutation(y)}


def mislabel_class(x: Any, y: Any, rng: Any, week: int) -> dict[str, Any]:
    """All rows of one class with the label of another."""
    wrong, other = rng.choice(np.unique(y), 2, replace=False)
    return {"x": x, "y": np.where(y == wrong, other, y)}


def scale_columns(x: Any, y: Any, rng: Any, week: int) -> dict[str, Any]:
    """Half of the columns in other units."""
    half = rng.permutation(x.shape[1]) < x.shape[1] // 2
    return {"x": np.where(half, x * (10.0, 0.1)[week % 2], x).astype(np.float32), "y": y}


def repeat_rows(x: Any, y: Any, rng: Any, week: int) -> dict[str, Any]:
    """Rows of one class twenty times each."""
    often = np.where(y == rng.choice(np.unique(y)), 20, 1)
    return {"x": x.repeat(often, 0), "y": y.repeat(often)}


def empty_class(x: Any, y: Any, rng: Any, week: int) -> dict[str, Any]:
    """A class without rows, or with rows in which there is nothing."""
    if week % 2:
        return {"x": x, "y": y, "classes": [*np.unique(y), 99]}
    blank = np.zeros((30, x.shape[1]), np.float32)
    return {"x": np.concatenate([x, blank]), "y": np.concatenate([y, [99] * 30])}


BAD: dict[str, Callable[[Any, Any, Any, int], dict[str, Any]]] = {
    "shuffled": shuffle_labels, "one class mislabelled": mislabel_class,
    "columns scaled": scale_columns, "rows repeated": repeat_rows, "empty class": empty_class,
}  # fmt: skip


def one_seed(seed: int, gate: engram.Gate | None = engram.Gate()) -> Iterator[dict[str, Any]]:  # noqa: B008
    """Offer all weeks of a seed to a store, the bad forms of each first."""
    parts, (test_x, test_y) = make_weeks(seed)
    rng = np.random.default_rng([seed, 1])
    with tempfile.TemporaryDirectory() as folder:
        begun = make_learner(seed).learn(*parts[0])
        store = engram.ModelStore.create(Path(folder) / "store", begun, gate=gate)

        def accuracy(known: Any) -> float:
            rows = np.isin(test_y, known)
            return float((store.learner.predict(test_x[rows]) == test_y[rows]).mean())

        for week, (x, y) in enumerate(parts[1:]):
            for kind in (*BAD, "good"):
                given = {"x": x, "y": y} if kind == "good" else BAD[kind](x, y, rng, week)
                known, before = store.learner.classes_, accuracy(store.learner.classes_)
                version = store.learn(**given)
                after = accuracy(known)
                failed = [one.rule for one in version.checks if not one.passed]
                kept = version.metrics.get("kept", {})
                yield {
                    "gate": "none" if gate is None else "default", "seed": seed,
                    "week": week + 1, "kind": kind, "rows": len(given["y"]),
                    "new_classes": len(set(given["y"]) - set(known)),
                    "accepted": version.accepted, "rules": ", ".join(failed),
                    "served_before": before, "served_after": after,
                    "kept_rows": kept.get("rows"), "fall_at_most": kept.get("fall_at_most"),
                    "kept_before": kept.get("before"), "kept_after": kept.get("after"),
                }  # fmt: skip
                if version.accepted and kind != "good":
                    store.rollback(version.parent)


def summary(lines: pd.DataFrame) -> pd.DataFrame:
    """Weeks accepted by kind, and the largest fall in the accuracy of what is served."""
    lines = lines.assign(fall=lines.served_before - lines.served_after)
    found = lines.groupby(["gate", "kind"], sort=False).agg(
        weeks=("accepted", "size"), accepted=("accepted", "sum"), largest_fall=("fall", "max")
    )
    return found.round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    asked = parser.parse_args()
    lines = pd.DataFrame([
        line for gate in (engram.Gate(), None) for seed in range(asked.seeds)
        for line in one_seed(seed, gate)
    ])  # fmt: skip
    lines.to_csv(asked.out, index=False, float_format="%.4f")
    print(summary(lines).to_string())


if __name__ == "__main__":
    main()
