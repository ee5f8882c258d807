"""The section on user-defined probes: a table by stage, and a figure per metric."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from engram.records.summary import describe_places, is_probe_row, summarise_runs
from engram.report import figures
from engram.report.novelty_figures import list_detectors
from engram.report.report_data import ReportData
from engram.report.section_types import DrawnMethods, Panel, Section
from engram.report.table import Column, Table

MOST_METRICS = 12  # figures
MOST_STAGES = 20  # columns of the table


def summarize_probes(digest: ReportData) -> pd.DataFrame:
    """Average probe metrics over runs by name, metric, place and stage, without detectors."""
    frame = digest.frame[is_probe_row(digest.frame)]
    known = set(list_detectors(digest))
    own = [str(metric).partition("/")[0] not in known for metric in frame["metric"]]
    frame = frame[np.array(own, np.bool_)]
    frame = frame.drop(columns="label").rename(columns={"name": "label"})
    return summarise_runs(frame).rename(columns={"label": "name"})


def probe_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot metrics over stages; None without probes."""
    table = summarize_probes(digest)
    if not len(table):
        return None
    whole = table[(table["task"] < 0) & (table["cls"] < 0) & table["name"].isin(cast.names)]
    rows = whole.assign(x=whole["stage"] + 1, value=whole["mean"]).dropna(subset=["value"])
    panels = []
    for number, metric in enumerate(list(dict.fromkeys(rows["metric"]))[:MOST_METRICS]):
        own = rows[rows["metric"] == metric]
        shares = bool(own["value"].between(0, 1).all())
        y = metric.rpartition("/")[2]
        figure = figures.draw_over_stages(own, cast.looks, y, int(rows["x"].max()), shares=shares)
        panels.append(Panel(f"probe-{number + 1}", metric, figure))
    text = (
        "Measurements of your own probes after each stage. The first part of a name is the probe, "
        "the second what it measures. Error bars: one standard deviation over runs."
    )
    note = "" if panels else "All values are per task or per class: see the table."
    return Section("probes", "Probes", text, tuple(panels), note)


def probe_table(digest: ReportData, classes: Mapping[int, str]) -> Table | None:
    """Tabulate metrics by stage, mean ± std over runs."""
    table = summarize_probes(digest)
    if not len(table):
        return None
    places = describe_places(table.assign(head=""), classes)
    names = [
        f"{metric} ({place})" if place else metric
        for metric, place in zip(table["metric"], places, strict=True)
    ]
    table = table.assign(measured=names)
    stages = sorted(int(k) for k in table["stage"].unique())
    shown = stages[:MOST_STAGES]
    keys = ["name", "head", "measured"]
    wide = table[keys].drop_duplicates()
    for stage in shown:
        own = table[table["stage"] == stage].set_index(keys)
        values = own.reindex(pd.MultiIndex.from_frame(wide))
        wide[f"stage {stage + 1}"] = values["mean"].to_numpy()
        wide[f"stage {stage + 1}_std"] = values["std"].to_numpy()
    columns = [Column("name", "Method"), Column("measured", "Measured")]
    if wide["head"].any():
        columns.append(Column("head", "View"))
    columns += [Column(f"stage {k + 1}", f"After {k + 1}", "spread") for k in shown]
    note = "Mean ± standard deviation over runs."
    if len(shown) < len(stages):
        note += f" The first {len(shown)} of {len(stages)} stages."
    return Table("probes", "Probes", tuple(columns), wide.reset_index(drop=True), note)
