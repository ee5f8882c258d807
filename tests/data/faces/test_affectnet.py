"""AffectNet on generated trees of both official forms."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from tests.data.pictures import paint

WORDS = ["Neutral", "Happiness", "Sadness", "Surprised", "Fearful", "Disgust", "Anger", "Contempt"]
HEAD = (
    "subDirectory_filePath,face_x,face_y,face_width,face_height,facial_landmarks,expression,"
    "valence,arousal"
)


@pytest.fixture
def lists(tmp_path):
    root = tmp_path / "AffectNet"
    images = root / "Manually_Annotated" / "Manually_Annotated_Images"
    folder = root / "Manually_Annotated_file_lists"
    folder.mkdir(parents=True)
    for part, count, head in (("training", 33, [HEAD]), ("validation", 11, [])):
        lines = list(head)
        for i in range(count):
            inside = f"{i % 4}/{part}{i}.{'JPG' if i % 2 else 'png'}"
            paint(images / inside, 100 * len(part) + i, (40, 30))
            box = "NULL,NULL,NULL,NULL" if i == 3 else "5,6,12,10"
            lines.append(f"{inside},{box},1.0;2.0;3.0,{i % 11},-0.1,0.2")
        (folder / f"{part}.csv").write_text("\r\n".join(lines) + "\r\n")
    return root


def test_lists_with_face_boxes(lists):
    data = engram.load("affectnet", root=lists.parent, size=12)
    assert data.classes == engram.data.EXPRESSIONS
    assert [data.classes[i] for i in data.labels.tolist()] == WORDS * 4
    assert (len(data.train), len(data.test)) == (24, 8)
    for kind in ("none", "uncertain", "no face"):
        assert f"4 images labelled {kind} left out" in data.notes
    assert "faces: 30 cut by a face box, 2 cut at the centre" in data.notes


def test_down_sampled(lists):
    data = engram.load(lists, size=12, per_class=2)
    assert data.labels[data.train].bincount().tolist() == [2] * 8
    assert len(data.test) == 8
    assert "at most 2 training images per class, 8 left out" in data.notes
    again, other = (engram.load(lists, size=12, per_class=2, seed=seed) for seed in (0, 1))
    assert again.fingerprint() == data.fingerprint() != other.fingerprint()


def test_kept_in_a_packed_file(lists, tmp_path):
    file = tmp_path / "kept" / "affectnet.npz"
    data = engram.load(lists, size=12, packed=str(file))
    assert isinstance(data.x, np.memmap)
    assert data.fingerprint() == engram.load(lists, size=12).fingerprint()
    byname = engram.load("affectnet", root=file.parent)
    assert isinstance(byname.x, np.memmap)
    assert byname.fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [("a.png,1,2,3,4,,11,0,0", "an expression from 0 to 10"), ("a.png,1,2", "the columns"),
     ("a.png,1,two,3,4,,1,0,0", "face_x"), ("a.png,1,2,3,4,,happy,0,0", "an expression")],
)  # fmt: skip
def test_wrong_lines_are_refused(lists, cells, wanted):
    file = lists / "Manually_Annotated_file_lists" / "training.csv"
    file.write_text(f"{HEAD}\n{cells}\n")
    with pytest.raises(ValueError, match=rf"training.csv, line 2: expected {wanted}"):
        engram.load(lists)


@pytest.fixture
def folders(tmp_path):
    root = tmp_path / "affectnet"
    kinds = [
        lambda code: np.array(str(code)),
        lambda code: np.array(code, np.int8),
        lambda code: np.array([code], np.int64),
        lambda code: np.array(str(code).encode()),
        lambda code: np.array(float(code)),
    ]
    for part, count in (("train_set", 40), ("val_set", 9)):
        (root / part / "annotations").mkdir(parents=True)
        for i in range(count):
            paint(root / part / "images" / f"{i}.jpg", 100 * len(part) + i, (24, 24))
            code = i % 8 if i < 40 - 32 * (part == "val_set") else 8
            np.save(root / part / "annotations" / f"{i}_exp.npy", kinds[i % 5](code))
    return root


def test_folders_with_annotations(folders):
    data = engram.load("affectnet", root=folders.parent, size=24)
    assert [data.classes[i] for i in data.labels.tolist()] == WORDS * 6  # 2.jpg before 10.jpg
    assert (len(data.train), len(data.test)) == (40, 8)
    assert "1 image labelled none left out" in data.notes
    assert "faces: 48 square as they are" in data.notes


def test_pickled_annotations_are_never_unpickled(folders):
    file = folders / "train_set" / "annotations" / "7_exp.npy"

    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    np.save(file, np.array(Bomb(), object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"7_exp.npy: expected a plain array .* 'pickled objects'"):
        engram.load(folders)


@pytest.mark.parametrize("value", [np.array(11), np.array("x"), np.array([1, 2]), np.array(-1)])
def test_wrong_annotations_are_refused(folders, value):
    np.save(folders / "train_set" / "annotations" / "7_exp.npy", value)
    with pytest.raises(ValueError, match=r"7_exp.npy: expected"):
        engram.load(folders)


def test_missing_and_cut_annotations_are_refused(folders):
    file = folders / "train_set" / "annotations" / "7_exp.npy"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"7_exp.npy: expected"):
        engram.load(folders)
    file.unlink()
    with pytest.raises(ValueError, match="an annotation for each image"):
        engram.load(folders)


def test_lists_that_cannot_be_meant_are_refused(lists):
    file = lists / "Manually_Annotated_file_lists" / "training.csv"
    text = file.read_bytes()
    rest = b",5,6,12,10,1,3,0,0"
    for more, told in ((b"0/training0.png" + rest, "training0.png: expected one label"),
                       (b"/etc/a.png" + rest, "line 35: expected a file inside the data set"),
                       (b"a" * 140000 + rest, "training.csv: expected lines of a table"),
                       (b"\xe4.png" + rest, "training.csv: expected text in UTF-8")):  # fmt: skip
        file.write_bytes(text + more)
        with pytest.raises(ValueError, match=told):
            engram.load(lists, size=12)


def test_annotations_and_images_that_do_not_belong_together(tmp_path):
    for part, count in (("train_set", 4), ("val_set", 2)):
        for i in range(count):
            paint(tmp_path / part / "images" / f"{i}.jpg", 10 * count + i)
            (tmp_path / part / "annotations").mkdir(exist_ok=True)
            np.save(tmp_path / part / "annotations" / f"{i}_exp.npy", str(i))
    images, notes = tmp_path / "train_set" / "images", tmp_path / "train_set" / "annotations"
    (images / "3.jpg").unlink()
    assert "1 annotation without an image" in engram.load(tmp_path, size=12).notes
    paint(images / "2.png", 99)
    with pytest.raises(ValueError, match=r"one image per annotation, got .'2.jpg', '2.png'"):
        engram.load(tmp_path, size=12)
    (images / "2.png").unlink()
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    (notes / "2_exp.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header + b"\n")
    with pytest.raises(ValueError, match=r"2_exp.npy"):  # before memory is asked for
        engram.load(tmp_path, size=12)
    np.savez(tmp_path / "a.npz", a=1)
    (tmp_path / "a.npz").rename(notes / "2_exp.npy")
    with pytest.raises(ValueError, match="one label, got 'an archive of arrays'"):
        engram.load(tmp_path, size=12)


def test_other_capitals_and_a_quoted_head(lists, tmp_path):
    plain = engram.load("affectnet", root=tmp_path, size=12)
    lists.rename(tmp_path / "Affectnet")
    folder = tmp_path / "Affectnet" / "Manually_Annotated_file_lists"
    folder = folder.rename(folder.with_name("manually_annotated_file_lists"))
    file = folder / "training.csv"
    file.write_text(file.read_text().replace("subDirectory_filePath", '"SubDirectory_filePath"'))
    assert engram.load("affectnet", root=tmp_path, size=12).fingerprint() == plain.fingerprint()


def test_folders_in_other_capitals(folders, tmp_path):
    plain = engram.load("affectnet", root=tmp_path, size=12)
    (folders / "train_set" / "annotations" / "._0_exp.npy").write_bytes(b"a Mac's")
    (folders / "train_set" / "annotations").rename(folders / "train_set" / "Annotations")
    (folders / "train_set").rename(folders / "Train_Set")
    data = engram.load("affectnet", root=tmp_path, size=12)
    assert data.fingerprint() == plain.fingerprint()
    assert data.notes == plain.notes
