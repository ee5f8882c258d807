from __future__ import annotations

from typing import Any

import pytest
import torch

from engram.checks.learning_rules import make_refined_streams
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import BiC, Finetune, bic
from engram.methods.bic import (
    VARIANTS,
    bias_correction_factors,
    correct_logits,
    minimize_cost,
    select_held_out,
)
from engram.streams import class_incremental, permuted
from tests.methods.rehearsal import (
    FakeNet,
    Normed,
    accuracy,
    batch_of,
    clouds,
    lockstep_gap,
    spied,
    train,
)

STREAM = class_incremental(clouds())
SOME = Memory(total=60)
LEARN = {"epochs": 20, "optimizer": "adam", "lr": 0.02}


def test_corrections() -> None:
    """[T-C1] logits (2, 1 | 3), alpha .5, beta .2"""
    o, new = torch.tensor([2.0, 1.0, 3.0]).double(), torch.tensor([False, False, True])
    alpha, beta = torch.tensor(0.5).double(), torch.tensor(0.2).double()
    found = {}
    for variant in ("softmax", "sigmoid", "distil"):
        scale, shift = bias_correction_factors(alpha, beta, new, variant)
        found[variant] = correct_logits(o, {"scale": scale, "shift": shift})
    assert found["softmax"].tolist() == pytest.approx([2, 1, 1.7])
    wanted = [0.474226, 0.174458, 0.351316]
    assert found["softmax"].softmax(0).tolist() == pytest.approx(wanted, abs=1e-6)
    assert found["sigmoid"].tolist() == pytest.approx([3.8, 1.8, 1.7])
    wanted = [0.978119, 0.858149, 0.845535]
    assert found["sigmoid"].sigmoid().tolist() == pytest.approx(wanted, abs=1e-6)
    assert torch.equal(found["distil"], found["sigmoid"])


def test_share_of_the_distillation(monkeypatch: pytest.MonkeyPatch) -> None:
    """[T-C2] 10 old and 5 new classes: lambda 2/3, so .3 and .9 give .5"""
    logits = torch.zeros(1, 15, dtype=torch.float64)
    batch = batch_of([12], opened=[0] * 10 + [1] * 5, now=1)
    ones = torch.ones(15, dtype=torch.float64)
    state = {"teacher": {}, "old scale": ones, "old shift": 0 * ones}
    monkeypatch.setattr(bic, "distill_rows", lambda *a, **k: torch.tensor([0.3]).double())
    net: Any = FakeNet(logits, logits)
    monkeypatch.setattr(net, "task", lambda _: torch.tensor(0.9).double())
    terms = BiC().loss(net, batch, state)
    assert sum(terms.values()).item() == pytest.approx(0.5, abs=1e-6)


def test_the_fit_finds_a_known_bias() -> None:
    torch.manual_seed(0)
    true = torch.randn(4000, 4, dtype=torch.float64) * 2
    y = torch.distributions.Categorical(logits=true).sample()
    new = torch.tensor([False, False, True, True])
    seen = torch.ones(4, dtype=torch.bool)
    shown = torch.where(new, (true - 0.7) / 1.6, true)  # what a biased network says
    cost = BiC(shift_decay=0.0)._softmax_cost(shown, y, seen, {})
    alpha, beta = minimize_cost(
        lambda a, b: cost(*bias_correction_factors(a, b, new, "softmax"), b)
    )
    assert alpha.item() == pytest.approx(1.6, abs=0.1)
    assert beta.item() == pytest.approx(0.7, abs=0.1)


def test_the_fit_stays_finite_and_positive() -> None:
    steep = minimize_cost(lambda a, b: -100 * a.log())  # nothing bounds it but the ridge
    assert torch.isfinite(torch.stack(steep)).all()
    assert minimize_cost(lambda a, b: 1000 * a)[0] > 0


class Leaky(BiC):
    """Fits on rows that were in batches."""

    def _hold_out(self, learner: Any, task: Any) -> None:
        pass


def fitted_and_trained(method: BiC, monkeypatch: pytest.MonkeyPatch) -> tuple[set, set]:
    """Inputs on which corrections were fitted, and inputs in any batch of any task."""
    fitted: set[Any] = set()
    answers, seen = bic.collect_logits, spied(monkeypatch, type(method))

    def noting(learner: Any, rows: Any, before: Any) -> Any:
        fitted.update(map(tuple, learner.batch(rows.rows, rows.stages).x.tolist()))
        return answers(learner, rows, before)

    monkeypatch.setattr(bic, "collect_logits", noting)
    train(method, STREAM)
    return fitted, {tuple(row) for batch in seen.batches for row in batch.x.tolist()}


