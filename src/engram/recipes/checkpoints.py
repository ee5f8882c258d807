"""When the state of runs is written, and how a run finds its own again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engram.engine.checkpoints import group as group_checkpoint
from engram.engine.checkpoints import single as checkpoint
from engram.engine.engine import FinishedStage
from engram.learner.learner import Learner
from engram.recipes.model_file import keep_model
from engram.recipes.plan import Plan
from engram.recipes.rows import Done
from engram.records import RunDirectory, run_id

ALONE = 32  # runs that get a file each; larger groups share one
SMALL = 64 << 20  # bytes that are written after every stage, however short it was
RATE = 200e6  # bytes written in a second
SHARE = 0.05  # of the training time that may go into writing what is larger


class Checkpoints:
    """The states in a run directory.

    Every stage of a group is followed by a checkpoint, unless its state is large and training was
    short: state of more than `SMALL` bytes is written once that takes no more than `SHARE` of the
    time since the last one, or the interval of checkpoints inside a task has passed, whichever
    comes first. What the next task makes anew is not written. A finished run leaves its model.
    """

    def __init__(self, folder: RunDirectory, note: checkpoint.Note) -> None:
        self.folder, self.note = folder, note
        self.shared = folder.path / "checkpoint" / "groups"
        self._group_files = group_checkpoint.GroupFiles(self.shared, note)
        self._since: dict[str, float] = {}  # by run: when it was written, or its training began

    def load(self, plan: Plan, learner: Learner) -> int:
        """The newest state of a run into a fresh learner; the next stage to train."""
        finished = self.folder.finished(*plan.key)
        own = self.folder.checkpoint_path(*plan.key)
        self._since[own.name] = time.monotonic()
        alone = checkpoint.load(learner, own, finished, self.note)
        shared = self._group_files.load(learner, own.name, finished) if not alone else 0
        return max(alone, shared)

    def save(self, done: Sequence[Done], *, must: bool = False) -> bool:
        """Write the states of runs that trained together, before their stage is recorded.

        Returns whether they were written; they are where they `must`.
        """
        self._keep_models(done)
        going = {self._name(p): stage.learner for p, stage, _ in done if not ends(p, stage)}
        leave_out = _made_anew(done[0][0])
        if not going or not (must or self._worth(going, leave_out)):
            return False
        if len(done) <= ALONE:
            for name, learner in going.items():
                checkpoint.save(learner, self.folder.path / "checkpoint" / name, leave_out)
        else:
            learners = {self._name(plan): stage.learner for plan, stage, _ in done}
            group_checkpoint.save(learners, self.shared, leave_out)
        self._since |= dict.fromkeys(going, time.monotonic())
        return True

    def _keep_models(self, done: Sequence[Done]) -> None:
        for plan, stage in with_models(done):
            own = self.folder.checkpoint_path(*plan.key)
            keep_model(own, stage.learner, plan.run, plan.probes.values())

    def _worth(self, learners: dict[str, Learner], leave_out: Sequence[str]) -> bool:
        size = group_checkpoint.nbytes(learners.values(), leave_out)
        now = time.monotonic()
        since = max(self._since.get(name, now) for name in learners)
        return size <= SMALL or size / RATE <= SHARE * (now - since)

    def prune(self, done: Sequence[Done]) -> None:
        """Remove what the recorded stage has made superfluous."""
        if len(done) <= ALONE:
            for plan, stage, _ in done:
                own = self.folder.checkpoint_path(*plan.key)
                checkpoint.prune(own, finished=ends(plan, stage))
            return
        plan, stage, _ = done[0]
        runs = [self._name(plan) for plan, _, _ in done]
        written = self.shared / f"{group_checkpoint.name_of(runs)}-{stage.stage:04d}.safetensors"
        if stage.stage == len(plan.run.stream) - 1:
            group_checkpoint.prune(runs, self.shared, finished=True)
        elif written.is_file():
            group_checkpoint.prune(runs, self.shared)

    def close(self, plans: Sequence[Plan]) -> None:
        """Remove files that nobody will go on from."""
        done = [p for p in plans if self.folder.ended(*p.key, stages=len(p.run.stream))]
        group_checkpoint.GroupFiles(self.shared, self.note).remove_finished(
            [self._name(p) for p in done]
        )
        for plan in done:
            checkpoint.prune(self.folder.checkpoint_path(*plan.key), finished=True)

    @staticmethod
    def _name(plan: Plan) -> str:
        return run_id(*plan.key)


def ends(plan: Plan, stage: FinishedStage) -> bool:
    """Whether a run is through with a stage: it was the last one, or it diverged."""
    return stage.stage == len(plan.run.stream) - 1 or stage.learner.diverged >= 0


def with_models(done: Sequence[Done]) -> list[tuple[Plan, FinishedStage]]:
    """Finished runs of which a model is kept: not of hundreds that trained together."""
    if len(done) > ALONE:
        return []
    return [
        (plan, stage) for plan, stage, _ in done
        if ends(plan, stage) and stage.learner.diverged < 0 and plan.keep != "counts"
    ]  # fmt: skip


def _made_anew(plan: Plan) -> tuple[str, ...]:
    """What the next task does not take over, so that it need not be kept between tasks."""
    return ("free", "opt") if plan.run.training.optim_reset else ("free",)
