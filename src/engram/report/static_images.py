"""Figures as SVG, PNG and PDF files, drawn by plotly in a headless Chromium."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.errors import EngramError, check_choice, check_int
from engram.io import write_bytes
from engram.report.method_styles import as_plot_text, shorten
from engram.report.page import choose_head, draw_all_sections
from engram.report.report_inputs import ReportInput
from engram.report.section_types import Panel, Section

IMAGE_FORMATS = ("svg", "png", "pdf")
INK, LINE = "#1d2125", "#dfddd7"
LEGEND_WIDTH = 600  # pixels that the rows of a legend have at least
LEGEND_ROW = 20  # height of a row
AXIS_SPACE = 56  # height of tick labels and the title of an axis


class ChromiumNotFound(EngramError):
    """Raised if kaleido or a Chromium for it is missing or does not respond."""


def write_images(
    inputs: ReportInput,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = IMAGE_FORMATS,
    width: int = 800,
    scale: int = 2,
) -> list[Path]:
    """Write every figure of a report as SVG, PNG and PDF; returns the paths.

    Needs the extra ``images`` and an installed Chrome or Chromium; raises `ChromiumNotFound`
    if there is none.

    Parameters
    ----------
    width
        Width in CSS pixels.
    scale
        Pixels of a PNG per CSS pixel.
    """
    sections, views = draw_all_sections(inputs)
    own = choose_head(inputs.recipes, views)
    return write_section_images(sections, folder, own, formats=formats, width=width, scale=scale)


def write_section_images(
    sections: Sequence[Section],
    folder: str | os.PathLike[str],
    own: str = "",
    *,
    formats: Sequence[str] = IMAGE_FORMATS,
    width: int = 800,
    scale: int = 2,
) -> list[Path]:
    """Write every figure of sections, as `write_images` does; `own` is the usual head view."""
    for form in formats:
        check_choice("formats", form, IMAGE_FORMATS)
    check_int("width", width, low=100)
    check_int("scale", scale, low=1)
    with tempfile.TemporaryDirectory(prefix="engram-") as work:
        drawn: list[dict[str, Any]] = [
            {"fig": figure, "path": str(Path(work) / f"{name}.{form}"),
             "opts": {"format": form, "width": width, "height": figure["layout"]["height"],
                      "scale": scale if form == "png" else 1}}
            for name, figure in _list_pictures(sections, own) for form in formats
        ]  # fmt: skip
        _draw(drawn)
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        made = [Path(one["path"]) for one in drawn]
        return [write_bytes(target / path.name, path.read_bytes()) for path in made]


def _list_pictures(sections: Sequence[Section], own: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over name and figure of each panel and head view; the own view has no suffix."""
    for section in sections:
        for panel in section.panels:
            heads = {str(trace.meta["head"]) for trace in panel.figure.data} - {""}
            for head in sorted(heads) or [""]:
                suffix = "" if head in ("", own) or len(heads) == 1 else f"-{head}"
                yield f"{panel.name}{suffix}", standalone_figure(section, panel, head)


def standalone_figure(section: Section, panel: Panel, head: str) -> dict[str, Any]:
    """A panel's figure on white with a title and a legend, in one head view."""
    figure: dict[str, Any] = json.loads(panel.figure.to_json())
    figure["data"] = [t for t in figure["data"] if t["meta"]["head"] in ("", head)]
    for trace in figure["data"]:
        trace["visible"] = True
    layout = figure["layout"]
    layout.pop("template", None)
    title = f"{section.title}: {panel.title}" if panel.title else section.title
    layout |= {
        "title": {"text": as_plot_text(shorten(title, 80)), "font": {"size": 16}, "x": 0.02},
        "paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "font": {"color": INK, "size": 13},
    }  # fmt: skip
    below = place_legend(layout, figure["data"])
    layout["height"] += 80 + below
    layout["margin"] = {"l": 64, "r": 24, "t": 56, "b": AXIS_SPACE + below}
    for axis in [key for key in layout if key.startswith(("xaxis", "yaxis"))]:
        layout[axis] |= {"gridcolor": LINE, "linecolor": LINE}
    return figure


def place_legend(layout: dict[str, Any], traces: Sequence[Mapping[str, Any]]) -> int:
    """Place a legend at the lower edge of a figure; returns the pixels to keep free for it.

    Measured from the edge, not from the axis, it never lies over an axis title, however high the
    figure and however many the names.
    """
    names = {str(one["name"]) for one in traces if one["type"] == "scatter" and one.get("name")}
    layout["showlegend"] = bool(names)
    if not names:
        return 0
    entry = 12 + 7 * max(len(name) for name in names)  # the names; plotly adds 40 for the samples
    layout["legend"] = {
        "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0,
        "entrywidth": entry, "itemsizing": "constant", "maxheight": 1, "font": {"size": 12},
    }  # fmt: skip
    columns = max(1, LEGEND_WIDTH // (entry + 40))
    return LEGEND_ROW * -(-len(names) // columns) + 12


def _draw(pictures: list[dict[str, Any]]) -> None:
    """Write pictures, all by one browser; no network is asked for anything."""
    try:
        import kaleido
    except ImportError as problem:
        how = "pip install 'engram-cl[images]'"
        raise ChromiumNotFound(f"Pictures need kaleido: {how}") from problem
    # When the browser closes, half a last message may remain, which is logged with a traceback.
    logging.getLogger("choreographer").setLevel(logging.CRITICAL)
    try:
        # MathJax would be fetched; a browser that ends on its way cancels kaleido's task.
        kaleido.write_fig_from_object_sync(pictures, kopts={"mathjax": False})
    except (Exception, asyncio.CancelledError) as problem:
        why = " ".join(str(problem).split())[:200] or "it ended before it answered"
        raise ChromiumNotFound(
            f"Pictures need Chrome or Chromium, installed or named by BROWSER_PATH: {why}"
        ) from problem
