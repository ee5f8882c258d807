"""`Cell`, one printed number of a paper's table, and expressions that choose cells."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engram.errors import bad, unknown

CELL_KEYS = (
    "dataset", "setting", "order", "augmentation", "method", "nd_method", "backbone", "params",
    "stage", "metric",
)  # fmt: skip
DISPARITIES = ("AOPD", "MOPD")  # printed in percent
_FILTER = re.compile(r"""\s*([^=,\s]*)\s*(=)?\s*("[^"]*"|'[^']*'|[^,]*)\s*(?:,|$)""")


@dataclass(frozen=True)
class Cell:
    """One printed number.

    Parameters
    ----------
    key
        The values of `CELL_KEYS` that identify the number.
    value, std
        The number that ours is judged by, in the paper's units; NaN if illegible or not given.
    doubt
        Why the printed number may be wrong; "" for no doubt.
    correction
        Where the number that belongs into this place is printed, and what its formula changes;
        "" for a table taken as printed.
    printed, corrected
        Both readings of this place. Without a correction both are `value`.
    repetitions
        What a released code base gave for each seed, where its code was run: `value` is their mean,
        and ours is judged by whether the two means are equal within a margin. Empty for a number
        that is printed.

    Examples
    --------
    >>> cell = Cell("rwalk", "1", {"dataset": "MNIST", "method": "EWC", "metric": "F"}, 0.08)
    >>> cell.name, cell["metric"], cell["order"]
    ('MNIST EWC', 'F', '')
    """

    paper: str
    table: str
    key: Mapping[str, str]
    value: float
    std: float = math.nan
    doubt: str = ""
    correction: str = ""
    printed: float = math.nan
    corrected: float = math.nan
    repetitions: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.correction:
            object.__setattr__(self, "printed", self.value)
            object.__setattr__(self, "corrected", self.value)

    def __getitem__(self, name: str) -> str:
        return self.key.get(name, "")

    @property
    def name(self) -> str:
        """Row and column as text, without the metric."""
        return " ".join(self[k] for k in CELL_KEYS if self[k] and k not in ("metric", "stage"))

    def name_on(self, data: str) -> str:
        """Return the name with other data in place of the paper's; "" for the paper's own."""
        return replace(self, key={**self.key, "dataset": data}).name if data else self.name

    @property
    def percent(self) -> bool:
        """Whether the paper prints this number as a percentage."""
        return "%" in self["metric"] or self.paper == "cnd" or self["metric"] in DISPARITIES

    @property
    def ddof(self) -> int:
        """Delta degrees of freedom of the paper's standard deviations.

        CGL's deviations match its counts of test sequences only if they divide by the number of
        repetitions itself; for the others the usual is assumed.
        """
        return 0 if self.paper == "cgl" else 1


@functools.cache
def read_cells(paper: str, table: str, *, as_printed: bool = False) -> tuple[Cell, ...]:
    """Read the cells of a paper's table from the reference tables, row by row.

    ConFER's forgetting is corrected, see `engram.records.reference`; `as_printed` makes the
    printed number of each place the one that ours is judged by.

    Examples
    --------
    >>> len(read_cells("rwalk", "1")), read_cells("rwalk", "1")[0].name
    (78, 'MNIST multi-head Vanilla lambda=0')
    >>> [cell["stage"] for cell in read_cells("confer", "28")][
    ...     :3
    ... ]  # the paper's columns are rotated
    ['2', '3', '4']
    >>> one = read_cells("confer", "28")[2]
    >>> one.printed, round(one.corrected, 4), one.correction
    (0.04, 0.1067, 'column 3; divided by i - 1')
    """
    corrected, printed = (
        [(_make_cell(paper, row), row) for row in _read_rows(paper, table, columns)]
        for columns in ("rotated", "as_printed")
    )
    places = {(cell.name, cell["stage"], cell["metric"]): cell for cell, _ in printed}
    cells = [
        _join_readings(places[cell.name, cell["stage"], cell["metric"]], cell, row, as_printed)
        for cell, row in corrected
    ]
    rows = itertools.groupby(cells, key=lambda cell: (cell.name, cell["metric"]))
    return tuple(
        cell for _, row in rows for cell in sorted(row, key=lambda cell: int(cell["stage"] or 0))
    )


