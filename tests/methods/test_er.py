from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.data.dataset import Data
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.er import ER
from engram.methods.er_infinite import ERInfinite
from engram.methods.finetune import Finetune
from engram.methods.method import Method
from engram.streams import Stream, Task, class_incremental, task_incremental
from tests.methods.rehearsal import (
    FakeNet,
    Normed,
    accuracy,
    batch_of,
    clouds,
    final,
    lockstep_gap,
    logits_for,
    spied,
    train,
)

STREAM = class_incremental(clouds())
SMALL = Memory(total=18)


def test_sum_of_means_and_one_mean() -> None:
    """[T-P2] new rows .6, memory rows .9 -> 1.5; one mean over the three rows -> .7"""
    net = FakeNet(logits_for([0.2, 1.0, 0.9]))
    batch = batch_of([0, 0, 0], opened=[0, 1], now=1, old=[0, 0, 1])
    terms = ER(reduce="sum").loss(net, batch, {})  # type: ignore[arg-type]
    assert terms["task"].item() == pytest.approx(0.6, abs=1e-5)
    assert terms["memory"].item() == pytest.approx(0.9, abs=1e-5)
    assert sum(terms.values()).item() == pytest.approx(1.5, abs=1e-5)  # type: ignore[union-attr]
    assert net.weights is batch.w  # one pass, whose normalisation sees every row
    plain = ER().loss(net, batch, {})  # type: ignore[arg-type]
    assert plain["task"].item() == pytest.approx(0.7, abs=1e-5)


@pytest.mark.parametrize("mix", ["paired", "union"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_first_task_is_finetuning(mix: str, reduce: str) -> None:
    first = STREAM[:1]
    got = final(ER(memory=SMALL, mix=mix, reduce=reduce), first)
    assert torch.equal(got, final(Finetune(), first))


def test_empty_buffer_is_finetuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ER, "finish", Method.finish)
    for mix in ("paired", "union"):
        assert torch.equal(final(ER(mix=mix), STREAM), final(Finetune(), STREAM))


def test_paired_batches_hold_as_many_memory_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, ER)
    train(ER(memory=SMALL), STREAM, batch_size=8)
    assert all(batch.old.sum() == 0 for batch in seen.of(0))
    for stage in (1, 2):
        assert all(batch.old.sum() == 8 for batch in seen.of(stage))
        full = [batch for batch in seen.of(stage) if len(batch.old) == 16]
        assert full
        assert all(bool((b.stage < stage)[b.old > 0].all()) for b in full)
    seen.batches.clear()
    train(ER(memory=SMALL, size=3), STREAM, batch_size=8)
    assert all(batch.old.sum() == 3 for batch in seen.of(2))


def test_every_exemplar_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exemplars that are stored but never replayed are a known bug elsewhere."""
    seen = spied(monkeypatch, ER)
    stages = train(ER(memory=SMALL, mix="union"), STREAM, epochs=1)
    kept = stages[-1].learner.exemplars
    assert len(kept) == 18
    assert kept.counts(6).tolist() == [3] * 6
    old = [torch.cat([b.stage[b.old > 0] for b in seen.of(k)]) for k in (1, 2)]
    assert old[0].tolist() == [0] * 18  # two classes share 18 items: 9 each
    assert sorted(old[1].tolist()) == [0] * 8 + [1] * 8  # then four share them: 4 each


def test_gradient_moves_old_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's labels are among the targets of batches of later tasks."""
    seen = spied(monkeypatch, ER)
    train(ER(memory=SMALL), STREAM)
    targets = torch.cat([b.target[b.old > 0] for b in seen.of(2)])
    assert set(targets.tolist()) == {0, 1, 2, 3}


def test_er_keeps_what_finetuning_forgets() -> None:
    options = {"epochs": 20, "optimizer": "adam", "lr": 0.02, "precision": "float32"}
    good = accuracy(train(ER(memory=SMALL), STREAM, **options)[-1])
    assert good > accuracy(train(Finetune(), STREAM, **options)[-1]) + 0.3


def test_replayed_rows_use_their_own_head(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, ER)
    stream = task_incremental(clouds())
    train(ER(memory=SMALL), stream)
    for batch in seen.of(2):
        assert torch.equal(batch.open, stream.visible[batch.stage])
        assert bool(batch.open.gather(1, batch.y).all())  # the label's class competes
        assert bool((batch.open.sum(1) == 2).all())


