"""Loss functions shared by methods: weighted means, masked cross-entropy, distillation.

All are pure functions of tensors and can be mapped over runs. A row weight of 0 marks padding, so
every mean is ``sum(w * l) / sum(w)``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import maybe_current_level

CLOSED_LOGIT = -1e9  # logit of a class that does not compete: no probability, no gradient


def mean(values: Tensor, w: Tensor) -> Tensor:
    """Compute the weighted mean over rows; 0 if every row is padding.

    Examples
    --------
    >>> mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 0.0])).item()
    2.0
    """
    return (w * values).sum() / w.sum().clamp(min=1e-12)


def ce_rows(logits: Tensor, target: Tensor, open_: Tensor, smoothing: float = 0.0) -> Tensor:
    """Compute the cross-entropy [B] of each row over the classes that compete for it.

    `smoothing` is the share of each target that is spread evenly over these classes.

    Examples
    --------
    >>> logits, open_ = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> ce_rows(logits, torch.tensor([1]), open_).round(decimals=3)  # -log p of the target
    tensor([0.1270])
    >>> ce_rows(logits, torch.tensor([1]), open_, smoothing=0.2).round(decimals=3)
    tensor([0.3270])
    """
    masked = logits.masked_fill(~open_, CLOSED_LOGIT)
    target_loss = _target_losses(masked, target)
    if not smoothing:
        return target_loss
    log_p = torch.where(open_, masked.log_softmax(-1), 0.0)
    even = -log_p.sum(-1) / open_.sum(-1).clamp(min=1)
    return (1 - smoothing) * target_loss + smoothing * even


def _target_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy [B] of each row, to the same bits alone and mapped.

    Mapped, torch's own function is replaced by rules in Python, which take a tenth of a small step
    and import sympy.
    """
    if maybe_current_level() is None or _len_torch_dispatch_stack():  # alone, or traced
        return F.cross_entropy(logits, target, reduction="none")
    return -logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


def masked_ce(
    logits: Tensor, target: Tensor, open_: Tensor, w: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Compute the mean cross-entropy over the open classes.

    Examples
    --------
    >>> logits, open_ = torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> round(masked_ce(logits, torch.tensor([0]), open_, torch.ones(1)).item(), 6)
    0.693147
    """
    return mean(ce_rows(logits, target, open_, smoothing), w)


def balanced_ce(
    logits: Tensor, target: Tensor, open_: Tensor, w: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Compute the cross-entropy averaged within each class and then over classes.

    Examples
    --------
    >>> rows = torch.tensor([0.2, 0.4, 0.9])  # losses of two rows of class 0, one of class 1
    >>> weights = balancing_weights(torch.tensor([0, 0, 1]), torch.ones(3), 2)
    >>> round(mean(rows, weights).item(), 6)
    0.6
    """
    weights = balancing_weights(target, w, logits.shape[-1])
    return mean(ce_rows(logits, target, open_, smoothing), weights)


def balancing_weights(target: Tensor, w: Tensor, classes: int) -> Tensor:
    """Compute row weights [B] that give all classes of the batch equal total weight."""
    member = (target[:, None] == torch.arange(classes, device=target.device)).to(w.dtype)  # [B, C]
    count = (member * w[:, None]).sum(0)  # [C]
    return w / (member @ count).clamp(min=1e-12)


def multi_hot(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Encode labels [B, L], padded with -1, as [B, C] zeros and ones."""
    return (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).any(-2).to(dtype)


def bce_rows(logits: Tensor, targets: Tensor, open_: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the binary cross-entropy [B] of each row, mean or sum over the open classes."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * open_
    total = each.sum(-1)
    return total / open_.sum(-1).clamp(min=1) if reduction == "mean" else total


def distill_rows(
    student: Tensor,
    teacher: Tensor,
    classes: Tensor,
    *,
    temperature: float | Tensor = 2.0,
    scale: bool = False,
    form: str = "ce",
    new_classes: Tensor | None = None,
) -> Tensor:
    """Compute the distillation loss [B] of each row over `classes` [C] or [B, C].

    The student's softmax is over the same classes or, if given, over `new_classes` too, where the
    teacher's probability is 0. ``form="kl"`` subtracts the teacher's entropy; `scale` multiplies by
    the squared temperature.

    Examples
    --------
    >>> new, old = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]])
    >>> round(distill_rows(new, old, torch.tensor([True, True])).item(), 6)
    0.693147
    """
    among = classes if new_classes is None else classes | new_classes
    log_p = (student / temperature).masked_fill(~among, CLOSED_LOGIT).log_softmax(-1)
    log_q = (teacher / temperature).masked_fill(~classes, CLOSED_LOGIT).log_softmax(-1)
    q = log_q.exp()
    cross = -(q * torch.where(classes, log_p, 0.0)).sum(-1)
    if form == "kl":
        cross = cross + (q * torch.where(classes, log_q, 0.0)).sum(-1)
    return cross * temperature**2 if scale else cross
