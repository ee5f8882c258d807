"""The engine as a whole: who trains with whom, and what one run owes to another (nothing)."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import engram
from engram.checks.toy_runs import (
    EXACT,
    MODELS,
    ORDERS,
    StageCopy,
    largest_gap,
    make_clouds,
    make_runs,
    train_runs,
    trees_equal,
)
from engram.data import Data
from engram.engine import engine as running
from engram.engine.engine import Engine
from engram.engine.loop import train_task
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune, LwF
from engram.methods.method import Method
from engram.per_run import PerRun
from engram.streams import class_incremental, online

DATA = make_clouds()
STREAMS = [class_incremental(DATA, order=list(order)) for order in ORDERS]
SMALL = ER(memory=Memory(total=12))


def one_run(seed: int = 0, order: int = 0, method: Method = SMALL, model: str = "plain") -> Run:
    return Run(stream=STREAMS[order], method=method, model=MODELS[model], training=EXACT, seed=seed)


@pytest.mark.parametrize("model", ["plain", "normed"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_equal_seeds_begin_equally(together, model):
    """What ran before in the same engine leaves no trace in the weights."""
    runs = [one_run(0, 0, model=model), one_run(1, 1, model=model), one_run(0, 2, model=model)]
    company = train_runs(runs, together=together)
    alone = train_runs(runs[2:])
    assert all(largest_gap(company[2, stage].tensors, alone[0, stage].tensors) < 1e-12
               for stage in range(3))  # fmt: skip


def test_equal_seeds_begin_equally_for_several_methods():
    runs = [one_run(method=method) for method in (Finetune(), EWC(strength=1.0), Finetune(), LwF())]
    company = train_runs(runs)
    assert trees_equal(company[0, 2].tensors, company[2, 2].tensors)
    for place in (1, 3):
        assert trees_equal(
            company[place, 2].tensors, train_runs(runs[place : place + 1])[0, 2].tensors
        )


def test_an_engine_may_run_twice():
    engine = Engine([one_run(0), one_run(1, 1)], device="cpu", together=False)
    first, second = ([s.learner.vector.clone() for s in engine.stages()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class TestOutOfMemory:
    @pytest.mark.parametrize(
        ("method", "error"),
        [
            (SMALL, torch.OutOfMemoryError("no more")),
            (EWC(strength=1.0), RuntimeError("DefaultCPUAllocator: can't allocate memory: you")),
            (SI(), MemoryError()),
        ],
        ids=repr,
    )
    def test_halves_give_the_same(self, method, error, monkeypatch):
        runs = make_runs(method, [*STREAMS, *STREAMS[:2]])
        whole, attempts = train_runs(runs, together=True), []

        def small(learners: Any, methods: Any, training: Any, stage: int, **options: Any) -> Any:
            attempts.append(len(learners))
            if len(learners) > 2:
                train_task(learners, methods, training, stage, **options)  # half of it was done
                raise error
            return train_task(learners, methods, training, stage, **options)

        monkeypatch.setattr(running, "train_task", small)
        halved = train_runs(runs, together=True)
        assert attempts[:3] == [5, 2, 3]
        assert whole.keys() == halved.keys()
        for key, one in whole.items():
            assert largest_gap(one.tensors, halved[key].tensors) < 1e-12
            assert trees_equal(tuple(one.exemplars[:4]), tuple(halved[key].exemplars[:4]))
            ledgers = [a.stage.learner.ledger.to_dict() for a in (one, halved[key])]
            assert ledgers[0] == ledgers[1]

    def test_learners_without_room_for_all_come_in_halves(self, monkeypatch):
        runs = make_runs(SMALL, [*STREAMS, *STREAMS[:2]])
        made, living = Engine.learner, weakref.WeakSet[Any]()

        def trained() -> dict[tuple[int, int], Tensor]:
            stages = Engine(runs, device="cpu", together=True).stages()
            return {(one.run, one.stage): one.learner.vector.clone() for one in stages}

        def small(self: Engine, run: Run) -> Any:
            if len(living) == 3:
                raise torch.OutOfMemoryError("no more")
            living.add(one := made(self, run))
            return one

        whole = trained()
        monkeypatch.setattr(Engine, "learner", small)
        halved = trained()
        assert whole.keys() == halved.keys()
        assert all(torch.allclose(one, halved[key], atol=1e-12) for key, one in whole.items())

    def test_a_single_run_cannot_be_halved(self, monkeypatch):
        def never(*_args: Any, **_options: Any) -> Any:
            raise torch.OutOfMemoryError("no more")

        monkeypatch.setattr(running, "train_task", never)
        with pytest.raises(torch.OutOfMemoryError):
            train_runs(make_runs(SMALL, STREAMS), together=True)


class TestDivergence:
    def broken(self) -> Any:
        x = DATA.x.clone()
        x[DATA.y[:, 0] == 5] = torch.nan
        return replace(DATA, x=x)

    @pytest.mark.parametrize("method", [SMALL, EWC(strength=1.0), SI()], ids=repr)
    @pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
    def test_runs_and_their_copies(self, method, together):
        data = self.broken()
        orders = ([0, 1, 2, 3], [0, 5, 2, 3], [0, 1, 3, 2], [0, 5, 3, 2], [2, 3, 0, 1])
        runs = [
            Run(stream=class_incremental(data, order=order), method=method, seed=0,
                model=MODELS["plain"], training=EXACT)
            for order in orders
        ]  # fmt: skip
        trained = train_runs(runs, together=together)
        assert sorted(trained) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)]
        marks = {key: after.diverged for key, after in trained.items()}
        assert {key for key, mark in marks.items() if mark >= 0} == {(1, 0), (3, 0)}
        assert all(torch.isfinite(trained[key].vector).all() for key in ((0, 1), (2, 1), (4, 1)))

    def test_a_diverged_run_keeps_no_exemplars_of_the_task(self):
        stream = class_incremental(self.broken(), order=[0, 1, 5, 2])
        trained = train_runs(make_runs(SMALL, [stream]))
        assert trained[0, 1].diverged == 1
        assert set(trained[0, 1].exemplars.stages.tolist()) == {0}


class Twice(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x.flatten(1))
        return out


@dataclass(frozen=True, kw_only=True)
class Second(Method):
    """A method with a network of its own."""

    width: int = 3
    pull: PerRun = 0.1

    def networks(self, stream: Any) -> Mapping[str, nn.Module]:
        return {"second": Twice(self.width)}

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        extra = net.second(batch.x)
        return {"task": net.task(batch), "second": self.pull * (batch.w @ extra.square()).mean()}


class TestFurtherNetworks:
    def test_they_follow_the_seed_and_nothing_else(self):
        torch.manual_seed(1)
        one = train_runs([one_run(0, method=Second()), one_run(1, method=Second())])
        torch.manual_seed(2)
        state = torch.get_rng_state()
        two = train_runs([one_run(0, method=Second()), one_run(1, method=Second())])
        assert torch.equal(state, torch.get_rng_state())
        assert trees_equal(one[0, 2].vector, two[0, 2].vector)
        assert not torch.equal(one[0, 0].vector, one[1, 0].vector)

    def test_other_widths_do_not_share(self):
        runs = [one_run(method=Second(width=width)) for width in (3, 5)]
        engine = Engine(runs, device="cpu", together=True)
        assert [len(engine.learner(run).vector) for run in runs] == [
            len(engine.learner(one_run(method=Finetune())).vector) + 7 * width for width in (3, 5)
        ]
        assert engine.groups() == [[0], [1]]

    def test_lockstep_with_strengths(self):
        runs = make_runs([Second(pull=p) for p in (0.1, 0.2, 0.0)], STREAMS)
        assert Engine(runs, device="cpu", together=True).groups() == [[0, 1, 2]]
        alone, together = train_runs(runs), train_runs(runs, together=True)
        assert all(largest_gap(alone[key].tensors, together[key].tensors) < 1e-12 for key in alone)


class TestGroups:
    def groups(self, runs: list[Run], **options: Any) -> list[list[int]]:
        return Engine(runs, device="cpu", together=True, **options).groups()

    def test_what_may_differ(self):
        runs = [one_run(seed, order, EWC(strength=float(seed))) for seed in range(3)
                for order in range(2)]  # fmt: skip
        assert self.groups(runs) == [[0, 1, 2, 3, 4, 5]]
        assert self.groups(runs, group_size=4) == [[0, 1, 2, 3], [4, 5]]

    def test_what_may_not_differ(self):
        base = one_run()
        others = [
            replace(base, method=ER(memory=Memory(total=13))),
            replace(base, method=Finetune()),
            replace(base, model=MODELS["normed"]),
            replace(base, training=replace(EXACT, epochs=3)),
            replace(base, stream=STREAMS[0][:2]),
            replace(base, stream=class_incremental(make_clouds())),
        ]
        for other in others:
            assert self.groups([base, other]) == [[0], [1]]

    def test_heads_of_other_width_differ(self):
        short = class_incremental(DATA, order=[0, 1, 2, 3, 4], classes_per_task=[2, 2, 1])
        assert self.groups([one_run(), replace(one_run(), stream=short)]) == [[0], [1]]


class TestRefusals:
    def test_no_runs(self):
        with pytest.raises(BadArgument, match="at least one run"):
            Engine([])

    def test_a_later_task_without_validation_rows_before_any_work(self, tmp_path):
        x, y = torch.rand(88, 2), [0, 1] * 40 + [2, 3] * 4
        data, tasks = Data.from_arrays(x, y, test=(x, y)), [["both"], [0, 1], [2, 3]]
        stream = engram.hierarchical(data, hierarchy={"both": [0, 1]}, tasks=tasks)
        with pytest.raises(BadArgument, match="8 rows, all for training, in task 2"):
            engram.run(stream, method="Finetune", patience=2, out=tmp_path / "runs")
        assert not (tmp_path / "runs").exists()

    def test_no_validation_rows(self):
        run = replace(one_run(), training=replace(EXACT, patience=2))
        with pytest.raises(BadArgument, match="in-task validation rows"):
            train_runs([run])

    def test_online_streams_allow_one_epoch(self):
        with pytest.raises(BadArgument, match="epochs: expected 1, because the stream is online"):
            Run(stream=online(STREAMS[0]), method=Finetune(), training=EXACT)

    def test_unknown_device(self):
        with pytest.raises(BadArgument, match="did you mean 'cuda'"):
            Engine([one_run()], device="cuds")


def test_losses_are_logged_by_name():
    trained = train_runs(make_runs(EWC(strength=1.0), STREAMS), together=True)
    alone = train_runs(make_runs(EWC(strength=1.0), STREAMS))
    for key, after in trained.items():
        mine, theirs = after.stage.losses, alone[key].stage.losses
        assert set(mine[-1][1]) == {"task", "total"} | ({"penalty"} if key[1] else set())
        ends = [losses[-1][1]["total"] for losses in (mine, theirs)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)
        assert after.stage.steps == alone[key].stage.steps


def test_scores_are_those_of_the_learner():
    trained: dict[Any, StageCopy] = train_runs(make_runs(Finetune(), STREAMS), together=True)
    for (run, stage), after in trained.items():
        if stage == 2:
            learner, stream = after.stage.learner, STREAMS[run]
            rows = torch.cat([task.test for task in stream.tasks])
            logits = learner.net()(learner.feed(rows)).logits.float().numpy()
            assert np.allclose(after.scores, logits, atol=1e-6)


class TestOneByOne:
    """Mapped convolutions are slow on CUDA; no device is needed to ask who goes alone."""

    @staticmethod
    def engine(layer: nn.Module, **options: Any) -> Engine:
        class Net(nn.Sequential):
            features = 6

        runs = [replace(one_run(seed), model=Net(layer, nn.Flatten())) for seed in range(2)]
        runs = [replace(run, model=runs[0].model) for run in runs]
        engine = Engine(runs, device="cpu", **options)
        assert engine.groups() == [[0, 1]]
        engine.kind = "cuda"
        return engine

    def test_convolutions_go_alone_on_cuda(self):
        convolution, identity = nn.Conv2d(2, 2, 1), nn.Identity()
        assert self.engine(convolution).runs_separately([0, 1])
        assert not self.engine(identity).runs_separately([0, 1])

    def test_what_is_asked_for_wins(self):
        assert not self.engine(nn.Conv2d(2, 2, 1), together=True).runs_separately([0, 1])
        assert self.engine(nn.Identity(), together=False).runs_separately([0, 1])


def test_a_model_that_cannot_be_mapped_says_that_it_is_not_compiled(monkeypatch):
    monkeypatch.setattr("engram.engine.grouping.check_compiler", lambda device: None)
    engine = Engine([one_run()], device="cpu", compile=True)
    net = engine._factory.networks(engine.runs[0]).train.get_submodule("net")
    net.mappable, net.unmappable = False, ("it branches on values",)
    with pytest.warns(UserWarning, match="and is not compiled: it branches on values"):
        assert not engine.maps([0])


class Recurrent(nn.Module):
    """The last output of an LSTM or GRU over the joints."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inside = kind(2, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inside(x.flatten(2).transpose(1, 2))[0][:, -1]
        return found


