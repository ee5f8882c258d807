"""What a `Monitor` found, as sections with figures and tables, and as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup
from scipy import stats

from engram import __version__
from engram.errors import bad, plural
from engram.io import make_folders, write_text
from engram.report.figures import HEAT_SCALES, empty_figure
from engram.report.method_styles import PALETTE, Style, as_plot_text, assign_styles, shorten
from engram.report.page import (
    content_security_policy,
    list_ramps,
    load_asset,
    make_environment,
    plain_figures,
    render_tables,
    script_json,
    section_for_page,
    table_rows,
)
from engram.report.section_types import DrawnMethods, Panel, Section
from engram.report.table import Column, Table

MOST_CLASSES = 8  # lines in a figure; the tables have all classes
MOST_NAMED = 12  # drifts whose column is written beside the point
MOST_TESTS = 200  # lines of the table of drift, those with the smallest p-values
_NOTHING = DrawnMethods((), {}, {}, 0)
_EVERY = {"meta": {"label": None, "head": ""}}
_COUNT = {"dtick": 1, "tickformat": "d"}  # periods are whole numbers
_MANY = 24  # periods, above which plotly chooses the ticks


class Monitored(Protocol):
    """What the page asks of a monitor: see `engram.deploy.monitor.Monitor`."""

    def accuracy(self, by: str | Sequence[str] = ()) -> pd.DataFrame: ...

    def shares(self, what: str = "label") -> pd.DataFrame: ...

    def calibration(self, by: str = "") -> pd.DataFrame: ...

    def alarms(self, by: str = "") -> pd.DataFrame: ...

    def drift(self, rate: float = 0.05) -> pd.DataFrame: ...

    def learnings(self) -> pd.DataFrame: ...

    def forgetting(self) -> pd.DataFrame: ...

    def numbers(self, rate: float = 0.05) -> dict[str, float]: ...


def build_monitor_page(
    monitor: Monitored, out: str | os.PathLike[str], *, title: str = "Monitor", rate: float = 0.05
) -> Path:
    """Write what a monitor found as one HTML file that opens without a network."""
    path = Path(out)
    if path.is_dir():
        raise bad("out", "the path of a file", f"the directory {str(path)!r}")
    text = render_monitor_page(monitor, title=title, rate=rate)
    make_folders(path.parent)
    return write_text(path, text)


def render_monitor_page(monitor: Monitored, *, title: str = "Monitor", rate: float = 0.05) -> str:
    """Render the page as HTML."""
    sections, tables = monitor_sections(monitor, rate)
    environment = make_environment()
    rows = {name: table_rows(table, _NOTHING) for name, table in tables.items()}
    scripts = plotly.offline.get_plotlyjs(), load_asset(environment, "report.js")
    data = {
        "methods": [], "view": "", "figures": plain_figures(sections), "forgetting": [],
        "heat": {theme: scale._asdict() for theme, scale in HEAT_SCALES.items()},
        "tables": render_tables(tables),
    }  # fmt: skip
    numbers = monitor.numbers(rate)
    text: str = environment.get_template("monitor.html.j2").render(
        title=title, version=__version__, facts=describe_numbers(numbers),
        problems=find_problems(monitor, rate),
        contents=[(f"{one.name}-section", one.title) for one in sections],
        sections=[section_for_page(one, _NOTHING, rows.get(one.name)) for one in sections],
        ramps=list_ramps(), page_data=Markup(script_json(data)),
        policy=content_security_policy(*scripts), scripts=[Markup(one) for one in scripts],
        css=Markup(load_asset(environment, "report.css")),
    )  # fmt: skip
    return text


def describe_numbers(numbers: Mapping[str, float]) -> str:
    """One line about the numbers of a monitor.

    Examples
    --------
    >>> describe_numbers({"rows": 12, "labelled_rows": 0, "learnings": 1, "accuracy": np.nan})
    '12 rows · 0 labelled · 1 learning'
    """
    parts = [
        plural(int(numbers["rows"]), "row"), f"{int(numbers['labelled_rows']):,} labelled",
        plural(int(numbers["learnings"]), "learning"),
    ]  # fmt: skip
    if not np.isnan(numbers["accuracy"]):
        parts.append(f"accuracy {numbers['accuracy']:.3f}")
    return " · ".join(parts)


def find_problems(monitor: Monitored, rate: float = 0.05) -> list[str]:
    """What somebody should look at: drift, and an accuracy below that of the periods before.

    Accuracies are compared by Fisher's exact test at the levels of the tests for drift, so that of
    a steady accuracy, too, something is ever said with a probability of at most `rate`.
    """
    found = []
    drift = monitor.drift(rate)
    for period, part in drift[drift["drift"]].groupby("period"):
        names = ", ".join(dict.fromkeys(part["what"].map(lambda one: shorten(one, 40))))
        found.append(f"Period {period}: drift of {names}.")
    table = monitor.accuracy("period")
    table = table[table["labelled"] > 0]
    for place in range(1, len(table)):
        period, now = int(table.index[place]), table.iloc[place]
        before = table.iloc[:place][["labelled", "right"]].sum()
        counts = [[one["right"], one["labelled"] - one["right"]] for one in (now, before)]
        if stats.fisher_exact(counts, "less").pvalue <= rate / (period * (period + 1)):
            usual = before["right"] / before["labelled"]
            found.append(f"Period {period}: accuracy {now['accuracy']:.3f}, before {usual:.3f}.")
    return found


def monitor_sections(
    monitor: Monitored, rate: float = 0.05
) -> tuple[list[Section], dict[str, Table]]:
    """Draw the sections of a monitor; the table below each has its name."""
    made = [
        _accuracy(monitor), _classes(monitor), _shares(monitor), _drift(monitor, rate),
        _alarms(monitor), _calibration(monitor), _kept_rows(monitor),
    ]  # fmt: skip
    return [one for one, _ in made], {table.name: table for _, table in made if table is not None}


Drawn = tuple[Section, Table | None]


def _accuracy(monitor: Monitored) -> Drawn:
    found = monitor.accuracy("period")
    told = found[found["labelled"] > 0]
    words = (
        "Accuracy of predictions that were made before their labels came, by period; the band is "
        "the 95 % interval of each."
    )
    if not len(told):
        return Section("accuracy", "Accuracy", words, note="No labels yet."), None
    figure = _over_periods("accuracy", told.index)
    _add_band(figure, told)
    _add_line(figure, told.index, told["accuracy"], assign_styles(["accuracy"])["accuracy"], "")
    learnt = monitor.learnings()["period"].unique()
    if 2 * len(learnt) < len(told):  # in every period they would tell nothing
        words += " Dashed lines: the model has learnt."
    for period in learnt if 2 * len(learnt) < len(told) else ():
        figure.add_vline(x=float(period), line={"color": PALETTE[6], "dash": "dash", "width": 1})
    _limit(figure, told[["low", "high"]])
    columns = (
        Column("period", "Period", "number", 0), Column("rows", "Rows", "number", 0),
        Column("labelled", "Labelled", "number", 0), Column("accuracy", "Accuracy", "number"),
        Column("low", "From", "number"), Column("high", "To", "number"),
    )  # fmt: skip
    table = Table("accuracy", "Accuracy by period", columns, found.reset_index())
    return Section("accuracy", "Accuracy", words, (Panel("accuracy", "", figure),)), table


def _classes(monitor: Monitored) -> Drawn:
    found, each = monitor.accuracy("class"), monitor.accuracy(["class", "period"])
    words = "Accuracy on the rows of each true class, by period."
    if not len(found):
        return Section("classes", "Accuracy by class", words, note="No labels yet."), None
    shown = found.sort_values("rows", ascending=False).index[:MOST_CLASSES]
    looks = assign_styles([str(name) for name in sorted(shown, key=str)])
    figure = _over_periods("accuracy", each.index.get_level_values("period"))
    for name in sorted(shown, key=str):
        part = each.loc[name]
        _add_line(figure, part.index, part["accuracy"], looks[str(name)], str(name))
    _limit(figure, each[["accuracy"]])
    columns = (
        Column("class", "Class"), Column("labelled", "Labelled", "number", 0),
        Column("accuracy", "Accuracy", "number"), Column("low", "From", "number"),
        Column("high", "To", "number"),
    )  # fmt: skip
    frame = found.reset_index().astype({"class": str})
    table = Table("classes", "Accuracy by class", columns, frame)
    panels = (Panel("classes", "", figure),)
    return Section("classes", "Accuracy by class", words, panels, legend=looks), table


def _shares(monitor: Monitored) -> Drawn:
    words = "Shares of the predicted classes, and of the true ones as far as they are known."
    said, truth = monitor.shares(), monitor.shares("truth")
    if not len(said):
        return Section("shares", "Class shares", words, note="No rows yet."), None
    means = pd.concat([said, truth]).mean().sort_values(ascending=False)
    names = sorted(means.index[:MOST_CLASSES])
    looks, panels = assign_styles(names), []
    for key, title, table in (("said", "Predicted", said), ("truth", "True", truth)):
        if not len(table):
            continue
        figure = _over_periods("share", table.index, height=300)
        for name in names:
            if name in table:
                _add_line(figure, table.index, table[name], looks[name], name)
        _limit(figure, table[[name for name in names if name in table]])
        panels.append(Panel(f"shares-{key}", title, figure))
    return Section("shares", "Class shares", words, tuple(panels), legend=looks), None


def _drift(monitor: Monitored, rate: float) -> Drawn:
    found = monitor.drift(rate)
    words = (
        "Tests of every finished period against the rows that the model learnt from, for each "
        f"column and for novelty. Without drift, any point below the line has at most a "
        f"probability of {100 * rate:g} %, over all periods together; the line sinks because "
        "every period may use a share of that."
    )
    if not len(found):
        note = "No finished period with inputs or p-values yet."
        return Section("drift", "Drift", words, note=note), None
    figure = _over_periods("adjusted p-value", found["period"])
    figure.update_yaxes(type="log", exponentformat="power", nticks=6)
    floor = max(float(found["p_value"][found["p_value"] > 0].min()), 1e-30)
    for flag, look in ((False, PALETTE[6]), (True, PALETTE[1])):
        part = found[found["drift"] == flag]
        figure.add_scatter(
            x=part["period"], y=part["adjusted"].clip(lower=floor), **_EVERY,
            mode="markers+text" if flag and len(part) <= MOST_NAMED else "markers",
            textposition=_sides(part), cliponaxis=False,
            marker={"color": look, "size": 7, "symbol": "diamond" if flag else "circle"},
            text=[as_plot_text(shorten(one, 60)) for one in part["what"]],
            hovertemplate="%{text}<br>period %{x}<br>p %{y:.2g}<extra></extra>",
        )  # fmt: skip
    levels = found.groupby("period")["level"].first()
    figure.add_scatter(
        x=levels.index, y=levels, mode="lines", line={"color": PALETTE[0], "width": 2}, **_EVERY,
        hovertemplate="level %{y:.2g}<extra></extra>",
    )  # fmt: skip
    columns = (
        Column("period", "Period", "number", 0), Column("what", "What"),
        Column("rows", "Rows", "number", 0), Column("distance", "Distance", "number"),
        Column("p_value", "p", "p"), Column("adjusted", "Adjusted p", "p"),
        Column("level", "Level", "p"), Column("verdict", "Verdict"),
    )  # fmt: skip
    frame = found.assign(verdict=np.where(found["drift"], "drift", ""))
    frame = frame.sort_values("p_value", kind="stable")[:MOST_TESTS]
    note = ""
    if len(found) > MOST_TESTS:
        note = f"The {MOST_TESTS} tests of {len(found):,} with the smallest p-values."
    table = Table("drift", "Tests for drift", columns, frame.reset_index(drop=True), note)
    legend = {
        "no drift": Style(PALETTE[6], "solid", "circle"),
        "drift": Style(PALETTE[1], "solid", "diamond"),
        "level": Style(PALETTE[0], "solid", "circle"),
    }
    return Section("drift", "Drift", words, (Panel("drift", "", figure),), legend=legend), table


def _alarms(monitor: Monitored) -> Drawn:
    found = monitor.alarms("period")
    words = (
        "Share of rows that raised a novelty alarm, with its 95 % interval; the grey line is the "
        "rate that was asked, which rows of known classes keep."
    )
    if not len(found):
        note = "No p-values: the learner has no calibration rows."
        return Section("alarms", "Novelty alarms", words, note=note), None
    figure = _over_periods("share of alarms", found.index, height=300)
    _add_band(figure, found)
    _add_line(figure, found.index, found["share"], assign_styles(["a"])["a"], "")
    figure.add_scatter(
        x=found.index, y=found["expected"], mode="lines", hoverinfo="skip",
        line={"color": PALETTE[6], "dash": "dash"}, **_EVERY,
    )  # fmt: skip
    _limit(figure, found[["low", "high", "expected"]])
    columns = (
        Column("period", "Period", "number", 0), Column("rows", "Rows", "number", 0),
        Column("alarms", "Alarms", "number", 0), Column("share", "Share", "number"),
        Column("low", "From", "number"), Column("high", "To", "number"),
        Column("expected", "Asked", "number"),
    )  # fmt: skip
    table = Table("alarms", "Novelty alarms by period", columns, found.reset_index())
    return Section("alarms", "Novelty alarms", words, (Panel("alarms", "", figure),)), table


def _calibration(monitor: Monitored) -> Drawn:
    bins, found = monitor.calibration("bin"), monitor.calibration("period")
    words = (
        "Left: accuracy of the predictions in each bin of their probability; on the line they are "
        "right as often as they claim. The expected calibration error is the mean distance from "
        "the line, each bin weighted by its rows; with few rows it is above 0 for any model."
    )
    if not len(bins):
        return Section("calibration", "Calibration", words, note="No labels yet."), None
    look = assign_styles(["a"])["a"]
    curve = empty_figure("probability of the prediction", "accuracy", height=300)
    curve.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": PALETTE[6], "dash": "dash"},
        hoverinfo="skip", **_EVERY,
    )  # fmt: skip
    curve.add_scatter(
        x=bins["probability"], y=bins["accuracy"], mode="lines+markers", line={"color": look.color},
        customdata=bins["labelled"], **_EVERY,
        hovertemplate="%{x:.2f}: %{y:.2f} of %{customdata} rows<extra></extra>",
    )  # fmt: skip
    over = _over_periods("calibration error", found.index, height=300)
    _add_line(over, found.index, found["calibration_error"], look, "")
    over.update_yaxes(rangemode="tozero")
    columns = (
        Column("period", "Period", "number", 0), Column("labelled", "Labelled", "number", 0),
        Column("calibration_error", "Calibration error", "number"),
    )  # fmt: skip
    table = Table("calibration", "Calibration error by period", columns, found.reset_index())
    panels = (Panel("calibration-bins", "All rows", curve), Panel("calibration", "By period", over))
    return Section("calibration", "Calibration", words, panels), table


def _kept_rows(monitor: Monitored) -> Drawn:
    words = (
        "Accuracy on the rows that the model keeps of each class, right after each learning: "
        "calibration rows, which it never trained on, or rows of its memory, which it did."
    )
    learnt, found = monitor.learnings(), monitor.forgetting()
    if not len(found):
        note = "No learning was recorded, or the model keeps no rows."
        return Section("kept", "Forgetting on kept rows", words, note=note), None
    names = [*found.index[:MOST_CLASSES]]
    looks = assign_styles(names)
    figure = empty_figure("learning", "accuracy on kept rows")
    places = np.arange(1, len(learnt) + 1)
    if len(learnt) <= _MANY:
        figure.update_xaxes(**_COUNT)
    for name in names:
        _add_line(figure, places, learnt[f"accuracy of {name}"], looks[name], name, "learning")
    _limit(figure, learnt[[f"accuracy of {name}" for name in names]])
    columns = (
        Column("class", "Class"), Column("best", "Best before", "number"),
        Column("now", "Now", "number"), Column("forgotten", "Forgotten", "number"),
    )  # fmt: skip
    table = Table("kept", "Forgetting by class", columns, found.reset_index())
    panels = (Panel("kept", "", figure),)
    return Section("kept", "Forgetting on kept rows", words, panels, legend=looks), table


# Parts of figures.


def _sides(part: pd.DataFrame) -> list[str]:
    """Where the names of points go, so that those of equal points can be read."""
    turn = part.groupby("period").cumcount() % 2
    return [("middle right", "middle left")[one] for one in turn]


def _over_periods(y: str, periods: Any, **layout: Any) -> go.Figure:
    figure = empty_figure("period", y, **layout)
    if len(set(periods)) <= _MANY:
        figure.update_xaxes(**_COUNT)
    return figure


def _add_line(
    figure: go.Figure, x: Any, y: Any, look: Style, name: str, of: str = "period"
) -> None:
    shown = as_plot_text(shorten(name, 60))
    figure.add_scatter(
        x=x, y=y, mode="lines+markers", name=shown, line={"color": look.color, "dash": look.dash},
        marker={"symbol": look.symbol, "size": 7}, **_EVERY,
        hovertemplate=f"{shown + '<br>' if shown else ''}{of} %{{x}}: %{{y:.3f}}<extra></extra>",
    )  # fmt: skip


def _add_band(figure: go.Figure, table: pd.DataFrame) -> None:
    """Draw the interval of every period."""
    line = {"width": 0, "color": PALETTE[0]}
    for column, fill in (("low", None), ("high", "tonexty")):
        figure.add_scatter(
            x=table.index, y=table[column], mode="lines", line=line, fill=fill,
            fillcolor="rgba(0,114,178,0.18)", hoverinfo="skip", **_EVERY,
        )  # fmt: skip


def _limit(figure: go.Figure, table: pd.DataFrame) -> None:
    """Show shares from just below the lowest to just above the highest."""
    low, high = float(np.nanmin(table.to_numpy())), float(np.nanmax(table.to_numpy()))
    room = max(0.02, (high - low) / 12)
    figure.update_yaxes(range=[max(-0.02, low - room), min(1.02, high + room)])
