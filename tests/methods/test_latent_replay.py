"""Latent replay against a loop in plain PyTorch, and what must not happen beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.checks import toy_runs
from engram.checks.toy_runs import EXACT, MODELS, make_streams
from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import AccessError, BadArgument
from engram.memory import Memory
from engram.methods import ER, EWC, Join, LatentReplay, LwF, NaiveRehearsal
from engram.methods.method import Method, Phase, ReplaySpec
from engram.probes.standard_probes import run_facts
from engram.streams import class_incremental
from tests.engine.plain_loop import OPTIMIZERS, Twin, away, beside
from tests.engine.test_plain_loop import DECAYED

MEMORY = Memory(total=12)


@dataclass
class LatentTwin(Twin):
    """The first task as ever; then a frozen trunk, whose answers are all that is kept."""

    trains_root: bool = True
    kept: dict[int, Tensor] = field(default_factory=dict)  # latents by row
    rows: Tensor = field(default_factory=Tensor)  # in the memory, put there by the test

    def root(self, rows: Tensor) -> Tensor:
        """What the engine calls root: the linear layer, with the ReLU where no norm follows."""
        with torch.no_grad():
            z = self.net.trunk(self.x(rows).flatten(1))
            return z if self.net.norm is not None else torch.relu(z)

    def top(self, z: Tensor, tasks: int) -> Tensor:
        h = z if self.net.norm is None else torch.relu(self.net.norm(z))
        return torch.cat([head(h) for head in self.net.heads[:tasks]], 1)

    def run(self, stage: int) -> None:
        if stage == 0 and self.trains_root:
            return super().run(0)
        self.net.train()
        frozen = set(self.net.trunk.parameters())
        used = [p for p in self.net.in_use(stage + 1) if p not in frozen]
        optimizer = OPTIMIZERS[self.training.optimizer](used, self.training)
        own = self.stream.tasks[stage].train
        latents = dict(zip(own.tolist(), self.root(own), strict=True))
        for epoch in range(self.training.epochs):
            order = keys.permutation(
                keys.fold(self.seed, "order", stage, epoch), len(own), len(own)
            )
            for number, rows in enumerate(own[order].split(self.training.batch_size)):
                z, y = [latents[row] for row in rows.tolist()], self.y(rows)
                if stage:
                    key = keys.fold(self.seed, "step", stage, epoch, number)
                    count = min(self.training.batch_size, len(own))
                    place = keys.randint(keys.fold(key, "memory", 0), len(self.rows), count)
                    old = self.rows[place]
                    z, y = [self.kept[row] for row in old.tolist()] + z, torch.cat([self.y(old), y])
                optimizer.zero_grad()
                F.cross_entropy(self.top(torch.stack(z), stage + 1), y).backward()
                optimizer.step()
        return None

    def keep(self, rows: Tensor) -> None:
        """Store the latents of rows that were not in the memory before."""
        self.rows = rows
        new = torch.tensor([row for row in rows.tolist() if row not in self.kept])
        found = dict(zip(new.tolist(), self.root(new.long()), strict=True))
        self.kept = {row: {**self.kept, **found}[row] for row in rows.tolist()}


@dataclass
class StillTwin(LatentTwin):
    trains_root: bool = False


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
@pytest.mark.parametrize("root", ["first_task", "none"])
def test_weights_and_latents_are_those_of_a_plain_loop(root, model, together):
    method, count = LatentReplay(memory=MEMORY, root=root), 0
    kind = LatentTwin if root == "first_task" else StillTwin
    for twin, stage in beside(method, kind, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        kept = learner.exemplars.rows
        twin.keep(kept)  # which rows are kept is not the question
        mine = torch.stack([twin.kept[row] for row in kept.tolist()])
        assert (mine - learner.values["latent"]).abs().max() < 1e-10
        assert learner.memory_bytes() == mine.numel() * 8
        assert learner.nbytes()["exemplars"] == mine.numel() * 8
        count += 1
    assert count == 9


def test_replay_of_inputs_differs():
    """The comparison is not blind: with a root that goes on learning, the end is elsewhere."""
    gaps = []
    for twin, stage in beside(ER(memory=MEMORY), LatentTwin, DECAYED, model="plain",
                              together=False):  # fmt: skip
        gaps.append((stage.stage, away(twin, stage.learner)))
        twin.keep(stage.learner.exemplars.rows)
    assert all((gap < 1e-10) == (stage == 0) for stage, gap in gaps)


def run_of(method: Method, model: str = "normed", **changes: object) -> Run:
    training = replace(EXACT, **changes)  # type: ignore[arg-type]
    return Run(stream=make_streams()[0], method=method, model=MODELS[model], training=training)


def test_inputs_of_earlier_tasks_are_not_read(monkeypatch):
    """Whatever asks for inputs while a later task is learnt and finished, asks for its own."""
    run = run_of(LatentReplay(memory=MEMORY, root="first_task"))
    engine = Engine([run], device="cpu")
    read: list[Tensor] = []
    feed = engine._factory.feed(run)
    plain = type(feed).__call__

    def noting(self, rows, *rest):
        read.append(rows.reshape(-1).clone())
        return plain(self, rows, *rest)

    monkeypatch.setattr(type(feed), "__call__", noting)
    tests = torch.cat([task.test for task in run.stream.tasks])
    for stage in engine.stages():
        own = run.stream.tasks[stage.stage].train
        asked = torch.cat(read)
        asked = asked[~torch.isin(asked, tests)]
        assert len(asked)
        assert torch.isin(asked, own).all()
        if stage.stage:  # each row once for training, and those that are kept once more
            fresh = (stage.learner.exemplars.stages == stage.stage).sum()
            assert len(asked) == len(own) + fresh
        read.clear()


def test_the_root_and_its_statistics_stand_still():
    class WithNorm(nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.lower = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.upper, self.features = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), 8
            self.root_modules = ("lower",)

        def root(self, x):
            return self.lower(x)

        def body(self, z):
            return torch.relu(self.upper(z))

        def forward(self, x):
            return self.body(self.root(x))

    run = replace(
        run_of(LatentReplay(memory=MEMORY, root="first_task"), weight_decay=0.01), model=WithNorm
    )
    found = []
    for stage in Engine([run], device="cpu").stages():
        whole = stage.learner.params | stage.learner.buffers
        found.append({name: value.clone() for name, value in whole.items()})
    first, _, last = found
    for name in first:
        still = name.startswith("net.backbone.lower")
        assert torch.equal(first[name], last[name]) == (still or "num_batches" in name), name


@pytest.mark.parametrize("other", [EWC(strength=0.1), LwF()], ids=["EWC", "LwF"])
def test_joined(other):
    runs = toy_runs.make_runs(
        Join(LatentReplay(memory=MEMORY, root="first_task"), other), make_streams(), model="normed"
    )
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    gaps = [toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone]
    assert max(gaps) < toy_runs.CLOSE


@pytest.mark.parametrize("weighting", ["mean", "task_count"])
def test_it_keeps_what_finetuning_forgets(weighting):
    method = LatentReplay(memory=MEMORY, weighting=weighting, root="first_task")
    run = run_of(method, "plain", epochs=20)
    *_, last = Engine([run], device="cpu").stages()
    assert min(toy_runs.accuracies(toy_runs.copy_stage(last))) > 0.6


@dataclass(frozen=True, kw_only=True)
class Wrong(LatentReplay):
    """Forgets to keep latents."""

    def remember(self, net, batch, state):
        return {}


@dataclass(frozen=True, kw_only=True)
class Nosy(LatentReplay):
    """Looks at inputs that are gone."""

    def start(self, learner, task):
        if len(learner.exemplars):
            learner.batch(learner.exemplars.rows, learner.exemplars.stages)


@dataclass(frozen=True, kw_only=True)
class Afresh(LatentReplay):
    def phases(self, stage):
        return (Phase(reinitialise=True),)


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (
                Wrong(memory=MEMORY, root="first_task"),
                "remember: expected Wrong.remember to return .*latent",
            ),
            (Afresh(memory=MEMORY, root="first_task"), r"phase\.reinitialise: expected False"),
        ],
        ids=["no latents", "afresh"],
    )
    def test_methods_that_contradict_themselves(self, method, message):
        with pytest.raises(BadArgument, match=message):
            list(Engine([run_of(method)], device="cpu").stages())

    def test_inputs_that_are_gone(self):
        with pytest.raises(AccessError, match="their inputs are gone"):
            list(Engine([run_of(Nosy(memory=MEMORY, root="first_task"))], device="cpu").stages())

    @pytest.mark.parametrize(("kind", "renew"), [("past", "task"), ("pair", "step")])
    def test_declarations_that_do_not_fit(self, kind, renew):
        with pytest.raises(BadArgument, match=r"replay\.latent"):
            ReplaySpec(kind, renew=renew, latent=True)

    def test_bad_root(self):
        with pytest.raises(BadArgument, match="root"):
            LatentReplay(root="nowhere")


@pytest.mark.parametrize(
    ("method", "expected"),
    [(LatentReplay(root="none"), 800), (NaiveRehearsal(), 30_000)],
    ids=["latents", "images"],
)
def test_bytes_of_latents_and_of_images(method, expected):
    """100 x 100 RGB bytes, and the 200 numbers behind the benchmark's root."""
    count = 30
    x = torch.randint(0, 256, (count, 3, 100, 100), dtype=torch.uint8)
    y = torch.arange(count) % 2
    data = Data.from_arrays(x, y, test=(x[:2], y[:2]))
    run = Run(
        stream=class_incremental(data, classes_per_task=2),
        method=method,
        model={"name": "lenet", "latent": 200},
        training=Training(iterations=1, batch_size=2),
    )
    (stage,) = Engine([run], device="cpu").stages()
    assert len(stage.learner.exemplars) == count
    facts = run_facts(stage.learner, seconds=0.0, steps=1)
    assert facts["memory_bytes"] == count * expected
    assert facts.get("latent_bytes", 0) == count * (expected % 30_000)
