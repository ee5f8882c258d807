"""Sections on novelty detectors: separation by stage, false alarms, features, ROC curves and
histograms of scores. A figure compares detectors for one method; tables compare methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.errors import EngramError
from engram.records.novelty_records import (
    DRAWN_GROUPS,
    STATISTICS,
    Familiarity,
    FeatureSample,
    embed_in_plane,
)
from engram.report import figures
from engram.report.method_styles import Style, as_plot_text, assign_styles
from engram.report.report_data import Floats, ReportData
from engram.report.report_inputs import ALARM_RATE
from engram.report.section_types import DrawnMethods, Panel, Section
from engram.report.table import Column, Table

CURVE_METRICS = {"combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC"}
TABLE_METRICS = {
    **CURVE_METRICS, "mean_auroc": "mAUC", "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip
MOST_DETECTORS = 8  # lines in a figure
MOST_METHODS = 6  # with figures of their own
NOVELTY_TEXT = (
    "How well the detectors separate items that a method classifies correctly (inside) from "
    "items of future tasks (outside) after each stage: C.AUC over all items, R.AUC for the newest "
    "task, P.AUC for earlier ones; 0.5 is chance. The table shows means over stages."
)


def list_detectors(digest: ReportData) -> list[str]:
    """List the detectors that scored any run."""
    return list(dict.fromkeys(digest.novelty["detector"])) if len(digest.novelty) else []


def not_shown_note(what: str, total: int, most: int) -> str:
    """Return a sentence on what is not drawn; "" if all is."""
    return f" {total - most} of {total} {what} are not shown." if total > most else ""


def novelty_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot separation over stages; None without detectors."""
    detectors = list_detectors(digest)
    if not detectors:
        return None
    table = digest.by_name(digest.novelty)
    rows = table.assign(x=table["stage"] + 1, value=table["mean"]).dropna(subset=["value"])
    looks = _style_detectors(detectors)
    methods, text = _pick_methods(rows, cast, NOVELTY_TEXT)
    panels = []
    for place, method in enumerate(methods):
        for metric, short in CURVE_METRICS.items():
            own = rows[(rows["name"] == method) & (rows["metric"] == metric)]
            if len(own):
                name = f"novelty-{place + 1}-{metric.partition('_')[0]}"
                figure = _draw_detectors(own, looks, method, short, int(rows["x"].max()))
                panels.append(Panel(name, f"{cast.short[method]}: {short}", figure, label=method))
    text += not_shown_note("detectors", len(detectors), MOST_DETECTORS)
    if digest.tuned:
        text += f" Tuned after the first stage: {'. '.join(digest.tuned)}."
    return Section("novelty", "Novelty", text, tuple(panels), legend=looks)


def _style_detectors(detectors: Sequence[str]) -> dict[str, Style]:
    """Assign a style to each detector that is drawn."""
    return assign_styles(detectors[:MOST_DETECTORS])


def _pick_methods(table: pd.DataFrame, cast: DrawnMethods, text: str) -> tuple[list[str], str]:
    """Pick the methods that get figures of their own, and say in the text if some get none."""
    names = [name for name in cast.names if name in set(table["name"])]
    return names[:MOST_METHODS], text + not_shown_note("methods", len(names), MOST_METHODS)


def _draw_detectors(
    rows: pd.DataFrame, looks: dict[str, Style], method: str, y: str, last: int
) -> go.Figure:
    """Draw a line per detector over stages, for one method."""
    known = rows[rows["detector"].isin(list(looks))].assign(name=lambda one: one["detector"])
    return _switch_by(method, figures.draw_over_stages(known, looks, y, last, height=260))


def _switch_by(method: str, figure: go.Figure) -> go.Figure:
    """Tie all lines of a figure, whose names are not methods, to the switch of one method."""
    figure.update_traces(meta={"label": method, "head": ""})
    return figure


def novelty_table(digest: ReportData) -> Table | None:
    """Tabulate means over stages of every detector and method, with seconds and state."""
    if not list_detectors(digest):
        return None
    table = digest.by_name(digest.novelty)
    keys = ["name", "detector"]
    wide = table.pivot_table(index=keys, columns="metric", values="mean", sort=False)
    wide = wide.reindex(columns=list(TABLE_METRICS)).join(_detector_costs(digest))
    best = {name: "min" if name.endswith("error") else "max" for name in TABLE_METRICS}
    columns = [
        Column("name", "Method"), Column("detector", "Detector"),
        *(Column(name, short, "number", best=best[name]) for name, short in TABLE_METRICS.items()),
        Column("seconds", "Seconds", "number", help="per stage and run"),
        Column("kept", "State, MiB", "number", help="after the last stage"),
    ]  # fmt: skip
    note = "Means over stages and runs; a run's seconds per stage, its state after the last one."
    frame = wide.reset_index().assign(head="", stream=lambda one: one["name"])
    return Table("novelty", "Novelty", tuple(columns), frame, note)


