"""A stream whose end nobody knows: for a learner that goes on learning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engram.streams.core import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenStream(Stream):
    """The tasks so far, over what is left of their rows; columns for classes to come are reserved.

    Rows of earlier tasks are gone unless a memory holds them, so all tasks but the last may be
    without any.

    Parameters
    ----------
    reserved
        Class ids that no task has introduced yet; their columns come last and stay shut.
    sizes
        How many training rows each task had when it was learnt. Empty: those it has now.

    Examples
    --------
    >>> from engram.data.core import Data
    >>> from engram.streams.core import Task
    >>> data = Data.from_arrays([[0.0], [1.0]], [1, 1], test=([[2.0]], [1]), classes="abcd")
    >>> gone = Task(train=[], test=[], new=(0,))
    >>> now = Task(train=[0, 1], test=[], new=(1,))
    >>> stream = OpenStream(data=data, tasks=(gone, now), reserved=(2, 3), sizes=(50, 2))
    >>> stream.order, stream.opening.tolist(), stream.train_sizes
    ((0, 1, 2, 3), [0, 1, 2, 2], (50, 2))
    """

    reserved: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def may_be_empty(self, stage: int) -> bool:
        return stage < len(self.tasks) - 1

    @property
    def train_sizes(self) -> tuple[int, ...]:
        return self.sizes or super().train_sizes

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Class ids in order of introduction, then those whose columns are reserved."""
        introduced = (c for task in self.tasks for c in task.new)
        return tuple(dict.fromkeys((*introduced, *self.reserved)))

    @cached_property
    def opening(self) -> Tensor:
        """[C] the task that introduces each output column; one that never comes, if none does."""
        stage = self._introduced()
        return torch.tensor([stage.get(c, len(self.tasks)) for c in self.order], dtype=torch.long)
