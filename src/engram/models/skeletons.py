"""Skeleton graphs: joints, bones, and the matrices that graph networks multiply with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.errors import bad, unknown

Pairs = Sequence[tuple[int, int]]

# (child, parent), joints counted from 1
SKELETONS: dict[str, tuple[tuple[int, int], ...]] = {
    "ucla": (
        *((1, 2), (2, 3), (4, 3), (5, 3), (6, 5), (7, 6), (8, 7), (9, 3), (10, 9), (11, 10)),
        *((12, 11), (13, 1), (14, 13), (15, 14), (16, 15), (17, 1), (18, 17), (19, 18), (20, 19)),
    ),
    "ntu": (
        *((1, 2), (2, 21), (3, 21), (4, 3), (5, 21), (6, 5), (7, 6), (8, 7), (9, 21), (10, 9)),
        *((11, 10), (12, 11), (13, 1), (14, 13), (15, 14), (16, 15), (17, 1), (18, 17), (19, 18)),
        *((20, 19), (22, 23), (23, 8), (24, 25), (25, 12)),
    ),
}


def bones(edges: str | Pairs | None, joints: int) -> list[tuple[int, int]]:
    """(child, parent) pairs counted from 0, checked against the number of joints.

    Examples
    --------
    >>> bones([(1, 2), (3, 2)], joints=3)
    [(0, 1), (2, 1)]
    """
    if isinstance(edges, str):
        if edges not in SKELETONS:
            raise unknown("edges", edges, SKELETONS)
        edges = SKELETONS[edges]
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


def both_ways(pairs: Pairs) -> Tensor:
    """[2, E] (source, target) of every bone in both directions."""
    return torch.tensor([*pairs, *((b, a) for a, b in pairs)]).T.contiguous()


def adjacency(pairs: Pairs, joints: int) -> Tensor:
    """[V, V] matrix with A[target, source] = 1, no self loops, no normalisation.

    Examples
    --------
    >>> adjacency([(0, 1)], 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    source, target = both_ways(pairs)
    matrix = torch.zeros(joints, joints)
    matrix[target, source] = 1.0
    return matrix


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
