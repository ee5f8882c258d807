"""Further networks with a learning rate and an optimiser of their own, against torch.optim."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from engram.checks import check, leakage_rules, toy_runs
from engram.checks.check_report import check_name, run_check
from engram.checks.toy_runs import EXACT, MODELS, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.trainers import compiled
from engram.errors import BadArgument
from engram.losses import mean
from engram.methods import Finetune, Join
from engram.methods.method import Method, Network, Phase
from tests.engine.plain_loop import OPTIMIZERS, Plain, Twin, away
from tests.refusals import refuses

SETTINGS = replace(EXACT, weight_decay=0.01, momentum=0.9)


@dataclass(frozen=True)
class Guess(Method):
    """A network beside the main one that learns to give back its input."""

    lr: float = 0.0
    optimizer: str = ""
    counts: bool = False
    bare: bool = False

    def networks(self, stream: Any) -> Mapping[str, Any]:
        module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 6))
        kind = Network(module, lr=self.lr, optimizer=self.optimizer, counts=self.counts)
        return {"first": nn.Linear(6, 2), "guess": module if self.bare else kind}

    def loss(self, net, batch, state):
        x = batch.x.flatten(1)
        error = (net.guess(x, w=batch.w) - x).square().mean(-1)
        side = net.first(x).square().mean(-1)
        return {"task": net.task(batch), "guess": mean(error, batch.w), "side": mean(side, batch.w)}


@pytest.mark.parametrize("name", ["net", "head", "task", "vector", "at"])
def test_names_that_attributes_of_the_networks_have(name):
    class Clashes(Method):
        def networks(self, stream):
            return {name: nn.Linear(2, 2)}

    with refuses("Clashes.networks"):
        Engine(toy_runs.make_runs(Clashes(), make_streams()[:1]), device="cpu").groups()


class GuessTwin(Twin):
    """Three networks, three optimisers."""

    def bring(self, learner: Any, method: Guess) -> None:
        own = {**learner.params, **learner.buffers}
        self.guess = nn.Sequential(
            nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 6), nn.Identity()
        ).double()
        self.first = nn.Linear(6, 2).double()
        with torch.no_grad():
            for (name, mine) in (*self.guess.named_parameters(prefix="guess"),
                                 *self.first.named_parameters(prefix="first")):  # fmt: skip
                mine.copy_(own[name])
        changed = {"lr": method.lr} if method.lr else {}
        changed |= {"optimizer": method.optimizer} if method.optimizer else {}
        self.theirs = replace(self.training, **changed)

    def run(self, stage: int) -> None:
        super().run(stage)
        usual = OPTIMIZERS[self.training.optimizer](list(self.first.parameters()), self.training)
        other = OPTIMIZERS[self.theirs.optimizer](list(self.guess.parameters()), self.theirs)
        self.guess.train()
        for rows in self.batches(stage):
            x = self.x(rows).flatten(1)
            for one in (usual, other):
                one.zero_grad()
            (nn.functional.mse_loss(self.guess(x), x) + self.first(x).square().mean()).backward()
            usual.step()
            other.step()

    def away(self, learner: Any) -> float:
        own = learner.params
        pairs = [*self.guess.named_parameters(prefix="guess"),
                 *self.first.named_parameters(prefix="first")]  # fmt: skip
        gaps = [float((mine.detach() - own[name]).abs().max()) for name, mine in pairs]
        return max([away(self, learner), *gaps])


def runs_of(method: Method, **changes: Any) -> list[Run]:
    training = replace(SETTINGS, **changes)
    return [
        Run(stream=stream, method=method, model=MODELS["plain"], training=training, seed=seed)
        for seed, stream in enumerate(make_streams())
    ]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(
    ("usual", "method"),
    [
        ("sgd", Guess(lr=0.1)), ("sgd", Guess(lr=0.003, optimizer="adam")), ("adam", Guess(lr=0.1)),
        ("adamw", Guess(optimizer="sgd")), ("sgd", Guess(counts=True)),
    ],
    ids=str,
)  # fmt: skip
def test_each_network_learns_in_its_own_way(usual, method, together):
    rate = 0.02 if usual == "sgd" else 0.001
    runs = runs_of(method, optimizer=usual, lr=rate)
    engine = Engine(runs, device="cpu", together=together)
    twins = []
    for run in runs:
        learner = engine.learner(run)
        twin = GuessTwin(run.stream, run.training, run.seed, Plain(learner, False))
        twin.bring(learner, method)
        twins.append(twin)
    gaps = []
    for stage in engine.stages():
        twins[stage.run].run(stage.stage)
        gaps.append(twins[stage.run].away(stage.learner))
    assert len(gaps) == 9
    assert max(gaps) < (1e-10 if usual == "sgd" and method.optimizer != "adam" else 1e-7)


@pytest.mark.parametrize("options", [{"clip": 0.5}, {"optim_reset": False}, {"iterations": 9}])
def test_lockstep_is_the_loop_in_other_settings(options):
    runs = runs_of(Guess(lr=0.05), **options)
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )


@pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="no C++ compiler to test with"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled():
    runs = runs_of(Guess(lr=0.003, optimizer="adam"))[:2]
    plain = toy_runs.train_runs(runs, together=True)
    engine = Engine(runs, device="cpu", together=True, compile=True)
    for stage in engine.stages():
        assert (
            toy_runs.largest_gap(
                toy_runs.copy_stage(stage).vector, plain[stage.run, stage.stage].vector
            )
            < toy_runs.CLOSE
        )


def test_a_network_that_says_nothing_is_a_module():
    ends = []
    for method in (Guess(), Guess(bare=True)):
        *_, last = Engine(runs_of(method)[:1], device="cpu").stages()
        ends.append(last.learner.vector)
    assert torch.equal(*ends)


def test_runs_whose_networks_learn_otherwise_train_apart():
    one = runs_of(Guess())[0]
    runs = [replace(one, method=Guess(lr=lr)) for lr in (0.1, 0.2, 0.1)]
    assert Engine(runs, device="cpu", together=True).groups() == [[0, 2], [1]]


def test_bytes_that_count_as_memory():
    sizes = []
    for counts in (False, True):
        *_, last = Engine(runs_of(Guess(counts=counts))[:1], device="cpu").stages()
        sizes.append(last.learner.nbytes())
        own = last.learner.params | last.learner.buffers
    guess = sum(v.numel() * v.element_size() for k, v in own.items() if k.startswith("guess."))
    assert guess > 0
    assert sizes[0]["exemplars"] == 0
    assert sizes[1]["exemplars"] == guess
    assert sizes[0]["networks"] - sizes[1]["networks"] == guess
    assert sum(sizes[0].values()) == sum(sizes[1].values())


def test_a_phase_of_its_own_is_longer():
    class Longer(Guess):
        def phases(self, stage):
            return Phase(), Phase(trainable=("guess",), iterations=40, name="more")

    runs = runs_of(Longer(lr=0.05))[:1]
    *_, long = Engine(runs, device="cpu").stages()
    *_, short = Engine(runs_of(Guess(lr=0.05))[:1], device="cpu").stages()
    ours, theirs = long.learner.params, short.learner.params
    assert long.steps == short.steps + 40
    assert not torch.equal(ours["guess.0.weight"], theirs["guess.0.weight"])
    assert torch.equal(ours["net.head.weight"], theirs["net.head.weight"])


def test_joined():
    runs = runs_of(Join(Finetune(), Guess(lr=0.1)))
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )
    *_, plain = Engine(runs_of(Guess(lr=0.1))[:1], device="cpu").stages()
    assert torch.equal(plain.learner.vector, alone[0, 2].vector)


def test_the_contract_allows_it():
    """No check says of a `Network` what it would not say of its module."""
    samples = leakage_rules.check_keeps_no_samples_outside_its_memory
    assert not run_check(samples, Guess(lr=0.02, bare=True)).passed  # it learns to give them back
    said = check(Guess(lr=0.02))
    assert [one.check for one in said.failed] == [check_name(samples)]
    assert not said.not_run


@pytest.mark.parametrize("values", [{"lr": -1.0}, {"optimizer": "adamm"}, {"module": "linear"}])
def test_bad_values(values):
    with pytest.raises(BadArgument, match=f"network.{next(iter(values))}"):
        Network(**{"module": nn.Linear(1, 1), **values})
