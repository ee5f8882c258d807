"""`TableSchema`: how the columns of a table become features. It is fitted to a first table and
encodes every later one in the same way.
"""

from __future__ import annotations

import math
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.data.conversion import Array
from engram.errors import bad, check_choice, count_library_frames, plural, suggest_name

KINDS = ("number", "boolean", "category", "time")
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
MISSING_CHOICES = ("error", "drop", "flag", "mean")
# what pandas takes for a missing value in a text file
MISSING_WORDS = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)  # fmt: skip
NO_CELLS = (list, tuple, dict, set, frozenset, bytes, bytearray, np.ndarray)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
EXACT = 2**53  # whole numbers below it are exact as floating-point numbers
EXACT_FEATURE = 2**24  # the same of float32, as features are
UNSEEN, MISSING = -1, -2  # in place of the number of a category
MAX_DIGITS = 400  # of a whole number; more are no floating-point number either
SHOWN = 5  # values in a message
TOLD = 20  # values of a column in the facts of a report


class TableWarning(UserWarning):
    """A table was encoded, but not all of it as in the first one."""


class NumericColumn(NamedTuple):
    """A column of a table as numbers, and where it has none."""

    column: str
    columns: tuple[str, ...]  # names of what it became
    x: Array  # [N, columns]
    gaps: Array  # [N] whether the value is missing
    names: bool = False  # it became a column of 0 and 1 for each of its values


