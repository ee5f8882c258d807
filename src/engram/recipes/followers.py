"""Who follows an execution: the caller, a notebook, tools that are told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engram.recipes import notebook
from engram.recipes.callback import Callback
from engram.recipes.plan import Plan
from engram.records import Rows


class Callbacks(Callback):
    """Several callbacks as one."""

    def __init__(self, *several: Callback) -> None:
        self.several = several

    def note(self, text: str) -> None:
        for one in self.several:
            one.note(text)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        for one in self.several:
            one.begin(plans, done)

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        for one in self.several:
            one.step(plans, stage, done, total)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        for one in self.several:
            one.stage(plan, stage, rows)


def ready(log: str | Sequence[str]) -> list[str]:
    """The tools that are named, each once; refused where one is unknown or not installed."""
    if not log:
        return []
    from engram.errors import bad, choose
    from engram.records.export import TOOLS
    from engram.records.export.logs import need

    named = [log] if isinstance(log, str) else list(log) if isinstance(log, Sequence) else []
    if not named or not all(isinstance(one, str) for one in named):
        raise bad("log", f"one or several of {', '.join(TOOLS)}", log)
    for one in named:
        need(choose("log", one, TOOLS))
    return list(dict.fromkeys(named))


@contextmanager
def following(
    callback: Callback | None = None,
    *,
    log: str | Sequence[str] = (),
    out: str | Path | None = None,
) -> Iterator[Callback | None]:
    """One callback for an execution: the caller's or, in a notebook, a bar; and tools in `log`."""
    with ExitStack() as stack:
        if callback is None and notebook.in_notebook():
            callback = stack.enter_context(notebook.NotebookBar(notebook.displayed()))
        if log:
            from engram.recipes.live_log import LiveLog

            live = [stack.enter_context(LiveLog(tool, out)) for tool in ready(log)]
            callback = Callbacks(callback or Callback(), *live)
        yield callback
