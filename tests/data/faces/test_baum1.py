"""BAUM-1 on a generated tree: a list of clips, folders of frames, videos by an extra."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from PIL import Image

import engram
from tests.data.pictures import paint

STATES = ("Anger", "Boredom", "Bothered", "Concentrating", "Contempt", "Disgust", "Fear",
          "Happiness", "Neutral", "Sadness", "Surprise", "Thinking", "Unsure")  # fmt: skip
OTHERS = (1, 2, 3, 11, 12)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "BAUM-1"
    lines = ["No,Subject,Take,Clip Name,Emotion,Emotion code,Gender"]
    for subject in range(1, 11):
        for code, state in enumerate(STATES, 1):
            clip = f"S{subject:03d}_{code:03d}"
            lines.append(f"{len(lines)},{subject},1,{clip},{state},{code},{'FM'[subject % 2]}")
            for frame in range(12):
                if code == 4 or (subject == 9 and code == 1):
                    continue
                place = root / "frames" / f"s{subject:03d}" / clip / f"frame{frame}.jpg"
                paint(place, subject * 10000 + code * 100 + frame, (20, 16))
    (root / "Annotations_BAUM1s.csv").write_text("\r\n".join([*lines, "", ",,,,,,"]) + "\r\n")
    return root


def test_frames_have_the_label_of_their_clip(root):
    data = engram.load("baum1", root=root.parent, size=16)
    assert data.classes == engram.data.EXPRESSIONS
    assert data.labels.bincount().tolist() == [120, 108, *[120] * 6]  # a clip has no frames
    assert "1 clip without frames left out" in data.notes
    left = "50 clips of other states (boredom, bothered, concentrating, thinking, unsure) left out"
    assert left in data.notes
    subject = data.attributes["subject"]
    assert len(subject[data.test].unique()) == 3
    assert not set(subject[data.train].tolist()) & set(subject[data.test].tolist())
    assert set(data.attribute_names) == {"subject", "clip", "gender"}
    assert data.attribute_names["gender"] == ("female", "male")
    clips = data.attributes["clip"]
    assert len(clips.unique()) == 79


def test_other_splits_tell_what_they_share(root):
    clips = engram.load(root, size=16, split="clip", every=4)
    assert len(clips) == 79 * 3
    unit = clips.attributes["clip"]
    assert not set(unit[clips.train].tolist()) & set(unit[clips.test].tolist())
    assert any("test subjects are training subjects" in note for note in clips.notes)
    frames = engram.load(root, size=16, split="frame", every=4)
    assert len(frames.test) == round(0.3 * 79 * 3)
    unit = frames.attributes["clip"]
    assert set(unit[frames.train].tolist()) & set(unit[frames.test].tolist())


def test_emotions_that_contradict_their_code_are_left_out(root):
    file = root / "Annotations_BAUM1s.csv"
    file.write_text(file.read_text().replace("S001_009,Neutral,9", "S001_009,Happiness,9"))
    data = engram.load(root, size=16)
    assert "1 clip whose emotion and code differ left out" in data.notes
    assert int((data.labels == 0).sum()) == 108


def test_codes_alone_are_enough(root):
    file = root / "Annotations_BAUM1s.csv"
    data = engram.load(root, size=16)
    file.unlink()
    lines = [f"S{s:03d}_{c:03d}\t{c}" for s in range(1, 11) for c in range(1, 14)]
    (root / "Annotations_BAUM1s.txt").write_text("\n".join(lines))
    assert engram.load(root, size=16).labels.tolist() == data.labels.tolist()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("1,1,1,S001_001,Joyless,,F", "an emotion"), ("1,1,1,S001_001,Anger,14,F", "an emotion code"),
     ("1,1,1,clip7,Anger,1,F", "a clip such as S001_001")],
)  # fmt: skip
def test_unknown_labels_are_refused(root, line, wanted):
    head = "No,Subject,Take,Clip Name,Emotion,Emotion code,Gender"
    (root / "Annotations_BAUM1s.csv").write_text(f"{head}\n{line}\n")
    with pytest.raises(ValueError, match=rf"line 2: expected {wanted}"):
        engram.load(root)


def test_a_spreadsheet_is_to_be_saved_as_text(root):
    file = root / "Annotations_BAUM1s.csv"
    file.rename(file.with_suffix(".xlsx"))
    with pytest.raises(ValueError, match="saved as text"):
        engram.load(root)


def test_videos_need_a_folder_and_the_extra(root, tmp_path, monkeypatch):
    video = root / "BAUM1s_MP4 - All" / "s009" / "S009_001.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 videos without frames, first S009_001.mp4"):
        engram.load(root, size=16)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"pip install 'engram-cl\[video\]'"):
        engram.load(root, size=16, frames=tmp_path / "frames")
    monkeypatch.setitem(sys.modules, "av", types.SimpleNamespace(open=Container))
    data = engram.load(root, size=16, frames=tmp_path / "frames")
    assert data.labels.bincount().tolist() == [120, 111, *[120] * 6]
    assert len(list((tmp_path / "frames" / "S009_001").iterdir())) == 3
    monkeypatch.setitem(sys.modules, "av", None)  # what is unpacked is not unpacked again
    assert (
        engram.load(root, size=16, frames=tmp_path / "frames").fingerprint() == data.fingerprint()
    )


class Container:
    """A video of three frames, as PyAV gives them."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        return None

    def decode(self, video):
        assert video == 0
        for k in range(3):
            image = Image.fromarray(np.full((16, 20, 3), 50 + k, np.uint8))
            yield types.SimpleNamespace(to_image=lambda image=image: image)


def test_clips_that_are_there_twice_are_refused(root):
    file = root / "Annotations_BAUM1s.csv"
    text = file.read_bytes()
    for more, told in ((b"9,1,1,S001_001,Boredom,2,F", "line 134: expected every clip once"),
                       (b"9,1,1,S001_020,\xc4nger,2,F", "BAUM1s.csv: expected text")):  # fmt: skip
        file.write_bytes(text + more)
        with pytest.raises(ValueError, match=told):
            engram.load(root, size=16)
    file.write_bytes(text)
    paint(root / "aligned" / "S001_001" / "frame0.jpg", 5)
    with pytest.raises(ValueError, match="one folder of frames for the clip S001_001"):
        engram.load(root, size=16)
    file.write_text("")
    with pytest.raises(ValueError, match="expected clips such as S001_001, got 'none'"):
        engram.load(root, size=16)
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match="data: expected"):
        engram.load(root, size=16)
