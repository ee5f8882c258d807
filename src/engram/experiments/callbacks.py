"""Callbacks during training: `Callback`, a progress bar for notebooks, and live logs to
TensorBoard, W&B and MLflow.
"""

from __future__ import annotations

import html
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.errors import bad
from engram.experiments.plan import Plan
from engram.plugins import load_user_object
from engram.records import Result, Rows, RunDirectory, read
from engram.records.experiment_trackers import Sink, choose_sink, run_logs

if TYPE_CHECKING:
    import pandas as pd


class Callback:
    """Hooks that are called while runs train; override those that you need."""

    def note(self, text: str) -> None:
        """Receive a note for the user; a warning unless overridden."""
        warnings.warn(text, stacklevel=2)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        """Called before training; `done` of the plans were finished before."""

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        """Called after steps of a stage of plans that train together."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        """Called after a stage of a plan was recorded."""


StageHook = Callable[[Plan, int, Rows], Any]


class _StageFunction(Callback):
    """A function that is called after every recorded stage."""

    def __init__(self, function: StageHook) -> None:
        self._function = function

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self._function(plan, stage, rows)


def make_callback(given: Callback | StageHook | str | None) -> Callback | None:
    """Make a callback of a function ``(plan, stage, rows)``, or of a name ``module:function``.

    Examples
    --------
    >>> heard = []
    >>> follow = make_callback(lambda plan, stage, rows: heard.append(stage))
    >>> follow.stage(None, 3, None)
    >>> heard
    [3]
    """
    found = load_user_object(given, what="callback") if isinstance(given, str) else given
    found = found() if isinstance(found, type) and issubclass(found, Callback) else found
    if found is None or isinstance(found, Callback):
        return found
    try:
        signature(found).bind("plan", "stage", "rows")
    except (TypeError, ValueError):
        expected = "a Callback, a function (plan, stage, rows), or module:name of one"
        raise bad("callback", expected, found) from None
    return _StageFunction(found)


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


def find_log_tools(log: str | Sequence[str]) -> list[str]:
    """List the named tools, each once; raises if one is unknown or not installed."""
    if not log:
        return []
    from engram.errors import check_choice
    from engram.records.experiment_trackers import TOOLS, import_extra

    named = [log] if isinstance(log, str) else list(log) if isinstance(log, Sequence) else []
    if not named or not all(isinstance(one, str) for one in named):
        raise bad("log", f"one or several of {', '.join(TOOLS)}", log)
    for one in named:
        import_extra(check_choice("log", one, TOOLS))
    return list(dict.fromkeys(named))


@contextmanager
def open_callback(
    callback: Callback | StageHook | str | None = None,
    *,
    log: str | Sequence[str] = (),
    out: str | Path | None = None,
) -> Iterator[Callback | None]:
    """Open one callback for an execution: the caller's or a notebook's bar, and tools in `log`."""
    callback = make_callback(callback)
    with ExitStack() as stack:
        if callback is None and in_notebook():
            callback = stack.enter_context(NotebookBar(make_html_display()))
        if log:
            live = [stack.enter_context(LiveLog(tool, out)) for tool in find_log_tools(log)]
            callback = Callbacks(callback or Callback(), *live)
        yield callback


PlanKey = tuple[str, int, str]


class LiveLog(Callback):
    """Send every finished stage of every run to a tool; a context manager, which closes the runs.

    If the tool fails, a note is given and training continues without it.

    Parameters
    ----------
    tool
        ``tensorboard``, ``wandb`` or ``mlflow``.
    out
        The run directory, from which the earlier stages of a resumed run are read. Files of
        the tool are written there, or to the working directory.
    """

    def __init__(self, tool: str, out: str | Path | None = None) -> None:
        self.tool, self._out = tool, None if out is None else Path(out)
        self._open = choose_sink(tool, "." if out is None else out)
        self._sinks: dict[PlanKey, Sink] = {}
        self._frames: dict[PlanKey, list[pd.DataFrame]] = {}
        self._taken: dict[str, str] = {}  # name of a run: its recipe
        self._failed = False

    def __enter__(self) -> LiveLog:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._sinks):
            self._close(key)

    def note(self, text: str) -> None:
        """Do nothing: other callbacks show notes."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        if self._failed:
            return
        try:
            self._send(plan, stage, rows.frame())
            if stage + 1 == plan.stages or "diverged" in rows.metrics:
                self._close(plan.key)
        except Exception as error:  # any failure of network, disk or server
            self._failed = True
            super().note(f"{self.tool} failed ({error}); the runs continue without it")

    def _send(self, plan: Plan, stage: int, frame: pd.DataFrame) -> None:
        import pandas as pd

        if plan.key not in self._frames:
            self._frames[plan.key] = self._before(plan, stage)
        frames = self._frames[plan.key]
        result = Result(
            pd.concat([*frames, frame], ignore_index=True),
            recipes={plan.recipe: dict(plan.content)},
        )
        (log,) = run_logs(result)
        if plan.key not in self._sinks:
            if self._taken.setdefault(log.name, plan.recipe) != plan.recipe:
                log = replace(log, name=f"{log.name}-{plan.recipe[:6]}")
            self._sinks[plan.key] = self._open(log)
        sink = self._sinks[plan.key]
        sink.steps(log.steps)  # steps of earlier stages are not repeated
        for number, values in log.stages:
            if number == stage:
                sink.stage(number, values)
        frames.append(frame[frame["step"] == -1])

    def _before(self, plan: Plan, stage: int) -> list[pd.DataFrame]:
        """Read the stages of this run that an earlier process recorded."""
        if stage == 0 or self._out is None or not RunDirectory(self._out).result_files():
            return []
        known = read(self._out, recipes={plan.recipe}).frame()
        mine = (known["seed"] == plan.run.seed) & (known["order"] == plan.order)
        return [known[mine & (known["stage"] < stage) & (known["step"] == -1)]]

    def _close(self, key: PlanKey) -> None:
        self._frames.pop(key, None)
        if sink := self._sinks.pop(key, None):
            sink.close()


