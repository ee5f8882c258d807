"""Sections of a report in reading order, each with figures and a line on how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from engram.records.head_views import FIGURES
from engram.records.method_ranking import MethodRanking
from engram.report import figures, plot_tables
from engram.report.class_figures import (
    calibration_section,
    class_section,
    confusion_section,
    label_section,
)
from engram.report.generated_figures import generated_section
from engram.report.hyperparameter_figures import response_section
from engram.report.method_styles import assign_styles, short_names
from engram.report.novelty_figures import (
    alarms_section,
    features_section,
    novelty_section,
    scores_section,
)
from engram.report.probe_figures import probe_section
from engram.report.rank_figures import draw_ranking
from engram.report.report_data import ReportData, StreamParts
from engram.report.section_types import DrawnMethods, Panel, Section

MOST_METHODS = 24  # lines in a figure
MOST_TASKS = 12


def choose_methods(*digests: ReportData) -> DrawnMethods:
    """Choose the methods to draw: all if they are few, else the most accurate ones.

    A method looks the same on all streams.
    """
    methods = (
        pd.concat([one.methods for one in digests]) if len(digests) > 1 else digests[0].methods
    )
    ranked = methods.sort_values("average_accuracy", ascending=False, na_position="last") \
        if len(methods) else methods  # fmt: skip
    everyone = list(dict.fromkeys(ranked["name"].astype(str)))
    names = sorted(everyone[:MOST_METHODS])
    return DrawnMethods(tuple(names), assign_styles(names), short_names(names, 26), len(everyone))


def build_sections(digest: ReportData, cast: DrawnMethods) -> list[Section]:
    """Build every section; those without data have a note in place of figures.

    Optional sections: varied parameters, classes, label sets, generators, detectors, own probes.
    """
    if_any = [build(digest, cast) for build in OPTIONAL_BUILDERS]
    return [build(digest, cast) for build in SECTION_BUILDERS] + [one for one in if_any if one]


def build_stream_sections(
    parts: StreamParts, cast: DrawnMethods, ranked: Mapping[str, MethodRanking]
) -> list[Section]:
    """Build every section, with the panels of each stream by themselves."""
    if len(parts) == 1:
        return [one for _, digest in parts.values() for one in build_sections(digest, cast)]
    found: dict[str, list[tuple[str, Section]]] = {}
    for build in (*SECTION_BUILDERS, *OPTIONAL_BUILDERS):
        for stream, (_, digest) in parts.items():
            if (section := build(digest, cast)) is not None:
                found.setdefault(section.name, []).append((stream, section))
    places = {stream: number for number, stream in enumerate(parts, start=1)}
    joined = [_join_streams(own, places) for own in found.values()]
    return [rank_section(ranked), *joined] if ranked else joined


def _join_streams(parts: Sequence[tuple[str, Section]], places: Mapping[str, int]) -> Section:
    """Join a section of several streams; the name of a panel ends with the number of its stream."""
    panels = tuple(
        replace(panel, name=f"{panel.name}-stream-{places[stream]}",
                title=f"{stream}: {panel.title}" if panel.title else stream)
        for stream, section in parts for panel in section.panels
    )  # fmt: skip
    return replace(parts[0][1], panels=panels, note="" if panels else parts[0][1].note)


def rank_section(ranked: Mapping[str, MethodRanking]) -> Section:
    """Draw the critical-difference diagram of each head view that has enough streams."""
    text = (
        "Methods by their mean rank over streams, 1 the best. A bar joins methods that cannot be "
        "told apart: ranks further apart than the critical difference (CD) differ significantly "
        "(Friedman and Nemenyi tests; every stream counts once)."
    )
    drawn = {head: one for head, one in ranked.items() if not one.refused}
    panels = [
        Panel(f"ranks-{head}" if len(drawn) > 1 else "ranks", head if len(drawn) > 1 else "",
              draw_ranking(one, head=head))
        for head, one in drawn.items()
    ]  # fmt: skip
    note = "" if panels else next(iter(ranked.values())).refused.capitalize() + "."
    return Section("ranks", "Methods by stream", text, tuple(panels), note)


def _select_methods(table: pd.DataFrame, cast: DrawnMethods) -> pd.DataFrame:
    return table[table["name"].isin(cast.names)] if len(table) else table


def matrix_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw an accuracy matrix per method."""
    text = (
        "Rows are points in time (after stage 1, 2, …), columns are tasks. The diagonal shows each "
        "task just after it was learnt; read down a column to see it being forgotten. Mean over "
        "runs."
    )
    panels = []
    for number, name in enumerate(cast.names):
        views = {}
        for (other, head), matrix in digest.matrices.items():
            if other == name:
                lower = np.where(np.tril(np.ones(matrix.shape[1:], np.bool_)), matrix, np.nan)
                views[head] = plot_tables.mean_and_std(lower)
        if views:
            figure = figures.draw_heat_map(views, name=name, figure=digest.figure)
            panels.append(Panel(f"matrix-{number + 1}", name, figure, label=name))
    note = "" if panels else f"No finished run, so no {digest.figure} matrix."
    return Section("matrices", f"{_capitalize(digest.figure)} matrices", text, tuple(panels), note)


