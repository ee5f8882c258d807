"""Official formats, from small files that the tests write themselves."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import shutil
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest
import torch

from engram.data import checksums, datasets, load
from engram.data.photos.idx_files import FILES, read_idx
from engram.data.pickles import read_pickle
from tests.refusals import refuses

RNG = np.random.default_rng(0)
IDX = {
    "train_x": RNG.integers(0, 255, (20, 5, 4), np.uint8),
    "train_y": (np.arange(20) % 10).astype(np.uint8),
    "test_x": RNG.integers(0, 255, (10, 5, 4), np.uint8),
    "test_y": np.arange(10, dtype=np.uint8),
}


def idx_bytes(array):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write_idx(folder, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for role, stem in FILES.items():
        content = idx_bytes(IDX[role])
        name = stem + ".gz" if packed else stem
        (folder / name).write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("where", ["mnist", "MNIST/raw", "."])
def test_idx_files_by_name(tmp_path, packed, where):
    write_idx(tmp_path / where, packed)
    data = load("mnist", root=tmp_path, verify=False)
    assert data.sample_shape == (1, 5, 4)
    assert torch.equal(data.x[data.train][:, 0], torch.from_numpy(IDX["train_x"]))
    assert torch.equal(data.x[data.test][:, 0], torch.from_numpy(IDX["test_x"]))
    assert data.labels[data.test].tolist() == list(range(10))
    assert data.notes == (
        "training set has 20 of 60000 rows",
        "test set has 10 of 10000 rows",
    )


def test_fashion_mnist_has_its_own_names(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw")
    data = load("fashion_mnist", root=tmp_path, verify=False)
    assert data.classes[9] == "Ankle boot"
    assert data.notes[0] == "training set has 2 of 6000 rows per class"


def test_own_idx_files_load_by_path_without_checksums(tmp_path):
    write_idx(tmp_path / "letters")
    assert load(tmp_path / "letters").name == "letters"


def test_checksums_are_verified_by_default(tmp_path):
    write_idx(tmp_path)
    with pytest.raises(ValueError, match=r"MD5 .*verify=False skips this"):
        load("mnist", root=tmp_path)
    known = {"file": checksums.md5(b"content")}
    checksums.check_md5("file", b"content", known, "file")
    checksums.check_md5("unknown", b"anything", known, "unknown")
    with pytest.raises(ValueError, match="official file"):
        checksums.check_md5("file", b"other", known, "file")


@pytest.mark.parametrize(
    "content, told",
    [
        (b"", "idx file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "idx file of bytes"),
        (b"\0\0\x08\x03\0\0", "header"),
        (idx_bytes(IDX["train_y"])[:-1], "20 bytes for shape"),
        (gzip.compress(idx_bytes(IDX["train_y"]), mtime=0)[:-9], "complete gzip"),
    ],
)
def test_broken_idx_files_are_named(tmp_path, content, told):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read_idx(tmp_path / "file")


def cifar_batches(name):
    def batch(rows, classes):
        data = RNG.integers(0, 255, (rows, 3072), np.uint8)
        labels = [i % classes for i in range(rows)]
        return {b"data": data, b"labels": labels, b"fine_labels": labels,
                b"coarse_labels": [label // 5 for label in labels]}  # fmt: skip

    if name == "cifar10":
        files = {f"data_batch_{i}": batch(10, 10) for i in range(1, 6)}
        files |= {"test_batch": batch(10, 10)}
        files |= {"batches.meta": {b"label_names": [f"class {i}".encode() for i in range(10)]}}
        return "cifar-10-batches-py", "cifar-10-python.tar.gz", files
    files = {"train": batch(100, 100), "test": batch(100, 100)}
    files["meta"] = {b"fine_label_names": [f"f{i}".encode() for i in range(100)],
                     b"coarse_label_names": [f"c{i}".encode() for i in range(20)]}  # fmt: skip
    return "cifar-100-python", "cifar-100-python.tar.gz", files


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("as_archive", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_batches(tmp_path, name, as_archive, protocol):
    folder, archive, files = cifar_batches(name)
    dumped = {file: pickle.dumps(content, protocol) for file, content in files.items()}
    if as_archive:
        with tarfile.open(tmp_path / archive, "w:gz") as tar:
            for file, content in dumped.items():
                info = tarfile.TarInfo(f"{folder}/{file}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        (tmp_path / folder).mkdir()
        for file, content in dumped.items():
            (tmp_path / folder / file).write_bytes(content)
    data = load(name, root=tmp_path, verify=False)
    rows = {"cifar10": (50, 10), "cifar100": (100, 100)}[name]
    assert (len(data.train), len(data.test)) == rows
    first = files["data_batch_1" if name == "cifar10" else "train"][b"data"][3]
    assert torch.equal(data.x[3], torch.from_numpy(first.reshape(3, 32, 32)))
    assert data.mean == data.std == ()
    if name == "cifar100":
        assert data.attributes["coarse"][:6].tolist() == [0, 0, 0, 0, 0, 1]
        assert data.attribute_names["coarse"][1] == "c1"
        assert data.notes == (
            "training set has 1 of 500 rows per class",
            "test set has 1 of 100 rows per class",
        )
    else:
        assert data.classes[3] == "class 3"
        assert data.labels[:12].tolist() == [*range(10), 0, 1]
    with pytest.raises(ValueError, match="MD5"):
        load(name, root=tmp_path)
    place = tmp_path / (archive if as_archive else folder)
    assert load(place, verify=False).fingerprint() == data.fingerprint()
    found = {one.name: one.available for one in datasets(tmp_path)}
    assert found[name]
    assert not found["mnist"]


@pytest.mark.parametrize("as_archive", [True, False])
def test_the_binary_form_of_cifar_100_is_the_same_data(tmp_path, as_archive):
    folder, _, files = cifar_batches("cifar100")
    (tmp_path / "python" / folder).mkdir(parents=True)
    for file, content in files.items():
        (tmp_path / "python" / folder / file).write_bytes(pickle.dumps(content))
    contents = {
        f"{part}.bin": b"".join(
            bytes([coarse, fine]) + row.tobytes()
            for coarse, fine, row in zip(
                files[part][b"coarse_labels"], files[part][b"fine_labels"], files[part][b"data"],
                strict=True,
            )
        )
        for part in ("train", "test")
    }  # fmt: skip
    for kind in ("fine", "coarse"):
        names = files["meta"][f"{kind}_label_names".encode()]
        contents[f"{kind}_label_names.txt"] = b"\n".join(names) + b"\n"
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    for file, content in contents.items():
        (place / file).write_bytes(content)
    if as_archive:
        with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
            tar.add(place, "cifar-100-binary")
        shutil.rmtree(place)
    known = load("cifar100", root=tmp_path / "python", verify=False)
    data = load("cifar100", root=tmp_path, verify=False)
    assert data.fingerprint() == known.fingerprint()
    assert data.classes == known.classes
    assert torch.equal(data.attributes["coarse"], known.attributes["coarse"])
    assert data.attribute_names == known.attribute_names
    if as_archive:
        with pytest.raises(ValueError, match="MD5"):
            load("cifar100", root=tmp_path)
    else:
        (place / "test.bin").write_bytes(contents["test.bin"][:-1])
        with pytest.raises(ValueError, match=r"test\.bin: expected rows of 3074 bytes"):
            load("cifar100", root=tmp_path, verify=False)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hostile-was-here",)


HOSTILE = [
    pickle.dumps(Hostile()),
    pickle.dumps({b"data": [Hostile()]}, 2),
    b"cbuiltins\neval\n(S'1+1'\ntR.",
    b"c__builtin__\ngetattr\n.",
    pickle.dumps(np.array([Hostile()], object)),
    pickle.dumps(np.array([1, "a"], object)),
    b"cnumpy\nndarray\n(I3\ntR.",
    b"cnumpy\nload\n.",
    b"c_codecs\nencode\n(N}S'__defaults__'\nNstb.",  # an attempt to change the reader itself
    b"\x80\x02]q\x00h\x00a.",  # a list that contains itself
    b"nothing at all",
    b"",
]


@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_pickles_are_refused_and_run_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="plain arrays and lists"):
        read_pickle(content)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\x00.",  # the place of a value to remember
        b"(lp9999999\n.",
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",  # the length of what follows
        b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b".",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1099511627776\ntS'b'\ntR.",
    ],
)
def test_a_number_in_a_pickle_takes_no_memory(content):
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        read_pickle(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_hostile_cifar_batch_is_refused(tmp_path):
    folder, _, files = cifar_batches("cifar100")
    files["train"][b"data"] = Hostile()
    (tmp_path / folder).mkdir()
    for file, content in files.items():
        (tmp_path / folder / file).write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"train: expected plain arrays"):
        load("cifar100", root=tmp_path, verify=False)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([1, 2], ">i4"),
        np.array([b"ab", b"c"]),
        np.array(["ab", "ü"]),
        np.array(3.5),
        np.zeros((0, 3), np.float32),
    ],
)
def test_plain_arrays_survive_every_protocol(array, protocol):
    found = read_pickle(pickle.dumps(array, protocol))
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype


def test_python_2_text_comes_back_as_bytes_and_scalars_as_numbers():
    assert read_pickle(b"(dp0\nS'a'\np1\nI1\ns.") == {b"a": 1}
    assert read_pickle(pickle.dumps([np.int64(3), (1, None, True)], 2)) == [3, (1, None, True)]


def test_fer_csv(tmp_path):
    def pixels(value):
        return " ".join([str(value)] * 2304)

    usages = ["Training", "PublicTest", "PrivateTest"]
    lines = [f"{i},{pixels(i)},{usages[i % 3]}" for i in range(7)]
    file = tmp_path / "fer2013.csv"
    file.write_text("\n".join(["emotion,pixels,Usage", *lines]) + "\n")
    data = load("fer2013", root=tmp_path)
    assert data.x.shape == (7, 1, 48, 48)
    assert data.x[:, 0, 0, 0].tolist() == list(range(7))
    assert data.labels.tolist() == [0, 1, 2, 3, 5, 6, 4]
    assert data.classes[4] == "neutral"
    parts = [part.tolist() for part in (data.train, data.valid, data.test)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
    assert data.notes[0] == "training set has 3 of 28709 rows"
    public = load("fer2013", root=tmp_path, test="public")
    assert [public.valid.tolist(), public.test.tolist()] == [[2, 5], [1, 4]]
    assert public.fingerprint() != data.fingerprint()
    with refuses("test", near="public"):
        load("fer2013", root=tmp_path, test="publc")
    assert load(file).fingerprint() == data.fingerprint()
    for line in (f"7,{pixels(0)},Training", f"0,{pixels(256)},Training", f"0,{pixels(0)},Other",
                 "0,1 2 3,Training"):  # fmt: skip
        file.write_text(f"emotion,pixels,Usage\n{lines[0]}\n{line}\n")
        with pytest.raises(ValueError, match=r"line 3: (expected|Usage)"):
            load(file)


def test_tiny_imagenet_folder(tmp_path):
    from PIL import Image

    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    for value, wnid in ((40, "n2"), (80, "n1")):
        (root / "train" / wnid / "images").mkdir(parents=True)
        for i in range(3):
            Image.new("RGB" if i else "L", (64, 64), value if not i else (value,) * 3).save(
                root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            )
        Image.new("RGB", (64, 64), (value,) * 3).save(root / "val" / "images" / f"{wnid}.JPEG")
    (root / "wnids.txt").write_text("n2\nn1\n")
    (root / "val" / "val_annotations.txt").write_text("n2.JPEG\tn2\t0\t0\t9\t9\nn1.JPEG\tn1\t0\n")
    data = load("tiny_imagenet", root=tmp_path)
    assert data.sample_shape == (3, 64, 64)
    assert data.classes == ("n1", "n2")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 0]
    assert data.x[:, 1, 5, 5].tolist() == [80, 80, 80, 40, 40, 40, 40, 80]
    assert data.test.tolist() == [6, 7]
    (root / "wnids.txt").write_text("n2\nn1\nn3\n")
    with pytest.raises(ValueError, match=r"n3.*expected JPEG files"):
        load(root)
