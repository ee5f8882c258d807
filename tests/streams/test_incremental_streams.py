from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.errors import BadArgument
from engram.streams import (
    blurry,
    class_incremental,
    domain_incremental,
    hierarchical,
    joint,
    new_instances,
    permuted,
    task_incremental,
)
from tests.streams.toy_data import renamed, same, toy

DATA = toy(7, 15)


@st.composite
def streams(draw):
    n = draw(st.integers(1, 7))
    order = draw(st.none() | st.permutations(range(7)).map(lambda p: p[:n]))
    count = 7 if order is None else n
    return class_incremental(
        DATA,
        classes_per_task=draw(st.integers(1, count)),
        first=draw(st.none() | st.integers(1, count)),
        order=order,
        seed=draw(st.none() | st.integers(0, 9)),
        valid=draw(st.sampled_from([0.0, 0.2, 0.5])),
    )


@given(streams())
def test_tasks_partition_the_rows_of_their_classes(stream):
    classes = set(stream.order)
    wanted = {
        kind: [r for r in getattr(DATA, kind).tolist() if int(DATA.labels[r]) in classes]
        for kind in ("train", "test")
    }
    train = torch.cat([torch.cat([t.train, t.valid]) for t in stream]).tolist()
    test = torch.cat([t.test for t in stream]).tolist()
    assert sorted(train) == sorted(wanted["train"])
    assert sorted(test) == sorted(wanted["test"])
    assert not set(train) & set(test)
    for task in stream:
        for rows in (task.train, task.valid, task.test):
            assert set(DATA.labels[rows].tolist()) <= set(task.new)
            assert same(rows, rows.sort().values)


@given(order=st.permutations(range(7)))
def test_names_and_ids_mean_the_same(order):
    by_name = [DATA.classes[c] for c in order]
    mixed = [name if i % 2 else c for i, (c, name) in enumerate(zip(order, by_name, strict=True))]
    expected = class_incremental(DATA, order=order, valid=0.2)
    assert expected.order == tuple(order)
    assert class_incremental(DATA, order=by_name, valid=0.2) == expected
    assert class_incremental(DATA, order=mixed, valid=0.2) == expected


@given(ids=st.permutations(range(7)), order=st.permutations(range(7)))
def test_renamed_classes_change_nothing_but_their_ids(ids, order):
    a = class_incremental(DATA, order=order, valid=0.2, seed=1)
    b = class_incremental(renamed(DATA, ids), order=[ids[c] for c in order], valid=0.2, seed=1)
    assert b.order == tuple(ids[c] for c in a.order)
    assert same(a.opening, b.opening)
    assert same(a.visible, b.visible)
    assert same(a.targets, b.targets)
    for x, y in zip(a, b, strict=True):
        assert same(x.train, y.train)
        assert same(x.valid, y.valid)
        assert same(x.test, y.test)


@given(order=st.permutations(range(7)), per_task=st.integers(1, 7))
def test_a_class_is_validated_on_the_same_rows_in_every_order(order, per_task):
    held = torch.cat([t.valid for t in class_incremental(DATA, valid=0.25, seed=4)])
    other = class_incremental(DATA, order=order, classes_per_task=per_task, valid=0.25, seed=4)
    assert same(torch.cat([t.valid for t in other]).sort().values, held.sort().values)


def test_the_seed_shuffles_classes_and_draws_validation_rows():
    orders = {class_incremental(DATA, seed=s).order for s in range(20)}
    assert len(orders) == 20
    assert class_incremental(DATA).order == tuple(range(7))
    fixed = {"order": list(range(7)), "valid": 0.3}
    a, b = class_incremental(DATA, seed=0, **fixed), class_incremental(DATA, seed=1, **fixed)
    assert a.order == b.order
    assert not same(a[0].valid, b[0].valid)
    assert class_incremental(DATA, seed=0, **fixed) == a


def test_valid_is_a_share_of_every_class():
    stream = class_incremental(DATA, valid=0.25)  # 12 training rows of each class
    for task in stream:
        counts = DATA.labels[task.valid].unique(return_counts=True)[1]
        assert counts.tolist() == [3] * len(task.new)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [2, 2, 2, 1]),
        ({"classes_per_task": 3}, [3, 3, 1]),
        ({"classes_per_task": 7}, [7]),
        ({"classes_per_task": [1, 4, 2]}, [1, 4, 2]),
        ({"classes_per_task": (7,)}, [7]),
        ({"classes_per_task": 2, "first": 3}, [3, 2, 2]),
        ({"classes_per_task": 3, "first": 1}, [1, 3, 3]),
        ({"classes_per_task": 9, "first": 7}, [7]),
        ({"order": [6, 5, 2]}, [2, 1]),
    ],
)
def test_task_sizes(options, sizes):
    assert [len(t.new) for t in class_incremental(DATA, **options)] == sizes