def _capitalize(words: str) -> str:
    return words[0].upper() + words[1:]


def stage_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw curves over stages: all tasks seen, then each task."""
    several = (
        "" if digest.only_accuracy else " (of label sets: over all their test rows, each once)"
    )
    text = (
        f"Left to right: after each stage. The first figure is the mean over all tasks seen so "
        f"far{several}; the others follow one task each from the stage that learns it. A flat line "
        "forgets nothing. Bars are one standard deviation over runs."
    )
    curves = plot_tables.stage_curves(digest, cast.names)
    heading = f"{_capitalize(digest.figure)} over stages"
    if not len(curves) or curves["stage"].max() == 0:
        return Section("stages", heading, text, note="Needs more than one stage.")
    curves = curves.assign(x=curves["stage"] + 1)
    last = int(curves["x"].max())
    panels = []
    for task in [-1, *_pick_tasks(curves["task"])]:
        title = "All tasks seen" if task < 0 else f"Task {task + 1}"
        name = "stages-mean" if task < 0 else f"stages-task-{task + 1}"
        rows = curves[curves["task"] == task]
        figure = figures.draw_over_stages(rows, cast.looks, digest.figure, last)
        panels.append(Panel(name, title, figure))
    return Section("stages", heading, text, tuple(panels))


def _pick_tasks(tasks: pd.Series[int]) -> list[int]:
    """All tasks, or evenly spread ones with the first and the last."""
    every = sorted(int(t) for t in tasks.unique() if t >= 0)
    if len(every) <= MOST_TASKS:
        return every
    return [every[i] for i in np.linspace(0, len(every) - 1, MOST_TASKS).round().astype(int)]


def iteration_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw curves within stages, if accuracies were measured during training."""
    text = (
        "The same curves, evaluated during training. The x axis counts stages: 1.5 is halfway "
        "through the second stage. Dotted lines mark stage boundaries; a drop right after one is "
        "forgetting as it happens."
    )
    every = [plot_tables.progress_curves(digest, name, cast.names) for name in FIGURES]
    found = [curves for curves in every if len(curves)]
    heading = f"{_capitalize(digest.figure)} during training"
    if not found:
        note = "Nothing was evaluated during training (see evaluate_every)."
        return Section("iterations", heading, text, note=note)
    curves = pd.concat(found)
    last = int(curves["stage"].max()) + 1
    panels = []
    for task in _pick_tasks(curves["task"]):
        rows = curves[(curves["task"] == task)]
        figure = figures.draw_lines(
            rows, cast.looks, x="stages trained", y=digest.figure, borders=last, height=280
        )
        figure.update_xaxes(range=[0, last])
        panels.append(Panel(f"iterations-task-{task + 1}", f"Task {task + 1}", figure))
    return Section("iterations", heading, text, tuple(panels))


def trade_off_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw accuracy against forgetting, with the bound."""
    bound = (
        "No run can lie above the dashed line: with k tasks, forgetting is at most "
        "1 − k/(k−1) · accuracy + 1/(k−1). "
    )
    text = (
        "Further right is more accurate, further down is less forgetting: the best methods are at "
        f"the lower right. {bound if digest.only_accuracy else ''}"
        f"Forgetting is measured from the best past {digest.figure}. Small dots are single runs."
    )
    heading = f"{_capitalize(digest.figure)} and forgetting"
    table = _select_methods(digest.methods, cast).rename(
        columns={"average_accuracy": "x", "forgetting/max": "y", "average_accuracy_std": "x_std",
                 "forgetting/max_std": "y_std"}
    )  # fmt: skip
    table = table.dropna(subset=["x", "y"]) if len(table) else table
    if not len(table):
        note = "Needs a finished run with at least two stages."
        return Section("trade-off", heading, text, note=note)
    figure = figures.draw_points(table, cast.looks, x=digest.average, y="forgetting")
    runs = _select_methods(digest.runs[digest.runs["finished"]], cast)
    cloud = runs.rename(columns={"average_accuracy": "x", "forgetting/max": "y"})
    several = cloud.groupby(["name", "head"])["x"].transform("size") > 1
    most = max(20, 2000 // max(1, len(cast.names)))
    cloud = plot_tables.sample_rows(cloud[several], ["name", "head"], most)
    if len(cloud):
        figures.add_cloud(figure, cloud, cast.looks)
    if digest.only_accuracy:  # the bound is one of averages over tasks
        for tasks in sorted({int(t) for t in table["tasks"]})[:4]:
            figures.add_bound(figure, tasks)
    figure.update_xaxes(range=[0, 1.02])
    low = min(0.0, float(cloud["y"].min()) if len(cloud) else 0.0, float(table["y"].min()))
    figure.update_yaxes(range=[low - 0.04, 1.04])
    return Section("trade-off", heading, text, (Panel("trade-off", "", figure),))


def transfer_plane_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw forgetting against intransigence."""
    text = (
        "Left of the centre, learning new tasks improved old ones; right of it, old tasks were "
        "forgotten. Below the centre, the last task is learnt better than by joint training; above "
        "it, worse. Joint training itself is at the origin: the closer, the better. Each run is "
        "compared with the joint run of the same seed, or with the mean over joint runs if there "
        "is none."
    )
    title = "Forgetting and intransigence"
    table = _select_methods(digest.methods, cast)
    if len(table):
        table = table.dropna(subset=["forgetting/max", "intransigence"])
    if not len(table):
        note = (
            "Intransigence is relative to joint training: add a run of Joint on the same stream, "
            "order and view."
        )
        return Section("plane", title, text, note=note)
    table = table.rename(
        columns={"forgetting/max": "x", "intransigence": "y", "distance": "extra",
                 "forgetting/max_std": "x_std", "intransigence_std": "y_std"}
    )  # fmt: skip
    panel = Panel("plane", "", figures.draw_transfer_plane(table, cast.looks))
    return Section("plane", title, text, (panel,))