# Progress in numbers and words.


class StageCount:
    """Count of finished stages over all runs."""

    def __init__(self, plans: Sequence[Plan], finished: int) -> None:
        self.total = float(sum(plan.stages for plan in plans))
        share = self.total / max(len(plans), 1)
        self.before = share * finished
        self._done: dict[tuple[str, int, str], float] = {}

    def reach(self, plan: Plan, done: float) -> None:
        """Note that `done` stages of a run are finished."""
        self._done[plan.key] = max(done, self._done.get(plan.key, 0.0))

    @property
    def done(self) -> float:
        return self.before + sum(self._done.values())


def describe_progress(plans: Sequence[Plan], stage: int) -> str:
    """Describe in a few words what is training now."""
    labels = list(dict.fromkeys(plan.label for plan in plans))
    name = labels[0] if len(labels) == 1 else f"{len(labels)} recipes"
    group = f", {len(plans)} runs in lockstep" if len(plans) > 1 else ""
    return f"{name}: task {stage + 1} of {len(plans[0].run.stream)}{group}"


# A progress bar in notebooks.


REDRAW_SECONDS = 0.3  # seconds between updates

_BAR = """<div style="font-family:sans-serif;font-size:0.9em;max-width:40em">\
<progress value="{share:.4f}" max="1" style="width:16em;vertical-align:middle"></progress> \
{percent} {words}</div>"""


def in_notebook() -> bool:
    """Return whether a Jupyter kernel is running, whose front end can update HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar(Callback):
    """Progress bar in HTML, updated in place; a context manager, which leaves one line behind.

    Parameters
    ----------
    show
        Called with HTML text, which it displays in place of the previous text.
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
        if time.monotonic() - self._spoke < REDRAW_SECONDS:
            return
        for plan in plans:
            self._work.reach(plan, stage + done / max(total, 1))
        self._draw(describe_progress(plans, stage))

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        lost = "diverged" in rows.metrics
        self._work.reach(plan, float(plan.stages) if lost else stage + 1.0)
        if time.monotonic() - self._spoke >= REDRAW_SECONDS:
            self._draw(describe_progress([plan], stage))

    def _draw(self, words: str) -> None:
        self._spoke = time.monotonic()
        share = self._work.done / max(self._work.total, 1.0)
        self._show(_BAR.format(share=share, percent=f"{share:.0%}", words=html.escape(words)))


def make_html_display() -> Callable[[str], None]:
    """Return a function that displays HTML below the cell, replacing what it displayed before."""
    from IPython.display import HTML, display

    handles: list[Any] = []

    def show(text: str) -> None:
        if handles:
            handles[0].update(HTML(text))
        else:
            handles.append(display(HTML(text), display_id=True))

    return show