@dataclass(frozen=True, kw_only=True)
class TableFeature:
    """How one column of a table becomes features.

    Parameters
    ----------
    name
        Name of the column.
    kind
        ``number``; ``boolean``, which is 0 or 1; ``category``, which has a feature of 0 and 1 for
        each category; ``time``, a number of units since an origin.
    categories
        Of a category: its values in the first table, in the order of their features.
    unit, origin
        Of a time: ``days`` or the like, and the point in time (UTC) at which it is 0.
    flagged
        Whether a further feature says that the value is missing.

    Examples
    --------
    >>> TableFeature(name="hue", kind="category", categories=("blue", "red"), flagged=True).columns
    ('hue=blue', 'hue=red', 'hue missing')
    """

    name: str
    kind: str
    categories: tuple[str | int | float | bool, ...] = ()
    unit: str = ""
    origin: str = ""
    flagged: bool = False

    def __post_init__(self) -> None:
        check_choice(f"kind of column {self.name!r}", self.kind, KINDS)
        if self.kind == "time":
            check_choice(f"unit of column {self.name!r}", self.unit, UNITS)
            datetime.fromisoformat(self.origin)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features."""
        flag = (f"{self.name} missing",) if self.flagged else ()
        if self.kind != "category":
            return (self.name, *flag)
        return (*(f"{self.name}={_show_category(one)}" for one in self.categories), *flag)

    @cached_property
    def places(self) -> dict[Any, int]:
        """The place of each category, by its value and whether it is a text."""
        return {(isinstance(one, str), one): place for place, one in enumerate(self.categories)}

    @cached_property
    def values(self) -> str:
        """What the categories are: text, numbers or booleans."""
        if not self.categories or any(isinstance(one, str) for one in self.categories):
            words = self.categories and set(self.categories) <= {"True", "False"}
            return "booleans" if words else "text"
        return "booleans" if isinstance(self.categories[0], bool) else "numbers"


def _show_category(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What a table had that the first one did not.

    Parameters
    ----------
    rows
        Number of rows.
    unseen
        For each column of categories, values that are none of them, and in how many rows: their
        features are all 0.
    missing
        For each column, the number of rows in which its value is missing.
    absent
        For each column of categories, those that no row has.
    converted
        For each column that came as something else, what it came as: numbers written as text, say.
    ignored
        Columns that the first table did not have.
    zoneless
        For each column of times that told its time zone, how many did not: they are taken as UTC.

    Examples
    --------
    >>> report = TableReport(rows=9, unseen={"hue": {"pink": 2}}, ignored=("id",))
    >>> print(report)
    values that are no category of the first table, encoded as none: 'pink' in 'hue' (2 of 9 rows)
    columns that the first table did not have, left out: 'id'
    """

    rows: int
    unseen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    converted: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    zoneless: Mapping[str, int] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What changes the meaning of the table, one line for each kind."""
        found = []
        if self.unseen:
            parts = [
                f"{_list_some(map(repr, values))} in {column!r} "
                f"({sum(values.values()):,} of {plural(self.rows, 'row')})"
                for column, values in self.unseen.items()
            ]
            found.append(
                "values that are no category of the first table, encoded as none: "
                + _list_some(parts, "; ")
            )
        if self.ignored:
            some = _list_some(map(repr, self.ignored))
            found.append(f"columns that the first table did not have, left out: {some}")
        if self.zoneless:
            counts = [f"{column!r} ({n:,})" for column, n in self.zoneless.items()]
            found.append(f"times without a time zone, taken as UTC: {_list_some(counts)}")
        return tuple(found)

    def warn(self) -> None:
        """Warn of these, in the name of the code that called the library."""
        for text in self.warnings:
            warnings.warn(text, TableWarning, stacklevel=count_library_frames())

    def __str__(self) -> str:
        lines = list(self.warnings)
        if self.missing:
            counts = [f"{column!r} ({n:,})" for column, n in self.missing.items()]
            lines.append(f"missing values: {_list_some(counts)}")
        if self.converted:
            told = [f"{column!r} ({came})" for column, came in self.converted.items()]
            lines.append(f"columns that came as something else: {_list_some(told)}")
        if self.absent:
            told = [
                f"{_list_some(map(repr, some))} in {column!r}"
                for column, some in self.absent.items()
            ]
            lines.append(f"categories that no row has: {_list_some(told, '; ')}")
        return "\n".join(lines) or "nothing that the first table did not have"

    def facts(self) -> dict[str, Any]:
        """What there is to say, in plain values; of many unseen values, the most frequent."""
        unseen = {
            column: dict(sorted(values.items(), key=lambda one: -one[1])[:TOLD])
            for column, values in self.unseen.items()
        }
        plain: dict[str, Any] = {
            "unseen": unseen, "missing": dict(self.missing), "converted": dict(self.converted),
            "ignored": list(self.ignored), "zoneless": dict(self.zoneless),
        }  # fmt: skip
        return {key: value for key, value in plain.items() if value}


def check_missing(missing: Any) -> None:
    """Raise for what says nothing of missing values.

    Examples
    --------
    >>> check_missing("mean")
    >>> check_missing("means")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: missing: expected error, drop, flag, mean or a number, got 'means'
    """
    number = isinstance(missing, (int, float)) and not isinstance(missing, bool)
    if not number and missing not in MISSING_CHOICES:
        raise bad("missing", f"{', '.join(MISSING_CHOICES)} or a number", missing)


def _list_some(texts: Iterable[str], between: str = ", ") -> str:
    every = list(texts)
    more = f" and {len(every) - SHOWN:,} more" if len(every) > SHOWN else ""
    return between.join(every[:SHOWN]) + more


class EncodedTable(NamedTuple):
    """Features of the rows that are kept, and what was special about the table."""

    x: Array  # [n, F] float32; NaN where the mean is to be written
    kept: Array  # [rows of the table] which rows `x` has
    report: TableReport


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """Columns, kinds, categories and units of a first table, by which later ones are encoded.

    A later table may have its columns in another order and of other types (numbers as text,
    decimals, booleans, categoricals, nullable and Arrow types), further columns, and values that
    are no category so far: their features are all 0. A column that is not there, or a value that
    is not of the declared kind, is refused. Scales and means are fitted to the features, and are
    kept with the learner.

    Parameters
    ----------
    features
        How each column becomes features.
    missing
        What happens to missing values, as for `Data.from_frame`.
    label, separator
        Columns with the classes.
    apart
        Further columns that the first table had and that are no features.

    Examples
    --------
    >>> import pandas as pd
    >>> from engram.data import Data
    >>> first = pd.DataFrame({"size": [1.5, 2.0], "hue": ["red", "blue"], "kind": ["ant", "bee"]})
    >>> schema = Data.from_frame(first, label="kind").schema
    >>> schema.columns
    ('size', 'hue=blue', 'hue=red')
    >>> later = pd.DataFrame({"hue": ["green", "red"], "id": [8, 9], "size": ["3", "4.5"]})
    >>> schema.encode(later).x.tolist()
    [[3.0, 0.0, 0.0], [4.5, 0.0, 1.0]]
    >>> schema.check(later).unseen
    {'hue': {'green': 1}}
    """

    features: tuple[TableFeature, ...]
    missing: str | float = "error"
    label: tuple[str, ...] = ()
    separator: str | None = None
    apart: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return tuple(name for one in self.features for name in one.columns)

    @property
    def example(self) -> dict[str, Any]:
        """A record such as it encodes: one made-up value for each column."""
        made: dict[str, Any] = {"number": 1.5, "boolean": True}
        return {
            one.name: one.categories[0] if one.categories else made.get(one.kind, one.origin)
            for one in self.features
            if one.kind != "category" or one.categories
        }

    def with_flags(self, read: Sequence[NumericColumn]) -> TableSchema:
        """The schema with a feature for missing values where the first table had some."""
        flag = self.missing == "flag"
        pairs = zip(self.features, read, strict=True)
        found = tuple(replace(one, flagged=flag and bool(col.gaps.any())) for one, col in pairs)
        return replace(self, features=found)

    def read(self, table: Any, name: str = "x") -> list[NumericColumn]:
        """Each column as numbers, with its gaps, before anything is done about these."""
        return self._read(table, name, _Findings())

    def _read(self, table: Any, name: str, found: _Findings) -> list[NumericColumn]:
        columns = self._find_columns(table, name)
        return [_read_column(one, values, name, found)
                for one, values in zip(self.features, columns, strict=True)]  # fmt: skip

    def encode(self, table: Any, name: str = "x", *, drop: bool = False) -> EncodedTable:
        """Encode a later table (pandas.DataFrame); with `drop`, leave out rows as declared.

        Values that are missing are treated as in the first table. Where that says nothing of how
        (``"error"``, or ``"drop"`` in rows that are to be predicted), they are refused.
        """
        found = _Findings()
        read = self._read(table, name, found)
        kept = np.ones(len(table), bool)
        if drop and self.missing == "drop":
            kept = ~np.any([one.gaps for one in read], axis=0)
        parts = [
            self._fill(feature, one._replace(x=one.x[kept], gaps=one.gaps[kept]), name)
            for feature, one in zip(self.features, read, strict=True)
        ]
        x = np.concatenate([np.empty((int(kept.sum()), 0)), *parts], 1).astype(np.float32)
        return EncodedTable(x, kept, self._report(table, read, found))

    def check(self, table: Any, name: str = "x") -> TableReport:
        """Report what a table has that the first one did not; raise for what cannot be encoded."""
        from engram.data.tables.table_rows import to_frame

        return self.encode(to_frame(table, name), name).report

    def _fill(self, feature: TableFeature, one: NumericColumn, name: str) -> Array:
        """The features of a column, without gaps unless the mean is to be written there."""
        x, gaps = one.x, one.gaps
        if feature.flagged:
            return np.concatenate([np.where(gaps[:, None], 0.0, x), gaps[:, None]], 1)
        if not gaps.any():
            return x
        known = not isinstance(self.missing, str) or self.missing == "mean"
        if not known and not (one.names and self.missing == "flag"):
            reason = {
                "error": "as in the first table (missing='mean', 'flag' or a number, given with "
                "it, says what to write in their place)",
                "drop": "because rows without one were left out of the first table",
                "flag": "because it had one in every row of the first table, and has no feature "
                "that says that it is missing",
            }[str(self.missing)]
            got = f"{int(gaps.sum()):,} of {len(gaps):,} missing"
            raise bad(f"column {one.column!r} of {name}", f"a value in each row, {reason}", got)
        if one.names or self.missing == "mean":
            return x
        return np.where(gaps[:, None], float(self.missing), x)

    def _find_columns(self, table: Any, name: str) -> list[Any]:
        """The column of each feature, by its name."""
        names = [str(one) for one in table.columns]
        place = {one: i for i, one in enumerate(names)}
        wanted = [one.name for one in self.features]
        if absent := [one for one in wanted if one not in place]:
            spare = [one for one in names if one not in wanted and one not in self.label]
            near = suggest_name(absent[0], spare)
            hint = f" (did you mean {near!r}?)" if near else ""
            some = _list_some(map(repr, absent))
            error = bad(f"columns of {name}", f"{some} among them, as in training{hint}", names)
            error.near = near
            raise error
        if twice := [one for one in wanted if names.count(one) > 1]:
            raise bad(f"columns of {name}", "names that differ", f"{_list_some(twice)} twice")
        return [table.iloc[:, place[one]] for one in wanted]

    def _report(self, table: Any, read: Sequence[NumericColumn], found: _Findings) -> TableReport:
        known = {*(one.name for one in self.features), *self.label, *self.apart}
        names = dict.fromkeys(str(one) for one in table.columns)
        absent = {
            feature.name: tuple(
                _show_category(value)
                for value, there in zip(feature.categories, one.x.sum(0).tolist(), strict=True)
                if not there
            )
            for feature, one in zip(self.features, read, strict=True)
            if feature.kind == "category"
        }
        return TableReport(
            rows=len(table), unseen=found.unseen, converted=found.converted,
            missing={one.column: int(one.gaps.sum()) for one in read if one.gaps.any()},
            absent={column: some for column, some in absent.items() if some},
            ignored=tuple(one for one in names if one not in known), zoneless=found.zoneless,
        )  # fmt: skip

    # -- from features back to a table, for another schema -----------------------------------------
    def decode(self, x: Array) -> Any:
        """The table behind features [n, F] that this schema encoded, gaps included.

        Examples
        --------
        >>> hue = TableFeature(name="hue", kind="category", categories=("blue", "red"))
        >>> schema = TableSchema(features=(TableFeature(name="size", kind="number"), hue))
        >>> schema.decode(np.array([[1.5, 0, 1], [2, 0, 0]])).to_dict("list")
        {'size': [1.5, 2.0], 'hue': ['red', nan]}
        """
        import pandas as pd

        made, start = {}, 0
        for one in self.features:
            width = len(one.columns) - one.flagged
            part = np.asarray(x[:, start : start + width], np.float64)
            start += len(one.columns)
            gaps = x[:, start - 1] == 1 if one.flagged else np.zeros(len(x), bool)
            if one.kind == "category":
                codes = np.where(part.any(1), part.argmax(1) if width else 0, -1)
                made[one.name] = pd.Series(pd.Categorical.from_codes(
                    codes, categories=pd.Index(one.categories, dtype=object)
                ))  # fmt: skip
                continue
            values = np.where(gaps, np.nan, part[:, 0])
            if one.kind == "time":
                origin, size = datetime.fromisoformat(one.origin), UNITS[one.unit]
                times = [None if math.isnan(v) else origin + timedelta(seconds=v * size)
                         for v in values.tolist()]  # fmt: skip
                made[one.name] = pd.Series(times, dtype=object)
            else:
                made[one.name] = pd.Series(values)
        return pd.DataFrame(made)

    # -- files -------------------------------------------------------------------------------------
    def facts(self) -> dict[str, Any]:
        """The schema in plain values, for a file; `from_facts` reads them."""
        features = []
        for one in self.features:
            plain: dict[str, Any] = {"name": one.name, "kind": one.kind}
            plain |= {"categories": list(one.categories)} if one.kind == "category" else {}
            plain |= {"unit": one.unit, "origin": one.origin} if one.kind == "time" else {}
            features.append(plain | ({"flagged": True} if one.flagged else {}))
        return {
            "features": features, "missing": self.missing, "label": list(self.label),
            "separator": self.separator, "apart": list(self.apart),
        }  # fmt: skip

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TableSchema:
        """Read what `facts` gave; raises for anything else.

        Examples
        --------
        >>> hue = TableFeature(name="hue", kind="category", categories=("blue", "red"))
        >>> schema = TableSchema(features=(hue,), missing="mean", label=("kind",))
        >>> TableSchema.from_facts(schema.facts()) == schema
        True
        """
        features = []
        for one in facts["features"]:
            values = tuple(one.get("categories", ()))
            if not all(isinstance(v, (str, int, float)) for v in values):
                raise TypeError(f"categories of {one['name']}")
            features.append(TableFeature(**{**one, "categories": values}))
        missing, separator = facts["missing"], facts["separator"]
        if isinstance(missing, str):
            check_choice("missing", missing, MISSING_CHOICES)
        names = (*(one.name for one in features), *facts["label"], *facts["apart"])
        if not all(isinstance(one, str) for one in names):
            raise TypeError("columns whose names are no text")
        return cls(
            features=tuple(features), missing=missing if isinstance(missing, str)
            else float(missing), label=tuple(facts["label"]),
            separator=None if separator is None else str(separator), apart=tuple(facts["apart"]),
        )  # fmt: skip

    @classmethod
    def from_columns(cls, columns: Sequence[str], table: Any, name: str = "x") -> TableSchema:
        """The schema behind names of features alone, as files of an older version have them.

        ``hue=red`` is a category of the column ``hue`` of the table, ``size missing`` says whether
        ``size`` is.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"size": [None], "hue": ["red"]})
        >>> schema = TableSchema.from_columns(["size", "size missing", "hue=red"], table)
        >>> schema.encode(table).x.tolist()
        [[0.0, 1.0, 1.0]]
        """
        there = [str(one) for one in table.columns]
        found: dict[str, TableFeature] = {}
        for column in columns:
            own, value, kind = column, "", "number"
            if column not in there and column.endswith(" missing"):
                own, kind = column.removesuffix(" missing"), "flag"
            if own not in there:
                own, value, kind = *_split_category(column, there), "category"
            before = found.get(own, TableFeature(name=own, kind=kind.replace("flag", "number")))
            if kind == "flag":
                found[own] = replace(before, flagged=True)
            elif kind == "category":
                found[own] = replace(before, kind=kind, categories=(*before.categories, value))
            else:
                found[own] = before
        made = cls(features=tuple(found.values()), missing="mean")
        made._find_columns(table, name)
        return made


def _split_category(column: str, there: Sequence[str]) -> tuple[str, str]:
    """Column and value of ``hue=red``; both may have further signs of equality."""
    pieces = column.split("=")
    for cut in range(len(pieces) - 1, 0, -1):
        own = "=".join(pieces[:cut])
        if own in there:
            return own, "=".join(pieces[cut:])
    return pieces[0], "=".join(pieces[1:])


# ------------------------------------------------------------------------------------------------
# Columns as numbers


@dataclass
class _Findings:
    """What is noticed while the columns of a table are read."""

    unseen: dict[str, Mapping[str, int]] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    zoneless: dict[str, int] = field(default_factory=dict)


def _read_column(feature: TableFeature, values: Any, name: str, found: _Findings) -> NumericColumn:
    where = f"column {feature.name!r} of {name}"
    if feature.kind == "category":
        places, gaps = _read_categories(feature, values, where, found)
        x = np.zeros((len(values), len(feature.categories)))
        known = np.flatnonzero(places >= 0)
        x[known, places[known]] = 1
        return NumericColumn(feature.name, feature.columns, x, gaps, names=True)
    if feature.kind == "time":
        numbers = _read_times(feature, values, where, found)
    elif _is_of_kind(feature.kind, values):
        numbers = values.to_numpy(np.float64, na_value=np.nan)
    else:
        convert = _to_number if feature.kind == "number" else _to_boolean
        numbers = _convert_each(values, convert, feature.name, where, found)
    with np.errstate(over="ignore"):
        large = np.isinf(numbers.astype(np.float32))
    if large.any():
        row = int(np.flatnonzero(large)[0])
        got = f"{numbers[row]} in row {row}"
        raise bad(where, "finite numbers of float32 range", got)
    return NumericColumn(feature.name, (feature.name,), numbers[:, None], np.isnan(numbers))


def _is_of_kind(kind: str, values: Any) -> bool:
    """Whether the type of a column says that it holds what is declared."""
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

    if values.dtype == object or hasattr(values, "cat"):
        return False
    if kind == "boolean":
        return bool(is_bool_dtype(values))
    return bool(is_integer_dtype(values) or is_float_dtype(values))


def list_cells(values: Any) -> list[Any]:
    """The values of a column as Python has them; None where one is missing.

    Examples
    --------
    >>> import pandas as pd
    >>> list_cells(pd.Series([1, None], dtype="Int64"))
    [1, None]
    """
    import pandas as pd

    raw = values.to_numpy(object)
    cells: list[Any] = raw.tolist()
    if any(issubclass(kind, np.generic) for kind in set(map(type, cells))):
        cells = [_to_python(one) if isinstance(one, np.generic) else one for one in cells]
    for row in np.flatnonzero(pd.isna(raw)).tolist():
        cells[row] = None
    return cells


def _to_python(value: np.generic) -> Any:
    """A value of numpy as Python has it; points and spans in time would become plain numbers."""
    import pandas as pd

    if isinstance(value, (np.datetime64, np.timedelta64)):
        return pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value)
    return value.item()


def _map_cells(cells: list[Any], convert: Callable[[Any], Any], missing: Any, where: str) -> Any:
    """What each value of a column becomes; equal ones of one type are converted once."""
    types = set(map(type, cells))
    if any(issubclass(kind, NO_CELLS) for kind in types):
        row, one = next((row, one) for row, one in enumerate(cells) if isinstance(one, NO_CELLS))
        raise bad(where, "one number or text in each row", f"{one!r} in row {row}")
    plain = all(kind in (str, int, bool, type(None)) for kind in types)
    texts = cells if plain else [one if isinstance(one, (str, int)) else str(one) for one in cells]
    keys = list(zip(map(type, cells), texts, strict=True))  # 1 is not True, and 1.0 not 1.00
    known = dict(zip(keys, cells, strict=True))
    for key, one in known.items():
        try:
            known[key] = missing if one is None else convert(one)
        except ValueError as problem:
            raise bad(where, str(problem), f"{one!r} in row {keys.index(key)}") from None
    return [known[key] for key in keys]


def _convert_each(
    values: Any, convert: Callable[[Any], float], column: str, where: str, found: _Findings
) -> Array:
    """[n] numbers, NaN for missing ones, of a column of another type than the declared one."""
    cells = list_cells(values)
    usual = (bool,) if convert is _to_boolean else (int, float)
    kinds = [kind for kind, _ in Counter(map(type, cells)).most_common()]
    if strange := [kind.__name__ for kind in kinds if kind not in (*usual, type(None))]:
        found.converted[column] = {"str": "text", "bool": "booleans"}.get(strange[0], strange[0])
    return np.array(_map_cells(cells, convert, math.nan, where), np.float64)


def _to_number(value: Any) -> float:
    """A number from what may stand for one: a number, a boolean, or its text."""
    expected = "numbers, as in training"
    if isinstance(value, str):
        text = value.strip()
        if text in MISSING_WORDS:
            return math.nan
        if not NUMBER.fullmatch(text):
            raise ValueError(expected)
        return float(text)
    if isinstance(value, float):
        return value
    if not isinstance(value, (numbers.Real, Decimal)):
        raise ValueError(expected)
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def _to_boolean(value: Any) -> float:
    """0 or 1 from a boolean, a number, or the text of one."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        number = _to_number(text)
    except ValueError:
        number = math.inf
    if number in (0.0, 1.0) or math.isnan(number):
        return number
    raise ValueError("true or false (or 1 and 0), as in training")


