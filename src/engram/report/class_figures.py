"""Sections on classes: accuracies, confusion, calibration, and scores of label sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.records.head_views import SET_SCORES
from engram.records.label_tree import LABEL_VIEWS
from engram.report import figures
from engram.report.method_styles import as_plot_text, shorten
from engram.report.report_data import RUN_COLUMNS, Floats, ReportData
from engram.report.section_types import DrawnMethods, Panel, Section
from engram.report.table import Column, Table

MOST_COLUMNS = 20  # classes in the table
MOST_TICKS = 30  # names along an axis
COLUMNS = ["name", "head", "cls", "value", "std", "first"]


def class_accuracies(digest: ReportData) -> pd.DataFrame:
    """Average class accuracies over finished runs by name, head and class, with `first` task.

    A class tested in several tasks is pooled by its numbers of rows. For label sets, which count a
    row once for all tasks, the rows over all tasks are taken.
    """
    frame = digest.frame
    ends = frame["step"] == -1
    found = frame[(frame["metric"] == "class_accuracy") & ends]
    rows = found[found["stage"] == found["stage"].max()] if _same_length(digest) else found
    rows = rows.astype({"name": str, "order": str})
    done = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    if not len(rows) or not len(done):
        return pd.DataFrame(columns=COLUMNS)
    last = done[[*RUN_COLUMNS, "head", "tasks"]].assign(stage=done["tasks"] - 1)
    keys = [*RUN_COLUMNS, "head", "stage"]
    rows = rows.astype({"head": str}).merge(last[keys], on=keys)
    whole = rows.groupby([*RUN_COLUMNS, "head"])["task"].transform("min") < 0
    rows = rows[~whole | (rows["task"] < 0)]
    counts = frame[(frame["metric"] == "class_count") & ends]
    counts = counts.astype({"name": str, "order": str})
    counts = counts.drop_duplicates([*RUN_COLUMNS, "task", "cls"])[
        [*RUN_COLUMNS, "task", "cls", "value"]
    ]
    rows = rows.merge(counts, on=[*RUN_COLUMNS, "task", "cls"], how="left", suffixes=("", "_count"))
    weight = rows["value_count"].fillna(1.0)
    rows = rows.assign(weight=weight, part=rows["value"] * weight)
    each = rows.groupby([*RUN_COLUMNS, "head", "cls"]).agg(
        part=("part", "sum"), weight=("weight", "sum"), first=("task", "min")
    )  # fmt: skip
    each = each.assign(value=each["part"] / each["weight"]).reset_index()
    means = each.groupby(["name", "head", "cls"]).agg(
        value=("value", "mean"), std=("value", "std"), first=("first", "min")
    )  # fmt: skip
    return means.reset_index()[COLUMNS]


def _same_length(digest: ReportData) -> bool:
    """Whether all runs that are finished have as many tasks, so that none ends earlier."""
    done = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    return len(done) > 0 and done["tasks"].nunique() == 1 and bool(done["tasks"].iloc[0])


def class_order(table: pd.DataFrame) -> list[int]:
    """Sort classes by the first task that tests them, or by number if orders differ."""
    first = table.groupby("cls")["first"].agg(["min", "max"])
    fixed = bool((first["min"] == first["max"]).all())
    pairs = sorted(
        (first["min"] if fixed else first["min"] * 0).items(), key=lambda p: (p[1], p[0])
    )
    return [int(str(number)) for number, _ in pairs]


def _class_names(digest: ReportData, order: list[int]) -> list[str]:
    return [digest.classes.get(number, str(number)) for number in order]


def class_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot one dot per method and class; None if class accuracies were not recorded."""
    table = class_accuracies(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    order = class_order(table)
    place = {number: i + 1 for i, number in enumerate(order)}
    table = table.assign(x=[place[int(c)] for c in table["cls"]]).sort_values("x")
    figure = figures.draw_lines(table, cast.looks, x="class", y="accuracy", points=True, height=340)
    _name_ticks(figure.update_xaxes, _class_names(digest, order), start=1)
    text = (
        "Accuracy on the test rows of each class after the last stage; classes from left to right "
        "in the order in which they were learnt. A rise to the right is forgetting; a single class "
        "far below its neighbours has another cause. Error bars: one standard deviation over runs."
    )
    return Section("classes", "Accuracy per class", text, (Panel("classes", "", figure),))


def _name_ticks(axis: object, names: list[str], *, start: int) -> None:
    """Label an axis of numbers by names, not more than can be read."""
    step = -(-len(names) // MOST_TICKS)
    shown = range(0, len(names), step)
    axis(  # type: ignore[operator]
        tickvals=[i + start for i in shown],
        ticktext=[as_plot_text(shorten(names[i], 14)) for i in shown],
    )


def class_table(digest: ReportData) -> Table | None:
    """Tabulate class accuracies."""
    table = class_accuracies(digest)
    if not len(table):
        return None
    order = class_order(table)
    shown = order[:MOST_COLUMNS]
    wide = table[["name", "head"]].drop_duplicates().reset_index(drop=True)
    for number in shown:
        own = table[table["cls"] == number].set_index(["name", "head"])
        values = own.reindex(pd.MultiIndex.from_frame(wide[["name", "head"]]))
        wide[f"class {number}"] = values["value"].to_numpy()
        wide[f"class {number}_std"] = values["std"].to_numpy()
    kinds = digest.methods[["name", "head", "stream", "reads_past"]]
    wide = wide.merge(kinds, on=["name", "head"], how="left").fillna({"reads_past": False})
    columns = [Column("name", "Method")]
    if wide["head"].nunique() > 1:
        columns.append(Column("head", "View"))
    names = _class_names(digest, shown)
    columns += [
        Column(f"class {number}", name, "spread", best="max")
        for number, name in zip(shown, names, strict=True)
    ]
    note = "Accuracy on the test rows of each class after the last stage."
    if len(shown) < len(order):
        note += f" The first {len(shown)} of {len(order)} classes."
    return Table("classes", "Accuracy per class", tuple(columns), wide, note)


def confusion_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot confusion as a heat map per method; None if no predictions were kept."""
    panels = []
    for number, name in enumerate(cast.names):
        mine = [one for one in digest.answers if digest.names.get(one.recipe) == name]
        if mine:
            size = max(len(one.names) for one in mine)
            height = 150 + min(420, max(160, 22 * size))
            drawn = figures.empty_figure("predicted", "true", height=height)
            for place, one in enumerate(mine):
                _add_confusion(drawn, name, one.head, one.confusion, one.names, place == 0)
            panels.append(Panel(f"confusion-{number + 1}", name, drawn, label=name))
    if not panels:
        return None
    text = (
        "Confusion matrices after the last stage: rows are true classes, columns predicted ones; "
        "every row sums to 1. Correct predictions are on the diagonal; a dark column is a class "
        "that attracts rows of other classes, most often one of the newest. If there are too many "
        "classes to show, they are grouped by task. Mean over runs."
    )
    return Section("confusion", "Confusion", text, tuple(panels))


def _add_confusion(
    drawn: go.Figure, name: str, head: str, shares: Floats, names: tuple[str, ...],
    visible: bool,
) -> None:  # fmt: skip
    numbers = list(range(len(names)))
    texts = [as_plot_text(shorten(one, 14)) for one in names]
    true = np.repeat(np.array(texts, object)[:, None], len(names), axis=1)
    drawn.add_trace(
        go.Heatmap(
            z=shares.round(4), x=numbers, y=numbers, zmin=0, zmax=1, colorscale=figures.COLOR_SCALE,
            showscale=False, xgap=1, ygap=1, hoverongaps=False, visible=visible,
            meta={"label": name, "head": head},
            customdata=np.stack([true, true.T], axis=-1).tolist(),
            hovertemplate="%{customdata[0]} predicted as %{customdata[1]}: %{z:.3f}<extra></extra>",
        )
    )  # fmt: skip
    _name_ticks(drawn.update_xaxes, list(names), start=0)
    _name_ticks(drawn.update_yaxes, list(names), start=0)
    drawn.update_xaxes(showgrid=False)
    drawn.update_yaxes(showgrid=False, autorange="reversed")


# Calibration.


def calibration_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot reliability curves after the last stage; None if no scores were kept."""
    table = _reliability_curves(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    figure = figures.draw_lines(table, cast.looks, x="confidence", y="accuracy", height=400)
    for (_, rows), trace in zip(table.groupby(["name", "head"], sort=False), figure.data,
                                strict=True):  # fmt: skip
        covered = trace.marker.size - figures.MARKER_SIZE
        trace.marker.size = (4 + 10 * np.sqrt(rows["share"]) + covered).round(1).to_numpy()
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


def _reliability_curves(digest: ReportData) -> pd.DataFrame:
    """Compute name, head, x (mean confidence), value (share correct), share (of rows) by bin."""
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


def calibration_table(digest: ReportData) -> Table | None:
    """Tabulate expected calibration error, mean confidence and accuracy."""
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


# Label sets over stages.


TITLES = {
    "precision_weighted_jaccard": "All tasks so far (R_j)",
    "current": "The task just learnt (R_jj)",
    "labels_per_image": "Labels per image", "superclass_score": "Superclasses only",
    "subclass_precision": "Precision of subclasses",
    "orphan_precision": "Precision of classes without superclass",
    "hierarchical_f1": "Hierarchical F1", "mistake_depth": "Mistake depth",
}  # fmt: skip


def label_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot scores of label sets over stages; None without label sets."""
    table = _label_curves(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    panels, last = [], int(table["x"].max())
    for metric, title in TITLES.items():
        rows = table[table["metric"] == metric].dropna(subset=["value"])
        if len(rows):
            shares = bool(rows["value"].between(0, 1).all())
            figure = figures.draw_over_stages(rows, cast.looks, title, last, shares=shares)
            panels.append(Panel(f"labels-{metric.replace('_', '-')}", title, figure))
    text = (
        "Rows have sets of labels. R_j is the score over the distinct test rows of all tasks so "
        "far, R_jj that of the task just learnt. Precision counts as 1 where none of its labels is "
        "predicted. Mistakes of depth 0 share no superclass with the truth. Error bars: one "
        "standard deviation over runs."
    )
    return Section("labels", "Label sets over stages", text, tuple(panels))


def _label_curves(digest: ReportData) -> pd.DataFrame:
    """Average over runs after every stage: name, head, metric, x, value, std."""
    wanted = digest.frame["metric"].isin([SET_SCORES[-1], *LABEL_VIEWS])
    frame = digest.frame[wanted & (digest.frame["step"] == -1)]
    whole = frame[frame["task"] == -1]
    newest = frame[(frame["metric"] == SET_SCORES[-1]) & (frame["task"] == frame["stage"])]
    rows = pd.concat([
        whole.assign(metric=whole["metric"].astype(str)), newest.assign(metric="current")
    ])  # fmt: skip
    keys = ["name", "head", "metric", "stage"]
    rows = rows.astype({"name": str, "head": str})
    rows = rows.drop_duplicates([*RUN_COLUMNS, "head", "metric", "stage"], keep="last")
    found = rows.groupby(keys, sort=False)["value"].agg(["mean", "std"]).reset_index()
    return found.rename(columns={"mean": "value"}).assign(x=found["stage"] + 1)
