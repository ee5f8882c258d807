from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from engram.data import Data, add, datasets, inspect, list_sets, load, pack, verify
from engram.data.checked_files import read_npz
from engram.data.images import cut_sheets

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)


def encoded(array, form, **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, form, **options)
    return np.frombuffer(stream.getvalue(), np.uint8)


def joined(pieces):
    return np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])


def test_parts_as_arrays(tmp_path):
    x, y = RNG.integers(0, 255, (6, 4, 4), np.uint8), np.arange(6) % 3
    np.savez(tmp_path / "set.npz", train_x=x, train_y=y, test_x=x[:3], test_y=y[:3])
    data = load("set", root=tmp_path)
    assert data.sample_shape == (1, 4, 4)
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])
    assert load(tmp_path / "set.npz").fingerprint() == data.fingerprint()
    assert data.notes == ()


def test_the_other_spelling_and_one_hot_labels(tmp_path):
    x, y = RNG.integers(0, 255, (4, 5, 5, 3), np.uint8), np.eye(3)[[0, 1, 2, 1]]
    np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = load("set", root=tmp_path)
    assert data.labels.tolist() == [0, 1, 2, 1] * 2
    assert torch.equal(data.x[0], torch.from_numpy(x[0].transpose(2, 0, 1).copy()))


def test_usage_and_split_codes(tmp_path):
    x, label = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", x=x, label=label, usage=np.array([0, 1, 2, 0]), names=["n", "m"])
    data = load("a", root=tmp_path)
    parts = [part.tolist() for part in (data.train, data.valid, data.test)]
    assert parts == [[0, 3], [1], [2]]
    assert data.classes == ("n", "m")
    np.savez(tmp_path / "b.npz", x=x, label=label, split=np.array([0, 1, 255, 2], np.uint8))
    data = load("b", root=tmp_path)
    parts = [part.tolist() for part in (data.train, data.valid, data.test)]
    assert parts == [[0], [3], [1]]


def test_without_a_split_rows_are_held_out_and_it_is_said(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 2)), label=np.zeros(5, int))
    data = load("a", root=tmp_path)
    assert data.test.tolist() == [4]
    assert "every fifth row" in data.notes[0]


def test_jpeg_streams_with_domains(tmp_path):
    image = np.full((8, 8, 3), 100, np.uint8)
    stream, offsets = joined([encoded(image, "JPEG"), encoded(image + 50, "JPEG")])
    np.savez(
        tmp_path / "photos_64.npz", jpeg=stream, offsets=offsets, label=np.array([0, 1]),
        split=np.array([0, 1]), domain=np.array([1, 0]), domain_names=["birds", "cars"],
        names=["a", "b"],
    )  # fmt: skip
    data = load("photos", root=tmp_path)
    assert data.x.float().mean((1, 2, 3)).tolist() == [100.0, 150.0]
    assert data.attributes["domain"].tolist() == [1, 0]
    assert data.attribute_names["domain"] == ("birds", "cars")


def test_sheets_are_cut_row_by_row():
    tiles = RNG.integers(0, 255, (50, 32, 32, 3), np.uint8)
    sheet = tiles.reshape(2, 25, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 800, 3)
    found = cut_sheets([encoded(sheet, "WEBP", lossless=True).tobytes()])
    assert np.array_equal(found, tiles.transpose(0, 3, 1, 2))
    with pytest.raises(ValueError, match="sheet 0: expected a width of 800"):
        cut_sheets([encoded(sheet[:, :32], "PNG").tobytes()])


def sheet_file(path, fine):
    sheet = np.zeros((32, 800, 3), np.uint8)
    stream, offsets = joined([encoded(sheet + 7, "WEBP", lossless=True)])
    names = [f"class {i}" for i in range(25)]
    np.savez(path, webp=stream, webp_offsets=offsets, fine=fine, coarse=fine // 5, fine_names=names)


def test_several_files_make_one_set(tmp_path):
    fine = np.arange(25, dtype=np.uint8)
    sheet_file(tmp_path / "own_full_train_0.npz", fine)
    sheet_file(tmp_path / "own_full_train_1.npz", fine)
    sheet_file(tmp_path / "own_full_test.npz", fine[::-1].copy())
    data = load("own", root=tmp_path)
    assert (len(data.train), len(data.test)) == (50, 25)
    assert data.train.tolist() == list(range(50))
    assert data.labels[data.test].tolist() == fine[::-1].tolist()
    assert data.attributes["coarse"][:6].tolist() == [0, 0, 0, 0, 0, 1]
    assert [one.name for one in list_sets(tmp_path)][-1] == "own"


def test_a_short_name_does_not_take_the_files_of_a_longer_one(tmp_path):
    np.savez(tmp_path / "cifar100_train.npz", x=np.zeros((5, 2)), label=np.zeros(5, int))
    with pytest.raises(ValueError, match=r"cifar10 was not found .*cifar-10-python\.tar\.gz"):
        load("cifar10", root=tmp_path)
    assert load("cifar100", root=tmp_path).notes[-1] == "test set has 1 of 10000 rows"


@pytest.mark.parametrize(
    "arrays, told",
    [
        ({"x": np.zeros((2, 1))}, "labels under one of"),
        ({"label": np.zeros(2, int)}, "one of the keys"),
        ({"x": np.zeros((2, 1)), "label": np.zeros(3, int)}, "2 labels"),
        ({"x": np.zeros((2, 1)), "label": np.zeros(2, int), "split": [0, 9]}, "codes of 0, 1, 2"),
        ({"x": np.zeros((2, 1)), "label": np.zeros(2, int), "usage": [0, 3]}, "0 train, 1 valid"),
        ({"x": np.array([[np.nan]]), "label": [0]}, "nan or inf in row 0"),
        ({"jpeg": np.zeros(4, np.uint8), "offsets": [0, 3], "label": [0]}, "numbers from 0 to 4"),
        ({"jpeg": np.zeros(4, np.uint8), "offsets": [0, 4], "label": [0]}, "readable image"),
        ({"x": np.zeros((1, 1)), "label": [3], "names": ["a"]}, "at least 4 names"),
    ],
)
def test_damaged_files_are_explained(tmp_path, arrays, told):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=told):
        load("bad", root=tmp_path)


