"""What the loop asks of a trainer, whether it trains one run or many, eagerly or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from engram.engine.sampler import StepRows


class Trainer(Protocol):
    """Takes the optimiser steps of R runs in one phase of a task.

    A trainer works on tensors of its own; learners hold the present weights after `write_back` and
    `close`. What an interrupted run needs besides its learner is in `state_dict`.
    """

    first: dict[str, Tensor] | None  # [R] loss terms of the phase's first step

    @property
    def steps(self) -> int | np.ndarray:
        """[R] steps taken in this phase."""
        ...

    def load(self, rows: StepRows, fixed: bool) -> None:
        """Take the rows of the next steps; `fixed` says that all epochs have the same."""
        ...

    def reseed(self, key: Tensor) -> None:
        """Take the keys [R, 1] of another epoch over the same rows."""
        ...

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Steps `start` to `stop` of the loaded rows; `live` [R, S] says who takes each."""
        ...

    def take_log(self) -> dict[str, Tensor]:
        """Sums of the loss terms since the last call, [R] each, and start anew."""
        ...

    def write_back(self) -> None:
        """Let the learners hold the present weights."""
        ...

    def state_dict(self, run: int) -> dict[str, Any]:
        """What an interrupted run needs besides its learner: sums of losses, values."""
        ...

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """The reverse of `state_dict`, for all runs, with the steps each has taken."""
        ...

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """[n, ...] the values that a run remembers with its first `items` exemplars."""
        ...

    def finite(self) -> Tensor:
        """[R] whether all weights of a run are numbers."""
        ...

    def close(self) -> None:
        """The phase is over."""
        ...
