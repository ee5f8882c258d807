"""The critical-difference diagram of methods that are ranked over streams."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from engram.records.method_ranking import MethodRanking
from engram.report.figures import empty_figure
from engram.report.method_styles import as_plot_text, shorten

GREY = "#8A8A8A"
BLUE = "#0072B2"


def draw_ranking(ranking: MethodRanking, *, head: str = "") -> go.Figure:
    """Draw the mean ranks of a `MethodRanking` on a line, and bars over methods that do not differ.

    The better half of the methods is named on the left. A bar of the length of the critical
    difference stands above, for Nemenyi's test.
    """
    names, ranks = [*map(str, ranking.table.index)], ranking.table["rank"].to_numpy(float)
    count = len(names)
    low, high = 1.0, float(count)
    margin = 0.6 * (high - low) + 0.3  # for names, on a phone too
    half = (count + 1) // 2
    bars = _stack_bars(ranking)
    depth = 0.35 * (max((level for *_, level in bars), default=-1) + 1) + 0.5
    figure = empty_figure("", "", height=120 + 34 * half + 14 * len({b[2] for b in bars}))
    meta = {"label": None, "head": head}
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = place < half
        row = place if left else count - 1 - place
        y = -depth - 0.8 * row
        end = low - 0.08 * (high - low) if left else high + 0.08 * (high - low)
        figure.add_trace(go.Scatter(
            x=[rank, rank, end], y=[0, y, y], mode="lines", line={"color": GREY, "width": 1.2},
            hoverinfo="skip", showlegend=False, meta=meta,
        ))  # fmt: skip
        figure.add_annotation(
            x=end, y=y, text=f"{as_plot_text(shorten(name, 28))} ({rank:.2f})", showarrow=False,
            xanchor="right" if left else "left", xshift=-4 if left else 4,
        )  # fmt: skip
    figure.add_trace(go.Scatter(
        x=ranks, y=np.zeros(count), mode="markers", marker={"color": BLUE, "size": 9},
        text=[as_plot_text(name) for name in names], showlegend=False, meta=meta,
        hovertemplate="%{text}<br>mean rank %{x:.3f}<extra></extra>",
    ))  # fmt: skip
    for start, end, level in bars:
        y = -0.25 - 0.35 * level
        figure.add_trace(go.Scatter(
            x=[start - 0.03, end + 0.03], y=[y, y], mode="lines",
            line={"color": BLUE, "width": 5}, hoverinfo="skip", showlegend=False, meta=meta,
        ))  # fmt: skip
    if np.isfinite(ranking.critical_difference):
        end = low + ranking.critical_difference
        figure.add_trace(go.Scatter(
            x=[low, end], y=[0.9, 0.9], mode="lines+markers", line={"color": GREY, "width": 2},
            marker={"symbol": "line-ns-open", "size": 9, "color": GREY}, hoverinfo="skip",
            showlegend=False, meta=meta,
        ))  # fmt: skip
        figure.add_annotation(
            x=(low + end) / 2, y=0.9, yshift=11, showarrow=False,
            text=f"CD {ranking.critical_difference:.2f}",
        )  # fmt: skip
        high = max(high, end)
    figure.update_xaxes(
        range=[low - margin, high + margin], side="top", tickmode="array",
        tickvals=list(range(1, count + 1)), showgrid=False, anchor="free", position=1.0,
        title={"text": "mean rank"},
    )  # fmt: skip
    figure.update_yaxes(range=[-depth - 0.8 * (half - 1) - 0.5, 1.7], visible=False, showgrid=False)
    return figure


def _stack_bars(ranking: MethodRanking) -> list[tuple[float, float, int]]:
    """Return start, end and level of the bar of each group; bars that overlap lie below others."""
    ranks = ranking.table["rank"]
    found: list[tuple[float, float, int]] = []
    for group in ranking.groups:
        start, end = float(ranks[group[0]]), float(ranks[group[-1]])
        taken = {level for a, b, level in found if a <= end + 0.1 and start <= b + 0.1}
        level = next(i for i in range(len(found) + 1) if i not in taken)
        found.append((start, end, level))
    return found
