from __future__ import annotations

import numpy as np
import pytest
import torch

from engram import class_incremental, load, methods
from engram.engine.engine import Engine
from engram.engine.optim import Schedule
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument


def curves(runs: int, epochs: int) -> np.ndarray:
    """Validation losses that fall, rise and stall, [epochs, runs]."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(-0.01, 0.1, (epochs, runs)), 0)
    return np.abs(walk) + rng.choice([0.0, 1e-5], (epochs, runs))


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("threshold", [0.0, 1e-4, 0.05])
@pytest.mark.parametrize("watch", ["loss", "score"])
def test_plateau_equals_torch(patience, threshold, watch):
    values = curves(5, 80)
    training = Training(
        lr=0.5, schedule="plateau", factor=0.5, plateau_patience=patience,
        plateau_threshold=threshold, plateau_watch=watch,
    )  # fmt: skip
    ours = Schedule(training, values.shape[1])
    theirs = []
    for _ in range(values.shape[1]):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
        theirs.append(
            torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer,
                mode="min" if watch == "loss" else "max",
                factor=0.5,
                patience=patience,
                threshold=threshold,
                threshold_mode="abs",
                eps=0.0,
            )
        )
    cuts = 0
    for epoch, row in enumerate(values):
        ours.after_epoch(epoch, {"loss": row, "score": row})
        for scheduler, value in zip(theirs, row, strict=True):
            scheduler.step(value)
        expected = [scheduler.optimizer.param_groups[0]["lr"] for scheduler in theirs]
        assert ours.lr.tolist() == expected
        cuts += len(set(expected))
    assert cuts > 100  # rates did differ between runs


def test_a_loss_that_is_no_number_is_no_gain():
    schedule = Schedule(Training(schedule="plateau", plateau_patience=1, factor=0.1, lr=1.0), 1)
    for epoch, loss in enumerate([1.0, np.nan, np.nan]):
        schedule.after_epoch(epoch, {"loss": np.array([loss])})
    assert schedule.lr.tolist() == [0.1]


def test_milestones_equal_torch():
    training = Training(lr=1.0, schedule="step", milestones=(2, 5), factor=0.1)
    ours = Schedule(training, 2)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], gamma=0.1)
    for epoch in range(8):
        ours.after_epoch(epoch, {})
        optimizer.step()
        theirs.step()
        assert ours.lr == pytest.approx([theirs.get_last_lr()[0]] * 2)


def test_patience_stops_each_run_by_itself():
    schedule = Schedule(Training(patience=2), 2)
    history = []
    for epoch, row in enumerate([(0.1, 0.1), (0.2, 0.1), (0.2, 0.1), (0.3, 0.9), (0.3, 0.9)]):
        schedule.after_epoch(epoch, {"score": np.array(row)})
        history.append(schedule.active.tolist())
    assert history == [
        [True, True], [True, True], [True, False], [True, False], [True, False],
    ]  # fmt: skip
    assert schedule.improved.tolist() == [True, False]  # as good as the best, and later


def test_a_stopped_run_improves_no_more():
    schedule = Schedule(Training(patience=1, restore_best=True), 1)
    for epoch, value in enumerate([0.5, 0.4, 0.9]):
        schedule.after_epoch(epoch, {"score": np.array([value])})
    assert not schedule.active[0]
    assert not schedule.improved[0]


def test_of_equal_epochs_the_last_is_best_and_none_of_them_is_a_gain():
    schedule = Schedule(Training(patience=2, restore_best=True), 2)
    kept = []
    for epoch, row in enumerate([(0.5, 0.5), (0.5, 0.4), (0.6, 0.5), (0.6, 0.9)]):
        schedule.after_epoch(epoch, {"score": np.array(row)})
        kept.append(schedule.improved.tolist())
    assert kept == [[True, True], [True, False], [True, True], [True, False]]
    assert schedule.active.tolist() == [True, False]


@pytest.mark.parametrize(("lr", "lowest"), [(1.0, 0.002), (0.3, 0.0006)])
def test_a_task_ends_at_its_third_cut(lr, lowest):
    settings = {"schedule": "plateau", "plateau_patience": 0, "plateau_watch": "score"}
    schedule = Schedule(Training(lr=lr, stop_lr=lowest, **settings), 2)
    rates, active = [], []
    for epoch in range(6):
        schedule.after_epoch(epoch, {"loss": np.zeros(2), "score": np.array([0.5, epoch / 10])})
        rates.append(schedule.lr[0] / lr)
        active.append(schedule.active.tolist())
    assert rates == pytest.approx([1, 0.1, 0.01, 0.001, 0.001, 0.001])
    assert active == [[True, True]] * 3 + [[False, True]] * 3


@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_the_lowest_rate_itself_is_still_trained_with(lr):
    training = Training(lr=lr, stop_lr=lr / 100, schedule="step", milestones=(1, 2, 3))
    schedule = Schedule(training, 1)
    active = []
    for epoch in range(3):
        schedule.after_epoch(epoch, {})
        active.append(bool(schedule.active[0]))
    assert active == [True, True, False]


def test_a_lowest_rate_that_means_nothing_is_refused():
    with pytest.raises(BadArgument, match="stop_lr: expected 0 where the schedule is constant"):
        Training(stop_lr=1e-4)
    with pytest.raises(BadArgument, match="stop_lr: expected at most the learning rate"):
        Training(schedule="plateau", lr=0.1, stop_lr=1.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_runs_with_other_rates_train_together(optimizer):
    """Each as alone; where the group goes one by one, each with its own rate as well."""
    stream = class_incremental(load("blobs"))[:2]
    rates = (0.001, 0.01, 0.01, 0.05)
    runs = [
        Run(stream=stream, method=methods.EWC(strength=10.0 * k),
            training=Training(lr=lr, optimizer=optimizer, epochs=1, weight_decay=0.01,
                              precision="float64"))
        for k, lr in enumerate(rates)
    ]  # fmt: skip
    together = Engine(runs, device="cpu", together=True)
    assert together.groups() == [[0, 1, 2, 3]]
    found = {(one.run, one.stage): one.learner.vector.clone() for one in together.stages()}
    for one in Engine(runs, device="cpu", together=False).stages():
        assert torch.allclose(found[one.run, one.stage], one.learner.vector, atol=1e-9)
    for place, run in enumerate(runs):  # and in a group of its own
        (*_, last) = Engine([run], device="cpu").stages()
        assert torch.allclose(found[place, 1], last.learner.vector, atol=1e-9)
    assert not torch.allclose(found[0, 0], found[1, 0], atol=1e-3)


def test_a_rate_that_others_depend_on_is_shared():
    stream = class_incremental(load("blobs"))[:2]
    kinds = {"DGR": methods.DGR(generator_lr=1e-3), "Finetune": methods.Finetune()}
    groups = {
        name: Engine(
            [Run(stream=stream, method=one, training=Training(lr=lr)) for lr in (0.1, 0.01)],
            device="cpu",
        ).groups()
        for name, one in kinds.items()
    }
    assert groups == {"DGR": [[0], [1]], "Finetune": [[0, 1]]}