def _detector_costs(digest: ReportData) -> pd.DataFrame:
    """Compute seconds per stage and mebibytes of state by name and detector."""
    frame, found = digest.frame, []
    for detector in list_detectors(digest):
        for kind in ("seconds", "bytes"):
            own = frame[frame["metric"] == f"{detector}/{kind}"].astype({"name": str})
            if kind == "bytes":
                last = own.groupby("name")["stage"].transform("max")
                own = own[own["stage"] == last].assign(value=own["value"] / 2**20)
            mean = own.groupby("name")["value"].mean().rename("value").reset_index()
            label = "seconds" if kind == "seconds" else "kept"
            found.append(mean.assign(detector=detector, kind=label))
    whole = pd.concat(found)
    return whole.pivot_table(index=["name", "detector"], columns="kind", values="value").reindex(
        columns=["seconds", "kept"]
    )


# False alarms.


THRESHOLD_KINDS = {
    "frozen": "threshold of the task's own stage",
    "renewed": "threshold of the newest stage",
}
ALARM_TEXT = (
    f"How often a detector flags inside items of earlier tasks as novel, with a threshold set for "
    f"{ALARM_RATE:.0%} false alarms (dotted) on validation rows: those of the task's own stage or "
    "those of the newest task. A line that departs from the dotted one means that scores have "
    "drifted, which AUC cannot show. Mean over earlier tasks and runs."
)


def alarms_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot false alarms over stages; None without calibrated thresholds."""
    if not len(digest.alarms):
        return None
    table = digest.by_name(digest.alarms)
    table = table[table["task"] < table["stage"]]
    detectors = list_detectors(digest)
    looks = _style_detectors(detectors)
    last = int(digest.alarms["stage"].max()) + 1
    methods, text = _pick_methods(table, cast, ALARM_TEXT)
    panels = []
    for place, method in enumerate(methods):
        own = table[table["name"] == method]
        means = own.groupby(["detector", "head", "stage"], sort=False)[list(THRESHOLD_KINDS)].mean()
        for kind, words in THRESHOLD_KINDS.items():
            rows = means[kind].rename("value").dropna().reset_index()
            if not len(rows):
                continue
            rows = rows.assign(x=rows["stage"] + 1)
            figure = _draw_detectors(rows, looks, method, "false alarms", last)
            rule = {"width": 1, "dash": "dot", "color": "#8A8A8A"}
            figure.add_hline(y=ALARM_RATE, line=rule)
            title = f"{cast.short[method]}: {words}"
            panels.append(Panel(f"alarms-{place + 1}-{kind}", title, figure, label=method))
    if not panels:
        return None
    text += not_shown_note("detectors", len(detectors), MOST_DETECTORS)
    return Section("novelty-alarms", "Novelty: thresholds", text, tuple(panels), legend=looks)


# Features of inside, forgotten and outside items.


MOST_MAPS = 4
SHADES = dict(
    zip(DRAWN_GROUPS, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#8A8A8A"), strict=True)
)
DASHES = dict(zip(DRAWN_GROUPS, ("solid", "dash", "dot", "solid", "solid"), strict=True))
FEATURE_TEXT = (
    "Norm, mean and standard deviation of the features before the last layer, averaged over sets "
    "of items: inside items of the first task, of the newest and of those in between, forgotten "
    "and outside items. Features of unknown items tend to have a smaller norm; where the lines "
    "meet, a detector based on the norm cannot work. The t-SNE maps (first seed and order) place "
    "items with similar features next to each other; distances between clusters mean little."
)


def features_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot statistics over stages, and maps; None if no features were stored."""
    if not len(digest.features):
        return None
    table = digest.by_name(digest.features)
    names, text = _pick_methods(table, cast, FEATURE_TEXT)
    panels = []
    for place, name in enumerate(names):
        for statistic in STATISTICS:
            own = table[(table["name"] == name) & (table["statistic"] == statistic)]
            title = f"{statistic}: {cast.short[name]}"
            panel = f"features-{place + 1}-{statistic}"
            panels.append(Panel(panel, title, _draw_statistic(own, statistic, name), label=name))
    maps, said = _draw_maps(digest, cast)
    looks = {group: _group_style(group) for group in DRAWN_GROUPS}
    return Section(
        "novelty-features", "Novelty: features", text + said, (*panels, *maps), legend=looks
    )


