"""Figures 1 and 3 to 8 of the skeleton benchmark: their runs and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.metrics.statistics import std
from engram.recipes import Recipe
from engram.reproduce import measures
from engram.reproduce.papers.cgl_drawings import draw_classes, draw_evolution, draw_scatter
from engram.reproduce.papers.cgl_preset import (
    METHODS,
    NTU,
    UCLA,
    Preset,
    class_orders,
    in_orders,
    recipe,
    task_orders,
)
from engram.reproduce.papers.drawing import frame
from engram.reproduce.table import PaperFigure

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result

HEAD = "single"
ON_STGCN = tuple(m for m in METHODS if m != "TWP")  # TWP reads layers that only the GCN has
KINDS = ("task", "class")  # what an order shuffles


def build(name: str, preset: Preset) -> tuple[PaperFigure, ...]:
    """The figures under a name: one per data set, where there are two."""
    makers: dict[str, Callable[[Preset, str], PaperFigure]] = {
        "fig1": _classes,
        "fig3": lambda p, d: _scatter(p, d, "fig3", "gcn", KINDS[:1]),
        "fig4": lambda p, d: _scatter(p, d, "fig4", "stgcn", KINDS[:1]),
        "fig5": lambda p, d: _scatter(p, d, "fig5", "gcn", KINDS),
        "fig6": lambda p, d: _scatter(p, d, "fig6", "stgcn", KINDS),
        "fig7": lambda p, d: _evolution(p, d, "fig7", "width"),
        "fig8": lambda p, d: _evolution(p, d, "fig8", "depth"),
    }
    both = name in ("fig3", "fig5") and preset.ntu is not None
    return tuple(makers[name](preset, dataset) for dataset in ((UCLA, NTU) if both else (UCLA,)))


def _part(name: str, shown: str) -> str:
    return f"{name}-{shown.partition('-')[0].lower()}"


def orders_of(preset: Preset, model: str) -> dict[str, list[tuple[int, ...]]]:
    """Orders of a study by what they shuffle; a class order that moves whole tasks counts once."""
    small = model == "stgcn"
    tasks = task_orders(
        preset.stgcn_task_orders if small else preset.task_orders, preset.order_seed
    )
    drawn = preset.stgcn_class_orders if small else preset.class_orders
    classes = [o for o in class_orders(drawn, preset.order_seed) if o not in set(tasks)]
    return {"task": tasks, "class": classes}


def _recipes(
    preset: Preset, dataset: str, model: str, kinds: Sequence[str]
) -> dict[tuple[str, str], tuple[Recipe, ...]]:
    """Recipes of a study by method and kind of order."""
    orders = orders_of(preset, model)
    found = {}
    for method in METHODS if model == "gcn" else ON_STGCN:
        if model == "gcn":
            base = recipe(preset, dataset, method)
        else:
            base = recipe(preset, dataset, method, model={"name": "stgcn", **preset.stgcn},
                          seeds=preset.stgcn_seeds, note="ST-GCN")  # fmt: skip
        for kind in kinds:
            found[method, kind] = in_orders(base, orders[kind])
    return found


def _flat(groups: Mapping[Any, Sequence[Recipe]]) -> tuple[Recipe, ...]:
    return tuple(made for group in groups.values() for made in group)


def _keys(
    dataset: str, groups: Mapping[tuple[str, str], Sequence[Recipe]]
) -> tuple[dict[str, str], ...]:
    """What each of the recipes stands for."""
    return tuple(
        {"dataset": dataset, "method": method, "orders": kind}
        for (method, kind), group in groups.items()
        for _ in group
    )


# -- figure 1 --------------------------------------------------------------------------------------
def _classes(preset: Preset, dataset: str) -> PaperFigure:
    groups = _recipes(preset, dataset, "gcn", KINDS)

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, kind), recipes in groups.items():
            runs = measures.runs_of(result, recipes, HEAD)
            if runs is None:
                continue
            mean: Any = runs.class_accuracy().dropna().groupby(level="order").mean()  # over seeds
            long = mean.rename_axis(columns="class").stack().rename("accuracy").reset_index()
            records += long.assign(method=method, orders=kind).to_dict("records")
        return frame(records, ("method", "orders", "order", "class", "accuracy"))

    title = f"Accuracy of every class under all orders, {preset.shown(dataset)}"
    return PaperFigure(
        name="fig1", title=title, recipes=_flat(groups), data=data, draw=draw_classes,
        rows=_keys(dataset, groups),
    )  # fmt: skip


# -- figures 3 to 6 --------------------------------------------------------------------------------
def _scatter(
    preset: Preset, dataset: str, name: str, model: str, kinds: Sequence[str]
) -> PaperFigure:
    groups = _recipes(preset, dataset, model, kinds)

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, kind), recipes in groups.items():
            records += points(result, recipes, {"method": method, "orders": kind})
        return frame(records, POINT_COLUMNS)

    shown, net = preset.shown(dataset), "ST-GCN" if model == "stgcn" else "GCN"
    return PaperFigure(
        name=_part(name, shown), title=f"Accuracy against forgetting, {shown}, {net}",
        recipes=_flat(groups), data=data, draw=draw_scatter, rows=_keys(dataset, groups),
    )  # fmt: skip


POINT_COLUMNS = ("method", "orders", "order", "repetitions", "tasks", "average_accuracy",
                 "forgetting", "bound")  # fmt: skip


def points(
    result: Result, recipes: Sequence[Recipe], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One point per order: means over repetitions of AA, AF and the bound on AF (theorem 1)."""
    import pandas as pd

    runs = measures.runs_of(result, recipes, HEAD)
    if runs is None:
        return []
    metrics = ("average_accuracy", "forgetting", "forgetting_bound")
    table: Any = pd.DataFrame({name: runs.metric(name) for name in metrics})
    table = table.assign(order=[run.order for run in runs.runs], tasks=runs.tasks).dropna()
    groups = table.groupby("order")
    mean = groups.mean().assign(repetitions=groups.size()).astype({"tasks": int})
    mean = mean.rename(columns={"forgetting_bound": "bound"}).reset_index()
    found: list[dict[str, Any]] = mean.assign(**names).to_dict("records")
    return found


