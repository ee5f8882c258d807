"""Data as people bring it for the first time: what is refused says what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import engram
from engram.errors import BadArgument

RNG = np.random.default_rng(0)


def test_a_class_too_small_to_be_tested_is_named_with_a_way_out():
    x, y = RNG.normal(size=(44, 3)), np.repeat(["cat", "dog", "rare"], [20, 20, 4])
    data = engram.Data.from_arrays(x, y)
    with pytest.raises(BadArgument) as error:
        engram.class_incremental(data, classes_per_task=1)
    assert "test rows for task 2 (classes ['rare']) (every fifth row of a class" in str(error.value)
    assert len(engram.class_incremental(data, classes_per_task=1, order=[0, 1])) == 2


def test_missing_values_in_arrays_point_to_tables():
    x = RNG.normal(size=(20, 3))
    x[3, 1] = np.nan
    with pytest.raises(BadArgument, match=r'\(missing values: Data.from_frame\(.*missing="mean"'):
        engram.Data.from_arrays(x, [0, 1] * 10)
    x[3, 1] = np.inf
    with pytest.raises(BadArgument, match="float32 range, got 'nan or inf in row 3'"):
        engram.Data.from_arrays(x, [0, 1] * 10)


def test_grey_images_without_channels_are_told_how_to_get_one():
    x = RNG.integers(0, 256, (20, 28, 28)).astype(np.uint8)
    data = engram.Data.from_arrays(x, [0, 1] * 10)
    with pytest.raises(BadArgument, match=r"grey ones have one channel: x\[:, None\]"):
        engram.run(data, model="lenet")
    assert engram.Data.from_arrays(x[:, None], [0, 1] * 10).sample_shape == (1, 28, 28)


def test_a_learner_that_fills_gaps_names_the_argument_that_holds_text():
    frame = pd.DataFrame(RNG.normal(size=(40, 2)), columns=["a", "b"])
    frame = frame.assign(site=["x", "y"] * 20, kind=["cat", "dog"] * 20)
    frame.loc[:3, "a"] = np.nan
    data = engram.Data.from_frame(frame, label="kind", missing="mean")
    learner = engram.run(data, method="ER", epochs=1, device="cpu").model("ER")
    assert len(learner.predict(frame)) == 40
    assert len(learner.predict([[None, 1.0, 0.0, 1.0]])) == 1
    for x in (frame.to_numpy(), "new.csv", [[1.0], [2.0, 3.0]]):
        with pytest.raises(BadArgument, match=r"^x: expected "):
            learner.predict(x)
