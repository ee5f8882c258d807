from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.data.dataset import Data
from engram.streams import Stream, Task, class_incremental, domain_incremental, permuted, rotated
from engram.streams.row_numbers import pack_rows, unpack_rows
from tests.refusals import refuses
from tests.streams.toy_data import same, toy


def task(data: Data, classes: list[int], **options: object) -> Task:
    rows = {kind: [r for r in getattr(data, kind).tolist() if int(data.labels[r]) in classes]
            for kind in ("train", "test")}  # fmt: skip
    return Task(**{**rows, "new": tuple(classes), **options})  # type: ignore[arg-type]


def test_columns_follow_the_order_of_introduction():
    data = toy(6)
    stream = Stream(data=data, tasks=(task(data, [4, 1]), task(data, [5, 0])))
    assert stream.order == (4, 1, 5, 0)
    assert stream.position.tolist() == [3, 1, -1, -1, 0, 2]
    assert stream.opening.tolist() == [0, 0, 1, 1]
    assert stream.visible.tolist() == [[True, True, False, False], [False, False, True, True]]
    for row in range(len(data)):
        c = int(data.labels[row])
        expected = stream.order.index(c) if c in stream.order else -1
        assert stream.targets[row].tolist() == [expected]


def test_targets_keep_pads_and_second_labels():
    y = torch.tensor([[2, 0], [1, -1], [0, 2]])
    rows = torch.arange(3)
    data = Data(x=torch.zeros(3, 1), y=y, train=rows[:2], test=rows[2:], classes=tuple("abc"))
    stream = Stream(data=data, tasks=(Task(train=[0, 1], test=[2], new=(2, 1)),))
    assert stream.targets.tolist() == [[0, -1], [1, -1], [-1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": []}, r"tasks\[0\].train: expected at least one training row"),
        ({"train": [0, 99]}, r"tasks\[0\].train: expected rows from 0 to 9, got 99"),
        ({"test": [-1]}, r"tasks\[0\].test: expected rows from 0 to 9, got -1"),
        ({"test": [0, 8]}, "both a train and a test row.*1 such rows, first 0"),
        ({"valid": [0]}, "both a train and a valid row"),
        ({"post_valid": [1]}, "both a train and a post_valid row"),
        ({"valid": [8]}, "both a valid and a test row"),
        ({"new": (0, 7)}, r"class ids from 0 to 1, got 7"),
        ({"new": ()}, r"tasks\[0\].visible: expected the classes whose labels are shown"),
        ({"new": (0,), "visible": (0, 1)}, r"new here or before, got \['1'\]"),
        ({"new": (0,)}, r"tasks\[0\].train: expected rows with a visible label, got \"row 1 of"),
        ({"train": [[0]]}, r"train: expected row numbers of shape \[n\]"),
        ({"train": [0.5]}, "train: expected whole row numbers"),
        ({"train": "rows"}, "train: expected row numbers"),
    ],
)
def test_bad_tasks_are_refused(change, message):
    data = Data.from_arrays([[float(i)] for i in range(10)], [0, 1] * 5)
    good = {"train": [0, 1, 2, 3], "test": [8, 9], "new": (0, 1)}
    assert len(Stream(data=data, tasks=(Task(**good),))) == 1
    with pytest.raises(ValueError, match=message):
        Stream(data=data, tasks=(Task(**{**good, **change}),))


def test_a_test_row_may_not_be_trained_on_in_another_task():
    data = toy(4)
    a, b = task(data, [0, 1]), task(data, [2, 3])
    leak = replace(b, train=torch.cat([b.train, a.test[:1]]), visible=(0, 1, 2, 3))
    with pytest.raises(ValueError, match="both a train and a test row"):
        Stream(data=data, tasks=(a, leak))


def test_no_tasks_and_unknown_heads_are_refused():
    with pytest.raises(ValueError, match="tasks: expected at least one task"):
        Stream(data=toy(), tasks=())
    with refuses("head", near="single"):
        replace(class_incremental(toy()), head="singel")
    with refuses("tasks"):
        class_incremental(toy())[3:]


@given(stop=st.integers(1, 5), sizes=st.sampled_from([1, 2, [1, 3, 1, 1], [2, 4]]))
def test_slices_keep_the_columns_of_earlier_tasks(stop, sizes):
    stream = class_incremental(toy(6), classes_per_task=sizes, seed=3)
    part = stream[:stop]
    known = len(part.order)
    assert part.order == stream.order[:known]
    assert same(part.opening, stream.opening[:known])
    assert same(part.visible, stream.visible[: len(part), :known])
    old = stream.targets < known
    assert same(part.targets[old], stream.targets[old])
    assert part[:stop] == part


def domains() -> Stream:
    data = toy(3, 20)
    camera = torch.arange(len(data)) % 3
    return domain_incremental(replace(data, attributes={"camera": camera}), by="camera")


def test_a_slice_opens_the_classes_it_meets_first():
    stream = domains()
    assert [t.new for t in stream] == [(0, 1, 2), (), ()]
    later = stream[1:]
    assert [t.new for t in later] == [(0, 1, 2), ()]
    assert same(later.targets, stream.targets)
    assert stream[::-1][::-1].order == stream.order


