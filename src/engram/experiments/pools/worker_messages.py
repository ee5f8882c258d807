"""Messages that carry the progress of a worker to the callback of the process that started it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from engram.experiments import Callback, Plan
from engram.records import Rows


class EventSender(Callback):
    """Callback of a worker, which sends its events; steps at most every `every` seconds."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None], every: float = 0.1) -> None:
        self.send, self.every = send, every
        self._spoke = 0.0
        self._begun = False

    def note(self, text: str) -> None:
        """Send a note, unless it comes before training, when the parent has shown it."""
        if self._begun:
            self.send(("note", text))

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self._begun = True

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if time.monotonic() - self._spoke >= self.every:
            self._spoke = time.monotonic()
            self.send(("step", [plan.key for plan in plans], stage, done, total))

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.send(("stage", plan.key, stage, rows))


class EventReceiver:
    """Passes the events of workers on to a callback.

    Examples
    --------
    >>> class Loud(Callback):
    ...     def note(self, text):
    ...         print(text)
    >>> EventReceiver(Loud(), []).receive("note", "a.safetensors: is damaged")
    a.safetensors: is damaged
    """

    def __init__(self, callback: Callback, plans: Sequence[Plan]) -> None:
        self.callback = callback
        self._plans = {plan.key: plan for plan in plans}

    def receive(self, kind: str, *told: Any) -> None:
        """Handle one event of a worker."""
        if kind == "note":
            self.callback.note(*told)
        elif kind == "step":
            keys, *where = told
            here = [self._plans[key] for key in keys if key in self._plans]
            self.callback.step(here, *where) if here else None
        elif (plan := self._plans.get(told[0])) is not None:
            self.callback.stage(plan, *told[1:])
