"""Plotly figures, each drawn by a pure function of a tidy table.

The `meta` of a trace names its method (`label`) and head view (`head`), for the switches of the
page. Colours of text, paper and grid are set by the page, which has a light and a dark
theme.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.report.method_styles import Style, as_plot_text, shorten
from engram.report.report_data import Floats


class HeatScale(NamedTuple):
    """Colours of a heat map from 0 to 1, and of numbers written on it."""

    colors: tuple[tuple[float, str], ...]
    turn: float  # the value from which numbers have the second colour
    text: tuple[str, str]


# One hue, readable without colour vision. Nothing is always near the paper: pale on a light page,
# dim on a dark one, where a pale cell would look like the most important of all.
HEAT_SCALES = {
    "light": HeatScale(
        ((0.0, "#f3efe4"), (0.25, "#c9d6df"), (0.5, "#7fb0d0"), (0.75, "#2f7fb5"),
         (1.0, "#0b3c68")),
        0.74, ("#101418", "#ffffff"),
    ),
    "dark": HeatScale(
        ((0.0, "#323a42"), (0.25, "#27506b"), (0.5, "#2f7fb5"), (0.75, "#7fb8de"),
         (1.0, "#e3f2ff")),
        0.48, ("#ffffff", "#101418"),
    ),
}  # fmt: skip
COLOR_SCALE = [list(one) for one in HEAT_SCALES["light"].colors]  # the page sets the dark one

LINE_WIDTH, MARKER_SIZE = 2, 7
RAIL = 3  # how much a line is wider than an equal one above it; of markers, too
MOST_RAILS = 5
DODGE = 0.08  # distance between error bars at one place, as a share of that between places
MOST_DODGED = 0.6  # the share of it that all of them take
MOST_BOLD = 8  # lines whose error bars are as strong as the lines


def empty_figure(x: str, y: str, *, height: int = 340, **layout: Any) -> go.Figure:
    """Create an empty figure with axis titles, in lines that fit a small figure."""
    figure = go.Figure()
    figure.update_layout(
        template=go.layout.Template(), height=height, showlegend=False, hovermode="closest",
        margin={"l": 56, "r": 14, "t": 12, "b": 48}, **layout,
    )  # fmt: skip
    title = "<br>".join(textwrap.wrap(y, max(12, height // 10)))
    figure.update_xaxes(title={"text": x, "standoff": 8}, automargin=True, zeroline=False)
    figure.update_yaxes(title={"text": title, "standoff": 8}, automargin=True, zeroline=False)
    return figure


def count_equals_above(drawn: Sequence[Hashable]) -> list[int]:
    """Count, for each of what is drawn one above the other, the equal ones that will cover it.

    Examples
    --------
    >>> count_equals_above(["a", "b", "a", "a"])
    [2, 0, 1, 0]
    """
    return [list(drawn[place + 1 :]).count(one) for place, one in enumerate(drawn)]


def _rail(covered: int) -> int:
    """Return how much wider to draw what would otherwise vanish below equal lines or markers."""
    return RAIL * min(covered, MOST_RAILS)


def dodge(x: Floats, place: int, count: int, known: Floats) -> Floats:
    """Move one of `count` series sideways, so that their error bars stand side by side.

    Parameters
    ----------
    known
        All places on the axis, of every series.

    Examples
    --------
    >>> [
    ...     dodge(np.array([1.0, 2.0]), k, 3, np.array([1.0, 2.0])).round(2).tolist()
    ...     for k in range(3)
    ... ]
    [[0.92, 1.92], [1.0, 2.0], [1.08, 2.08]]
    """
    places = np.unique(known)
    gap = float(np.diff(places).min()) if len(places) > 1 else 1.0
    moved: Floats = x + gap * min(DODGE, MOST_DODGED / count) * (place - (count - 1) / 2)
    return moved


def hover_text(name: str, *lines: str) -> str:
    """Build the text that a figure shows for a point of what has this name."""
    # A name may contain a plotly placeholder, such as %{x}: break it up.
    safe = as_plot_text(shorten(name, 90)).replace("%{", "%\u200b{")
    return "<br>".join([f"<b>{safe}</b>", *lines]) + "<extra></extra>"


def _meta(name: str | None, head: str) -> dict[str, str | None]:
    return {"label": name, "head": head}


def _name(name: str) -> str:
    return as_plot_text(shorten(name, 40))


def draw_heat_map(
    views: Mapping[str, tuple[Floats, Floats]], *, name: str | None = None, figure: str = "accuracy"
) -> go.Figure:
    """Draw accuracy, or another `figure`, after each stage (rows) on each task (columns).

    Parameters
    ----------
    views
        Head view to `(mean, std)`, both `[stage, task]`; NaN is left blank.
    """
    tasks = max(mean.shape[1] for mean, _ in views.values())
    words = f"stage %{{y}}, task %{{x}}<br>{figure} %{{z:.3f}} ± %{{customdata:.3f}}<extra></extra>"
    drawn = empty_figure("task", "after stage", height=120 + min(300, max(150, 26 * tasks)))
    for number, (head, (mean, std)) in enumerate(views.items()):
        ticks = [str(i + 1) for i in range(tasks)]
        drawn.add_trace(
            go.Heatmap(
                z=mean, x=ticks[: mean.shape[1]], y=ticks[: mean.shape[0]], customdata=std,
                zmin=0, zmax=1, colorscale=COLOR_SCALE, showscale=False, xgap=2, ygap=2,
                hoverongaps=False, visible=number == 0, meta=_meta(name, head),
                hovertemplate=words,
            )
        )  # fmt: skip
        if tasks <= 10:
            drawn.add_trace(_add_numbers(mean, ticks, visible=number == 0, meta=_meta(name, head)))
    drawn.update_yaxes(autorange="reversed", type="category", showgrid=False, nticks=12)
    drawn.update_xaxes(type="category", showgrid=False, nticks=12)
    return drawn


def _add_numbers(mean: Floats, ticks: Sequence[str], **common: Any) -> go.Scatter:
    """Add the values as text over a heat map, more readable than plotly's own."""
    where = np.argwhere(np.isfinite(mean)).tolist()  # pairs of stage and task
    values = mean[np.isfinite(mean)]
    _, turn, (below, above) = HEAT_SCALES["light"]
    return go.Scatter(
        x=[ticks[j] for _, j in where], y=[ticks[i] for i, _ in where], mode="text",
        text=[f"{value:.2f}" for value in values], showlegend=False, hoverinfo="skip",
        textfont={"size": 11, "color": np.where(values >= turn, above, below)},
        **common,
    )  # fmt: skip