@pytest.mark.parametrize("scenario", [class_incremental, task_incremental])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_task": 0}, "classes_per_task: expected a whole number of at least 1, got 0"),
        ({"classes_per_task": 2.0}, "classes_per_task: expected a whole number"),
        ({"classes_per_task": "ab"}, r"classes_per_task\[0\]: expected a whole number"),
        ({"classes_per_task": 8}, "classes_per_task: expected at most 7"),
        ({"classes_per_task": [3, 3]}, r"add up to 7 classes, got \[3, 3\]"),
        ({"classes_per_task": [7, 0]}, r"classes_per_task\[1\]"),
        ({"classes_per_task": [3, 4], "first": 2}, "first: expected None"),
        ({"first": 8}, "first: expected at most 7"),
        ({"first": 0}, "first: expected a whole number of at least 1"),
        ({"order": ["class a", "clas b"]}, "did you mean 'class b'"),
        ({"order": [0, 7]}, r"order\[1\]: expected a class name or an id from 0 to 6, got 7"),
        ({"order": [0, -1]}, r"order\[1\]"),
        ({"order": [0, True]}, r"order\[1\]"),
        ({"order": [0, 1.0]}, r"order\[1\]"),
        ({"order": [0, 1, "class a"]}, r"order: expected every class only once"),
        ({"order": []}, "order: expected a list"),
        ({"order": "class a"}, "order: expected a list"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"seed": 0.5}, "seed: expected a whole number"),
        ({"valid": 1.0}, r"valid: expected a fraction in \[0, 1\)"),
        ({"valid": -0.1}, "valid: expected a number"),
        ({"valid": 0.01}, "valid: expected a fraction that holds out at least one row of task 0"),
    ],
)
def test_bad_options_are_refused(scenario, options, message):
    with pytest.raises(ValueError, match=message):
        scenario(DATA, **options)


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        class_incremental(DATA, 2)


def test_task_incremental_differs_in_the_head_only():
    a, b = class_incremental(DATA, seed=2, first=1), task_incremental(DATA, seed=2, first=1)
    assert (a.head, b.head) == ("single", "multi")
    assert replace(b, head="single") == a


def test_joint_is_one_task_of_everything():
    stream = joint(DATA)
    assert len(stream) == 1
    assert stream.order == tuple(range(7))
    assert same(stream[0].train, DATA.train.sort().values)
    assert same(stream[0].test, DATA.test.sort().values)
    assert len(joint(DATA, valid=0.5)[0].valid) == 7 * 6


def test_own_validation_rows_are_used_and_cannot_be_asked_for_twice():
    x, y = torch.rand(12, 2), [0, 1, 2] * 4
    data = Data.from_arrays(x, y, test=(x, y), valid=(x[:6], y[:6]))
    stream = class_incremental(data, classes_per_task=1)
    assert torch.cat([t.valid for t in stream]).sort().values.tolist() == data.valid.tolist()
    with pytest.raises(ValueError, match="validation rows of its own"):
        class_incremental(data, valid=0.2)


def test_classes_without_rows():
    names = ["a", "b", "ghost"]
    data = Data.from_arrays(torch.rand(20, 2), [0, 1] * 10, classes=names)
    assert class_incremental(data, order=["b", "a"]).order == (1, 0)
    assert joint(data, order=["a", "b"]).order == (0, 1)
    with pytest.raises(ValueError, match=r"classes that have training rows, got \['ghost'\]"):
        class_incremental(data, order=["a", "ghost"])
    few = Data.from_arrays(torch.rand(13, 2), [0] * 10 + [1] * 3)  # too few for a test row
    with pytest.raises(ValueError, match=r"test rows for task 1 \(classes \[1\]\)"):
        class_incremental(few, classes_per_task=1)


@pytest.mark.parametrize(
    "scenario",
    [
        class_incremental,
        task_incremental,
        joint,
        partial(blurry, tasks=2),
        partial(new_instances, tasks=2),
        partial(permuted, tasks=2),
        partial(domain_incremental, by="camera"),
        partial(hierarchical, hierarchy={"letters": ["a", "b"]}, first=1),
    ],
)
def test_a_class_without_training_rows_is_named(scenario):
    y = [0, 1, 2] * 20
    data = Data.from_arrays(
        torch.rand(60, 2), y, classes=["a", "b", "ghost", "spirit"],
        attributes={"camera": torch.arange(60) // 30},
    )  # fmt: skip
    seen = data.labels[data.train] != 2  # its test rows are still there
    data = replace(data, train=data.train[seen])
    wanted = r"training rows for every class of 'data', or .*none for \['ghost', 'spirit'\]"
    with pytest.raises(BadArgument, match=wanted):
        scenario(data)


def test_labels_that_begin_at_one_are_told_how_to_be_names():
    with pytest.raises(BadArgument, match=r"as names.*none for \['0'\]"):
        class_incremental(Data.from_arrays(torch.rand(20, 2), [1, 2] * 10))


def test_rows_of_two_labels_come_with_both_tasks_but_on_one_side():
    y = torch.tensor([[0, 2], [1, -1], [2, 0], [1, 2]] * 10)
    rows = torch.arange(40)
    data = Data(x=torch.rand(40, 1), y=y, train=rows[:32], test=rows[32:], classes=tuple("abc"))
    stream = class_incremental(data, classes_per_task=1, valid=0.25)
    counts = [len(t.train) + len(t.valid) for t in stream]
    assert counts == [16, 16, 24]
    held = set(torch.cat([t.valid for t in stream]).tolist())
    assert held
    assert not held & set(torch.cat([t.train for t in stream]).tolist())


def test_two_classes_of_one_name_need_ids():
    data = replace(DATA, classes=("x", "x", "c", "d", "e", "f", "g"))
    with pytest.raises(ValueError, match=r"an id, since classes \[0, 1\] share this name"):
        class_incremental(data, order=["x", "c"])
    assert class_incremental(data, order=[1, "c"]).order == (1, 2)
