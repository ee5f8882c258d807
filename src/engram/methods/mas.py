"""Memory aware synapses: importances from the sensitivity of the outputs, without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_choice
from engram.learner.batch import Batch
from engram.learner.gradients import Term, Transform
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import mean
from engram.methods.fisher import check_group, shuffle_for_groups
from engram.methods.method import State
from engram.methods.quadratic_penalty import Anchored
from engram.per_run import PerRun
from engram.streams.stream import Task

IMPORTANCES = ("per_sample_abs", "batch_abs", "batch_sq")


def squared_norm(net: Net, batch: Batch) -> Tensor:
    """Compute the squared norm of the open logits, averaged over rows."""
    return mean((net(batch.x, batch.w).logits.square() * batch.open).sum(-1), batch.w)


def squared_mean(net: Net, batch: Batch) -> Tensor:
    """Compute the squared logit, averaged over rows and open outputs."""
    logits = net(batch.x, batch.w).logits
    rows = (logits.square() * batch.open).sum(-1) / batch.open.sum(-1).clamp(min=1)
    return mean(rows, batch.w)


def restrict_to_last_task(term: Term) -> Term:
    """Restrict a term to the classes of the previous task, given as labels by
    `last_task_classes`.
    """

    def restricted(net: Net, batch: Batch) -> Tensor:
        return term(net, batch._replace(open=batch.y >= 0))

    return restricted


def last_task_classes(learner: RunLearner) -> Tensor:
    """Return the classes of the previous task [n, C], each in its own column, -1 elsewhere.

    They need not have been new in it: tasks of a domain-incremental stream share classes.
    """
    last = learner.stream.visible[learner.stage - 1]
    columns = torch.where(last, torch.arange(len(last)), -1)
    return columns.expand(len(learner.task.train), -1)


@dataclass(frozen=True, kw_only=True)
class MAS(Anchored):
    """Penalise changes to parameters by how sensitive the norm of the output is to them.

    Omega_i += mean over rows of |d ||f(x)||^2 / d theta_i|, at the end of a task
    loss = task + strength * sum over parameters i of Omega_i (theta_i - theta*_i)^2

    f are the raw logits of the open classes.

    Parameters
    ----------
    strength
        Lambda. CGL: 100. A strength is meaningful for one form of `importance` only.
    importance
        ``per_sample_abs``: mean of absolute gradients of each row (paper); ``batch_abs``: absolute
        mean gradient of groups of rows, averaged over the outputs (CND's code); ``batch_sq``: the
        square of that mean gradient (CGLB).
    group
        Rows per group of the two batch forms: a number, or ``full``.
    batch_statistics
        Batch normalisation uses each group's own statistics (batch forms only, CGLB).
    accum
        ``sum`` over tasks; ``avg_by_count``: mean weighted by their rows (CGLB).
    half
        Multiply by strength / 2 (CND's code).
    data
        ``own``: the task's rows, at its end; ``new``: the next task's rows, at its start, through
        the outputs of the classes of the task before (CGLB).
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> MAS(strength=-1)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: strength: expected a number of at least 0, got -1

    References
    ----------
    Aljundi et al. 2018, European Conference on Computer Vision.
    """

    strength: PerRun = 1.0
    importance: str = "per_sample_abs"
    group: int | str = "full"
    batch_statistics: bool = False
    accum: str = "sum"
    half: bool = False
    data: str = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("importance", self.importance, IMPORTANCES)
        check_choice("accum", self.accum, ("sum", "avg_by_count"))
        check_choice("data", self.data, ("own", "new"))
        check_group(self.group)
        check_group(self._group, self.batch_statistics)

    @property
    def _group(self) -> int | str:
        return 1 if self.importance == "per_sample_abs" else self.group

    def factor(self) -> float | Tensor:
        return self.strength / 2 if self.half else self.strength

    def start(self, learner: RunLearner, task: Task) -> None:
        if self.data == "new" and learner.stage > 0:
            self._protect(learner, restrict_to_last_task, last_task_classes(learner))

    def finish(self, learner: RunLearner, task: Task) -> None:
        if self.data == "own":
            self._protect(learner, lambda term: term)
        self.store(learner, task)

    def _protect(
        self, learner: RunLearner, scope: Callable[[Term], Term], labels: Tensor | None = None
    ) -> None:
        """Add the importance of the current task's rows."""
        group = self._group
        term = squared_norm if self.importance == "per_sample_abs" else squared_mean
        transform: Transform = torch.square if self.importance == "batch_sq" else torch.abs
        rows = shuffle_for_groups(learner, learner.task.train, group)
        found = learner.average_gradient(
            scope(term), transform=transform, group=group, rows=rows,
            labels=labels, batch_statistics=self.batch_statistics,
        )  # fmt: skip
        state: State = {"anchor": learner.vector, "importance": found}
        old = learner.state.get("importance")
        if self.accum == "sum":
            if old is not None:
                state["importance"] = old + found
        else:
            seen = learner.state.get("rows", torch.zeros_like(found[0]))
            state["rows"] = seen + len(rows)
            if old is not None:
                state["importance"] = (old * seen + found * len(rows)) / state["rows"]
        learner.state = state
