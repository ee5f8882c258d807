from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.streams import (
    all_task_orders,
    class_incremental,
    class_order,
    hierarchical,
    order_name,
    parse_order,
    permuted,
    random_class_orders,
    reorder,
)
from tests.refusals import refuses
from tests.streams.toy_data import same, toy

DATA = toy(6)
PAIRS = class_incremental(DATA, valid=0.2)


def test_golden_class_order_of_a_task_order():  # [T-M6]
    tasks = {1: (0, 1), 2: (2, 3), 3: (4, 5)}
    assert class_order(tasks, (3, 1, 2)) == [4, 5, 0, 1, 2, 3]
    assert class_order(list(tasks.values()), (2, 0, 1)) == [4, 5, 0, 1, 2, 3]
    assert class_order(PAIRS, (2, 0, 1)) == [4, 5, 0, 1, 2, 3]


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (1, 2, 3), ()])
def test_task_orders_must_be_permutations(order):
    with pytest.raises(ValueError, match=r"task_order: expected each of \[0, 1, 2\] once"):
        class_order(PAIRS, order)
    with refuses("task_order"):
        reorder(PAIRS, task_order=order)


def test_all_task_orders():
    assert len(all_task_orders(5)) == 120 == len(set(all_task_orders(5)))
    assert all_task_orders(4)[0] == (0, 1, 2, 3)
    assert all(sorted(order) == [0, 1, 2, 3] for order in all_task_orders(4))
    with pytest.raises(ValueError, match="n: expected at most 9 tasks"):
        all_task_orders(10)


@given(n=st.integers(1, 12), seed=st.integers(0, 9), data=st.data())
def test_random_orders_are_distinct_permutations(n, seed, data):
    most = min(math.factorial(n), 60)
    count = data.draw(st.integers(1, most))
    orders = random_class_orders(n, count, seed)
    assert len(orders) == len(set(orders)) == count
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert orders == random_class_orders(n, most, seed)[:count]


def test_random_orders_can_be_all_of_them_and_no_more():
    assert sorted(random_class_orders(4, 24, seed=3)) == sorted(itertools.permutations(range(4)))
    with pytest.raises(ValueError, match="count: expected at most 24"):
        random_class_orders(4, 25)
    assert random_class_orders(10, 5, seed=0) != random_class_orders(10, 5, seed=1)
    assert random_class_orders(100, 3)[0] != random_class_orders(100, 3)[1]


@given(st.lists(st.integers(0, 200), min_size=1))
def test_names_of_orders_come_back(order):
    assert parse_order(order_name(order)) == tuple(order)


@pytest.mark.parametrize("name", ["", "1-", "-1", "a-b", "1 2", "1--2", "²", 3])
def test_bad_names_of_orders_are_refused(name):
    with pytest.raises(ValueError, match="name: expected numbers joined by"):
        parse_order(name)
    with pytest.raises(ValueError, match=r"order: expected at least one|order\[0\]: expected"):
        order_name([] if name == "" else [-1])


@given(st.permutations(range(3)))
def test_task_orders_move_tasks_with_their_rows(order):
    moved = reorder(PAIRS, task_order=order)
    assert moved.data is PAIRS.data
    assert list(moved.order) == class_order(PAIRS, order)
    for k, source in enumerate(order):
        assert moved[k] is PAIRS[source]
    back = [list(order).index(k) for k in range(3)]
    assert reorder(moved, task_order=back) == PAIRS


@given(st.permutations(range(6)))
def test_class_orders_rebuild_the_tasks(order):
    moved = reorder(PAIRS, class_order=order)
    assert moved == class_incremental(DATA, order=order, valid=0.2)
    assert reorder(moved, class_order=range(6)) == PAIRS
    assert reorder(PAIRS, class_order=[DATA.classes[c] for c in order]) == moved


