"""Tables with a column of classes: features as numbers, labels, and what is done about missing
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from engram.data.attributes import number_attributes
from engram.data.conversion import PARTS, Array
from engram.data.tables.table_schema import (
    NO_CELLS,
    UNITS,
    NumericColumn,
    TableFeature,
    TableSchema,
    check_missing,
    in_utc,
    list_cells,
    read_moments,
)
from engram.data.tables.time_series import PADS, pad_series
from engram.data.texts.tokenization import check_texts, make_tokenizer
from engram.errors import bad, check_choice, check_float, plural, unknown

if TYPE_CHECKING:
    from engram.data.dataset import Data

MAX_CODES = 10  # numbers that may be codes, beside words such as "3+"
MAX_TEXT_VALUES = 100  # of a column of text: more are no categories, unless it is said


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What `Data.from_frame` is told of a table; see there."""

    label: str | Sequence[str] | None = None
    split: str | None = None
    categories: Sequence[str] = ()
    dates: str | Sequence[str] | Mapping[str, str] = ()
    attributes: str | Sequence[str] = ()
    missing: str | float = "error"
    drop: str | Sequence[str] = ()
    separator: str | None = None
    series: str | None = None
    time: str | None = None
    pad: str = "back"
    text: str | None = None
    tokenizer: Any = "words"
    length: int | None = None

    @property
    def labels(self) -> list[str]:
        """Names of all columns with labels."""
        return column_names("label", self.label)


def column_names(argument: str, value: Any) -> list[str]:
    """Names of columns from one name or several."""
    if value is None:
        return []
    given = [value] if isinstance(value, (str, int)) else value
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        raise bad(argument, "the name of a column, or a list of names", value)
    return [str(one) for one in given]


def read_units(dates: Any) -> dict[str, str]:
    """The unit of each column of points in time: days, unless it is said.

    Examples
    --------
    >>> read_units("when"), read_units({"when": "hours"})
    ({'when': 'days'}, {'when': 'hours'})
    """
    if isinstance(dates, Mapping):
        return {str(column): unit for column, unit in dates.items()}
    return dict.fromkeys(column_names("dates", dates), "days")


def read_frame(
    kind: type[Data],
    parts: Mapping[str, Any],
    chosen: TableOptions,
    *,
    name: str,
    options: dict[str, Any],
) -> Data:
    """The work behind `Data.from_frame`."""
    frame, part = _join_parts(parts, chosen, name)
    left = column_names("drop", chosen.drop)
    special = [one for one in (chosen.split, chosen.series, chosen.time, chosen.text)
               if one is not None]  # fmt: skip
    about = column_names("attributes", chosen.attributes)
    others = {"drop": left, "categories": column_names("categories", chosen.categories),
              "dates": list(read_units(chosen.dates)), "attributes": about}  # fmt: skip
    for argument, names in {"label": chosen.labels, "column": special, **others}.items():
        for one in names:
            if one not in frame.columns:
                raise unknown(f"{argument} of {name}", one, list(frame.columns))
    if not chosen.labels:
        raise bad(
            "label", f"the column of {name} that has the classes (label='NAME', on the command "
            "line --label NAME)", f"nothing; its columns are {', '.join(frame.columns)}",
        )  # fmt: skip
    if about and chosen.series is not None:
        raise bad("attributes", "none with series=, whose samples have many rows", about)
    away = {*left, *special, *chosen.labels, *about}
    features = frame[[one for one in frame.columns if one not in away]]
    text = chosen.text or _recognise_text(features, others["categories"])
    if text is not None:
        if chosen.text is not None and features.shape[1]:
            spare = list(features.columns)
            expected = (
                f"no other features beside the texts of {text!r} (drop={spare} leaves them out)"
            )
            raise bad(name, expected, spare)
        return _read_texts(kind, frame, part, text, chosen, name, options)
    if not features.shape[1]:
        raise bad(name, "at least one feature column besides the label", list(frame.columns))
    whole = _fit(features, frame[chosen.labels], chosen, [*left, *special, *about], name)
    frame, part = frame[whole.kept], part[whole.kept]
    y, classes = table_labels(frame[chosen.labels], chosen.separator, name)
    fields: dict[str, Any] = {"columns": whole.columns, **options}
    if chosen.series is None:
        fields["schema"] = whole.schema
    fields["notes"] = (*options.get("notes", ()), *whole.notes)
    if whole.fill:
        fields["fill"] = True
    if about:
        fields["attributes"] = {one: _read_attribute(one, frame[one], name) for one in about}
    if chosen.series is not None:
        return _group_series(kind, whole.x, y, classes, frame, part, chosen, name, fields)
    return split_by_part(kind, whole.x, y, part, classes=classes, name=name, **fields)