def draw_lines(
    table: pd.DataFrame,
    looks: Mapping[str, Style],
    *,
    x: str,
    y: str,
    shares: bool = True,
    borders: int = 0,
    log: bool = False,
    points: bool = False,
    height: int = 300,
) -> go.Figure:
    """Draw one line per method of a table with columns name, head, x, value, perhaps std.

    Parameters
    ----------
    shares
        The values are shares: the axis runs from 0 to 1.
    borders
        Number of stages whose boundaries are drawn.
    log
        Whether the axis of values is logarithmic.
    points
        Draw markers only, those at one place side by side.

    Equal lines are drawn as rails, the lower ones wider, so that none vanishes below another.
    """
    figure = empty_figure(x, y, height=height)
    groups = [(str(name), str(head), rows.sort_values("x", kind="stable")) for (name, head), rows in
              table.groupby(["name", "head"], sort=False)]  # fmt: skip
    dense = len(table) and max(len(rows) for *_, rows in groups) > 30
    spreads = "std" in table and bool(table["std"].notna().any())
    names = list(dict.fromkeys(name for name, *_ in groups))
    known = table["x"].to_numpy(np.float64)
    lines = [(head, rows["x"].to_numpy().tobytes(), rows["value"].to_numpy(np.float64).tobytes())
             for _, head, rows in groups]  # fmt: skip
    for (name, head, rows), covered in zip(groups, count_equals_above(lines), strict=True):
        look, places = looks[name], rows["x"].to_numpy()
        if points or (spreads and not dense):
            places = dodge(places.astype(np.float64), names.index(name), len(names), known)
        figure.add_trace(
            go.Scatter(
                x=places, y=rows["value"].to_numpy(), name=_name(name),
                customdata=rows["x"].to_numpy(),
                mode="markers" if points else "lines" if dense else "lines+markers",
                meta=_meta(name, head),
                line={"color": look.color, "dash": look.dash, "width": LINE_WIDTH + _rail(covered)},
                marker={"symbol": look.symbol, "size": MARKER_SIZE + _rail(covered),
                        "color": look.color},
                error_y=error_bars(rows["std"], look.color, len(names)) if "std" in rows else None,
                hovertemplate=hover_text(name, f"{x} %{{customdata:.4~g}}", f"{y} %{{y:.4~g}}"),
            )
        )  # fmt: skip
    if shares:
        figure.update_yaxes(range=[-0.02, 1.04])
    if log:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1, nticks=6)
    rule = {"width": 1, "dash": "dot", "color": "#8A8A8A"}
    figure.update_layout(shapes=[  # all at once: add_vline is quadratic
        {"type": "line", "x0": border, "x1": border, "xref": "x", "y0": 0, "y1": 1,
         "yref": "y domain", "line": rule, "opacity": 0.6}
        for border in range(1, borders)
    ])  # fmt: skip
    return figure