@given(st.permutations(range(3)))
def test_a_task_order_is_a_class_order(order):
    by_class = reorder(PAIRS, class_order=class_order(PAIRS, order))
    assert by_class == reorder(PAIRS, task_order=order)


def test_unequal_tasks_keep_their_sizes_by_place():
    stream = class_incremental(DATA, classes_per_task=[1, 3, 2])
    moved = reorder(stream, class_order=[5, 4, 3, 2, 1, 0])
    assert [t.new for t in moved] == [(5,), (4, 3, 2), (1, 0)]


def test_settings_survive_reordering():
    stream = replace(PAIRS, head="multi", online=True, name="mine")
    for moved in (reorder(stream, task_order=(1, 2, 0)), reorder(stream, class_order=range(6))):
        assert (moved.head, moved.online, moved.name) == ("multi", True, "mine")


def test_a_hierarchy_reordered_by_class_keeps_the_rows_of_each_class():
    data = toy(4, 50)
    tasks = [["pair"], ["class a", "class c"], ["class d", "class b"]]
    stream = hierarchical(data, hierarchy={"pair": ["class a", "class b"]}, tasks=tasks)
    moved = reorder(stream, class_order=[4, 0, 1, 3, 2])
    assert [t.new for t in moved] == [(4,), (0, 1), (3, 2)]
    assert same(moved[0].train, stream[0].train)
    for kind in ("train", "valid", "post_valid", "test"):
        for c in range(4):
            parts = []
            for s in (stream, moved):
                rows = getattr(s[int(s.opening[s.position[c]])], kind)
                parts.append(rows[(s.data.y[rows] == c).any(1)])
            assert same(*parts)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            {"task_order": [1, 0, 2]},
            "'superclass/pair' .* earlier .* 'fine/class a'.* 'tasks 1 and 0'",
        ),
        ({"class_order": [0, 4, 1, 3, 2]}, "'superclass/pair' .* 'fine/class a'.* 'tasks 1 and 0'"),
        ({"class_order": [2, 4, 0, 1, 3]}, "'superclass/pair' .* 'fine/class a'.* 'tasks 1 and 1'"),
    ],
)
def test_a_superclass_stays_before_its_subclasses(order, message):
    """Rows were shared out for that order: elsewhere a task would tell both labels of a row."""
    tasks = [["pair"], ["class a", "class c"], ["class d", "class b"]]
    stream = hierarchical(toy(4, 50), hierarchy={"pair": ["class a", "class b"]}, tasks=tasks)
    assert reorder(stream, task_order=[0, 2, 1]).opening.tolist() == [0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match=f"{next(iter(order))}: expected {message}"):
        reorder(stream, **order)


def test_reordering_keeps_the_view_of_each_task():
    data = Data.from_arrays(torch.rand(20, 6), [0, 1] * 10)
    stream = permuted(data, tasks=3)
    moved = reorder(stream, task_order=(2, 0, 1))
    x = torch.rand(4, 6)
    for k, source in enumerate((2, 0, 1)):
        there = stream.view(x, torch.full((4,), source))
        assert same(moved.view(x, torch.full((4,), k)), there)
    assert [t.new for t in moved] == [(0, 1), (), ()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a task_order or a class_order"),
        (
            {"task_order": (0, 1, 2), "class_order": range(6)},
            "either a task_order or a class_order",
        ),
        ({"class_order": [0, 1, 2]}, r"class_order: expected each of \[0, 1, 2, 3, 4, 5\] once"),
        ({"class_order": [0, 1, 2, 3, 4, "klass f"]}, "did you mean 'class f'"),
    ],
)
def test_bad_orders_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        reorder(PAIRS, **options)


def test_classes_of_a_domain_stream_have_no_order():
    data = Data.from_arrays(torch.rand(20, 6), [0, 1] * 10)
    with pytest.raises(ValueError, match="classes of this stream are not tied to one task"):
        reorder(permuted(data, tasks=2), class_order=[1, 0])