def order_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw violins over orders."""
    text = (
        "Each dot is one order of the tasks or classes, averaged over seeds; a violin is wide "
        "where many orders give similar results. A tall violin means that results depend strongly "
        "on the order."
    )
    table = _select_methods(plot_tables.order_accuracies(digest), cast)
    if not len(table):
        note = "Only one order was run."
        return Section("orders", "Sensitivity to the order", text, note=note)
    drawn = plot_tables.sample_rows(table, ["name", "head"]).rename(
        columns={"average_accuracy": "value"}
    )
    figure = figures.draw_violins(drawn, cast.looks, cast.short, y=digest.average)
    panel = Panel("orders", "", figure)
    return Section("orders", "Sensitivity to the order", text, (panel,))


def cost_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw accuracy against time and memory."""
    text = (
        "Further up is more accurate, further left is cheaper. A method is worth its cost unless "
        "another one is above it and to its left."
    )
    table = _select_methods(digest.methods, cast)
    panels = []
    for key, title, unit, scale in (
        ("kept_bytes", "Memory", "kept, MiB", 2.0**20),
        ("seconds", "Time", "seconds per run", 1.0),
    ):
        rows = table.dropna(subset=[key, "average_accuracy"]) if len(table) else table
        if not len(rows):
            continue
        rows = rows.assign(x=rows[key] / scale, x_std=rows[f"{key}_std"] / scale)
        rows = rows.assign(y=rows["average_accuracy"], y_std=rows["average_accuracy_std"])
        figure = figures.draw_points(rows, cast.looks, x=unit, y=digest.average, height=340)
        figures.set_log_axis_with_zero(figure, [float(v) for v in rows["x"]])
        panels.append(Panel(f"cost-{key.replace('_', '-')}", title, figure))
    note = "" if panels else "No times or memory sizes were recorded."
    return Section("costs", f"Cost against {digest.figure}", text, tuple(panels), note)


def loss_section(digest: ReportData, cast: DrawnMethods) -> Section:
    """Draw loss terms over training."""
    text = (
        "Each term of the training loss, mean over runs. A penalty that stays at zero has no "
        "effect; one far larger than the task loss keeps the network from learning."
    )
    curves = _select_methods(plot_tables.progress_curves(digest, "loss/", cast.names), cast)
    curves = curves[np.isfinite(curves["value"].astype(float))] if len(curves) else curves
    if not len(curves):
        return Section("losses", "Loss terms", text, note="No loss terms were recorded.")
    last = int(curves["stage"].max()) + 1
    terms = sorted(curves["metric"].unique(), key=lambda m: (m != "loss/task", m))
    panels = []
    for number, term in enumerate(terms[:MOST_TASKS]):
        rows = curves[curves["metric"] == term]
        low, high = float(rows["value"].min()), float(rows["value"].max())
        figure = figures.draw_lines(
            rows, cast.looks, x="stages trained", y="loss", shares=False, borders=last,
            log=low > 0 and high / low > 100, height=280,
        )  # fmt: skip
        figure.update_xaxes(range=[0, last])
        panels.append(Panel(f"loss-{number + 1}", term.removeprefix("loss/"), figure))
    return Section("losses", "Loss terms", text, tuple(panels))


SECTION_BUILDERS: tuple[Callable[[ReportData, DrawnMethods], Section], ...] = (
    matrix_section,
    stage_section,
    iteration_section,
    trade_off_section,
    transfer_plane_section,
    order_section,
    cost_section,
    loss_section,
)


OPTIONAL_BUILDERS: tuple[Callable[[ReportData, DrawnMethods], Section | None], ...] = (
    response_section, class_section, confusion_section, calibration_section, label_section,
    generated_section, novelty_section, scores_section, alarms_section, features_section,
    probe_section,
)  # fmt: skip


def list_panels(sections: Sequence[Section]) -> list[Panel]:
    """List all panels in reading order."""
    return [panel for section in sections for panel in section.panels]
