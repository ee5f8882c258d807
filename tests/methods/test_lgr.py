"""Latent generative replay against a loop in plain PyTorch, and what it must not read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engram import keys
from engram.checks import toy_runs
from engram.checks.toy_runs import EXACT, MODELS, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.methods import EWC, LGR, Join, LatentReplay
from engram.methods.method import Phase
from engram.streams import class_incremental
from tests.engine.plain_loop import OPTIMIZERS, Plain
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_generative import ScholarTwin, distance, twins_of

SMALL = {"width": 8, "noise": 3, "root": "first_task"}
HELDOUT = {"root": "heldout", "root_iterations": 5}


@dataclass
class LatentScholar(ScholarTwin):
    """The trunk stands still; the rest learns from what it answers."""

    def seen_by(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return self.net.trunk(self.x(rows).flatten(1))

    def logits(self, net: Plain, x: Tensor, tasks: int) -> Tensor:
        h = torch.relu(net.norm(x))
        return torch.cat([head(h) for head in net.heads[:tasks]], 1)

    def moving(self, stage: int) -> list[nn.Parameter]:
        frozen = set(self.net.trunk.parameters())
        return [p for p in self.net.in_use(stage + 1) if p not in frozen]


@dataclass
class TrainedRoot(LatentScholar):
    """The whole network learns the first task, then the generator its latents."""

    def run(self, stage: int) -> None:
        if stage:
            return super().run(stage)
        self.net.train()
        solver = OPTIMIZERS[self.training.optimizer](self.net.in_use(1), self.training)
        for rows, _ in self.steps(0):
            solver.zero_grad()
            self.task(self.net(self.x(rows), 1), self.y(rows), 0).backward()
            solver.step()
        generator = OPTIMIZERS[self.training.optimizer](self.generator.parameters(), self.training)
        again = copy.copy(self)
        again.seed = int(keys.fold(self.seed, "phase", 1))  # the second training of the task
        for rows, key in again.steps(0):
            generator.zero_grad()
            x = self.seen_by(rows)
            self.generator.cost(x, self.noise(key, "own", len(rows))).backward()
            generator.step()
        return None


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("distill", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize(("root", "multi"), [("none", True), ("first_task", False)])
def test_weights_are_those_of_a_plain_loop(root, multi, distill, together):
    method = LGR(distill=distill, **{**SMALL, "root": root})
    kind, count = LatentScholar if root == "none" else TrainedRoot, 0
    for twin, stage in twins_of(method, kind, DECAYED, model="normed", multi=multi,
                                together=together):  # fmt: skip
        assert distance(twin, stage.learner) < 1e-10
        count += 1
    assert count == 6


@pytest.mark.parametrize(
    "method",
    [
        LGR(**SMALL), LGR(**{**SMALL, **HELDOUT}), LatentReplay(root="first_task"),
        LatentReplay(**HELDOUT),
    ],
    ids=["LGR", "LGR heldout", "LatentReplay", "LatentReplay heldout"],
)  # fmt: skip
def test_noise_over_the_images_of_earlier_tasks_changes_no_bit(method):
    """Written while the run trains: before every task, over the rows of all tasks before it."""
    plain, noisy = (_trained(method, spoil) for spoil in (False, True))
    for a, b in zip(plain, noisy, strict=True):
        assert toy_runs.trees_equal(a.tensors, b.tensors)
        assert (a.scores == b.scores).all()


def _trained(method: Any, spoil: bool) -> list[toy_runs.StageCopy]:
    data = toy_runs.make_clouds()
    data = replace(data, x=data.x.clone())
    run = Run(stream=class_incremental(data), method=method, model=toy_runs.SPLIT_MODELS["normed"],
              training=EXACT)  # fmt: skip
    engine = Engine([run], device="cpu")
    feed = engine.learner(run).feed
    assert feed._x.data_ptr() == data.x.data_ptr()
    found = []
    for stage in engine.stages():
        found.append(toy_runs.copy_stage(stage))
        if spoil:  # the engine is between two tasks
            rows = run.stream.tasks[stage.stage].train
            data.x[rows] = 9 * torch.randn_like(data.x[rows])
    return found


def test_the_root_stands_still():
    run = _run(LGR(**{**SMALL, "root": "none"}), weight_decay=0.01)
    fresh = Engine([run], device="cpu").learner(run)
    for stage in Engine([run], device="cpu").stages():
        for name in fresh.networks.root_names:
            assert torch.equal(stage.learner.params[name], fresh.params[name])


def test_the_generator_learns_after_the_root_of_the_first_task():
    assert LGR(root="first_task").phases(0) == (
        Phase(name="root", trainable=("net",)), Phase(name="latents", trainable=("generator",)),
    )  # fmt: skip
    assert LGR(root="first_task").phases(1) == LGR().phases(0) == (Phase(),)
    *_, last = Engine([_run(LGR(**SMALL))], device="cpu").stages()
    assert {k for _, terms in last.losses for k in terms} == {
        "total", "task", "replay", "generator", "generator_replay",
    }  # fmt: skip


def test_joined():
    runs = toy_runs.make_runs(Join(LGR(**SMALL), EWC(strength=0.1)), make_streams(), model="normed")
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )


def test_likelihood_follows_the_model():
    for model, expected in (
        ({"name": "mlp", "latent": 5}, "bernoulli"), ({"name": "mlp"}, "gaussian"),
        (MODELS["normed"], "gaussian"),
    ):  # fmt: skip
        run = replace(_run(LGR(**SMALL)), model=model)
        made = Engine([run], device="cpu").learner(run).networks.train.get_submodule("generator")
        assert made.likelihood == expected


class TestErrors:
    def test_latents_outside_the_unit_range(self):
        with pytest.raises(BadArgument, match="likelihood: expected gaussian, because latents"):
            list(Engine([_run(LGR(likelihood="bernoulli", **SMALL))], device="cpu").stages())

    def test_bad_root(self):
        with pytest.raises(BadArgument, match="root"):
            LGR(root="nowhere")


def _run(method: Any, **changes: Any) -> Run:
    return Run(stream=make_streams()[0], method=method, model=MODELS["normed"],
               training=replace(EXACT, **changes))  # fmt: skip
