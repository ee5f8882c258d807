"""A model that keeps learning for twelve weeks: predictions, late labels, a gate, a way back.

    python examples/twelve_weeks.py weeks

A belt sorts fruit by what a scale and a camera say. Each week rows are predicted, their labels
come at the end of the week, and the model learns them if the gate lets it. In week 4 plums appear;
in week 7 a new scale shows more; in week 9 labels are shuffled, which the gate stops; in week 10
lemons are called pears and the gate is passed over, which is taken back at the end of week 11.

    weeks/fruit           the store: versions, what was refused, what was predicted
    weeks/monitor.html    accuracy, drift, alarms, calibration, forgetting, on one page
    weeks/figures/*.svg   the same figures, if there is a Chrome or Chromium
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import engram
from engram.report.monitor_page import build_monitor_page, monitor_sections
from engram.report.static_images import ChromiumNotFound, write_section_images

WEEK = 7 * 86_400
ROWS = 240  # in a week
PLUMS, NEW_SCALE, SHUFFLED, MISTAKEN = 4, 7, 9, 10
FRUIT = {  # mean weight, length and firmness, and how often each colour
    "apple": (150, 7.0, 7.0, {"green": 0.4, "red": 0.6}),
    "lemon": (110, 8.5, 8.0, {"yellow": 0.9, "green": 0.1}),
    "pear": (180, 9.5, 5.0, {"green": 0.7, "yellow": 0.3}),
    "plum": (50, 4.5, 3.5, {"red": 0.8, "green": 0.2}),
}


def make_week(week: int, rows: int = ROWS) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of a week, and what they really are; week 0 is what the model begins with."""
    rng = np.random.default_rng([2026, week])
    kinds = list(FRUIT) if week >= PLUMS else list(FRUIT)[:3]
    y = rng.permutation(np.resize(kinds, rows))
    means = np.array([FRUIT[kind][:3] for kind in y])
    weight, length, firmness = (means * (1 + 0.11 * rng.normal(size=means.shape))).T
    colours = [rng.choice([*FRUIT[kind][3]], p=[*FRUIT[kind][3].values()]) for kind in y]
    if week >= NEW_SCALE:
        weight = 1.2 * weight
    firmness = np.where(rng.random(rows) < 0.05, np.nan, firmness)  # the probe sometimes fails
    return pd.DataFrame(
        {"weight": weight, "length": length, "firmness": firmness, "colour": colours}
    ), y


def labels_of(week: int, y: np.ndarray) -> np.ndarray:
    """What the sorters wrote down."""
    if week == SHUFFLED:
        return np.random.default_rng(week).permutation(y)
    if week == MISTAKEN:
        return np.where(y == "lemon", "pear", y)
    return y


class Week(NamedTuple):
    """What came of a week."""

    week: int
    accuracy: float  # of its predictions, by what the fruit really were
    alarms: float  # share of rows
    asked: int  # version that predicted
    learnt: int  # version that its rows led to
    accepted: bool
    reason: str


def begin(folder: Path) -> engram.ModelStore:
    """Train the first version, and make the store."""
    rows, y = make_week(0, 3 * ROWS)
    learner = engram.Learner(
        "ER", {"name": "mlp", "hidden": [32]}, memory=300, calibration=60, epochs=20, lr=0.02,
        batch_size=32, detectors=["Mahalanobis"], device="cpu",
    )  # fmt: skip
    learner.learn(rows, y, missing="mean")
    store = engram.ModelStore.create(folder, learner, note="the beginning")
    store.monitor.record_learning(store, rows, y, time=0)
    return store


def pass_week(store: engram.ModelStore, week: int) -> Week:
    """Predict, get the labels, learn; the time is that of the week."""
    rows, y = make_week(week)
    monitor, start = store.monitor, (week - 1) * WEEK
    said = monitor.predict(store, rows, time=start + 60)  # served while the week lasts
    asked = store.current.number
    labels = labels_of(week, y)
    monitor.label(said["id"], labels, time=start + WEEK - 60)
    if week == MISTAKEN + 1:  # the accuracy has fallen: the mistake is found, and taken back
        store.rollback(store.current.parent)
        seen = monitor.observations()
        ids = seen.loc[seen["period"] == MISTAKEN, "id"]
        monitor.label(ids, make_week(MISTAKEN)[1], time=start + WEEK - 50)
    version = store.learn(rows, labels, note=f"week {week}", check=week != MISTAKEN)
    if version.accepted:
        monitor.record_learning(store, rows, labels, time=start + WEEK - 40)
    else:  # somebody looks again at the fruit
        monitor.label(said["id"], y, time=start + WEEK - 30)
        store.learn(rows, y, note=f"week {week}, again")
        monitor.record_learning(store, rows, y, time=start + WEEK - 20)
    return Week(
        week, float((said["label"] == y).mean()), float(said["alarm"].mean()), asked,
        version.number, version.accepted, version.reason,
    )  # fmt: skip


def draw(store: engram.ModelStore, folder: Path) -> list[Path]:
    """Write the page, and its figures as SVG where there is a browser to draw them."""
    page = build_monitor_page(store.monitor, folder / "monitor.html", title="Twelve weeks of fruit")
    sections, _ = monitor_sections(store.monitor)
    try:
        return [page, *write_section_images(sections, folder / "figures", formats=["svg"])]
    except ChromiumNotFound:
        return [page]


def main(folder: Path) -> str:
    """Pass twelve weeks, and tell of each."""
    store = begin(folder / "fruit")
    weeks = [pass_week(store, week) for week in range(1, 13)]
    columns = ["number", "parent", "state", "before", "after", "note"]
    drift = store.monitor.drift()
    tables = pd.DataFrame(weeks), store.versions()[columns], drift[drift["drift"]]
    files = draw(store, folder)
    return "\n\n".join([*(one.to_string(index=False) for one in tables), *map(str, files)])


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1] if len(sys.argv) > 1 else "weeks")) + "\n")
