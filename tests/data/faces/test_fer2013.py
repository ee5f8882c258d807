"""FER-2013 as CSV, folders and packed files: one set, whatever the form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import engram
from engram.data.faces.fer2013 import CLASSES
from tests.refusals import refuses

WORDS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")  # by the CSV's numbers
USAGE = ("Training", "PublicTest", "PrivateTest")


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [
        (emotion, USAGE[part], rng.integers(0, 256, (48, 48), np.uint8))
        for part, count in enumerate((2, 1, 1))
        for emotion in range(7)
        for _ in range(count)
    ]


def write_csv(root, pictures):
    lines = ["emotion,pixels,Usage"]
    lines += [f"{e},{' '.join(map(str, x.ravel()))},{usage}" for e, usage, x in pictures]
    (root / "fer2013.csv").write_text("\r\n".join(lines))


def write_folders(root, pictures, label=lambda emotion: WORDS[emotion]):
    for i, (emotion, usage, x) in enumerate(pictures):
        part = "train" if usage == "Training" else "test"
        file = root / "fer2013" / part / label(emotion) / f"{usage}_{i:03d}.PNG"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x).save(file)


def by_content(data):
    """Rows of each part by what they are, free of their order."""
    return {
        part: sorted((data.classes[int(data.labels[r])], data.x[r].numpy().tobytes())
                     for r in getattr(data, part).tolist())
        for part in ("train", "valid", "test")
    }  # fmt: skip


def test_all_forms_hold_the_same(tmp_path, pictures):
    roots = [tmp_path / name for name in ("csv", "words", "numbers", "packed")]
    for root in roots:
        root.mkdir()
    write_csv(roots[0], pictures)
    write_folders(roots[1], pictures)
    write_folders(roots[2], pictures, str)
    (roots[2] / "fer2013" / "test" / "__MACOSX").mkdir()
    engram.data.add(roots[0] / "fer2013.csv", "fer2013", roots[3])
    for size in (None, 20):
        found = [engram.load("fer2013", root=root, size=size) for root in roots]
        assert all(by_content(one) == by_content(found[0]) for one in found)
        assert [len(getattr(found[1], part)) for part in ("train", "valid", "test")] == [14, 7, 7]
    assert found[0].sample_shape == (3, 20, 20)
    assert found[0].classes[:2] == ("Neutral", "Anger")
    assert len(found[0].classes) == 7
    assert engram.load("fer2013", root=roots[1]).classes == CLASSES


def test_strange_and_empty_class_folders_are_refused(tmp_path, pictures):
    write_folders(tmp_path, pictures)
    (tmp_path / "fer2013" / "test" / "suprise").mkdir()
    with pytest.raises(ValueError, match=r"class folder.*'suprise', did you mean 'surprised'"):
        engram.load("fer2013", root=tmp_path)
    (tmp_path / "fer2013" / "test" / "suprise").rmdir()
    for file in (tmp_path / "fer2013" / "test" / "sad").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"sad: expected images, got 'none'"):
        engram.load("fer2013", root=tmp_path)


def test_other_sets_in_class_folders_are_no_faces(tmp_path, pictures):
    write_folders(tmp_path, pictures)
    (tmp_path / "fer2013").rename(tmp_path / "mine")
    data = engram.load("mine", root=tmp_path)
    assert data.classes == tuple(sorted(WORDS))
    assert torch.is_tensor(data.x)
    with pytest.raises(ValueError, match="size"):
        engram.load("mine", root=tmp_path, size=20)


def test_folders_that_are_there_twice_are_refused(tmp_path, pictures):
    write_folders(tmp_path, pictures)
    (tmp_path / "fer2013" / "train" / ".ipynb_checkpoints").mkdir()
    clear = Image.fromarray(np.zeros((48, 48, 4), np.uint8))
    clear.save(tmp_path / "fer2013" / "train" / "angry" / "z.png")
    notes = engram.load("fer2013", root=tmp_path, size=20).notes
    assert "1 image whose transparency is left out" in notes
    (tmp_path / "fer2013" / "train" / "anger").mkdir()
    clear.save(tmp_path / "fer2013" / "train" / "anger" / "z.png")
    with pytest.raises(ValueError, match=r"one folder for each expression, got .'anger', 'angry'"):
        engram.load("fer2013", root=tmp_path)
    (tmp_path / "fer2013" / "Training").mkdir()
    with pytest.raises(ValueError, match=r"one folder for each part, got .'Training', 'train'"):
        engram.load("fer2013", root=tmp_path)


def test_a_misspelt_training_folder_is_refused_too(tmp_path, pictures):
    # it was read as a set of unknown classes, in another order of labels
    write_folders(tmp_path, pictures, lambda e: "nuetral" if e == 6 else WORDS[e])
    with pytest.raises(ValueError, match=r"train: class folder.*'nuetral', did you mean 'neutral'"):
        engram.load("fer2013", root=tmp_path)


def test_broken_files_are_refused_or_counted(tmp_path, pictures):
    write_folders(tmp_path, pictures)
    whole = engram.load("fer2013", root=tmp_path)
    (tmp_path / "fer2013" / "train" / "fear" / "a.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r'a\.jpg: expected a readable image.*broken="drop"'):
        engram.load("fer2013", root=tmp_path)
    data = engram.load("fer2013", root=tmp_path, broken="drop")
    assert by_content(data) == by_content(whole)
    assert "1 image left out that cannot be read" in data.notes
    with refuses("broken"):
        engram.load("fer2013", root=tmp_path, broken="keep")


def test_without_another_folder_validation_is_the_test(tmp_path, pictures):
    write_folders(tmp_path, pictures)
    (tmp_path / "fer2013" / "test").rename(tmp_path / "fer2013" / "validation")
    data = engram.load("fer2013", root=tmp_path)
    assert (len(data.valid), len(data.test)) == (0, 14)
    assert any("images for validation are for testing" in note for note in data.notes)


def test_csv_files_of_a_spreadsheet(tmp_path, pictures):
    write_csv(tmp_path, pictures)
    plain = engram.load("fer2013", root=tmp_path)
    file = tmp_path / "fer2013.csv"
    lines = file.read_text().replace("Test\n", "Test \n").split("\n", 1)
    file.write_text("Emotion, Pixels , usage\n" + lines[1], encoding="utf-8-sig")
    assert by_content(engram.load("fer2013", root=tmp_path)) == by_content(plain)
    file.write_text(file.read_text(encoding="utf-8-sig").replace("Training", "Trainig", 1))
    with pytest.raises(ValueError, match=r"line 2: Usage.*'Trainig', did you mean 'Training'"):
        engram.load("fer2013", root=tmp_path)
