"""The eight sets in their official forms, on generated trees, and all of them as one."""

from __future__ import annotations

import shutil
import string

import numpy as np
import pytest
import torch
from scipy.io import savemat

import engram
from engram.data import load
from tests.data.photos import photo_trees as trees
from tests.refusals import refuses

RED, BLUE, GREEN = [250, 0, 0], [0, 0, 250], [0, 128, 0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    base = tmp_path_factory.mktemp("eight")
    for make in trees.ALL:
        make(base)
    return base


def split(data):
    return [data.train.tolist(), data.valid.tolist(), data.test.tolist()]


def is_all(picture: torch.Tensor, colour: list[int]) -> bool:
    return bool(((picture.flatten(1).float().T - torch.tensor(colour)).abs() < 12).all())


def test_flowers_are_counted_from_one(root):
    data = load("flowers102", root=root, size=16)
    assert data.classes == ("flower 001", "flower 002", "flower 003")
    assert data.labels.tolist() == [1 + one % 3 - 1 for one in range(1, 9)]
    assert split(data) == [[0, 1, 2], [3, 4], [5, 6, 7]]  # in the order of the images
    for row, one in enumerate(range(1, 9)):
        channel = [0, 1, 2][one % 3]
        assert data.x[row, channel].float().mean() > 240
    assert "1 image in no part left out" in data.notes
    assert "training set has 3 of 1020 rows" in data.notes
    assert data.sample_shape == (3, 16, 16)


def test_scenes_by_their_lists(root):
    data = load("mit67", root=root, size=8)
    assert data.classes == ("airport_inside", "bar")
    assert data.labels.tolist() == [1, 1, 0, 0, 1, 0]
    assert split(data) == [[0, 1, 2, 3], [], [4, 5]]


def test_birds_whole_or_by_their_boxes(root):
    whole, cut = (load("cub200", root=root, size=10, box=box) for box in (False, True))
    assert whole.classes == ("001.Black_bird", "002.Red_bird")
    assert whole.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert split(whole) == [[0, 1, 2, 3], [], [4, 5]]
    assert all(is_all(picture, RED) for picture in cut.x)
    assert not is_all(whole.x[0], RED)


def test_cars_by_the_devkit(root):
    whole, cut = (load("stanford_cars", root=root, size=10, box=box) for box in (False, True))
    assert whole.classes == ("AM General Hummer SUV 2000", "Acura RL Sedan 2012")
    assert whole.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert split(whole) == [[0, 1, 2, 3], [], [4, 5]]
    assert all(is_all(picture, BLUE) for picture in cut.x)  # boxes are counted from 1
    assert not is_all(whole.x[0], BLUE)


def test_aircraft_without_the_banner(root):
    data = load("aircraft", root=root, size=12)
    assert data.classes == ("707-320", "Cessna 172")  # in the order of variants.txt
    assert data.labels.tolist() == [1, 0] * 3
    assert split(data) == [[0, 1], [2, 3], [4, 5]]
    assert all(is_all(picture, GREEN) for picture in data.x)


def test_persons_are_cut_out_with_their_actions(root):
    data = load("voc_actions", root=root, size=8)
    assert data.classes == ("reading", "running")
    assert [data.classes[label] for label in data.labels] == ["reading", "running"] * 6
    assert split(data) == [[*range(6)], [], [*range(6, 12)]]
    colours = {"reading": RED, "running": BLUE}
    for picture, label in zip(data.x, data.labels, strict=True):
        assert is_all(picture[:, 1:-1, 1:-1], colours[data.classes[label]])
    assert "2 persons with several actions, left out" in data.notes
    first = load("voc_actions", root=root, size=8, several="first")
    assert first.classes == ("phoning", "reading", "running")
    assert len(first) == 14


def test_letters_without_digits(root):
    data = load("chars74k", root=root, size=8)
    capital, small = string.ascii_uppercase, string.ascii_lowercase
    assert data.classes == (*(f"capital {c}" for c in capital), *(f"small {c}" for c in small))
    assert (len(data.train), len(data.test)) == (4 * 52, 52)
    assert data.x[0, 0].float().mean() == 4 * 11  # Sample011 is A
    assert len(load("chars74k", root=root, size=8, symbols="all", poor=True)) == 62 * 5 + 1
    assert load("chars74k", root=root, size=8, symbols="digits").classes == tuple(string.digits)
    with pytest.raises(ValueError, match=r"Fnt/Sample012: expected pictures of 'B'"):
        load("chars74k", root=root, kind="fnt")


def test_ten_is_the_digit_zero(root):
    data = load("svhn", root=root)
    assert data.sample_shape == (3, 32, 32)
    assert data.labels.tolist() == [*range(10)] * 3
    assert data.x[:, 1, 3, 5].tolist() == data.labels.tolist()  # axes in their places
    assert split(data) == [[*range(20)], [], [*range(20, 30)]]
    savemat(root / "svhn" / "extra_32x32.mat",
            {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": [[7]]})  # fmt: skip
    assert load("svhn", root=root, extra=True).labels[20] == 7


def test_all_eight_as_one(root, tmp_path):
    data = load("eight_task", root=root, size=16)
    kinds = engram.streams.novelty_sequences.EIGHT
    assert data.attribute_names["domain"] == kinds
    assert data.n_classes == 3 + 2 + 2 + 2 + 2 + 2 + 52 + 10
    assert data.classes[0] == "flowers/flower 001"
    flower = data.attributes["domain"] == 0
    assert [int(flower[rows].sum()) for rows in (data.train, data.test)] == [5, 3]  # with valid
    assert "flowers: 1 image in no part left out" in data.notes
    mapped = load("eight_task", root=root, size=16, packed=tmp_path / "all.npz")
    assert isinstance(mapped.x, np.memmap)
    assert mapped.fingerprint() == data.fingerprint()
    assert load("eight_task", root=root, size=16, packed=tmp_path / "all.npz").notes == data.notes
    with pytest.raises(ValueError, match="packed: expected a new file"):
        load("eight_task", root=root, size=8, packed=tmp_path / "all.npz")
    stream = engram.eight_task(data, valid=0.0)
    assert (stream.name, [task.domain for task in stream]) == ("eight_task", list(kinds))
    some = load("eight_task", root=root, size=16, sets=["digits", "birds"])
    assert some.attribute_names["domain"] == ("birds", "digits")
    assert "only 2 of the eight sets, without flowers" in some.notes[0]
    assert engram.eight_task(some, valid=0.0).name == "eight_task (2 of 8 sets)"


def test_missing_sets_are_named(root, tmp_path):
    shutil.copytree(root / "svhn", tmp_path / "svhn")
    (tmp_path / "svhn" / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"flowers \(flowers102\), .* sets=\['digits'\]"):
        load("eight_task", root=tmp_path)
    with refuses("sets", near="birds"):
        load("eight_task", root=tmp_path, sets=["bird"])
    with pytest.raises(ValueError, match="eight_task was not found"):
        load("eight_task", root=tmp_path / "svhn" / "nothing")


def edit(file, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("make", "file", "old", "new", "message"),
    [
        (trees.scenes, "TestImages.txt", "bar/bar 3", "bar_3", "line 1: expected SCENE/IMAGE"),
        (trees.scenes, "TestImages.txt", "bar 3", "bar 1", "images of one part only"),
        (trees.birds, "train_test_split.txt", "2 1", "2 2", r"0 \(test\) for image 2"),
        (trees.birds, "image_class_labels.txt", "3 2", "3 9", "a class of classes.txt for image 3"),
        (trees.birds, "images.txt", "2 0", "1 0", "line 2: expected every number once"),
        (trees.aircraft, "data/images_variant_val.txt", "Cessna 172", "Cessna", "a variant of var"),
        (trees.actions, "ImageSets/Action/train.txt", "000000 1", "000000 9", "object 9, which a"),
        (trees.actions, "ImageSets/Action/val.txt", "000000 1", "000000", "an image and a person"),
        (trees.actions, "Annotations/2010_000000.xml", "<name>person", "<name>cat", "a person"),
        (trees.actions, "Annotations/2010_000000.xml", "<xmin>1.4", "<xmin>", "a bndbox of xmin"),
        (trees.actions, "Annotations/2010_000000.xml", "</annotation>", "", "a readable anno"),
    ],
)  # fmt: skip
def test_bad_lists_say_where(make, file, old, new, message, tmp_path):
    base = make(tmp_path)
    edit(base / file, old, new)
    with pytest.raises(engram.BadArgument, match=message):
        load(base)


@pytest.mark.parametrize(
    ("make", "file", "content", "message"),
    [
        (trees.flowers, "imagelabels.mat", {"labels": [[0, 1]]}, "whole numbers from 1 to 102"),
        (trees.flowers, "imagelabels.mat", {"label": [[1]]}, "arrays called labels"),
        (trees.flowers, "setid.mat", {"trnid": [[1]], "valid": [[1]], "tstid": [[2]]}, "one part"),
        (trees.flowers, "setid.mat", {"trnid": [[99]], "valid": [[1]], "tstid": [[2]]}, "1 to 9"),
        (trees.cars, "devkit/cars_train_annos.mat", {"annotations": [[1, 2]]}, "the fields"),
        (trees.cars, "devkit/cars_meta.mat", {"class_names": ["a", "a"]}, "every model once"),
        (trees.digits, "train_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1]]},
         "a picture for each label"),
        (trees.digits, "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8),
                                          "y": [[1], [11]]}, "whole numbers from 0 to 10"),
    ],
)  # fmt: skip
def test_bad_matlab_files_say_where(make, file, content, message, tmp_path):
    base = make(tmp_path)
    savemat(base / file, content)
    with pytest.raises(engram.BadArgument, match=message):
        load(base)


def test_labels_of_the_cars_to_test_are_needed(tmp_path):
    base = trees.cars(tmp_path)
    (base / "devkit" / "cars_test_annos_withlabels.mat").rename(
        base / "cars_test_annos_withlabels.mat"
    )
    assert len(load(base, size=8).test) == 2
    (base / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(engram.BadArgument, match=r"cars_test_annos_withlabels.mat: expected a"):
        load(base)
    (base / "devkit" / "cars_meta.mat").write_bytes(b"nothing of the kind")
    with pytest.raises(engram.BadArgument, match="a complete MATLAB file"):
        load(base)
