"""`Trainer`, the protocol between the training loop and all trainers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from engram.engine.admission import Draws
from engram.engine.sampler import StepRows
from engram.memory import Exemplars


class Trainer(Protocol):
    """Protocol of an object that takes the optimiser steps of R runs in one phase of a task.

    A trainer works on its own tensors; learners have the current weights after `write_back` and
    `close`. `state_dict` has what an interrupted run needs besides its learner.
    """

    @property
    def first(self) -> dict[str, Tensor] | None:
        """[R] loss terms of the phase's first step."""
        ...

    @property
    def steps(self) -> np.ndarray:
        """[R] steps taken in this phase."""
        ...

    def load(self, rows: StepRows, fixed: bool) -> None:
        """Set the rows of the next steps; `fixed` says that they are the same in all epochs."""
        ...

    def reseed(self, key: Tensor) -> None:
        """Set the keys [R, 1] of another epoch over the same rows."""
        ...

    def count_from(self, before: Sequence[int]) -> None:
        """Count on from the steps [R] of earlier phases of the task."""
        ...

    def plan(self, steps: np.ndarray, epoch_steps: np.ndarray) -> None:
        """Note how many steps [R] the phase and each of its epochs shall have."""
        ...

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Take the steps `start` to `stop` of the loaded rows, of runs that are `live` [R, S].

        `lr` [R, stop - start] are their learning rates.
        """
        ...

    def take_log(self) -> dict[str, Tensor]:
        """Return the sums of the loss terms [R] since the last call, and reset them."""
        ...

    def write_back(self) -> None:
        """Write the current weights into the learners."""
        ...

    def scored_weights(self) -> AbstractContextManager[None]:
        """Let the learners have the weights to be scored: their own, or the average of these."""
        ...

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what an interrupted run needs besides its learner: sums of losses, values."""
        ...

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """Restore the states of all runs, with the number of steps each has taken."""
        ...

    @property
    def rewrites(self) -> bool:
        """Whether steps replace values that are stored with exemplars."""
        ...

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """Return the values [n, ...] that a run stores with its first `items` exemplars."""
        ...

    def draw_from(self, draws: Draws) -> None:
        """Let every step draw from memories which the method fills."""
        ...

    def held_exemplars(self, run: int) -> Exemplars:
        """Return what the memory of a run holds that its method fills."""
        ...

    def finite(self) -> Tensor:
        """Return [R] whether all weights of a run are finite."""
        ...

    def close(self) -> None:
        """Finish the phase."""
        ...
