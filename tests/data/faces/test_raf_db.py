"""RAF-DB on a generated tree with the quirks of the official one."""

from __future__ import annotations

import pytest

import engram
from engram.data.faces.raf_db import GROUPS
from tests.data.pictures import fill, paint


@pytest.fixture
def root(tmp_path):
    base = tmp_path / "RAF-DB" / "basic"
    lines = []
    for i in range(28):
        part, number = ("train", i + 1) if i < 21 else ("test", i - 20)
        stem = f"{part}_{number:05d}" if part == "train" else f"{part}_{number:04d}"
        lines.append(f"{stem}.jpg {i % 7 + 1}")
        paint(base / "Image" / "aligned" / f"{stem}_aligned.jpg", i, (100, 100))
        paint(base / "Image" / "original" / f"{stem}.jpg", i, (60, 50))
        file = base / "Annotation" / "manual" / f"{stem}_manu_attri.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        points = [f"{x}.5\t{y}.25" for x, y in ((20, 20), (30, 20), (25, 25), (21, 30), (29, 30))]
        file.write_text("\r\n".join([*points, str(i % 3), str(i // 3 % 3), str(i % 5)]) + "\r\n")
    (base / "EmoLabel").mkdir()
    (base / "EmoLabel" / "list_patition_label.txt").write_text("\r\n".join(lines) + "\r\n\r\n")
    return base


def test_labels_split_and_groups(root):
    data = engram.load("raf_db", root=root.parents[1])
    assert data.sample_shape == (3, 100, 100)
    assert data.classes == tuple(one for one in engram.data.EXPRESSIONS if one != "Contempt")
    words = ["Surprised", "Fearful", "Disgust", "Happiness", "Sadness", "Anger", "Neutral"]
    assert [data.classes[i] for i in data.labels.tolist()] == words * 4
    assert data.train.tolist() == list(range(21))
    assert data.test.tolist() == list(range(21, 28))
    assert data.attribute_names == GROUPS
    assert data.attributes["gender"].tolist() == [i % 3 for i in range(28)]
    assert data.attributes["race"].tolist() == [i // 3 % 3 for i in range(28)]
    assert data.attributes["age"].tolist() == [i % 5 for i in range(28)]
    assert "faces: 28 square as they are" in data.notes
    assert "training set has 21 of 12271 rows" in data.notes


def test_originals_are_cut_by_box_or_landmarks(root):
    box = root / "Annotation" / "boundingbox" / "train_00001_boundingbox.txt"
    box.parent.mkdir()
    box.write_text("10.0 10.0 30.0 30.0")
    data = engram.load(root, images="original", size=20)
    assert "faces: 27 cut by landmarks, 1 cut by a face box" in data.notes
    box.write_text("10 10")
    with pytest.raises(ValueError, match=r"boundingbox.txt: expected left"):
        engram.load(root, images="original")


def test_missing_annotations_are_counted(root):
    manual = root / "Annotation" / "manual"
    (manual / "train_00002_manu_attri.txt").unlink()
    data = engram.load(root, size=8)
    assert "1 image without gender, race and age" in data.notes
    assert data.attribute_names["age"][-1] == "unknown"
    assert data.attributes["age"][1] == 5
    for file in manual.iterdir():
        file.unlink()
    data = engram.load(root, size=8)
    assert data.attributes == {}
    assert "no manual annotation: gender, race and age are not known" in data.notes


@pytest.mark.parametrize("line", ["train_00001.jpg 8", "train_00001.jpg", "valid_00001.jpg 1", "x"])
def test_unknown_labels_are_refused(root, line):
    file = root / "EmoLabel" / "list_patition_label.txt"
    file.write_text(f"train_00002.jpg 1\r\n{line}\r\n")
    with pytest.raises(ValueError, match="line 2: expected train_NUMBER"):
        engram.load(root)


def test_wrong_groups_are_refused(root):
    file = root / "Annotation" / "manual" / "train_00002_manu_attri.txt"
    file.write_text(file.read_text().rsplit("\n", 2)[0] + "\n7\n")
    with pytest.raises(ValueError, match="age 0 to 4"):
        engram.load(root)


def test_missing_and_blank_pictures(root):
    aligned = root / "Image" / "aligned"
    (aligned / "train_00003_aligned.jpg").unlink()
    fill(aligned / "train_00004_aligned.jpg", (0, 0, 0), (100, 100))
    (aligned / "train_00005_aligned.jpg").rename(aligned / "train_00005_aligned.JPG")
    with pytest.raises(ValueError, match=r"train_00003_aligned.jpg: expected a readable"):
        engram.load(root)
    data = engram.load(root, size=8, broken="drop")
    assert len(data.train) == 20
    assert "1 image left out that cannot be read" in data.notes
    assert "1 blank image of one colour, kept" in data.notes


def test_tasks_by_group(root):
    data = engram.load(root, size=8)
    stream = engram.domain_incremental(data, by="gender")
    assert [task.domain for task in stream] == ["gender=male", "gender=female", "gender=unsure"]
    picked = engram.domain_incremental(data, by="gender", order=["female", 0])
    assert [task.domain for task in picked] == ["gender=female", "gender=male"]
    with pytest.raises(ValueError, match=r"among \['male', 'female', 'unsure'\], got \['man'\]"):
        engram.domain_incremental(data, by="gender", order=["man"])


def test_lists_that_cannot_be_meant_are_refused(root):
    file = root / "EmoLabel" / "list_patition_label.txt"
    text = file.read_bytes()
    for more, told in ((b"train_00001.jpg 2", "train_00001_aligned.jpg: expected one label"),
                       (b"train_/../x.jpg 2", "line 30: expected a file inside the data set"),
                       (b"train_\xe4.jpg 2", "label.txt: expected text in UTF-8")):  # fmt: skip
        file.write_bytes(text + more)
        with pytest.raises(ValueError, match=told):
            engram.load(root, size=16)


def test_other_capitals_and_the_word_spelt_out(root):
    plain = engram.load("raf_db", root=root.parents[1])
    names = root / "EmoLabel" / "list_patition_label.txt"
    names.rename(names.with_name("list_partition_label.txt"))
    for name in ("EmoLabel", "Image", "Annotation"):
        (root / name).rename(root / name.lower())
    root.rename(root.with_name("Basic"))
    data = engram.load("raf_db", root=root.parents[1])
    assert data.fingerprint() == plain.fingerprint()
    assert data.attribute_names == plain.attribute_names
