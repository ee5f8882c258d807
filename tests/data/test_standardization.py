from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import engram
from engram.data import Data, load, pack
from engram.learner.feed import Feed
from tests.refusals import refuses

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(80, 3)) * [1, 10, 1000] + [0, 5, 500]).astype(np.float32)
Y = np.arange(80) % 4


def seen(stream, rows):
    return Feed(stream.data, device=torch.device("cpu"))(rows)


def test_the_first_task_has_mean_0_and_deviation_1():
    stream = engram.class_incremental(Data.from_arrays(X, Y, standardize=True))
    x = seen(stream, stream.tasks[0].train)
    assert x.mean(0).abs().max() < 1e-5
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-5


def test_later_tasks_decide_nothing():
    other = X.copy()
    other[Y > 1] *= 100
    one, two = (engram.class_incremental(Data.from_arrays(x, Y, standardize=True))
                for x in (X, other))  # fmt: skip
    assert one.data.mean == two.data.mean
    rows = one.tasks[0].train
    assert torch.equal(seen(one, rows), seen(two, rows))
    test = X.copy()
    test[one.tasks[0].test.numpy()] = 1e4
    held = engram.class_incremental(Data.from_arrays(test, Y, standardize=True))
    assert held.data.mean == one.data.mean


def test_orders_are_fitted_each_and_are_one_experiment():
    data = Data.from_arrays(X, Y, standardize=True)
    one = engram.class_incremental(data)
    two = engram.class_incremental(data, order=[3, 2, 1, 0])
    assert one.data.mean != two.data.mean
    assert one.data.fingerprint() == two.data.fingerprint() == data.fingerprint()
    assert data.fingerprint() != Data.from_arrays(X, Y).fingerprint()
    assert one[1:].data.mean == two[:1].data.mean  # a part begins with a first task of its own
    assert engram.class_incremental(data).data is one.data


def test_equal_to_standardizing_by_hand():
    stream = engram.class_incremental(Data.from_arrays(X, Y, standardize=True))
    mean, std = (torch.tensor(part) for part in (stream.data.mean, stream.data.std))
    by_hand = Data.from_arrays((torch.tensor(X) - mean) * (1 / std), Y)
    one, two = (engram.run(s, epochs=2) for s in (stream, engram.class_incremental(by_hand)))
    assert np.array_equal(one.matrix, two.matrix, equal_nan=True)


def test_series_and_images_and_what_does_not_vary():
    series = Data.from_series([[[2.0, 7.0]], [[4.0, 7.0], [6.0, 7.0]]] * 5, [0, 1] * 5,
                              standardize=True)  # fmt: skip
    stream = engram.class_incremental(series)
    assert stream.data.mean == pytest.approx((4.0, 7.0))  # without the padding
    assert stream.data.std == pytest.approx((np.sqrt(8 / 3), 1.0))
    assert seen(stream, torch.tensor([1]))[0, 0].tolist() == pytest.approx([0.0, 0.0])
    pixels = RNG.integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
    images = engram.class_incremental(Data.from_arrays(pixels, [0, 1] * 10, standardize=True))
    x = seen(images, images.tasks[0].train)
    assert x.mean((0, 2, 3)).abs().max() < 1e-5


def test_wild_scales_are_noticed_once_and_remedied():
    with pytest.warns(UserWarning, match="features with extreme scales: 2"):
        engram.run(Data.from_arrays(X * [1, 1, 1000], Y), epochs=1)
    engram.run(Data.from_arrays(X * [1, 1, 1000], Y, standardize=True), epochs=1)


def test_from_names_and_refusals(tmp_path):
    data = load("blobs", standardize=True)
    assert data.source.options == {"standardize": True}
    assert len(engram.class_incremental(data).data.mean) == data.sample_shape[0]
    with pytest.raises(ValueError, match="standardize: expected False where mean and std"):
        load("blobs", standardize=True, mean=[0.5], std=[0.5])
    with pytest.raises(ValueError, match="standardize: expected True or False, got 'yes'"):
        load("blobs", standardize="yes")
    with pytest.raises(ValueError, match="standardize: expected False"):
        pack(data, tmp_path / "d.npz")
    with pytest.raises(ValueError, match="missing: expected drop, flag or a number, because"):
        pack(replace(data, standardize=False, fill=True), tmp_path / "d.npz")
    with refuses("Data.from_arrays", near="standardize"):
        Data.from_arrays(X, Y, standardise=True)
