from __future__ import annotations

import pytest
import torch

from engram.data import load


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (64, 3)])
def test_glyphs_fit_the_pictures_of_other_sets(size, channels):
    data = load("glyphs", size=size, channels=channels, classes=3, per_class=5)
    assert (data.x.dtype, data.sample_shape) == (torch.uint8, (channels, size, size))
    assert data.labels[data.train].bincount().tolist() == [4, 4, 4]
    assert data.x.float().std((1, 2, 3)).min() > 20  # something is written on every page


def test_signs_are_fixed_by_the_seed_whatever_the_size_and_the_number_of_classes():
    options = {"classes": 3, "per_class": 5, "noise": 0.0}
    small, again, large = (load("glyphs", size=size, **options) for size in (14, 14, 28))
    assert small.fingerprint() == again.fingerprint()
    assert small.fingerprint() != load("glyphs", size=14, seed=1, **options).fingerprint()
    fewer = load("glyphs", size=14, **{**options, "classes": 2})
    assert torch.equal(fewer.x, small.x[:10])
    # four pixels of the large page make one of the small page
    shrunk = torch.nn.functional.avg_pool2d(large.x.float(), 2)
    assert (shrunk - small.x.float()).abs().mean() < 4


def test_signs_differ_more_than_hands():
    data = load("glyphs", size=8, classes=10, per_class=30)
    x = data.x.flatten(1).float()
    nearest = torch.cdist(x[data.test], x[data.train]).argmin(1)
    assert (data.labels[data.train][nearest] == data.labels[data.test]).float().mean() > 0.9
    assert len(x.unique(dim=0)) == len(data)  # no picture twice


@pytest.mark.parametrize(
    "option",
    [{"size": 7}, {"channels": 2}, {"channels": True}, {"classes": 0}, {"per_class": 4},
     {"noise": -0.1}, {"seed": -1}],
)  # fmt: skip
def test_bad_options_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        load("glyphs", **option)
