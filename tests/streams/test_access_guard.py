from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import AccessError
from engram.streams import Ledger, MethodView, Stream, class_incremental, permuted
from tests.streams.toy_data import same, toy

STREAM = class_incremental(toy(6), valid=0.25)  # three tasks of 24 + 8 rows
NONE = torch.empty(0, dtype=torch.long)


def at(rows: torch.Tensor, stage: int) -> torch.Tensor:
    return torch.full_like(rows, stage)


def test_the_current_task_may_be_read_and_is_counted():
    view = MethodView(STREAM, 1)
    assert same(view.train, STREAM[1].train)
    assert same(view.valid, STREAM[1].valid)
    rows = torch.cat([view.train, view.valid, view.train[:5]])
    view.allow(rows, at(rows, 1), NONE, NONE)
    assert view.ledger.to_dict() == {"1": {"train": 24, "valid": 8}}


@pytest.mark.parametrize(
    ("rows", "stage", "message"),
    [
        (STREAM[0].train, 0, "a train row of task 0 and not in the memory"),
        (STREAM[0].valid, 0, "a valid row of task 0 and not in the memory"),
        (STREAM[0].train, 1, "is a train row of task 0. A method"),
        (STREAM[1].train, 0, "a train row of task 1 and not in the memory"),
        (STREAM[2].train, 1, "is a train row of task 2"),
        (STREAM[2].train, 2, "belongs to a future task"),
        (STREAM[1].test, 1, "is a test row of task 1"),
        (torch.tensor([-1]), 1, "does not exist: rows go from 0 to 119"),
        (torch.tensor([120]), 1, "does not exist: rows go from 0 to 119"),
        (STREAM[1].train, -1, "does not exist: tasks go from 0 to 2"),
        (STREAM[1].train, 3, "does not exist: tasks go from 0 to 2"),
    ],
)
def test_everything_else_is_refused_and_not_counted(rows, stage, message):
    view = MethodView(STREAM, 1)
    with pytest.raises(AccessError, match=message):
        view.allow(rows, at(rows, stage))
    mixed = torch.cat([view.train, rows[:1]])
    with pytest.raises(AccessError, match=message):
        view.allow(mixed, torch.cat([at(view.train, 1), at(rows[:1], stage)]), NONE, NONE)
    assert view.ledger.to_dict() == {}


def test_the_message_counts_and_tells_the_way_out():
    view = MethodView(STREAM, 1)
    with pytest.raises(AccessError, match=r"\(and 23 more\).*must declare reads = \"past\""):
        view.allow(STREAM[0].train, at(STREAM[0].train, 0))


def test_memory_pairs_may_be_read_as_of_their_task_only():
    view = MethodView(STREAM, 2)
    kept, when = (
        torch.cat([STREAM[0].train[:4], STREAM[1].train[:4]]),
        torch.tensor([0] * 4 + [1] * 4),
    )
    view.allow(kept, when, kept, when)
    view.allow(torch.cat([kept, view.train]), torch.cat([when, at(view.train, 2)]), kept, when)
    assert view.ledger.to_dict() == {"2": {"train": 24, "memory": 8}}
    with pytest.raises(AccessError):
        view.allow(kept, 1 - when, kept, when)
    with pytest.raises(AccessError):
        view.allow(kept, when, kept[1:], when[1:])
    with pytest.raises(AccessError):  # what was in the memory before no longer is
        view.allow(kept, when)


def test_pads_of_the_memory_open_nothing():
    view = MethodView(STREAM, 2)
    n = len(STREAM.data)
    for row, stage in [(-1, 1), (n, 0), (5, -1), (-n, 1)]:
        pads = torch.tensor([row]), torch.tensor([stage])
        for target in range(n):
            for past in (0, 1):
                with pytest.raises(AccessError):
                    view.allow(torch.tensor([target]), torch.tensor([past]), *pads)


def test_memory_does_not_open_the_current_task_or_the_future():
    view = MethodView(STREAM, 1)
    for rows, stage in ((STREAM[2].train, 1), (STREAM[2].train, 2), (STREAM[1].test, 1)):
        with pytest.raises(AccessError):
            view.allow(rows, at(rows, stage), rows, at(rows, stage))


def test_declared_readers_of_the_past_are_counted_as_such():
    view = MethodView(STREAM, 2, reads="past")
    old = torch.cat([STREAM[0].train, STREAM[0].valid, STREAM[1].train])
    when = torch.cat([at(STREAM[0].train, 0), at(STREAM[0].valid, 0), at(STREAM[1].train, 1)])
    view.allow(old, when, STREAM[0].train[:3], torch.zeros(3).long())
    assert view.ledger.to_dict() == {"2": {"memory": 3, "past": 53}}
    for rows, stage in ((STREAM[0].test, 0), (STREAM[1].train, 0)):
        with pytest.raises(AccessError, match='with reads = "past" those of earlier tasks'):
            view.allow(rows, at(rows, stage))
    with pytest.raises(AccessError, match="a future task"):
        MethodView(STREAM, 1, reads="past").allow(STREAM[2].train, at(STREAM[2].train, 2))