def error_bars(spread: pd.Series[float], color: str, lines: int) -> dict[str, Any] | None:
    """Describe the error bars of one of `lines` lines, faint if many; None without spread."""
    if not spread.notna().any():
        return None
    color = color if lines <= MOST_BOLD else _faint_color(color)
    return {"array": spread.fillna(0).to_numpy(), "thickness": 1, "width": 2, "color": color}


def draw_over_stages(
    table: pd.DataFrame, looks: Mapping[str, Style], y: str, last: int, **how: Any
) -> go.Figure:
    """Draw lines over the stages 1 to `last`; the table and `how` as in `draw_lines`."""
    figure = draw_lines(table, looks, x="stage", y=y, **{"height": 280, **how})
    margin = 0.02 * (last - 1) + 0.35  # room for error bars side by side
    figure.update_xaxes(range=[1 - margin, last + margin], dtick=1 if last <= 12 else None)
    return figure


def draw_points(
    table: pd.DataFrame,
    looks: Mapping[str, Style],
    *,
    x: str,
    y: str,
    extra: str = "",
    size: int = 11,
    height: int = 420,
) -> go.Figure:
    """Draw one marker per method of a table with columns name, head, x, y, x_std, y_std, extra."""
    figure = empty_figure(x, y, height=height)
    rows = table.to_dict("records")
    drawn = [(row["head"], row["x"], row["y"]) for row in rows]
    for row, covered in zip(rows, count_equals_above(drawn), strict=True):
        name, look = str(row["name"]), looks[str(row["name"])]
        more = [f"{extra} %{{customdata:.4~g}}"] if extra else []
        figure.add_trace(
            go.Scatter(
                x=[row["x"]],
                y=[row["y"]],
                name=_name(name),
                mode="markers",
                customdata=[row.get("extra")],
                meta=_meta(name, str(row["head"])),
                marker={"symbol": look.symbol, "size": size + 2 * _rail(covered),
                        "color": look.color},
                error_x=_error_bar(row.get("x_std"), look),
                error_y=_error_bar(row.get("y_std"), look),
                hovertemplate=hover_text(name, f"{x} %{{x:.4~g}}", f"{y} %{{y:.4~g}}", *more),
            )
        )  # fmt: skip
    return figure


def _error_bar(spread: Any, look: Style) -> dict[str, Any] | None:
    if spread is None or not np.isfinite(spread):
        return None
    return {"array": [spread], "thickness": 1, "width": 3, "color": look.color}


def add_cloud(figure: go.Figure, table: pd.DataFrame, looks: Mapping[str, Style]) -> None:
    """Add single runs (columns name, head, x, y) as faint dots behind the means."""
    clouds = [
        go.Scatter(
            x=rows["x"].to_numpy(), y=rows["y"].to_numpy(), mode="markers", hoverinfo="skip",
            showlegend=False, opacity=0.3, meta=_meta(str(name), str(head)),
            marker={"symbol": "circle", "size": 4, "color": looks[str(name)].color},
        )
        for (name, head), rows in table.groupby(["name", "head"], sort=False)
    ]  # fmt: skip
    figure.add_traces(clouds)
    figure.data = (
        figure.data[len(figure.data) - len(clouds) :] + figure.data[: -len(clouds) or None]
    )