# -- categories ------------------------------------------------------------------------------------


def _read_categories(
    feature: TableFeature, values: Any, where: str, found: _Findings
) -> tuple[Array, Array]:
    """[n] the place of each value among the categories, UNSEEN for others; and gaps."""
    find = {"text": _find_text, "numbers": _find_number, "booleans": _find_boolean}[feature.values]
    cells = list_cells(values)
    told = _map_cells(cells, lambda one: find(feature, one), MISSING, where)
    places = np.array(told, np.int64)
    strange = Counter(str(cells[row]) for row in np.flatnonzero(places == UNSEEN).tolist())
    if strange:
        found.unseen[feature.name] = dict(strange.most_common())
    return places, places == MISSING


def _find_text(feature: TableFeature, value: Any) -> int:
    """The category with this text; a number has several (1, 1.0), a text only itself."""
    for text in [value] if isinstance(value, str) else spell(value):
        place = feature.places.get((True, text))
        if place is not None:
            return place
    return MISSING if _is_missing_word(value) else UNSEEN


def spell(value: Any) -> list[str]:
    """The texts that a value other than text may have been written as, its own first.

    Examples
    --------
    >>> spell(1), spell(1.0), spell(0.5), spell(True)
    (['1', '1.0'], ['1.0', '1'], ['0.5'], ['True'])
    """
    if isinstance(value, int) and abs(value) > 10**MAX_DIGITS:
        return []  # Python refuses to write it
    texts = [str(value)]
    number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    if number and abs(value) < EXACT and value == int(value):
        texts += [str(int(value)), str(float(value))]
    return list(dict.fromkeys(texts))


