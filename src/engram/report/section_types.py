"""Types of report sections: panels, sections, and the methods drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from engram.report.method_styles import Style


@dataclass(frozen=True)
class Panel:
    """One figure with a caption; `label` ties the whole panel to one method's switch."""

    name: str
    title: str
    figure: go.Figure
    label: str | None = None


@dataclass(frozen=True)
class Section:
    """A titled group of panels, or a note why there are none.

    Parameters
    ----------
    legend
        What colours stand for, if not for methods.
    """

    name: str
    title: str
    help: str
    panels: tuple[Panel, ...] = ()
    note: str = ""
    legend: Mapping[str, Style] | None = None


@dataclass(frozen=True)
class DrawnMethods:
    """The methods drawn, with their styles and short names."""

    names: tuple[str, ...]
    looks: Mapping[str, Style]
    short: Mapping[str, str]
    total: int
