"""The tables of a report, chosen and filled from its aggregates."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engram.errors import check_choice
from engram.io import make_folders, write_text
from engram.records.method_comparison import compared
from engram.report.aggregate import about, final_accuracies, order_disparities
from engram.report.class_figures import calibration_table, class_table
from engram.report.diagnostics import Finding, diagnose
from engram.report.digest import BESIDE, COSTS, Digest, digest, totals
from engram.report.inputs import ReportInput
from engram.report.novelty_figures import novelty_table
from engram.report.probe_figures import probe_table
from engram.report.recipe_facts import streams_apart
from engram.report.tables import FORMATS, Column, Table, render

MOST_ROWS = 1000  # of one table on the page; written tables are complete
MOST_TASKS = 20

METHOD = Column("name", "Method")
KINDS = ("State, MiB", "Networks, MiB", "Buffers, MiB", "Optimiser, MiB")
VIEW = Column("head", "View", help="single: all classes compete; multi: the task id is given")


def _title(words: str) -> str:
    return words[0].upper() + words[1:]


def summary(digest: Digest) -> Table:
    """Methods by rank, with mean ± std of the summary metrics."""
    frame = digest.methods.copy()
    frame["rank_text"] = [
        "ref." if past else "–" if pd.isna(rank) else str(int(rank))
        for past, rank in zip(frame.get("reads_past", []), frame.get("rank", []), strict=True)
    ]
    columns = [Column("rank_text", "Rank", "rank"), METHOD]
    if frame["stream"].nunique() > 1:
        short = streams_apart(digest.recipes.get(one, {}) for one in frame["recipe"])
        frame["stream_text"] = frame["stream"].map(short)
        columns.append(Column("stream_text", "Stream"))
    if frame["head"].nunique() > 1:
        columns.append(VIEW)
    columns += [
        Column("average_accuracy", _title(digest.average), "spread", best="max"),
        Column("forgetting/max", "Forgetting", "spread", best="min"),
        Column("backward_transfer", "Backward transfer", "spread", best="max"),
        Column("learning_accuracy", _title(digest.learning), "spread", best="max"),
    ]
    if len(frame) and frame["intransigence"].notna().any():
        columns += [
            Column("intransigence", "Intransigence", "spread", best="min"),
            Column("distance", "Distance", "spread"),
        ]
    columns += [Column("runs", "Runs", "number", 0), Column("diverged", "Diverged", "number", 0)]
    if len(frame) and frame["unfinished"].sum():
        columns.append(Column("unfinished", "Unfinished", "number", 0))
    told = about(digest)
    note = f"{told}. " if told else ""
    note += "Mean ± standard deviation over finished runs. Bold: best per view and stream."
    if len(frame) and frame["reads_past"].any():
        note += " “ref.”: also trains on past data; an unranked reference."
    return Table("summary", "Summary", tuple(columns), frame, note)


def per_task(digest: Digest) -> Table | None:
    """Final accuracy of every task."""
    frame = final_accuracies(digest)
    if not len(frame):
        return None
    titles = [c for c in frame.columns if c.startswith("task ") and not c.endswith("_std")]
    shown = titles[:MOST_TASKS]
    columns = [METHOD, *([VIEW] if frame["head"].nunique() > 1 else [])]
    columns += [Column(t, t.capitalize(), "spread", best="max") for t in shown]
    note = f"{_title(digest.figure)} on each task's test set after the last stage."
    if len(shown) < len(titles):
        note += f" The first {len(shown)} of {len(titles)} tasks."
    title = f"Final {digest.figure} per task"
    return Table("final-accuracy", title, tuple(columns), frame, note)


def orders(digest: Digest) -> Table | None:
    """How much the order of tasks or classes matters."""
    frame = order_disparities(digest)
    if not len(frame):
        return None
    columns = [METHOD, *([VIEW] if frame["head"].nunique() > 1 else [])]
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


def costs(digest: Digest) -> Table | None:
    """Time, size and memory of every method."""
    frame = digest.methods
    if not len(frame) or frame[list(COSTS)].isna().all(axis=None):
        return None
    # Costs do not depend on the view: one row per method.
    frame = frame.drop_duplicates("name").assign(head="").reset_index(drop=True)
    for key in ("kept_bytes", "kept_bytes_std", *BESIDE):
        frame[key] = frame[key] / 2**20
    columns = (
        METHOD,
        Column("seconds", "Seconds per run", "spread", 1),
        Column("kept_bytes", "Kept, MiB", "spread", 3),
        *(Column(key, title, "number", 3) for key, title in zip(BESIDE, KINDS, strict=True)),
        Column("memory_items", "Items kept", "number", 0),
        Column("parameters", "Parameters", "number", 0),
    )
    note = (
        "Kept: exemplars, the method's own state and additional networks after the last stage, in "
        "MiB. State, networks, buffers and optimiser are not part of the replay memory. "
        "Past data that a method reads counts as kept, since it has to be available."
    )
    return Table("costs", "Costs", columns, frame, note)


def findings(found: Sequence[Finding]) -> Table:
    """What the doctor saw."""
    frame = pd.DataFrame([(f.severity, f.label, f.text) for f in found],
                         columns=["severity", "name", "text"])  # fmt: skip
    columns = (Column("severity", "Severity"), METHOD, Column("text", "Finding"))
    return Table("doctor", "Doctor", columns, frame)


def ledger(content: Mapping[str, Any], digest: Digest) -> Table | None:
    """What was read and kept."""
    methods = digest.methods
    names = dict(zip(methods["recipe"], methods["name"], strict=True)) if len(methods) else {}
    rows = totals(content, names)
    if not rows:
        return None
    frame = pd.DataFrame(rows, columns=["name", "entry", "value", "number"])
    columns = (METHOD, Column("entry", "Entry"), Column("value", "Value", "count"))
    note = (
        "Rows read and kept, as counted by the engine and summed over stages and runs. “past”: "
        "rows of earlier tasks outside the memory, which only references may read."
    )
    return Table("ledger", "Data access", columns, frame, note)


def reproduction(number: int, frame: pd.DataFrame) -> Table:
    """A paper's table beside ours."""
    columns: tuple[Column, ...] = (
        Column("cell", "Cell"),
        Column("metric", "Metric"),
        Column("paper_value", "Paper", "number"),
        Column("ours", "Ours", "number"),
        Column("difference", "Difference", "number"),
        Column("low", "Low", "number"),
        Column("high", "High", "number"),
        Column("verdict", "Verdict"),
        Column("reason", "Reason"),
    )
    if frame.duplicated(["cell", "metric", "settings"]).any():  # they differ in nothing else
        columns = (columns[0], Column("stage", "Stage"), *columns[1:])
    if frame["settings"].astype(bool).any():
        columns = (*columns, Column("settings", "Settings"))
    both = frame[["paper", "table"]].astype(str).drop_duplicates()
    title = "; ".join(f"{p}, table {t}" for p, t in both.itertuples(index=False)) or "Paper"
    note = "Low and high bound the interval of our value."
    return Table(f"reproduction-{number + 1}", title, columns, frame.reset_index(drop=True), note)