def _fit(
    features: Any, labels: Any, chosen: TableOptions, apart: Sequence[str], name: str
) -> CompleteTable:
    """A schema, and the features that it makes of its first table."""
    units = read_units(chosen.dates)
    declared = declare_features(
        features, column_names("categories", chosen.categories), units, name
    )
    schema = TableSchema(
        features=declared, missing=chosen.missing, label=tuple(chosen.labels),
        separator=chosen.separator, apart=tuple(dict.fromkeys(apart)),
    )  # fmt: skip
    table = schema.read(features, name)
    whole = repair_missing(table, labels, chosen.missing, name)
    return replace(whole, schema=schema.with_flags(table))


def fit_features(frame: Any, labels: Any, chosen: TableOptions, name: str) -> CompleteTable:
    """The features of a learner's first table; `labels` are the columns that may have no gaps.

    Examples
    --------
    >>> frame = pd.DataFrame({"size": [1, 2], "week": [7, 7], "kind": ["ant", "bee"]})
    >>> chosen = TableOptions(label="kind", attributes="week")
    >>> fit_features(frame, frame[["kind"]], chosen, "table").columns
    ('size',)
    """
    about = column_names("attributes", chosen.attributes)
    left = column_names("drop", chosen.drop)
    columns = list(frame.columns)
    if twice := sorted({one for one in columns if columns.count(one) > 1}):
        raise bad(f"columns of {name}", "names that differ", twice)
    named = {"drop": left, "attributes": about, "dates": list(read_units(chosen.dates)),
             "categories": column_names("categories", chosen.categories)}  # fmt: skip
    for argument, names in named.items():
        for one in names:
            if one not in columns:
                raise unknown(argument, one, columns)
    away = {*left, *about, *chosen.labels}
    features = frame[[one for one in columns if one not in away]]
    if not features.shape[1]:
        raise bad(name, "at least one feature column besides the label", columns)
    return _fit(features, labels, chosen, [*left, *about], name)


def _recognise_text(features: Any, categories: list[str]) -> str | None:
    """The only feature, if it is text of so many kinds that it is no category."""
    if features.shape[1] != 1 or features.columns[0] in categories:
        return None
    values = features.iloc[:, 0]
    named = all(isinstance(one, str) for one in values) and len(values) > 0
    spaced = named and sum(" " in one.strip() for one in values) > len(values) / 2
    return str(features.columns[0]) if spaced and values.nunique() > MAX_TEXT_VALUES else None


def _read_texts(
    kind: type[Data], frame: Any, part: Array, text: str, chosen: TableOptions, name: str,
    options: dict[str, Any],
) -> Data:  # fmt: skip
    """Data of a column of texts and one of classes."""
    where = f"column {text!r} of {name}"
    if chosen.series is not None:
        raise bad("series", "None with a column of texts", chosen.series)
    gaps = frame[text].isna() | frame[chosen.labels].isna().any(axis=1)
    if gaps.any():
        if chosen.missing != "drop":
            expected = "a text and a label in every row (missing='drop' leaves others out)"
            raise bad(where, expected, f"{int(gaps.sum())} without")
        frame, part = frame[~gaps.to_numpy()], part[~gaps.to_numpy()]
    texts = check_texts(where, frame[text])
    y, classes = table_labels(frame[chosen.labels], chosen.separator, name)
    reader = make_tokenizer(chosen.tokenizer)
    ids = reader.encode(texts, chosen.length)
    fields: dict[str, Any] = {"columns": (text,), **options}
    if about := column_names("attributes", chosen.attributes):
        fields["attributes"] = {one: _read_attribute(one, frame[one], name) for one in about}
    made = split_by_part(kind, ids.float().numpy(), y, part, classes=classes, name=name, **fields)
    order = np.concatenate([np.flatnonzero(part == one) for one in ("train", "valid", "test")])
    return replace(
        made, x=ids[torch.from_numpy(order)], tokenizer=reader,
        texts=tuple(texts[row] for row in order.tolist()),
    )  # fmt: skip