def _find_number(feature: TableFeature, value: Any) -> int:
    """The category that equals a number, or the number that a text says."""
    number = value
    if isinstance(value, str):
        text = value.strip()
        if not NUMBER.fullmatch(text):
            return MISSING if _is_missing_word(value) else UNSEEN
        whole = text.lstrip("+-").isdigit() and len(text) < MAX_DIGITS
        number = int(text) if whole else float(text)
    rounded = isinstance(number, float) and abs(number) >= EXACT  # from one of several integers
    if not isinstance(number, (numbers.Real, Decimal)):
        return UNSEEN
    place = feature.places.get((False, number), UNSEEN)
    return UNSEEN if rounded and not isinstance(feature.categories[place], float) else place


def _find_boolean(feature: TableFeature, value: Any) -> int:
    try:
        number = _to_boolean(value)
    except ValueError:
        return UNSEEN
    if math.isnan(number):
        return MISSING
    said = number == 1.0
    return next((place for place in (
        feature.places.get((False, said)), feature.places.get((True, str(said)))
    ) if place is not None), UNSEEN)  # fmt: skip


def _is_missing_word(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in MISSING_WORDS


# -- points in time --------------------------------------------------------------------------------


def _read_times(feature: TableFeature, values: Any, where: str, found: _Findings) -> Array:
    """[n] units since the origin."""
    moments = read_moments(values, where)
    origin = datetime.fromisoformat(feature.origin)
    aware = origin.tzinfo is not None
    bare = sum(one is not None and one.tzinfo is None for one in moments)
    if aware and bare:
        found.zoneless[feature.name] = bare
    start, size = in_utc(origin), UNITS[feature.unit]
    return np.array([
        math.nan if one is None else (in_utc(one) - start).total_seconds() / size
        for one in moments
    ], np.float64)  # fmt: skip


def read_moments(values: Any, where: str) -> list[datetime | None]:
    """Points in time, from dates, times and their texts (ISO 8601).

    Examples
    --------
    >>> import pandas as pd
    >>> read_moments(pd.Series(["2026-03-01", None]), "column 'day'")
    [datetime.datetime(2026, 3, 1, 0, 0), None]
    """
    found: list[datetime | None] = _map_cells(list_cells(values), _to_moment, None, where)
    return found


def _to_moment(value: Any) -> datetime | None:
    expected = "points in time (2026-03-01 or 2026-03-01T12:30, with +02:00 or Z for a time zone)"
    if isinstance(value, str):
        if _is_missing_word(value):
            return None
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(expected) from None
    if hasattr(value, "to_pydatetime"):
        plain: datetime = value.to_pydatetime(warn=False)
        return plain
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    raise ValueError(expected)


def in_utc(moment: datetime) -> datetime:
    """A point in time in UTC; without a time zone it is taken to be so.

    Examples
    --------
    >>> in_utc(datetime.fromisoformat("2026-03-01T01:00+02:00")).isoformat()
    '2026-02-28T23:00:00+00:00'
    """
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def translate_features(
    x: torch.Tensor, own: TableSchema, other: TableSchema, name: str
) -> EncodedTable:
    """Encode features of one schema by another one.

    Examples
    --------
    >>> before = TableFeature(name="hue", kind="category", categories=("blue", "red"))
    >>> later = replace(before, categories=("red", "green"))
    >>> own, other = (TableSchema(features=(one,)) for one in (later, before))
    >>> translate_features(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), own, other, "table").x.tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    table = own.decode(x.cpu().numpy())
    kinds = {one.name: one.kind for one in own.features}
    for one in other.features:
        if one.kind != "category" or kinds.get(one.name) != "number":
            continue
        values = table[one.name].to_numpy()
        if not np.all(np.isnan(values) | ((values % 1 == 0) & (np.abs(values) < EXACT_FEATURE))):
            expected = f"names, as in training (categories=[{one.name!r}])"
            raise bad(f"column {one.name!r} of {name}", expected, "numbers")
    return other.encode(table, name)
