from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engram.checks.learning_rules import make_refined_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import LUCIR, Finetune
from engram.methods.lucir import (
    VARIANTS,
    cosine_distance,
    feature_weight_growth,
    margin_violations,
    mean_direction,
)
from engram.models.heads import Cosine
from engram.streams import class_incremental
from tests.methods.rehearsal import (
    SGD,
    TINY,
    Normed,
    accuracy,
    clouds,
    final,
    lockstep_gap,
    spied,
    train,
)  # fmt: skip

STREAM = class_incremental(clouds())
FEW = Memory(per_class=4, policy="herding")
LEARN = {"epochs": 20, "optimizer": "adam", "lr": 0.02}


def near(value: Any, wanted: Any) -> None:
    assert torch.as_tensor(value).tolist() == pytest.approx(wanted, abs=1e-6)


def test_cosines_and_logits() -> None:
    """[T-L1] g = (3, 4), rows (1, 0), (0, 2), (-1, 0), scale 10"""
    head = Cosine(2, 3, scale=10.0)
    head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
    x = torch.tensor([[3.0, 4.0]])
    near(head.cosines(x)[0].detach(), [0.6, 0.8, -0.6])
    near(head(x)[0].detach(), [6.0, 8.0, -6.0])
    near(head(x)[0].sigmoid().detach(), [0.997527, 0.999665, 0.002473])  # [T-L6]


def test_features_weight_and_margin() -> None:
    """[T-L2]-[T-L6]"""
    new, old = torch.tensor([3.0, 4.0]).double(), torch.tensor([4.0, 3.0]).double()
    away = cosine_distance(new[None], old[None])[0]
    near(away, 0.04)
    ten, five, many = (torch.tensor(v).double() for v in (10.0, 5.0, 105.0))
    near(5 * feature_weight_growth(ten, five, "old_new"), 7.071068)
    near(5 * feature_weight_growth(many, five, "old_new"), 22.912878)
    near(5 * feature_weight_growth(ten, five, "new_old"), 3.535534)
    near(5 * feature_weight_growth(many, five, "new_old"), 1.091089)
    cosines = torch.tensor([[0.6, 0.5, 0.3, -0.2]]).double()
    known, y = torch.tensor([True, False, False, False]), torch.tensor([[0]])
    for reduce, value in (("mean", 0.3), ("sum", 0.6)):
        short, count = margin_violations(
            cosines, y, known, ~known, margin=0.5, hardest=2, reduce=reduce
        )
        near(short[0], value)
        assert count.item() == 1
    near(mean_direction(torch.tensor([[3.0, 4.0], [4.0, 3.0]]), 1.5), [1.060660, 1.060660])
    near(0.7 + 5 * feature_weight_growth(ten, five, "old_new") * away + 0.3, 1.282843)


def test_margin_takes_every_stored_old_label_and_no_other() -> None:
    cosines = torch.tensor([[0.6, 0.1, 0.5, 0.3]]).double().expand(3, 4)
    known = torch.tensor([True, True, False, False])
    y = torch.tensor([[0, 1], [0, -1], [2, -1]])  # two old labels, one, and a new one
    short, count = margin_violations(cosines, y, known, ~known, margin=0.5, hardest=2)
    near(short, [(0.3 + 0.8) / 2, 0.3, 0.0])
    assert count.tolist() == [1, 1, 0]
    wide, _ = margin_violations(
        cosines, y, known, ~known, margin=0.5, hardest=9
    )  # two new ones only
    near(wide, [0.55, 0.3, 0.0])
    none = torch.zeros(4, dtype=torch.bool)
    near(margin_violations(cosines, y, known, none, margin=0.5, hardest=2)[0], [0.0, 0.0, 0.0])


