from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engram import keys
from engram.data import Data, load
from engram.data.skeletons.augmentation import (
    augment_skeletons,
    draw_rotations,
    move_skeletons,
    redraw_frames,
    rotations,
)
from engram.data.skeletons.skeleton_data import (
    Sequences,
    build_skeleton_data,
    normalise,
    resample,
    turn_sequence,
)
from engram.learner.feed import Feed
from engram.models.skeleton_graphs import stretch_axes
from tests.refusals import refuses

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


def around(axis: int, degrees: float) -> np.ndarray:
    """The matrices of `feeder_ucla.py`, for rows from the right."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    if axis == 0:
        return np.array([[1, 0, 0], [0, c, s], [0, -s, c]])
    return np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])


def feed(data: Data, *augment: str) -> Feed:
    return Feed(data, device=CPU, dtype=torch.float64, augment=augment)


def figures(count: int = 6, frames: int = 7) -> Data:
    x = RNG.normal(size=(count, 3, frames, 20)).astype(np.float32)
    return Data.from_arrays(x, np.arange(count) % 2, test=(x, np.arange(count) % 2))


def test_turns_are_those_of_chen():
    degrees = torch.tensor([[33.0, -47.0], [0.0, 0.0]], dtype=torch.float64)
    found = rotations(degrees).numpy()
    np.testing.assert_allclose(found[0], around(1, -47) @ around(0, 33), atol=1e-12)
    np.testing.assert_array_equal(found[1], np.eye(3))
    drawn = draw_rotations(5, 4000)
    torch.testing.assert_close(drawn @ drawn.mT, torch.eye(3).double().expand(4000, 3, 3))
    x = torch.rad2deg(torch.atan2(drawn[:, 1, 2], drawn[:, 1, 1]))
    y = torch.rad2deg(torch.atan2(drawn[:, 2, 0], drawn[:, 0, 0]))
    for angle in (x, y):
        torch.testing.assert_close(angle, angle.round())
        assert (angle.min().round(), angle.max().round()) == (-60, 60)
    assert abs(float(torch.corrcoef(torch.stack([x, y]))[0, 1])) < 0.1


def test_a_turned_sequence_is_turned_about_joint_2_in_place():
    sequence = RNG.normal(size=(5, 20, 3))
    turn = around(1, 20) @ around(0, -50)
    centre = sequence[0, 1]
    expected = (sequence - centre) @ (turn * 0.7) + centre
    np.testing.assert_allclose(turn_sequence(sequence, turn, 0.7), expected, atol=1e-12)
    batch = torch.from_numpy(sequence).permute(2, 0, 1)[None]
    moved = move_skeletons(
        batch, torch.from_numpy(turn)[None], torch.tensor([0.7], dtype=torch.double)
    )
    np.testing.assert_allclose(moved[0].permute(1, 2, 0).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("apart", [False, True])
def test_both_bodies_turn_about_the_first_and_absent_joints_stay(apart):
    body = torch.from_numpy(RNG.normal(size=(2, 2, 3, 4, 20)))  # [B, persons, 3, T, V]
    body[1, 1] = 0
    body[:, :, :, 3] = 0
    turns = draw_rotations(1, 2)
    x = body.movedim(1, -1) if apart else body.flatten(1, 2)
    found = move_skeletons(x, turns, None)
    found = found.movedim(-1, 1) if apart else found.unflatten(1, (2, 3))
    centre = body[:, :1, :, :1, 1:2]
    expected = torch.einsum("bpitv,bij->bpjtv", body - centre, turns) + centre
    torch.testing.assert_close(found[0, :, :, :3], expected[0, :, :, :3])
    torch.testing.assert_close(found[1, 0, :, :3], expected[1, 0, :, :3])
    assert not found[1, 1].any()
    assert not found[:, :, :, 3].any()


def test_frames_are_drawn_in_order_and_the_end_stays():
    x = torch.arange(1.0, 9.0).reshape(1, 1, 8, 1).repeat(3, 1, 1, 1)
    x[1, :, 5:] = 0
    draws = keys.uniform(3, 3, 8)
    found = redraw_frames(x, draws)[:, 0, :, 0]
    assert found[0].tolist() == ((draws[0] * 8).long().sort().values + 1).tolist()
    assert found[1, :5].tolist() == ((draws[1, :5] * 5).long().sort().values + 1).tolist()
    assert not found[1, 5:].any()


def test_a_runs_draw_is_its_own():
    """Alone, in company and in a longer batch a row is changed in the same way."""
    one, rows = feed(figures(), "rotate", "scale", "frames"), torch.arange(6)
    key = torch.tensor([3, 8])
    both = one.fetch_augmented(rows.expand(2, -1), None, key)
    plain = one(rows)
    for run in range(2):
        alone = one.fetch_augmented(rows, None, key[run])
        assert torch.equal(both[run], alone)
        assert torch.equal(one.fetch_augmented(rows[:4], None, key[run]), alone[:4])
        assert not (alone == plain).flatten(1).all(1).any()
    assert not torch.equal(both[0], both[1])


def test_only_skeletons():
    images = torch.zeros(4, 3, 8, 20, dtype=torch.uint8)
    for data, name in (
        (Data.from_arrays(images, [0, 1, 0, 1], test=(images, [0, 1, 0, 1])), "rotate"),
        (Data.from_arrays(torch.zeros(10, 3), [0, 1] * 5), "frames"),
        (Data.from_arrays(torch.zeros(10, 4, 8, 20), [0, 1] * 5), "scale"),
    ):
        with refuses("augment"):
            feed(data, name)
    with refuses("augment"):
        feed(figures(), "rotate", "flip")


class TestStoredOnce:
    def sequences(self) -> Sequences:
        rng = np.random.default_rng(1)
        lengths = rng.integers(5, 12, 40)
        return Sequences(
            joints=[rng.normal(size=(n, 20, 3)) for n in lengths],
            label=np.zeros(40, np.int64), names=[str(i) for i in range(40)], classes=("one",),
            official_test=np.arange(40) % 4 == 0,
        )  # fmt: skip

    def build(self, **options: object) -> Data:
        return build_skeleton_data(self.sequences(), name="made", frames=8, **options)

    def test_training_rows_alone_are_turned(self):
        plain, turned = self.build(), self.build(augment="train")
        same = (turned.x == plain.x).flatten(1).all(1)
        assert set(same.nonzero()[:, 0].tolist()) == set(range(40)) - set(plain.train.tolist())
        assert torch.equal(turned.x, self.build(augment="train").x)
        assert not torch.equal(turned.x, self.build(augment="train", seed=1).x)
        assert turned.notes[-1] == "32 sequences turned at random: the training rows"

    def test_those_of_the_source_are_turned_wherever_they_are(self):
        plain, turned = self.build(), self.build(augment="source")
        same = (turned.x == plain.x).flatten(1).all(1)
        assert same.tolist() == (np.arange(40) % 4 == 0).tolist()

    def test_a_row_is_turned_then_normalised_then_given_frames(self):
        """As in `feeder_ucla.py`: every frame shown is one of the whole turned sequence."""
        turned = self.build(augment="train")
        raw = self.sequences()
        key = torch.as_tensor(keys.fold(0, "skeleton augmentation"))
        for row in turned.train.tolist()[:5]:
            own = keys.fold(key, row)
            turn = draw_rotations(own).numpy()
            whole = normalise(turn_sequence(raw.joints[row], turn)).astype(np.float32)
            for frame in turned.x[row].permute(1, 2, 0).numpy():
                assert min(np.abs(whole - frame).max((1, 2))) < 1e-6

    def test_copies_are_found_before_the_turns(self):
        doubled = self.sequences().take([*range(20), *range(20)])
        options = {"name": "made", "frames": 8, "held": "together", "augment": "train"}
        data = build_skeleton_data(doubled, **options)
        held = {row % 20 for row in data.test.tolist()}
        assert not held & {row % 20 for row in data.train.tolist()}

    def test_what_the_source_does_not_tell_is_refused(self):
        with refuses("augment"):
            load("skeletons", per_class=10, frames=4, augment="source")
        with refuses("augment"):
            load("skeletons", per_class=10, frames=4, augment="test")


def test_stretching_in_the_network_is_that_of_stored_sequences():
    sequence = RNG.normal(size=(9, 20, 3)) * [1.0, 2.0, 3.0] + 5
    stored = resample(sequence, 9).transpose(2, 0, 1)
    found = stretch_axes(torch.from_numpy(stored)[None])[0].numpy()
    np.testing.assert_allclose(found, normalise(sequence).transpose(2, 0, 1), atol=1e-12)


def test_turns_of_a_network_that_stretches_change_no_scale():
    x = torch.from_numpy(RNG.normal(size=(4, 3, 6, 20)))
    scaled = augment_skeletons(x, 3, 4, ["scale"])
    assert not torch.allclose(scaled, x)
    torch.testing.assert_close(stretch_axes(scaled), stretch_axes(x))
