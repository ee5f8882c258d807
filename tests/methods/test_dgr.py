"""Deep generative replay against a loop in plain PyTorch, its options, and its golden numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import engram
from engram.checks import toy_runs
from engram.checks.toy_runs import EXACT, MODELS, enter_task, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.losses import distill_rows
from engram.methods import DGR, EWC, LGR, Join
from engram.methods.dgr import hard_label_loss
from engram.streams import class_incremental
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_generative import ScholarTwin, distance, twins_of

SMALL = {"width": 8, "noise": 3}


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("distill", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("multi", [False, True], ids=["class_il", "task_il"])
def test_weights_are_those_of_a_plain_loop(multi, distill, together, monkeypatch):
    monkeypatch.setitem(toy_runs.SPLIT_MODELS, "plain", MODELS["plain"])
    method, count = DGR(distill=distill, **SMALL), 0
    for twin, stage in twins_of(method, ScholarTwin, DECAYED, model="plain", multi=multi,
                                together=together):  # fmt: skip
        assert distance(twin, stage.learner) < 1e-10
        count += 1
    assert count == 6


def test_batch_normalisation_sees_both_halves():
    for twin, stage in twins_of(DGR(**SMALL), ScholarTwin, DECAYED, model="normed", multi=False,
                                together=True):  # fmt: skip
        assert distance(twin, stage.learner) < 1e-10


def test_the_comparison_is_not_blind():
    gaps = {}
    for twin, stage in twins_of(DGR(kd_new_classes="slice", distill=True, **SMALL), ScholarTwin,
                                DECAYED, model="normed", multi=False, together=False):  # fmt: skip
        gaps[stage.run, stage.stage] = distance(twin, stage.learner)
    assert all((gap < 1e-10) == (stage == 0) for (_, stage), gap in gaps.items())


# -- golden numbers --------------------------------------------------------------------------------
def test_soft_labels_are_padded_with_zeros():
    """Student (1, 1, 2), teacher (2, 0), temperature 2."""
    student, teacher = torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 0.0]])
    old, new = torch.tensor([True, True, False]), torch.tensor([False, False, True])
    options = {"temperature": 2.0, "new_classes": new}
    assert distill_rows(student, teacher, old, **options).item() == pytest.approx(1.294377)
    found = DGR(distill=True)._replay_rows(student, teacher, old[None], (old | new)[None])
    assert found.item() == pytest.approx(5.177507)


def test_a_head_each():
    student = torch.tensor([[0.0, 1.0, 2.0, 0.0]])
    teacher = torch.tensor([[3.0, 1.0, 0.0, 1.0]])
    heads = torch.tensor([[True, True, False, False], [False, False, True, True]])
    found = hard_label_loss(student, teacher, heads, heads)
    assert found[0].tolist() == pytest.approx([1.313262, 2.126928], abs=1e-6)


@pytest.mark.parametrize(("ratio", "total"), [(0.5, 0.6), (None, 0.6), (0.25, 0.5)])
def test_the_share_of_new_rows(ratio, total, monkeypatch):
    """Losses of 0.8 and 0.4 at the second task; by default the share is a half there."""
    at = enter_task(DGR(ratio=ratio, **SMALL))
    terms = {"task": torch.tensor(0.8), "replay": torch.tensor(0.4)}
    monkeypatch.setattr(DGR, "_solver", lambda *_: terms)
    monkeypatch.setattr(DGR, "_generator", lambda *_: {})
    batch = next(at.own_batches())
    found = at.method.loss(at.net(batch), batch, at.learners[0].state)
    assert sum(found.values()).item() == pytest.approx(total)


# -- options ---------------------------------------------------------------------------------------
def run_of(method, **changes):
    stream = class_incremental(toy_runs.make_clouds(), classes_per_task=2)
    return Run(stream=stream, method=method, model=MODELS["normed"],
               training=replace(EXACT, **changes))  # fmt: skip


def last_of(method, **changes):
    *_, last = Engine([run_of(method, **changes)], device="cpu").stages()
    return last


@pytest.mark.parametrize(
    "other",
    [
        {"passes": "apart"}, {"order": "generator_first"}, {"size": 5}, {"ratio": 0.3},
        {"distill": True}, {"distill": True, "temperature": 1.0}, {"generator_lr": 0.5},
        {"generator_optimizer": "adam"}, {"noise": 4}, {"width": 9},
        {"distill": True, "kd_new_classes": "slice"},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_does_something(other):
    base = {"distill": len(other) > 1, **SMALL}
    plain, changed = last_of(DGR(**base)), last_of(DGR(**{**base, **other}))
    assert not torch.equal(plain.learner.vector[:50], changed.learner.vector[:50])


@pytest.mark.parametrize(
    "options",
    [
        {"passes": "apart", "order": "generator_first"},
        {"size": 5, "distill": True, "generator_lr": 0.1, "generator_optimizer": "adam"},
    ],
    ids=str,
)
def test_options_in_lockstep(options):
    runs = toy_runs.make_runs(DGR(**SMALL, **options), make_streams(), model="dropped")
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )


def test_generator_first_trains_one_after_the_other():
    last = last_of(DGR(order="generator_first", **SMALL))
    assert last.steps == 2 * last_of(DGR(**SMALL)).steps


def test_one_class_first_has_no_loss_and_no_gradient():
    stream = class_incremental(toy_runs.make_clouds(), classes_per_task=1)
    run = replace(run_of(DGR(**SMALL)), stream=stream, model=MODELS["plain"])
    fresh = Engine([run], device="cpu").learner(run)
    first = next(iter(Engine([run], device="cpu").stages()))
    (losses,) = [terms["task"] for _, terms in first.losses[-1:]]
    assert losses == 0
    for name, value in first.learner.params.items():
        assert torch.equal(value, fresh.params[name]) == name.startswith("net."), name
    assert toy_runs.accuracies(toy_runs.copy_stage(first)) == [1.0]


def test_joined():
    runs = toy_runs.make_runs(Join(DGR(**SMALL), EWC(strength=0.1)), make_streams(), model="plain")
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )


# -- data and costs --------------------------------------------------------------------------------
def test_likelihood_follows_the_data():
    for name, expected in (("digits", "bernoulli"), ("blobs", "gaussian")):
        stream = class_incremental(engram.load(name), classes_per_task=2)
        run = Run(stream=stream, method=DGR(**SMALL), model="mlp", training=EXACT)
        networks = Engine([run], device="cpu").learner(run).networks
        assert networks.train.get_submodule("generator").likelihood == expected


def test_numbers_outside_the_unit_range_are_refused():
    with pytest.raises(BadArgument, match="likelihood: expected gaussian, because inputs are not"):
        last_of(DGR(likelihood="bernoulli", **SMALL))


def test_the_generator_counts_as_memory():
    stream = class_incremental(engram.load("digits"), classes_per_task=5)
    result = engram.run(stream, method=[DGR(), LGR(root_iterations=2)],
                        model={"name": "mlp", "latent": 12}, iterations=2)  # fmt: skip
    cost = result.cost()
    images = 2 * 64 * 65 + 2 * 100 * 65 + 101 * 64 + 2 * 64 * 65  # 64-64-64-(100)-64-64-64
    latents = 64 * 13 + 64 * 65 + 2 * 100 * 65 + 101 * 64 + 64 * 65 + 12 * 65
    assert cost["generator_bytes"].tolist() == [4 * images, 4 * latents]
    assert (cost["memory_bytes"] == cost["generator_bytes"]).all()
    assert (cost["state_bytes"] + cost["network_bytes"] == 0).all()
    assert "latent_bytes" not in cost


@pytest.mark.parametrize(
    "wrong",
    [
        {"ratio": 1.5}, {"ratio": -0.1}, {"temperature": 0.0}, {"kd_new_classes": "drop"},
        {"passes": "both"}, {"order": "first"}, {"likelihood": "laplace"}, {"noise": 0},
        {"size": -1}, {"width": -1}, {"generator_lr": -1.0}, {"generator_optimizer": "lbfgs"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments(wrong):
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        DGR(**wrong)
