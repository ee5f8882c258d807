"""Scores of detectors: ROC curves, and how those of the three sets are distributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.records.novelty import Familiarity
from engram.report import figures
from engram.report.digest import Digest, Floats
from engram.report.novelty import MOST_DETECTORS, detectors_of, left_out
from engram.report.section import DrawnMethods, Panel, Section
from engram.report.style import as_plot_text

MOST_HISTOGRAMS = 24
BINS = 30
FEW = 10  # items of a set that do not decide how high a figure is
POINTS = 100  # of a curve
COLOURS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
TEXT = (
    "After the last stage that is followed by another task; first seed and order. ROC curves: the "
    "fraction of inside items above a threshold against that of outside items, over all "
    "thresholds; the area under the curve is C.AUC. Histograms: the familiarity scores of inside, "
    "forgotten and outside items (fractions of each set; outside items count under every head). "
    f"The outermost bins hold all values beyond; bars of sets with fewer than {FEW} items may be "
    "cut off at the top."
)


def scores_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Curves and histograms; None where no detector was asked."""
    detectors = detectors_of(digest)[:MOST_DETECTORS]
    names = dict(zip(digest.frame["recipe"], digest.frame["name"].astype(str), strict=True))
    drawn = [
        (names[one.recipe], one) for one in digest.familiarity
        if one.detector in detectors and names[one.recipe] in cast.names
    ]  # fmt: skip
    if not drawn:
        return None
    panels = []
    for place, detector in enumerate(detectors):
        own = [(name, one) for name, one in drawn if one.detector == detector]
        if own:
            panels.append(Panel(f"novelty-roc-{place + 1}", f"{detector}: ROC", _curves(own, cast)))
    for number, (name, one) in enumerate(drawn[:MOST_HISTOGRAMS]):
        title = f"{one.detector}, {cast.short[name]}, after stage {one.stage + 1}"
        figure = histogram(one, name)
        panels.append(Panel(f"novelty-scores-{number + 1}", title, figure, label=name))
    text = TEXT + left_out("histograms", len(drawn), MOST_HISTOGRAMS)
    return Section("novelty-scores", "Novelty: scores", text, tuple(panels))


def roc(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Shares of outside and of inside items at or above every threshold, at most `POINTS`.

    Examples
    --------
    >>> x, y = roc(np.array([0.9, 0.4]), np.array([0.4, 0.1]))
    >>> x.tolist(), y.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = (np.sort(np.nan_to_num(one, nan=-np.inf)) for one in (inside, outside))
    at = np.unique(np.concatenate([inside, outside]))[::-1]
    if len(at) > POINTS:
        at = at[np.linspace(0, len(at) - 1, POINTS).round().astype(int)]
    shares = [
        np.concatenate([[0.0], 1 - np.searchsorted(one, at, side="left") / max(len(one), 1)])
        for one in (outside, inside)
    ]
    return shares[0], shares[1]


def _curves(own: Sequence[tuple[str, Familiarity]], cast: DrawnMethods) -> go.Figure:
    parts = []
    for name, one in own:
        if len(one.inside) and len(one.outside):
            x, y = roc(one.inside, one.outside)
            parts.append(pd.DataFrame({"x": x, "value": y}).assign(name=name, head=""))
    columns = ["name", "head", "x", "value"]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    figure = figures.lines(
        table, cast.looks, x="share of outside items", y="share of inside items", height=300
    )
    rule = {"width": 1, "dash": "dot", "color": "#8A8A8A"}
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=rule, layer="below")
    figure.update_traces(mode="lines")
    figure.update_xaxes(range=[-0.02, 1.02])
    return figure


def histogram(one: Familiarity, name: str) -> go.Figure:
    """How the scores of the three sets are distributed, on one axis."""
    sets = {key: getattr(one, key) for key in COLOURS}
    sets = {key: scores[np.isfinite(scores)].astype(np.float64) for key, scores in sets.items()}
    pool = np.concatenate(list(sets.values()))
    low, high = _range(pool)
    edges = np.linspace(low, high, BINS + 1)
    figure = figures.blank("familiarity", "share of the set", height=280)
    top = 0.0
    for key, scores in sets.items():
        if len(scores):
            shares = np.histogram(scores.clip(low, high), edges)[0] / len(scores)
            top = max(top, shares.max() if len(scores) >= FEW else 0.0)
            figure.add_trace(
                go.Scatter(
                    x=(edges[:-1] + edges[1:]) / 2, y=shares,
                    name=f"{key} ({len(scores)})", mode="lines", fill="tozeroy",
                    line={"shape": "hvh", "color": COLOURS[key], "width": 2},
                    meta={"label": name, "head": ""},
                    hovertemplate=f"{as_plot_text(key)}<br>%{{x:.4~g}}: %{{y:.3~g}}<extra></extra>",
                )
            )  # fmt: skip
    if top:  # a set of few items, all in one bin, would make the others flat
        figure.update_yaxes(range=[0, 1.1 * top])
    with_legend(figure)
    return figure


def with_legend(figure: go.Figure) -> None:
    """A legend of its own above a figure, whose colours are no methods'."""
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}}
    figure.update_layout(showlegend=True, legend=legend, margin={"t": 32})


def _range(pool: Floats) -> tuple[float, float]:
    """What is drawn: nearly all scores, but no tail far longer than the middle half is wide."""
    if not len(pool):
        return 0.0, 1.0
    first, left, right, last = np.quantile(pool, [0.005, 0.25, 0.75, 0.995])
    if right > left:
        first, last = max(first, left - 3 * (right - left)), min(last, right + 3 * (right - left))
    return float(first), float(last if last > first else first + max(abs(first), 1.0) * 1e-3)
