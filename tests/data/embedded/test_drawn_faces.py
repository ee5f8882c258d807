"""Drawn faces: who is in which part, what their pictures depend on, and how hard they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engram
from engram.data import load
from engram.data.embedded.canvas import Canvas
from engram.data.embedded.drawn_faces import GROUPS, MIXTURES, UNITS, mix_units
from engram.data.faces.expressions import EXPRESSIONS
from tests.refusals import refuses

FEW = 150


@pytest.fixture(scope="module")
def few():
    return load("faces", samples=FEW)


def test_only_the_seed_decides(few):
    assert few.fingerprint() == load("faces", samples=FEW).fingerprint()
    assert few.fingerprint() != load("faces", samples=FEW, seed=1).fingerprint()
    before = torch.random.get_rng_state()
    load("faces", samples=100)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_bytes_are_fixed():
    """Published numbers rest on them: another drawing needs another name or a changelog entry."""
    data = load("faces", samples=100, subjects=20)
    assert data.x.dtype == torch.uint8
    assert data.x.shape == (100, 3, 32, 32)
    means = data.x.double().mean((0, 2, 3))
    assert means.round(decimals=1).tolist() == [135.0, 111.1, 95.6]


def test_classes_are_the_eight_expressions_in_unequal_numbers():
    data = load("faces", samples=2000, size=16)
    assert data.classes == EXPRESSIONS
    assert data.labels[data.train].bincount().tolist() == [308, 168, 98, 140, 126, 252, 154, 154]
    assert data.labels[data.test].bincount().tolist() == [132, 72, 42, 60, 54, 108, 66, 66]


def test_test_subjects_are_not_trained_on(few):
    subject = few.attributes["subject"]
    trained, tested = (set(subject[rows].tolist()) for rows in (few.train, few.test))
    assert not trained & tested
    assert trained <= set(range(84))
    assert tested <= set(range(84, 120))
    assert sorted([*few.train.tolist(), *few.test.tolist()]) == list(range(FEW))


@pytest.mark.parametrize("subjects", [20, 33, 120])
def test_every_group_is_trained_and_tested_and_the_first_is_the_largest(subjects):
    data = load("faces", samples=1000, size=16, subjects=subjects)
    for kind, shares in GROUPS.items():
        assert data.attribute_names[kind] == tuple(shares)
        for rows in (data.train, data.test):
            pairs = torch.stack([data.attributes["subject"], data.attributes[kind]])[:, rows]
            people = pairs.unique(dim=1)[1].bincount(minlength=len(shares))
            assert people.min() > 0, kind
            assert (people.diff() < 0).all(), kind


def test_a_subject_belongs_to_one_group_of_each_kind(few):
    for kind in GROUPS:
        pairs = torch.stack([few.attributes["subject"], few.attributes[kind]]).unique(dim=1)
        assert pairs.shape[1] == len(few.attributes["subject"].unique()), kind


def test_groups_can_be_tasks(few):
    stream = engram.domain_incremental(few, by="age")
    assert len(stream.tasks) == 3


def test_clips_rise_from_neutral_to_the_picture_of_the_apex(few):
    data = load("faces", samples=FEW, frames=4)
    clip, frame = data.attributes["clip"], data.attributes["frame"]
    assert len(data) == 4 * FEW
    assert frame[:4].tolist() == [0, 1, 2, 3]
    assert torch.equal(data.x[frame == 3], few.x)
    assert (data.labels[frame == 0] == 0).all()
    for later in (1, 2, 3):
        assert torch.equal(data.labels[frame == later], few.labels)
    for name in ("subject", *GROUPS):
        assert torch.equal(data.attributes[name], few.attributes[name][clip])
    assert not set(clip[data.train].tolist()) & set(clip[data.test].tolist())


def test_a_clip_comes_closer_to_its_apex_frame_by_frame():
    data = load("faces", samples=FEW, frames=4, noise=0.0)
    shots = data.x.float().unflatten(0, (FEW, 4))
    away = (shots[:, :3] - shots[:, 3:]).abs().mean((0, 2, 3, 4))
    assert (away.diff() < 0).all()


def test_other_sizes_show_the_same_faces():
    small = load("faces", samples=100, noise=0.0).x.float()
    large = load("faces", samples=100, size=96, noise=0.0).x.float()
    difference = (F.avg_pool2d(large, 3) - small).abs().mean((1, 2, 3))
    stranger = (F.avg_pool2d(large.roll(1, 0), 3) - small).abs().mean((1, 2, 3))
    assert difference.max() < 6
    assert stranger.median() > 40


def test_only_places_that_are_painted_on_are_left_out(monkeypatch):
    """Features are painted on a part of the picture; on the whole picture they look the same."""
    quick = [load("faces", samples=100, size=size).x for size in (16, 48)]
    monkeypatch.setattr(Canvas, "part", lambda canvas, *place: canvas)
    for one in quick:
        assert torch.equal(one, load("faces", samples=100, size=one.shape[-1]).x)


def test_grain_is_white_and_of_the_given_strength():
    clean, grainy = (load("faces", samples=100, noise=n).x.float() / 255 for n in (0.0, 0.05))
    middle = (clean > 0.25) & (clean < 0.75)  # nothing is cut off there
    grain = grainy - clean
    assert grain[middle].std().item() == pytest.approx(0.05, abs=0.001)
    beside = (grain[..., 1:] * grain[..., :-1])[middle[..., 1:] & middle[..., :-1]]
    assert abs(beside.mean().item()) < 2e-5


def test_an_expression_is_its_units():
    assert set(MIXTURES) == set(EXPRESSIONS)
    assert all(set(one) <= set(UNITS) for one in MIXTURES.values())
    key = torch.arange(4000)
    for label, name in enumerate(EXPRESSIONS):
        units = mix_units(key, torch.full_like(key, label), 1.0)
        for unit, values in units.items():
            usual, often = MIXTURES[name].get(unit, (0.0, 0.0))
            stray = 0.15 / len(UNITS)
            assert values.mean().item() == pytest.approx(
                0.9 * 0.95 * usual * often + stray, abs=0.03
            )
            strengths = values[values > 0.31 * (usual > 0.5)].unique()
            assert len(strengths) > 100, (name, UNITS[unit])


def test_without_strength_there_is_nothing_but_stray_units():
    units = mix_units(torch.arange(100), torch.full((100,), 5), 0.0)
    shown = torch.stack(list(units.values()))
    assert ((shown > 0).sum(0) <= 1).all()
    assert shown.max() <= 0.3


@pytest.mark.parametrize(
    ("option", "value"),
    [("size", 8), ("samples", 10), ("subjects", 5), ("frames", 0), ("strength", -1.0),
     ("strength", 2.0), ("noise", 1.5), ("seed", -1), ("size", 32.0)],
)  # fmt: skip
def test_bad_options_are_named(option, value):
    with pytest.raises(ValueError, match=rf"^{option}: expected"):
        load("faces", **{option: value})


def test_unknown_options_are_named():
    with refuses("option of faces", near="size"):
        load("faces", sise=32)


def test_they_are_neither_easy_nor_hopeless():
    """A linear classifier is left behind by a small convolutional network, which is not perfect."""
    data = load("faces", samples=4000)
    x, y = data.x.float() / 255, data.labels
    linear = _linear(x.mean(1).flatten(1), y, data.train, data.test)
    found = _convolutional(x, y, data.train, data.test)
    right = (found == y[data.test]).float()
    share = torch.stack([right[y[data.test] == c].mean() for c in range(8)])
    assert 0.45 < linear < 0.68
    assert 0.72 < right.mean() < 0.95
    assert share[EXPRESSIONS.index("Contempt")] < share.mean()
    assert share.mean() < share[EXPRESSIONS.index("Surprised")]


def _linear(x, y, train, test):
    """Accuracy of ridge regression on the class indicators."""
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    seen, target = x[train], F.one_hot(y[train], 8).float()
    penalty = 30 * torch.eye(x.shape[1])
    weight = torch.linalg.solve(seen.mT @ seen + penalty, seen.mT @ target)
    return ((x[test] @ weight).argmax(1) == y[test]).float().mean()


def _convolutional(x, y, train, test):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            *_block(3, 12), *_block(12, 24), nn.Flatten(),
            nn.Linear(600, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 8),
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(200):
            rows = train[torch.randint(len(train), (64,))]
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        return net(x[test]).argmax(1)


def _block(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 5), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
