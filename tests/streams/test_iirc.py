"""The published streams, against the original package and against hashes of what it gave.

`iirc_sets.json` was written by `python -m tests.streams.test_iirc PATH`, PATH being an unpacked
``iirc`` 1.0.1, which is no part of this project. Where that package can be imported the sets are
compared anew.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import engram
from engram.data.dataset import Data
from engram.streams.hierarchical_streams import IIRC_VARIANTS, iirc, read_published_tasks

SETS = Path(__file__).with_name("iirc_sets.json")
SPLITS = {"train": "train", "valid": "intask_valid", "post_valid": "posttask_valid", "test": "test"}


def names_of(variant: str) -> list[str]:
    superclasses, orphans, _ = read_published_tasks(variant)
    return sorted([c for below in superclasses.values() for c in below] + orphans)


def labels(rows: int, seed: int) -> np.ndarray:
    """As many rows of each of 100 classes, in a mixed order, as CIFAR-100 has them."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(100), rows // 100))


def generated() -> Data:
    """CIFAR-100 without pictures: 50,000 training and 10,000 test rows."""
    train, test = labels(50_000, 1), labels(10_000, 2)
    return Data.from_arrays(np.zeros((50_000, 1), np.uint8), train,
                            test=(np.zeros((10_000, 1), np.uint8), test),
                            classes=names_of("cifar"))  # fmt: skip


def digest(rows) -> str:
    """Eight digits of the hash of sorted row numbers; test rows count from 50,000 on."""
    return hashlib.sha256(np.sort(np.asarray(rows, np.int64)).tobytes()).hexdigest()[:8]


@pytest.fixture(scope="module")
def streams():
    data = generated()
    return [iirc(data, "cifar", configuration=c) for c in range(10)]


def test_all_880_sets_are_those_of_the_original_package(streams):
    known = json.loads(SETS.read_text(encoding="utf-8"))
    ours = [{split: [digest(getattr(task, split)) for task in stream] for split in SPLITS}
            for stream in streams]  # fmt: skip
    assert sum(len(tasks) for one in known for tasks in one.values()) == 880
    assert ours == known


def test_golden_counts(streams):
    for stream in streams:
        assert [len(task.new) for task in stream] == [10] + [5] * 21
        for split, several, once in (("train", 46_160, 40_000), ("valid", 5_770, 5_000)):
            rows = torch.cat([getattr(task, split) for task in stream])
            assert (len(rows), len(rows.unique())) == (several, once)
        for split, once in (("post_valid", 5_000), ("test", 10_000)):
            assert len(torch.cat([getattr(task, split) for task in stream]).unique()) == once


def test_streams_know_how_they_were_made(streams):
    origin = streams[3].origin
    options = {
        "variant": "cifar", "configuration": 3, "information": "incomplete", "joint": False
    }  # fmt: skip
    assert (origin.kind, dict(origin.options)) == ("iirc", options)
    assert len({stream.order for stream in streams}) == 10


@pytest.mark.parametrize(
    ("variant", "sizes", "first"),
    [("imagenet-full", [63, *[30] * 34], 63), ("imagenet-lite", [63, *[30] * 9], 63)],
)
def test_imagenet_is_keyed_by_wnid(variant, sizes, first):
    names = [*names_of(variant), "n00000001"]  # a class that the protocol leaves out
    y = np.repeat(np.arange(len(names)), 100)
    x, held = np.zeros((len(y), 1), np.uint8), np.arange(len(names))
    data = Data.from_arrays(x, y, test=(x[: len(names)], held), classes=names)
    stream = engram.iirc(data, variant, configuration=4)
    assert [len(task.new) for task in stream] == sizes
    assert all(stream.data.classes[c].startswith("superclass/") for c in stream[0].new)
    fine = next(c for c in stream[1].new if stream.data.classes[c].startswith("fine/n"))
    rows = stream[1].train[(stream.data.y[stream[1].train] == fine).any(1)]
    assert len(rows) in (92, 73)  # 100 less 4 and 4: all of it, or int(.8 * 92)
    assert len(stream[1].post_valid) >= 30 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "cifa"}, "variant: unknown name 'cifa', did you mean 'cifar'"),
        ({"configuration": 10}, "configuration: expected a whole number from 0 to 9, got 10"),
        ({"configuration": -1}, "configuration: expected"),
        ({"configuration": 1.5}, "configuration: expected"),
        (
            {"variant": "imagenet-lite", "configuration": 5},
            "configuration: expected a whole number from 0 to 4, got 5",
        ),
        ({"variant": "imagenet-full"}, r"the 998 classes of IIRC's imagenet, by wnid, got .* more"),
    ],
)
def test_bad_options_are_refused(options, message):
    y = np.repeat(np.arange(100), 20)
    data = Data.from_arrays(np.zeros((2000, 1)), y, classes=names_of("cifar"))
    with pytest.raises(engram.BadArgument, match=message):
        iirc(data, **options)


