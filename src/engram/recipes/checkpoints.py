"""When the state of runs is written, and how a run finds its own again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engram.engine.checkpoints import group as group_checkpoint
from engram.engine.checkpoints import single as checkpoint
from engram.learner.learner import Learner
from engram.recipes.plan import Plan
from engram.recipes.rows import Done
from engram.records import RunDirectory

ALONE = 32  # runs that get a file each; larger groups share one
SMALL = 64 << 20  # bytes that are written after every stage, however short it was
RATE = 200e6  # bytes written in a second
SHARE = 0.05  # of the training time that may go into writing what is larger


class Checkpoints:
    """The states in a run directory.

    Every stage of a group is followed by a checkpoint, unless its state is large and training was
    short: state of more than `SMALL` bytes is written once that takes no more than `SHARE` of the
    time since the last one, or the interval of checkpoints inside a task has passed, whichever
    comes first.
    """

    def __init__(self, folder: RunDirectory) -> None:
        self.folder = folder
        self.shared = folder.path / "checkpoint" / "groups"
        self._shelf = group_checkpoint.Shelf(self.shared)
        self._written: dict[str, float] = {}  # by group: when
        self._began = time.monotonic()

    def load(self, plan: Plan, learner: Learner) -> int:
        """The newest state of a run into a fresh learner; the next stage to train."""
        finished = self.folder.finished(*plan.key)
        own = self.folder.checkpoint_path(*plan.key)
        alone = checkpoint.load(learner, own, finished)
        shared = self._shelf.load(learner, own.name, finished) if not alone else 0
        return max(alone, shared)

    def save(self, done: Sequence[Done], *, must: bool = False) -> bool:
        """Write the states of runs that trained together, before their stage is recorded.

        Returns whether they were written; they are where they `must`.
        """
        if len(done) <= ALONE:
            for plan, stage, _ in done:
                checkpoint.save(stage.learner, self.folder.checkpoint_path(*plan.key))
            return True
        plan, stage, _ = done[0]
        learners = {self._name(plan): stage.learner for plan, stage, _ in done}
        last = stage.stage == len(plan.run.stream) - 1  # nobody goes on from there
        if last or not (must or self._worth(learners)):
            return False
        group_checkpoint.save(learners, self.shared)
        self._written[group_checkpoint.name_of(learners)] = time.monotonic()
        return True

    def _worth(self, learners: dict[str, Learner]) -> bool:
        size = group_checkpoint.nbytes(learners.values())
        since = self._written.get(group_checkpoint.name_of(learners), self._began)
        return size <= SMALL or size / RATE <= SHARE * (time.monotonic() - since)

    def prune(self, done: Sequence[Done]) -> None:
        """Remove what the recorded stage has made superfluous."""
        if len(done) <= ALONE:
            for plan, _, _ in done:
                checkpoint.prune(self.folder.checkpoint_path(*plan.key))
            return
        plan, stage, _ = done[0]
        runs = [self._name(plan) for plan, _, _ in done]
        written = self.shared / f"{group_checkpoint.name_of(runs)}-{stage.stage:04d}.safetensors"
        if stage.stage == len(plan.run.stream) - 1:
            group_checkpoint.prune(runs, self.shared, below=stage.stage + 1)
        elif written.is_file():
            group_checkpoint.prune(runs, self.shared, below=stage.stage)

    def close(self, plans: Sequence[Plan]) -> None:
        """Remove shared files that nobody will go on from."""
        done = [p for p in plans if self.folder.ended(*p.key, stages=len(p.run.stream))]
        group_checkpoint.Shelf(self.shared).remove_finished([self._name(p) for p in done])

    def _name(self, plan: Plan) -> str:
        return self.folder.checkpoint_path(*plan.key).name
