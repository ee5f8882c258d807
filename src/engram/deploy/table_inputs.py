"""Tables as inputs of a learner: encoded by the schema of its first table, with labels where they
have some, and requests and files that hold tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.standardization import compute_moments, fit_standardization
from engram.data.tables.table_rows import is_table, to_frame
from engram.data.tables.table_schema import (
    MISSING_WORDS,
    TableReport,
    TableSchema,
    translate_features,
)
from engram.data.texts.tokenization import are_texts
from engram.engine.portable_state import describe_inputs
from engram.errors import bad, check_bool, unknown


def read_schema(about: Mapping[str, Any], table: Any) -> TableSchema:
    """The schema in a description of inputs; without one, that behind the names of its columns."""
    if "schema" in about:
        return TableSchema.from_facts(about["schema"])
    return TableSchema.from_columns(about["columns"], table)


class TableInputs(NamedTuple):
    """Inputs of a network, and the report on the table that they came from, if any."""

    x: Any
    report: TableReport | None


def encode_inputs(x: Any, about: Mapping[str, Any], argument: str = "x") -> TableInputs:
    """Encode rows with named columns as a learner needs them; other inputs stay as they are.

    Rows may be a table, records or columns by name.

    Examples
    --------
    >>> schema = {"features": [{"name": "size", "kind": "number"}], "missing": "error"}
    >>> about = {
    ...     "columns": ["size"],
    ...     "fill": [],
    ...     "schema": schema | {"label": [], "apart": [], "separator": None},
    ... }
    >>> found = encode_inputs([{"id": 7, "size": "1.5"}], about)
    >>> found.x.tolist(), found.report.ignored
    ([[1.5]], ('id',))
    """
    if not is_table(x):
        return TableInputs(x, None)
    table = to_frame(x, argument)
    if "tokenizer" in about:
        return TableInputs(select_texts(table, about["columns"], argument).tolist(), None)
    if not about["columns"]:
        if table is x:  # numbers by their places, as they were learnt
            return TableInputs(x, None)
        expected = f"rows of shape {tuple(about['shape'])}, as in training"
        raise bad(argument, expected, "names of columns, of which the model knows none")
    found = read_schema(about, table).encode(table, argument)
    _refuse_unfilled(found.x, about, argument)
    return TableInputs(found.x, found.report)


def _refuse_unfilled(x: Array, about: Mapping[str, Any], argument: str) -> None:
    """Raise for missing values that no mean of training can take the place of."""
    if about["fill"] or not np.isnan(x).any():
        return
    row, place = (int(one[0]) for one in np.nonzero(np.isnan(x)))
    where = f"column {about['columns'][place]!r} of {argument}"
    raise bad(where, "a value in each row, as in training", f"none in row {row}")


def select_texts(table: Any, columns: Sequence[str], name: str = "x") -> Any:
    """The column of texts in a table: the one of training, or the only one.

    Examples
    --------
    >>> import pandas as pd
    >>> select_texts(pd.DataFrame({"id": [7], "said": ["hello there"]}), []).tolist()
    ['hello there']
    """
    if columns and columns[0] in table.columns:
        return table[columns[0]]
    words = [one for one in table.columns if are_texts(table[one])]
    if len(words) != 1:
        wanted = f"a column {columns[0]!r} of texts" if columns else "one column of texts"
        raise bad(f"columns of {name}", wanted, list(table.columns))
    return table[words[0]]


# Tables with labels.


def is_bytes(x: Any) -> bool:
    """Whether a table is an array of bytes, such as images as rows of uint8.

    Examples
    --------
    >>> import pandas as pd
    >>> is_bytes(pd.DataFrame({"p0": [255]}, dtype="uint8")), is_bytes([{"p0": 255}])
    (True, False)
    """
    return hasattr(x, "dtypes") and all(one == np.uint8 for one in x.dtypes)


@dataclass(frozen=True, kw_only=True)
class FirstTableOptions:
    """What `Learner.learn` may be told of its first table; see `Data.from_frame`."""

    missing: str | float = "error"
    categories: Sequence[str] = ()
    dates: str | Sequence[str] | Mapping[str, str] = ()
    drop: str | Sequence[str] = ()
    attributes: str | Sequence[str] = ()
    separator: str | None = None
    standardize: bool = False


class LabelledTable(NamedTuple):
    """Features and labels of a table, and a description of the features."""

    x: Array | torch.Tensor
    y: Any  # labels as given, or names (of all labels of each row, if it may have several)
    classes: list[str] | None  # of the names
    about: dict[str, Any]
    report: TableReport | None = None


def read_first_table(x: Any, y: Any, label: Any, given: Mapping[str, Any]) -> LabelledTable:
    """Fit a schema to a learner's first table, and encode it."""
    from engram.data.tables.data_frame import TableOptions, fit_features, read_units, table_labels

    for name in given:
        if name not in FirstTableOptions.__dataclass_fields__:
            raise unknown("learn", name, FirstTableOptions.__dataclass_fields__)
    told = FirstTableOptions(**given)
    check_bool("standardize", told.standardize)
    frame = to_frame(x).infer_objects()
    frame = frame.set_axis([str(one) for one in frame.columns], axis=1)
    chosen = TableOptions(
        label=_choose_label(frame, y, label, ()), missing=told.missing, drop=told.drop,
        categories=told.categories, dates=read_units(told.dates), attributes=told.attributes,
        separator=told.separator,
    )  # fmt: skip
    labels = blank_words(frame[[] if y is not None else chosen.labels])
    found = fit_features(frame, labels, chosen, "x")
    classes = None
    if y is None:
        y, classes = table_labels(labels[found.kept], told.separator, "x")
    else:
        y = _keep_labels(y, found.kept)
    rows = torch.arange(len(found.x))
    data = Data(
        x=torch.from_numpy(found.x), y=torch.zeros(len(rows), 1, dtype=torch.long), train=rows,
        test=rows[:0], classes=("",), name="learner", columns=found.columns, schema=found.schema,
        standardize=told.standardize, fill=found.fill,
    )  # fmt: skip
    data = fit_standardization(data, rows)
    assert isinstance(data.x, torch.Tensor)
    return LabelledTable(data.x, y, classes, describe_first(data))


