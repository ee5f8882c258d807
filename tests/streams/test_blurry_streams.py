from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.streams import blurry, class_incremental, new_instances, online, task_incremental
from tests.streams.toy_data import renamed, same, toy

DATA = toy(7, 40)  # 32 training rows of each class


@given(
    tasks=st.integers(2, 7), mix=st.sampled_from([0, 0.05, 0.3, 1.0]), seed=st.integers(0, 4),
    valid=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_blurry_tasks_partition_the_rows(tasks, mix, seed, valid):
    stream = blurry(DATA, tasks=tasks, mix=mix, seed=seed, valid=valid)
    assert len(stream) == tasks
    rows = torch.cat([torch.cat([t.train, t.valid]) for t in stream])
    assert same(rows.sort().values, DATA.train)
    assert same(torch.cat([t.test for t in stream]).sort().values, DATA.test)
    assert sorted(stream.order) == list(range(7))


@given(tasks=st.integers(2, 7), mix=st.sampled_from([0.1, 0.5]))
def test_the_share_of_each_class_leaves_home(tasks, mix):
    stream = blurry(DATA, tasks=tasks, mix=mix)
    for task in stream:
        for c in set(DATA.labels[task.test].tolist()):  # test rows are at home
            stayed = int((DATA.labels[task.train] == c).sum())
            assert stayed == 32 - int(mix * 32)


@pytest.mark.parametrize("percent", range(101))
def test_shares_are_the_decimal_numbers_that_were_written(percent):
    data = Data.from_arrays([[float(i)] for i in range(200)], [0, 1] * 100,
                            test=([[0.5], [1.5]], [0, 1]))  # fmt: skip
    mix = percent / 100
    stream = blurry(data, tasks=2, mix=mix)
    left = [task.train[data.labels[task.train] != k] for k, task in enumerate(stream)]
    assert [len(rows) for rows in left] == [percent, percent]
    if 0 < percent < 100:
        held = class_incremental(data, classes_per_task=1, valid=mix)
        assert [len(task.valid) for task in held] == [percent, percent]


def test_guests_are_spread_over_all_other_tasks():
    stream = blurry(DATA, tasks=7, mix=0.5)
    counts = torch.stack(
        [(DATA.labels[t.train][:, None] == torch.arange(7)).sum(0) for t in stream]
    )
    assert counts.diagonal().tolist() == [16] * 7
    others = counts[~torch.eye(7, dtype=torch.bool)]
    assert set(others.tolist()) == {2, 3}  # 16 rows dealt to 6 tasks


def test_blurry_classes_are_new_where_their_first_row_is():
    stream = blurry(DATA, tasks=3, mix=0.1, order=list(range(6, -1, -1)))
    met: set[int] = set()
    for task in stream:
        here = set(DATA.labels[task.train].tolist())
        assert set(task.new) == here - met
        assert set(task.visible) == here
        met |= here
    assert stream[0].new[:3] == (6, 5, 4)  # classes at home come first


def test_without_mix_blurry_is_class_incremental():
    sizes = [2, 2, 2, 1]
    sharp = class_incremental(DATA, classes_per_task=sizes, seed=2, valid=0.1)
    assert blurry(DATA, tasks=4, mix=0.0, seed=2, valid=0.1) == sharp


@settings(max_examples=20)
@given(ids=st.permutations(range(7)))
def test_renamed_classes_change_nothing_but_their_ids(ids):
    a = blurry(DATA, tasks=3, mix=0.2)
    b = blurry(renamed(DATA, ids), tasks=3, mix=0.2, order=ids)
    assert same(a.targets, b.targets)
    assert same(a.opening, b.opening)
    assert all(same(x.train, y.train) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 1}, "tasks: expected a whole number of at least 2"),
        ({"tasks": 8}, "tasks: expected at most 7"),
        ({"mix": 1.1}, "mix: expected a number"),
        ({"mix": -0.1}, "mix: expected a number"),
        ({"mix": 1.0, "tasks": 2, "order": ["class a", "no"]}, "unknown name 'no'"),
    ],
)
def test_bad_blurry_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        blurry(DATA, **options)
    two = replace(DATA, y=torch.cat([DATA.y, (DATA.y + 1) % 7], 1))
    with pytest.raises(ValueError, match="one label for each row"):
        blurry(two)


@given(tasks=st.integers(1, 8), seed=st.integers(0, 4), valid=st.sampled_from([0.0, 0.25]))
def test_new_instances_deal_every_class_to_every_task(tasks, seed, valid):
    stream = new_instances(DATA, tasks=tasks, seed=seed, valid=valid)
    rows = torch.cat([torch.cat([t.train, t.valid]) for t in stream])
    assert same(rows.sort().values, DATA.train)
    assert same(torch.cat([t.test for t in stream]).sort().values, DATA.test)
    assert [t.new for t in stream] == [tuple(range(7))] + [()] * (tasks - 1)
    sizes = [len(t.train) + len(t.valid) for t in stream]
    assert max(sizes) - min(sizes) <= 1
    for task in stream:
        assert task.visible == tuple(range(7))
        counts = (DATA.labels[torch.cat([task.train, task.valid])][:, None] == torch.arange(7)).sum(
            0
        )
        assert int(counts.max() - counts.min()) <= 1


def test_new_instances_depend_on_the_seed_and_need_rows():
    assert new_instances(DATA, tasks=3, seed=1) != new_instances(DATA, tasks=3, seed=2)
    assert new_instances(DATA, tasks=3, seed=1) == new_instances(DATA, tasks=3, seed=1)
    with pytest.raises(ValueError, match="at most 32, the training rows of class 'class"):
        new_instances(DATA, tasks=33)


@settings(max_examples=20)
@given(ids=st.permutations(range(7)))
def test_new_instances_of_renamed_classes(ids):
    mine, theirs = new_instances(DATA, tasks=4), new_instances(renamed(DATA, ids), tasks=4)
    for a, b in zip(mine, theirs, strict=True):
        assert same(a.train, b.train)
        assert same(a.test, b.test)


def test_online_is_the_same_stream_read_once():
    stream = class_incremental(DATA)
    once = online(stream, task_labels=False)
    assert once.online
    assert not once.task_labels
    assert online(stream).task_labels
    assert once.tasks == stream.tasks
    assert once[:2].online
    assert "online" in repr(once)
    assert once != stream


def test_bad_online_options_are_refused():
    with pytest.raises(ValueError, match="stream: expected a Stream, got 'Data'"):
        online(DATA)
    with pytest.raises(ValueError, match="task_labels: expected True or False"):
        online(class_incremental(DATA), task_labels=1)
    with pytest.raises(ValueError, match="a multi-head stream needs the task id"):
        online(task_incremental(DATA), task_labels=False)
