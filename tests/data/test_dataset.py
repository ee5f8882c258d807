from __future__ import annotations

import numpy as np
import pytest
import torch

from engram.data import Data
from tests.refusals import refuses


def small(**options):
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    return Data.from_arrays(x, np.arange(10) % 2, **options)


def test_every_fifth_row_of_each_class_is_held_out():
    data = small()
    assert data.test.tolist() == [8, 9]
    assert data.train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_valid_without_test_leaves_valid_rows_alone():
    data = small(valid=(np.zeros((5, 2), np.float32), [0] * 5))
    assert data.valid.tolist() == [10, 11, 12, 13, 14]
    assert data.test.tolist() == [8, 9]
    assert max(data.train.tolist()) < 10


def test_rows_follow_the_order_x_valid_test():
    part = np.full((3, 2), 7.0)
    data = small(valid=(part, [1, 1, 1]), test=(part + 1, [0, 0, 0]))
    assert data.gather(data.valid).unique().tolist() == [7.0]
    assert data.gather(data.test).unique().tolist() == [8.0]


def test_names_become_ids_in_sorted_order_or_in_the_given_one():
    data = Data.from_arrays(np.zeros((3, 1)), ["b", "a", "b"])
    assert data.classes == ("a", "b")
    assert data.labels.tolist() == [1, 0, 1]
    data = Data.from_arrays(np.zeros((3, 1)), ["b", "a", "b"], classes=("b", "a", "c"))
    assert data.classes == ("b", "a", "c")
    assert data.labels.tolist() == [0, 1, 0]


def test_whole_floats_are_ids_and_fractions_are_refused():
    assert Data.from_arrays(np.zeros((2, 1)), [0.0, 1.0]).classes == ("0", "1")
    with pytest.raises(ValueError, match="whole numbers"):
        Data.from_arrays(np.zeros((2, 1)), [0.5, 1.0])


@pytest.mark.parametrize(
    "x, y, told",
    [
        (np.zeros(3), [0, 1, 2], "at least two axes"),
        (np.zeros((3, 2)), [0, 1], "3 labels"),
        (np.array([[1.0], [np.nan]]), [0, 1], "nan or inf in row 1"),
        (np.array([[1.0], [1e300]]), [0, 1], "nan or inf in row 1"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0, 1], "channels-first"),
        ([[1.0], [1.0, 2.0]], [0, 1], "rows of the same shape"),
        (np.array([["a"], ["b"]]), [0, 1], "array of numbers"),
        (np.zeros((2, 1)), [0, -2], "class ids from 0"),
        (np.zeros((0, 1)), [], "at least one row"),
    ],
)
def test_bad_arrays_are_refused_with_a_reason(x, y, told):
    with pytest.raises(ValueError, match=told):
        Data.from_arrays(x, y)


def test_parts_must_agree_in_shape_and_type():
    with pytest.raises(ValueError, match="test: expected rows of shape"):
        small(test=(np.zeros((2, 3)), [0, 1]))
    with refuses("test"):
        small(test=(np.zeros((2, 2), np.uint8), [0, 1]))


def test_fields_are_checked():
    x, y, rows = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.long), torch.arange(3)
    with pytest.raises(ValueError, match="test: expected row numbers"):
        Data(x=x, y=y, train=rows, test=rows + 1, classes=("a",))
    with pytest.raises(ValueError, match="attributes"):
        Data(x=x, y=y, train=rows, test=rows, classes=("a",), attributes={"view": rows[:2]})
    with refuses("classes"):
        Data(x=x, y=y, train=rows, test=rows)
    with refuses("std"):
        Data(x=x, y=y, train=rows, test=rows, classes=("a",), mean=(0.5,))


def test_uint8_stays_and_other_numbers_become_float32():
    assert Data.from_arrays(np.zeros((2, 3), np.uint8), [0, 1]).x.dtype == torch.uint8
    for kind in (np.int64, np.float64, np.float16, np.uint16, bool):
        assert Data.from_arrays(np.ones((2, 3), kind), [0, 1]).x.dtype == torch.float32


def test_fingerprint_sees_inputs_labels_and_split():
    data = small()
    assert data.fingerprint() == small().fingerprint()
    others = [
        Data.from_arrays(np.arange(20.0).reshape(10, 2) + 1, np.arange(10) % 2),
        Data.from_arrays(np.arange(20.0).reshape(10, 2), (np.arange(10) + 1) % 2),
        Data(x=data.x, y=data.y, train=data.train, test=data.train, classes=data.classes),
    ]
    assert len({one.fingerprint() for one in others} | {data.fingerprint()}) == 4