def read_later_table(x: Any, y: Any, label: Any, about: dict[str, Any]) -> LabelledTable:
    """Encode a further table of a learner, and read its labels."""
    from engram.data.tables.data_frame import table_labels

    frame = to_frame(x)
    names = [str(one) for one in frame.columns]
    texts = "tokenizer" in about
    schema = None if texts or not about["columns"] else read_schema(about, frame)
    columns = list(
        _choose_label(frame, y, label, () if schema is None else schema.label) or ()
    )  # fmt: skip
    labels = frame.iloc[:, [names.index(one) for one in columns]]
    labels = blank_words(labels.set_axis(columns, axis=1))
    kept, report, found = np.ones(len(frame), bool), None, x
    if schema is None:
        rest = [place for place, one in enumerate(names) if one not in columns]
        found = encode_inputs(frame.iloc[:, rest], about).x
    else:
        schema = replace(schema, label=schema.label or tuple(columns))
        drops = schema.missing == "drop"
        if drops and y is None:
            kept = ~labels.isna().any(axis=1).to_numpy()
        encoded = schema.encode(frame.iloc[np.flatnonzero(kept)], drop=True)
        kept[kept] = encoded.kept
        found, report = encoded.x, encoded.report
        _refuse_unfilled(found, about, "x")
        if "schema" in about:
            about = {**about, "schema": schema.facts()}
    if y is not None:
        return LabelledTable(found, _keep_labels(y, kept), None, about, report)
    labels = labels[kept]
    if labels.isna().any(axis=None):
        raise bad("label", "a label in every row", f"{int(labels.isna().any(axis=1).sum())} "
                  "rows without")  # fmt: skip
    read, classes = table_labels(labels, None if schema is None else schema.separator, "x")
    return LabelledTable(found, read, classes, about, report)


def _choose_label(frame: Any, y: Any, label: Any, known: Sequence[str]) -> list[str] | None:
    """Names of the columns with labels: as given, as in the first table, or that `y` has."""
    from engram.data.tables.data_frame import column_names

    names = [str(one) for one in frame.columns]
    if y is not None:
        if label is not None:
            raise bad("label", "None where y is given", label)
        own = getattr(y, "name", None)
        return [own] if isinstance(own, str) and own in names else None
    chosen = column_names("label", label) or list(known)
    if not chosen:
        raise bad("label", "the column that has the classes, or labels y", f"neither; {names}")
    for one in chosen:
        if one not in names:
            raise unknown("label", one, names)
        if names.count(one) > 1:
            raise bad("columns of x", "names that differ", f"{one!r} twice")
    return chosen


def blank_words(labels: Any) -> Any:
    """Labels without the words that text files have for missing values.

    Examples
    --------
    >>> import pandas as pd
    >>> blank_words(pd.DataFrame({"kind": ["ant", "NA", ""]}))["kind"].isna().tolist()
    [False, True, True]
    """
    return labels.mask(labels.isin(list(MISSING_WORDS)))


def _keep_labels(y: Any, kept: Array) -> Any:
    if len(y) != len(kept):
        raise bad("y", f"one label for each of {len(kept)} rows", f"{len(y)} labels")
    if kept.all():
        return y
    return [one for one, keep in zip(list(y), kept.tolist(), strict=True) if keep]


# Data sets made of tables.


def describe_first(data: Data) -> dict[str, Any]:
    """Describe the inputs of a learner's first data, with means for gaps of later tables."""
    about = describe_inputs(data)
    if data.schema is not None and data.schema.missing == "mean" and not about["fill"]:
        about["fill"] = compute_moments(data, data.train).mean.tolist()
    return about


def translate_data(data: Data, about: Mapping[str, Any]) -> Data:
    """Data whose features are those of a learner, where both came from tables.

    Examples
    --------
    >>> import warnings
    >>> import pandas as pd
    >>> one, two = (
    ...     Data.from_frame(pd.DataFrame({"hue": hues, "kind": ["ant", "ant"]}), label="kind")
    ...     for hues in (["red", "blue"], ["red", "green"])
    ... )
    >>> with warnings.catch_warnings(action="ignore"):
    ...     translate_data(two, describe_first(one)).x.tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    own = data.schema
    if own is None or not about["columns"] or "tokenizer" in about:
        if list(data.columns) != about["columns"]:
            expected = f"the columns of training, {about['columns'] or 'without names'}"
            raise bad(f"columns of {data.name}", expected, list(data.columns))
        return data
    assert isinstance(data.x, torch.Tensor)
    other = read_schema(about, own.decode(data.x[:0].numpy()))
    if own.features == other.features:
        return data
    found = translate_features(data.x, own, other, data.name)
    found.report.warn()
    return replace(
        data, x=torch.from_numpy(found.x), columns=other.columns, schema=other, mean=(), std=(),
        standardize=False, fill=False,
    )  # fmt: skip
