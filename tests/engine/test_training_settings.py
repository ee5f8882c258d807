"""Every training setting: lockstep equals the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engram.checks import toy_runs
from engram.checks.equality_rules import require_lockstep_is_alone
from engram.checks.toy_runs import (
    EXACT,
    MODELS,
    ORDERS,
    accuracies,
    largest_gap,
    make_clouds,
    make_runs,
    train_runs,
    trees_equal,
)
from engram.data.dataset import Data
from engram.engine import loop, sampler
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.trainers import lockstep
from engram.engine.training import Training
from engram.memory import Memory
from engram.methods import ER, EWC, GEM, SI, Finetune
from engram.methods.method import Method
from engram.streams import Stream, class_incremental, permuted, rotated, task_incremental

DATA = make_clouds()  # runs train together only over the same data
VALID = [
    class_incremental(DATA, order=list(order), valid=0.25, seed=seed)
    for seed, order in enumerate(ORDERS)
]
STREAMS = [class_incremental(DATA, order=list(order)) for order in ORDERS]
ADAM = {"optimizer": "adam", "lr": 0.003}
OTHERS = {
    "accumulate": 2, "batch_size": 8, "ema": 0.9, "schedule": "cosine", "warmup_steps": 3,
    "clip_value": 0.05, "label_smoothing": 0.1,
}  # fmt: skip


def both(method: Method, streams: Sequence[Stream], model: str = "plain", **training: Any) -> None:
    require_lockstep_is_alone(
        make_runs(method, streams, model=model, training=replace(EXACT, **training))
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "full batch": {"batch_size": 0},
    "small tasks in one batch": {"batch_size": 40},
    "drop": {"incomplete_batch": "drop"},
    "drop, small tasks": {"incomplete_batch": "drop", "batch_size": 40},
    "wrap": {"incomplete_batch": "wrap"},
    "wrap, small tasks": {"incomplete_batch": "wrap", "batch_size": 40},
    "iterations": {"iterations": 9},
    "steps per epoch": {"steps_per_epoch": 5, "epochs": 2},
    "steps per epoch, small tasks": {"steps_per_epoch": 3, "epochs": 2, "batch_size": 50},
    "many iterations, small tasks": {"iterations": 7, "batch_size": 50},
    "clip": {"clip": 0.05},
    "longer first task": {"first_task_scale": 2.0},
    "milestones": {"schedule": "step", "milestones": (1,)},
    "momentum kept": {"optim_reset": False, "weight_decay": 0.01},
    "no momentum": {"momentum": 0.0},
    "adam": ADAM,
    "adam kept": {**ADAM, "optim_reset": False},
    "adamw": {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.1},
    "class balanced": {"loss": "balanced"},
    "binary": {"loss": "bce"},
    "evaluate": {"evaluate_every": 2},
    "evaluate, adam": {"evaluate_every": 3, **ADAM},
    "everything else": {**OTHERS, "momentum": 0.9, "nesterov": True},
    "everything else, adam kept": {**OTHERS, **ADAM, "optim_reset": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_lockstep_is_the_loop(name):
    """Without replay in the first task, with replay in the others."""
    both(ER(memory=Memory(total=12)), STREAMS, **SETTINGS[name])


@pytest.mark.parametrize("name", ["adam kept", "momentum kept", "wrap, small tasks"])
def test_lockstep_is_the_loop_without_replay(name):
    """What one task hands on to the next: moments, and a sampler's place."""
    both(Finetune(), STREAMS, **SETTINGS[name])


@pytest.mark.parametrize("scope", ["seen", "own", "at_time", "current", "all"])
def test_scopes(scope):
    both(ER(memory=Memory(total=12)), STREAMS, scope=scope)


@pytest.mark.parametrize("method", [SI(), EWC(strength=1.0), GEM(memory=Memory(per_task=4))])
@pytest.mark.parametrize("setting", [{"batch_size": 0}, {"iterations": 9, "batch_size": 40}])
def test_methods_under_rare_settings(method, setting):
    both(method, STREAMS, **setting)


def test_dropout_in_full_batches():
    both(ER(memory=Memory(total=12)), STREAMS, model="dropped", batch_size=0, epochs=3)


ALL_AT_ONCE = {
    "schedule": "plateau", "plateau_watch": "accuracy", "plateau_patience": 1, "patience": 3,
    "restore_best": True, "epochs": 8,
}  # fmt: skip


