"""Progress on the screen while runs train. Heavy: imported inside commands."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engram.cli.shell import aside, say
from engram.recipes import Callback, Plan
from engram.recipes.progress import StageCount, title
from engram.records import Rows

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_EVERY = 15.0  # seconds between lines where there is no terminal
BAR_EVERY = 0.1  # seconds between updates of the bar; steps may be far shorter


class Meter(Callback):
    """Turns what `execute` reports into a bar with the remaining time, or into rare lines."""

    def __init__(self, bar: Progress | None) -> None:
        self.bar = bar
        self.runs = 0
        self.finished = 0  # before this command
        self.work = StageCount([], 0)
        self._began = self._spoke = time.monotonic()

    def note(self, text: str) -> None:
        say(f"note: {text}", style="yellow")

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self.runs, self.finished = len(plans), done
        self.work = StageCount(plans, done)
        if self.bar is not None:
            for before in self.bar.task_ids:  # of another batch
                self.bar.remove_task(before)
            task = self.bar.add_task("starting", total=self.work.total)
            self.bar.update(task, completed=self.work.before)

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if not self._due():  # thousands of plans may step together, more often than is shown
            return
        for plan in plans:
            self.work.reach(plan, stage + done / max(total, 1))
        self._show(plans, stage)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.work.reach(plan, stage + 1.0)
        if "diverged" in rows.metrics:
            self.work.reach(plan, float(len(plan.run.stream)))
        self._show([plan], stage)

    def _due(self) -> bool:
        every = QUIET_EVERY if self.bar is None else BAR_EVERY
        return time.monotonic() - self._spoke >= every

    def _show(self, plans: Sequence[Plan], stage: int) -> None:
        if not self._due():
            return
        self._spoke = now = time.monotonic()
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0], completed=self.work.done, description=title(plans, stage)
            )
        else:
            say(f"{self._share():.0%} done, about {self._left(now):.0f} s left")

    def _share(self) -> float:
        return self.work.done / max(self.work.total, 1.0)

    def _left(self, now: float) -> float:
        fresh = max(self.work.done - self.work.before, 1e-9)
        return (now - self._began) / fresh * (self.work.total - self.work.done)


@contextmanager
def meter() -> Iterator[Meter]:
    """A callback for the time of an execution; the bar vanishes at its end."""
    console = aside()
    if not console.is_terminal:
        yield Meter(None)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TaskProgressColumn as Share
    from rich.progress import TimeRemainingColumn as Left

    with Progress(
        BarColumn(24), Share(), TimeElapsedColumn(), TextColumn("left"), Left(),
        TextColumn("{task.description}", markup=False), console=console, transient=True,
    ) as bar:  # fmt: skip
        yield Meter(bar)
