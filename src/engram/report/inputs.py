"""What a report is made of: plain tables and dictionaries, wherever they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import pandas as pd

from engram.errors import bad

if TYPE_CHECKING:
    from engram.records import Result

COLUMNS: tuple[str, ...] = (
    "recipe", "label", "seed", "order", "stage", "step", "task", "cls", "head", "metric", "value",
)  # fmt: skip

REPRODUCTION_COLUMNS: tuple[str, ...] = (
    "paper", "table", "cell", "metric", "paper_value", "ours", "difference", "low", "high",
    "verdict", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class ReportInput:
    """Everything a report shows.

    Parameters
    ----------
    frame
        Long table of results, one number per row, with the columns of `COLUMNS`.
    recipes
        Recipe id to the recipe as a plain nested dictionary.
    environment, ledger
        What the runs were made with, and what they read and kept.
    problems
        Complaints of whoever read the records; they are shown at the top.
    reproductions
        Paper-against-ours tables with the columns of `REPRODUCTION_COLUMNS`.

    Examples
    --------
    >>> ReportInput(pd.DataFrame(columns=list(COLUMNS))).problems
    []
    >>> ReportInput(pd.DataFrame({"label": ["ER"], "value": [0.5]}))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: frame: expected the columns recipe, label, ... got a table without
    recipe, seed, order, stage, step, task, cls, head, metric
    """

    frame: pd.DataFrame
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reproductions: list[pd.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        _require("frame", self.frame, COLUMNS)
        for number, table in enumerate(self.reproductions):
            _require(f"reproductions[{number}]", table, REPRODUCTION_COLUMNS)


def from_directories(*directories: str | PathLike[str]) -> ReportInput:
    """Everything that run directories hold.

    Examples
    --------
    >>> import tempfile
    >>> from engram.records import Rows, RunDirectory
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> folder = RunDirectory(tempfile.mkdtemp())
    >>> part = folder.append(rows)
    >>> from_directories(folder.path).frame["label"].tolist()
    ['ER']
    """
    from engram.records import read

    return from_result(read(*directories))


def from_result(result: Result, *, reproductions: Iterable[pd.DataFrame] = ()) -> ReportInput:
    """The input of a report about a `Result`."""
    return ReportInput(
        result.frame(),
        recipes=result.recipes,
        environment=_environment(result.environment),
        ledger={str(d.get("part", i)): _without(d, "part") for i, d in enumerate(result.ledger)},
        problems=[str(problem) for problem in result.problems],
        reproductions=list(reproductions),
    )


def _without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def _environment(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Each environment once: every writer leaves one, and most say the same."""
    distinct: list[dict[str, Any]] = []
    for document in documents:
        facts = _without(document, "part", "timings")
        if facts not in distinct:
            distinct.append(facts)
    if len(distinct) == 1:
        return distinct[0]
    return {f"environment {i + 1}": facts for i, facts in enumerate(distinct)}


def _require(argument: str, table: object, columns: Iterable[str]) -> None:
    if not isinstance(table, pd.DataFrame):
        raise bad(argument, "a pandas DataFrame", type(table).__name__)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        problem = bad(argument, f"the columns {', '.join(columns)}", None)
        raise type(problem)(
            str(problem).removesuffix("None") + f"a table without {', '.join(missing)}"
        )
