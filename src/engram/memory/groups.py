"""Groups that share a quota: one per class of a task, or the whole task."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engram.errors import bad
from engram.memory.exemplars import Exemplars
from engram.memory.source import Ranking, Source


class Group(NamedTuple):
    """Rows that compete for the same quota."""

    column: int  # output column, -1 for a whole task
    rows: Tensor  # [n]


def first_label(labels: Tensor) -> Tensor:
    """[n] the first entry of each row [n, L] that is no padding, -1 where there is none.

    Examples
    --------
    >>> first_label(torch.tensor([[-1, 4], [2, 3], [-1, -1]])).tolist()
    [4, 2, -1]
    """
    if labels.shape[-1] == 1:
        return labels[:, 0]
    first = (labels >= 0).to(torch.uint8).argmax(-1, keepdim=True)
    return labels.gather(-1, first)[:, 0]


def by_class(rows: Tensor, labels: Tensor) -> list[Group]:
    """One group per visible class, in order of columns; a row with two labels is in two groups."""
    flat = labels.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat + 1).tolist()  # the first entry counts the padding
    spread = rows[order // labels.shape[-1]].split(counts)
    pairs = zip(counts[1:], spread[1:], strict=True)
    return [Group(column, part) for column, (count, part) in enumerate(pairs) if count]


def items(learner: Source, group: Group, order: Tensor) -> Exemplars:
    """The rows at the places `order` of a group, as items of the current task."""
    rows = group.rows[order]
    stages = torch.full_like(rows, learner.stage)
    ranks = torch.arange(len(rows))
    if group.column >= 0:
        columns = torch.full_like(rows, group.column)
    else:
        columns = first_label(learner.labels(rows)) if len(rows) else rows
    return Exemplars(rows, stages, columns, ranks)


def checked(ranking: Ranking) -> Ranking:
    """A ranking of the user's own, whose answers are looked at before they are used."""
    name = getattr(ranking, "__qualname__", type(ranking).__name__)

    def rank(learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        order = torch.as_tensor(ranking(learner, rows, column, count)).cpu()
        if order.dim() != 1 or order.is_floating_point() or order.dtype == torch.bool:
            raise bad(f"policy {name}", "a vector of whole numbers, best row first", order)
        order = order[:count].long()
        inside = bool(((order >= 0) & (order < len(rows))).all())
        if len(order) < count or not inside or len(order.unique()) < len(order):
            expected = f"{count} different places below {len(rows)} (output column {column})"
            raise bad(f"policy {name}", expected, order.tolist())
        return order

    return rank
