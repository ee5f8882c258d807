from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.streams import domain_incremental, permuted, rotated
from tests.refusals import refuses
from tests.streams.toy_data import renamed, same, toy


def by_camera(cameras: int = 3) -> Data:
    data = toy(4, 30)
    # Offset from 5: attribute values are labels, not places.
    return replace(data, attributes={"camera": torch.arange(len(data)) % cameras + 5})


def test_every_value_is_a_task_with_its_rows():
    data = by_camera()
    stream = domain_incremental(data, by="camera")
    assert [t.domain for t in stream] == ["camera=5", "camera=6", "camera=7"]
    camera = data.attributes["camera"]
    for value, task in zip((5, 6, 7), stream, strict=True):
        for rows in (task.train, task.test):
            assert set(camera[rows].tolist()) == {value}
    assert torch.cat([t.train for t in stream]).sort().values.tolist() == data.train.tolist()
    assert torch.cat([t.test for t in stream]).sort().values.tolist() == data.test.tolist()


def test_classes_open_where_they_first_occur_and_are_shown_where_they_are():
    data = by_camera()
    camera = data.attributes["camera"].clone()
    camera[data.labels == 1] = 6  # class 1 only in the second task
    camera[(data.labels == 0) & (camera == 6)] = 7  # class 0 in the first and third
    stream = domain_incremental(replace(data, attributes={"camera": camera}), by="camera")
    assert [t.new for t in stream] == [(0, 2, 3), (1,), ()]
    assert [t.visible for t in stream] == [(0, 2, 3), (1, 2, 3), (0, 2, 3)]
    assert stream.opening.tolist() == [0, 0, 0, 1]


def test_order_and_seed_of_domains():
    data = by_camera()
    named = domain_incremental(data, by="camera", order=[7, 5])
    assert [t.domain for t in named] == ["camera=7", "camera=5"]
    drawn = {tuple(t.domain for t in domain_incremental(data, by="camera", seed=s))
             for s in range(12)}  # fmt: skip
    assert len(drawn) > 2


def test_validation_rows_come_from_every_class_of_every_domain():
    stream = domain_incremental(by_camera(), by="camera", valid=0.3)
    for task in stream:
        assert set(stream.data.labels[task.valid].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "camra"}, "by: unknown name 'camra', did you mean 'camera'"),
        ({"by": "camera", "order": [5, 9]}, "order: expected different values of 'camera'"),
        ({"by": "camera", "order": [5, 5]}, "order: expected different values"),
        ({"by": "camera", "order": []}, "order: expected different values"),
        ({"by": "camera", "valid": 2}, "valid: expected a number"),
        ({"by": "camera", "seed": "x"}, "seed: expected a whole number"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        domain_incremental(by_camera(), **options)


def test_domains_without_rows_are_refused_by_name():
    data = by_camera()
    camera = data.attributes["camera"].clone()
    camera[data.test] = 5
    data = replace(data, attributes={"camera": camera})
    with pytest.raises(ValueError, match="camera=6 has no test rows"):
        domain_incremental(data, by="camera")
    assert len(domain_incremental(data, by="camera", order=[5])) == 1
    with pytest.raises(ValueError, match="'data' has none"):
        domain_incremental(toy(), by="camera")


@given(tasks=st.integers(1, 4), seed=st.integers(0, 3))
def test_permuted_tasks_share_rows_and_differ_in_view(tasks, seed):
    data = toy(3)
    stream = permuted(data, tasks=tasks, seed=seed)
    assert len(stream) == tasks
    assert [t.new for t in stream] == [(0, 1, 2)] + [()] * (tasks - 1)
    for task in stream:
        assert same(task.train, data.train)
        assert same(task.test, data.test)
        assert task.visible == (0, 1, 2)
    x = torch.rand(2, 3)
    assert same(stream.view(x, torch.zeros(2).long()), x)


def test_rotated_tasks():
    data = Data.from_arrays(torch.rand(40, 5, 5), [0, 1] * 20)
    stream = rotated(data, angles=(0, 12.5, 90), valid=0.25)
    assert [t.domain for t in stream] == ["0 degrees", "12.5 degrees", "90 degrees"]
    assert [len(t.valid) for t in stream] == [8, 8, 8]
    x = data.gather(torch.arange(4))
    turned = stream.view(x, torch.full((4,), 2))
    torch.testing.assert_close(turned, torch.rot90(x, 1, dims=(1, 2)), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="data: expected images"):
        rotated(toy(), angles=(0, 10))
    with refuses("angles"):
        rotated(data, angles=())
    with refuses("tasks"):
        permuted(data, tasks=0)


@given(ids=st.permutations(range(3)))
def test_renamed_classes_keep_their_rows(ids):
    data = toy(3)
    a, b = permuted(data, tasks=2, valid=0.2), permuted(renamed(data, ids), tasks=2, valid=0.2)
    assert same(a[0].valid, b[0].valid)
    assert same(a.opening, b.opening)
    assert same(a.visible, b.visible)