def _read_attribute(column: str, values: Any, name: str) -> list[Any]:
    """Read a column of names or whole numbers."""
    if values.isna().any():
        raise bad(f"column {column!r} of {name}", "a value in each row", "missing ones")
    if pd.api.types.is_numeric_dtype(values):
        numbers = values.to_numpy(np.float64)
        if not (numbers % 1 == 0).all():
            got = numbers[numbers % 1 != 0][0]
            raise bad(f"column {column!r} of {name}", "names or whole numbers", got)
        return [int(one) for one in numbers]
    return [str(one) for one in values]


def split_by_part(
    kind: type[Data], x: Array, y: list[Any], part: Array, *, name: str, **fields: Any
) -> Data:
    """Data from rows of which each knows its part; without test rows, every fifth is held out."""
    fields = number_attributes(fields, len(part))
    rows = {one: np.flatnonzero(part == one) for one in ("train", "valid", "test")}
    order = np.concatenate([rows["train"], rows["valid"], rows["test"]])
    if fields.get("attributes"):
        fields["attributes"] = {
            key: values[torch.from_numpy(order)] for key, values in fields["attributes"].items()
        }
    pairs: dict[str, Any] = {
        one: (x[rows[one]], [y[row] for row in rows[one]]) for one in rows if len(rows[one])
    }
    if "train" not in pairs:
        raise bad(name, "rows for training", "none")
    first, labels = pairs.pop("train")
    return kind.from_arrays(first, labels, name=name, **pairs, **fields)


def _join_parts(parts: Mapping[str, Any], chosen: TableOptions, name: str) -> tuple[Any, Array]:
    """All rows as one table, and the part that each belongs to."""
    frames = {}
    for part, one in parts.items():
        if not isinstance(one, pd.DataFrame):
            raise bad(part, "a table (pandas.DataFrame)", type(one).__name__)
        frames[part] = one.set_axis([str(column) for column in one.columns], axis=1)
        twice = sorted({c for c in frames[part].columns if list(frames[part].columns).count(c) > 1})
        if twice:
            raise bad(f"columns of {name}", "names that differ", twice)
        if set(frames[part].columns) != set(frames["train"].columns):
            odd = sorted(set(frames[part].columns) ^ set(frames["train"].columns))
            raise bad(f"columns of {part}", f"those of {name}", f"only in one of them: {odd}")
    joined = pd.concat(list(frames.values()), ignore_index=True)
    code = np.concatenate([np.full(len(one), part) for part, one in frames.items()])
    if chosen.split is None:
        return joined, code
    if len(frames) > 1:
        raise bad("split", "None where test= or valid= is given", chosen.split)
    if chosen.split not in joined.columns:
        raise unknown(f"split of {name}", chosen.split, list(joined.columns))
    said = joined[chosen.split].map(lambda one: PARTS.get(str(one).strip().lower()))
    if said.isna().any():
        got = joined[chosen.split][said.isna()].iloc[0]
        raise bad(f"column {chosen.split!r}", "train, test or valid in each row", got)
    return joined, said.to_numpy()


def declare_features(
    features: Any, categories: Sequence[str], dates: Mapping[str, str], name: str
) -> tuple[TableFeature, ...]:
    """How each column becomes features: itself, or one of 0 and 1 for each of its values.

    Examples
    --------
    >>> frame = pd.DataFrame({"size": [1, 2], "hue": ["red", "blue"], "wet": [True, False]})
    >>> [(one.name, one.kind) for one in declare_features(frame, [], {}, "table")]
    [('size', 'number'), ('hue', 'category'), ('wet', 'boolean')]
    """
    return tuple(
        _declare(column, features[column], column in categories, dates.get(column), name)
        for column in features.columns
    )