def _group_style(group: str) -> Style:
    return Style(SHADES[group], DASHES[group], "circle")


def _draw_statistic(table: pd.DataFrame, statistic: str, name: str) -> go.Figure:
    figure = figures.empty_figure("stage", statistic, height=260)
    for group in DRAWN_GROUPS:
        rows = table[table["set"] == group].sort_values("stage")
        if len(rows):
            figure.add_trace(
                go.Scatter(
                    x=(rows["stage"] + 1).to_numpy(), y=rows["mean"].to_numpy(), name=group,
                    mode="lines+markers", meta={"label": name, "head": ""},
                    line={"color": SHADES[group], "dash": DASHES[group], "width": 2},
                    marker={"size": 6, "color": SHADES[group]},
                    hovertemplate=f"{group}<br>stage %{{x}}: %{{y:.4~g}}<extra></extra>",
                )
            )  # fmt: skip
    last = int(table["stage"].max()) + 1 if len(table) else 1
    figure.update_xaxes(range=[0.8, last + 0.2], dtick=1 if last <= 12 else None)
    return figure


def _draw_maps(digest: ReportData, cast: DrawnMethods) -> tuple[list[Panel], str]:
    """Draw maps of some methods, with a remark on the others."""
    names = digest.names
    shown = [(names[one.recipe], one) for one in digest.samples if names[one.recipe] in cast.names]
    shown.sort(key=lambda pair: cast.names.index(pair[0]))
    panels = []
    try:
        for number, (name, one) in enumerate(shown[:MOST_MAPS]):
            title = f"map after stage {one.stage + 1}: {cast.short[name]}"
            panels.append(
                Panel(f"features-map-{number + 1}", title, _draw_map(one, name), label=name)
            )
    except EngramError as problem:  # scikit-learn is not installed
        return [], f" No maps: {problem}."
    return panels, not_shown_note("maps", len(shown), MOST_MAPS)


def _draw_map(one: FeatureSample, name: str) -> go.Figure:
    figure = figures.empty_figure("", "", height=360)
    kept = one.kind != ""
    places, kinds, tasks = embed_in_plane(one.features[kept]), one.kind[kept], one.task[kept]
    for kind, colour in COLOURS.items():
        own = kinds == kind
        if own.any():
            figure.add_trace(
                go.Scatter(
                    x=places[own, 0], y=places[own, 1], name=f"{kind} ({own.sum()})",
                    mode="markers", meta={"label": name, "head": ""},
                    marker={"color": colour, "size": 5, "opacity": 0.75},
                    text=[f"task {task + 1}" for task in tasks[own]],
                    hovertemplate=f"{kind}<br>%{{text}}<extra></extra>",
                )
            )  # fmt: skip
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_yaxes(showticklabels=False, showgrid=False, scaleanchor="x")
    add_legend(figure)
    return figure


# Scores: ROC curves and histograms.


MOST_HISTOGRAMS = 24
BINS = 30
FEW_ITEMS = 10  # a set with fewer items does not determine the height of a figure
MOST_ROC_POINTS = 100  # points of a curve
COLOURS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
SCORE_TEXT = (
    "After the last stage that is followed by another task; first seed and order. ROC curves: the "
    "fraction of inside items above a threshold against that of outside items, over all "
    "thresholds; the area under the curve is C.AUC. Histograms: the familiarity scores of inside, "
    "forgotten and outside items (fractions of each set; outside items count under every head). "
    f"The outermost bins hold all values beyond; bars of sets with fewer than {FEW_ITEMS} items "
    "may be cut off at the top."
)


