"""Sensitivity of continual graph learning on skeletons (Wei et al. 2024): tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.recipes import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.papers import cgl_figures as figures
from engram.reproduce.papers.base import Paper
from engram.reproduce.papers.cgl_preset import (
    EMBEDDED,
    GRIDS,
    PAPER,
    TASKS,
    UCLA,
    Preset,
    beta_acts,
    class_orders,
    grid,
    in_orders,
    recipe,
    task_orders,
)
from engram.reproduce.table import SPLIT, VARIANT, Entry, Floats, Measure

if TYPE_CHECKING:
    from engram.records import Result
    from engram.streams.core import Stream

TITLES = {
    "1": "sequences, joints, classes and tasks of the two data sets",
    "2": "order sensitivity: AOPD and MOPD of tasks and classes",
    "3": "best parameters of each method, found on validation rows",
    "4": "widths and depths of the architecture study",
    "5": "parameters that were tried",
    "fig1": "accuracy of every class under all orders",
    "fig3": "accuracy against forgetting, all task orders, GCN",
    "fig4": "accuracy against forgetting, task orders, ST-GCN",
    "fig5": "accuracy against forgetting, task and class orders, GCN",
    "fig6": "accuracy against forgetting, task and class orders, ST-GCN",
    "fig7": "accuracy and forgetting over the width of the GCN",
    "fig8": "accuracy and forgetting over the depth of the GCN",
}
WITHOUT_DATA = ("4", "5")
POINTS = 3.0  # tolerance in percent
TASK_ORDER = "task-order"
PLAIN = ("BARE", "REPLAY")  # methods without details that text and code tell differently


def _reasons(preset: Preset, dataset: str, method: str) -> tuple[str, ...]:
    return preset.reasons(dataset, SPLIT, *(() if method in PLAIN else (VARIANT,)))


# -- table 1 ---------------------------------------------------------------------------------------
def _counted(preset: Preset, cell: Cell) -> Entry:
    """Numbers of the data itself; nothing is trained."""
    counts: dict[str, Callable[[Stream], float]] = {
        "n_action_sequences": lambda stream: len(stream.data),
        "n_joints": lambda stream: stream.data.sample_shape[2],
        "n_classes": lambda stream: len(stream.order),
        "n_tasks": lambda stream: len(stream),
        # the table prints whole numbers: 1484 / 5 as 297, 6667 / 5 as 1333
        "avg_sequences_per_task": lambda stream: round(len(stream.data) / len(stream)),
        "frames_per_sequence": lambda stream: stream.data.sample_shape[1],
    }
    made = recipe(preset, cell["dataset"], "BARE")
    return Entry(
        counted=(made, counts[cell["metric"]]), tolerance=0.0,
        reasons=preset.reasons(cell["dataset"]),
    )  # fmt: skip


# -- table 2 ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Study:
    """The runs of one method on one data set."""

    tasks: tuple[Recipe, ...]  # one per task order
    classes: tuple[Recipe, ...]  # one per class order; task orders are not among them

    @property
    def all(self) -> tuple[Recipe, ...]:
        """The aggregated study: a task order is a class order, too."""
        orders = {one.order for one in self.tasks}
        return (*self.tasks, *(one for one in self.classes if one.order not in orders))


def study(preset: Preset, dataset: str, method: str) -> Study:
    """All task orders and the random class orders of a method, GCN.

    Examples
    --------
    >>> made = study(PAPER, "UCLA-CIL", "EWC")
    >>> len(made.tasks), len(made.all), len(made.tasks[0].seeds)
    (120, 220, 5)
    """
    base, seed = recipe(preset, dataset, method), preset.order_seed
    return Study(
        in_orders(base, task_orders(preset.task_orders, seed)),
        in_orders(base, class_orders(preset.class_orders, seed)),
    )


class Sensitivity:
    """Entries of table 2; the runs of a method are named once and shared by its cells."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self._study = lru_cache(lambda dataset, method: study(preset, dataset, method))
        self._measures = lru_cache(self._both)

    def entry(self, cell: Cell) -> Entry:
        dataset, method = cell["dataset"], cell["method"]
        recipes, both = self._measures(dataset, method, cell["setting"] == TASK_ORDER)
        return Entry(
            recipes=recipes, tolerance=POINTS, reasons=_reasons(self.preset, dataset, method),
            measure=both[cell["metric"].lower()],
        )  # fmt: skip

    def _both(
        self, dataset: str, method: str, by_task: bool
    ) -> tuple[tuple[Recipe, ...], dict[str, Measure]]:
        """The runs of two cells and their measures, which share their work."""
        made = self._study(dataset, method)
        recipes = made.tasks if by_task else made.all
        units = TASKS if by_task else [(c,) for task in TASKS for c in task]
        return recipes, measures.order_disparities(recipes, units)


# -- table 3 ---------------------------------------------------------------------------------------
def _searched(preset: Preset, cell: Cell) -> Entry:
    """The value of one parameter at the point of the grid with the best validation accuracy."""
    dataset, method, name = cell["dataset"], cell["method"], cell["metric"]
    if name == "beta" and not beta_acts(preset):
        return Entry(missing="beta's term is off, as in the base code, so all values are alike")
    points = grid(preset, dataset, method)
    return Entry(
        recipes=tuple(points.values()), tolerance=0.0, reasons=_reasons(preset, dataset, method),
        measure=best_value(points, list(GRIDS[method]).index(name)),
    )  # fmt: skip


def best_value(points: dict[tuple[float, ...], Recipe], place: int) -> Measure:
    """The coordinate `place` of the point with the highest accuracy, the first of equals.

    Accuracy is averaged over seeds; NaN while some point is not finished.
    """

    def measure(result: Result) -> Floats:
        of_point = [
            measures.metric("average_accuracy", made, head="single")(result).mean()
            for made in points.values()
        ]
        if np.isnan(of_point).any():
            return np.array([np.nan])
        return np.array([list(points)[int(np.argmax(of_point))][place]], np.float64)

    return measure


# -- tables 4 and 5 --------------------------------------------------------------------------------
def _architecture(preset: Preset, cell: Cell) -> Entry:
    """Width or depth of our network when it is built for a point of the study."""
    from engram.models import build as build_model

    axis, place = cell["metric"], int(cell["stage"]) - 1
    points = preset.widths if axis == "width" else preset.depths
    if place >= len(points):
        return Entry(missing=f"the preset has {len(points)} values of {axis}")
    spec = figures.architecture(preset, UCLA, axis, points[place])
    net = build_model(spec, sample_shape=(3, 52, 20), classes=10, seed=0)
    layers: Any = net.get_submodule("backbone.layers")
    sizes = {"width": layers[0].linear.out_features, "depth": len(layers)}
    return Entry(measure=measures.constant(float(sizes[axis])), tolerance=0.0)


def _tried(cell: Cell) -> Entry:
    values, place = GRIDS[cell["method"]].get(cell["metric"], ()), int(cell["stage"]) - 1
    if place >= len(values):
        return Entry(missing=f"our grid has {len(values)} values of {cell['metric']}")
    return Entry(measure=measures.constant(float(values[place])), tolerance=0.0)


TABLES = Paper(
    name="cgl", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "1": lambda preset: lambda cell: _counted(preset, cell),
        "2": lambda preset: Sensitivity(preset).entry,
        "3": lambda preset: lambda cell: _searched(preset, cell),
        "4": lambda preset: lambda cell: _architecture(preset, cell),
        "5": lambda preset: _tried,
    },
    figures=figures.build, without_data=WITHOUT_DATA,
)  # fmt: skip