def add_bound(figure: go.Figure, tasks: int) -> None:
    """Add the largest forgetting for an average accuracy, 1 - k/(k-1) AA + 1/(k-1)."""
    share = np.linspace(0, 1, 101)
    most = 1 - tasks / (tasks - 1) * share + 1 / (tasks - 1)
    figure.add_trace(
        go.Scatter(
            x=share, y=np.minimum(most, 1.0), mode="lines", name=f"bound, {tasks} tasks",
            line={"color": "#8A8A8A", "width": 1.5, "dash": "longdash"}, meta=_meta(None, ""),
            hovertemplate=f"bound for {tasks} tasks<br>accuracy %{{x:.2f}}: at most %{{y:.2f}}"
            "<extra></extra>",
        )
    )  # fmt: skip


QUADRANTS = (
    ("left", "bottom", "positive backward,<br>positive forward<br>transfer"),
    ("right", "bottom", "negative backward,<br>positive forward<br>transfer"),
    ("left", "top", "positive backward,<br>negative forward<br>transfer"),
    ("right", "top", "negative backward,<br>negative forward<br>transfer"),
)


def draw_transfer_plane(table: pd.DataFrame, looks: Mapping[str, Style]) -> go.Figure:
    """Draw forgetting (x) against intransigence (y), with named quadrants."""
    figure = draw_points(
        table, looks, x="forgetting", y="intransigence", extra="distance to the origin", height=460
    )
    reach = _axis_limit(table, "x"), _axis_limit(table, "y")
    for axis, limit in zip((figure.update_xaxes, figure.update_yaxes), reach, strict=True):
        axis(range=[-limit, limit])
    figure.add_hline(y=0, line={"width": 1, "color": "#8A8A8A"})
    figure.add_vline(x=0, line={"width": 1, "color": "#8A8A8A"})
    for side, end, text in QUADRANTS:
        figure.add_annotation(
            text=text, showarrow=False, xref="paper", yref="paper", align=side, opacity=0.75,
            x=0.01 if side == "left" else 0.99, y=0.01 if end == "bottom" else 0.99,
            xanchor=side, yanchor=end, font={"size": 11},
        )  # fmt: skip
    return figure


def _axis_limit(table: pd.DataFrame, column: str) -> float:
    spread = table[f"{column}_std"].fillna(0) if f"{column}_std" in table else 0
    return max(0.05, 1.25 * float((table[column].abs() + spread).max()))


def draw_violins(
    table: pd.DataFrame, looks: Mapping[str, Style], short: Mapping[str, str], *, y: str
) -> go.Figure:
    """Draw a violin per method of a table with columns name, head, value, and a dot per order."""
    figure = empty_figure("", y, height=400)
    for (name, head), rows in table.groupby(["name", "head"], sort=False):
        look = looks[str(name)]
        figure.add_trace(
            go.Violin(
                y=rows["value"].to_numpy(), x0=as_plot_text(short[str(name)]),
                name=_name(str(name)), meta=_meta(str(name), str(head)), points="all", pointpos=0,
                jitter=0.35, box={"visible": False}, meanline={"visible": True}, spanmode="hard",
                line={"color": look.color, "width": 1.5}, fillcolor=_faint_color(look.color),
                marker={"size": 5, "color": look.color, "symbol": look.symbol, "opacity": 0.8},
                hoveron="points", hovertemplate=hover_text(str(name), f"{y} %{{y:.3f}}"),
            )
        )  # fmt: skip
    figure.update_xaxes(showgrid=False)
    return figure


def _faint_color(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def set_log_axis_with_zero(figure: go.Figure, values: Sequence[float]) -> None:
    """Set a logarithmic x axis with zeros at the left edge, marked 0.

    Costs span many powers of ten, and may be 0.
    """
    positive = [v for v in values if v > 0]
    if not positive or max(positive) / min(positive) < 50:
        return
    low = int(np.floor(np.log10(min(positive))))
    powers = list(range(low, int(np.ceil(np.log10(max(positive)))) + 1))
    ticks, texts = [10.0**p for p in powers], [f"{10.0**p:.12g}" for p in powers]
    if any(v == 0 for v in values):
        zero = 10.0 ** (low - 1)
        ticks, texts = [zero, *ticks], ["0", *texts]
        for trace in figure.data:
            if any(v == 0 for v in trace.x):
                trace.x = [zero if v == 0 else v for v in trace.x]
                trace.hovertemplate = trace.hovertemplate.replace("%{x:.4~g}", "0")
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=texts)
