"""A drawn figure as a page of its own, for screens of any width."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

PANEL = 20  # width of a column of panels in units of the letters, below which a page is scrolled


def page(drawn: Any, title: str) -> str:
    """The figure as HTML that fills its window; on a phone it is as wide as the phone.

    The drawing library lies beside it (`write_script`). Several panels side by side stay legible:
    a window that is too narrow for them is scrolled.
    """
    made: str = drawn.to_html(
        include_plotlyjs="directory", full_html=True, config={"responsive": True}
    )
    head = (
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>body {{ min-width: {PANEL * columns_of(drawn)}em; }}</style>\n"
    )
    return made.replace("<head>", f"<head>{head}", 1)


def columns_of(drawn: Any) -> int:
    """How many panels stand side by side.

    Examples
    --------
    >>> from plotly.subplots import make_subplots
    >>> columns_of(make_subplots(rows=2, cols=3))
    3
    """
    starts = {round((axis.domain or (0.0,))[0], 3) for axis in drawn.select_xaxes()}
    return max(len(starts), 1)


def write_script(folder: Path) -> None:
    """The drawing library beside the pages, which share it: in each it would be 4.8 MB."""
    from engram.records.files import write_text

    script = folder / "plotly.min.js"  # the name by which pages look for it
    if not script.exists():
        import plotly.offline

        write_text(script, plotly.offline.get_plotlyjs())
