"""All tables of a report: summary, tasks, orders, costs, comparisons, findings, ledger."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engram.errors import BadArgument, check_choice
from engram.io import make_folders, write_text
from engram.records.method_comparison import compare_blocks
from engram.records.method_ranking import MethodRanking, rank_values
from engram.records.summary import INCREMENTAL
from engram.report.class_figures import calibration_table, class_table
from engram.report.diagnostics import Finding, diagnose
from engram.report.novelty_figures import novelty_table
from engram.report.plot_tables import describe_streams, final_accuracies, order_disparities
from engram.report.probe_figures import probe_table
from engram.report.report_data import (
    BYTES_BESIDE_MEMORY,
    COSTS,
    ReportData,
    StreamParts,
    digest_streams,
    sum_ledger_entries,
)
from engram.report.report_inputs import ReportInput
from engram.report.table import FORMATS, Column, Table, render_table

MOST_ROWS = 1000  # rows of a table on the page; written tables are complete
MOST_TASKS = 20
_ANY = -2  # in place of the code of a head view

METHOD_COLUMN = Column("name", "Method")
STATE_COLUMNS = ("State, MiB", "Networks, MiB", "Buffers, MiB", "Optimiser, MiB")
VIEW_COLUMN = Column(
    "head", "View", help="single: all classes compete; multi: the task id is given"
)


def _capitalize(words: str) -> str:
    return words[0].upper() + words[1:]


def summary_table(digest: ReportData) -> Table:
    """Tabulate the methods of one stream by rank, with mean ± std of the summary metrics."""
    frame = digest.methods.copy()
    frame["rank_text"] = [
        "ref." if past else "–" if pd.isna(rank) else str(int(rank))
        for past, rank in zip(frame.get("reads_past", []), frame.get("rank", []), strict=True)
    ]
    columns = [Column("rank_text", "Rank", "rank"), METHOD_COLUMN]
    if frame["head"].nunique() > 1:
        columns.append(VIEW_COLUMN)
    columns += [
        Column("average_accuracy", _capitalize(digest.average), "spread", best="max"),
        *(
            [
                Column(
                    INCREMENTAL,
                    "Average incremental accuracy",
                    "spread",
                    best="max",
                    help="mean over stages of the average accuracy after each",
                )
            ]
            if len(frame) and frame[INCREMENTAL].notna().any()
            else []
        ),
        Column("forgetting/max", "Forgetting", "spread", best="min"),
        Column("backward_transfer", "Backward transfer", "spread", best="max"),
        Column("learning_accuracy", _capitalize(digest.learning), "spread", best="max"),
    ]
    if len(frame) and frame["worst_case_accuracy"].notna().any():
        columns += [
            Column(
                "worst_case_accuracy", "Worst case", "spread", best="max",
                help="newest task at the end, earlier ones at their lowest since they were learnt",
            ),
            Column(
                "average_anytime_accuracy", "Any time", "spread", best="max",
                help="mean accuracy on the tasks met so far, over all points of training",
            ),
            Column(
                "stability_gap", "Stability gap", "spread", best="min",
                help="what earlier tasks lose within a task and regain by its end",
            ),
        ]  # fmt: skip
    if len(frame) and frame["intransigence"].notna().any():
        columns += [
            Column("intransigence", "Intransigence", "spread", best="min"),
            Column("distance", "Distance", "spread"),
        ]
    columns += [Column("runs", "Runs", "number", 0), Column("diverged", "Diverged", "number", 0)]
    if len(frame) and frame["unfinished"].sum():
        columns.append(Column("unfinished", "Unfinished", "number", 0))
    told = describe_streams(digest)
    note = f"{told}. " if told else ""
    note += "Mean ± standard deviation over finished runs. Bold: best per view."
    if len(frame) and frame["reads_past"].any():
        note += " “ref.”: also trains on past data; an unranked reference."
    return Table("summary", "Summary", tuple(columns), frame, note)


def task_table(digest: ReportData) -> Table | None:
    """Tabulate the final accuracy of every task."""
    frame = final_accuracies(digest)
    if not len(frame):
        return None
    titles = [c for c in frame.columns if c.startswith("task ") and not c.endswith("_std")]
    shown = titles[:MOST_TASKS]
    columns = [METHOD_COLUMN, *([VIEW_COLUMN] if frame["head"].nunique() > 1 else [])]
    columns += [Column(t, t.capitalize(), "spread", best="max") for t in shown]
    note = f"{_capitalize(digest.figure)} on each task's test set after the last stage."
    if len(shown) < len(titles):
        note += f" The first {len(shown)} of {len(titles)} tasks."
    title = f"Final {digest.figure} per task"
    return Table("final-accuracy", title, tuple(columns), frame, note)


def order_table(digest: ReportData) -> Table | None:
    """Tabulate how much the order of tasks or classes matters."""
    frame = order_disparities(digest)
    if not len(frame):
        return None
    columns = [METHOD_COLUMN, *([VIEW_COLUMN] if frame["head"].nunique() > 1 else [])]
    columns += [Column("orders", "Orders", "number", 0)]
    columns += [Column("low", "Worst order", "number"), Column("high", "Best order", "number")]
    for level in ("task", "class"):
        if f"{level}_aopd" in frame:
            title = level.capitalize()
            columns += [
                Column(f"{level}_aopd", f"{title} AOPD", "number", best="min"),
                Column(f"{level}_mopd", f"{title} MOPD", "number", best="min"),
            ]
    note = (
        f"The disparity of a task or class is its best minus its worst final {digest.figure} over "
        "all orders. AOPD is the mean over tasks or classes, MOPD the maximum. 0 means that the "
        "order does not matter."
    )
    return Table("orders", "Order disparity", tuple(columns), frame, note)


def cost_table(digest: ReportData) -> Table | None:
    """Tabulate time, size and memory of every method."""
    frame = digest.methods
    if not len(frame) or frame[list(COSTS)].isna().all(axis=None):
        return None
    # Costs do not depend on the view: one row per method.
    frame = frame.drop_duplicates("name").assign(head="").reset_index(drop=True)
    for key in ("kept_bytes", "kept_bytes_std", *BYTES_BESIDE_MEMORY):
        frame[key] = frame[key] / 2**20
    columns = (
        METHOD_COLUMN,
        Column("seconds", "Seconds per run", "spread", 1),
        Column("kept_bytes", "Kept, MiB", "spread", 3),
        *(
            Column(key, title, "number", 3)
            for key, title in zip(BYTES_BESIDE_MEMORY, STATE_COLUMNS, strict=True)
        ),
        Column("memory_items", "Items kept", "number", 0),
        Column("parameters", "Parameters", "number", 0),
    )
    note = (
        "Kept: exemplars, the method's own state and additional networks after the last stage, in "
        "MiB. State, networks, buffers and optimiser are not part of the replay memory. "
        "Past data that a method reads counts as kept, since it has to be available."
    )
    return Table("costs", "Costs", columns, frame, note)


def findings_table(found: Sequence[Finding]) -> Table:
    """Tabulate the findings of `diagnose`."""
    frame = pd.DataFrame([(f.severity, f.label, f.text) for f in found],
                         columns=["severity", "name", "text"])  # fmt: skip
    columns = (Column("severity", "Severity"), METHOD_COLUMN, Column("text", "Finding"))
    return Table("doctor", "Diagnostics", columns, frame)


def ledger_table(content: Mapping[str, Any], digest: ReportData) -> Table | None:
    """Tabulate the rows that were read and kept."""
    methods = digest.methods
    names = dict(zip(methods["recipe"], methods["name"], strict=True)) if len(methods) else {}
    rows = sum_ledger_entries(content, names)
    if not rows:
        return None
    frame = pd.DataFrame(rows, columns=["name", "entry", "value", "number"])
    columns = (METHOD_COLUMN, Column("entry", "Entry"), Column("value", "Value", "count"))
    note = (
        "Rows read and kept, each once in a stage, as counted by the engine and summed over stages "
        "and runs. “past”: "
        "rows of earlier tasks outside the memory, which only references may read."
    )
    return Table("ledger", "Data access", columns, frame, note)


def reproduction_table(number: int, frame: pd.DataFrame) -> Table:
    """Tabulate a paper's numbers and ours."""
    corrected: tuple[Column, ...] = ()
    if frame["correction"].astype(bool).any():
        corrected = (
            Column("corrected", "Corrected", "number"), Column("correction", "Correction"),
        )  # fmt: skip
    columns: tuple[Column, ...] = (
        Column("cell", "Cell"),
        Column("metric", "Metric"),
        Column("printed", "Printed", "number"),
        *corrected,
        Column("ours", "Ours", "number"),
        Column("difference", "Difference", "number"),
        Column("low", "Low", "number"),
        Column("high", "High", "number"),
        Column("verdict", "Verdict"),
        Column("reason", "Reason"),
    )
    if frame.duplicated(["cell", "metric", "settings"]).any():  # show what distinguishes them
        columns = (columns[0], Column("stage", "Stage"), *columns[1:])
    if frame["settings"].astype(bool).any():
        columns = (*columns, Column("settings", "Settings"))
    both = frame[["paper", "table"]].astype(str).drop_duplicates()
    title = "; ".join(f"{p}, table {t}" for p, t in both.itertuples(index=False)) or "Paper"
    note = "Low and high bound the interval of our value."
    return Table(f"reproduction-{number + 1}", title, columns, frame.reset_index(drop=True), note)


