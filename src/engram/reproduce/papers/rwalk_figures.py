"""Figures 2 to 6 of the RWalk paper: their runs, numbers and drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.recipes import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import cells_of
from engram.reproduce.papers.drawing import LEVELS, curves, frame, spread
from engram.reproduce.papers.rwalk_drawings import draw_grid, draw_plane, draw_task_level
from engram.reproduce.papers.rwalk_preset import HEAD, MULTI, SINGLE, Preset
from engram.reproduce.papers.rwalk_rows import Row, recipe, reference
from engram.reproduce.table import Floats, PaperFigure

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result

REGULARISED = ("EWC", "PI", "RWalk")
POLICIES = {"random": "uniform", "plane": "plane distance", "entropy": "entropy",
            "herding": "mean of features"}  # fmt: skip
PANELS = (
    (MULTI, False, ("Vanilla", *REGULARISED)),
    (SINGLE, False, ("Vanilla", "EWC", "PI", "iCaRL-hb1", "iCaRL")),
    (SINGLE, True, ("Vanilla", *REGULARISED)),
)


def build(name: str, preset: Preset) -> PaperFigure:
    """A figure by its name, fig2 to fig6."""
    makers: dict[str, Callable[[Preset], PaperFigure]] = {
        "fig2": lambda p: _task_level(p, "fig2", "MNIST"),
        "fig3": _plane,
        "fig4": _sizes,
        "fig5": _policies,
        "fig6": lambda p: _task_level(p, "fig6", "CIFAR-100"),
    }
    return makers[name](preset)


def datasets(preset: Preset) -> list[str]:
    """The data sets of a preset, as the paper names them."""
    return ["MNIST", *(["CIFAR-100"] if preset.cifar is not None else [])]


def strength(dataset: str, setting: str, method: str, samples: bool) -> float:
    """The strength of table 1 for a row.

    Examples
    --------
    >>> strength("CIFAR-100", "single-head", "EWC", True)
    1500000.0
    """
    names = {f"{method}-S", method} if samples else {method}
    found = [
        cell["params"] for cell in cells_of("rwalk", "1")
        if cell["dataset"] == dataset and cell["setting"] == setting and cell["method"] in names
    ]  # fmt: skip
    value = found[-1].partition("=")[2] if found else ""
    return float(value) if value else 0.0


def _row(dataset: str, setting: str, method: str, samples: bool, **more: Any) -> Row:
    return Row(
        dataset=dataset, setting=setting, method=method, samples=samples or "iCaRL" in method,
        strength=strength(dataset, setting, method, samples), **more,
    )  # fmt: skip


def _key(dataset: str, setting: str, method: str, samples: bool) -> dict[str, str]:
    """What a row is called in table 1."""
    marked = samples and method != "RWalk" and "iCaRL" not in method
    return {"dataset": dataset, "setting": setting, "method": method + "-S" * marked}


def _average(made: Recipe, result: Result, head: str) -> Floats:
    values = measures.metric("average_accuracy", made, head=head)(result)
    return values[~np.isnan(values)]


# -- figures 2 and 6: every task over time ---------------------------------------------------------
def _task_level(preset: Preset, name: str, dataset: str) -> PaperFigure:
    instead = "" if dataset in datasets(preset) else f", in place of {dataset}"
    dataset = "MNIST" if instead else dataset
    rows = {
        (setting, samples, method): recipe(preset, _row(dataset, setting, method, samples))
        for setting, samples, methods in PANELS
        for method in methods
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (setting, samples, method), made in rows.items():
            panel = f"{setting}{', samples' if samples else ''}"
            records += curves(result, made, HEAD[setting], {"panel": panel, "method": method})
        return frame(records, LEVELS)

    return PaperFigure(
        name=name, title=f"Accuracy of every task over time, {preset.shown(dataset)}{instead}",
        recipes=tuple(rows.values()), data=data, draw=draw_task_level,
        rows=tuple(_key(dataset, setting, method, samples) for setting, samples, method in rows),
    )  # fmt: skip


# -- figure 3: forgetting against intransigence ----------------------------------------------------
def _plane(preset: Preset) -> PaperFigure:
    rows: dict[tuple[str, str], Recipe] = {}
    joint = {dataset: reference(preset, dataset, SINGLE) for dataset in datasets(preset)}
    for dataset in joint:
        for _, samples, methods in PANELS[1:]:
            for method in methods:
                name = _key(dataset, SINGLE, method, samples)["method"]
                rows[dataset, name] = recipe(preset, _row(dataset, SINGLE, method, samples))

    def data(result: Result) -> pd.DataFrame:
        records = []
        for (dataset, name), made in rows.items():
            lost = measures.metric("forgetting", made, head="single")(result)
            stiff = measures.intransigence(made, joint[dataset], head="single")(result)
            shown = preset.shown(dataset)
            both = ~np.isnan(lost) & ~np.isnan(stiff)
            if both.any():
                records.append({
                    "dataset": shown, "method": name, "source": "ours",
                    "forgetting": float(lost[both].mean()), "forgetting_std": spread(lost[both]),
                    "intransigence": float(stiff[both].mean()),
                    "intransigence_std": spread(stiff[both]),
                })  # fmt: skip
            printed = _printed(dataset, name) if shown == dataset else {}
            if both.any() and printed:
                records.append({"dataset": shown, "method": name, "source": "paper", **printed})
        return frame(records, ("dataset", "method", "source", "forgetting", "forgetting_std",
                                "intransigence", "intransigence_std"))  # fmt: skip

    return PaperFigure(
        name="fig3", title="Forgetting against intransigence, single-head",
        recipes=(*rows.values(), *joint.values()), data=data, draw=draw_plane,
        rows=(
            *({"dataset": dataset, "setting": SINGLE, "method": name} for dataset, name in rows),
            *({} for _ in joint),
        ),
    )  # fmt: skip


def _printed(dataset: str, method: str) -> dict[str, float]:
    names = {"F": "forgetting", "I": "intransigence"}
    return {
        names[cell["metric"]]: cell.value
        for cell in cells_of("rwalk", "1")
        if (cell["dataset"], cell["setting"], cell["method"]) == (dataset, SINGLE, method)
        and cell["metric"] in names
    }


# -- figures 4 and 5: how many samples, and which --------------------------------------------------
def _grid(
    preset: Preset, name: str, title: str, axis: str, points: Callable[[str], Mapping[Any, Any]]
) -> PaperFigure:
    """Rows with samples over one axis; `points` gives the fields of a row by value of the axis."""
    rows = {
        (dataset, method, value): recipe(preset, _row(dataset, SINGLE, method, True, **fields))
        for dataset in datasets(preset)
        for method in ("Vanilla", *REGULARISED)
        for value, fields in points(dataset).items()
    }

    def data(result: Result) -> pd.DataFrame:
        records = []
        for (dataset, method, value), made in rows.items():
            found = _average(made, result, "single")
            if len(found):
                records.append({
                    "dataset": preset.shown(dataset), "method": method, axis: value,
                    "accuracy": float(found.mean()), "std": spread(found),
                })  # fmt: skip
        return frame(records, ("dataset", "method", axis, "accuracy", "std"))

    return PaperFigure(
        name=name, title=title, recipes=tuple(rows.values()), data=data,
        draw=lambda table: draw_grid(table, axis),
        rows=tuple(
            {**_key(dataset, SINGLE, method, True), axis: str(value)}
            for dataset, method, value in rows
        ),
    )  # fmt: skip


def _sizes(preset: Preset) -> PaperFigure:
    def points(dataset: str) -> dict[Any, Any]:
        sizes = preset.protocol(dataset).samples
        return {size: {"per_class": size, "policy": "random"} for size in sizes}

    title = "Accuracy over the number of samples per class, uniform sampling"
    return _grid(preset, "fig4", title, "samples", points)


def _policies(preset: Preset) -> PaperFigure:
    def points(dataset: str) -> dict[Any, Any]:
        return {name: {"policy": policy} for policy, name in POLICIES.items()}

    return _grid(preset, "fig5", "Accuracy by sampling strategy", "strategy", points)
