from __future__ import annotations

import pytest
import torch

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.er import ER
from engram.methods.finetune import Finetune
from engram.methods.naive_rehearsal import NaiveRehearsal
from engram.streams import class_incremental, task_incremental
from tests.methods.rehearsal import (
    FakeNet,
    batch_of,
    clouds,
    final,
    lockstep_gap,
    logits_for,
    spied,
    train,
)

STREAM = class_incremental(clouds())
SMALL = Memory(total=18, shared_by="task", shrink="random")


def test_shares_of_the_memory() -> None:
    """[T-P1] B = 6: 6, 3, 2 rows enter after tasks 1, 2, 3, and as many leave."""
    method = NaiveRehearsal(memory=Memory(total=6, shared_by="task", shrink="random"))
    before = torch.empty(0, dtype=torch.long)
    for number, entering in enumerate((6, 3, 2), start=1):
        kept = train(method, STREAM[:number])[-1].learner.exemplars
        assert len(kept) == 6
        assert int((kept.stages == number - 1).sum()) == entering
        old = kept.rows[kept.stages < number - 1]
        assert len(old) == 6 - entering
        assert set(old.tolist()) <= set(before.tolist())
        before = kept.rows


def test_exactly_equal_shares_on_request() -> None:
    method = NaiveRehearsal(memory=Memory(total=6, shared_by="task"))
    kept = train(method, STREAM)[-1].learner.exemplars
    assert torch.bincount(kept.stages).tolist() == [2, 2, 2]


def test_weights_by_task_count() -> None:
    """At the third task: new / 3 + 2/3 memory; at the first, the new rows alone."""
    method = NaiveRehearsal(weighting="task_count")
    net = FakeNet(logits_for([0.6, 0.9, 0.3]))
    batch = batch_of([0, 0, 0], opened=[0, 1], now=2, old=[0, 1, 1])
    terms = method.loss(net, batch, {})  # type: ignore[arg-type]
    assert terms["task"].item() == pytest.approx(0.2, abs=1e-12)
    assert terms["memory"].item() == pytest.approx(0.4, abs=1e-12)
    first = method.loss(net, batch_of([0, 0, 0], opened=[0, 0], now=0), {})  # type: ignore[arg-type]
    assert sum(first.values()).item() == pytest.approx(0.6, abs=1e-12)  # type: ignore[union-attr]


def test_mean_is_paired_replay() -> None:
    assert torch.equal(final(NaiveRehearsal(memory=SMALL), STREAM), final(ER(memory=SMALL), STREAM))


@pytest.mark.parametrize("weighting", ["mean", "task_count"])
def test_first_task_is_finetuning(weighting: str) -> None:
    first = STREAM[:1]
    got = final(NaiveRehearsal(memory=SMALL, weighting=weighting), first)
    assert torch.equal(got, final(Finetune(), first))


def test_replayed_rows_use_their_own_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of every task sent to the first head are a known bug elsewhere."""
    seen = spied(monkeypatch, NaiveRehearsal)
    stream = task_incremental(clouds())
    train(NaiveRehearsal(memory=SMALL), stream)
    stages = torch.cat([b.stage[b.old > 0] for b in seen.of(2)])
    assert set(stages.tolist()) == {0, 1}
    for batch in seen.of(2):
        assert torch.equal(batch.open, stream.visible[batch.stage])


@pytest.mark.parametrize("weighting", ["mean", "task_count"])
@pytest.mark.parametrize("scenario", [class_incremental, task_incremental])
def test_lockstep(weighting: str, scenario: object) -> None:
    method = NaiveRehearsal(memory=SMALL, weighting=weighting)
    assert lockstep_gap(method, scenario=scenario) < 1e-10  # type: ignore[arg-type]


def test_bad_options() -> None:
    with pytest.raises(BadArgument, match="task_count"):
        NaiveRehearsal(weighting="task_cuont")
