"""Values that are not there: counted by column, and what is done about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.errors import bad, number
from engram.spelling import plural

WAYS = ("error", "drop", "flag", "mean")
_SHOWN = 12  # columns in a message


@dataclass(frozen=True, eq=False)
class Missing:
    """A column of a table as numbers, and where it has none."""

    column: str
    columns: tuple[str, ...]  # names of what it became
    x: Array  # [N, columns]
    gaps: Array  # [N] whether the value is missing
    names: bool = False  # it became a column of 0 and 1 for each of its values


@dataclass(frozen=True, eq=False)
class Whole:
    """All features as one array without gaps, or with gaps that streams are to fill."""

    x: Array
    columns: tuple[str, ...]
    kept: Array  # [rows of the table] which of them are left
    notes: tuple[str, ...] = ()
    fill: bool = False


def counted(gaps: dict[str, int]) -> str:
    """How many values each column misses, in words.

    Examples
    --------
    >>> counted({"age": 3, "hue": 1})
    'age 3, hue 1'
    """
    shown = ", ".join(f"{column} {count:,}" for column, count in list(gaps.items())[:_SHOWN])
    return shown + (f", ... ({len(gaps)} columns)" if len(gaps) > _SHOWN else "")


def repaired(table: Sequence[Missing], labels: Any, missing: Any, name: str) -> Whole:
    """The features, after the remedy that `missing` names."""
    if isinstance(missing, bool) or not isinstance(missing, (int, float, str)):
        raise bad("missing", f"{', '.join(WAYS)} or a number", missing)
    if isinstance(missing, str) and missing not in WAYS:
        raise bad("missing", f"{', '.join(WAYS)} or a number", missing)
    rows = len(labels)
    gaps = {one.column: int(one.gaps.sum()) for one in table if one.gaps.any()}
    bare = labels.isna()
    without = {column: int(bare[column].sum()) for column in labels.columns if bare[column].any()}
    kept = np.ones(rows, bool)
    if missing == "drop":
        kept = ~(bare.any(axis=1).to_numpy() | np.any([one.gaps for one in table], axis=0))
        if not kept.any():
            raise bad("missing", f"another way than 'drop': every row of {name} misses a value",
                      counted({**without, **gaps}))  # fmt: skip
    elif without:
        expected = f"a label in every row of {name} (missing='drop' leaves the others out)"
        raise bad("label", expected, f"missing values: {counted(without)} of {rows:,} rows")
    if gaps and missing == "error":
        expected = (
            f"'drop' (skip these rows), 'flag' (0, plus an indicator column), 'mean' (of the first "
            f"task) or a number, because {name} has missing values; on the command line --set "
            "missing=drop"
        )
        raise bad("missing", expected, f"{counted(gaps)} of {rows:,} rows")
    parts = [_filled(one, missing) for one in table]
    x = np.concatenate([one.x for one in parts], 1)[kept].astype(np.float32)
    columns = tuple(column for one in parts for column in one.columns)
    lost = rows - int(kept.sum())
    notes = _notes(lost, {**without, **gaps}, missing)
    return Whole(x, columns, kept, notes, fill=bool(gaps) and missing == "mean")


def _notes(lost: int, gaps: dict[str, int], missing: Any) -> tuple[str, ...]:
    if not gaps:
        return ()
    ways = {
        "drop": f"{plural(lost, 'row')} left out",
        "flag": "replaced by 0, marked in an extra column",
        "mean": "replaced by the mean of the first task",
    }
    return (
        f"missing values ({counted(gaps)}): {ways.get(str(missing), f'replaced by {missing}')}",
    )


def _filled(one: Missing, missing: Any) -> Missing:
    """A column after the remedy; names that are missing are none of the known ones."""
    if not one.gaps.any() or missing in ("drop", "error"):
        return one
    x = one.x.copy()
    if missing == "flag":
        x[one.gaps] = 0
        flagged = np.concatenate([x, one.gaps[:, None].astype(np.float64)], 1)
        return Missing(one.column, (*one.columns, f"{one.column} missing"), flagged, one.gaps)
    if not one.names:
        x[one.gaps] = np.nan if missing == "mean" else number("missing", missing, -np.inf)
    return Missing(one.column, one.columns, x, one.gaps)