# -- figures 7 and 8 -------------------------------------------------------------------------------
def architecture(preset: Preset, dataset: str, axis: str, value: int) -> dict[str, Any]:
    """The GCN of one point of the study; the classification layers stay as they are."""
    edges = preset.protocol(dataset).edges
    return {"name": "gcn", **preset.gcn, "edges": edges, axis: value}


def _evolution(preset: Preset, dataset: str, name: str, axis: str) -> PaperFigure:
    values = preset.widths if axis == "width" else preset.depths
    rows = {
        (method, value): recipe(
            preset, dataset, method, model=architecture(preset, dataset, axis, value),
            seeds=preset.wide_seeds, note=f"{axis} {value}",
        )
        for value in values
        for method in (*METHODS, "JOINT")
    }  # fmt: skip

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, value), made in rows.items():
            for metric in ("average_accuracy", "forgetting"):
                found = measures.metric(metric, made, head=HEAD)(result)
                found = found[~np.isnan(found)]
                if len(found):
                    records.append({
                        "method": method, axis: value, "metric": metric,
                        "value": float(found.mean()), "std": float(std(found, ddof=0)),
                        "repetitions": len(found),
                    })  # fmt: skip
        return frame(records, ("method", axis, "metric", "value", "std", "repetitions"))

    return PaperFigure(
        name=name,
        title=f"Accuracy and forgetting over the {axis} of the GCN, {preset.shown(dataset)}",
        recipes=tuple(rows.values()), data=data, draw=lambda table: draw_evolution(table, axis),
        rows=tuple({"dataset": dataset, "method": m, axis: str(value)} for m, value in rows),
    )  # fmt: skip
