"""A small world of many classes, cut into tasks."""

from __future__ import annotations

import numpy as np
import pytest

import engram

FAST = {"device": "cpu", "epochs": 2, "batch_size": 16, "lr": 0.01}
MODEL = {"name": "mlp", "hidden": [16, 16]}


def world(classes, rows=12, seed=0):
    """Inputs and labels of training and test rows: a cloud for each class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 8)) * 2
    y = np.repeat(np.arange(classes), rows)
    x, test = (np.float32(centres[y] + rng.normal(size=(len(y), 8))) for _ in range(2))
    return x, y, test


@pytest.fixture(scope="session")
def six():
    """Three tasks of two classes."""
    x, y, test = world(6)
    data = engram.Data.from_arrays(x, y, test=(test, y))
    return x, y, test, engram.class_incremental(data, classes_per_task=2)
