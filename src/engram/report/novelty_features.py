"""Features of inside, forgotten and outside items: their length, mean and deviation, and a map."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from engram.errors import EngramError
from engram.records.features import DRAWN, STATISTICS, FeatureSample
from engram.records.neighbours import flat_map
from engram.report import figures
from engram.report.digest import Digest
from engram.report.novelty import left_out
from engram.report.novelty_scores import COLOURS, with_legend
from engram.report.section import DrawnMethods, Panel, Section

MOST_METHODS = 6
MOST_MAPS = 4
SHADES = dict(zip(DRAWN, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#8A8A8A"), strict=True))
DASHES = dict(zip(DRAWN, ("solid", "dash", "dot", "solid", "solid"), strict=True))
TEXT = (
    "Norm, mean and standard deviation of the features before the last layer, averaged over sets "
    "of items: inside items of the first task, of the newest and of those in between, forgotten "
    "and outside items. Features of unknown items tend to have a smaller norm; where the lines "
    "meet, a detector based on the norm cannot work. The t-SNE maps (first seed and order) place "
    "items with similar features next to each other; distances between clusters mean little."
)


def features_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Lines of sets over stages and maps; None where no features were stored."""
    if not len(digest.features):
        return None
    table = digest.by_name(digest.features)
    names = [name for name in cast.names if name in set(table["name"])]
    panels = []
    for place, name in enumerate(names[:MOST_METHODS]):
        for statistic in STATISTICS:
            own = table[(table["name"] == name) & (table["statistic"] == statistic)]
            title = f"{statistic}: {cast.short[name]}"
            panel = f"features-{place + 1}-{statistic}"
            panels.append(Panel(panel, title, _lines(own, statistic, name), label=name))
    maps, said = _maps(digest, cast)
    text = TEXT + left_out("methods", len(names), MOST_METHODS) + said
    return Section("novelty-features", "Novelty: features", text, (*panels, *maps))


def _lines(table: pd.DataFrame, statistic: str, name: str) -> go.Figure:
    figure = figures.blank("stage", statistic, height=320)
    for group in DRAWN:
        rows = table[table["set"] == group]
        if len(rows):
            figure.add_trace(
                go.Scatter(
                    x=(rows["stage"] + 1).to_numpy(), y=rows["mean"].to_numpy(), name=group,
                    mode="lines+markers", meta={"label": name, "head": ""},
                    line={"color": SHADES[group], "dash": DASHES[group], "width": 2},
                    marker={"size": 6},
                    hovertemplate=f"{group}<br>stage %{{x}}: %{{y:.4~g}}<extra></extra>",
                )
            )  # fmt: skip
    last = int(table["stage"].max()) + 1 if len(table) else 1
    figure.update_xaxes(range=[0.8, last + 0.2], dtick=1 if last <= 12 else None)
    with_legend(figure)
    return figure


def _maps(digest: Digest, cast: DrawnMethods) -> tuple[list[Panel], str]:
    """Maps of some methods, and what is to be said about the others."""
    names = dict(zip(digest.frame["recipe"], digest.frame["name"].astype(str), strict=True))
    shown = [(names[one.recipe], one) for one in digest.samples if names[one.recipe] in cast.names]
    shown.sort(key=lambda pair: cast.names.index(pair[0]))
    panels = []
    try:
        for number, (name, one) in enumerate(shown[:MOST_MAPS]):
            title = f"map after stage {one.stage + 1}: {cast.short[name]}"
            panels.append(Panel(f"features-map-{number + 1}", title, _map(one, name), label=name))
    except EngramError as problem:  # scikit-learn is not installed
        return [], f" No maps: {problem}."
    return panels, left_out("maps", len(shown), MOST_MAPS)


def _map(one: FeatureSample, name: str) -> go.Figure:
    figure = figures.blank("", "", height=360)
    kept = one.kind != ""
    places, kinds, tasks = flat_map(one.features[kept]), one.kind[kept], one.task[kept]
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
    with_legend(figure)
    return figure