class TestValidation:
    @pytest.mark.parametrize("setting", [
        {"patience": 2, "epochs": 9, "restore_best": True},
        {"patience": 1, "epochs": 6},
        {"restore_best": True, "epochs": 4},
        {"schedule": "plateau", "plateau_patience": 0, "epochs": 6, "plateau_threshold": 0.05},
        ALL_AT_ONCE,
        {**ALL_AT_ONCE, "steps_per_epoch": 4},
    ], ids=["stop and restore", "stop", "restore", "plateau", "all", "all, by steps"])  # fmt: skip
    def test_lockstep_is_the_loop(self, setting):
        """With a method whose state follows every step."""
        both(SI(), VALID, model="normed", **setting)

    @pytest.mark.parametrize("method", [Finetune(), EWC(strength=1.0)], ids=repr)
    def test_lockstep_is_the_loop_for_others(self, method):
        both(method, VALID, model="normed", **ALL_AT_ONCE)

    def test_runs_stop_at_different_epochs(self):
        training = replace(EXACT, patience=2, epochs=12, restore_best=True)
        trained = train_runs(make_runs(Finetune(), VALID, training=training), together=True)
        steps = {after.stage.steps for after in trained.values()}
        assert len(steps) > 2

    def test_patience_in_epochs_of_steps_means_the_same_on_fewer_rows(self):
        """A run that never improves takes as many steps on a part of the rows as on all."""
        whole = VALID[0]
        part = replace(whole, tasks=tuple(replace(t, train=t.train[::3]) for t in whole))
        settings = {"patience": 2, "epochs": 9, "lr": 1e-12, "optimizer": "sgd", "batch_size": 4}

        def steps(stream: Stream, **training: Any) -> set[int]:
            found = Training(**settings, **training)
            runs = [Run(stream=stream, method=Finetune(), training=found)]
            return {one.steps for one in Engine(runs, device="cpu").stages()}

        assert steps(whole, steps_per_epoch=7) == steps(part, steps_per_epoch=7) == {3 * 7}
        assert max(steps(part)) < min(steps(whole))  # counted in passes

    @pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
    def test_best_epoch_comes_back(self, together, monkeypatch):
        """Weights, statistics and state of the method, as they were after that epoch."""
        marks = iter([0.9, 0.1, 0.8, 0.3] * len(VALID[0]) * len(VALID))

        def validate(learners: Any, methods: Any) -> dict[str, np.ndarray]:
            return dict.fromkeys(("score", "loss"), np.full(len(learners), next(marks)))

        runs = make_runs(SI(), VALID[:2], model="normed", training=replace(EXACT, epochs=1))
        once = train_runs(runs, together=together)
        monkeypatch.setattr(loop, "validate", validate)
        longer = replace(EXACT, epochs=4, restore_best=True)
        runs = make_runs(SI(), VALID[:2], model="normed", training=longer)
        more = train_runs(runs, together=together)
        assert more[0, 0].stage.steps == 4 * once[0, 0].stage.steps
        assert all(trees_equal(once[key].tensors, more[key].tensors) for key in once)


class TestHeads:
    def test_columns_open_at_different_times(self):
        """Runs of one group may open other numbers of classes per task."""
        data = make_clouds()
        streams = [class_incremental(data, classes_per_task=sizes)
                   for sizes in ([2, 2, 2], [1, 3, 2], [3, 1, 2])]  # fmt: skip
        both(ER(memory=Memory(total=12)), streams, weight_decay=0.1, optim_reset=False)

    def test_task_incremental(self):
        data = make_clouds()
        both(EWC(strength=1.0), [task_incremental(data, order=list(o)) for o in ORDERS])


def pictures() -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat_interleave(torch.tensor([11, 7, 9, 14]))
    x = torch.randint(0, 256, (len(y), 1, 6, 6), generator=generator, dtype=torch.uint8)
    return Data.from_arrays(x, y, test=(x[::3], y[::3]), name="pictures")


