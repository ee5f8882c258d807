"""Training objectives (cross-entropy, class-balanced, binary), and training scopes: which classes
compete for a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engram.errors import bad, check_choice
from engram.learner.batch import Batch
from engram.losses import balanced_ce, bce_rows, masked_ce, mean, multi_hot


def cross_entropy(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Softmax cross-entropy over the open classes."""
    return masked_ce(logits, batch.target, batch.open, batch.w, smoothing)


def class_balanced(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy in which all classes of the batch have equal weight."""
    return balanced_ce(logits, batch.target, batch.open, batch.w, smoothing)


def binary(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Binary cross-entropy per open class, for multi-label streams."""
    targets = multi_hot(batch.y, logits.shape[-1], logits.dtype)
    if smoothing:  # the two outcomes of a class compete
        targets = targets * (1 - smoothing) + smoothing / 2
    return mean(bce_rows(logits, targets, batch.open), batch.w)


OBJECTIVES: dict[str, Callable[[Tensor, Batch, float], Tensor]] = {
    "ce": cross_entropy,
    "balanced": class_balanced,
    "bce": binary,
}


class Objective:
    """The training loss of a run, as a function of logits [B, C] and a batch.

    Parameters
    ----------
    name
        ``ce``, ``balanced`` or ``bce``.
    label_smoothing
        Share of each target that is spread evenly over the classes that compete.
    """

    def __init__(self, name: str = "ce", label_smoothing: float = 0.0) -> None:
        self.name, self.label_smoothing = check_choice("loss", name, OBJECTIVES), label_smoothing
        self.was_called = False

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        self.was_called = True
        return OBJECTIVES[self.name](logits, batch, self.label_smoothing)

    def check_called(self, method: str) -> None:
        """Raise if labels should be smoothed, but the method's loss has not used this objective."""
        if self.label_smoothing and not self.was_called:
            expected = f"0, because the loss of {method} is its own and smooths no labels"
            raise bad("label_smoothing", expected, self.label_smoothing)


# -- training scopes -------------------------------------------------------------------------------

SCOPES = ("seen", "own", "at_time", "current", "all")
EVEN_SCOPES = ("seen", "all")  # in which the same classes compete for every row


def competing_classes(scope: str, opened: Tensor, visible: Tensor, now: int) -> Tensor:
    """Return the mask [T, C] of the classes that compete in training for a row of each task.

    Scopes: ``seen``: all classes opened so far; ``own``: the classes of the row's task;
    ``at_time``: the classes open at the time of the row's task; ``current``: the task's own classes
    for rows of the current task, and all opened ones for memory rows; ``all``: every output column.
    """
    check_choice("scope", scope, SCOPES)
    seen = (opened >= 0).expand_as(visible)
    stages = torch.arange(len(visible), device=opened.device)[:, None]
    if scope == "seen":
        return seen
    if scope == "own":
        return visible
    if scope == "at_time":
        return seen & (opened <= stages)
    if scope == "current":
        return torch.where(stages == now, visible, seen)
    return torch.ones_like(visible)
