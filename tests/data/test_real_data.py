"""Counts of real sets, for machines that have them."""

from __future__ import annotations

import os

import pytest
import torch

from engram.data import load, verify
from engram.data.catalogue import find_set, search_root
from engram.data.duplicates import find_repeats
from engram.streams import balance, class_incremental

needs_data = pytest.mark.skipif(
    not os.environ.get("ENGRAM_DATA"), reason="ENGRAM_DATA names no folder of data sets"
)


def real(name):
    root = search_root()
    if root is None or find_set(name, root) is None:
        pytest.skip(f"ENGRAM_DATA holds no {name}")
    return load(name)


@needs_data
def test_mnist():
    data = real("mnist")
    assert data.x.shape == (70000, 1, 28, 28)
    assert data.labels[data.train].bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.notes == ()
    assert all(check.good for check in verify("mnist"))


@needs_data
def test_cifar100():
    data = real("cifar100")
    assert data.sample_shape == (3, 32, 32)
    assert data.labels[data.test].bincount().tolist() == [100] * 100
    counts = data.labels[data.train].bincount()
    assert len(counts.unique()) == 1
    expected = f"training set has {int(counts[0])} of 500 rows per class"
    assert data.notes == (() if int(counts[0]) == 500 else (expected,))
    assert data.classes[0] == "apple"
    pairs = torch.stack([data.labels, data.attributes["coarse"]], 1).unique(dim=0)
    assert len(pairs) == 100  # every class lies in one group
    assert pairs[:, 1].bincount().tolist() == [5] * 20


@needs_data
def test_nw_ucla():
    data = real("nw_ucla")
    assert data.x.shape == (1484, 3, 52, 20)
    assert data.labels.bincount().tolist() == [150, 152, 141, 173, 148, 149, 142, 142, 145, 142]
    assert data.labels[data.test].bincount().tolist() == [15, 15, 14, 17, 14, 14, 14, 14, 14, 14]
    assert torch.equal(data.labels[data.valid].bincount(), data.labels[data.test].bincount())
    assert data.labels[data.train].bincount().tolist() == [
        120, 121, 112, 138, 118, 119, 113, 113, 116, 113,
    ]  # fmt: skip
    assert data.notes == (
        "2 sequences with fewer than 3 frames kept by repeating frames: "
        "a02_s09_e04_v02, a02_s09_e04_v03",
    )
    assert bool(data.x.isfinite().all())
    assert float(data.x.min()) == -1.0
    assert float(data.x.max()) == 1.0
    assert data.attributes["subject"].unique().tolist() == list(range(1, 11))
    assert len(load("nw_ucla", repair="drop")) == 1482


@needs_data
def test_nw_ucla_without_copies_in_two_parts():
    def shared(**options):
        data = load("nw_ucla", **options)
        known = {data.x[i].numpy().tobytes() for i in data.train.tolist()}
        found = sum(data.x[i].numpy().tobytes() in known for i in data.test.tolist())
        return found, len(data.train), len(data.test)

    assert shared() == (18, 1183, 145)
    assert shared(held="together") == (0, 1183, 145)
    assert shared(held="stored")[0] == 29


@needs_data
def test_nw_ucla_with_one_view_held_out():
    drawn = real("nw_ucla")
    data = load("nw_ucla", held="stored")
    count = [15, 15, 14, 17, 14, 14, 14, 14, 14, 14]
    assert data.labels[data.test].bincount().tolist() == count
    assert data.labels[data.valid].bincount().tolist() == count
    assert len(data.train) + len(data.valid) + len(data.test) == 1484
    view = data.attributes["view"]
    assert view[data.test].unique().tolist() == view[data.valid].unique().tolist() == [3]
    assert view[drawn.test].unique().tolist() == view[data.train].unique().tolist() == [1, 2, 3]


@needs_data
@pytest.mark.parametrize(
    "name, shape, classes",
    [("fer2013", (1, 48, 48), 7), ("multi_domain", (3, 64, 64), 86)],
)
def test_packed_pictures(name, shape, classes):
    data = real(name)
    assert data.sample_shape == shape
    assert data.n_classes == classes
    assert len(data.train)
    assert len(data.test)
    if name == "fer2013":
        assert len(find_repeats(data)) == 288  # of the test rows: the set has them in both parts
        made = balance(class_incremental(data, classes_per_task=1))
        assert [len(task.train) for task in made] == [7215] * 7  # as many as happy faces
    if name == "multi_domain":
        assert data.attribute_names["domain"][0] == "flowers"