class TestImages:
    @pytest.mark.parametrize("augment", [("flip",), ("crop",), ("crop", "flip")], ids="-".join)
    @pytest.mark.parametrize("setting", [{}, {"batch_size": 0}, {"iterations": 5}])
    def test_augmentation(self, augment, setting):
        data = pictures()
        streams = [class_incremental(data, order=order) for order in ([0, 1, 2, 3], [3, 1, 0, 2])]
        training = replace(EXACT, augment=augment, **{"batch_size": 8, **setting})
        require_lockstep_is_alone(make_runs(ER(memory=Memory(total=8)), streams, training=training))

    def test_augmentation_changes_from_epoch_to_epoch(self):
        """One epoch twice is not two epochs: the second one sees other flips."""
        data = pictures()
        stream = class_incremental(data)
        found = []
        for epochs in (1, 2):
            training = replace(EXACT, batch_size=0, augment=("flip",), epochs=epochs, lr=1e-12,
                               momentum=0.0)  # fmt: skip
            after = train_runs(make_runs(Finetune(), [stream], training=training))[0, 0]
            fresh = Engine(make_runs(Finetune(), [stream], training=training), device="cpu")
            start = fresh.learner(fresh.runs[0]).vector
            found.append((after.vector - start) * 1e12)
        # at a rate of almost nothing every epoch has the same gradient, but for its flips
        assert largest_gap(found[1], 2 * found[0]) > 1e-2

    def test_views(self):
        for stream in (
            permuted(pictures(), tasks=3, seed=1),
            rotated(pictures(), angles=(0, 30, 90)),
        ):
            runs = [
                Run(stream=stream, method=method, seed=seed, model=MODELS["plain"],
                    training=replace(EXACT, batch_size=8))
                for seed in range(2) for method in [ER(memory=Memory(total=12))]
            ]  # fmt: skip
            require_lockstep_is_alone(runs)

    def test_a_view_belongs_to_the_stage_of_an_exemplar(self):
        stream = permuted(pictures(), tasks=2, seed=1)
        trained = train_runs(make_runs(ER(memory=Memory(total=12)), [stream]))
        learner = trained[0, 1].stage.learner
        kept = learner.exemplars
        old = kept.stages == 0
        batch = learner.batch(kept.rows[old], kept.stages[old])
        raw = stream.data.gather(kept.rows[old]).double() / 255
        assert torch.allclose(batch.x, raw)  # the first task of a permuted stream is as it is


class TestMemoryMap:
    def test_equal_to_data_in_memory(self, tmp_path):
        data = make_clouds()
        np.save(tmp_path / "x.npy", data.x.numpy())
        mapped = replace(data, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
        streams = [[class_incremental(d, order=list(o)) for o in ORDERS] for d in (data, mapped)]
        runs = [make_runs(ER(memory=Memory(total=12)), some) for some in streams]
        require_lockstep_is_alone(runs[1])
        inside, outside = train_runs(runs[0]), train_runs(runs[1])
        assert all(trees_equal(inside[key].tensors, outside[key].tensors) for key in inside)


def test_half_precision_learns():
    """Alone only: batched products of bf16 are an illegal instruction on some processors."""
    training = replace(EXACT, precision="bf16", epochs=6, lr=0.1)
    trained = train_runs(make_runs(Finetune(), STREAMS, training=training))
    assert all(torch.isfinite(after.vector).all() for after in trained.values())
    assert all(after.vector.dtype == torch.float32 for after in trained.values())
    assert min(accuracies(trained[run, 0])[0] for run in range(3)) > 0.8


def test_curve_of_evaluations():
    training = replace(EXACT, evaluate_every=2)
    after = train_runs(make_runs(Finetune(), STREAMS[:1], training=training))[0, 0]
    steps = [step for step, _ in after.stage.curve]
    assert steps == [2, 4, 6]  # two epochs of three steps
    assert np.array_equal(after.stage.curve[-1][1], after.scores)
    plain = train_runs(make_runs(Finetune(), STREAMS[:1]))[0, 0]
    assert torch.equal(plain.vector, after.vector)  # looking changes nothing


def test_a_last_stretch_of_fewer_iterations_is_recorded_no_second_time(monkeypatch):
    runs = [
        Run(stream=stream, method=Finetune(), model=MODELS["plain"],
            training=replace(EXACT, iterations=7))
        for stream in toy_runs.make_streams()[:2]
    ]  # fmt: skip
    whole = toy_runs.train_runs(runs, together=True)
    monkeypatch.setattr(sampler, "STEPS_PER_STRETCH", 3)  # 3, 3 and 1
    copied: list[int] = []
    copy = lockstep.clone_rows
    monkeypatch.setattr(lockstep, "clone_rows", lambda rows: copied.append(1) or copy(rows))
    cut = toy_runs.train_runs(runs, together=True)
    assert len(copied) == len(runs[0].stream)  # once in every task
    assert all(toy_runs.trees_equal(cut[k].tensors, whole[k].tensors) for k in whole)
