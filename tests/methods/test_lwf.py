from __future__ import annotations

from typing import Any

import pytest
import torch

from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.losses import distill_rows
from engram.methods.finetune import Finetune
from engram.methods.lwf import LwF, distill_blocks
from engram.streams import class_incremental, permuted, task_incremental
from tests.methods.rehearsal import (
    FakeNet,
    Normed,
    batch_of,
    clouds,
    final,
    lockstep_gap,
    spied,
    train,
)
from tests.refusals import refuses

STREAM = class_incremental(clouds())
HEADS = task_incremental(clouds())
STUDENT = torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64)
TEACHER = torch.tensor([[2.0, 0.0, 7.0]], dtype=torch.float64)
VARIANTS = [
    {"blocks": "per_task"},
    {"blocks": "joint", "scale": True},
    {"weighting": "task_count"},
    {"weighting": "task_count", "blocks": "per_task"},
    {"ce_scope": "new"},
    {"kd_new_classes": "zero_pad", "form": "kl"},
    {"form": "sigmoid"},
]


def distillation(**options: Any) -> float:
    """The term for one row, two old classes and a new one."""
    batch = batch_of([2], opened=[0, 0, 1], now=1)
    state = {"teacher": {}, "blocks": torch.tensor([[True, True, False]])}
    terms = LwF(**options).loss(FakeNet(STUDENT, TEACHER), batch, state)  # type: ignore[arg-type]
    return terms["distill"].item()


@pytest.mark.parametrize(
    "options, value",
    [
        ({}, 0.693147),
        ({"form": "kl"}, 0.110944),
        ({"scale": True}, 2.772589),
        ({"scale": True, "form": "kl"}, 0.443776),
        ({"temperature": 1.0, "form": "kl"}, 0.327813),
        ({"kd_new_classes": "zero_pad"}, 1.294377),
        ({"kd_new_classes": "zero_pad", "scale": True}, 5.177507),
        ({"strength": 3.0}, 3 * 0.693147),
        ({"weighting": "task_count"}, 0.5 * 0.693147),
        ({"form": "sigmoid"}, 0.666312),
        ({"form": "sigmoid", "scale": True}, 2.665249),
        ({"form": "sigmoid", "temperature": 1.0}, 0.622864),
    ],
)
def test_distillation_term(options: dict[str, Any], value: float) -> None:
    """[T-K1], [T-K2] through the method"""
    assert distillation(**options) == pytest.approx(value, abs=1e-5)


def test_blocks_are_the_sum_of_single_softmaxes() -> None:
    source = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 4, 7, generator=source, dtype=torch.float64)
    opened, w = torch.tensor([0, 0, 1, 1, 1, 2, 3]), torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    blocks = opened == torch.arange(3)[:, None]
    got = distill_blocks(student, teacher, blocks, w)
    for k in range(3):
        inside = opened == k
        everything = torch.ones(int(inside.sum()), dtype=torch.bool)
        rows = distill_rows(student[:, inside], teacher[:, inside], everything)
        assert got[k].item() == pytest.approx(((w * rows).sum() / 3).item(), abs=1e-12)
    assert got[2] == 0.0  # one class alone has nothing to say


def test_task_term_by_task_count() -> None:
    batch = batch_of([2], opened=[0, 0, 1], now=1)
    state = {"teacher": {}, "blocks": torch.tensor([[True, True, False]])}
    net: Any = FakeNet(STUDENT, TEACHER)
    plain = LwF().loss(net, batch, state)["task"]
    shared = LwF(weighting="task_count").loss(net, batch, state)["task"]
    assert shared.item() == pytest.approx(plain.item() / 2, abs=1e-12)


def test_task_count_averages_over_the_heads() -> None:
    batch, net = batch_of([4], opened=[0, 0, 1, 1, 2], now=2), None
    student, teacher = torch.randn(2, 1, 5, generator=torch.Generator().manual_seed(0)).double()
    blocks = torch.tensor([0, 0, 1, 1, 2]) == torch.arange(2)[:, None]
    state, net = {"teacher": {}, "blocks": blocks}, FakeNet(student, teacher)
    both = distill_blocks(student, teacher, blocks, batch.w)
    got = LwF(weighting="task_count").loss(net, batch, state)["distill"]  # type: ignore[arg-type]
    assert got.item() == pytest.approx((2 / 3 * both.mean()).item(), abs=1e-12)


def test_task_term_over_new_classes_only() -> None:
    """The other reading of the task term: only the current task's logits compete."""
    batch = batch_of([2], opened=[0, 0, 1, 1], now=1)
    student = torch.tensor([[9.0, 1.0, 2.0, 1.0]]).double()
    state = {"teacher": {}, "blocks": torch.tensor([[True, True, False, False]])}
    net: Any = FakeNet(student, student)
    got = LwF(ce_scope="new").loss(net, batch, state)["task"]
    expected = torch.log(torch.exp(torch.tensor(2.0)) + torch.exp(torch.tensor(1.0))) - 2
    assert got.item() == pytest.approx(expected.item(), abs=1e-6)
    assert LwF().loss(net, batch, state)["task"].item() > 6


@pytest.mark.parametrize("stream", [STREAM, HEADS], ids=["class", "task"])
def test_no_strength_is_finetuning(stream: Any) -> None:
    assert torch.equal(final(LwF(strength=0.0), stream), final(Finetune(), stream))


def test_forms_train_alike() -> None:
    gap = final(LwF(), STREAM) - final(LwF(form="kl"), STREAM)
    assert gap.abs().max() < 1e-12


