"""`Data.split_within`: rows of each subject in both parts, clips undivided."""

from __future__ import annotations

import pytest
import torch

import engram
from tests.refusals import refuses


def test_everybody_is_trained_and_tested():
    data = engram.load("faces", samples=400, subjects=20)
    who = data.attributes["subject"]
    assert not set(who[data.train].tolist()) & set(who[data.test].tolist())
    made = data.split_within("subject", share=0.3)
    assert sorted([*made.train.tolist(), *made.test.tolist()]) == list(range(400))
    assert set(who[made.train].tolist()) == set(range(20))
    assert set(who[made.test].tolist()) == set(range(20))
    # every class of a person with two rows or more is on both sides
    cell = who * 8 + data.labels
    trained, tested = (
        torch.bincount(cell[rows], minlength=160) for rows in (made.train, made.test)
    )
    assert torch.equal(tested > 0, trained + tested > 1)
    assert (trained[trained + tested > 0] > 0).all()
    assert not made.test.equal(data.split_within("subject", seed=1).test)
    stream = engram.domain_incremental(made, by="subject", order=[3, 17])
    assert all(len(task.train) and len(task.test) for task in stream)


def test_frames_of_a_clip_stay_together():
    data = engram.load("faces", samples=200, subjects=20, frames=3)
    made = data.split_within("subject", together="clip")
    clip = data.attributes["clip"]
    assert not set(clip[made.train].tolist()) & set(clip[made.test].tolist())
    assert len(set(clip[made.test].tolist())) * 3 == len(made.test)


def test_what_cannot_be_divided_is_refused():
    data = engram.load("blobs")
    with refuses("by"):
        data.split_within("subject")
    single = engram.Data.from_arrays([[1.0], [2.0]], [0, 1], attributes={"subject": ["a", "b"]})
    with refuses("share"):
        single.split_within("subject")
    faces = engram.load("faces", samples=100, subjects=20)
    with refuses("together"):
        faces.split_within("subject", together="clip")
    with pytest.raises(ValueError, match="share"):
        faces.split_within("subject", share=1.5)
