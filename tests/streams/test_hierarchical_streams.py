from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.streams import Stream, hierarchical, hierarchical_data
from engram.streams.hierarchical_streams import count_superclass_rows, draw_schedule
from tests.streams.toy_data import same, toy

WHOLE = {"valid": 0.0, "post_valid": 0.0}


def blocks(sizes: list[int], test: int = 1) -> Data:
    """Class after class, so that row numbers of a class run on."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    held = np.repeat(np.arange(len(sizes)), test)
    return Data.from_arrays(np.zeros((len(y), 1)), y, test=(np.zeros((len(held), 1)), held),
                            classes=[f"c{i}" for i in range(len(sizes))])  # fmt: skip


@pytest.mark.parametrize(
    ("subclasses", "upper"),
    [(2, [0, 1, 2, 3]), (8, [0, 1, 2, 3]), (10, [0, 1, 2]), (20, [0])],
)
def test_golden_shares_of_ten_rows(subclasses, upper):  # [T-X0]
    data = blocks([10] * subclasses)
    tree = {"top": [f"c{i}" for i in range(subclasses)]}
    stream = hierarchical(data, hierarchy=tree, tasks=[["top"], ["c0"]], **WHOLE)
    above = [r for r in stream[0].train.tolist() if r < 10]
    assert above == upper
    assert stream[1].train.tolist() == list(range(2, 10))
    shared = {2: [2, 3], 8: [2, 3], 10: [2], 20: []}[subclasses]
    assert sorted(set(above) & set(stream[1].train.tolist())) == shared


CIFAR = {
    4: 2,
    5: 11,
    6: 1,
    8: 1,
}  # how many superclasses have so many subclasses: 15, 77 subclasses


def cifar_like(rows: int = 500) -> tuple[Data, dict[str, list[int]]]:
    tree, next_id = {}, 0
    for size, count in CIFAR.items():
        for _ in range(count):
            tree[f"super{len(tree)}"] = list(range(next_id, next_id + size))
            next_id += size
    assert (len(tree), next_id) == (15, 77)
    return blocks([rows] * 100, test=100), tree


def test_golden_counts_of_the_cifar_protocol():  # [T-X1]
    data, tree = cifar_like()
    stream = hierarchical(data, hierarchy=tree, seed=1)
    assert len(stream) == 22
    assert [len(t.new) for t in stream] == [10] + [5] * 21
    assert len(stream.order) == 115

    def counts(kind: str) -> tuple[int, int]:
        rows = torch.cat([getattr(t, kind) for t in stream])
        return len(rows), len(rows.unique())

    assert counts("train") == (46160, 40000)
    assert counts("valid") == (5770, 5000)
    assert counts("post_valid")[1] == 5000
    assert counts("test")[1] == 10000
    names = stream.data.classes

    def rows_of(name: str, kind: str = "train") -> int:
        c = names.index(name)
        rows = getattr(stream[int(stream.opening[stream.position[c]])], kind)
        return int((stream.data.y[rows] == c).any(1).sum())

    wide, five = (next(f"superclass/{n}" for n, m in tree.items() if len(m) == k) for k in (8, 5))
    assert (rows_of(wide), rows_of(five)) == (1280, 800)
    assert (rows_of("fine/c0"), rows_of("fine/c99")) == (320, 400)
    assert rows_of(wide, "test") == 800  # complete information


def test_golden_counts_of_the_imagenet_protocol():  # [T-X2]
    assert count_superclass_rows(1196, 3) == 478
    assert count_superclass_rows(1196, 58) == 65
    assert count_superclass_rows(1196, 58) * 58 == 3770
    assert count_superclass_rows(1196, 118) == 32
    data = blocks([1300, 1300, 1300])
    held = {"valid": 0.04, "post_valid": 0.04}
    stream = hierarchical(data, hierarchy={"s": [0, 1]}, tasks=[["s"], ["c0"], ["c2"]], **held)
    assert [len(t.train) for t in stream] == [2 * 478, 956, 1196]


def test_splits_follow_the_stored_order():
    data = blocks([50, 50])
    stream = hierarchical(data, hierarchy={"s": [0]}, tasks=[["s"], ["c0"], ["c1"]])
    assert stream[0].valid.tolist() == [0, 1]  # first 2 of the 5 in-task rows
    assert stream[1].valid.tolist() == [1, 2, 3, 4]
    assert stream[2].valid.tolist() == list(range(50, 55))
    for task in stream[:2]:
        assert task.post_valid.tolist() == list(range(5, 10))
    assert stream[0].train.tolist() == list(range(10, 26))
    assert stream[1].train.tolist() == list(range(18, 50))
    assert stream[2].train.tolist() == list(range(60, 100))


def test_stored_order_is_that_of_the_training_rows():
    data = blocks([10])
    turned = Data(
        x=data.x, y=data.y, train=data.train.flip(0), test=data.test, classes=data.classes
    )
    stream = hierarchical(turned, hierarchy={"s": [0]}, tasks=[["s"], ["c0"]], **WHOLE)
    assert stream[0].train.tolist() == [6, 7, 8, 9]


def test_shuffling_is_keyed_and_keeps_the_counts():
    data = blocks([100, 100])
    options = {"hierarchy": {"s": [0]}, "tasks": [["s"], ["c0"], ["c1"]]}
    plain, a, b = (hierarchical(data, shuffle=s, seed=k, **options)
                   for s, k in ((False, 0), (True, 0), (True, 1)))  # fmt: skip
    sizes = [[len(t.train) for t in s] for s in (plain, a, b)]
    assert sizes[0] == sizes[1] == sizes[2] == [32, 64, 80]
    assert len({plain, a, b}) == 3
    overlap = set(a[0].train.tolist()) & set(a[1].train.tolist())
    assert len(overlap) == 16
    assert hierarchical(data, shuffle=True, seed=1, **options) == b


def test_labels_are_those_of_the_task_only():
    data = toy(4, 25)
    stream = hierarchical(data, hierarchy={"s": ["class a", "class b"]},
                          tasks=[["s"], ["class c"], ["class b"]])  # fmt: skip
    assert stream.visible.tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    both = set(stream[0].train.tolist()) & set(stream[2].train.tolist())
    assert both  # the same image under two labels, one at a time
    for row in both:
        assert sorted(stream.targets[row].tolist()) == [0, 2]
    assert set(stream.targets[stream[0].test].flatten().tolist()) == {-1, 0, 2}
    assert same(stream.data.x, data.x)


def test_data_of_two_labels():
    data = toy(4, 10)
    tree = {"class a": ["class c", 0], "other": ["class d"]}  # a superclass of a fine class's name
    both = hierarchical_data(data, hierarchy=tree)
    assert both.x is data.x
    assert both.classes[4:] == ("superclass/class a", "superclass/other")
    parent = {0: 4, 2: 4, 3: 5}
    for fine, pair in zip(data.labels.tolist(), both.y.tolist(), strict=True):
        assert pair == ([parent[fine], fine] if fine in parent else [fine, -1])
    assert both.attributes["fine"].tolist() == data.labels.tolist()


def test_round_trip_over_the_same_hierarchy():
    data, tree = toy(4, 25), {"s": ["class a", "class b"]}
    stream = hierarchical(data, hierarchy=tree)
    plain = json.loads(json.dumps(stream.to_dict()))
    assert Stream.from_dict(hierarchical_data(data, hierarchy=tree), plain) == stream


def test_names_that_mean_two_classes_need_a_prefix():
    data = toy(3, 25)
    tree = {"class a": ["class b", "class a"]}
    with pytest.raises(ValueError, match="either 'fine/class a' or 'superclass/class a'"):
        hierarchical(data, hierarchy=tree, tasks=[["class a"]])
    stream = hierarchical(data, hierarchy=tree, tasks=[["superclass/class a"], ["fine/class a"]])
    assert stream.order == (3, 0)


GOOD = {"hierarchy": {"s": ["class a", "class b"], "t": ["class c"]}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hierarchy": {}}, "hierarchy: expected a mapping"),
        ({"hierarchy": ["s"]}, "hierarchy: expected a mapping"),
        ({"hierarchy": {"s": []}}, r"hierarchy\['s'\]: expected a list of at least one subclass"),
        ({"hierarchy": {"s": "class a"}}, r"hierarchy\['s'\]: expected a list"),
        ({"hierarchy": {"s": ["clas a"]}}, "did you mean 'class a'"),
        ({"hierarchy": {"s": [0], "t": [0]}}, "subclasses that 's' does not have, got 'class a'"),
        ({"tasks": []}, "tasks: expected a list of lists"),
        ({"tasks": ["s"]}, r"tasks\[0\]: expected a list of classes"),
        ({"tasks": [["s"], []]}, r"tasks\[1\]: expected a list of classes"),
        ({"tasks": [["s", "class a"]]}, r"tasks\[0\]: expected 'superclass/s' in an earlier task"),
        (
            {"tasks": [["class a"], ["s"]]},
            r"tasks\[0\]: expected 'superclass/s' in an earlier task",
        ),
        ({"tasks": [["t"], ["class a"]]}, r"tasks\[1\]: expected 'superclass/s' in an earlier"),
        ({"tasks": [["s"], ["s"]]}, "every class only once, it is already in task 0"),
        ({"tasks": [["s"], ["class x"]]}, r"tasks\[1\]: unknown name 'class x'"),
        ({"tasks": [["s"]], "first": 1}, "first: expected None"),
        ({"first": 3}, "first: expected at most 2"),
        ({"classes_per_task": 0}, "classes_per_task: expected"),
        ({"valid": 0.6, "post_valid": 0.4}, "valid . post_valid below 1"),
        ({"super_share": 0}, "super_share: expected a number in"),
        ({"sub_share": 1.2}, "sub_share: expected a number in"),
        ({"cap": 0}, "cap: expected"),
        ({"seed": -2}, "seed: expected"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        hierarchical(toy(4, 25), **{**GOOD, **options})


def test_data_that_does_not_fit_is_refused():
    x, y = torch.rand(12, 1), [0, 1, 2] * 4
    own = Data.from_arrays(x, y, test=(x, y), valid=(x, y))
    with pytest.raises(ValueError, match="no validation rows of its own"):
        hierarchical(own, hierarchy={"s": [0]})
    twice = hierarchical_data(toy(4), hierarchy=GOOD["hierarchy"])
    with pytest.raises(ValueError, match=r"one .fine. label for each row, got '2 labels'"):
        hierarchical(twice, hierarchy={"s": [0]})
    ghost = Data.from_arrays(torch.rand(20, 1), [0, 1] * 10, classes=["a", "b", "ghost"])
    with pytest.raises(ValueError, match="classes with training rows, got 'ghost'"):
        hierarchical(ghost, hierarchy={"s": ["ghost"]})


@st.composite
def forests(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=8))
    orphans = draw(st.integers(0, 10))
    total, families, start = sum(sizes) + orphans, {}, 0
    for i, size in enumerate(sizes):
        families[total + i] = list(range(start, start + size))
        start += size
    return families, list(range(total))


@given(forest=forests(), step=st.integers(1, 3), seed=st.integers(0, 5))
def test_drawn_tasks_hold_every_class_once_and_superclasses_first(forest, step, seed):
    families, fine = forest
    groups = draw_schedule(families, fine, None, step, seed)
    assert sorted(c for g in groups for c in g) == sorted([*families, *fine])
    assert set(groups[0]) <= set(families)
    assert all(len(g) == step for g in groups[1:-1])
    when = {c: k for k, g in enumerate(groups) for c in g}
    for above, members in families.items():
        assert all(when[above] < when[child] for child in members)
    assert groups == draw_schedule(families, fine, None, step, seed)


def test_drawn_tasks_differ_by_seed():
    _, tree = cifar_like(2)
    families = {100 + i: members for i, members in enumerate(tree.values())}
    drawn = [draw_schedule(families, range(100), None, 5, seed) for seed in range(5)]
    assert len({tuple(map(tuple, groups)) for groups in drawn}) == 5


def test_sizes_that_cannot_be_filled_are_refused():
    # One superclass is open: the first task of three finds only its subclass and the other one.
    with pytest.raises(ValueError, match="classes_per_task: expected 2, the largest"):
        draw_schedule({2: [0], 3: [1]}, range(2), 1, 3, seed=0)


def test_published_tasks_are_accepted(engram_data):
    path = engram_data / "iirc_metadata.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in ENGRAM_DATA")
    with gzip.open(path) as file:
        meta = json.load(file)
    names = sorted(meta["cifar100_classes.json"]["classes"])
    y = np.repeat(np.arange(100), 50)
    data = Data.from_arrays(np.zeros((5000, 1)), y, test=(np.zeros((5000, 1)), y), classes=names)
    tree = meta["iirc_cifar100_hierarchy.json"]["super_classes"]
    published = meta["iirc_cifar100_task_configurations.json"]
    assert len(published) == 10
    for tasks in published.values():
        stream = hierarchical(data, hierarchy=tree, tasks=list(tasks.values()))
        assert [len(t.new) for t in stream] == [10] + [5] * 21
        assert len(torch.cat([t.train for t in stream])) == 4616