def test_distillation_is_not_silently_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (STREAM, HEADS):
        seen = spied(monkeypatch, LwF)
        train(LwF(form="kl"), stream)
        assert all("distill" not in terms for b, terms in zip(seen.batches, seen.terms)
                   if int(b.now) == 0)  # fmt: skip
        for stage in (1, 2):
            values = seen.values("distill", stage)
            assert values[0] == pytest.approx(0.0, abs=1e-12)  # student and teacher start equal
            assert max(values) > 1e-4
        monkeypatch.undo()


def test_teacher_is_the_network_after_the_task_before(monkeypatch: pytest.MonkeyPatch) -> None:
    teachers: dict[int, torch.Tensor] = {}
    loss = LwF.loss

    def noting(self: LwF, net: Net, batch: Batch, state: Any) -> Any:
        if "teacher" in state:
            teachers[int(batch.now)] = state["teacher"]["vector"].clone()
        return loss(self, net, batch, state)

    monkeypatch.setattr(LwF, "loss", noting)
    before = [train(LwF(), STREAM[:k])[-1].learner for k in (1, 2)]
    teachers.clear()
    last = train(LwF(), STREAM)[-1].learner
    assert sorted(teachers) == [1, 2]
    # the head of a shorter stream is narrower: compare the layers before it
    layers = [name for name in last.params if not name.startswith("net.head")]
    assert layers
    taught = {stage: last.layout(vector) for stage, vector in teachers.items()}
    for stage, learner in zip((1, 2), before, strict=True):
        for name in layers:
            assert (taught[stage][name] - learner.params[name]).abs().max() < 1e-12
    assert (taught[1][layers[0]] - taught[2][layers[0]]).abs().max() > 1e-3
    assert last.state == {}  # nothing is kept between tasks


def test_teacher_stays_in_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics do not move, its dropout is off: equal inputs give equal answers."""
    answers, buffers = [], []
    loss = LwF.loss

    def noting(self: LwF, net: Net, batch: Batch, state: Any) -> Any:
        if "teacher" in state and int(batch.now) == 1:
            teacher = net.frozen(state["teacher"])
            answers.append((teacher(batch.x).logits, teacher(batch.x).logits))
            answers.append((teacher(batch.x).logits[:3], teacher(batch.x[:3]).logits))
            buffers.append({k: v.clone() for k, v in state["teacher"]["buffers"].items()})
        return loss(self, net, batch, state)

    monkeypatch.setattr(LwF, "loss", noting)
    stages = train(LwF(), STREAM[:2], model=Normed)
    assert len(buffers) > 2
    for first, second in answers:
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    assert any("mean" in name for name in buffers[0])
    for name, value in buffers[0].items():
        assert all(torch.equal(value, later[name]) for later in buffers)
    moved = stages[-1].learner.buffers
    assert any(not torch.equal(moved[name], value) for name, value in buffers[0].items())


def test_blocks_follow_the_head() -> None:
    def shapes(stream: Any, **options: Any) -> list[int]:
        found = []
        loss = LwF.loss

        class Noting(LwF):
            def loss(self, net: Net, batch: Batch, state: Any) -> Any:
                if "blocks" in state:
                    found.append(len(state["blocks"]))
                return loss(self, net, batch, state)

        train(Noting(**options), stream, epochs=1, batch_size=0)
        return found

    assert shapes(STREAM) == [1, 1]
    assert shapes(HEADS) == [1, 2]
    assert shapes(STREAM, blocks="per_task") == [1, 2]
    assert shapes(HEADS, blocks="joint") == [1, 1]


def drift(stages: Any) -> float:
    """How far the first head's answers to inputs of the second task moved in that task."""
    before, after = (torch.as_tensor(s.scores[20:40, :2]).softmax(-1) for s in stages[:2])
    assert len(before) == len(after) == 20
    return float((before - after).abs().mean())


def test_it_keeps_the_old_answers_to_new_inputs() -> None:
    plain = drift(train(Finetune(), HEADS, epochs=10, unseen=True))
    assert plain > 0.1
    assert drift(train(LwF(strength=2.0), HEADS, epochs=10, unseen=True)) < 0.3 * plain


def test_domains_without_new_classes() -> None:
    """All classes are old from the second task on; every one is distilled."""
    stream = permuted(clouds(), tasks=2)
    for options in ({}, {"blocks": "per_task"}, {"weighting": "task_count"}):
        assert torch.isfinite(final(LwF(**options), stream)).all()  # type: ignore[arg-type]
    with refuses("ce_scope"):
        train(LwF(ce_scope="new"), stream)


def test_one_class_per_task() -> None:
    stream = class_incremental(clouds(), classes_per_task=1)
    assert torch.isfinite(final(LwF(blocks="per_task"), stream)).all()


@pytest.mark.parametrize("options", VARIANTS)
def test_lockstep(options: dict[str, Any]) -> None:
    assert lockstep_gap(LwF(**options)) < 1e-10


def test_lockstep_with_own_heads_and_normalisation() -> None:
    assert lockstep_gap(LwF(), scenario=task_incremental, model=Normed) < 1e-10


def test_several_strengths_and_temperatures_in_lockstep() -> None:
    methods = [LwF(strength=0.0), LwF(strength=0.5, temperature=1.0), LwF(strength=2.0)]
    assert lockstep_gap(methods) < 1e-10


@pytest.mark.parametrize(
    "options", [{"strength": -1.0}, {"temperature": 0.0}, {"blocks": "task"}, {"form": "mse"}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(options))):
        LwF(**options)
