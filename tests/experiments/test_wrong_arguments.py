"""What `engram.run` says of arguments of wrong types: which one, what it wants, what came."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import engram
from engram.errors import BadArgument

TORCH = TensorDataset(torch.zeros(8, 3))
X, Y = np.zeros((8, 3), np.float32), np.arange(8) % 2


def said(stream, **options) -> str:
    with pytest.raises(BadArgument) as error:
        engram.run(stream, **options)
    return str(error.value)


@pytest.fixture(scope="module")
def stream():
    return engram.class_incremental(engram.load("blobs"), classes_per_task=5)


@pytest.mark.parametrize("out", ["", 3, True, b"runs"])
def test_out_is_the_path_of_a_folder(stream, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said(stream, out=out) == f"out: expected the path of a folder, got {out!r}"
    assert not list(tmp_path.iterdir())  # an empty path is not the working directory


@pytest.mark.parametrize("name", ["together", "compile", "deterministic", "exact", "rerun"])
@pytest.mark.parametrize("value", ["no", 1])
def test_switches_are_true_or_false(stream, name, value):
    """A text is true whatever it says."""
    assert said(stream, **{name: value}) == f"{name}: expected True or False, got {value!r}"


@pytest.mark.parametrize("log", [3, [3], {"wandb": {}}])
def test_tools_are_names(stream, log):
    assert said(stream, log=log).startswith("log: expected one or several of tensorboard, ")


@pytest.mark.parametrize(
    ("what", "way"),
    [
        ("digits", "engram.load('digits'), got 'digits'"),
        ("mine.csv", "engram.load('mine.csv'), got 'mine.csv'"),
        ((X, Y), "engram.Data.from_arrays(x, y), got 'tuple'"),
        (X, "engram.Data.from_arrays(x, y), got 'ndarray'"),
        ({"x": X, "y": Y}, "engram.Data.from_arrays(x, y), got 'dict'"),
        (pd.DataFrame(X), "engram.Data.from_frame(frame, label=COLUMN), got 'DataFrame'"),
        (
            TensorDataset(torch.tensor(X)),
            "engram.Data.from_torch(train, test), got 'TensorDataset'",
        ),
        (DataLoader([1]), "engram.load('digits'), got 'DataLoader'"),
        (None, "engram.load('digits'), got None"),
    ],
)
def test_what_is_no_data_yet_is_told_how_to_become_some(what, way):
    assert said(what) == f"stream: expected a stream or data, such as {way}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"augment": "flip"}, "training.augment: expected a list, such as ['flip'], got 'flip'"),
        ({"milestones": 3}, "training.milestones: expected a list, such as [3], got 3"),
        ({"epochs": 1.5}, "training.epochs: expected a whole number, got 1.5"),
        ({"lr": "fast"}, "training.lr: expected a number, got 'fast'"),
        ({"optimizer": 3}, "training.optimizer: expected a name, got 3"),
    ],
)
def test_types_are_named_in_words(stream, options, words):
    assert said(stream, **options) == words
