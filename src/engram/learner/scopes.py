"""Which classes compete in training for a row."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.errors import choose

SCOPES = ("seen", "own", "then", "current", "all")


def competing(scope: str, opened: Tensor, visible: Tensor, now: int) -> Tensor:
    """[T, C] the classes that compete in training for a row of each task.

    ``seen`` all opened classes, ``own`` the classes of the row's task, ``then`` those open at the
    row's task, ``current`` the task's own classes for rows of the current task and all opened ones
    for memory rows, ``all`` every column.
    """
    choose("scope", scope, SCOPES)
    seen = (opened >= 0).expand_as(visible)
    stages = torch.arange(len(visible), device=opened.device)[:, None]
    if scope == "seen":
        return seen
    if scope == "own":
        return visible
    if scope == "then":
        return seen & (opened <= stages)
    if scope == "current":
        return torch.where(stages == now, visible, seen)
    return torch.ones_like(visible)
