"""Replay of a fixed share of every task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engram import keys
from engram.errors import BadArgument, check_choice, check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory
from engram.methods import method
from engram.methods.er import MIXES
from engram.per_run import PerRun
from engram.streams.stream import Task

OF = ("task", "class")
KEPT = ("all", "newest")
DRAWN = ("task", "step")


@dataclass(frozen=True, kw_only=True)
class Replay(method.Method):
    """Store a random share of each task; train on the current task and everything stored.

    The REPLAY of the skeleton benchmark (Wei et al. 2024), there with class-balanced cross-entropy
    (``loss="balanced"`` of the training settings) and full batches. It is
    ``ER(memory=Memory(fraction=0.2), mix="union")``; with a share of 1 it sees what
    `Joint` sees. The benchmark says only that old rows are mixed with new ones; the other options
    are further readings of that.

    Parameters
    ----------
    fraction
        Share of each task's rows, rounded up; never reduced later. CGL: 0.2; 1 is its JOINT.
    mix
        ``union``: every epoch goes over the task and all that was kept; ``paired``: every batch
        holds as many kept rows, drawn with replacement, as rows of the task.
    of
        Sample from the whole ``task``, or from each ``class`` in proportion.
    kept
        Keep the shares of ``all`` tasks, or only that of the ``newest``.
    drawn
        Once, after the ``task``, or again at every ``step``: each past row takes part with
        probability `fraction`. The latter reads rows outside the memory, which the ledger records.

    Examples
    --------
    >>> Replay().memory
    Memory(fraction=0.2)
    >>> Replay(drawn="step").reads
    'past'
    """

    decides: ClassVar[tuple[str, ...]] = method.ARGMAX_OR_THRESHOLD

    fraction: PerRun = 0.2
    mix: str = "union"
    of: str = "task"
    kept: str = "all"
    drawn: str = "task"

    def __post_init__(self) -> None:
        check_float("fraction", self.fraction, 0.0, 1.0, open_low=True)
        check_choice("mix", self.mix, MIXES)
        check_choice("of", self.of, OF)
        check_choice("kept", self.kept, KEPT)
        if check_choice("drawn", self.drawn, DRAWN) == "step" and (
            (self.mix, self.of, self.kept) != ("union", "task", "all")
        ):
            raise BadArgument(
                "drawn: 'step' draws from all of the past, so mix, of and kept must be the "
                f"defaults, got {self.mix}, {self.of}, {self.kept}"
            )

    @property
    def reads(self) -> str:
        return "past" if self.drawn == "step" else "own"

    def replay(self, stage: int) -> method.ReplaySpec:
        if self.drawn == "step":
            return method.ReplaySpec("past")
        return method.ReplaySpec("union" if self.mix == "union" else "pair")

    def loss(self, net: Net, batch: Batch, state: method.State) -> method.Terms:
        if self.drawn == "task":
            return {"task": net.task(batch)}
        there = keys.uniform(keys.fold(batch.key, "replay"), len(batch.w), device=batch.w.device)
        chosen = torch.where(batch.old > 0, (there < self.fraction).to(batch.w.dtype), 1.0)
        return {"task": net.task(batch._replace(w=batch.w * chosen))}

    def finish(self, learner: RunLearner, task: Task) -> None:
        if self.memory is None:
            return
        kept = self.memory.update(learner, task.train)
        if self.kept == "newest":
            kept = kept.take(kept.stages == learner.stage)
        learner.exemplars = kept

    @property
    def memory(self) -> Memory | None:
        if self.drawn == "step":
            return None
        policy = "random" if self.of == "task" else "stratified"
        return Memory(fraction=self.fraction, policy=policy)
