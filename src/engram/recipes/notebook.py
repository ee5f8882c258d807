"""Progress in notebooks: a bar below the cell while runs train, a line when they are done."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from engram.recipes.callback import Callback
from engram.recipes.plan import Plan
from engram.recipes.progress import StageCount, title
from engram.records import Rows

EVERY = 0.3  # seconds between updates

_BAR = """<div style="font-family:sans-serif;font-size:0.9em;max-width:40em">\
<progress value="{share:.4f}" max="1" style="width:16em;vertical-align:middle"></progress> \
{percent} {words}</div>"""


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this: its front end shows HTML that is replaced later."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar(Callback):
    """A bar of HTML, updated in place; a context, which leaves one line behind.

    Parameters
    ----------
    show
        Called with HTML text: shows it the first time, then puts it into the place of the last.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._work = show, StageCount([], 0)
        self._plans: Sequence[Plan] = ()
        self._began = self._spoke = time.monotonic()

    def __enter__(self) -> NotebookBar:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self._plans:
            return
        runs = f"{len(self._plans)} run{'s' if len(self._plans) > 1 else ''}"
        seconds = f"{time.monotonic() - self._began:.1f} s"
        words = f"{runs} in {seconds}" if kind is None else f"{runs}, stopped after {seconds}"
        self._show(f'<div style="font-family:sans-serif;font-size:0.9em">{words}</div>')

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self._plans, self._work = plans, StageCount(plans, done)
        self._draw("starting")

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if time.monotonic() - self._spoke < EVERY:
            return
        for plan in plans:
            self._work.reach(plan, stage + done / max(total, 1))
        self._draw(title(plans, stage))

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        lost = "diverged" in rows.metrics
        self._work.reach(plan, float(len(plan.run.stream)) if lost else stage + 1.0)
        if time.monotonic() - self._spoke >= EVERY:
            self._draw(title([plan], stage))

    def _draw(self, words: str) -> None:
        self._spoke = time.monotonic()
        share = self._work.done / max(self._work.total, 1.0)
        self._show(_BAR.format(share=share, percent=f"{share:.0%}", words=html.escape(words)))


def displayed() -> Callable[[str], None]:
    """Shows HTML below the cell, later calls in the place of the first."""
    from IPython.display import HTML, display

    handles: list[Any] = []

    def show(text: str) -> None:
        if handles:
            handles[0].update(HTML(text))
        else:
            handles.append(display(HTML(text), display_id=True))

    return show
