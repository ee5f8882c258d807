from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engram.checks.toy_runs import largest_gap, make_clouds, make_runs, trees_equal
from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.errors import AccessError, BadArgument
from engram.learner.batch import visible_labels
from engram.learner.learner import RunLearner
from engram.learner.objectives import competing_classes
from engram.memory import Exemplars, Memory
from engram.methods import ER, Finetune
from engram.methods.method import Method
from engram.streams import Stream, Task, class_incremental, task_incremental

DATA = make_clouds()
STREAM = class_incremental(DATA, classes_per_task=[2, 3, 1])


def made(stream: Stream = STREAM, method: Method | None = None, model: str = "plain") -> RunLearner:
    engine = Engine(make_runs(method or Finetune(), [stream], model=model), device="cpu")
    return engine.learner(engine.runs[0])


class TestDoor:
    def test_closed_before_the_first_task(self):
        with pytest.raises(AccessError, match="has not entered a task yet"):
            made().batch()

    def test_own_rows_are_the_default(self):
        one = made()
        one.open_classes(1)
        batch = one.batch()
        assert torch.equal(batch.x.float(), DATA.gather(STREAM[1].train))
        assert torch.equal(batch.y[:, 0], STREAM.targets[STREAM[1].train][:, 0])
        assert batch.w.tolist() == [1.0] * len(STREAM[1].train)
        assert batch.now == 1
        assert not batch.old.any()
        assert one.ledger.to_dict() == {"1": {"train": len(STREAM[1].train)}}

    @pytest.mark.parametrize(("rows", "stage", "why"), [
        (STREAM[1].test[:1], 1, "test row"), (STREAM[0].train[:1], 0, "not in the memory"),
        (STREAM[2].train[:1], 2, "a future task"), (STREAM[2].train[:1], 1, "train row of task 2"),
    ])  # fmt: skip
    def test_other_rows_are_refused(self, rows, stage, why):
        one = made()
        one.open_classes(1)
        with pytest.raises(AccessError, match=why):
            one.batch(rows, torch.full_like(rows, stage))
        with pytest.raises(AccessError):
            one.outputs(rows, torch.full_like(rows, stage))

    def test_the_memory_may_be_read(self):
        one = made(method=ER())
        one.open_classes(0)
        one.exemplars = Memory(total=6).update(one, STREAM[0].train)
        one.open_classes(1)
        kept = one.exemplars
        batch = one.batch(kept.rows, kept.stages)
        assert batch.old.tolist() == [1.0] * 6
        assert batch.stage.tolist() == [0] * 6
        outside = STREAM[0].train[~torch.isin(STREAM[0].train, kept.rows)][:1]
        with pytest.raises(AccessError):
            one.batch(outside, torch.zeros_like(outside))

    def test_stages_must_fit(self):
        one = made()
        one.open_classes(0)
        with pytest.raises(BadArgument, match="one stage per row"):
            one.batch(STREAM[0].train[:2], torch.zeros(3, dtype=torch.long))

    @pytest.mark.parametrize(
        ("rows", "got"),
        [
            (np.arange(3), "type ndarray"), ([0, 1], "type list"), (5, "type int"),
            (torch.tensor([0.5]), "float32"), (torch.tensor([[0, 1]]), r"shape \(1, 2\)"),
            (torch.ones(3, dtype=torch.bool), "bool"),
        ],
    )  # fmt: skip
    def test_rows_and_stages_are_tensors_of_whole_numbers(self, rows, got):
        one = made()
        one.open_classes(0)
        for ask in (one.batch, one.outputs, one.labels):
            with pytest.raises(BadArgument, match=rf"rows: .*tensor \[n\] of whole.*{got}"):
                ask(rows)
        with pytest.raises(BadArgument, match=f"stages: .*{got}"):
            one.batch(STREAM[0].train[:2], rows)


class TestHiddenLabels:
    """A row with two labels shows the one that its task shows."""

    def stream(self) -> Stream:
        y = torch.tensor([[0, 2], [1, 2], [0, -1], [2, 1]] * 3)
        x = torch.arange(24.0).reshape(12, 2)
        data = Data.from_arrays(x, [0, 1, 0, 2] * 3, test=(x, [0, 1, 0, 2] * 3))
        object.__setattr__(data, "y", torch.cat([y, y]))
        first = Task(train=torch.arange(12), test=torch.arange(12, 24), new=(0, 1))
        both = torch.tensor([r for r in range(24) if r % 4 != 2])  # those that have label 2
        second = Task(train=both[both < 12], test=both[both >= 12], new=(2,))
        return Stream(data=data, tasks=(first, second))

    def test_visible_labels(self):
        stream = self.stream()
        rows = torch.arange(4)
        shown = visible_labels(stream, rows, torch.zeros_like(rows))
        assert shown.tolist() == [[0, -1], [1, -1], [0, -1], [1, -1]]
        later = visible_labels(stream, rows, torch.ones_like(rows))
        assert later.tolist() == [[2, -1], [2, -1], [-1, -1], [2, -1]]

    def test_a_batch_shows_no_more(self):
        one = made(self.stream())
        one.open_classes(1)
        assert one.batch(torch.tensor([0, 1, 3])).y.tolist() == [[2, -1]] * 3


