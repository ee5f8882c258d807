"""How sure methods are, against how often they are right."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.report import figures
from engram.report.digest import Digest
from engram.report.section import DrawnMethods, Panel, Section
from engram.report.tables import Column, Table


def calibration_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Reliability curves after the last stage; None where no scores were kept."""
    table = _curves(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    figure = figures.lines(table, cast.looks, x="confidence", y="accuracy", height=400)
    for (_, rows), trace in zip(table.groupby(["name", "head"], sort=False), figure.data,
                                strict=True):  # fmt: skip
        trace.marker.size = (4 + 10 * np.sqrt(rows["share"])).round(1).to_numpy()
        trace.mode = "lines+markers"
    figure.update_xaxes(range=[-0.02, 1.04])
    figure.add_trace(
        go.Scatter(
            x=[0, 1], y=[0, 1], mode="lines", name="perfect calibration", hoverinfo="skip",
            line={"color": "#8A8A8A", "width": 1.5, "dash": "longdash"},
            meta={"label": None, "head": ""},
        )
    )  # fmt: skip
    text = (
        "Reliability diagram: test rows of all tasks after the last stage, binned by the "
        "probability of the predicted class; larger markers stand for more rows. On the dashed "
        "line, confidence equals accuracy; below it, a method is overconfident. Probabilities are "
        "the softmax of the scores of all competing classes, which is not meaningful for methods "
        "that classify by distance. Pooled over runs."
    )
    return Section("calibration", "Calibration", text, (Panel("calibration", "", figure),))


def _curves(digest: Digest) -> pd.DataFrame:
    """By bin: name, head, x (mean confidence), value (share right), share (of all rows)."""
    rows = [
        (
            digest.names.get(one.recipe, ""),
            one.head,
            sure / count,
            right / count,
            count / one.number.sum(),
        )
        for one in digest.answers
        for count, sure, right in zip(one.number, one.confidence, one.right, strict=True)
        if count
    ]
    return pd.DataFrame(rows, columns=["name", "head", "x", "value", "share"])


def calibration_table(digest: Digest) -> Table | None:
    """Expected calibration error, mean confidence and accuracy."""
    rows = []
    for one in digest.answers:
        if len(one.errors):
            spread = float(np.std(one.errors, ddof=1)) if len(one.errors) > 1 else np.nan
            total = one.number.sum()
            rows.append((digest.names.get(one.recipe, ""), one.head, float(one.errors.mean()),
                         spread, one.confidence.sum() / total, one.right.sum() / total,
                         len(one.errors)))  # fmt: skip
    if not rows:
        return None
    keys = ["name", "head", "error", "error_std", "sure", "right", "runs"]
    kinds = digest.methods[["name", "head", "stream", "reads_past"]]
    frame = pd.DataFrame(rows, columns=keys).merge(kinds, on=["name", "head"], how="left")
    frame = frame.fillna({"reads_past": False})
    columns = [Column("name", "Method")]
    if frame["head"].nunique() > 1:
        columns.append(Column("head", "View"))
    columns += [
        Column("error", "Calibration error", "spread", best="min"),
        Column("sure", "Mean confidence", "number"),
        Column("right", "Accuracy", "number"),
        Column("runs", "Runs", "number", 0),
    ]
    note = (
        "Expected calibration error over 15 confidence bins, mean ± standard deviation over runs. "
        "Every row has equal weight, so accuracy here is not the average over tasks."
    )
    return Table("calibration", "Calibration", tuple(columns), frame, note)