def test_slices_keep_their_view():
    data = Data.from_arrays(torch.rand(20, 1, 4, 4), [0, 1] * 10)
    x = torch.rand(5, 1, 4, 4)
    for stream in (permuted(data, tasks=4), rotated(data, angles=(0, 20, 40, 60))):
        part = stream[1:][::2]
        for k, original in enumerate([1, 3]):
            here, there = torch.full((5,), k), torch.full((5,), original)
            assert same(part.view(x, here), stream.view(x, there))
            assert part[k].domain == stream[original].domain


def test_concatenation_undoes_slicing():
    data = Data.from_arrays(torch.rand(20, 1, 4, 4), [0, 1] * 10)
    for stream in (class_incremental(toy(6)), domains(), permuted(data, tasks=3)):
        assert stream[:1] + stream[1:] == stream
        assert (stream[1:] + stream[:1]).pick([2, 0, 1]) == stream


def test_concatenation_refuses_what_does_not_fit():
    stream = class_incremental(toy(6))
    with pytest.raises(ValueError, match="same data"):
        stream + class_incremental(toy(6, seed=1))
    with pytest.raises(ValueError, match="head='single'"):
        stream + replace(stream, head="multi")
    data = Data.from_arrays(torch.rand(20, 1, 4, 4), [0, 1] * 10)
    with pytest.raises(ValueError, match="same view"):
        permuted(data, tasks=2) + class_incremental(data)
    with pytest.raises(ValueError, match="with the view"):
        permuted(data, tasks=2) + rotated(data, angles=(0, 1))


def test_equality_is_by_content():
    data = toy(6)
    stream = class_incremental(data, valid=0.1)
    twin = class_incremental(data, valid=0.1)
    assert stream == twin
    assert len({stream, twin}) == 1
    assert replace(stream, name="another name") == stream
    assert stream != "stream"
    others = [
        class_incremental(data, valid=0.2), class_incremental(data, valid=0.1, seed=7), stream[:2],
        class_incremental(toy(6, seed=1), valid=0.1), replace(stream, head="multi"),
        replace(stream, online=True), replace(stream, task_labels=False),
    ]  # fmt: skip
    assert len({stream, *others}) == len(others) + 1


@given(
    per_task=st.integers(1, 6), seed=st.none() | st.integers(0, 5), valid=st.sampled_from([0, 0.3])
)
def test_round_trip_through_json(per_task, seed, valid):
    data = toy(6, 10)
    stream = class_incremental(data, classes_per_task=per_task, seed=seed, valid=valid)
    again = Stream.from_dict(data, json.loads(json.dumps(stream.to_dict())))
    assert again == stream
    assert again.name == stream.name
    assert again[0].new == stream[0].new


def test_round_trip_of_views():
    data = Data.from_arrays(torch.rand(20, 1, 4, 4), [0, 1] * 10)
    x, stage = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 0, 1, 1, 0])
    for stream in (permuted(data, tasks=3, seed=5)[1:], rotated(data, angles=(10, 20.5))):
        again = Stream.from_dict(data, json.loads(json.dumps(stream.to_dict())))
        assert again == stream
        assert same(again.view(x, stage), stream.view(x, stage))


class Twice:
    def __call__(self, x, stage):
        return 2 * x

    def describe(self):
        return {"kind": "twice"}


def test_unknown_views_must_be_given():
    data = toy()
    stream = replace(class_incremental(data), view=Twice())
    with refuses("view"):
        Stream.from_dict(data, stream.to_dict())
    assert Stream.from_dict(data, stream.to_dict(), view=Twice()) == stream
    with pytest.raises(ValueError, match=r"describes itself as {}"):
        Stream.from_dict(data, class_incremental(data).to_dict(), view=Twice())


def test_from_dict_refuses_other_data_and_other_keys():
    stream = class_incremental(toy())
    with pytest.raises(ValueError, match="data: expected the data with fingerprint"):
        Stream.from_dict(toy(seed=1), stream.to_dict())
    with pytest.raises(ValueError, match="mapping with the keys"):
        Stream.from_dict(stream.data, {"tasks": []})
    with pytest.raises(ValueError, match=r"tasks\[0\]: expected a mapping with the keys"):
        Stream.from_dict(stream.data, {**stream.to_dict(), "tasks": [{"train": [0]}]})


@given(st.lists(st.integers(0, 50)))
def test_packed_rows_come_back(rows):
    packed = json.loads(json.dumps(pack_rows(torch.tensor(rows, dtype=torch.long))))
    assert unpack_rows("rows", packed).tolist() == rows


def test_runs_of_rows_are_packed_as_ranges():
    assert pack_rows(torch.arange(1000, 60_000)) == {"range": [1000, 60_000]}
    with pytest.raises(ValueError, match="rows: expected a list of rows or"):
        unpack_rows("rows", {"range": [0]})


def test_text_shows_tasks_names_and_domains():
    text = str(class_incremental(toy(6), classes_per_task=3, valid=0.25))
    assert text.splitlines() == [
        "Stream('class_incremental': 2 tasks, 6 classes, single head) over 'data'",
        "task  train  valid  test  new classes",
        "   0     36     12    12  class a, class b, class c",
        "   1     36     12    12  class d, class e, class f",
    ]
    assert "[camera=1]" in str(domains())
    long = str(class_incremental(toy(26, 5), classes_per_task=26)).splitlines()[-1]
    assert long.endswith(", ... (26)")
    assert len(long) < 100
