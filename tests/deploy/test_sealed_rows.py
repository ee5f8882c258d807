"""Rows in files that only a key opens, and the card that says which rows a model holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from engram import Learner, ModelStore
from engram.cli import app
from engram.errors import BadArgument, EngramError
from engram.experiments import sealed_rows
from engram.experiments.model_file import is_sealed
from tests.deploy.conftest import FAST, MODEL, world

KEY, OTHER = "a key of some length", "another key of some length"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sealed_rows, "_COST", {"n": 16, "r": 8, "p": 1})
    monkeypatch.delenv("ENGRAM_KEY", raising=False)


@pytest.fixture(scope="module")
def rows():
    x, y, test = world(4, rows=40)
    return x, y, test


@pytest.fixture(scope="module")
def learner(rows):
    x, y, _ = rows
    learner = Learner("DERpp", MODEL, calibration=10, **FAST)
    return learner.learn(x[y < 2], y[y < 2]).learn(x[y >= 2], y[y >= 2])


def holds(path, x):
    """Whether the bytes of any row are in a file."""
    content = path.read_bytes()
    return any(row.tobytes() in content for row in x)


def test_the_card_says_which_rows_are_held(learner, rows, tmp_path):
    x, y, _ = rows
    kept = len(learner._portable.tensors["rows/x"])
    card = learner.card()
    assert f"- Raw rows held: {kept} rows of the memory and 40 calibration rows" in card
    assert "- Encrypted: no" in card
    assert "logits (beside exemplars)" in card
    bare = Learner("SLDA", MODEL, **FAST).learn(x, y)
    assert "- Raw rows held: none\n" in bare.card()
    assert "mean (by the method)" in bare.card()
    bare.forget(classes=[1])
    assert bare.card().endswith("- Forgotten: 1")
    path, out = learner.save(tmp_path / "m.engram"), tmp_path / "card.md"
    told = CliRunner().invoke(app, ["card", str(path), "--out", str(out)])
    assert told.exit_code == 0
    assert out.read_text() == card + "\n"


def test_keys_are_checked(learner, tmp_path, monkeypatch):
    with pytest.raises(BadArgument, match="key: expected a text of at least 8 characters"):
        learner.copy().save(tmp_path / "m.engram", key="short")
    monkeypatch.setenv("ENGRAM_KEY", "short")
    with pytest.raises(BadArgument, match="at least 8"):
        Learner.load(learner.save(tmp_path / "m.engram"))


def test_rows_are_encrypted_and_only_the_key_opens_them(learner, rows, tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    x, y, test = rows
    plain = learner.save(tmp_path / "plain.engram")
    sealed = learner.copy().save(tmp_path / "sealed.engram", key=KEY)
    assert holds(plain, x)
    assert not holds(sealed, x)
    assert (is_sealed(plain), is_sealed(sealed)) == (False, True)
    opened = Learner.load(sealed, device="cpu", key=KEY)
    for name, tensor in learner._portable.tensors.items():
        assert torch.equal(opened._portable.tensors[name], tensor)
    with pytest.raises(EngramError, match="the key does not open its rows"):
        Learner.load(sealed, key=OTHER)
    locked = Learner.load(sealed, device="cpu")
    assert (locked.predict_proba(test) == learner.predict_proba(test)).all()
    assert "none that can be read: they are encrypted" in locked.card()
    with pytest.raises(BadArgument, match="they are encrypted"):
        locked.learn(x, y)
    with pytest.raises(EngramError, match="rows would be lost"):
        locked.save(tmp_path / "lost.engram")
    monkeypatch.setenv("ENGRAM_KEY", KEY)
    again = Learner.load(sealed, device="cpu").learn(x[y == 0] + 1, y[y == 0])
    assert not holds(again.save(tmp_path / "again.engram"), x)  # without naming the key
    assert "- Encrypted: yes" in Learner.load(tmp_path / "again.engram").card()
    content = bytearray(sealed.read_bytes())
    content[-20] ^= 1
    sealed.write_bytes(content)
    with pytest.raises(EngramError, match="damaged"):
        Learner.load(sealed)


def test_a_store_encrypts_what_it_sets_aside(learner, rows, tmp_path):
    pytest.importorskip("cryptography")
    x, y, test = rows
    folder = tmp_path / "store"
    store = ModelStore.create(folder, learner, key=KEY, gate=None)
    assert store.learn(x + 1, y).accepted
    store._write_state(gate={})
    refused = store.learn(x + 2, np.roll(y, 7))
    assert not refused.accepted
    for path in folder.glob("*/*"):
        assert not holds(path, np.concatenate([x, x + 1, x + 2]))
    assert store.refused_rows(3)[1].tolist() == np.roll(y, 7).tolist()
    locked = ModelStore(folder, device="cpu")
    assert (locked.learner.predict(test) == store.learner.predict(test)).all()
    for change in (lambda: locked.rollback(1), lambda: locked.refused_rows(3)):
        with pytest.raises(EngramError, match="they are encrypted"):
            change()
    other = ModelStore(folder, device="cpu", key=KEY)
    other.forget(rows=x[:5] + 1)
    assert other.current.how == "forgot"
    assert learner._key is None


def test_a_store_of_the_command_line(learner, rows, tmp_path, monkeypatch):
    model, asked = learner.save(tmp_path / "m.engram"), ["store", str(tmp_path / "m.engram")]
    told = CliRunner().invoke(app, [*asked, str(tmp_path / "a"), "--encrypt"])
    assert told.exit_code == 2
    assert not (tmp_path / "a").exists()
    pytest.importorskip("cryptography")
    monkeypatch.setenv("ENGRAM_KEY", KEY)
    told = CliRunner().invoke(app, [*asked, str(tmp_path / "a"), "--encrypt"])
    assert told.exit_code == 0, told.output
    assert not holds(tmp_path / "a/versions/000001.engram", rows[0])
    assert holds(model, rows[0])