def limit_rows(table: Table) -> Table:
    """Limit a table to `MOST_ROWS` rows, with a note."""
    if len(table.frame) <= MOST_ROWS:
        return table
    note = f"{table.note} The first {MOST_ROWS:,} of {len(table.frame):,} rows.".strip()
    return dataclasses.replace(table, frame=table.frame.head(MOST_ROWS), note=note)


def select_own_views(frame: pd.DataFrame, recipes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Keep the rows of each stream's own head view."""
    streams = {name: recipe.get("stream") for name, recipe in recipes.items()}
    told = {name: one.get("head") for name, one in streams.items() if isinstance(one, Mapping)}
    recipe, head = (frame[name].astype("category").cat for name in ("recipe", "head"))
    code = {str(word): place for place, word in enumerate(head.categories)}
    own = [told.get(str(word)) for word in recipe.categories]
    wanted = np.array([_ANY if one is None else code.get(str(one), -1) for one in own], np.int64)
    wanted = np.append(wanted, _ANY)[recipe.codes.to_numpy()]  # [rows]
    heads = head.codes.to_numpy()
    chosen: pd.DataFrame = frame[
        (wanted == _ANY) | (heads == wanted) | (heads == code.get("", _ANY))
    ]
    return chosen


def build_tables(inputs: ReportInput, parts: StreamParts, whole: ReportData) -> list[Table]:
    """Build every table of the report, complete; lines of several streams are told apart.

    Parameters
    ----------
    parts, whole
        Aggregates of every stream, and of all of them.
    """
    several = len(parts) > 1
    found = [
        *_join_streams({name: _stream_tables(*part) for name, part in parts.items()}),
        *(reproduction_table(i, t) for i, t in enumerate(inputs.reproductions)),
        *(rank_tables(whole) if several else ()),
    ]
    last = ledger_table(inputs.ledger, whole)
    if last is not None and several:
        last = _name_stream_of_labels(last, whole)
    return _present([*found, *([last] if last is not None else [])], inputs)


def _stream_tables(inputs: ReportInput, digest: ReportData) -> list[Table]:
    """Build the tables of one stream."""
    found = [
        summary_table(digest),
        task_table(digest),
        *comparison_tables(digest),
        findings_table(diagnose(select_own_views(digest.frame, inputs.recipes), inputs.classes)),
        order_table(digest),
        cost_table(digest),
        class_table(digest),
        calibration_table(digest),
        novelty_table(digest),
        probe_table(digest, inputs.classes),
    ]
    return [table for table in found if table is not None]


STREAM_COLUMN = Column("stream_text", "Stream")


def _join_streams(tables: Mapping[str, Sequence[Table]]) -> list[Table]:
    """Join the tables of several streams that have the same name, with a column for the stream."""
    if len(tables) == 1:
        return [table for own in tables.values() for table in own]
    found: dict[str, list[tuple[str, Table]]] = {}
    for stream, own in tables.items():
        for table in own:
            found.setdefault(table.name, []).append((stream, table))
    return [_join_tables(parts) for parts in found.values()]


def _join_tables(parts: Sequence[tuple[str, Table]]) -> Table:
    first = parts[0][1]
    columns = {column.key: column for _, table in parts for column in table.columns}
    frames = [table.frame.assign(stream=stream, stream_text=stream) for stream, table in parts]
    frame = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
    if "reads_past" in frame:
        frame["reads_past"] = frame["reads_past"].fillna(False).astype(bool)
    for column in columns.values():  # what only one stream has
        for key in (column.key, f"{column.key}_std") if column.kind == "spread" else (column.key,):
            if key not in frame:
                frame[key] = np.nan
    told = [table.note.rstrip(".") for _, table in parts if table.note]
    sentences = dict.fromkeys(one for note in told for one in note.split(". "))
    note = "".join(f"{one}. " for one in sentences).strip()
    shown = (STREAM_COLUMN, *columns.values())
    return dataclasses.replace(first, columns=shown, frame=frame, note=note)


def _name_stream_of_labels(table: Table, whole: ReportData) -> Table:
    """Split the unique names of recipes into stream and method."""
    names = whole.methods.drop_duplicates("name").set_index("name")["stream"].to_dict()
    short = whole.short_names
    own = table.frame["name"]
    frame = table.frame.assign(
        stream_text=own.map(names).fillna(""), name=[short.get(one, one) for one in own]
    )
    return dataclasses.replace(table, columns=(STREAM_COLUMN, *table.columns), frame=frame)


def _present(tables: Sequence[Table], inputs: ReportInput) -> list[Table]:
    """Keep the columns asked for, of tables that have one of them, and set decimals."""
    wanted, numbers = inputs.columns, ("number", "spread", "p")
    known = {_column_name(c) for t in tables for c in t.columns if c.kind in numbers}
    for name in wanted:
        check_choice("columns", name, sorted(known))
    found = []
    for table in tables:
        columns = list(table.columns)
        if any(_column_name(c) in wanted for c in columns):
            texts = [c for c in columns if c.kind not in numbers]
            chosen = [c for name in wanted for c in columns
                      if c.kind in numbers and _column_name(c) == name]  # fmt: skip
            columns = [*texts, *chosen]
        if inputs.decimals is not None:
            columns = [
                dataclasses.replace(c, digits=inputs.decimals)
                if c.kind in ("number", "spread") and c.digits == Column.digits else c
                for c in columns
            ]  # fmt: skip
        found.append(dataclasses.replace(table, columns=tuple(columns)))
    return found


def _column_name(column: Column) -> str:
    """Return the name by which a column is asked for: forgetting for any definition."""
    return column.key.partition("/")[0]


# Methods by data set, with ranks.


def rank_streams(digest: ReportData) -> dict[str, MethodRanking]:
    """Rank the methods over streams by head view; references and lone methods are left out."""
    if not len(digest.runs):
        return {}
    runs = digest.runs[digest.runs["finished"] & ~digest.runs["reads_past"]]
    place = {recipe: number for number, recipe in enumerate(digest.recipes)}
    runs = runs.sort_values("recipe", key=lambda ids: ids.map(place), kind="stable")
    found = {}
    for head, own in runs.groupby("head", sort=False):
        methods = [digest.short_names[name] for name in own["name"]]
        try:
            found[str(head)] = rank_values(
                digest.average, methods, own["stream"].tolist(), own["average_accuracy"]
            )
        except BadArgument:  # fewer than two methods, or streams, in this view
            continue
    return found


def rank_tables(digest: ReportData) -> list[Table]:
    """Tabulate methods by stream: means, mean rank, and which cannot be told apart."""
    ranked = rank_streams(digest)
    if not ranked:
        return []
    frames, notes = [], []
    for head, ranking in ranked.items():
        frames.append(ranking.frame().rename_axis("name").reset_index().assign(head=head))
        notes.append(f"{head}-head view: {ranking.note}." if len(ranked) > 1 else ranking.note)
    frame = pd.concat(frames, ignore_index=True)
    streams = list(dict.fromkeys(str(s) for one in ranked.values() for s in one.means.columns))
    columns = [METHOD_COLUMN, *([VIEW_COLUMN] if frame["head"].nunique() > 1 else [])]
    columns += [Column(stream, stream, "number", best="max") for stream in streams]
    columns += [
        Column("mean", "Mean", "number", best="max"),
        Column("rank", "Mean rank", "number", 2, best="min"),
        Column("best_on", "Best on", "number", 0, help="streams on which it is the best"),
    ]
    if "group" in frame:
        columns.append(Column("group", "Group", help="methods with a common letter do not differ"))
    title = "Methods by stream"
    return [Table("ranks", title, tuple(columns), frame, " ".join(dict.fromkeys(notes)))]


# Comparisons: each method's mean with its interval, and every pair tested.


MOST_METHODS = 12  # methods of which all pairs are shown
LEVEL = 0.95
_COMPARED_METHOD_COLUMN = Column("name", "Method")
_COMPARED_VIEW_COLUMN = Column(
    "head", "View", help="single: all classes compete; multi: the task is known"
)
_INTERVAL_COLUMNS = (Column("low", "Low", "number"), Column("high", "High", "number"))
_RUNS_COLUMN = Column("runs", "Runs", "number", 0)


def comparison_tables(digest: ReportData) -> list[Table]:
    """Tabulate intervals and differences of the average accuracy on one stream, by view.

    Empty if no method has two runs.
    """
    finished = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    if not len(finished):
        return []
    parts = [_compare_methods(rows) for _, rows in finished.groupby(["stream", "head"], sort=False)]
    means = pd.concat([one for one, _ in parts], ignore_index=True)
    pairs = pd.concat([two for _, two in parts], ignore_index=True)
    pairs = pairs[pairs["p"].notna()].reset_index(drop=True)
    if not (means["runs"] > 1).any():
        return []
    found = [_interval_table(digest, means)]
    return [*found, _difference_table(digest, pairs)] if len(pairs) else found


def _compare_methods(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the methods of one stream and view: all means, and pairs of the most accurate."""
    place = {key: rows[key].iloc[0] for key in ("head", "stream")}
    found = compare_blocks(
        "", rows["name"].astype(str).tolist(), list(zip(rows["seed"], rows["order"], strict=True)),
        rows["average_accuracy"], level=LEVEL, most=MOST_METHODS,
    )  # fmt: skip
    left = found.methods.rename_axis("name").reset_index()
    right = found.pairs.rename_axis(["name", "against"]).reset_index()
    return left.assign(**place), right.assign(**place, of=len(found.methods))


def _view_columns(frame: pd.DataFrame) -> list[Column]:
    return [_COMPARED_VIEW_COLUMN] if frame["head"].nunique() > 1 else []


def _interval_table(digest: ReportData, frame: pd.DataFrame) -> Table:
    columns = (
        _COMPARED_METHOD_COLUMN,
        *_view_columns(frame),
        Column("mean", "Mean", "number"),
        *_INTERVAL_COLUMNS,
        _RUNS_COLUMN,
    )
    note = f"Mean of the {digest.average} over runs, and its {LEVEL:.0%} interval (Student's t)."
    return Table("intervals", "Intervals", columns, frame, note)


def _difference_table(digest: ReportData, frame: pd.DataFrame) -> Table:
    shown = frame.assign(significant=np.where(frame["p_holm"] < 1 - LEVEL, "yes", "no"))
    columns = (
        _COMPARED_METHOD_COLUMN, Column("against", "Against"), *_view_columns(frame),
        Column("difference", "Difference", "number"), *_INTERVAL_COLUMNS, Column("p", "p", "p"),
        Column("p_holm", "p (Holm)", "p"), Column("significant", "Significant"), _RUNS_COLUMN,
    )  # fmt: skip
    note = (
        f"Difference of the {digest.average}, run by run (same seed and order), with its "
        f"{LEVEL:.0%} interval; paired t test, p values corrected by Holm's method for all pairs "
        f"of a view. Significant: corrected p below {1 - LEVEL:.2f}."
    )
    if (frame["of"] > MOST_METHODS).any():
        note += f" The {MOST_METHODS} methods of highest mean."
    return Table("differences", "Differences", columns, shown, note)


# Tables as files.


def write_tables(
    inputs: ReportInput,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("csv", "latex", "markdown"),
) -> list[Path]:
    """Write every table of a report, complete, in each format; returns the paths.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from engram.report.report_inputs import COLUMNS
    >>> empty = ReportInput(pd.DataFrame(columns=list(COLUMNS)))
    >>> [path.name for path in write_tables(empty, tempfile.mkdtemp(), formats=["csv"])]
    ['summary.csv', 'doctor.csv']
    """
    for form in formats:
        check_choice("formats", form, FORMATS)
    target = Path(folder)
    make_folders(target)
    return [
        write_text(target / f"{table.name}.{FORMATS[form][0]}", render_table(table, form) + "\n")
        for table in build_tables(inputs, *digest_streams(inputs))
        for form in formats
    ]
