from __future__ import annotations

import pytest
import torch

import engram
from engram.data import load
from engram.data.embedded.drawn_shapes import KINDS, ORPHANS, VARIATIONS


def test_kinds_variations_and_orphans():
    data = load("shapes", per_class=10)
    assert (data.x.dtype, data.sample_shape) == (torch.uint8, (3, 16, 16))
    assert data.n_classes == len(KINDS) * len(VARIATIONS) + len(ORPHANS)
    assert data.labels[data.train].bincount().unique().tolist() == [8]
    kind = data.attributes["kind"]
    for c, name in enumerate(data.classes):
        (own,) = kind[data.labels == c].unique().tolist()
        assert name in ORPHANS if own < 0 else name.endswith(data.attribute_names["kind"][own])
    assert len(data.x.flatten(1).unique(dim=0)) == len(data)  # no picture twice


def test_pictures_are_fixed_by_the_seed_and_a_class_by_its_name():
    few = load("shapes", per_class=5, kinds=1, orphans=0)
    assert few.fingerprint() == load("shapes", per_class=5, kinds=1, orphans=0).fingerprint()
    assert (
        few.fingerprint() != load("shapes", per_class=5, kinds=1, orphans=0, seed=1).fingerprint()
    )
    quiet = {"per_class": 5, "noise": 0.0, "orphans": 0}
    one, two = (load("shapes", kinds=k, **quiet).x for k in (1, 2))
    # colours are drawn over all rows, shapes class by class: where the ink is does not change
    assert torch.equal(one[0].float().mean(0) > one[0].float().mean(),
                       two[0].float().mean(0) > two[0].float().mean())  # fmt: skip


def test_variations_differ_more_than_rows_of_one_class():
    data = load("shapes", per_class=40, noise=0.0)
    grey = data.x.float().mean(1).flatten(1)
    grey = (grey - grey.mean(1, keepdim=True)) / grey.std(1, keepdim=True)
    means = torch.stack([grey[data.labels == c].mean(0) for c in range(data.n_classes)])
    nearest = torch.cdist(grey, means).argmin(1)
    assert float((nearest == data.labels).float().mean()) > 0.5  # by guessing: 1/28


def test_shapes_make_a_hierarchical_stream():
    stream = engram.hierarchical(load("shapes", per_class=25), hierarchy="kind", classes_per_task=4)
    assert len(stream.order) == 28 + 6
    assert [stream.data.classes[c].split("/")[0] for c in stream[0].new] == ["superclass"] * 4
    assert stream.labels == "set"


@pytest.mark.parametrize(
    "option",
    [{"kinds": 0}, {"kinds": 7}, {"variations": 5}, {"orphans": -1}, {"orphans": 5},
     {"per_class": 4}, {"size": 7}, {"noise": -1.0}],
)  # fmt: skip
def test_bad_options_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        load("shapes", **option)


def test_any_set_can_be_normalised_otherwise():
    plain = load("shapes", per_class=5, kinds=1, orphans=0)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    data = load("shapes", per_class=5, kinds=1, orphans=0, mean=mean, std=list(std))
    assert (data.mean, data.std) == (mean, std)
    assert data.fingerprint() != plain.fingerprint()
    assert data.source is not None
    again = load(data.source.name, **data.source.options)
    assert again.fingerprint() == data.fingerprint()
    section = {"data": "shapes", "data_options": {"per_class": 5, "mean": [0.5], "std": [0.5]}}
    recipe = engram.Recipe.of({"stream": section, "method": "ER"})
    assert recipe.build_stream().data.mean == (0.5,)
    for options in (
        {"mean": [0.1, 0.2], "std": [1.0, 1.0]}, {"mean": [0.1]}, {"std": [1.0]},
        {"mean": [0.1], "std": [0.0]}, {"mean": "half", "std": "one"}, {"mean": 0.5, "std": 1.0},
    ):  # fmt: skip
        with pytest.raises(engram.BadArgument, match=r"mean|std"):
            load("shapes", per_class=5, **options)
