"""Synthetic long tables: whole experiments without training anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

KEYS = ["recipe", "label", "seed", "order", "stage", "step", "task", "cls", "head", "metric"]


def accuracy_rows(runs: pd.DataFrame, tasks: int, heads: Sequence[str], rng: np.random.Generator):
    """Accuracies that decay with age, the faster the lower a run's `skill`."""
    grid = pd.MultiIndex.from_product(
        [range(tasks), range(tasks), heads], names=["stage", "task", "head"]
    ).to_frame(index=False)
    rows = runs.merge(grid, how="cross")
    age = (rows["stage"] - rows["task"]).to_numpy()
    skill = rows["skill"].to_numpy() + 0.1 * (rows["head"] == "multi").to_numpy()
    value = 0.95 * np.minimum(skill, 0.99) ** np.maximum(age, 0) + rng.normal(0, 0.015, len(rows))
    rows["value"] = np.where(age < 0, 0.02, np.clip(value, 0, 1))
    return rows.assign(metric="accuracy", step=-1, cls=-1)


def step_rows(runs: pd.DataFrame, tasks: int, points: int, rng: np.random.Generator):
    """Accuracies and loss terms logged during training."""
    steps = np.arange(points) * 10 + 9
    grid = pd.MultiIndex.from_product([range(tasks), steps], names=["stage", "step"])
    base = runs.merge(grid.to_frame(index=False), how="cross")
    done = (base["step"] + 1) / (points * 10)
    parts = []
    for task in range(tasks):
        age = base["stage"] + done - task
        value = np.where(
            age <= 0,
            0.0,
            np.where(
                age < 1, 0.95 * age.clip(0, 1) ** 0.3, 0.95 * base["skill"] ** (age - 1).clip(0)
            ),
        )
        parts.append(base.assign(task=task, metric="accuracy", head="single", value=value))
    noise = rng.normal(0, 0.01, len(base))
    loss = 0.1 + 1.5 * np.exp(-3 * done) + noise
    parts.append(base.assign(task=-1, metric="loss/task", head="", value=loss))
    penalty = np.where(base["stage"] > 0, 0.4 * (1 - base["skill"]) * done + 0.01, 0.0)
    parts.append(base.assign(task=-1, metric="loss/penalty", head="", value=penalty))
    return pd.concat(parts).assign(cls=-1)


def stage_rows(runs: pd.DataFrame, tasks: int, classes: int):
    """Costs, predictions and memory counts of each stage."""
    base = runs.merge(pd.DataFrame({"stage": range(tasks)}), how="cross")
    base = base.assign(step=-1, task=-1, cls=-1, head="")
    each = base.merge(pd.DataFrame({"c": range(classes)}), how="cross")
    each = each[each["c"] * tasks // classes <= each["stage"]]
    each = each.assign(cls=each["c"], task=each["c"] * tasks // classes)
    seconds = 20 + 30 * base["skill"] + 0.1 * base["seed"]
    items = np.where(base["skill"] > 0.85, 500.0, 0.0)
    return pd.concat([
        base.assign(metric="seconds", value=seconds),
        base.assign(metric="steps", value=200.0),
        base.assign(metric="parameters", value=269322.0),
        base.assign(metric="memory_items", value=items),
        base.assign(metric="memory_bytes", value=items * 64),
        base.assign(metric="state_bytes", value=np.where(base["skill"] > 0.75, 2e6, 0.0)),
        each.assign(head="single", metric="class_accuracy", value=0.5),
        each.assign(task=-1, head="single", metric="predicted", value=1.0 / classes),
        each[each["skill"] > 0.85].assign(task=-1, metric="memory_count", value=50.0),
    ])  # fmt: skip


def make_frame(
    labels: Sequence[str] = ("Finetune", "EWC strength=5000", "ER", "Joint"),
    *,
    seeds: int = 3,
    orders: Sequence[str] = ("",),
    tasks: int = 5,
    heads: Sequence[str] = ("single", "multi"),
    points: int = 20,
    classes: int = 10,
) -> pd.DataFrame:
    """A long table in which later labels forget less."""
    rng = np.random.default_rng(0)
    skills = np.linspace(0.6, 0.98, len(labels)) if len(labels) > 1 else [0.8]
    ids = [f"{i:012x}" for i in range(len(labels))]
    runs = pd.DataFrame({"label": labels, "skill": skills, "recipe": ids})
    runs = runs.merge(pd.DataFrame({"seed": range(seeds)}), how="cross")
    runs = runs.merge(pd.DataFrame({"order": list(orders)}), how="cross")
    shift = pd.Series({o: 0.06 * np.sin(i) for i, o in enumerate(orders)})
    runs["skill"] = (runs["skill"] + runs["order"].map(shift)).clip(0.3, 0.99)
    parts = [accuracy_rows(runs, tasks, heads, rng)]
    if points:
        parts.append(step_rows(runs, tasks, points, rng))
    if classes:
        parts.append(stage_rows(runs, tasks, classes))
    return pd.concat(parts, ignore_index=True)[[*KEYS, "value"]]


def make_recipes(frame: pd.DataFrame) -> dict[str, dict[str, object]]:
    pairs = frame[["recipe", "label"]].drop_duplicates()
    stream = {"name": "class_incremental", "data": "digits", "head": "single"}
    training = {"epochs": 1, "lr": 0.001}
    return {
        recipe: {"method": {"name": label.split(" ")[0]}, "stream": stream, "training": training}
        for recipe, label in pairs.itertuples(index=False)
    }


@pytest.fixture(scope="session")
def frame_of() -> Callable[..., pd.DataFrame]:
    return make_frame


@pytest.fixture(scope="session")
def recipes_of() -> Callable[[pd.DataFrame], dict[str, dict[str, object]]]:
    return make_recipes