def test_pickles_inside_are_refused(tmp_path):
    np.savez(tmp_path / "bad.npz", x=np.array([{}], object), label=[0])
    with pytest.raises(ValueError, match="pickled objects"):
        read_npz(tmp_path / "bad.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "bad.npz").read_bytes()[:50])
    with pytest.raises(ValueError, match="complete npz"):
        load(tmp_path / "cut.npz")


def full_data():
    rows = torch.arange(10)
    second = torch.where(rows > 5, (rows + 1) % 3, -1)
    return Data(
        x=torch.rand(10, 3), y=torch.stack([rows % 3, second], 1),
        train=rows[:5], test=rows[7:], valid=rows[5:6], classes=("a", "b", "c"), name="full",
        attributes={"view": rows * 100}, attribute_names={"view": ("l", "r")},
        mean=(0.5,), std=(0.25,), notes=("one row unused",),
    )  # fmt: skip


def test_packing_keeps_everything(tmp_path):
    data = full_data()
    again = load(pack(data, tmp_path / "full"))
    assert again.fingerprint() == data.fingerprint()
    for key in ("classes", "name", "mean", "std", "notes", "attribute_names"):
        assert getattr(again, key) == getattr(data, key), key
    assert torch.equal(again.attributes["view"], data.attributes["view"])
    assert [one.name for one in tmp_path.iterdir()] == ["full.npz"]


def test_packing_keeps_an_order_of_its_own_and_shared_rows(tmp_path):
    rows = torch.tensor([3, 1, 2])
    data = Data(
        x=torch.rand(4, 2), y=torch.zeros(4, 1, dtype=torch.long), train=rows, test=rows,
        classes=("a",),
    )  # fmt: skip
    again = load(pack(data, tmp_path / "a.npz"))
    assert again.train.tolist() == [3, 1, 2]
    assert again.test.tolist() == [3, 1, 2]


def test_packing_refuses_attributes_it_could_not_read_back(tmp_path):
    data = Data.from_arrays([[0.0]], [0], attributes={"split": torch.zeros(1, dtype=torch.long)})
    with pytest.raises(ValueError, match="no keys of the packed form"):
        pack(data, tmp_path / "a.npz")


def test_add_then_load_by_name(tmp_path, monkeypatch):
    source, root = tmp_path / "source.npz", tmp_path / "root"
    root.mkdir()
    pack(full_data(), source)
    file = add(source, "mine", root)
    assert file == root / "mine.npz"
    monkeypatch.setenv("ENGRAM_DATA", str(root))
    assert load("mine").name == "mine"
    assert load("mine").fingerprint() == full_data_like(source)
    with pytest.raises(ValueError, match="a name that is not taken"):
        add(source, "mine")
    add(source, "mine", replace=True)
    for name in ("digits", "a/b"):
        with pytest.raises(ValueError, match="name: expected"):
            add(source, name)
    monkeypatch.delenv("ENGRAM_DATA")
    with pytest.raises(ValueError, match="root: expected a folder"):
        add(source, "mine")


def full_data_like(source):
    return load(source).fingerprint()


def test_verify_and_inspect(tmp_path):
    assert all(check.good for check in verify("digits"))
    x, label = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
    rows = np.arange(4)
    np.savez(
        tmp_path / "odd.npz", x=x, label=label, names=["a", "b", "never"], train_rows=rows,
        test_rows=rows, valid_rows=rows[:0],
    )  # fmt: skip
    checks = {check.what: check for check in verify("odd", root=tmp_path)}
    assert not checks["every class has training rows"].good
    assert "never" in checks["every class has training rows"].found
    assert not checks["no row in both train and test"].good
    assert checks["finite values"].good
    (checks,) = (verify("nothing", root=tmp_path),)
    assert [check.good for check in checks] == [False]
    report = inspect("odd", root=tmp_path)
    assert report.counts["a"] == {"train": 2, "valid": 0, "test": 2}
    assert (report.shape, report.dtype) == ((2,), "float32")


def test_names_paths_and_complaints(tmp_path, monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    with pytest.raises(ValueError, match="did you mean 'fashion_mnist'"):
        load("fashion_minst")
    with pytest.raises(ValueError, match="Nor is there a file or folder called photos here"):
        load("photos")
    with pytest.raises(ValueError, match=r"give root= \(--root\) or set ENGRAM_DATA"):
        load("mnist")
    with pytest.raises(ValueError, match="a path that exists"):
        load(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match="root: expected a folder"):
        load("mnist", root=tmp_path / "absent")
    with pytest.raises(ValueError, match=r"option of blobs: unknown name 'clases'.*'classes'"):
        load("blobs", clases=3)
    pack("digits", tmp_path / "one.npz")
    pack("digits", tmp_path / "two.npz")
    with pytest.raises(ValueError, match=r"\['one', 'two'\]: load one by name"):
        load(tmp_path)
    with pytest.raises(ValueError, match="did you mean 'one'"):
        load("onne", root=tmp_path)
    with pytest.raises(ValueError, match="option of the packed form: unknown name 'verify'"):
        load("one", root=tmp_path, verify=False)
    assert {one.name for one in datasets(tmp_path) if one.available} >= {"one", "two", "digits"}
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(ValueError, match=r"expected a table .*arrays"):
        load(tmp_path / "file.txt")
