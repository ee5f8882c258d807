"""`plot`, which implements `Result.plot`: figures of the report by name."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engram.errors import bad, check_choice, unknown
from engram.report.method_styles import as_plot_text, shorten
from engram.report.notebook_figures import NotebookFigure
from engram.report.page import choose_head, draw_all_sections
from engram.report.report_inputs import from_result
from engram.report.section_types import Panel, Section
from engram.report.static_images import AXIS_SPACE, place_legend, standalone_figure

if TYPE_CHECKING:
    from engram.records import Result

COLUMNS = 2  # columns of panels
DrawnSections = tuple[list[Section], list[str], str]
_DRAWN_RESULTS: WeakKeyDictionary[Result, DrawnSections] = WeakKeyDictionary()
_SHAPE_REFS = re.compile(r"^([xy])(?= |$)")  # references to the axes of a single figure


def plot(result: Result, name: str = "stages", *, head: str | None = None) -> go.Figure:
    """Draw a figure of the report for a result.

    Parameters
    ----------
    name
        A section (``stages``, ``matrices``, ``confusion``, ...), whose panels are drawn beside each
        other, or one panel of it (``stages-mean``, ``matrix-1``).
    head
        The head view; default: the streams' own.

    Examples
    --------
    >>> import engram
    >>> result = engram.run(engram.load("blobs", classes=4), device="cpu")
    >>> [trace.name for trace in plot(result, "stages-mean").data]
    ['Finetune']
    """
    sections, views, own = _draw_sections(result)
    chosen = own if head is None else check_choice("head", head, views)
    for section in sections:
        if section.name == name:
            if not section.panels:
                raise bad("plot", f"data for {section.title.lower()}. {section.note}", name)
            if len(section.panels) > 1:
                return _side_by_side(section, chosen)
            return _draw_panel(section, section.panels[0], chosen)
        for panel in section.panels:
            if panel.name == name:
                return _draw_panel(section, panel, chosen)
    known = [one.name for one in sections if one.panels]
    known += [panel.name for one in sections for panel in one.panels]
    raise unknown("plot", name, dict.fromkeys(known))


def _draw_sections(result: Result) -> DrawnSections:
    """Draw all sections, with the head views and the streams' own, once per result."""
    if result not in _DRAWN_RESULTS:
        inputs = from_result(result)
        sections, views = draw_all_sections(inputs)
        _DRAWN_RESULTS[result] = sections, views, choose_head(inputs.recipes, views)
    return _DRAWN_RESULTS[result]


def _draw_panel(section: Section, panel: Panel, head: str) -> go.Figure:
    return NotebookFigure(_decode_arrays(standalone_figure(section, panel, head)))


def _decode_arrays(value: Any) -> Any:
    """Decode arrays that plotly has encoded as text."""
    if isinstance(value, dict):
        if set(value) <= {"dtype", "bdata", "shape"} and "bdata" in value:
            flat = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
            shape = value.get("shape")
            return flat if shape is None else flat.reshape([int(n) for n in shape.split(",")])
        return {key: _decode_arrays(inner) for key, inner in value.items()}
    return [_decode_arrays(inner) for inner in value] if isinstance(value, list) else value


def _side_by_side(section: Section, head: str) -> go.Figure:
    """Draw all panels of a section in one figure with a common legend."""
    figures = [_decode_arrays(standalone_figure(section, panel, head)) for panel in section.panels]
    rows = -(-len(figures) // COLUMNS)
    height = max(panel.figure.layout.height for panel in section.panels) + 70
    whole: go.Figure = make_subplots(
        rows=rows, cols=COLUMNS, horizontal_spacing=0.12,
        vertical_spacing=min(0.3 / rows, 90 / (height * rows)),
        subplot_titles=[as_plot_text(shorten(panel.title, 50)) for panel in section.panels],
    )  # fmt: skip
    seen: set[str] = set()
    for number, figure in enumerate(figures):
        place = {"row": number // COLUMNS + 1, "col": number % COLUMNS + 1}
        for trace in figure["data"]:
            label = trace.get("name")
            extra = {"legendgroup": label, "showlegend": label not in seen} if label else {}
            seen |= {label} if label else set()
            whole.add_trace(go.Figure(data=[{**trace, **extra}]).data[0], **place)
        _copy_axes(whole, figure["layout"], number + 1, place)
    first: dict[str, Any] = figures[0]["layout"]
    legend: dict[str, Any] = {}
    below = place_legend(legend, [one for figure in figures for one in figure["data"]])
    whole.update_layout(
        height=height * rows + below, paper_bgcolor=first["paper_bgcolor"], font=first["font"],
        plot_bgcolor=first["plot_bgcolor"], **legend,
        title={"text": as_plot_text(section.title), "font": {"size": 16}, "x": 0.02},
        template=go.layout.Template(), margin={"l": 64, "r": 24, "t": 80, "b": AXIS_SPACE + below},
    )  # fmt: skip
    return NotebookFigure(whole)


def _copy_axes(whole: go.Figure, layout: dict[str, Any], number: int, place: Any) -> None:
    """Copy titles, ranges, ticks and shapes of one panel to its place."""
    for kind, update in (("xaxis", whole.update_xaxes), ("yaxis", whole.update_yaxes)):
        update({k: v for k, v in layout.get(kind, {}).items() if k != "domain"}, **place)
    suffix = "" if number == 1 else str(number)
    for part, add in (("shapes", whole.add_shape), ("annotations", whole.add_annotation)):
        for one in layout.get(part, ()):
            add({**one, **_move_references(one, suffix)})


def _move_references(one: dict[str, Any], suffix: str) -> dict[str, str]:
    """Change the axis references of a shape to those of its place."""
    moved = {}
    for key in ("xref", "yref"):
        old = one.get(key, key[0])
        moved[key] = f"{key[0]}{suffix} domain" if old == "paper" else _SHAPE_REFS.sub(
            rf"\g<1>{suffix}", old)  # fmt: skip
    return moved
