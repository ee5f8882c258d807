"""The tables of a paper: each method's mean with its interval, and every pair tested."""

from __future__ import annotations

import numpy as np
import pandas as pd

from engram.records.compared import compared
from engram.report.digest import Digest
from engram.report.recipe_facts import streams_apart
from engram.report.tables import Column, Table

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
