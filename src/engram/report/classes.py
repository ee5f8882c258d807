"""Class by class: accuracy after the last stage, and which classes are taken for which."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.report import figures
from engram.report.digest import RUN, Digest, Floats
from engram.report.section import DrawnMethods, Panel, Section
from engram.report.style import as_plot_text, shorten
from engram.report.tables import Column, Table

MOST_COLUMNS = 20  # classes of the table
MOST_TICKS = 30  # names along an axis
COLUMNS = ["name", "head", "cls", "value", "std", "first"]


def class_accuracies(digest: Digest) -> pd.DataFrame:
    """Mean and std over finished runs by name, head and class; `first` is its earliest task.

    A class that several tasks test is pooled by its numbers of rows. Of label sets, which count a
    row once for all tasks, the rows over all tasks are taken.
    """
    frame = digest.frame[digest.frame["step"] == -1]
    rows = frame[frame["metric"] == "class_accuracy"].astype({"name": str, "order": str})
    done = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    if not len(rows) or not len(done):
        return pd.DataFrame(columns=COLUMNS)
    last = done[[*RUN, "head", "tasks"]].assign(stage=done["tasks"] - 1)
    keys = [*RUN, "head", "stage"]
    rows = rows.astype({"head": str}).merge(last[keys], on=keys)
    whole = rows.groupby([*RUN, "head"])["task"].transform("min") < 0
    rows = rows[~whole | (rows["task"] < 0)]
    counts = frame[frame["metric"] == "class_count"].astype({"name": str, "order": str})
    counts = counts.drop_duplicates([*RUN, "task", "cls"])[[*RUN, "task", "cls", "value"]]
    rows = rows.merge(counts, on=[*RUN, "task", "cls"], how="left", suffixes=("", "_count"))
    weight = rows["value_count"].fillna(1.0)
    rows = rows.assign(weight=weight, part=rows["value"] * weight)
    each = rows.groupby([*RUN, "head", "cls"]).agg(
        part=("part", "sum"), weight=("weight", "sum"), first=("task", "min")
    )  # fmt: skip
    each = each.assign(value=each["part"] / each["weight"]).reset_index()
    means = each.groupby(["name", "head", "cls"]).agg(
        value=("value", "mean"), std=("value", "std"), first=("first", "min")
    )  # fmt: skip
    return means.reset_index()[COLUMNS]


def class_order(table: pd.DataFrame) -> list[int]:
    """Classes by the first task that tests them; by number where orders differ."""
    first = table.groupby("cls")["first"].agg(["min", "max"])
    fixed = bool((first["min"] == first["max"]).all())
    pairs = sorted(
        (first["min"] if fixed else first["min"] * 0).items(), key=lambda p: (p[1], p[0])
    )
    return [int(str(number)) for number, _ in pairs]


def _class_names(digest: Digest, order: list[int]) -> list[str]:
    return [digest.classes.get(number, str(number)) for number in order]


def class_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """One dot per method and class; None where accuracies of classes were not recorded."""
    table = class_accuracies(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    order = class_order(table)
    place = {number: i + 1 for i, number in enumerate(order)}
    table = table.assign(x=[place[int(c)] for c in table["cls"]]).sort_values("x")
    figure = figures.lines(table, cast.looks, x="class", y="accuracy", height=340)
    figure.update_traces(mode="markers")
    _name_ticks(figure.update_xaxes, _class_names(digest, order), start=1)
    text = (
        "Accuracy on the test rows of each class after the last stage; classes from left to right "
        "in the order in which they were learnt. A rise to the right is forgetting; a single class "
        "far below its neighbours has another cause. Error bars: one standard deviation over runs."
    )
    return Section("classes", "Accuracy per class", text, (Panel("classes", "", figure),))


def _name_ticks(axis: object, names: list[str], *, start: int) -> None:
    """Names along an axis of numbers, not more than can be read."""
    step = -(-len(names) // MOST_TICKS)
    shown = range(0, len(names), step)
    axis(  # type: ignore[operator]
        tickvals=[i + start for i in shown],
        ticktext=[as_plot_text(shorten(names[i], 14)) for i in shown],
    )


def class_table(digest: Digest) -> Table | None:
    """The same as numbers."""
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


def confusion_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """A heat map per method; None where no predictions were kept."""
    panels = []
    for number, name in enumerate(cast.names):
        mine = [one for one in digest.answers if digest.names.get(one.recipe) == name]
        if mine:
            size = max(len(one.names) for one in mine)
            height = 150 + min(420, max(160, 22 * size))
            drawn = figures.blank("predicted", "true", height=height)
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
            z=shares.round(4), x=numbers, y=numbers, zmin=0, zmax=1, colorscale=figures.SCALE,
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
