"""Labels that used to go wrong in silence are refused, or told, by every reader."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from engram.data import Data, from_geometric, load
from engram.errors import BadArgument
from engram.streams import class_incremental
from tests.data.photos.test_official_files import IDX, cifar_batches, idx_bytes, write_idx
from tests.refusals import refuses

X = np.zeros((10, 3), np.float32)


def rows(*labels):
    """Ten labels: the given ones, then 0 and 1 in turn."""
    return [*labels, *(i % 2 for i in range(10 - len(labels)))]


@pytest.mark.parametrize(
    ("y", "told"),
    [
        (rows(-1), "a label for each row, got 'row 0"),
        (rows(0, 1, -2), "class ids from 0"),
        (rows(1.5), "1.5 in row 0"),
        (rows(0, float("nan")), "nan in row 1"),
        (rows(0, float("inf")), "inf in row 1"),
        (rows(10**12), "class ids below"),
        (np.array(rows(2**63 - 1), np.uint64), "class ids below"),
        ([[0, 1]] + [[1, -1]] * 8 + [[-1, 0]], "-1 only after the labels"),
        ([[0, 1]] * 9 + [[]], "a label for each row, got 'row 9"),
        ([["a", "b"]] * 9 + [["a", "b", "a"]], "every label at most once in a row"),
        ([[["a"], ["b", "c"]]] * 10, "a list of labels for each row"),
        ([[True, False]] * 9 + [[True]], "class ids or names in lists of different lengths"),
        ([["a", "b"]] * 9 + [[1]], "labels of one type, got int and str"),
        (["a", "b"] * 4 + ["a", None], "none in row 9"),
        (["a", "b"] * 4 + ["a", 3], "labels of one type, got int and str"),
        (np.array(["a", 3] * 5, object), "labels of one type, got int and str"),
        ([0, True] * 5, "labels of one type, got bool and int"),
        ([[1, True]] * 10, "labels of one type, got bool and int"),
        ([["a", 1]] * 10, "labels of one type, got int and str"),
        (["z", "z\0"] * 5, "no NUL character at the end"),
        ([b"z", b"z\0"] * 5, "no NUL character at the end"),
        ([["z", "z\0"]] * 10, "no NUL character at the end"),
        (["cat", "dog"] * 4 + ["cat", "cat "], "differ in more than whitespace"),
        (["cat", "dog"] * 4 + ["cat", " "], "a name for each class"),
        (np.array([object()] * 10), "whole numbers or names"),
    ],
)
def test_wrong_labels_of_arrays_are_refused(y, told):
    with refuses("y") as error:
        Data.from_arrays(X, y)
    assert told in str(error.value)


def test_names_and_numbers_in_two_parts_are_refused():
    with pytest.raises(BadArgument, match="either names in all parts or numbers"):
        Data.from_arrays(X, rows(), test=(X, ["0", "1"] * 5))


def test_bytes_are_names_and_cases_are_told():
    data = Data.from_arrays(X, [b"cat", b"Cat"] * 5)
    assert data.classes == ("Cat", "cat")
    assert data.notes == ("the classes 'Cat', 'cat' differ only in upper and lower case",)
    assert Data.from_arrays(X, ["a", "A"] * 5).notes == ()  # letters


def test_a_row_without_a_label_cannot_leave_the_stream():
    y = torch.tensor(rows(-1))[:, None]
    split = {"train": torch.arange(8), "test": torch.tensor([8, 9])}
    with pytest.raises(BadArgument, match="a label for each row"):
        Data(x=torch.from_numpy(X), y=y, classes=("a", "b"), **split)
    with pytest.raises(BadArgument, match="whole numbers"):
        Data(x=torch.from_numpy(X), y=y.float().abs(), classes=("a", "b"), **split)
    unused = {**split, "train": torch.arange(1, 8)}  # a row that nobody uses may lack one
    data = Data(x=torch.from_numpy(X), y=y, classes=("a", "b"), **unused)
    assert sum(len(task.train) for task in class_incremental(data, classes_per_task=1)) == 7


FER = "emotion,pixels,Usage\n"


@pytest.mark.parametrize("wrong", ["-1", "7", "1.5", "", "nan"])
def test_fer_emotions_are_0_to_6(tmp_path, wrong):
    line = f"{' '.join(['0'] * 48 * 48)},Training\n"
    (tmp_path / "fer2013.csv").write_text(f"{FER}0,{line}{wrong},{line}")
    with pytest.raises(BadArgument, match="line 3: expected emotion 0 to 6"):
        load("fer2013", root=tmp_path)


@pytest.mark.parametrize("usage", [[0, 1, 2, -1], [0, 1, 2, 3], [0.0, 1.0, 2.0, 1.5]])
def test_usage_is_0_to_2(tmp_path, usage):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), label=[0, 1, 0, 1], usage=usage)
    with pytest.raises(BadArgument, match="usage: expected 0 train, 1 valid, 2 test"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("label", [[0, 1, 0, -1], [0, 1, 0, 1.5], [0, 1, 0, np.nan]])
def test_wrong_labels_of_packed_files(tmp_path, label):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), label=label, split=[0, 0, 1, 1])
    with pytest.raises(BadArgument, match="y: expected"):
        load(tmp_path / "a.npz")


def test_row_numbers_of_packed_files_are_whole(tmp_path):
    parts = {"train_rows": [0.5, 1.5], "test_rows": [2, 3], "valid_rows": np.empty(0, int)}
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), label=[0, 1, 0, 1], **parts)
    with pytest.raises(BadArgument, match="train_rows: expected whole numbers from 0 to 3"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("label", [[0, -1], [0, 2], [0, 0.5], [0, np.nan], [[0, 1], [1, 0]]])
def test_wrong_labels_of_packed_sequences(tmp_path, label):
    joints = np.random.default_rng(0).random((8, 5, 3), np.float32)
    np.savez(tmp_path / "a.npz", joints=joints, offsets=[0, 4, 8], label=label, names=["a", "b"])
    with pytest.raises(BadArgument, match="label: expected"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("label", [-1, 60, 0.5])
def test_wrong_labels_of_prepared_ntu(tmp_path, label):
    x = np.ones((4, 300, 150), np.float32)
    np.savez(tmp_path / "NTU60_CS.npz", x_train=x, y_train=[0, 1, 2, label])
    with pytest.raises(BadArgument, match="y_train: expected whole numbers from 0 to 59"):
        load(tmp_path / "NTU60_CS.npz", classes=3)


def test_a_matrix_that_is_not_one_hot_is_no_label_of_ntu(tmp_path):
    one_hot = np.eye(60)[[0, 1, 2, 0]]
    one_hot[3] = 0
    x = np.ones((4, 300, 150), np.float32)
    np.savez(tmp_path / "NTU60_CS.npz", x_train=x, y_train=one_hot)
    with pytest.raises(BadArgument, match="one whole number per row"):
        load(tmp_path / "NTU60_CS.npz", classes=3)


@pytest.mark.parametrize("wrong", [-1, 10, 0.5])
def test_wrong_labels_of_cifar(tmp_path, wrong):
    import pickle

    for file, content in cifar_batches("cifar10")[2].items():
        if file == "test_batch":
            content = {**content, b"labels": [wrong, *content[b"labels"][1:]]}
        (tmp_path / file).write_bytes(pickle.dumps(content))
    with pytest.raises(BadArgument, match="labels: expected whole numbers from 0 to 9"):
        load(tmp_path, verify=False)


def test_labels_of_idx_files_are_digits(tmp_path):
    write_idx(tmp_path, packed=False)
    wrong = IDX["train_y"].copy()
    wrong[3] = 10
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(wrong))
    with pytest.raises(BadArgument, match=r"train-labels.*whole numbers from 0 to 9"):
        load("mnist", root=tmp_path, verify=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros((20, 2), np.uint8)))
    with pytest.raises(BadArgument, match="one whole number per row"):
        load("mnist", root=tmp_path, verify=False)


def test_wrong_labels_of_tiny_imagenet(tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val_annotations.txt").write_text("one word\n")
    (tmp_path / "wnids.txt").write_text("n1\nn2\nn1\n")
    with pytest.raises(BadArgument, match="every class once, got \\['n1'\\]"):
        load(tmp_path)


def test_wrong_labels_of_torch_sets_and_graphs():
    x = torch.zeros(3)
    with pytest.raises(BadArgument, match=r"dataset\[1\]: expected a label of shape \(\)"):
        Data.from_torch([(x, 0), (x, [0, 1])])
    with pytest.raises(BadArgument, match="a label for each row"):
        Data.from_torch([(x, 0), (x, None)])
    with pytest.raises(BadArgument, match="labels of one type"):
        Data.from_torch([(x, 0), (x, "cat")])
    graphs = [types.SimpleNamespace(x=torch.zeros(4, 3), y=torch.tensor([0, 1]))]
    with pytest.raises(BadArgument, match=r"graphs\[0\].y: expected one label"):
        from_geometric(graphs)


def test_each_row_may_have_a_list_of_labels_of_its_own():
    named = [["pet", "cat"], ["oak"], {"pet", "dog"}] * 3 + [("oak",)]
    data = Data.from_arrays(X, named)
    assert data.classes == ("cat", "dog", "oak", "pet")
    assert data.y[:3].tolist() == [[3, 0], [2, -1], [1, 3]]
    assert data.is_multilabel
    numbered = Data.from_arrays(X, np.array([[3, 0], [2], [1, 3], [0]] * 2 + [[1], [2]], object))
    assert numbered.y[:4].tolist() == [[3, 0], [2, -1], [1, 3], [0, -1]]
    chosen = Data.from_arrays(X, named, classes=("pet", "oak", "dog", "cat"))
    assert chosen.y[:3].tolist() == [[0, 3], [1, -1], [2, 0]]


def test_the_parts_of_a_split_need_not_have_sets_of_one_size():
    data = Data.from_arrays(X, [["a"], ["b", "c"]] * 5, test=(X, ["a", "b"] * 5))
    assert data.y[data.test].tolist() == [[0, -1], [1, -1]] * 5
    assert data.y[data.train[:2]].tolist() == [[0, -1], [1, 2]]


def test_names_of_classes_differ():
    with pytest.raises(ValueError, match="classes: expected names that differ, got 'a more than"):
        Data.from_arrays(np.zeros((4, 2)), [0, 1, 2, 0], classes=["a", "b", "a"])
