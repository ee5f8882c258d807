from __future__ import annotations

import numpy as np
import pytest
import torch

from engram.data import Data, load
from tests.refusals import refuses

Image = pytest.importorskip("PIL.Image")


def paint(path, color=(10, 20, 30), size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)


def test_class_folders_with_hold_out(tmp_path):
    for i in range(10):
        paint(tmp_path / ("cat" if i < 5 else "dog") / f"{i}.png", (i, 0, 0))
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    paint(tmp_path / "__MACOSX" / "cat" / "0.png")  # what a Mac adds to an archive
    data = Data.from_folder(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.sample_shape == (3, 4, 6)
    assert data.x[:, 0, 0, 0].tolist() == list(range(10))
    assert data.test.tolist() == [4, 9]
    assert load(tmp_path).fingerprint() == data.fingerprint()


def test_train_valid_and_test_folders(tmp_path):
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        for i in range(count):
            paint(tmp_path / part / "a" / f"{i}.png", 100, mode="L")
            paint(tmp_path / part / "b" / f"{i}.jpg", 200, mode="L")
    data = Data.from_folder(tmp_path, name="mine")
    assert (len(data.train), len(data.valid), len(data.test)) == (6, 4, 2)
    assert data.sample_shape == (1, 4, 6)
    assert data.name == "mine"
    assert data.x[data.labels == 0].unique().tolist() == [100]


def test_train_and_val_alone_use_val_for_testing(tmp_path):
    for part in ("train", "val"):
        paint(tmp_path / part / "a" / "0.png")
    data = Data.from_folder(tmp_path)
    assert (len(data.train), len(data.valid), len(data.test)) == (1, 0, 1)


def test_one_colour_image_makes_all_three_channels(tmp_path):
    paint(tmp_path / "a" / "0.png", 7, mode="L")
    paint(tmp_path / "a" / "1.png")
    assert Data.from_folder(tmp_path).x[0, :, 0, 0].tolist() == [7, 7, 7]


def test_mixed_sizes_name_the_file_unless_resized(tmp_path):
    paint(tmp_path / "a" / "0.png")
    paint(tmp_path / "a" / "odd.png", size=(5, 5))
    with pytest.raises(ValueError, match=r"odd\.png: expected 4x6 pixels.*resize"):
        Data.from_folder(tmp_path)
    assert Data.from_folder(tmp_path, resize=(3, 2)).x.shape == (2, 3, 3, 2)
    assert load(tmp_path, resize=(3, 2)).x.shape == (2, 3, 3, 2)


def test_broken_images_and_empty_folders_are_named(tmp_path):
    paint(tmp_path / "a" / "0.png")
    (tmp_path / "a" / "1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"1\.png: expected a readable image"):
        Data.from_folder(tmp_path)
    whole = (tmp_path / "a" / "0.png").read_bytes()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a" / "1.png")
    cut = (tmp_path / "a" / "1.png").read_bytes()[:2000]
    (tmp_path / "a" / "1.png").write_bytes(cut)
    with pytest.raises(ValueError, match=r"1\.png: expected a complete image"):
        Data.from_folder(tmp_path, resize=(4, 4))
    (tmp_path / "a" / "1.png").write_bytes(whole)
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="b: expected images"):
        Data.from_folder(tmp_path)
    with pytest.raises(ValueError, match="path: expected a folder"):
        Data.from_folder(tmp_path / "absent")


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path):
    paint(tmp_path / "train" / "a" / "0.png")
    paint(tmp_path / "test" / "b" / "0.png")
    with pytest.raises(ValueError, match=r"only classes that also appear in .*train"):
        Data.from_folder(tmp_path)


def test_pixels_are_exact(tmp_path):
    image = np.random.default_rng(1).integers(0, 255, (4, 6, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(image).save(tmp_path / "a" / "0.png")
    found = Data.from_folder(tmp_path).x[0]
    assert torch.equal(found, torch.from_numpy(image.transpose(2, 0, 1).copy()))


def test_colours_made_or_lost_and_blank_images_are_counted(tmp_path):
    rng = np.random.default_rng(0)
    for i, channels in enumerate([(), (3,), (4,), (3,)]):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 6, *channels), np.uint8)).save(
            tmp_path / "a" / f"{i}.png"
        )
    paint(tmp_path / "a" / "9.png")
    assert Data.from_folder(tmp_path).notes == (
        "1 grey image, made RGB",
        "1 image whose transparency is left out",
        "1 blank image of one colour, kept",
    )


def test_all_bad_files_at_once_or_left_out(tmp_path):
    for i in range(6):
        paint(tmp_path / "a" / f"{i}.png", (i, 0, 0))
    for i in (1, 3):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"nothing")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)).save(
        tmp_path / "a" / "4.png"
    )
    whole = (tmp_path / "a" / "4.png").read_bytes()
    (tmp_path / "a" / "4.png").write_bytes(whole[: len(whole) // 2 + 8])
    with pytest.raises(ValueError, match=r"3 images .*repair='drop'.*1\.png.*3\.png.*4\.png"):
        Data.from_folder(tmp_path)
    data = load(tmp_path, repair="drop")
    assert data.x[:, 0, 0, 0].tolist() == [0, 2, 5]
    assert "3 images left out that cannot be read: 1.png, 3.png, 4.png" in data.notes
    with refuses("repair", near="drop"):
        Data.from_folder(tmp_path, repair="dorp")
    paint(tmp_path / "a" / "6.png", size=(5, 5))
    paint(tmp_path / "a" / "7.png", size=(7, 5))
    with pytest.raises(ValueError, match=r"6\.png.*resize.*and 1 more of other sizes"):
        Data.from_folder(tmp_path, repair="drop")
    assert Data.from_folder(tmp_path, repair="drop", resize=16).sample_shape == (3, 16, 16)