def test_rows_of_the_fit_never_enter_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, trained = fitted_and_trained(BiC(memory=SOME), monkeypatch)
    assert fitted
    assert not fitted & trained
    everything = {tuple(row) for row in STREAM.data.x[STREAM.data.train].double().tolist()}
    assert len(everything - trained - fitted) <= 3  # put aside, then cut from the memory


def test_a_fit_on_training_batches_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, trained = fitted_and_trained(Leaky(memory=SOME), monkeypatch)
    assert fitted & trained


def test_sigmoid_fits_on_the_whole_memory_after_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, answers = [], bic.collect_logits

    def noting(learner: Any, rows: Any, before: Any) -> Any:
        sizes.append(rows.stages.bincount().tolist())
        return answers(learner, rows, before)

    monkeypatch.setattr(bic, "collect_logits", noting)
    memory = Memory(per_class=5, policy="herding")
    train(BiC(memory=memory, variant="sigmoid"), STREAM)
    assert sizes == [[10, 10], [10, 10, 10]]


def test_places_put_aside() -> None:
    learner = train(BiC(memory=SOME), STREAM)[-1].learner
    aside = select_held_out(learner.exemplars, 10)
    assert aside.ranks.tolist() == [1] * 6  # ten or fewer of each class
    assert sorted(aside.columns.tolist()) == list(range(6))


def test_the_latest_classes_are_corrected_or_all() -> None:
    for history, corrected_columns in (("latest", [4, 5]), ("all", [2, 3, 4, 5])):
        state = train(BiC(memory=SOME, history=history), STREAM)[-1].learner.state
        assert state["scale"].ne(1).nonzero()[:, 0].tolist() == corrected_columns
        assert set(state) == {"scale", "shift"}
    both = train(BiC(memory=SOME, variant="sigmoid"), STREAM)[-1].learner.state
    assert both["scale"][:4].allclose(1 / both["scale"][4])
    assert both["shift"][:4].allclose(-both["shift"][4])


def test_scores_during_a_task_are_the_outputs() -> None:
    stage = train(BiC(memory=SOME), STREAM, evaluate_every=2)[1]
    assert stage.curve


def test_the_correction_helps_on_unbalanced_memories() -> None:
    method = BiC(memory=Memory(total=18), hold_every=3)
    with_it = accuracy(train(method, STREAM, **LEARN)[-1])
    assert with_it > accuracy(train(Finetune(), STREAM, **LEARN)[-1]) + 0.2


@pytest.mark.parametrize("variant", ["sigmoid", "distil"])
def test_label_sets(variant: str) -> None:
    stages = train(BiC(memory=SOME, variant=variant), make_refined_streams()[0], **LEARN)
    state = stages[-1].learner.state
    assert torch.isfinite(state["scale"]).all()
    assert (state["scale"] > 0).all()


def test_softmax_is_refused_on_label_sets() -> None:
    with pytest.raises(BadArgument, match="BiC"):
        train(BiC(memory=SOME), make_refined_streams()[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_lockstep(variant: str) -> None:
    assert lockstep_gap(BiC(memory=SOME, variant=variant), model=Normed) < 1e-8


def test_label_scope_counts_the_new_classes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([2], opened=[0, 0, 1], now=1)
    logits = torch.tensor([[3.0, -1.0, 0.5]]).double()
    net: Any = FakeNet(logits, logits)
    one = BiC(variant="sigmoid", label_scope="new")._task(net, batch, logits)
    assert one.item() == pytest.approx(0.474077, abs=1e-6)
    every = BiC(variant="sigmoid")._task(net, batch, logits)
    assert every.item() == pytest.approx((3.048587 + 0.313262 + 0.474077) / 3, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "relu"}, "variant"),
        ({"temperature": 0.0}, "temperature"),
        ({"hold_every": 1}, "hold_every"),
        ({"shift_decay": -1.0}, "shift_decay"),
        ({"history": "none"}, "history"),
        ({"history": "all", "variant": "sigmoid"}, "history: expected 'latest'"),
        ({"label_scope": "old"}, "label_scope"),
        ({"memory": Memory(total=60, policy="herding")}, "memory.policy: expected 'random'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        BiC(**options)


def test_streams_and_memories_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadArgument, match="new classes in every task"):
        train(BiC(memory=SOME), permuted(clouds(), tasks=2))
    with pytest.raises(BadArgument, match="at least 2 exemplars for each of 6 classes"):
        train(BiC(memory=Memory(total=11)), STREAM)
