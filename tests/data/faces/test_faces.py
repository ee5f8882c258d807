"""Pictures to faces: what is cut, what is counted, what is refused, what is mapped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import engram
from engram.data.dataset import Data
from engram.data.faces.expressions import EXPRESSIONS, expression_ids, find_expression
from engram.data.faces.fer2013 import convert_to_faces, resize_like_pillow
from engram.data.memory_maps import read_mapped
from engram.data.picture_sets import (
    Frame,
    Picture,
    PictureOptions,
    crop_image,
    crop_picture,
    read_pictures,
)
from tests.data.pictures import fill, paint
from tests.refusals import refuses


def quadrants(path):
    """A picture of 40 x 20 whose columns have their own colour: x is readable from a crop."""
    ramp = np.tile(np.arange(40, dtype=np.uint8) * 6, (20, 1))
    Image.fromarray(np.stack([ramp, ramp // 2, ramp // 3], -1)).save(path)
    return path


def test_landmarks_box_centre_and_whole(tmp_path):
    file = quadrants(tmp_path / "a.png")
    points = np.array([[30.0, 5.0], [36.0, 11.0]])
    found = crop_picture(file, 8, Frame(points=points, box=(0, 0, 4, 4)))
    assert found.crop == "landmarks"  # rather than the box
    left, right = found.pixels[0, 0, [0, -1]] / 6
    assert 29 <= left <= 31
    assert 35 <= right <= 37
    found = crop_picture(file, 8, Frame(box=(2, 2, 10, 8)))
    assert found.crop == "box"
    assert found.pixels[0].max() <= 60
    found = crop_picture(file, 20)
    assert found.crop == "centre"
    exact = np.asarray(Image.open(file)).transpose(2, 0, 1)[:, :, 10:30]
    assert np.array_equal(found.pixels, exact)  # a square of the picture itself, not resampled
    whole = paint(tmp_path / "b.png", 0, (8, 8))
    found = crop_picture(whole, 8)
    assert found.crop == "whole"
    assert np.array_equal(found.pixels, np.asarray(Image.open(whole)).transpose(2, 0, 1))


def test_boxes_beyond_the_picture_are_moved_inside(tmp_path):
    file = quadrants(tmp_path / "a.png")
    found = crop_picture(file, 20, Frame(box=(-50, -50, 10, 10)))
    exact = np.asarray(Image.open(file)).transpose(2, 0, 1)[:, :, :20]
    assert np.array_equal(found.pixels, exact)


def test_colours_are_counted(tmp_path):
    kinds = {
        "grey": paint(tmp_path / "grey.png", 1, mode="L"),
        "clear": paint(tmp_path / "clear.png", 2, mode="RGBA"),
        "blank": fill(tmp_path / "blank.png", (5, 6, 7)),
        "plain": paint(tmp_path / "plain.JPG", 3),
    }
    deep = np.linspace(0, 65535, 144).reshape(12, 12).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    cuts = {name: crop_picture(file, 12) for name, file in kinds.items()}
    assert [name for name, cut in cuts.items() if cut.grey] == ["grey"]
    assert [name for name, cut in cuts.items() if cut.transparent] == ["clear"]
    assert [name for name, cut in cuts.items() if cut.blank] == ["blank"]
    assert cuts["blank"].pixels[:, 0, 0].tolist() == [5, 6, 7]
    pixels = crop_picture(tmp_path / "deep.png", 12).pixels
    assert np.array_equal(pixels[0], deep >> 8)
    assert pixels.shape == (3, 12, 12)


def listing(tmp_path, broken=False):
    files = [paint(tmp_path / f"{i}.png", i, (16, 12)) for i in range(8)]
    if broken:
        files[3].write_bytes(files[3].read_bytes()[:60])
    return [
        Picture(file, EXPRESSIONS[i % 4], "test" if i >= 6 else "train",
             facts={"subject": f"S{i // 2}", "gender": "female" if i % 2 else "male"})
        for i, file in enumerate(files)
    ]  # fmt: skip


def test_rows_labels_parts_and_attributes(tmp_path):
    data = read_pictures("few", listing(tmp_path), PictureOptions(size=10))
    assert data.classes == EXPRESSIONS[:4]
    assert data.sample_shape == (3, 10, 10)
    assert data.labels.tolist() == [0, 1, 2, 3] * 2
    assert data.test.tolist() == [6, 7]
    assert data.train.tolist() == list(range(6))
    assert data.attribute_names["subject"] == ("S0", "S1", "S2", "S3")
    assert data.attributes["subject"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.attribute_names["gender"] == ("female", "male")
    assert data.notes == ("faces: 8 cut at the centre",)


def test_missing_facts_are_a_value_of_their_own(tmp_path):
    faces = listing(tmp_path)
    faces[2] = Picture(faces[2].file, "Neutral", "train")
    data = read_pictures(
        "few", faces, PictureOptions(size=10), names={"gender": ("male", "female")}
    )
    assert data.attribute_names["gender"] == ("male", "female", "unknown")
    assert data.attributes["gender"].tolist() == [0, 1, 2, 1, 0, 1, 0, 1]


def test_broken_pictures_are_refused_or_counted(tmp_path):
    faces = listing(tmp_path, broken=True)
    with pytest.raises(engram.errors.BadArgument, match=r'3\.png: expected .*broken="drop"'):
        read_pictures("few", faces, PictureOptions(size=10))
    data = read_pictures("few", faces, PictureOptions(size=10, broken="drop"))
    assert data.train.tolist() == [0, 1, 2, 4, 5]
    assert len(data) == 8
    assert "1 image left out that cannot be read" in data.notes


def test_a_subject_of_both_parts_is_told(tmp_path):
    faces = listing(tmp_path)
    faces[6] = Picture(faces[6].file, "Disgust", "test", facts={"subject": "S0"})
    notes = read_pictures("few", faces, PictureOptions(size=10)).notes
    assert "1 of 2 test subjects are training subjects as well" in notes


def test_unknown_labels_and_options_are_refused(tmp_path):
    faces = listing(tmp_path)
    with pytest.raises(ValueError, match=r"few: expected the labels Neutral.*Boredom"):
        read_pictures("few", [*faces, Picture(faces[0].file, "Boredom", "train")], PictureOptions())
    with pytest.raises(ValueError, match="at least one picture"):
        read_pictures("few", [], PictureOptions())
    with refuses("size"):
        PictureOptions(size=4)
    with refuses("broken"):
        PictureOptions(broken="ignore")


def test_faces_above_memory_are_mapped(tmp_path, monkeypatch):
    faces = listing(tmp_path, broken=True)
    plain = read_pictures("few", faces, PictureOptions(size=10, broken="drop"))
    options = PictureOptions(size=10, broken="drop", packed=tmp_path / "few")
    data = read_pictures("few", faces, options)
    assert isinstance(data.x, np.memmap)
    assert data.fingerprint() == plain.fingerprint()
    assert (data.notes, data.attribute_names) == (plain.notes, plain.attribute_names)
    monkeypatch.setattr("engram.data.picture_sets._chunks", None)  # decoded once
    assert read_pictures("few", faces, options).fingerprint() == plain.fingerprint()
    alone = engram.load(tmp_path / "few.npz")  # the file is a packed set by itself
    assert isinstance(alone.x, np.memmap)
    assert alone.fingerprint() == plain.fingerprint()
    moved = [replace(faces[0], frame=Frame(box=(0, 0, 5, 5))), *faces[1:]]
    for others in (faces[:7], moved):
        with pytest.raises(ValueError, match="packed: expected a new file"):
            read_pictures("few", others, options)


def test_what_does_not_fit_says_how_it_would(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 30)
    with pytest.raises(ValueError, match=r"few: expected faces of at most 450 bytes.*packed="):
        read_pictures("few", listing(tmp_path), PictureOptions(size=10))


def test_a_mapped_set_packs_and_trains(tmp_path):
    x = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    plain = Data.from_arrays(x, [0, 1] * 10, name="small")
    mapped = Data.from_arrays(_as_map(x, tmp_path / "x"), [0, 1] * 10, name="small")
    again = engram.load(engram.data.pack(mapped, tmp_path / "again.npz"))
    assert isinstance(again.x, np.memmap)
    assert again.fingerprint() == plain.fingerprint()
    assert np.load(tmp_path / "again.npz")["x"].shape == (20, 3, 8, 8)
    runs = [engram.run(engram.joint(one), epochs=1) for one in (plain, again)]
    assert np.array_equal(runs[0].matrix, runs[1].matrix, equal_nan=True)


def _as_map(x, path):
    found = np.memmap(path, np.uint8, "w+", shape=tuple(x.shape))
    found[:] = x.numpy()
    return found


def test_compressed_inputs_are_not_mapped(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((4, 4), np.uint8))
    with pytest.raises(ValueError, match="not compressed"):
        read_mapped(tmp_path / "a.npz")


def test_an_interrupted_file_does_not_appear(tmp_path):
    faces = listing(tmp_path, broken=True)
    with pytest.raises(ValueError, match="readable"):
        read_pictures("few", faces, PictureOptions(size=10, packed=tmp_path / "few.npz"))
    assert not list(tmp_path.glob("*few*"))


def test_names_of_expressions():
    assert [find_expression(one.upper()) for one in EXPRESSIONS] == list(EXPRESSIONS)
    with pytest.raises(ValueError, match="bored"):
        expression_ids("classes", ["angry", "bored"])
    with pytest.raises(ValueError, match="one class for each"):
        expression_ids("classes", ["angry", "anger"])


@pytest.mark.parametrize("shape", [(1, 48, 48), (1, 48, 31), (3, 31, 48), (3, 20, 20)])
def test_pictures_of_one_shape_are_smoothed_together_as_each_alone(shape):
    # of 48 x 31, cut to 31 x 31, Pillow smooths columns first where that is cheaper
    x = np.random.default_rng(1).integers(0, 256, (3, *shape), np.uint8)
    pictures = [Image.fromarray(one[0] if len(one) == 1 else one.transpose(1, 2, 0)) for one in x]
    for size in (8, 20, 32, 100):
        alone = [crop_image(one, size, Frame()) for one in pictures]
        expected = np.stack([one.pixels[: shape[0]] for one in alone])
        assert (resize_like_pillow(x, size) == expected).all(), size


def test_images_in_memory_become_faces():
    x = torch.randint(0, 256, (10, 1, 6, 6), dtype=torch.uint8)
    x[3] = 9
    data = Data.from_arrays(x, ["happy", "neutral"] * 5)
    faces = convert_to_faces(data, 12)
    assert faces.classes == ("Neutral", "Happiness")
    assert faces.x.shape == (10, 3, 12, 12)
    assert torch.equal(faces.x[:, 0], faces.x[:, 2])
    assert torch.equal(faces.train, data.train)
    assert faces.notes == ("1 blank image of one colour, kept",)
    assert convert_to_faces(data, None) is data
    with pytest.raises(ValueError, match="no images"):
        convert_to_faces(Data.from_arrays(x.float(), ["happy", "neutral"] * 5), 12)


@pytest.mark.parametrize(
    "frame",
    [Frame(box=(90, 90, 99, 99)), Frame(box=(5, 5, 5, 5)), Frame(box=(9, 9, 3, 3)),
     Frame(box=(0, 0, np.inf, 5)), Frame(points=np.full((5, 2), 7.0)),
     Frame(points=np.array([[np.nan, 1.0], [2.0, 3.0]]))],
)  # fmt: skip
def test_frames_that_are_no_part_of_the_picture_are_counted(tmp_path, frame):
    file = quadrants(tmp_path / "a.png")
    cut, plain = crop_picture(file, 20, frame), crop_picture(file, 20)
    assert (cut.crop, cut.lost, plain.lost) == ("centre", True, False)
    assert np.array_equal(cut.pixels, plain.pixels)
    data = read_pictures("x", [Picture(file, "Anger", "train", frame)], PictureOptions(size=8))
    assert "1 boxes or landmarks that are no part of their image" in data.notes


def test_pictures_that_are_listed_twice(tmp_path):
    file, options = paint(tmp_path / "a.png", 1), PictureOptions(size=8, broken="drop")
    two = [Picture(file, label, "train") for label in ("Anger", "Anger", "Sadness")]
    assert "1 image listed more than once" in read_pictures("x", two[:2], options).notes
    with pytest.raises(ValueError, match=r"a.png: expected one label, got .'Anger', 'Sadness'."):
        read_pictures("x", two, options)
    for lost in (replace(two[0], part="test"), replace(two[0], file=tmp_path / "b.png")):
        with pytest.raises(ValueError, match="x: expected faces to train on, got 'none of 1"):
            read_pictures("x", [lost], options)