@pytest.mark.parametrize("mix", ["paired", "union"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_lockstep(mix: str, reduce: str) -> None:
    assert lockstep_gap(ER(memory=SMALL, mix=mix, reduce=reduce)) < 1e-10


@pytest.mark.parametrize(
    "options", [{"iterations": 7}, {"loss": "balanced"}, {"incomplete_batch": "wrap"}]
)
def test_lockstep_in_other_settings(options: dict[str, object]) -> None:
    assert lockstep_gap(ER(memory=SMALL, reduce="sum"), **options) < 1e-10


def test_lockstep_with_full_batches() -> None:
    assert lockstep_gap(ER(memory=SMALL, mix="union", reduce="sum"), batch_size=0) < 1e-10
    assert lockstep_gap(ER(memory=SMALL, size=8), batch_size=0) < 1e-10
    assert lockstep_gap(ER(memory=SMALL), batch_size=0) < 1e-10  # as many as the run's own rows
    assert lockstep_gap(ER(memory=SMALL, reduce="sum"), batch_size=40) < 1e-10


def test_lockstep_with_normalisation_and_own_heads() -> None:
    method = ER(memory=SMALL, reduce="sum")
    assert lockstep_gap(method, model=Normed, scenario=task_incremental) < 1e-10


def two_labels() -> Stream:
    """Rows of subclass a (id 1) of superclass A (id 0); tasks [A], [a] share rows 0 to 4."""
    x = torch.arange(24.0).reshape(12, 2)
    y = torch.tensor([[0, 1]] * 12)
    train_rows, test = torch.arange(10), torch.tensor([10, 11])
    data = Data(x=x, y=y, train=train_rows, test=test, classes=("A", "a"))
    first = Task(train=torch.arange(5), test=test, new=(0,))
    second = Task(train=torch.arange(10), test=test, new=(1,))
    return Stream(data=data, tasks=(first, second))


@pytest.mark.parametrize(
    "method", [ER(memory=Memory(total=10), mix="union"), ERInfinite(), ERInfinite(mix="paired")]
)
def test_stored_labels_stay_as_they_were(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """[T-P4] in the second task old rows are replayed with {A}, new ones are shown with {a}."""
    seen = spied(monkeypatch, type(method))
    train(method, two_labels(), loss="bce")
    batches = seen.of(1)
    labels = torch.cat([b.y[b.old > 0] for b in batches])
    assert {tuple(row) for row in labels.tolist()} == {(0, -1)}
    fresh = torch.cat([b.y[b.old == 0] for b in batches])
    assert {tuple(row) for row in fresh.tolist()} == {(1, -1)}
    old = {tuple(row) for b in batches for row in b.x[b.old > 0].tolist()}
    new = {tuple(row) for b in batches for row in b.x[b.old == 0].tolist()}
    assert old <= new  # the same image occurs under both labels


def test_finetuning_never_shows_the_superclass_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """[T-P4]"""
    seen = spied(monkeypatch, Method)
    train(Finetune(), two_labels(), loss="bce")
    assert {int(v) for b in seen.of(1) for v in b.y[:, 0]} == {1}


@pytest.mark.parametrize("options", [{"mix": "pair"}, {"reduce": "max"}, {"size": -1}])
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(BadArgument, match=next(iter(options))):
        ER(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [ER(memory=Memory(per_class=5), mix="union"), ERInfinite()])
def test_complete_information_is_that_of_the_time(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the method: rows of the second task are told {a, A}, kept ones stay with {A}."""
    seen = spied(monkeypatch, type(method))
    stream = replace(two_labels(), information="complete")
    stages = train(method, stream, loss="bce")
    batches = seen.of(1)
    fresh = torch.cat([b.y[b.old == 0] for b in batches])
    assert {tuple(row) for row in fresh.tolist()} == {(1, 0)}  # the task's own label first
    old = torch.cat([b.y[b.old > 0] for b in batches])
    assert {tuple(row) for row in old.tolist()} == {(0, -1)}
    if isinstance(method, ER):  # exemplars of a class are those of the task that shows it
        kept = stages[-1].learner.exemplars
        assert kept.columns.tolist() == [0] * 5 + [1] * 5


def test_refreshed_labels_of_a_memory_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant shows every label opened by now, also for rows stored when it was hidden."""
    from engram.learner import learner

    def refreshed(stream: Stream, rows: torch.Tensor, stages: torch.Tensor) -> torch.Tensor:
        return stream.targets[rows]

    monkeypatch.setattr(learner, "visible_labels", refreshed)
    method = ER(memory=Memory(total=10), mix="union")
    with pytest.raises(AssertionError):
        test_stored_labels_stay_as_they_were(method, monkeypatch)
