"""The training objective as a setting of the run, so that no method knows the scenario."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engram.learner.batch import Batch
from engram.losses import balanced_ce, bce_rows, masked_ce, mean, multi_hot


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Softmax cross-entropy over the open classes."""
    return masked_ce(logits, batch.target, batch.open, batch.w)


def class_balanced(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy with every class of the batch counting equally."""
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