def test_a_memory_map_gathers_and_hashes_as_the_tensor_does(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(12, 2)
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    on_disk = Data.from_arrays(mapped, np.arange(12) % 2)
    in_memory = Data.from_arrays(values, np.arange(12) % 2)
    assert isinstance(on_disk.x, np.memmap)
    rows = torch.tensor([5, 0, 5])
    assert torch.equal(on_disk.gather(rows), in_memory.gather(rows))
    assert on_disk.fingerprint() == in_memory.fingerprint()
    assert on_disk.sample_bytes == in_memory.sample_bytes == 8


def test_from_torch_reads_pairs_names_and_pictures():
    from PIL import Image

    class Pictures(torch.utils.data.Dataset):
        classes = ("red", "blue")

        def __len__(self):
            return 10

        def __getitem__(self, i):
            return Image.new("RGB", (4, 6), (i, 0, 0)), i % 2

    data = Data.from_torch(Pictures(), test=Pictures())
    assert data.sample_shape == (3, 6, 4)
    assert data.x.dtype == torch.uint8
    assert data.x[3, 0, 0, 0] == 3
    assert data.classes == ("red", "blue")
    assert len(data.train) == len(data.test) == 10


def test_from_torch_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match="map-style"):
        Data.from_torch(iter([1]))
    with pytest.raises(ValueError, match=r"dataset\[1\]: expected a pair"):
        Data.from_torch([(torch.zeros(2), 0), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"dataset\[1\]: expected shape \(2,\)"):
        Data.from_torch([(torch.zeros(2), 0), (torch.zeros(3), 0)])
    with pytest.raises(ValueError, match="at least one row"):
        Data.from_torch([])


def test_one_hot_targets_are_labels_and_not_two_classes():
    ids = [2, 0, 3, 1, 2]
    for kind in (int, float, bool, np.uint8):
        data = Data.from_arrays(np.zeros((5, 1)), np.eye(4, dtype=kind)[ids])
        assert data.n_classes == 4
        assert data.y.tolist() == [[i] for i in ids]
        assert not data.is_multilabel
    tensor = torch.nn.functional.one_hot(torch.tensor(ids))
    assert Data.from_arrays(np.zeros((5, 1)), tensor).labels.tolist() == ids
    named = Data.from_arrays(np.zeros((5, 1)), np.eye(4)[ids], classes=("a", "b", "c", "d"))
    assert named.classes == ("a", "b", "c", "d")


def test_a_class_that_only_the_test_part_has_keeps_its_column():
    test = (np.zeros((1, 1)), np.eye(3)[[2]])
    data = Data.from_arrays(np.zeros((2, 1)), np.eye(3)[[0, 1]], test=test)
    assert data.labels.tolist() == [0, 1, 2]


def test_a_multi_hot_matrix_becomes_sets_of_labels():
    data = Data.from_arrays(np.zeros((3, 1)), [[1, 0, 1], [0, 1, 0], [1, 1, 1]])
    assert data.y.tolist() == [[0, 2, -1], [1, -1, -1], [0, 1, 2]]
    assert data.is_multilabel
    pair = np.array([[True, False], [True, True]])
    assert Data.from_arrays(np.zeros((2, 1)), pair).y.tolist() == [[0, -1], [0, 1]]


def test_sets_of_ids_stay_sets_of_ids():
    data = Data.from_arrays(np.zeros((3, 1)), [[0, 1, -1], [1, -1, -1], [1, 0, -1]])
    assert data.y.tolist() == [[0, 1, -1], [1, -1, -1], [1, 0, -1]]
    assert Data.from_arrays(np.zeros((2, 1)), [[0, 2], [1, 0]]).y.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    "y, told",
    [
        ([[0, 1], [1, 0]], r"0 and 1 in two columns may be either .*y.argmax\(1\)"),
        ([[1, 1], [1, 0]], "0 and 1 in two columns"),
        ([[2, 2], [1, 0]], r"every label at most once in a row .*row 0: \[2, 2\]"),
        ([[0, 3, 1], [1, 2, 1]], r"every label at most once in a row .*row 1: \[1, 2, 1\]"),
        ([[0, 0, 1], [0, 0, 0]], "at least one class in every row .*none in row 1"),
        ([[["a"]], [["b"]]], r"labels of shape \[N\] or \[N, L\]"),
    ],
)
def test_label_matrices_that_mean_nothing_are_refused(y, told):
    with pytest.raises(ValueError, match=told):
        Data.from_arrays(np.zeros((2, 1)), y)


def test_parts_with_unlike_numbers_of_labels_are_refused():
    with pytest.raises(ValueError, match="the same number of labels per row"):
        small(test=(np.zeros((2, 2), np.float32), [[0, 1], [1, -1]]))


def test_names_of_an_indicator_matrix_are_as_many_as_its_columns():
    with pytest.raises(ValueError, match="classes: expected 3 names, one per column"):
        Data.from_arrays(np.zeros((3, 1)), np.eye(3), classes=("a", "b"))
