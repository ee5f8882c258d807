"""ImageNet: an index to plan with, pictures from one file."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram.data import imagenet
from engram.errors import BadArgument
from engram.reproduce import find_table, plan
from engram.streams.published import published

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


def test_tables_on_imagenet_are_planned_from_the_index(tmp_path, monkeypatch):
    tree, orphans, _ = published("imagenet-lite")
    wnids = sorted({name for below in tree.values() for name in below} | set(orphans))
    write(tmp_path / "imagenet")
    labels = [*np.repeat(wnids, 50), *wnids]
    spans = {"train": (0, 50 * len(wnids)), "val": (50 * len(wnids), 51 * len(wnids))}
    monkeypatch.setattr(imagenet, "_listed", lambda path: (labels, labels, spans))
    table = find_table("iirc/C.2", assignments=["configurations=1"])
    made = plan(table, tmp_path, measure=False)
    assert len(made.runnable) == 50
    assert len(made.runs) == 5
    assert len(made.runs[0].run.stream) == 10
    assert any("plans only" in note for note in made.notes)