@functools.cache
def _read_tables(paper: str, columns: str) -> dict[str, list[dict[Any, Any]]]:
    """Read a paper's tables, with ConFER's forgetting in the given columns."""
    from engram.records import reference

    found = reference(paper, confer_cf_columns=columns)
    return {str(name): part.to_dict("records") for name, part in found.groupby("table")}


def _read_rows(paper: str, table: str, columns: str) -> list[dict[Any, Any]]:
    tables = _read_tables(paper, columns)
    if table not in tables:
        raise unknown("table", table, tables)
    return tables[table]


def _make_cell(paper: str, row: Mapping[Any, Any]) -> Cell:
    texts = {k: _text(row[k]) for k in CELL_KEYS if k in row}
    return Cell(
        paper=paper, table=str(row["table"]), key={k: v for k, v in texts.items() if v},
        value=float(row["value"]), std=float(row["std"]), doubt=str(row["doubt"]),
        repetitions=tuple(map(float, str(row.get("repetitions", "")).split())),
    )  # fmt: skip


def _join_readings(
    printed: Cell, corrected: Cell, row: Mapping[Any, Any], as_printed: bool
) -> Cell:
    """Join the printed and the corrected number of one place."""
    moved = _text(row["printed_stage"]) != corrected["stage"]
    changed = row["value"] == row["value"] and row["value"] != row["printed_value"]
    parts = [f"column {row['printed_stage']}"] if moved else []
    parts += ["divided by i - 1"] if changed else []
    return replace(
        printed if as_printed else corrected, correction="; ".join(parts),
        printed=printed.value, corrected=corrected.value,
    )  # fmt: skip


def _text(value: Any) -> str:
    missing = value is None or value != value or str(value) == "<NA>"
    return "" if missing else str(value)


def parse_expression(expression: str) -> dict[str, tuple[str, ...]]:
    """Parse ``key=value|value,key=value``; values may contain ``*`` and may be quoted.

    Examples
    --------
    >>> parse_expression("dataset=MNIST, method=Vanilla|PI")
    {'dataset': ('MNIST',), 'method': ('Vanilla', 'PI')}
    >>> parse_expression("method")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: cells: expected key=value|value, separated by commas, got 'method'
    """
    found: dict[str, tuple[str, ...]] = {}
    place = 0
    while place < len(expression) or (place and expression[place - 1] == ","):
        match = _FILTER.match(expression, place)
        if match is None or not match[1] or not match[2]:
            raise bad("cells", "key=value|value, separated by commas", expression)
        values = tuple(v.strip() for v in match[3].strip("\"'").split("|"))
        if "" in values or match[1] in found:
            raise bad("cells", "each key once, with at least one value", expression)
        found[match[1]] = values
        place = match.end()
    return found


def choose_cells(cells: Sequence[Cell], expression: str) -> tuple[Cell, ...]:
    """Choose the cells that match an expression; raises for unknown names, with suggestions.

    Examples
    --------
    >>> chosen = choose_cells(read_cells("rwalk", "1"), "dataset=MNIST,method=PI*,metric=F")
    >>> [cell["method"] for cell in chosen]
    ['PI', 'PI', 'PI-S']
    >>> choose_cells(read_cells("rwalk", "1"), "method=EWK")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: cells: method: unknown name 'EWK', did you mean 'EWC'? Valid: ...
    """
    chosen = list(cells)
    for key, patterns in parse_expression(expression).items():
        keys = _used_keys(cells)
        if key not in keys:
            raise unknown("cells", key, keys)
        for pattern in patterns:
            if not any(_matches_any(cell[key], [pattern]) for cell in cells):
                raise unknown(f"cells: {key}", pattern, {cell[key] for cell in cells if cell[key]})
        chosen = [cell for cell in chosen if _matches_any(cell[key], patterns)]
    if cells and not chosen:
        raise bad("cells", "an expression that some cell of the table fits", expression)
    return tuple(chosen)


def _used_keys(cells: Iterable[Cell]) -> set[str]:
    return {key for cell in cells for key in cell.key}


def _matches_any(value: str, patterns: Iterable[str]) -> bool:
    # Brackets are not patterns, since names such as "A[5]" contain them.
    plain = (p.lower().replace("[", "[[]") for p in patterns)
    return any(fnmatch.fnmatchcase(value.lower(), p) for p in plain)