def _declare(column: str, values: Any, said: bool, unit: str | None, name: str) -> TableFeature:
    where = f"column {column!r} of {name}"
    if unit is not None:
        return _declare_time(column, values, unit, where)
    if not said and pd.api.types.is_bool_dtype(values):
        return TableFeature(name=column, kind="boolean")
    if not said and _is_number(values):
        if pd.api.types.is_complex_dtype(values):
            raise bad(where, "real numbers", str(values.dtype))
        return TableFeature(name=column, kind="number")
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if not said and kind in ("datetime64", "datetime", "date"):
        expected = (
            f"numbers or names (dates=[{column!r}] takes the days since the first one, "
            f"drop=[{column!r}] leaves it out)"
        )
        raise bad(where, expected, "points in time")
    if kind in ("timedelta64", "timedelta"):
        expected = f"numbers or names (frame[{column!r}].dt.total_seconds() are seconds)"
        raise bad(where, expected, "spans of time")
    return TableFeature(
        name=column, kind="category", categories=_list_categories(column, values, said, name)
    )


def _is_number(values: Any) -> bool:
    """Whether a column is one of numbers, whatever its type."""
    kinds = ("integer", "floating", "mixed-integer-float", "decimal")
    if values.dtype == object:
        return pd.api.types.infer_dtype(values, skipna=True) in kinds
    return bool(pd.api.types.is_numeric_dtype(values))


def _declare_time(column: str, values: Any, unit: str, where: str) -> TableFeature:
    check_choice(f"dates[{column!r}]", unit, UNITS)
    moments = [one for one in read_moments(values, where) if one is not None]
    if not moments:
        raise bad(where, "at least one point in time", "none")
    first = min(map(in_utc, moments)).replace(hour=0, minute=0, second=0, microsecond=0)
    if all(one.tzinfo is None for one in moments):
        first = first.replace(tzinfo=None)  # as the column has it
    return TableFeature(name=column, kind="time", unit=unit, origin=first.isoformat())


def _list_categories(column: str, values: Any, said: bool, name: str) -> tuple[Any, ...]:
    where = f"column {column!r} of {name}"
    there = values[~values.isna().to_numpy()]
    cells = list_cells(there)
    if wrong := [row for row, one in enumerate(cells) if isinstance(one, NO_CELLS)]:
        got = f"{cells[wrong[0]]!r} in row {there.index[wrong[0]]}"
        raise bad(where, "one number or text in each row", got)
    whole = pd.api.types.is_numeric_dtype(values)
    kinds = sorted(set(cells)) if whole else sorted(set(map(str, cells)))
    if len(kinds) > MAX_TEXT_VALUES and not said:
        expected = (
            f"numbers, or at most {MAX_TEXT_VALUES} categories (drop=[{column!r}] leaves it out, "
            f"categories=[{column!r}] takes it as it is)"
        )
        got = f"text with {len(kinds):,} different values in {len(values):,} rows"
        raise bad(where, expected, got)
    if whole and not all(np.isfinite(one) for one in kinds):
        raise bad(where, "finite numbers as categories", "inf")
    if not whole and not said:
        _refuse_mixed_column(column, values, kinds, name)
    return tuple(kinds)


def _refuse_mixed_column(column: str, values: Any, kinds: list[str], name: str) -> None:
    """Many numbers and a few words are a column of numbers in which some cells are wrong."""
    wrong = pd.to_numeric(pd.Series(kinds, dtype=object), errors="coerce").isna().to_numpy()
    words, numbers = np.array(kinds, dtype=object)[wrong], int((~wrong).sum())
    if not len(words) or numbers <= MAX_CODES or len(words) > numbers / 2:
        return
    first = int(np.flatnonzero(values.map(str).isin(words).to_numpy())[0])
    expected = (
        f"numbers in all rows, or names (categories=[{column!r}] takes each number as a name); "
        "an empty cell is a missing value"
    )
    got = f"{values.iloc[first]} in row {first}, numbers in others"
    raise bad(f"column {column!r} of {name}", expected, got)


