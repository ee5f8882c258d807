from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from engram.learner.batch import Batch
from engram.learner.tensor_tree import flatten, leaves, nbytes, pick, stack, tree_map, tree_shapes


class Pair(NamedTuple):
    a: torch.Tensor
    b: tuple[torch.Tensor, ...]


TREE = {"x": Pair(torch.zeros(2), (torch.ones(1), torch.arange(3))), "y": {}}


def test_named_tuples_stay_named():
    mapped = tree_map(lambda leaf: leaf + 1, TREE)
    assert isinstance(mapped["x"], Pair)
    assert mapped["x"].b[1].tolist() == [1, 2, 3]
    assert mapped["y"] == {}


def test_stack_and_pick_are_inverse():
    other = tree_map(lambda leaf: leaf + 1, TREE)
    both = stack([TREE, other])
    for index, tree in enumerate((TREE, other)):
        picked = pick(both, index)
        assert tree_shapes(picked) == tree_shapes(tree)
        assert all(torch.equal(a, b) for a, b in zip(leaves(picked), leaves(tree), strict=True))


def test_picked_leaves_are_views():
    both = stack([{"a": torch.zeros(2)}, {"a": torch.zeros(2)}])
    pick(both, 1)["a"].fill_(3)
    assert both["a"].tolist() == [[0, 0], [3, 3]]


def test_other_keys_do_not_stack():
    with pytest.raises(KeyError):
        stack([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}])


def test_bytes_and_paths():
    assert nbytes(TREE) == 2 * 4 + 4 + 3 * 8
    assert list(flatten(TREE)) == ["x/#0", "x/#1/#0", "x/#1/#1"]


def test_shapes_tell_structures_apart():
    assert tree_shapes({"a": torch.zeros(2)}) != tree_shapes({"a": torch.zeros(3)})
    assert tree_shapes({"a": torch.zeros(2)}) != tree_shapes({"b": torch.zeros(2)})
    assert tree_shapes({"a": torch.zeros(2)}) != tree_shapes({"a": torch.zeros(2).double()})


def test_a_batch_maps_into_its_memory():
    part = [torch.full((2,), float(i)) for i in range(10)]
    batch = Batch(*part, (Batch(*part),))
    doubled = batch.map(lambda leaf: 2 * leaf)
    assert doubled.memory[0].key.tolist() == [18, 18]
    assert doubled.x.tolist() == [0, 0]


def test_masks_of_a_batch():
    part = [torch.zeros(1)] * 7
    batch = Batch(*part, opened=torch.tensor([0, 1, 2, -1]), now=torch.tensor(1),
                  key=torch.tensor(0))  # fmt: skip
    assert batch.seen.tolist() == [True, True, True, False]
    assert batch.new.tolist() == [False, True, False, False]
    assert batch.known.tolist() == [True, False, False, False]
