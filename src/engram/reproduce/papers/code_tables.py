"""Tables whose reference are runs of a released code base, instead of printed numbers.

``tables/<code base>.yaml`` has the rows of each table: the options that the code base is given and
the recipe that does the same here. ``records/reference/<code base>_results.csv`` has what its code
gave for each seed, as `python -m benchmarks.peers.tables` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from engram.data import Data
from engram.errors import check_float
from engram.experiments import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.papers.paper_base import (
    EntryMaker,
    Paper,
    PaperData,
    PaperPreset,
    check_ints,
)

MNIST = "MNIST"
VIEWS = {"class-IL": "single", "task-IL": "multi"}  # among which classes rows are classified


@dataclass(frozen=True, kw_only=True)
class CodeProtocol:
    """The data of all tables of a code base."""

    data: str

    def on(self, data: Data, name: str) -> CodeProtocol:
        return replace(self, data=name)


@dataclass(frozen=True, kw_only=True)
class CodePreset(PaperPreset[CodeProtocol]):
    """The choices that all tables of a code base share; rows say the others.

    Parameters
    ----------
    seeds
        Repetitions.
    margin
        Percentage points within which two means count as equal.
    """

    parts: ClassVar = {"mnist": MNIST}
    official: ClassVar = {MNIST: "mnist"}

    mnist: CodeProtocol = CodeProtocol(data="mnist")
    seeds: int = 5
    margin: float = 1.5

    def __post_init__(self) -> None:
        check_ints(self, "seeds", low=1)
        check_float("margin", self.margin, open_low=True)


def row_name(row: Mapping[str, Any]) -> str:
    """The name of a row: its method, and what sets it apart from others with it.

    Examples
    --------
    >>> row_name({"method": "ER", "params": "buffer=200"}), row_name({"method": "SGD"})
    ('ER buffer=200', 'SGD')
    """
    return " ".join(filter(None, (row["method"], row.get("params", ""))))


def make_recipe(table: Mapping[str, Any], row: Mapping[str, Any], preset: CodePreset) -> Recipe:
    """The recipe of a row: what the table says, and then what the row does."""
    return Recipe.of({
        "stream": {**table["stream"], "data": preset.mnist.data},
        "model": table["model"],
        "method": row["ours"],
        "training": {**table["training"], **row.get("training", {})},
        "seeds": preset.seeds, "keep": "counts", "label": row_name(row),
    })  # fmt: skip


def _make_entries(table: Mapping[str, Any], preset: CodePreset) -> EntryMaker:
    rows = {row_name(row): row for row in table["rows"]}

    def entry(cell: Cell) -> CellEntry:
        row = rows[row_name(cell.key)]
        recipe = make_recipe(table, row, preset)
        known = filter(None, [row.get("reason", "")])
        return CellEntry(
            recipes=(recipe,),
            measure=measures.metric(
                "average_accuracy", recipe, head=VIEWS[cell["setting"]], percent=True
            ),
            tolerance=preset.margin,
            reasons=preset.reasons(cell["dataset"], *known),
        )

    return entry


def make_paper(name: str) -> Paper[CodePreset]:
    """The tables of a code base."""
    data = PaperData(name)
    tables = data["tables"]
    note = f"Reference: {data['repository']} at {data['commit']}, run on the same rows."

    def entries(title: str) -> Any:
        return lambda preset: _make_entries(tables[title], preset)

    return Paper(
        name=name,
        titles={title: table["title"] for title, table in tables.items()},
        paper=CodePreset(),
        embedded=CodePreset(mnist=CodeProtocol(data="digits"), seeds=2),
        tables={title: entries(title) for title in tables},
        figures=lambda title, preset: (),
        notes=lambda title, preset, embedded: (note,),
    )
