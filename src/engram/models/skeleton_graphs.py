"""Skeleton graphs: joints, bones, and the adjacency matrices of graph networks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.data.skeletons import skeleton_data as known
from engram.data.skeletons.skeleton_data import adjacency
from engram.errors import bad, unknown

__all__ = [
    "Pairs",
    "SKELETONS",
    "WithConstants",
    "adjacency",
    "bones",
    "bidirectional_edges",
    "partitions",
]

Pairs = Sequence[tuple[int, int]]

# (child, parent), joints counted from 1, as a user would give them
SKELETONS: dict[str, known.Edges] = {
    name: tuple((child + 1, parent + 1) for child, parent in pairs)
    for name, pairs in (("ucla", known.UCLA_BONES), ("ntu", known.NTU_BONES))
}


def bones(edges: str | Pairs | None, joints: int) -> list[tuple[int, int]]:
    """(child, parent) pairs counted from 0, checked against the number of joints.

    None takes the skeleton with that many joints, 20 or 25.

    Examples
    --------
    >>> bones([(1, 2), (3, 2)], joints=3)
    [(0, 1), (2, 1)]
    >>> bones(None, joints=20) == bones("ucla", joints=20)
    True
    """
    if isinstance(edges, str):
        if edges not in SKELETONS:
            raise unknown("edges", edges, SKELETONS)
        if len(SKELETONS[edges]) + 1 != joints:  # a tree
            expected = f"the skeleton of samples with {joints} joints"
            raise bad("edges", expected, f"{edges}, which has {len(SKELETONS[edges]) + 1}")
        edges = SKELETONS[edges]
    if edges is None and joints in known.BONES_BY_JOINTS:
        return list(known.bones(joints))
    if edges is None or not len(edges):
        names = ", ".join(map(repr, SKELETONS))
        raise bad("edges", f"{names} or (child, parent) pairs of joints counted from 1", edges)
    found: set[frozenset[int]] = set()
    pairs = []
    for edge in edges:
        try:
            pair = tuple(operator.index(joint) for joint in edge)
        except TypeError:
            raise bad("edges", "(child, parent) pairs of whole numbers", edge) from None
        inside = all(1 <= joint <= joints for joint in pair)
        if len(pair) != 2 or not inside or pair[0] == pair[1] or frozenset(pair) in found:
            expected = f"each pair once, of two different joints in 1..{joints}"
            raise bad("edges", expected, tuple(edge))
        found.add(frozenset(pair))
        pairs.append((pair[0] - 1, pair[1] - 1))
    return pairs


def bidirectional_edges(pairs: Pairs) -> Tensor:
    """[2, E] (source, target) of every bone in both directions."""
    return torch.tensor([*pairs, *((b, a) for a, b in pairs)]).T.contiguous()


def partitions(pairs: Pairs, joints: int) -> Tensor:
    """[3, V, V] matrices A[p, source, target]: itself, inward (children), outward (parent).

    A joint hears the mean of the joints of each partition, so columns sum to 1 or 0.
    """
    child, parent = torch.tensor(list(pairs)).T
    matrices = torch.zeros(3, joints, joints)
    matrices[0] = torch.eye(joints)
    matrices[1, child, parent] = 1.0
    matrices[2, parent, child] = 1.0
    return matrices / matrices.sum(1, keepdim=True).clamp(min=1)


class WithConstants(nn.Module):
    """A module with tensors that follow it to a device but are neither weights nor run state.

    Buffers would do the first, too, but belong to a run and would be copied once per run.
    """

    constants: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self.constants:
            setattr(self, name, fn(getattr(self, name)))
        return self
