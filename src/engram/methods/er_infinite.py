"""Experience replay with unlimited memory; rows keep the labels that were visible in their task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engram.errors import check_choice, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory
from engram.methods.er import MIXES, REDUCTIONS, replay_terms
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.streams.stream import Task

EVERYTHING = Memory(fraction=1.0)


@dataclass(frozen=True, kw_only=True)
class ERInfinite(Method):
    """`ER` with unlimited memory: every past row is replayed, with the labels visible in its task.

    A sample first seen under its superclass is therefore replayed with that label alone, and one
    seen in two tasks is replayed twice. It shows how much of `ER`'s loss in accuracy is due to the
    size of its memory (Abdelsalam et al. 2021, CVPR).

    Parameters
    ----------
    mix
        ``union``: one epoch over everything so far (IIRC); ``paired``: each batch is joined by past
        rows, drawn with replacement, as in `ER`.
    reduce
        ``mean``: one mean over all rows; ``sum``: mean of the new rows plus mean of the old ones.
    size
        Past rows per step when paired; 0: as many as the batch size.

    Examples
    --------
    >>> ERInfinite().replay(1)
    ReplaySpec(kind='past', size=0)
    """

    reads: ClassVar[str] = "past"
    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    mix: str = "union"
    reduce: str = "mean"
    size: int = 0

    def __post_init__(self) -> None:
        check_choice("mix", self.mix, MIXES)
        check_choice("reduce", self.reduce, REDUCTIONS)
        check_int("size", self.size)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size) if self.mix == "paired" else ReplaySpec("past")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        return replay_terms(net, batch, self.reduce)

    def finish(self, learner: RunLearner, task: Task) -> None:
        if self.mix == "paired":
            learner.exemplars = EVERYTHING.update(learner, task.train)

    @property
    def memory(self) -> Memory | None:
        return EVERYTHING if self.mix == "paired" else None