class TestScopes:
    opened = torch.tensor([0, 0, 1, 1, -1])
    visible = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).bool()

    @pytest.mark.parametrize(("scope", "first", "second"), [
        ("seen", [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]), ("own", [1, 1, 0, 0, 0], [0, 0, 1, 1, 0]),
        ("at_time", [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]),
        ("current", [1, 1, 1, 1, 0], [0, 0, 1, 1, 0]),
        ("all", [1] * 5, [1] * 5),
    ])  # fmt: skip
    def test_who_competes(self, scope, first, second):
        table = competing_classes(scope, self.opened, self.visible, 1)
        assert table[:2].int().tolist() == [first, second]

    def test_of_a_multi_head_stream(self):
        one = made(task_incremental(DATA))
        one.open_classes(1)
        assert one.scope == "own"
        assert one.batch().open[0].tolist() == [False, False, True, True, False, False]


class TestParts:
    def test_views_write_the_vector(self):
        one = made()
        one.params["net.head.bias"][1] = 7.0
        assert (one.vector == 7.0).sum() == 1

    def test_free_follows_the_opened_columns(self):
        one = made()
        for stage, count in enumerate((2, 5, 6)):
            one.open_classes(stage)
            free = one.layout(one.free)
            assert free["net.head.bias"].tolist() == [True] * count + [False] * (6 - count)
            assert free["net.backbone.lower.0.weight"].all()
            assert one.new.int().sum() == (2, 3, 1)[stage]

    def test_a_snapshot_stays(self):
        one = made(model="normed")
        kept = one.snapshot()
        one.vector += 1
        for value in one.buffers.values():
            value += 1
        fresh = made(model="normed")
        assert trees_equal(kept, {"vector": fresh.vector, "buffers": fresh.buffers})

    def test_outputs_in_parts_and_whole(self, monkeypatch):
        one = made(model="normed")
        one.open_classes(0)
        whole = one.outputs(STREAM[0].train)
        monkeypatch.setattr("engram.learner.learner.EVAL_ROWS", 5)
        parts = one.outputs(STREAM[0].train)
        assert largest_gap(tuple(parts[:2]), tuple(whole[:2])) < 1e-12
        assert whole.logits.shape == (len(STREAM[0].train), 6)

    def test_bytes_by_kind(self):
        one = made(model="normed")
        rows = torch.arange(4)
        one.exemplars = Exemplars(rows, rows * 0, rows * 0, rows)
        one.state = {"a": {"b": torch.zeros(3, dtype=torch.float64)}}
        one.opt = {"m": torch.zeros(5)}
        statistics = sum(8 * value.numel() for value in one.buffers.values())
        assert one.nbytes() == {
            "parameters": 8 * len(one.vector), "buffers": statistics, "networks": 0, "state": 24,
            "optimizer": 20, "exemplars": 4 * DATA.sample_bytes,
        }  # fmt: skip
        one.buffers["hidden"] = torch.zeros(7)  # no buffer of the network
        assert one.nbytes()["networks"] == 28

    def test_a_further_network_is_counted(self):
        class Brings(Finetune):
            def networks(self, stream):
                module = nn.Linear(2, 3)  # 9 parameters
                module.register_buffer("noise", torch.zeros(5))
                return {"generator": module}

        size, plain = made(method=Brings()).nbytes(), made().nbytes()
        assert size["networks"] == 9 * 8 + 5 * 8
        assert size["parameters"] == plain["parameters"]


def test_items_of_a_task_are_shared_but_labels_are_the_callers_own():
    one, other = made(), made()
    for learner in (one, other):
        learner.open_classes(1)
    one.labels(STREAM[1].train).fill_(-1)
    expected = visible_labels(STREAM, STREAM[1].train, torch.ones_like(STREAM[1].train))
    assert torch.equal(other.labels(STREAM[1].train), expected)
    assert torch.equal(other.items().y, expected)


def test_what_may_move_is_the_learners_own():
    one, other = made(), made()
    for learner in (one, other):
        learner.open_classes(0)
    one.free.fill_(False)
    assert other.free.any()
    assert not other.free.all()  # columns of later tasks are shut
