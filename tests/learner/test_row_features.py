"""Features under weights that stand still, made once for each row."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import engram
from engram import methods
from engram.data.dataset import Data
from engram.learner import row_features
from engram.learner.feed import Feed
from engram.learner.row_features import RowFeatures
from engram.models import insertions

VIT = {"name": "vit", "patch": 4, "width": 16, "depth": 3, "heads": 2}


class Passes:
    """Doubles rows, and counts them."""

    def __init__(self):
        self.rows = 0

    def __call__(self, x):
        self.rows += len(x)
        return 2 * x


@pytest.fixture
def known():
    data = Data.from_arrays(torch.arange(24.0)[:, None], [0, 1, 2] * 8)
    return RowFeatures(Feed(data, device=torch.device("cpu")))


def test_a_class_is_passed_once_and_for_each_key(known):
    passes, x = Passes(), torch.tensor([[3.0], [0.0], [3.0]])
    for _ in range(3):
        assert known.find(x, "key", passes).tolist() == [[6.0], [0.0], [6.0]]
    once = passes.rows
    assert 2 <= once < 16  # those of class 0, on each side of the split that was asked for
    known.find(x, "another", passes)
    assert passes.rows == 2 * once


def test_other_rows_are_not_known(known):
    assert known.find(torch.tensor([[3.0], [3.5]]), "key", Passes()) is None
    assert known.find(torch.zeros(0, 1), "key", Passes()) is None


def test_what_was_made_first_gives_way(known, monkeypatch):
    monkeypatch.setattr(row_features, "MOST_KEPT_BYTES", 40)
    passes, x = Passes(), torch.arange(24.0)[:, None]
    found = known.find(x, "key", passes)
    assert torch.equal(found, 2 * x)
    assert known._bytes <= 40 + max(one.nbytes for one in known._made.values())
    known.find(x, "key", passes)
    assert passes.rows > 24


def test_another_process_makes_its_own(known):
    known.find(torch.zeros(1, 1), "key", Passes())
    twin = pickle.loads(pickle.dumps(known))
    assert twin.find(torch.ones(1, 1), "key", torch.neg).tolist() == [[-1.0]]


@pytest.mark.parametrize("name", ["L2P", "DualPrompt", "CODAPrompt", "EASE"])
def test_results_are_those_of_passes_made_anew(name, monkeypatch):
    stream = engram.class_incremental(engram.load("digits").limit(80), classes_per_task=5)
    options = {"method": getattr(methods, name)(), "model": VIT, "precision": "float64",
               "epochs": 2, "batch_size": 8, "device": "cpu"}  # fmt: skip
    passed = []
    whole = insertions._features

    def count(blocks, x, *rest):
        passed.append(len(x))
        return whole(blocks, x, *rest)

    monkeypatch.setattr(insertions, "_features", count)
    found = engram.run(stream, **options)
    fewer, passed[:] = sum(passed), []
    monkeypatch.setattr(RowFeatures, "find", lambda *_: None)
    anew = engram.run(stream, **options)
    assert fewer < sum(passed)
    np.testing.assert_array_equal(found.matrix, anew.matrix)
