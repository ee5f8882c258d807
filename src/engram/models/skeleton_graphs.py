"""Skeleton graphs: joints, bones, and the adjacency matrices of graph networks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.data.skeletons import skeleton_data as known
from engram.data.skeletons.skeleton_data import adjacency
from engram.errors import bad, check_choice, unknown

__all__ = [
    "AGGREGATIONS",
    "Pairs",
    "SKELETONS",
    "WithConstants",
    "adjacency",
    "bones",
    "bidirectional_edges",
    "check_stretch",
    "neighbour_weights",
    "partitions",
    "stretch_axes",
]

AGGREGATIONS = ("sum", "symmetric")

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


def neighbour_weights(pairs: Pairs, joints: int, aggregation: str = "sum") -> Tensor:
    """[V, V] what a joint hears of each joint.

    ``sum``: 1 of each neighbour, nothing of itself; ``symmetric``: D^-1/2 (A + I) D^-1/2 with the
    degrees D of A + I (Kipf and Welling 2017).

    Examples
    --------
    >>> neighbour_weights([(0, 1)], 2)
    tensor([[0., 1.],
            [1., 0.]])
    >>> neighbour_weights([(0, 1)], 2, "symmetric")
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    matrix = adjacency(pairs, joints)
    if check_choice("aggregation", aggregation, AGGREGATIONS) == "sum":
        return matrix
    matrix = matrix + torch.eye(joints)
    root = matrix.sum(1).rsqrt()
    return root[:, None] * matrix * root


def check_stretch(stretch: bool, sample_shape: tuple[int, ...]) -> bool:
    """The option of the networks, for samples that have x, y and z of every body."""
    if stretch and sample_shape[0] % 3:
        raise bad("stretch", "False, or samples with 3 channels per body", sample_shape)
    return bool(stretch)


def stretch_axes(x: Tensor) -> Tensor:
    """Stretch x, y and z of each sample [B, C, T, V(, M)] to [-1, 1]; an axis without extent is 0.

    As `engram.data.skeletons.skeleton_data.normalise` does to sequences as they are stored.

    Examples
    --------
    >>> stretch_axes(torch.tensor([0.0, 1.0, 4.0]).reshape(1, 1, 3, 1).repeat(1, 3, 1, 1))[
    ...     0, 0, :, 0
    ... ]
    tensor([-1.0000, -0.5000,  1.0000])
    """
    bodies = x.unflatten(1, (-1, 3))  # [B, bodies, 3, T, V(, M)]
    others = [1, *range(3, bodies.ndim)]
    low, high = bodies.amin(others, keepdim=True), bodies.amax(others, keepdim=True)
    extent = torch.where(high > low, high - low, 1.0)
    found = torch.where(high > low, (bodies - low) / extent * 2 - 1, 0.0)
    return found.flatten(1, 2)


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
