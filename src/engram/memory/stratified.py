"""Uniform choice in which every class has its share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.memory.groups import by_class, first_label
from engram.memory.random import group_key, random_orders
from engram.memory.source import Source


@dataclass(frozen=True)
class Stratified:
    """Of every beginning of the ranking, each class of the group has its share, up to rounding.

    It differs from a uniform choice where a group is a whole task: that may pass over a rare class.
    """

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        places = torch.arange(len(rows))
        groups = by_class(places, first_label(learner.labels(rows))[:, None])
        keys = [group_key(learner, group.column) for group in groups]
        orders = random_orders(keys, [len(group.rows) for group in groups])
        chosen = [group.rows[order] for group, order in zip(groups, orders, strict=True)]
        # the i-th of n rows stands where (i + 1/2) / n of its class has passed
        shares = [(torch.arange(len(one)) + 0.5) / len(one) for one in chosen]
        if not chosen:
            return places
        return torch.cat(chosen)[torch.cat(shares).argsort(stable=True)][:count]
