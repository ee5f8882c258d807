"""The figures of a report as pictures, drawn by the same plotly in a headless Chromium."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import plotly.offline

from engram.errors import choose, whole
from engram.records.files import write_bytes
from engram.report import chromium
from engram.report.digest import digest
from engram.report.inputs import ReportInput
from engram.report.page import head_views, own_head
from engram.report.section import Panel, Section
from engram.report.sections import all_sections, choose_cast
from engram.report.style import as_plot_text, shorten

KINDS = ("svg", "png", "pdf")
PIXELS = 96  # CSS pixels of an inch
INK, LINE = "#1d2125", "#dfddd7"


def write_images(
    inputs: ReportInput,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = KINDS,
    width: int = 800,
    scale: int = 2,
) -> list[Path]:
    """Write every figure of a report as SVG, PNG and PDF; the paths of the files.

    Needs a Chromium on the PATH and says so (`chromium.NoChromium`) where there is none.

    Parameters
    ----------
    width
        Width in CSS pixels.
    scale
        Pixels of a PNG per CSS pixel.
    """
    for form in formats:
        choose("formats", form, KINDS)
    whole("width", width, low=100)
    whole("scale", scale, low=1)
    facts = digest(inputs)
    sections = all_sections(facts, choose_cast(facts))
    own = own_head(inputs.recipes, head_views(facts))
    target = Path(folder)
    written = []
    with tempfile.TemporaryDirectory(prefix="engram-") as work, chromium.launch() as browser:
        page = Path(work) / "plotly.html"
        script = plotly.offline.get_plotlyjs()
        page.write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>", "utf-8")
        browser.open(page)
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in _pictures(sections, own):
            for form in formats:
                content = _draw(browser, figure, form, width, scale)
                written.append(write_bytes(target / f"{name}.{form}", content))
    return written


def _pictures(sections: Sequence[Section], own: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and figure of each panel and head view; the streams' own view bears no suffix."""
    for section in sections:
        for panel in section.panels:
            heads = {str(trace.meta["head"]) for trace in panel.figure.data} - {""}
            for head in sorted(heads) or [""]:
                suffix = "" if head in ("", own) or len(heads) == 1 else f"-{head}"
                yield f"{panel.name}{suffix}", standalone(section, panel, head)


def standalone(section: Section, panel: Panel, head: str) -> dict[str, Any]:
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
        "showlegend": any(t["type"] == "scatter" and t.get("name") for t in figure["data"]),
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top", "x": 0},
        "height": layout["height"] + 130,
    }  # fmt: skip
    layout["margin"] = {"l": 64, "r": 24, "t": 56, "b": 56}
    for axis in [key for key in layout if key.startswith(("xaxis", "yaxis"))]:
        layout[axis] |= {"gridcolor": LINE, "linecolor": LINE}
    return figure


def _draw(
    browser: chromium.Browser, figure: dict[str, Any], form: str, width: int, scale: int
) -> bytes:
    height = figure["layout"]["height"]
    options = {"format": "png" if form == "png" else "svg", "width": width, "height": height}
    options["scale"] = scale if form == "png" else 1
    url = browser.evaluate(f"Plotly.toImage({json.dumps(figure)}, {json.dumps(options)})")
    prefix, _, body = str(url).partition(",")
    if prefix.endswith("base64"):
        return base64.b64decode(body)
    drawing = urllib.parse.unquote_to_bytes(body)
    if form == "svg":
        return drawing
    text = json.dumps(drawing.decode())  # letters and lines stay what they are: a PDF of an SVG
    browser.evaluate(
        f"document.body.style.margin = 0; document.body.innerHTML = {text};"
        " document.querySelector('svg').style.display = 'block'"
    )
    return browser.pdf(width / PIXELS, height / PIXELS)
