"""Sizes of pictures as options of every set: resized, cut, normalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import engram
from engram.data import load
from engram.data.dataset import Data
from engram.data.packed import load_packed, write_packed
from engram.learner.feed import Feed

CPU = torch.device("cpu")


def test_pictures_are_resized_as_pillow_does():
    plain, small = load("glyphs", size=28, classes=2, per_class=5), None
    small = load("glyphs", size=28, classes=2, per_class=5, resize=(12, 17))
    assert small.sample_shape == (1, 12, 17)
    assert small.x.dtype == torch.uint8
    for row in range(len(plain)):
        image = Image.fromarray(plain.x[row, 0].numpy())
        wanted = np.asarray(image.resize((17, 12), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(small.x[row, 0].numpy().astype(int) - wanted).max() <= 1
    assert load("glyphs", size=28, classes=2, per_class=5, resize=28).fingerprint() == (
        plain.fingerprint()
    )


def numbered(**options: object) -> Data:
    x = torch.arange(6 * 8, dtype=torch.float64).reshape(6, 8)
    return Data.from_arrays(x.expand(10, 2, 6, 8).clone(), [0, 1] * 5, **options)


@pytest.mark.parametrize("mapped", [False, True])
def test_networks_see_the_middle(mapped, tmp_path):
    data = numbered(crop=(4, 5))
    if mapped:
        np.save(tmp_path / "x.npy", data.x.numpy())
        data = replace(data, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert (data.sample_shape, data.stored_shape) == ((2, 4, 5), (2, 6, 8))
    found = Feed(data, device=CPU, dtype=torch.float64)(torch.arange(3))
    assert torch.equal(found, numbered().x[:3, :, 1:5, 1:6])
    assert data.fingerprint() != numbered().fingerprint()


def test_training_crops_come_from_the_whole_picture():
    rows, key = torch.arange(10).repeat(20), torch.tensor(3)
    cut = Feed(numbered(crop=(4, 5)), device=CPU, dtype=torch.float64, augment=("crop",))
    found = cut.fetch_augmented(rows, None, key)
    first = found[:, 0, 0, 0].long()  # its value is its place
    tops, lefts = first // 8, first % 8
    assert (sorted(tops.unique().tolist()), sorted(lefts.unique().tolist())) == (
        [0, 1, 2], [0, 1, 2, 3]
    )  # fmt: skip
    for picture, top, left in zip(found[:9], tops, lefts, strict=False):
        assert torch.equal(picture, numbered().x[0, :, top : top + 4, left : left + 5])
    stretched = Feed(numbered(crop=(4, 5)), device=CPU, dtype=torch.float64,
                     augment=("resized_crop", "flip"))  # fmt: skip
    found = stretched.fetch_augmented(rows, None, key)
    assert found.shape == (200, 2, 4, 5)
    assert found.min() < 4  # the corners of the picture are seen, which the middle has not
    assert found.max() > 43
    one = stretched.fetch_augmented(rows[:7], None, key)
    assert torch.equal(one, found[:7])
    both = stretched.fetch_augmented(rows.expand(2, -1), None, torch.tensor([3, 4]))
    assert torch.equal(both[0], found)
    assert not torch.equal(both[1], found)


def test_a_run_on_cut_pictures():
    options = {"classes": 4, "per_class": 10, "size": 12}
    data = load("glyphs", **options, crop=8, mean=[0.2], std=[0.3])
    assert data.source is not None
    again = load(data.source.name, **data.source.options)
    assert again.fingerprint() == data.fingerprint()
    recipe = engram.Recipe.of({
        "stream": {"data": "glyphs", "data_options": dict(data.source.options)},
        "model": {"name": "lenet", "padding": 2, "hidden": 8}, "method": "Finetune",
        "training": {"epochs": 1, "augment": ["resized_crop"]}, "seeds": 2,
    })  # fmt: skip
    assert recipe.build_stream().data.fingerprint() == data.fingerprint()
    assert engram.sweep([recipe], pool="together").metric("average_accuracy").min() > 0


def test_a_packed_file_keeps_the_crop(tmp_path):
    data = numbered(crop=(4, 5))
    again = load_packed([write_packed(data, tmp_path / "cut.npz")])
    assert again.crop == (4, 5)
    assert again.fingerprint() == data.fingerprint()


def test_folders_of_pictures_of_many_sizes(tmp_path):
    for label in "ab":
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (10 + i, 12), (i, 0, 0)).save(tmp_path / "set" / label / f"{i}.png")
    assert load(tmp_path / "set", resize=8, crop=6).sample_shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"crop": 9}, "crop: expected at most 8 x 8 pixels"),
        ("digits", {"crop": 0}, "crop: expected a number of pixels"),
        ("digits", {"resize": (8, 8, 8)}, "resize: expected a number of pixels"),
        ("digits", {"resize": "8"}, "resize: expected a number of pixels"),
        ("blobs", {"crop": 3}, "no images"), ("blobs", {"resize": 3}, "no images"),
    ],
)  # fmt: skip
def test_bad_sizes(name, options, message):
    with pytest.raises(engram.BadArgument, match=message):
        load(name, **options)


def test_two_kinds_of_crops_at_once_are_refused():
    with pytest.raises(engram.BadArgument, match="not both"):
        Feed(numbered(crop=(4, 4)), device=CPU, augment=("crop", "resized_crop"))
