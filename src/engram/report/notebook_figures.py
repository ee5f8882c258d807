"""Figures for notebooks, which stay when a notebook is converted to HTML, without a network too."""

from __future__ import annotations

import base64
import gzip
import json
import sys
import uuid
from functools import cache
from typing import Any

import plotly.graph_objects as go
import plotly.io
import plotly.offline

MIME = "application/vnd.plotly.v1+json"
LIBRARY = "engram-plotly"  # class of the elements that hold the library

# Waits for the whole page, since the cell with the library may stand further down.
_SCRIPT = """
(() => {
  const load = () => window.engramPlotly ??= (async () => {
    if (window.Plotly) return window.Plotly;
    if (document.readyState === "loading")
      await new Promise((next) => addEventListener("DOMContentLoaded", next));
    const packed = document.querySelector(".LIBRARY");
    if (!packed) return null;
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt());
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    // As functions of their own, so that plotly does not hand itself to a page's require.js.
    new Function("define", "module", "exports", await new Response(unpacked).text()).call(window);
    return window.Plotly;
  })();
  const place = document.getElementById("PLACE");
  load().then((plotly) => {
    const config = { responsive: true, displaylogo: false };
    if (plotly) plotly.newPlot(place, FIGURE.data, FIGURE.layout, config);
    else {
      window.engramPlotly = undefined;
      place.textContent = "Run all cells again to see this figure: the one with plotly is gone.";
    }
  });
})();
"""
_holder: tuple[object, object] | None = None  # the cell that shows the library, and its execution


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure that a notebook shows as HTML too, besides plotly's own format.

    Front ends with plotly's extension draw the latter. HTML is what others show and what
    ``nbconvert --to html`` keeps. The first cell that shows a figure holds plotly's library,
    packed, for all figures of the notebook; so it does when it is run again. A renderer set in
    ``plotly.io.renderers.default`` to show HTML or pictures is used as it is.

    Examples
    --------
    >>> figure = NotebookFigure(go.Scatter(x=[1, 2], y=[3, 4]))
    >>> sorted(figure.notebook_formats())
    ['application/vnd.plotly.v1+json', 'text/html']
    """

    def notebook_formats(self) -> dict[str, Any]:
        """Return the figure in the formats that a notebook stores."""
        plain = json.loads(self.to_json())
        return {MIME: plain, "text/html": embed_figure(plain, library=_holds_library())}

    def _ipython_display_(self) -> None:
        if not plotly.io.renderers.default.startswith("plotly_mimetype"):
            super()._ipython_display_()
            return
        from IPython.display import display

        display(self.notebook_formats(), raw=True)

    def show(self, *args: Any, **options: Any) -> None:
        """Show the figure, in a notebook as the value of a cell does."""
        if args or options or not plotly.io.renderers.default.startswith("plotly_mimetype"):
            super().show(*args, **options)
        else:
            self._ipython_display_()


def embed_figure(plain: dict[str, Any], *, library: bool) -> str:
    """Write a figure as HTML that draws itself, with plotly's library if asked for.

    Examples
    --------
    >>> "<script" in embed_figure({"data": [], "layout": {}}, library=False)
    True
    """
    place = f"engram-{uuid.uuid4().hex}"
    layout = {**plain["layout"], "width": None}
    figure = json.dumps({"data": plain["data"], "layout": layout}).replace("<", "\\u003c")
    script = (
        _SCRIPT.replace("LIBRARY", LIBRARY).replace("PLACE", place).replace("FIGURE.", "figure.")
    )
    packed = (
        f'<script type="text/plain" class="{LIBRARY}">{_pack_library()}</script>' if library else ""
    )
    height = plain["layout"].get("height", 450)
    return (
        f'{packed}<div id="{place}" style="width:100%;height:{height}px"></div>'
        f"<script>{{ const figure = {figure};{script}}}</script>"
    )


@cache
def _pack_library() -> str:
    """Compress plotly's library, 4.8 MB, to 2 MB of text."""
    packed = gzip.compress(plotly.offline.get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()


def _holds_library() -> bool:
    """Whether the running cell is to hold the library: the first with a figure, once a run."""
    global _holder
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return True
    message: dict[str, Any] = getattr(shell, "get_parent", dict)()
    metadata: dict[str, Any] = message.get("metadata", {})
    source = shell.user_ns.get("In", [""])[-1]
    cell, execution = metadata.get("cellId", source), shell.execution_count
    if _holder is None or (_holder[0] == cell and _holder[1] != execution):
        _holder = cell, execution
        return True
    return False
