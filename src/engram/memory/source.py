"""What a policy may ask of a learner, and what a policy is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from engram.memory.exemplars import Exemplars


class Outputs(Protocol):
    """What the network says about some rows."""

    @property
    def features(self) -> Tensor:
        """[n, d]"""
        ...

    @property
    def logits(self) -> Tensor:
        """[n, C]"""
        ...


class Labelled(Protocol):
    """What memories read of a stream."""

    @property
    def labels(self) -> str:
        """``single``, or ``set`` where a row may have several."""
        ...


class Source(Protocol):
    """The part of a learner that memories read."""

    @property
    def stream(self) -> Labelled: ...
    @property
    def seed(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def exemplars(self) -> Exemplars: ...
    @property
    def opened(self) -> Tensor:
        """[C] the stage that opened each output column, -1 = not yet."""
        ...

    def labels(self, rows: Tensor) -> Tensor:
        """[n, L] labels visible in the current task as output columns, -1 pads, on the CPU."""
        ...

    def outputs(self, rows: Tensor) -> Outputs:
        """Features and logits in eval mode, without augmentation or gradient, on the CPU."""
        ...

    def class_weights(self) -> Tensor:
        """[C, d] rows of the last layer, on the CPU."""
        ...


Ranking = Callable[[Source, Tensor, int, int], Tensor]


@runtime_checkable
class Policy(Protocol):
    """Ranks the rows of one group, best first; a prefix of a ranking is a ranking.

    `column` is the output column of the group, or -1 where the group is a whole task. At least
    ``min(count, len(rows))`` places of `rows` have to come back; more are cut off.
    """

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        """Places in `rows`, best first."""
        ...
