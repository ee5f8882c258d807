"""`PaperTable` and `PaperFigure`, and `CellEntry`: how each printed number is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import BadArgument
from engram.records.printed_tables import ORDER_IN_DOUBT
from engram.reproduce.cells import Cell

if TYPE_CHECKING:
    import pandas as pd

    from engram.experiments import Recipe
    from engram.records import Result
    from engram.streams.stream import Stream

Floats = npt.NDArray[np.float64]
Measure = Callable[["Result"], Floats]

# Reasons for differences that are known before anything runs.
EPOCHS_UNSTATED = "epochs unstated"
VARIANT_UNSTATED = (
    "variant"  # the paper leaves details of the method open, or the authors' code differs
)
DATA_SUBSET = "data subset"
OTHER_DATA = "other data"
FEWER_ORDERS = "fewer orders"  # a range over fewer orders can only be smaller
OOD_SET_UNSTATED = "outside set"  # needs data that is not part of the protocol
SPLIT_UNSTATED = "split unstated"  # matters if there are few test rows
COPIES_UNSTATED = "copies unstated"  # how many samples an augmentation adds
DOUBTFUL_CELL = "doubtful cell"
WHOLE_TABLE = "whole table"
# With these nothing follows from a number that is near, nor from one that is not.
NO_COMPARISON = (OTHER_DATA, DATA_SUBSET, FEWER_ORDERS)
DOUBTFUL_ORDER = ORDER_IN_DOUBT  # the paper's numbers may be of another order
REASONS = {
    EPOCHS_UNSTATED: "the paper does not say how long a task is trained",
    VARIANT_UNSTATED: (
        "the paper leaves details of the method open, or its code differs from its text"
    ),
    DATA_SUBSET: "rows of the official data set are missing here",
    FEWER_ORDERS: "a range over fewer orders than the paper's, which can only be smaller",
    OTHER_DATA: "made on other data than the paper's",
    OOD_SET_UNSTATED: "needs a set that is not part of the stream",
    SPLIT_UNSTATED: "the paper does not say which rows it tests on",
    COPIES_UNSTATED: "the paper does not say how many augmented copies of samples it adds",
    WHOLE_TABLE: "no more is known of this row than what is noted for the whole table",
    DOUBTFUL_CELL: "the printed number itself is in doubt",
    DOUBTFUL_ORDER: "the printed numbers look like those of another order of the classes",
}


@dataclass(frozen=True, kw_only=True)
class CellEntry:
    """Recipes and measure behind one cell.

    Parameters
    ----------
    recipes
        The recipes to run, with seeds. Cells share recipes, which are run once. Without recipes
        the number is computed directly.
    measure
        From the Result that holds all runs of the recipes, under their keys, to one value per
        repetition (seed), in the units of the paper; NaN for repetitions that are not finished.
    reasons
        Reasons for a difference that are known beforehand, see `REASONS`, or what else is known of
        the row.
    general
        Reasons that every cell of the table has; they are a note of the table.
    tolerance
        Largest difference that counts as agreement, in the units of the paper.
    missing
        Why the number cannot be made; "" if it can.
    counted
        For numbers of the data itself: a recipe, which is not run, and what to count of its stream.
        The plan puts the number into `measure`.
    tasks
        Number of tasks learnt when it is measured, after which its runs need not go on; 0 for all.
        A stream of other data may have fewer.

    Examples
    --------
    >>> CellEntry(missing="quoted from another paper").recipes
    ()
    """

    recipes: tuple[Recipe, ...] = ()
    measure: Measure | None = None
    reasons: tuple[str, ...] = ()
    tolerance: float = 0.03
    missing: str = ""
    counted: tuple[Recipe, Callable[[Stream], float]] | None = None
    tasks: int = 0
    general: tuple[str, ...] = ()


def stand_in_data(entry: CellEntry) -> str:
    """Return the data that replaces the paper's; "" for the paper's own.

    Examples
    --------
    >>> stand_in_data(CellEntry(missing="quoted from another paper"))
    ''
    """
    recipes = (*entry.recipes, *(entry.counted or ())[:1])
    if OTHER_DATA not in entry.reasons or not recipes:
        return ""
    return str(recipes[0].stream["data"])


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure of a paper: the recipes to run, its numbers, and its drawing.

    `rows` describes each recipe by the keys with which cells are chosen, so that some can be run
    by themselves. A recipe that several rows need stands there once for each. A `partial` figure is
    made of those recipes whose data is there, others of all or none.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...]
    data: Callable[[Result], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Any]  # a plotly figure
    rows: tuple[Mapping[str, str], ...] = ()
    partial: bool = False


def _rank_equally(recipe: Recipe) -> int:
    return 0


def _unknown_entry(cell: Cell) -> CellEntry:
    return CellEntry(missing="nothing is known about how to make it")


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of a paper: its cells, and a function from a cell to its `CellEntry`.

    Parameters
    ----------
    name
        ``paper/table``, such as ``rwalk/1``.
    figures
        Figures drawn from the same runs; a figure of the paper is a table without cells.
    preset
        The preset, with the choices that the paper leaves open.
    settings
        Changed fields of the preset and their values.
    parts
        Fields of the preset that matter for one data set only: field to the data set's name.
    folder
        Name of the run directory, if shared with other tables; "" for its own.
    rank
        Order in which the recipes of a data set are run, lowest first; then by cells.
    """

    name: str
    title: str = ""
    cells: tuple[Cell, ...] = ()
    entry: Callable[[Cell], CellEntry] = _unknown_entry
    figures: tuple[PaperFigure, ...] = ()
    preset: Any = None
    settings: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())
    folder: str = ""
    rank: Callable[[Recipe], int] = _rank_equally

    def settings_of(self, cell: Cell) -> str:
        """Return the changed settings that apply to a cell, as text.

        Examples
        --------
        >>> table = PaperTable(name="x/1", settings={"a.lr": "0.1", "seeds": "3"}, parts={"a": "A"})
        >>> table.settings_of(Cell("x", "1", {"dataset": "B"}, 1.0))
        'seeds=3'
        """
        owners = {key: self.parts.get(key.partition(".")[0]) for key in self.settings}
        own = {k: v for k, v in self.settings.items() if owners[k] in (None, cell["dataset"])}
        return format_settings(own)

    @cached_property
    def general_reasons(self) -> tuple[str, ...]:
        """The reasons that every cell with runs has, in a table of several rows.

        They tell no row from another. Those that decide about the comparison are none of them.
        """
        found: list[tuple[str, ...]] = []
        rows = set()
        for cell in self.cells:
            try:
                entry = self.entry(cell)
            except BadArgument:  # a plan says why
                continue
            if entry.recipes:
                found.append(entry.reasons)
                rows.add(cell.name)
        if len(rows) < 2:
            return ()
        shared = set(found[0]).intersection(*found) - set(NO_COMPARISON)
        return tuple(one for one in found[0] if one in shared)

    @property
    def recipes(self) -> list[Recipe]:
        """List every recipe of the table once; cells that cannot be made have none."""
        every = [r for cell in self.cells for r in self.entry(cell).recipes]
        every += [r for figure in self.figures for r in figure.recipes]
        return list({run_key(recipe): recipe for recipe in every}.values())


def run_key(recipe: Recipe) -> tuple[str, str, tuple[int, ...]]:
    """Return a key that is equal for recipes with the same runs."""
    return recipe.key, recipe.order, recipe.seeds


def format_settings(settings: Mapping[str, str]) -> str:
    """Format settings as text.

    Examples
    --------
    >>> format_settings({"mnist.epochs": "1", "seeds": "3"})
    'mnist.epochs=1; seeds=3'
    """
    return "; ".join(f"{key}={value}" for key, value in settings.items())
