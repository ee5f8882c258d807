"""What label sets say stage by stage: all tasks so far, the newest, superclasses and subclasses."""

from __future__ import annotations

import pandas as pd

from engram.records.label_tree import LABEL_VIEWS
from engram.records.views import SET_SCORES
from engram.report import figures
from engram.report.digest import RUN, Digest
from engram.report.section import DrawnMethods, Panel, Section

TITLES = {
    "precision_weighted_jaccard": "All tasks so far (R_j)",
    "current": "The task just learnt (R_jj)",
    "labels_per_image": "Labels per image", "superclass_score": "Superclasses only",
    "subclass_precision": "Precision of subclasses",
    "orphan_precision": "Precision of classes without superclass",
    "hierarchical_f1": "Hierarchical F1", "mistake_depth": "Mistake depth",
}  # fmt: skip


def label_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Lines over stages; None where no rows carry sets of labels."""
    table = _curves(digest)
    table = table[table["name"].isin(cast.names)]
    if not len(table):
        return None
    panels = []
    for metric, title in TITLES.items():
        rows = table[table["metric"] == metric].dropna(subset=["value"])
        if len(rows):
            shares = bool(rows["value"].between(0, 1).all())
            figure = figures.lines(rows, cast.looks, x="stage", y=title, shares=shares, height=280)
            panels.append(Panel(f"labels-{metric.replace('_', '-')}", title, figure))
    text = (
        "Rows have sets of labels. R_j is the score over the distinct test rows of all tasks so "
        "far, R_jj that of the task just learnt. Precision counts as 1 where none of its labels is "
        "predicted. Mistakes of depth 0 share no superclass with the truth. Error bars: one "
        "standard deviation over runs."
    )
    return Section("labels", "Label sets over stages", text, tuple(panels))


def _curves(digest: Digest) -> pd.DataFrame:
    """Columns name, head, metric, x, value, std: means over runs after every stage."""
    frame = digest.frame[digest.frame["step"] == -1]
    names = frame["metric"].astype(str)
    whole = frame[names.isin([SET_SCORES[-1], *LABEL_VIEWS]) & (frame["task"] == -1)]
    newest = frame[(names == SET_SCORES[-1]) & (frame["task"] == frame["stage"])]
    rows = pd.concat([
        whole.assign(metric=whole["metric"].astype(str)), newest.assign(metric="current")
    ])  # fmt: skip
    keys = ["name", "head", "metric", "stage"]
    rows = rows.astype({"name": str, "head": str})
    rows = rows.drop_duplicates([*RUN, "head", "metric", "stage"], keep="last")
    found = rows.groupby(keys, sort=False)["value"].agg(["mean", "std"]).reset_index()
    return found.rename(columns={"mean": "value"}).assign(x=found["stage"] + 1)
