"""Bones of the skeletons: which joints are joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engram.errors import bad

Edges = tuple[tuple[int, int], ...]


def _bones(text: str) -> Edges:
    """(child, parent) from the 1-based numbers of the sensors' manuals to row numbers."""
    pairs = (pair.split("-") for pair in text.split())
    return tuple((int(child) - 1, int(parent) - 1) for child, parent in pairs)


UCLA: Edges = _bones(
    "1-2 2-3 4-3 5-3 6-5 7-6 8-7 9-3 10-9 11-10 12-11 13-1 14-13 15-14 16-15 17-1 18-17 19-18 20-19"
)
NTU: Edges = _bones(
    "1-2 2-21 3-21 4-3 5-21 6-5 7-6 8-7 9-21 10-9 11-10 12-11 13-1 14-13 15-14 16-15 17-1 18-17 "
    "19-18 20-19 22-23 23-8 24-25 25-12"
)
BY_JOINTS = {20: UCLA, 25: NTU}


def bones(joints: int) -> Edges:
    """The (child, parent) pairs of a skeleton with that many joints, counted from 0.

    Examples
    --------
    >>> bones(20)[:3]
    ((0, 1), (1, 2), (3, 2))
    """
    if joints not in BY_JOINTS:
        raise bad("joints", f"one of {sorted(BY_JOINTS)}", joints)
    return BY_JOINTS[joints]


def adjacency(edges: Sequence[tuple[int, int]], joints: int) -> Tensor:
    """[V, V] symmetric 0/1 matrix without self loops, not normalised.

    Examples
    --------
    >>> adjacency(((0, 1),), 3).sum().item()
    2.0
    """
    out = torch.zeros(joints, joints)
    for child, parent in edges:
        out[child, parent] = out[parent, child] = 1.0
    return out


def distance(edges: Edges, start: int, end: int) -> int:
    """Number of bones on the shortest way between two joints, -1 if there is none.

    Examples
    --------
    >>> distance(UCLA, 7, 15)
    10
    """
    reached, frontier, steps = {start}, {start}, 0
    while frontier:
        if end in frontier:
            return steps
        ways = edges + tuple((b, a) for a, b in edges)
        frontier = {b for a, b in ways if a in frontier} - reached
        reached |= frontier
        steps += 1
    return -1
