from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engram.data import datasets, load


def test_digits_are_the_real_ones_with_a_fixed_split():
    data = load("digits")
    assert data.x.dtype == torch.uint8
    assert (len(data.train), len(data.test)) == (1442, 355)
    assert int(data.x.max()) == 255
    assert data.labels[:5].tolist() == [0, 1, 2, 3, 4]
    assert data.fingerprint() == load("digits").fingerprint()
    share = data.labels[data.test].bincount() / data.labels.bincount()
    assert ((share - 0.2).abs() < 0.01).all()


def test_blobs_follow_their_options():
    data = load("blobs", classes=3, per_class=20, features=5, seed=1)
    assert data.x.shape == (60, 5)
    assert data.labels[data.train].bincount().tolist() == [16, 16, 16]
    assert (
        data.fingerprint()
        == load("blobs", classes=3, per_class=20, features=5, seed=1).fingerprint()
    )
    assert data.fingerprint() != load("blobs", classes=3, per_class=20, features=5).fingerprint()
    tight = load("blobs", classes=3, per_class=20, features=5, spread=0.0)
    assert len(tight.x.unique(dim=0)) == 3
    for option in ({"classes": 0}, {"per_class": 2}, {"features": 0}, {"spread": -1.0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            load("blobs", **option)


def test_listing_names_every_known_set(monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    found = {one.name: one for one in datasets()}
    assert {"digits", "blobs", "skeletons", "mnist", "cifar100", "nw_ucla", "ntu60"} <= set(found)
    assert found["digits"].available
    assert not found["mnist"].available
    assert all(one.summary for one in found.values())


def test_importing_the_package_stays_light():
    heavy = ("sklearn", "PIL", "scipy", "torch_geometric")
    code = f"import sys, engram.data; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