def test_classes_that_the_data_lacks_are_named():
    names = [name for name in names_of("cifar") if name not in ("fox", "worm")]
    y = np.repeat(np.arange(98), 20)
    data = Data.from_arrays(np.zeros((1960, 1)), y, classes=names, name="part")
    with pytest.raises(engram.BadArgument, match=r"'part' without \['fox', 'worm'\]"):
        iirc(data)


def test_in_recipes_and_on_the_command_line():
    section = {"data": "blobs", "kind": "iirc", "variant": "cifar", "configuration": 2}
    recipe = engram.Recipe.of({"stream": section, "method": "ER"})
    with pytest.raises(engram.BadArgument, match="the 100 classes of IIRC's cifar, by name"):
        recipe.build_stream()
    assert set(IIRC_VARIANTS) == {"cifar", "imagenet-full", "imagenet-lite"}


def official_layout(root: Path) -> None:
    """Files as CIFAR-100's, whose pictures carry their row number."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, rows, start, seed in (("train", 50_000, 0, 1), ("test", 10_000, 50_000, 2)):
        data = np.zeros((rows, 3072), np.uint8)
        number = np.arange(start, start + rows)
        data[:, 0], data[:, 1024], data[:, 2048] = number & 255, number >> 8 & 255, number >> 16
        content = {b"data": data, b"fine_labels": labels(rows, seed).tolist()}
        (folder / part).write_bytes(pickle.dumps(content))
    meta = {b"fine_label_names": [name.encode() for name in names_of("cifar")]}
    (folder / "meta").write_bytes(pickle.dumps(meta))


def original_sets(root: Path) -> list[dict[str, list[str]]]:
    """Hashes of the sets that the original package makes."""
    from iirc.datasets_loader import _get_dataset, _get_tasks_configuration
    from iirc.lifelong_dataset.base_dataset import BaseDataset

    class Plain(BaseDataset):  # the abstract part is about pictures
        def __getitem__(self, index):
            raise NotImplementedError

        _get_all_dataset = _get_sample = __getitem__

    Plain.__abstractmethods__ = frozenset()
    official_layout(root)
    datasets, settings = _get_dataset("iirc_cifar100", str(root))
    numbers = {}
    for split, samples in datasets.items():
        pixels = [image.getpixel((0, 0)) for image, _ in samples]
        numbers[split] = np.array([r + (g << 8) + (b << 16) for r, g, b in pixels])
    shares = {key: settings[key] for key in ("superclass_data_pct", "subclass_data_pct",
                                             "superclass_sampling_size_cap")}  # fmt: skip
    found = []
    for configuration in range(10):
        tasks, _ = _get_tasks_configuration("iirc_cifar100", configuration)
        sets = {}
        for ours, theirs in SPLITS.items():
            test = theirs in ("posttask_valid", "test")
            light = [(None, sample_labels) for _, sample_labels in datasets[theirs]]
            made = Plain(light, tasks, test_mode=test, **shares)
            sets[ours] = [digest(numbers[theirs][made.task_id_to_data_idx[k]]) for k in range(22)]
        found.append(sets)
    return found


def test_the_original_package_still_gives_these_sets(tmp_path):
    pytest.importorskip("iirc", reason="needs the package iirc 1.0.1 beside the tests")
    assert original_sets(tmp_path) == json.loads(SETS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    import tempfile

    sys.path.insert(0, sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        lines = (json.dumps(one) for one in original_sets(Path(folder)))
        SETS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
