"""ImageNet: an index to plan with, pictures from one file."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import engram
from engram.data.photos import imagenet
from engram.errors import BadArgument
from engram.reproduce import find_table, plan
from engram.streams.hierarchical_streams import read_published_tasks

Image = pytest.importorskip("PIL.Image")


def write(folder):
    for part, count in (("train", 5), ("val", 1)):
        for k, wnid in enumerate(("n01440764", "n01443537")):
            (folder / part / wnid).mkdir(parents=True)
            for i in range(count):
                picture = Image.new("RGB", (40, 20), (200, 100 * k, 0))
                picture.save(folder / part / wnid / f"{wnid}_{i}.JPEG", quality=95)


def test_an_index_has_shapes_but_no_pictures(tmp_path):
    write(tmp_path / "imagenet")
    data = engram.load("imagenet", root=tmp_path)
    assert (len(data.train), len(data.test), data.sample_shape) == (10, 2, (3, 224, 224))
    assert data.classes == ("n01440764", "n01443537")
    assert imagenet.is_unread(data)
    assert "plans only" in data.notes[0]
    assert data.fingerprint() == engram.load("imagenet", root=tmp_path).fingerprint()
    stream = engram.class_incremental(data, classes_per_task=1)
    with pytest.raises(BadArgument, match="data: expected pictures that were read"):
        engram.run(stream, method="Finetune", model="mlp")


def test_pictures_come_from_one_file(tmp_path):
    write(tmp_path / "imagenet")
    options = {"size": 16, "packed": tmp_path / "all.npz"}
    first = engram.load("imagenet", root=tmp_path, **options)
    again = engram.load("imagenet", root=tmp_path, **options)
    assert not imagenet.is_unread(first)
    assert first.fingerprint() == again.fingerprint()
    pixels = np.asarray(first.x[5]).astype(int)  # the first of the second class
    assert np.abs(pixels - np.array([200, 100, 0])[:, None, None]).max() < 12
    with pytest.raises(BadArgument, match="packed: expected a file with pictures of shape"):
        engram.load("imagenet", root=tmp_path, size=32, packed=tmp_path / "all.npz")


def test_folders_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "val" / "n00000000").mkdir()
    with pytest.raises(BadArgument, match="classes that train has"):
        engram.load("imagenet", root=tmp_path)


@pytest.fixture(scope="module")
def lite(tmp_path_factory):
    """The class folders of IIRC-ImageNet-lite; one picture under all names."""
    root = tmp_path_factory.mktemp("lite")
    tree, orphans, _ = read_published_tasks("imagenet-lite")
    picture = root / "one.JPEG"
    Image.new("RGB", (12, 10), (200, 100, 0)).save(picture)
    for wnid in sorted({name for below in tree.values() for name in below} | set(orphans)):
        for part, count in (("train", 40), ("val", 1)):
            folder = root / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            for i in range(count):
                os.link(picture, folder / f"{i}.JPEG")
    return root


def test_tables_on_imagenet_are_planned_from_the_index(lite):
    table = find_table("iirc/C.2", assignments=["configurations=1"])
    made = plan(table, lite, measure=False)
    assert len(made.runnable) == 50
    assert len(made.runs) == 5
    assert len(made.runs[0].run.stream) == 10
    assert any("plans only" in note for note in made.notes)


def test_the_stream_of_iirc_imagenet_lite_over_its_folders(lite):
    data = engram.load("imagenet", root=lite, lazy=True, size=8, cache=3 * 8 * 8 * 100)
    stream = engram.iirc(data, "imagenet-lite", configuration=2)
    assert (len(stream), len(stream.order)) == (10, 333)
    assert len(data) == 41 * len(data.classes)
    assert torch.isin(torch.cat([task.train for task in stream]), data.train).all()
    assert min(len(task.train) for task in stream) > 20 * 40
    assert data.x.cache.reads == 0  # a stream is made of row numbers
    x = data.gather(stream[4].train[:40])
    assert x.shape == (40, 3, 8, 8)
    assert np.abs(x[-1].numpy().astype(int) - np.array([200, 100, 0])[:, None, None]).max() < 12
    assert engram.load("imagenet", root=lite, lazy=True, size=8).fingerprint() == data.fingerprint()


def test_pictures_as_needed_are_those_of_one_file(tmp_path):
    write(tmp_path / "imagenet")
    packed = engram.load("imagenet", root=tmp_path, size=16, packed=tmp_path / "all.npz")
    lazy = engram.load("imagenet", root=tmp_path, size=16, lazy=True)
    assert np.array_equal(lazy.x[:], packed.x[:])
    assert not imagenet.is_unread(lazy)
    with pytest.raises(BadArgument, match="lazy: expected False where packed"):
        engram.load("imagenet", root=tmp_path, packed=tmp_path / "all.npz", lazy=True)