def test_a_row_of_all_tasks_is_allowed_as_of_the_current_one():
    stream = permuted(toy(3), tasks=3)
    view = MethodView(stream, 1)
    view.allow(stream[0].train, at(stream[0].train, 1))
    with pytest.raises(AccessError, match="a train row of tasks 0, 1, 2 and not in the memory"):
        view.allow(stream[0].train, at(stream[0].train, 0))


def honest(stream: Stream, stage: int, pair: tuple[int, int], memory: set, past: bool) -> bool:
    row, when = pair
    if not 0 <= when <= stage:
        return False
    own = {*stream[when].train.tolist(), *stream[when].valid.tolist()}
    return (pair in memory and when < stage) or (row in own and (when == stage or past))


PAIR = st.tuples(st.integers(-1, 120), st.integers(-1, 3))


@given(
    stage=st.integers(0, 2), pairs=st.lists(PAIR, min_size=1, max_size=4),
    kept=st.lists(st.tuples(st.integers(0, 119), st.integers(0, 2))), past=st.booleans(),
)  # fmt: skip
def test_allow_agrees_with_the_definition(stage, pairs, kept, past):
    view = MethodView(STREAM, stage, reads="past" if past else "own")
    for asked in (pairs, kept[:3]):
        if not asked:
            continue
        good = all(honest(STREAM, stage, p, set(kept), past) for p in asked)
        rows, stages = torch.tensor(asked).unbind(1)
        memory = torch.tensor(kept).reshape(-1, 2).long().unbind(1)
        if good:
            view.allow(rows, stages, *memory)
        else:
            with pytest.raises(AccessError):
                view.allow(rows, stages, *memory)


def test_one_ledger_serves_all_stages_and_survives_json():
    ledger = Ledger()
    for stage in range(3):
        view = MethodView(STREAM, stage, ledger=ledger)
        view.allow(view.train, at(view.train, stage))
        view.allow(NONE, NONE)
    assert ledger.total("train") == 72
    assert ledger.count(1, "train") == 24
    assert ledger.count(1, "memory") == ledger.total("past") == 0
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.to_dict() == ledger.to_dict()
    assert repr(again) == "Ledger(train 72, valid 0, memory 0, past 0)"


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: MethodView(STREAM, 3), "stage: expected a task from 0 to 2, got 3"),
        (lambda: MethodView(STREAM, -1), "stage: expected"),
        (lambda: MethodView(STREAM, 0, reads="pst"), "did you mean 'past'"),
        (lambda: Ledger().record(0, "tests", 1), "kind: unknown name"),
        (lambda: Ledger().record(0, "train", -1), "count: expected"),
        (
            lambda: MethodView(STREAM, 0).allow(torch.zeros(2).long(), NONE),
            "stages: expected shape",
        ),
        (lambda: MethodView(STREAM, 0).allow(NONE, NONE, NONE), "memory_stages: expected one"),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_a_whole_task_is_counted_as_its_rows_are():
    one, other = MethodView(STREAM, 1), MethodView(STREAM, 1)
    one.allow_task()
    other.allow(other.train, at(other.train, 1))
    assert one.ledger.to_dict() == other.ledger.to_dict()


@pytest.mark.parametrize("bad_row", [-1, 10_000, "future"])
def test_rows_of_now_are_refused_as_any(bad_row):
    view = MethodView(STREAM, 1)
    wrong = int(STREAM[2].train[0]) if bad_row == "future" else bad_row
    with pytest.raises(AccessError):
        view.allow_now(torch.tensor([int(view.train[0]), wrong]))


def test_rows_of_now_and_of_the_memory_are_counted_as_by_allow():
    one, other = MethodView(STREAM, 1), MethodView(STREAM, 1)
    mixed = torch.cat([one.train[:4], one.valid[:2]])
    for rows in (one.train[:7], mixed, NONE):
        one.allow_now(rows)
        other.allow(rows, at(rows, 1))
    kept = STREAM[0].train[:5]
    both, when = torch.cat([kept, one.train[:2]]), torch.tensor([0] * 5 + [1] * 2)
    for rows, stages in ((kept, at(kept, 0)), (both, when), (NONE, NONE)):
        one.allow_memory(rows, stages)
        other.allow(rows, stages, rows, stages)
    assert one.ledger.to_dict() == other.ledger.to_dict()
    with pytest.raises(AccessError):  # a memory may not bring rows of tasks to come
        one.allow_memory(kept, at(kept, 2))


def test_a_copied_ledger_goes_on_by_itself():
    ledger = Ledger()
    ledger.record(0, "train", 5)
    twin = ledger.copy()
    twin.record(0, "train", 1)
    assert (ledger.total("train"), twin.total("train")) == (5, 6)
