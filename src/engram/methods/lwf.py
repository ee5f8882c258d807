"""Learning without forgetting: distillation of the old network on inputs of the new task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_choice, check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import bce_rows, distill_rows, mean
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task

CHOICES = {
    "blocks": ("auto", "joint", "per_task"),
    "weighting": ("lambda", "task_count"),
    "ce_scope": ("scope", "new"),
    "kd_new_classes": ("slice", "zero_pad"),
    "form": ("ce", "kl", "sigmoid"),
}


def distill_blocks(
    student: Tensor, teacher: Tensor, blocks: Tensor, w: Tensor, **options: Any
) -> Tensor:
    """Compute the distillation loss [K] within each block of classes [K, C], averaged over rows.

    Options are those of `engram.losses.distill_rows`; ``form="sigmoid"`` is binary cross-entropy,
    averaged over classes, instead of a softmax. The loss of a block without classes is 0.

    Examples
    --------
    >>> student, teacher = torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[2.0, 0.0, 3.0]])
    >>> blocks = torch.tensor([[True, True, False], [False, False, True]])
    >>> costs = distill_blocks(student, teacher, blocks, torch.ones(1))
    >>> [round(cost, 6) for cost in costs.tolist()]
    [0.693147, 0.0]
    """
    shape = (len(student), *blocks.shape)  # [B, K, C]
    new, old = student[:, None].expand(shape), teacher[:, None].expand(shape)
    if options.get("form") == "sigmoid":
        temperature = options.get("temperature", 2.0)
        rows = bce_rows(new / temperature, (old / temperature).sigmoid(), blocks)  # [B, K]
        rows = rows * temperature**2 if options.get("scale") else rows
    else:
        rows = distill_rows(new, old, blocks, **options)
    return (w[:, None] * rows).sum(0) / w.sum().clamp(min=1e-12)


@dataclass(frozen=True, kw_only=True)
class LwF(Method):
    """Distil the old classes' outputs on new inputs: ``task + strength * distillation``.

    The distillation is ``-sum_c q_c log p_c`` with q, p the softmax of the old and the present
    logits divided by the temperature, over classes opened before the task. The old network is in
    eval mode and is kept only during the task.

    Parameters
    ----------
    strength
        Weight of the distillation. ConFER, CND: 1; CGL: 1 on NW-UCLA, 0.1 on NTU.
    temperature
        T of the distillation.
    scale
        Multiply the distillation by T squared (ConFER; not CND, CGL).
    blocks
        ``joint``: one softmax over all old classes; ``per_task``: one per old task, summed (CGL);
        ``auto``: per task where rows compete within their own task (multi-head), joint otherwise.
    weighting
        ``lambda``: ``task + strength * distillation`` (paper); ``task_count``: ``task / t + (1 -
        1/t) * strength * distillation`` at task t, the distillation averaged over the blocks
        (ConFER's base code).
    ce_scope
        Classes of the task term: the training ``scope``, or the current task's ``new`` ones only
        (CGLB).
    kd_new_classes
        The student's softmax covers the old classes (``slice``), or the new ones as well, with
        probability 0 as their target (``zero_pad``, ConFER's base code).
    form
        ``ce``; ``kl``: the same gradient, the loss reduced by the teacher's entropy; ``sigmoid``:
        binary, averaged over the old classes, required for streams whose rows carry sets of labels.

    Notes
    -----
    Li and Hoiem 2016 (ECCV). A softmax cannot represent sets of labels: streams that have them are
    refused unless the form is ``sigmoid``.

    Examples
    --------
    >>> LwF(strength=-1.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: strength: expected a number of at least 0, got -1.0
    """

    for_label_sets: ClassVar[str] = "form=sigmoid"

    strength: PerRun = 1.0
    temperature: PerRun = 2.0
    scale: bool = False
    blocks: str = "auto"
    weighting: str = "lambda"
    ce_scope: str = "scope"
    kd_new_classes: str = "slice"
    form: str = "ce"

    def __post_init__(self) -> None:
        check_float("strength", self.strength)
        check_float("temperature", self.temperature, open_low=True)
        for name, valid in CHOICES.items():
            check_choice(name, getattr(self, name), valid)
        if self.form == "sigmoid" and self.kd_new_classes != "slice":
            raise bad("kd_new_classes", "'slice' where the form is sigmoid", self.kd_new_classes)

    @property
    def decides(self) -> tuple[str, ...]:
        return ARGMAX_OR_THRESHOLD if self.form == "sigmoid" else ("argmax",)

    def start(self, learner: RunLearner, task: Task) -> None:
        if self.ce_scope == "new":
            _need_new_classes(learner)
        if learner.stage == 0:
            return
        per_task = self.blocks == "per_task" or (self.blocks == "auto" and learner.scope == "own")
        stages = torch.arange(learner.stage)[:, None]
        blocks = learner.opened == stages if per_task else learner.known[None]  # [K, C]
        learner.state = {"teacher": learner.snapshot(), "blocks": blocks.to(learner.device)}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = net(batch.x, batch.w).logits
        task = net.task(self._scoped(batch))
        if "teacher" not in state:
            return {"task": task}
        costs = distill_blocks(
            logits, net.frozen(state["teacher"])(batch.x).logits, state["blocks"], batch.w,
            temperature=self.temperature, scale=self.scale, form=self.form,
            new_classes=batch.new if self.kd_new_classes == "zero_pad" else None,
        )  # fmt: skip
        if self.weighting == "lambda":
            return {"task": task, "distill": self.strength * costs.sum()}
        filled = state["blocks"].any(-1).to(costs.dtype)
        share = 1 / (batch.now + 1).to(task.dtype)
        return {
            "task": share * task,
            "distill": (1 - share) * self.strength * mean(costs, filled),
        }

    def _scoped(self, batch: Batch) -> Batch:
        if self.ce_scope == "scope":
            return batch
        old = batch.old[:, None] > 0  # memory rows of a joined method keep their scope
        return batch._replace(open=batch.open & (batch.new | old))

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}


def _need_new_classes(learner: RunLearner) -> None:
    """Raise if a task shows old classes: no class would compete for their rows."""
    stream = learner.stream
    stages = torch.arange(len(stream))[:, None]
    if bool((stream.visible & (stream.opening != stages)).any()):
        expected = "'scope', because some task of the stream shows classes that are not new there"
        raise bad("ce_scope", expected, "new")