def on_page(table: Table) -> Table:
    """The table with no more rows than a page can carry; the note says so."""
    if len(table.frame) <= MOST_ROWS:
        return table
    note = f"{table.note} The first {MOST_ROWS:,} of {len(table.frame):,} rows.".strip()
    return dataclasses.replace(table, frame=table.frame.head(MOST_ROWS), note=note)


def own_view(frame: pd.DataFrame, recipes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The long table without the head views that its streams are not about."""
    streams = {name: recipe.get("stream") for name, recipe in recipes.items()}
    told = {name: one.get("head") for name, one in streams.items() if isinstance(one, Mapping)}
    own, head = frame["recipe"].astype(str).map(told), frame["head"].astype(str)
    return frame[(head == "") | own.isna() | (head == own)]


def all_tables(inputs: ReportInput, digest: Digest) -> list[Table]:
    """Every table of the report, complete."""
    found = [
        summary(digest),
        per_task(digest),
        *comparison_tables(digest),
        findings(diagnose(own_view(digest.frame, inputs.recipes), inputs.classes)),
        *(reproduction(i, t) for i, t in enumerate(inputs.reproductions)),
        orders(digest),
        costs(digest),
        class_table(digest),
        calibration_table(digest),
        novelty_table(digest),
        probe_table(digest, inputs.classes),
        ledger(inputs.ledger, digest),
    ]
    return [table for table in found if table is not None]


# ------------------------------------------------------------------------------------------------
# The tables of a paper: each method's mean with its interval, and every pair tested.


MOST_METHODS = 12  # all pairs of more fill pages
LEVEL = 0.95
_METHOD = Column("name", "Method")
_VIEW = Column("head", "View", help="single: all classes compete; multi: the task is known")
_ENDS = (Column("low", "Low", "number"), Column("high", "High", "number"))
_RUNS = Column("runs", "Runs", "number", 0)


def comparison_tables(digest: Digest) -> list[Table]:
    """Intervals and differences of the average accuracy, view by view and stream by stream.

    None where no method has two runs: then there is nothing to say about noise.
    """
    finished = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    if not len(finished):
        return []
    parts = [_of(rows) for _, rows in finished.groupby(["stream", "head"], sort=False)]
    means = pd.concat([one for one, _ in parts], ignore_index=True)
    pairs = pd.concat([two for _, two in parts], ignore_index=True)
    pairs = pairs[pairs["p"].notna()].reset_index(drop=True)
    if not (means["runs"] > 1).any():
        return []
    short = streams_apart(digest.recipes.get(one, {}) for one in finished["recipe"])
    for frame in (means, pairs):
        frame["stream_text"] = frame["stream"].map(short)
    found = [_intervals(digest, means)]
    return [*found, _differences(digest, pairs)] if len(pairs) else found


def _of(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of one stream and view: means of all methods, pairs of the most accurate ones."""
    place = {key: rows[key].iloc[0] for key in ("head", "stream")}
    everyone = rows["name"].astype(str)
    best = rows.groupby(everyone)["average_accuracy"].mean().nlargest(MOST_METHODS, keep="first")
    chosen = rows[everyone.isin(best.index)]
    means, pairs = (
        compared("", part["name"].astype(str).tolist(),
                 list(zip(part["seed"], part["order"], strict=True)),
                 part["average_accuracy"], level=LEVEL)
        for part in (rows, chosen)
    )  # fmt: skip
    left = means.methods.rename_axis("name").reset_index()
    right = pairs.pairs.rename_axis(["name", "against"]).reset_index()
    return left.assign(**place), right.assign(**place, of=len(means.methods))


def _seen(frame: pd.DataFrame) -> list[Column]:
    several = [Column("stream_text", "Stream")] if frame["stream"].nunique() > 1 else []
    return [*several, *([_VIEW] if frame["head"].nunique() > 1 else [])]


def _intervals(digest: Digest, frame: pd.DataFrame) -> Table:
    columns = (_METHOD, *_seen(frame), Column("mean", "Mean", "number"), *_ENDS, _RUNS)
    note = f"Mean of the {digest.average} over runs, and its {LEVEL:.0%} interval (Student's t)."
    return Table("intervals", "Intervals", columns, frame, note)


def _differences(digest: Digest, frame: pd.DataFrame) -> Table:
    shown = frame.assign(significant=np.where(frame["p_holm"] < 1 - LEVEL, "yes", "no"))
    columns = (
        _METHOD, Column("against", "Against"), *_seen(frame),
        Column("difference", "Difference", "number"), *_ENDS, Column("p", "p", "p"),
        Column("p_holm", "p (Holm)", "p"), Column("significant", "Significant"), _RUNS,
    )  # fmt: skip
    note = (
        f"Difference of the {digest.average}, run by run (same seed and order), with its "
        f"{LEVEL:.0%} interval; paired t test, p values corrected by Holm's method for all pairs "
        f"of a view. Significant: corrected p below {1 - LEVEL:.2f}."
    )
    if (frame["of"] > MOST_METHODS).any():
        note += f" The {MOST_METHODS} methods of highest mean."
    return Table("differences", "Differences", columns, shown, note)


# ------------------------------------------------------------------------------------------------
# The tables of a report as files of their own.


def write_tables(
    inputs: ReportInput,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("csv", "latex", "markdown"),
) -> list[Path]:
    """Write every table of a report, complete, in each format; the paths of the files.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from engram.report.inputs import COLUMNS
    >>> empty = ReportInput(pd.DataFrame(columns=list(COLUMNS)))
    >>> [path.name for path in write_tables(empty, tempfile.mkdtemp(), formats=["csv"])]
    ['summary.csv', 'doctor.csv']
    """
    for form in formats:
        check_choice("formats", form, FORMATS)
    target = Path(folder)
    make_folders(target)
    return [
        write_text(target / f"{table.name}.{FORMATS[form][0]}", render(table, form) + "\n")
        for table in all_tables(inputs, digest(inputs))
        for form in formats
    ]