@pytest.mark.parametrize("method", [Finetune(), EWC()], ids=["plain", "importance"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_models_with_several_seeds_train_one_at_a_time(kind, method):
    stream = class_incremental(make_clouds((12, 12, 12, 12)))

    def model(shape: Any) -> nn.Module:
        return Recurrent(kind)

    runs = [
        Run(stream=stream, method=method, model=model, training=EXACT, seed=seed)
        for seed in range(2)
    ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = list(Engine(runs, device="cpu").stages())
    assert [str(one.message).split(":")[0] for one in said] == [
        "the model trains one run at a time"
    ]
    assert len(found) == 4
    for run in runs:
        alone = list(Engine([run], device="cpu").stages())[-1].learner
        last = next(one.learner for one in reversed(found) if one.learner.seed == run.seed)
        assert torch.equal(alone.vector, last.vector)


NOISE = (
    lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.AlphaDropout(0.4)),
    lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.RReLU()),
)


@pytest.mark.filterwarnings("ignore:the model trains one run at a time")
@pytest.mark.parametrize("model", NOISE, ids=["dropout", "slopes"])
def test_layers_with_noise_of_their_own_follow_the_seed(model):
    """Whatever ran before in the process, and whoever trains beside it."""
    runs = [replace(one_run(seed, seed), model=model) for seed in range(2)]
    found = []
    for number in range(2):
        torch.manual_seed(number)
        before = torch.random.get_rng_state()
        found.append(train_runs(runs[number:], together=True)[1 - number, 2].vector)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*found)