def scores_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot ROC curves and histograms; None without detectors."""
    looks = _style_detectors(list_detectors(digest))
    names = digest.names
    drawn = [
        (names[one.recipe], one) for one in digest.familiarity
        if one.detector in looks and names[one.recipe] in cast.names
    ]  # fmt: skip
    if not drawn:
        return None
    methods, text = _pick_methods(pd.DataFrame(drawn, columns=["name", "scores"]), cast, SCORE_TEXT)
    panels = []
    for place, method in enumerate(methods):
        figure = _draw_roc_curves([one for name, one in drawn if name == method], looks, method)
        title = f"{cast.short[method]}: ROC"
        panels.append(Panel(f"novelty-roc-{place + 1}", title, figure, label=method))
    for number, (name, one) in enumerate(drawn[:MOST_HISTOGRAMS]):
        title = f"{one.detector}, {cast.short[name]}, after stage {one.stage + 1}"
        figure = draw_histogram(one, name)
        panels.append(Panel(f"novelty-scores-{number + 1}", title, figure, label=name))
    text += not_shown_note("histograms", len(drawn), MOST_HISTOGRAMS)
    return Section("novelty-scores", "Novelty: scores", text, tuple(panels), legend=looks)


def roc_curve(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Compute shares of outside and inside items at or above each of at most 100 thresholds.

    Examples
    --------
    >>> x, y = roc_curve(np.array([0.9, 0.4]), np.array([0.4, 0.1]))
    >>> x.tolist(), y.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = (np.sort(np.nan_to_num(one, nan=-np.inf)) for one in (inside, outside))
    at = np.unique(np.concatenate([inside, outside]))[::-1]
    if len(at) > MOST_ROC_POINTS:
        at = at[np.linspace(0, len(at) - 1, MOST_ROC_POINTS).round().astype(int)]
    shares = [
        np.concatenate([[0.0], 1 - np.searchsorted(one, at, side="left") / max(len(one), 1)])
        for one in (outside, inside)
    ]
    return shares[0], shares[1]


def _draw_roc_curves(own: Sequence[Familiarity], looks: dict[str, Style], method: str) -> go.Figure:
    parts = []
    for one in own:
        if len(one.inside) and len(one.outside):
            x, y = roc_curve(one.inside, one.outside)
            parts.append(pd.DataFrame({"x": x, "value": y}).assign(name=one.detector, head=""))
    columns = ["name", "head", "x", "value"]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    figure = figures.draw_lines(
        table, looks, x="share of outside items", y="share of inside items", height=300
    )
    rule = {"width": 1, "dash": "dot", "color": "#8A8A8A"}
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=rule, layer="below")
    figure.update_traces(mode="lines")
    figure.update_xaxes(range=[-0.02, 1.02])
    return _switch_by(method, figure)


def draw_histogram(one: Familiarity, name: str) -> go.Figure:
    """Draw histograms of the scores of the three sets on one axis."""
    sets = {key: getattr(one, key) for key in COLOURS}
    sets = {key: scores[np.isfinite(scores)].astype(np.float64) for key, scores in sets.items()}
    pool = np.concatenate(list(sets.values()))
    low, high = _score_range(pool)
    edges = np.linspace(low, high, BINS + 1)
    figure = figures.empty_figure("familiarity", "share of the set", height=280)
    top = 0.0
    for key, scores in sets.items():
        if len(scores):
            shares = np.histogram(scores.clip(low, high), edges)[0] / len(scores)
            top = max(top, shares.max() if len(scores) >= FEW_ITEMS else 0.0)
            figure.add_trace(
                go.Scatter(
                    x=(edges[:-1] + edges[1:]) / 2, y=shares,
                    name=f"{key} ({len(scores)})", mode="lines", fill="tozeroy",
                    line={"shape": "hvh", "color": COLOURS[key], "width": 2},
                    meta={"label": name, "head": ""},
                    hovertemplate=f"{as_plot_text(key)}<br>%{{x:.4~g}}: %{{y:.3~g}}<extra></extra>",
                )
            )  # fmt: skip
    if top:  # a small set in a single bin would flatten the others
        figure.update_yaxes(range=[0, 1.1 * top])
    add_legend(figure)
    return figure


def add_legend(figure: go.Figure) -> None:
    """Add a legend above a figure whose colours do not stand for methods."""
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}}
    figure.update_layout(showlegend=True, legend=legend, margin={"t": 32})


def _score_range(pool: Floats) -> tuple[float, float]:
    """Return a range with nearly all scores, without tails far longer than the middle half."""
    if not len(pool):
        return 0.0, 1.0
    first, left, right, last = np.quantile(pool, [0.005, 0.25, 0.75, 0.995])
    if right > left:
        first, last = max(first, left - 3 * (right - left)), min(last, right + 3 * (right - left))
    return float(first), float(last if last > first else first + max(abs(first), 1.0) * 1e-3)
