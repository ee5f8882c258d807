"""Streams as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engram.html_text import block, escape, table
from engram.streams._rows import ROWS

if TYPE_CHECKING:
    from engram.streams.core import Stream, Task

MOST_TASKS = 30  # lines of a table in a notebook


def _cells(stream: Stream) -> tuple[list[list[str]], list[int]]:
    """Titles and one row per task, and the columns that say something."""
    rows = [[str(k), *(str(len(getattr(t, kind))) for kind in ROWS), _names(stream, t)]
            for k, t in enumerate(stream.tasks)]  # fmt: skip
    titles = ["task", *(kind.replace("_", "-") for kind in ROWS), "new classes"]
    used = [i for i in range(6) if i in (0, 1, 5) or any(row[i] != "0" for row in rows)]
    return [titles, *rows], used


def html_of(stream: Stream) -> str:
    """The same as `table_of` for notebooks, in the first `MOST_TASKS` tasks."""
    (titles, *rows), used = _cells(stream)
    shown = [[row[i] for i in used] for row in rows[:MOST_TASKS]]
    more = len(rows) - len(shown)
    return block(
        f"<p>{escape(repr(stream))} over {escape(repr(stream.data.name))}</p>",
        table([titles[i] for i in used], shown), f"<p>and {more} more tasks</p>" if more else "",
    )  # fmt: skip


def table_of(stream: Stream) -> str:
    """One line per task: its rows of each kind, and its new classes."""
    (titles, *rows), used = _cells(stream)
    wide = [max(len(row[i]) for row in [titles, *rows]) for i in range(6)]
    lines = ["  ".join(row[i].ljust(wide[i]) if i == 5 else row[i].rjust(wide[i]) for i in used)
             for row in [titles, *rows]]  # fmt: skip
    return "\n".join([f"{stream!r} over {stream.data.name!r}", *(line.rstrip() for line in lines)])


def _names(stream: Stream, task: Task, limit: int = 60) -> str:
    names = [stream.data.classes[c] for c in task.new]
    text = ", ".join(names) or "-"
    if len(text) > limit:
        end = text.rfind(",", 0, limit)
        text = f"{text[: end if end > 0 else limit]}, ... ({len(names)})"
    return f"{text}  [{task.domain}]" if task.domain else text