def _group_series(
    kind: type[Data], x: Array, y: list[Any], classes: Any, frame: Any, part: Array,
    chosen: TableOptions, name: str, fields: dict[str, Any],
) -> Data:  # fmt: skip
    """A sample for each value of the column `series`: its rows, one after the other."""
    check_choice("pad", chosen.pad, PADS)
    ids = frame[chosen.series]
    if ids.isna().any():
        raise bad(f"column {chosen.series!r}", "a value in each row", "missing ones")
    order = np.arange(len(x))
    if chosen.time is not None:
        order = np.argsort(frame[chosen.time].to_numpy(), kind="stable")
    groups: dict[Any, list[int]] = {}
    for row in order.tolist():
        groups.setdefault(ids.iloc[row], []).append(row)
    for one, rows in groups.items():
        if any(y[row] != y[rows[0]] or part[row] != part[rows[0]] for row in rows):
            got = f"several in {chosen.series} {one}"
            raise bad(name, "one label and one part for all rows of a series", got)
    first = [rows[0] for rows in groups.values()]
    series = [x[rows] for rows in groups.values()]
    steps = [len(one) for one in series]
    fields["attributes"] = {"length": torch.tensor(steps)}
    return split_by_part(
        kind, pad_series(series, max(steps), chosen.pad), [y[row] for row in first], part[first],
        classes=classes, name=name, **fields,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# The classes of the rows

# different values that any column of classes may have, however short the table
MIN_ROWS_PER_LABEL = 20


def table_labels(labels: Any, separator: str | None, name: str) -> tuple[list[Any], list[str]]:
    """A label, or a list of labels, for each row, and the names of all classes.

    Numbers are names, too: the classes 3, 7 and 9 are three, in this order.

    Examples
    --------
    >>> table_labels(pd.DataFrame({"kind": [7, 3, 7]}), None, "table")
    (['7', '3', '7'], ['3', '7'])
    >>> table_labels(pd.DataFrame({"kind": ["a;b", "b"]}), ";", "table")
    ([['a', 'b'], ['b']], ['a', 'b'])
    >>> table_labels(pd.DataFrame({"wet": [1, 0], "cold": [1, 1]}), None, "table")
    ([['wet', 'cold'], ['cold']], ['wet', 'cold'])
    """
    if len(labels.columns) > 1:
        return _indicator_columns(labels, name)
    column = labels.columns[0]
    values = labels[column]
    if separator is not None:
        cells = [sorted({p.strip() for p in str(one).split(separator)} - {""}) for one in values]
        empty = [row for row, one in enumerate(cells) if not one]
        if empty:
            where = f"column {column!r} of {name}"
            raise bad(where, "a label in every row", f"none in row {empty[0]}")
        return cells, sorted({one for cell in cells for one in cell})
    if pd.api.types.is_float_dtype(values):
        parted = values.to_numpy(np.float64)
        if not (parted == np.round(parted)).all():
            first = parted[parted != np.round(parted)][0]
            expected = "classes: whole numbers or names (regression targets are not supported)"
            raise bad(f"column {column!r} of {name}", expected, float(first))
        values = values.astype(np.int64)
    kinds = sorted(values.unique().tolist()) if pd.api.types.is_numeric_dtype(values) \
        else sorted(values.map(str).unique())  # fmt: skip
    if len(kinds) > max(MIN_ROWS_PER_LABEL, len(values) // 2):
        got = f"{len(kinds):,} different values in {len(values):,} rows"
        raise bad(f"column {column!r} of {name}", "a column of classes, each with rows", got)
    return [str(one) for one in values], [str(one) for one in kinds]


def _indicator_columns(labels: Any, name: str) -> tuple[list[Any], list[str]]:
    """One column of yes and no for each class."""
    for column in labels.columns:
        values = labels[column]
        if not pd.api.types.is_numeric_dtype(values) or not values.isin([0, 1]).all():
            got = values[~values.isin([0, 1])].iloc[0] if values.dtype != object else values.iloc[0]
            expected = "0 and 1, in one column per class"
            raise bad(f"column {column!r} of {name}", expected, got)
    table, classes = labels.to_numpy().astype(bool), list(labels.columns)
    none = np.flatnonzero(~table.any(1))
    if len(none):
        raise bad("label", f"at least one class in every row of {name}", f"none in row {none[0]}")
    rows: list[Any] = [[classes[i] for i in np.flatnonzero(row)] for row in table]
    if all(len(row) == 1 for row in rows):
        rows = [row[0] for row in rows]
    return rows, classes


# ------------------------------------------------------------------------------------------------
# Missing values

_SHOWN = 12  # columns in a message


@dataclass(frozen=True, eq=False)
class CompleteTable:
    """All features as one array without gaps, or with gaps that streams are to fill."""

    x: Array
    columns: tuple[str, ...]
    kept: Array  # [rows of the table] which of them are left
    notes: tuple[str, ...] = ()
    fill: bool = False
    schema: TableSchema | None = None


def describe_gaps(gaps: dict[str, int]) -> str:
    """How many values each column misses, in words.

    Examples
    --------
    >>> describe_gaps({"age": 3, "hue": 1})
    'age 3, hue 1'
    """
    shown = ", ".join(f"{column} {count:,}" for column, count in list(gaps.items())[:_SHOWN])
    return shown + (f", ... ({len(gaps)} columns)" if len(gaps) > _SHOWN else "")


def repair_missing(
    table: Sequence[NumericColumn], labels: Any, missing: Any, name: str
) -> CompleteTable:
    """The features, after the remedy that `missing` names."""
    check_missing(missing)
    rows = len(labels)
    gaps = {one.column: int(one.gaps.sum()) for one in table if one.gaps.any()}
    bare = labels.isna()
    without = {column: int(bare[column].sum()) for column in labels.columns if bare[column].any()}
    kept = np.ones(rows, bool)
    if missing == "drop":
        kept = ~(bare.any(axis=1).to_numpy() | np.any([one.gaps for one in table], axis=0))
        if not kept.any():
            raise bad("missing", f"another way than 'drop': every row of {name} misses a value",
                      describe_gaps({**without, **gaps}))  # fmt: skip
    elif without:
        expected = f"a label in every row of {name} (missing='drop' leaves the others out)"
        raise bad("label", expected, f"missing values: {describe_gaps(without)} of {rows:,} rows")
    if gaps and missing == "error":
        expected = (
            f"'drop' (skip these rows), 'flag' (0, plus an indicator column), 'mean' (of the first "
            f"task) or a number, because {name} has missing values; on the command line --set "
            "missing=drop"
        )
        raise bad("missing", expected, f"{describe_gaps(gaps)} of {rows:,} rows")
    parts = [_fill_gaps(one, missing) for one in table]
    x = np.concatenate([one.x for one in parts], 1)[kept].astype(np.float32)
    columns = tuple(column for one in parts for column in one.columns)
    lost = rows - int(kept.sum())
    notes = _notes(lost, {**without, **gaps}, missing)
    return CompleteTable(x, columns, kept, notes, fill=bool(gaps) and missing == "mean")


def _notes(lost: int, gaps: dict[str, int], missing: Any) -> tuple[str, ...]:
    if not gaps:
        return ()
    ways = {
        "drop": f"{plural(lost, 'row')} left out",
        "flag": "replaced by 0, marked in an extra column",
        "mean": "replaced by the mean of the first task",
    }
    way = ways.get(str(missing), f"replaced by {missing}")
    return (f"missing values ({describe_gaps(gaps)}): {way}",)


def _fill_gaps(one: NumericColumn, missing: Any) -> NumericColumn:
    """A column after the remedy; names that are missing are none of the known ones."""
    if not one.gaps.any() or missing in ("drop", "error"):
        return one
    x = one.x.copy()
    if missing == "flag":
        x[one.gaps] = 0
        flagged = np.concatenate([x, one.gaps[:, None].astype(np.float64)], 1)
        return NumericColumn(one.column, (*one.columns, f"{one.column} missing"), flagged, one.gaps)
    if not one.names:
        x[one.gaps] = np.nan if missing == "mean" else check_float("missing", missing, -np.inf)
    return NumericColumn(one.column, one.columns, x, one.gaps)