def begun(method: LUCIR, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """[tasks - 1] cosines between new rows of the head and mean features when a task begins."""
    found, start = [], type(method).start

    def noting(self: Any, learner: Any, task: Any) -> None:
        start(self, learner, task)
        if learner.stage:
            rows, y = learner.params["net.head.weight"], learner.labels(task.train)[:, 0]
            unit = F.normalize(learner.outputs(task.train).features, dim=-1)
            own = [(unit[y == c].mean(0), rows[c]) for c in learner.new.nonzero()[:, 0].tolist()]
            found.append(torch.stack([F.cosine_similarity(a, b, dim=0) for a, b in own]))

    monkeypatch.setattr(type(method), "start", noting)
    train(method, STREAM)
    return found


def test_new_rows_are_imprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.stack(begun(LUCIR(memory=FEW), monkeypatch)).min() > 1 - 1e-9


def test_a_form_without_imprinting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # not by the module's name: doctests may have imported it a second time
    monkeypatch.setitem(LUCIR.start.__globals__, "imprint_new_classes", lambda learner, task: None)
    assert torch.stack(begun(LUCIR(memory=FEW), monkeypatch)).min() < 0.9


def test_old_rows_stand_still() -> None:
    settings = Training(**{**SGD, "weight_decay": 0.1, "momentum": 0.9})
    run = Run(stream=STREAM, method=LUCIR(memory=FEW), model=TINY, training=settings)
    rows, rest = [], []
    for stage in Engine([run], device="cpu", together=False).stages():
        params = stage.learner.params
        rows.append(params["net.head.weight"].clone())
        rest.append(params["net.head.scale"].clone())
    for k in (1, 2):
        old, new = slice(0, 2 * k), slice(2 * k, 2 * k + 2)
        assert torch.equal(rows[k][old], rows[k - 1][old])
        assert not torch.equal(rows[k][new], rows[k - 1][new])
        assert not torch.equal(rest[k], rest[k - 1])  # everything else is learnt


def test_terms_of_the_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, LUCIR)
    for variant in VARIANTS:
        seen.batches.clear()
        seen.terms.clear()
        train(LUCIR(memory=FEW, variant=variant), STREAM[:2], epochs=1)
        later = [t for b, t in zip(seen.batches, seen.terms, strict=True) if int(b.now) == 1]
        margin = {"margin"} if "no_margin" not in variant else set()
        assert set(later[0]) == {"task", "hold"} | margin
        assert all(set(t) == {"task"} for t in seen.terms[: len(seen.terms) - len(later)])
        assert later[0]["hold"] == pytest.approx(0.0, abs=1e-9)  # the teacher is the network itself


def test_only_memory_rows_have_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, LUCIR)
    train(LUCIR(memory=FEW, margin=2.0), STREAM[:2], epochs=1, batch_size=4)
    for batch, terms in zip(seen.batches, seen.terms, strict=True):
        if int(batch.now):
            assert (terms["margin"] > 0) == bool((batch.old > 0).any())


def test_first_task_is_the_training_objective() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Headed(Finetune):
        head = {"name": "cosine", "scale": 10.0}  # noqa: RUF012

    first = STREAM[:1]
    assert torch.equal(final(LUCIR(memory=FEW), first), final(Headed(), first))


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_forgets_less(variant: str) -> None:
    ours = accuracy(train(LUCIR(memory=FEW, variant=variant), STREAM, **LEARN)[-1])
    assert ours > accuracy(train(Finetune(), STREAM, **LEARN)[-1]) + 0.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_label_sets(variant: str) -> None:
    stages = train(LUCIR(memory=FEW, variant=variant), make_refined_streams()[0], **LEARN)
    assert torch.isfinite(stages[-1].learner.vector).all()


def test_lockstep() -> None:
    methods = [
        LUCIR(memory=FEW, strength=s, margin=m) for s, m in ((5.0, 0.5), (1.0, 0.2), (0.0, 0.0))
    ]
    assert lockstep_gap(methods) < 1e-9
    assert lockstep_gap(LUCIR(memory=FEW, variant="distil"), model=Normed) < 1e-9


@pytest.mark.parametrize(
    "options",
    [{"variant": "none"}, {"strength": -1.0}, {"margin": -0.1}, {"hardest": 0}, {"push": -1.0},
     {"growth": "up"}, {"margin_reduce": "max"}, {"scale": 0.0}],
)  # fmt: skip
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(options))):
        LUCIR(**options)
