"""Later tables as they come: an answer or a clear refusal, never a wrong column.

An oracle of its own decides: it knows only what the first table was, and looks at each value by
itself. Many more tables: ``ENGRAM_TABLES=2000 pytest tests/data/tables/test_table_schema.py``.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import os
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import engram
from engram.data.tables.table_rows import read_csv_texts, read_parquet_table, to_frame
from engram.data.tables.table_schema import TableSchema
from engram.errors import BadArgument

TABLES = int(os.environ.get("ENGRAM_TABLES", "40"))
HUES = ("1", "2.0", "Rot", "red", "rot ", "ünïcödé=1", "NA", "08")
ZIPS = (-1, 0, 7, 8001, 2**53)
DAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
           "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]  # fmt: skip
COLUMNS = ["größe", "hue", "zip", "wet", "when"]  # of numbers, texts, codes, booleans, times


def first_table():
    n = 16
    return pd.DataFrame({
        "größe": np.arange(n) / 4, "hue": np.resize(HUES, n), "zip": np.resize(ZIPS, n),
        "wet": np.arange(n) % 3 == 0, "when": [DAY + dt.timedelta(hours=6 * i) for i in range(n)],
        "kind": np.resize(["ant", "bee"], n),
    })  # fmt: skip


@pytest.fixture(scope="module")
def schemas():
    made = {}
    for missing in ("error", -3.0):
        data = engram.Data.from_frame(first_table(), label="kind", categories="zip", dates="when",
                                      missing=missing)  # fmt: skip
        made[missing] = data.schema
    names = (*(f"hue={one}" for one in sorted(HUES)), *(f"zip={one}" for one in ZIPS))
    assert made["error"].columns == ("größe", *names, "wet", "when")
    return made


# ------------------------------------------------------------------------------------------------
# The oracle: what one value must become, None if missing, REFUSED if it is of no kind

REFUSED, ANY = "refused", "any"


MOMENTS = (np.datetime64, np.timedelta64)  # which are integers to numpy


def is_gap(value):
    if value is None or value is pd.NaT or value is pd.NA:
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def exact(value):
    """The number that a value is or says, as a fraction; None if it is none."""
    if isinstance(value, str):
        text = value.strip()
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
            return None
        value = Decimal(text) if len(text) < 300 else math.inf
    if isinstance(value, (bool, np.bool_)):
        return Fraction(int(value))
    if isinstance(value, MOMENTS):
        return None
    if not isinstance(value, (int, float, np.integer, np.floating, Decimal)):
        return None
    return math.inf if not math.isfinite(float_of(value)) else Fraction(value)


def float_of(value):
    try:
        return float(value)
    except OverflowError:
        return math.inf


def expect_number(value):
    if isinstance(value, str) and value.strip() in MISSING:
        return None
    number = exact(value)
    if number is None or number is math.inf:
        return REFUSED
    if abs(float_of(number)) > 3.5e38:  # beyond float32
        return REFUSED
    return float(np.float32(float_of(number)))


def expect_boolean(value):
    if isinstance(value, str):
        if value.strip().lower() in ("true", "false"):
            return float(value.strip().lower() == "true")
        if value.strip() in MISSING:
            return None
    number = exact(value)
    return float(number) if number in (0, 1) else REFUSED


def expect_hue(value):
    """Which of the texts it is: a text only itself, a number what is written like it."""
    if isinstance(value, str):
        if value in HUES:
            return value
        return None if value.strip() in MISSING else ""
    if isinstance(value, (bool, np.bool_)):
        return ""
    number = exact(value)
    if number in (1, 2) and not isinstance(value, bool):
        return {1: "1", 2: "2.0"}[int(number)]
    return str(value) if str(value) in HUES else ""


def expect_zip(value):
    """Which of the codes it equals, exactly."""
    if isinstance(value, str) and value.strip() in MISSING:
        return None
    number = exact(value)
    if number not in ZIPS:
        return ""
    if number >= 2**53 and not isinstance(value, (int, np.integer, str, Decimal)):
        return ""  # a rounded number may have been another code
    whole_text = not isinstance(value, str) or re.fullmatch(r"[+-]?[0-9]+", value.strip())
    return "" if number >= 2**53 and not whole_text else int(number)


def expect_time(value):
    if isinstance(value, str):
        if value.strip() in MISSING:
            return None
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            return REFUSED
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime(warn=False)
    if type(value) is dt.date:
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime):
        return REFUSED
    moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return float(np.float32((moment - DAY) / dt.timedelta(days=1)))


EXPECT = {"größe": expect_number, "hue": expect_hue, "zip": expect_zip, "wet": expect_boolean,
          "when": expect_time}  # fmt: skip


def expect_row(values, missing):
    """The features of a row, or REFUSED."""
    found = []
    for column in COLUMNS:
        value = values[column]
        if isinstance(value, (list, dict, bytes, tuple, np.ndarray)):
            return REFUSED
        wanted = None if is_gap(value) else EXPECT[column](value)
        if wanted == REFUSED or (wanted is None and missing == "error"):
            return REFUSED
        if column in ("hue", "zip"):
            known = sorted(HUES) if column == "hue" else ZIPS
            found += [float(wanted is not None and wanted == one and wanted != "")
                      for one in known]  # fmt: skip
        else:
            found.append(missing if wanted is None else wanted)
    return found


# ------------------------------------------------------------------------------------------------
# Tables as they come

TEXTS = [
    *HUES, *MISSING, "Red", " red", "1", "1.0", "01", "2", "+7", "7.0", "8001", "-1", "1e3", "1,5",
    "1_000", "٣", "inf", "-Infinity", "0x10", "true", "FALSE", "yes", "tall", "é", "\ufeffred",
    "🦊",
    "2026-03-05", "2026-03-05T12:30:00+02:00", "20260305", "05.03.2026", "now", "9" * 40,
    "9007199254740992", "9007199254740993", "9007199254740992.0", "1e400", "hue=red", "nan ", "\t",
]  # fmt: skip
TEXT = st.sampled_from(TEXTS)
SAMPLES = [
    0, 1, 2, 7, -1, 8001, 2**53, 2**53 + 1, 2**70, 10**400, -(10**39), True, False, 1.0, 2.0, 7.0,
    8001.0, float(2**53), 0.1, math.inf, Decimal("NaN"), Decimal("1.00"), Decimal(7),
    Decimal(2**53), np.int8(7), np.uint64(2**53), np.float32(0.1), np.bool_(True), np.str_("red"),
]  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from(SAMPLES), st.integers(-3, 9), st.floats(width=64),
    st.decimals(-9, 9, places=1),
)  # fmt: skip
TIMES = st.one_of(
    st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)),
    st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2050, 1, 1),
                 timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5.5))])),
    st.dates(dt.date(1990, 1, 1), dt.date(2050, 1, 1)),
    st.sampled_from([pd.Timestamp("2026-03-05 01:02:03.5"), pd.NaT, dt.timedelta(days=1)]),
)  # fmt: skip
ODDITIES = [
    None,
    pd.NA,
    math.nan,
    b"red",
    ["red"],
    {"a": 1},
    (1,),
    1j,
    object,
]
ODD = st.sampled_from(ODDITIES)
LIKELY = {  # what mostly comes in a column
    "größe": st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.booleans(),
                       st.sampled_from(["3", " 4.5", "1e-3", None, Decimal("2.5")])),
    "hue": st.one_of(st.sampled_from(HUES), st.sampled_from(["green", "Red", 1, 2, 2.0, None])),
    "zip": st.one_of(st.sampled_from(ZIPS), st.sampled_from(["7", "08001", 7.0, 9, None, "x"])),
    "wet": st.one_of(st.booleans(), st.sampled_from([0, 1, 1.0, "true", "False", None])),
    "when": st.one_of(st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2027, 1, 1)),
                      st.sampled_from(["2026-03-05", "2026-03-05T12:30+02:00", None])),
}  # fmt: skip
DTYPES = ["category", "string", "Int64", "Float64", "boolean", "float32", "int8", "uint64", "bool",
          "str", "datetime64[ns]", "datetime64[s, UTC]", "int64[pyarrow]", "string[pyarrow]",
          "timestamp[us][pyarrow]", "bool[pyarrow]", "double[pyarrow]"]  # fmt: skip
EXTRA = st.sampled_from(
    ["id", "kind", "Hue", "hue ", "größe missing", "grosse", "zip=7", "0", "🦊"]
)


@st.composite
def tables(draw):
    """A table, and how it is handed over."""
    rows = draw(st.integers(0, 5))
    values, odd = {}, draw(st.sets(st.sampled_from(COLUMNS), max_size=2))
    for column in COLUMNS:
        kind = draw(st.sampled_from([TEXT, NUMBERS, TIMES, st.one_of(LIKELY[column], ODD),
                                     st.none()])) if column in odd else LIKELY[column]  # fmt: skip
        values[column] = draw(st.lists(kind, min_size=rows, max_size=rows))
    frame = pd.DataFrame({c: pd.Series(v, dtype=object) for c, v in values.items()})
    for column in COLUMNS:
        if draw(st.integers(0, 4)) == 0:
            try:
                frame[column] = frame[column].astype(draw(st.sampled_from(DTYPES)))
            except Exception:
                continue
    order = draw(st.permutations(COLUMNS))
    names = list(order)
    if draw(st.integers(0, 9)) == 0:  # a column is not there, or is called otherwise
        lost = draw(st.sampled_from(names))
        names[names.index(lost)] = draw(EXTRA)
    frame = frame[list(order)].set_axis(names, axis=1)
    for extra in draw(st.lists(EXTRA, max_size=2)):
        frame.insert(draw(st.integers(0, len(frame.columns))), extra, draw(st.sampled_from(
            ["red", 7, None])), allow_duplicates=True)  # fmt: skip
    if draw(st.integers(0, 9)) == 0:  # twice the same name
        twice = draw(st.sampled_from(COLUMNS))
        frame.insert(0, twice, "red", allow_duplicates=True)
    form = draw(st.sampled_from(["frame", "frame", "records", "columns", "csv", "parquet"]))
    return (
        frame,
        form,
        draw(st.sampled_from(["error", -3.0, -3.0, -3.0])),
        draw(st.sampled_from([",", ";", "\t"])),
        draw(st.sampled_from(["utf-8", "utf-8-sig"])),
    )


def hand_over(frame, form, separator, encoding, tmp_path):
    """The table as the reader gives it, or as it is if this form cannot hold it."""
    if form == "frame":
        return frame
    if form in ("records", "columns"):
        if frame.columns.duplicated().any() or not len(frame):
            return frame  # a dict has a name once; no records are no table
        made = frame.to_dict("records" if form == "records" else "list")
        return to_frame(made)
    if form == "csv":
        text = io.StringIO()
        frame.astype(object).to_csv(text, index=False, sep=separator)
        try:
            content = text.getvalue().encode(encoding)
        except UnicodeEncodeError:
            return frame
        path = tmp_path / "t.csv"
        path.write_bytes(content)
        return read_csv_texts(path)
    try:
        frame.to_parquet(tmp_path / "t.parquet")
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
        return frame  # Arrow holds columns of one type
    return read_parquet_table(tmp_path / "t.parquet")


def cells(table, column):
    return [one if isinstance(one, MOMENTS) or not isinstance(one, np.generic) else one.item()
            for one in table[column].astype(object).tolist()]  # fmt: skip


def compare(schema, table, missing):
    """What came of it: an answer that the oracle confirms, or a refusal that it does not deny."""
    names = [str(one) for one in table.columns]
    wanted = REFUSED
    if not set(COLUMNS) - set(names) and not any(names.count(one) > 1 for one in COLUMNS):
        columns = {one: cells(table.set_axis(names, axis=1), one) for one in COLUMNS}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        wanted = [expect_row(row, missing) for row in rows]
        if REFUSED in wanted:
            wanted = REFUSED
    found = refusal = None
    try:
        found = schema.encode(table)
    except BadArgument as problem:
        refusal = str(problem)
    if found is None:
        assert wanted == REFUSED, f"{refusal}, but wanted {wanted}"
        assert re.match(r"column '(größe|hue|zip|wet|when)' of x: |columns of x: ", refusal)
        return "refused"
    assert wanted != REFUSED, f"nothing is encoded, but got {found.x.tolist()}"
    width = len(schema.columns)
    np.testing.assert_array_equal(found.x, np.float32(wanted).reshape(len(table), width))
    strange = {
        column: dict(Counter(str(one) for one in columns[column]
                             if not is_gap(one) and EXPECT[column](one) == ""))
        for column in ("hue", "zip")
    }  # fmt: skip
    assert found.report.unseen == {column: some for column, some in strange.items() if some}
    assert set(found.report.ignored) == set(names) - {*COLUMNS, "kind"}
    return "answered"


def test_every_odd_value_in_every_column(schemas):
    """Each by itself; as categories, also below equal ones of another type or spelling."""
    first, answers = first_table(), Counter()

    def try_values(column, values):
        table = first.iloc[np.resize(np.arange(len(first)), len(values))].reset_index(drop=True)
        table[column] = pd.Series(values, dtype=object)
        answers[compare(schemas[-3.0], table, -3.0)] += 1

    for column in COLUMNS:
        for value in [*TEXTS, *SAMPLES, *ODDITIES, pd.NaT, dt.date(2026, 3, 5), DAY]:
            if column not in ("hue", "zip") or any(value is one for one in ODDITIES):
                try_values(column, [value])
        for moment in (np.datetime64("2026-03-05"), np.timedelta64(3, "s")):
            if column not in ("hue", "zip"):
                try_values(column, [moment])
    for column in ("hue", "zip"):
        known = [*TEXTS, *SAMPLES, True, 1, 1.0, Decimal(1), Decimal("1.00"), 0.0, -0.0]
        try_values(column, known)
        try_values(column, known[::-1])
    assert min(answers.values()) > 20
    for column in COLUMNS:
        twins = pd.concat([first[[column]], first], axis=1)
        assert compare(schemas[-3.0], twins, -3.0) == "refused"


def test_odd_tables_are_answered_or_refused(schemas, tmp_path_factory):
    tmp_path, counts = tmp_path_factory.mktemp("tables"), Counter()

    @settings(max_examples=TABLES, phases=[Phase.generate], database=None, deadline=None,
              derandomize=TABLES < 1000, suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(tables())
    def holds(drawn):
        frame, form, missing, separator, encoding = drawn
        try:
            table = hand_over(frame, form, separator, encoding, tmp_path)
        except BadArgument:  # such as a quotation mark that never ends
            counts["unreadable"] += 1
            return
        counts[compare(schemas[missing], table, missing)] += 1
        counts["frame" if table is frame else form] += 1

    holds()
    print(dict(counts))  # with `pytest -s`
    assert min(counts["answered"], counts["refused"]) > TABLES / 20


@st.composite
def first_tables(draw):
    """A first table, and what is said of it."""
    frame = draw(tables())[0]
    names = list(dict.fromkeys(str(one) for one in frame.columns if one != "kind"))
    frame = frame[[one for one in frame.columns if one != "kind"]]
    frame["kind"] = draw(st.lists(st.sampled_from(["ant", "bee", "é"]), min_size=len(frame),
                                  max_size=len(frame)))  # fmt: skip
    some = st.lists(st.sampled_from(names), max_size=1)
    return frame, {
        "categories": draw(some), "dates": draw(st.sampled_from([[], ["when"]])),
        "missing": draw(st.sampled_from(["error", "drop", "flag", "mean", -3.0])),
    }  # fmt: skip


def test_a_first_table_is_encoded_by_its_own_schema():
    counts = Counter()

    @settings(max_examples=TABLES, phases=[Phase.generate], database=None, deadline=None,
              derandomize=TABLES < 1000, suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(first_tables())
    def holds(drawn):
        frame, told = drawn
        try:
            data = engram.Data.from_frame(frame, label="kind", test=frame, **told)
        except BadArgument:
            counts["refused"] += 1
            return
        counts["encoded"] += 1
        schema = TableSchema.from_facts(json.loads(json.dumps(data.schema.facts())))
        assert schema == data.schema
        found = schema.encode(frame, drop=True)
        half = data.x.numpy()[: len(found.x)]  # the training rows, in their order
        np.testing.assert_array_equal(found.x, half)
        assert not found.report.unseen
        assert not found.report.ignored
        for feature in schema.features:  # a category has rows, and its own rows alone
            for place, value in enumerate(feature.categories):
                own = found.x[:, schema.columns.index(feature.columns[place])] == 1
                cells_of = np.array([str(one) == str(value) for one in
                                     cells(frame[found.kept], feature.name)], bool)  # fmt: skip
                assert (own >= cells_of).all()

    holds()
    print(dict(counts))
    assert min(counts.values()) > TABLES / 20


def test_the_first_table_is_encoded_as_it_was(schemas):
    frame = first_table()
    data = engram.Data.from_frame(frame, label="kind", categories="zip", dates="when")
    train = np.concatenate([data.train, data.test])
    again = schemas["error"].encode(frame).x[train]
    np.testing.assert_array_equal(data.x.numpy()[train], again)
    np.testing.assert_array_equal(schemas["error"].encode(schemas["error"].decode(again)).x, again)
