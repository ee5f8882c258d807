"""Training objectives (cross-entropy, class-balanced, binary), and training scopes: which classes
compete for a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engram.errors import check_choice
from engram.learner.batch import Batch
from engram.losses import balanced_ce, bce_rows, masked_ce, mean, multi_hot


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Softmax cross-entropy over the open classes."""
    return masked_ce(logits, batch.target, batch.open, batch.w)


def class_balanced(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy in which all classes of the batch have equal weight."""
    return balanced_ce(logits, batch.target, batch.open, batch.w)


def binary(logits: Tensor, batch: Batch) -> Tensor:
    """Binary cross-entropy per open class, for multi-label streams."""
    targets = multi_hot(batch.y, logits.shape[-1], logits.dtype)
    return mean(bce_rows(logits, targets, batch.open), batch.w)


OBJECTIVES: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "ce": cross_entropy,
    "balanced": class_balanced,
    "bce": binary,
}


# -- training scopes -------------------------------------------------------------------------------

SCOPES = ("seen", "own", "at_time", "current", "all")


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
