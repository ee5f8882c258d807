"""What detectors found novel: comparisons over stages, and the scores of the three sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.records.novelty import Familiarity
from engram.report import figures
from engram.report.digest import Digest, Floats
from engram.report.section import DrawnMethods, Panel, Section
from engram.report.style import as_plot_text

SHOWN = {"combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC"}
MOST_DETECTORS = 8
MOST_HISTOGRAMS = 24
BINS = 30
COLOURS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
TEXT = (
    "How well each detector tells items that a method gets right (inside) from tasks to come "
    "(outside), after each stage: C.AUC over all items, R.AUC for the newest task, P.AUC for "
    "earlier ones; 0.5 is chance. Below, how familiar it finds inside, forgotten and outside items "
    "after the last stage that has tasks to come (first seed and order; shares of each set; "
    "outside items count under every head). Ends hold what lies beyond."
)


def novelty_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Lines over stages and histograms; None where no detector was asked."""
    if not len(digest.novelty):
        return None
    names = dict(zip(digest.frame["recipe"], digest.frame["name"].astype(str), strict=True))
    table = digest.novelty.assign(name=[names[one] for one in digest.novelty["recipe"]], head="")
    table = table[table["name"].isin(cast.names)]
    detectors = list(dict.fromkeys(table["detector"]))
    panels = _lines(table, detectors[:MOST_DETECTORS], cast)
    drawn = [
        (names[one.recipe], one) for one in digest.familiarity
        if one.detector in detectors[:MOST_DETECTORS] and names[one.recipe] in cast.names
    ]  # fmt: skip
    for number, (name, one) in enumerate(drawn[:MOST_HISTOGRAMS]):
        title = f"{one.detector}, {cast.short[name]}, after stage {one.stage + 1}"
        figure = histogram(one, name)
        panels.append(Panel(f"novelty-scores-{number + 1}", title, figure, label=name))
    left = [
        f"{n - most} of {n} {what} are not drawn." for what, n, most in (
            ("detectors", len(detectors), MOST_DETECTORS),
            ("histograms", len(drawn), MOST_HISTOGRAMS),
        ) if n > most
    ]  # fmt: skip
    return Section("novelty", "Novelty", " ".join([TEXT, *left]), tuple(panels))


def _lines(table: pd.DataFrame, detectors: list[str], cast: DrawnMethods) -> list[Panel]:
    """A figure for every detector and comparison that has a number."""
    rows = table.assign(x=table["stage"] + 1, value=table["mean"]).dropna(subset=["value"])
    panels = []
    for place, detector in enumerate(detectors):
        for metric, short in SHOWN.items():
            own = rows[(rows["detector"] == detector) & (rows["metric"] == metric)]
            if len(own):
                figure = figures.lines(own, cast.looks, x="stage", y=short, height=260)
                last = int(rows["x"].max())
                figure.update_xaxes(range=[0.8, last + 0.2], dtick=1 if last <= 12 else None)
                name = f"novelty-{place + 1}-{metric.partition('_')[0]}"
                panels.append(Panel(name, f"{detector}: {short}", figure))
    return panels


def histogram(one: Familiarity, name: str) -> go.Figure:
    """How the scores of the three sets are distributed, on one axis."""
    sets = {key: getattr(one, key) for key in COLOURS}
    sets = {key: scores[np.isfinite(scores)].astype(np.float64) for key, scores in sets.items()}
    pool = np.concatenate(list(sets.values()))
    low, high = _range(pool)
    edges = np.linspace(low, high, BINS + 1)
    figure = figures.blank("familiarity", "share of the set", height=280)
    for key, scores in sets.items():
        if len(scores):
            shares = np.histogram(scores.clip(low, high), edges)[0] / len(scores)
            figure.add_trace(
                go.Scatter(
                    x=(edges[:-1] + edges[1:]) / 2, y=shares,
                    name=f"{key} ({len(scores)})", mode="lines", fill="tozeroy",
                    line={"shape": "hvh", "color": COLOURS[key], "width": 2},
                    meta={"label": name, "head": ""},
                    hovertemplate=f"{as_plot_text(key)}<br>%{{x:.4~g}}: %{{y:.3~g}}<extra></extra>",
                )
            )  # fmt: skip
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}}
    figure.update_layout(showlegend=True, legend=legend, margin={"t": 32})
    return figure


def _range(pool: Floats) -> tuple[float, float]:
    """What is drawn: nearly all scores, but no tail far longer than the middle half is wide."""
    if not len(pool):
        return 0.0, 1.0
    first, left, right, last = np.quantile(pool, [0.005, 0.25, 0.75, 0.995])
    if right > left:
        first, last = max(first, left - 3 * (right - left)), min(last, right + 3 * (right - left))
    return float(first), float(last if last > first else first + max(abs(first), 1.0) * 1e-3)
