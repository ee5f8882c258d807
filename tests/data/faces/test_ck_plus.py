"""CK+ on a generated tree with the quirks of the official one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import engram
from engram.data.duplicates import find_repeats
from tests.data.pictures import paint

LABELS = (1, 2, 3, 4, 5, 6, 7)


def write(root, subject, session, frames, label=None, *, first=1, suffix=".png", points=True):
    """One sequence; the Emotion file belongs to the last frame and is a number in a line."""
    name = f"S{subject:03d}_{session:03d}"
    inside = f"S{subject:03d}/{session:03d}"
    for frame in range(first, first + frames):
        seed = subject * 10000 + session * 100 + frame
        paint(root / "cohn-kanade-images" / inside / f"{name}_{frame:08d}{suffix}", seed, (40, 30))
        if points:
            file = root / "Landmarks" / inside / f"{name}_{frame:08d}_landmarks.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            square = np.random.default_rng(seed).uniform(10, 20, (68, 2))
            file.write_text("\r\n".join(f"   {x:.7e}   {y:.7e}" for x, y in square) + "\r\n")
    if label is not None:
        file = root / "Emotion" / inside / f"{name}_{first + frames - 1:08d}_emotion.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"   {label:.7e}\r\n")


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "ck_plus"
    for subject in range(10):
        for session, label in enumerate(LABELS):
            if (subject + session) % 2:
                write(root, subject, session, 6, label, points=subject > 0)
    write(root, 10, 1, 5)  # a subject without any emotion
    write(root, 0, 9, 4, suffix=".PNG")  # a sequence without one
    (root / "Emotion" / "S000" / "009").mkdir()
    (root / "cohn-kanade-images" / ".DS_Store").write_text("")
    (root / "cohn-kanade-images" / "S000" / ".DS_Store").write_text("")
    return root


def test_last_frames_first_frames_and_subjects(root):
    data = engram.load("ck_plus", root=root.parent, size=16)
    assert data.sample_shape == (3, 16, 16)
    assert data.classes == engram.data.EXPRESSIONS
    assert data.labels.bincount().tolist() == [35, *[15] * 7]  # one and three of 35 sequences
    assert data.notes[0] == "8 subjects for training, 3 for testing"  # of all 11, round(11 * .3)
    assert "2 sequences without an emotion left out" in data.notes
    assert "faces: 128 cut by landmarks, 12 cut at the centre" in data.notes
    subject = data.attributes["subject"]
    assert not set(subject[data.train].tolist()) & set(subject[data.test].tolist())
    assert data.attribute_names["subject"] == tuple(f"S{i:03d}" for i in range(10))
    assert not len(find_repeats(data))  # no frame is Neutral and an expression as well
    shares = data.labels[data.test].bincount(minlength=8) / data.labels.bincount()
    assert shares.min() >= 0.15
    assert shares.max() <= 0.45


def test_other_seeds_and_fewer_frames(root):
    one, other = (engram.load(root, size=16, seed=seed) for seed in (0, 1))
    assert one.test.tolist() != other.test.tolist()
    assert engram.load(root, size=16, peak=1).labels.bincount().tolist() == [35, *[5] * 7]


def test_a_hundred_and_twenty_three_subjects_are_86_and_37():
    from engram.data.attributes import draw_held_out_units

    units = [f"S{i:03d}" for i in range(123)]
    labels = [str(i % 8) for i in range(123)]
    assert len(draw_held_out_units(units, labels, 37 / 123, seed=0)) == 37


def test_short_sequences(root):
    write(root, 3, 20, 3, 4)  # the first is Neutral, so that two are left
    write(root, 3, 21, 1, 4, first=7)
    data = engram.load(root, size=16)
    assert data.labels.bincount().tolist() == [36, 15, 15, 15, 17, 15, 15, 15]
    assert "1 sequence of fewer than two frames left out" in data.notes


@pytest.mark.parametrize("text", ["8.0", "1.5", "", "anger", "1 2"])
def test_unknown_emotions_are_refused(root, text):
    file = next((root / "Emotion").rglob("*_emotion.txt"))
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"{file.name}: expected an emotion from 0 to 7"):
        engram.load(root)


def test_broken_landmarks_are_refused(root):
    file = root / "Landmarks" / "S001" / "000" / "S001_000_00000001_landmarks.txt"
    assert file.is_file()
    file.write_text("1 2 3")
    with pytest.raises(ValueError, match="68 points"):
        engram.load(root)


def test_without_emotions_or_with_two(root):
    for file in (root / "Emotion").rglob("*.txt"):
        file.with_name(f"x{file.name}").write_text("1")
    with pytest.raises(ValueError, match="one emotion file"):
        engram.load(root)
    for file in (root / "Emotion").rglob("*.txt"):
        file.unlink()
    with pytest.raises(ValueError, match=r"files \*_emotion.txt"):
        engram.load(root)


def test_frames_that_are_lost_or_there_twice_are_refused(root):
    session = root / "cohn-kanade-images" / "S001" / "000"
    last = sorted(session.iterdir())[-1]
    for copy in (last.with_suffix(".jpg"), last.with_stem(last.stem + " (1)")):
        paint(copy, 1)  # whose number would make it the last frame, or the first
        with pytest.raises(ValueError, match=r"S001/000: expected each frame once, got .*0006"):
            engram.load(root, size=16)
        copy.unlink()
    last.unlink()
    with pytest.raises(ValueError, match=r"expected frame 6, of which its emotion was told"):
        engram.load(root, size=16)


def test_other_capitals_lose_no_label(root):
    plain = engram.load("ck_plus", root=root.parent, size=16)
    (root / "cohn-kanade-images").rename(root / "Cohn-Kanade-Images")
    (root / "Emotion" / "S001").rename(root / "Emotion" / "s001")
    file = next((root / "Emotion" / "S003").rglob("*_emotion.txt"))
    file.rename(file.with_name(file.name.upper()))
    (root / "Emotion").rename(root / "emotion")
    root.rename(root.with_name("Ck_Plus"))
    data = engram.load("ck_plus", root=root.parent, size=16)
    assert data.fingerprint() == plain.fingerprint()
    assert data.notes == plain.notes


def test_labels_of_sequences_that_are_not_there_are_counted(root):
    shutil.rmtree(root / "cohn-kanade-images" / "S003")
    notes = engram.load("ck_plus", root=root.parent, size=16).notes
    assert "4 emotion files of sequences that are not there" in notes


def test_a_folder_without_emotions_is_told_of(root):
    (root / "Emotion").rename(root / "Labels")
    wanted = r"ck_plus is there, but not in the CK\+ form, which has folders cohn-kanade-images and"
    with pytest.raises(ValueError, match=wanted):
        engram.load("ck_plus", root=root.parent)


def test_a_share_of_nobody_is_refused(root):
    with pytest.raises(ValueError, match="test_share: expected one that leaves some of 11"):
        engram.load("ck_plus", root=root.parent, test_share=0.01)
