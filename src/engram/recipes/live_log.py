"""Runs that tell another tool of themselves while they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from engram.recipes.callback import Callback
from engram.recipes.plan import Plan
from engram.records import Result, Rows, RunDirectory, read
from engram.records.export import opener
from engram.records.export.logs import logs
from engram.records.export.sink import Sink

Key = tuple[str, int, str]


class LiveLog(Callback):
    """Sends every finished stage of every run to a tool; a context, which closes what is open.

    A tool that fails in the middle is given up with a note: training goes on.

    Parameters
    ----------
    tool
        ``tensorboard``, ``wandb`` or ``mlflow``.
    out
        The run directory, from which the earlier stages of a run that goes on are read; files of
        the tool lie there as well, or without one in the working directory.
    """

    def __init__(self, tool: str, out: str | Path | None = None) -> None:
        self.tool, self._out = tool, None if out is None else Path(out)
        self._open = opener(tool, "." if out is None else out)
        self._sinks: dict[Key, Sink] = {}
        self._frames: dict[Key, list[pd.DataFrame]] = {}
        self._taken: dict[str, str] = {}  # names of runs, and the recipes that have them
        self._failed = False

    def __enter__(self) -> LiveLog:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._sinks):
            self._close(key)

    def note(self, text: str) -> None:
        """Others say it."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        if self._failed:
            return
        try:
            self._send(plan, stage, rows.frame())
            if stage + 1 == len(plan.run.stream) or "diverged" in rows.metrics:
                self._close(plan.key)
        except Exception as error:  # whatever a network, a disk or a server may do
            self._failed = True
            super().note(f"{self.tool} failed ({error}); the runs continue without it")

    def _send(self, plan: Plan, stage: int, frame: pd.DataFrame) -> None:
        if plan.key not in self._frames:
            self._frames[plan.key] = self._before(plan, stage)
        frames = self._frames[plan.key]
        result = Result(
            pd.concat([*frames, frame], ignore_index=True),
            recipes={plan.recipe: dict(plan.content)},
        )
        (log,) = logs(result)
        if plan.key not in self._sinks:
            if self._taken.setdefault(log.name, plan.recipe) != plan.recipe:
                log = replace(log, name=f"{log.name}-{plan.recipe[:6]}")
            self._sinks[plan.key] = self._open(log)
        sink = self._sinks[plan.key]
        sink.steps(log.steps)  # earlier stages are kept without theirs
        for number, values in log.stages:
            if number == stage:
                sink.stage(number, values)
        frames.append(frame[frame["step"] == -1])

    def _before(self, plan: Plan, stage: int) -> list[pd.DataFrame]:
        """What an earlier process recorded of this run."""
        if stage == 0 or self._out is None or not RunDirectory(self._out).result_files():
            return []
        known = read(self._out, recipes={plan.recipe}).frame()
        mine = (known["seed"] == plan.run.seed) & (known["order"] == plan.order)
        return [known[mine & (known["stage"] < stage) & (known["step"] == -1)]]

    def _close(self, key: Key) -> None:
        self._frames.pop(key, None)
        if sink := self._sinks.pop(key, None):
            sink.close()
