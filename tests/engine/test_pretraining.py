"""The prologue: a root that learns from rows set aside, before the first task."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import engram
from engram.checks import toy_runs
from engram.checks.toy_runs import EXACT, MODELS, make_streams
from engram.engine.engine import PRETRAINING_STAGE, Engine
from engram.engine.optim import Optimizer
from engram.engine.pretraining import split_off_rows
from engram.engine.run_definition import Run
from engram.engine.trainers import lockstep, single
from engram.errors import BadArgument
from engram.experiments.checkpointing import StepSaver
from engram.methods import LGR, Join, LatentReplay
from engram.methods.method import Method, Prologue, RootFile
from engram.streams import class_incremental, permuted, task_incremental
from tests.engine.plain_loop import OPTIMIZERS, Plain
from tests.experiments.test_step_checkpoints import SLICES, Crash, crash_after, same

METHOD = LatentReplay(root_iterations=7, root_batch_size=100)  # more than there are: all at once


def run_of(method: Method = METHOD, stream: Any = None, seed: int = 0, **changes: Any) -> Run:
    training = replace(EXACT, **changes)
    stream = make_streams()[0] if stream is None else stream
    return Run(stream=stream, method=method, model=MODELS["normed"], training=training, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Looks(LatentReplay):
    """Keeps what it was given when the first task began."""

    def start(self, learner, task):
        super().start(learner, task)
        if learner.stage == 0:
            learner.state = {
                "vector": learner.vector.clone(),
                "buffers": {k: v.clone() for k, v in learner.buffers.items()},
            }


LOOKS = Looks(root_iterations=7, root_batch_size=100)


def first_of(run: Run) -> Any:
    return next(iter(Engine([run], device="cpu").stages()))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("multi", [False, True], ids=["class_il", "task_il"])
def test_the_root_is_that_of_a_plain_loop_and_the_rest_is_fresh(multi, optimizer):
    make = task_incremental if multi else class_incremental
    run = run_of(LOOKS, make(toy_runs.make_clouds(), classes_per_task=2), optimizer=optimizer)
    fresh = Engine([run], device="cpu").learner(run)
    net = Plain(fresh, normed=True).train()
    _, aside = split_off_rows(run.stream, 1 / 6, seed=0)
    rows = torch.cat([task.train for task in aside.tasks])
    x, y = run.stream.data.gather(rows).double(), run.stream.targets[rows][:, 0]
    loop = OPTIMIZERS[optimizer](net.in_use(3), run.training)
    for _ in range(7):
        loop.zero_grad()
        F.cross_entropy(net(x, 3), y).backward()  # all classes are open
        loop.step()
    seen = first_of(run).learner.state
    found = fresh.layout(seen["vector"])
    assert (found["net.backbone.first.weight"] - net.trunk.weight).abs().max() < 1e-12
    assert not torch.equal(net.trunk.weight, fresh.params["net.backbone.first.weight"])
    for name, value in found.items():
        if name not in fresh.networks.root_names:
            assert torch.equal(value, fresh.params[name]), name
    assert toy_runs.trees_equal(seen["buffers"], fresh.buffers)  # its batch norm belongs to the top


def test_rows_set_aside_are_in_no_task():
    stream = make_streams()[0]
    rest, aside = split_off_rows(stream, 1 / 6, seed=3)
    for whole, left, taken in zip(stream.tasks, rest.tasks, aside.tasks, strict=True):
        assert len(taken.train) == len(whole.train) // 6
        both = torch.cat([left.train, taken.train]).sort().values
        assert torch.equal(both, whole.train.sort().values)
        assert torch.equal(left.test, whole.test)
    other = split_off_rows(stream, 1 / 6, seed=4)[1]
    assert not torch.equal(other.tasks[0].train, aside.tasks[0].train)


def test_a_row_of_several_tasks_is_set_aside_from_all():
    stream = permuted(toy_runs.make_clouds(), tasks=3)
    rest, aside = split_off_rows(stream, 0.25, seed=0)
    taken = torch.cat([task.train for task in aside.tasks]).unique()
    assert len(taken) == len(stream.tasks[0].train) // 4
    assert not any(torch.isin(task.train, taken).any() for task in rest.tasks)
    first_of(run_of(METHOD, stream))  # each row is seen as its tasks see it


def test_rows_set_aside_are_read_in_the_prologue_only(monkeypatch):
    run = run_of()
    engine, read = Engine([run], device="cpu"), []
    feed = engine.learner(run).feed
    plain = type(feed).__call__

    def noting(self, rows, *rest):
        read.append(rows.reshape(-1).clone())
        return plain(self, rows, *rest)

    monkeypatch.setattr(type(feed), "__call__", noting)
    aside = toy_runs.pretraining_rows(run.method, run.stream)
    tests = torch.cat([task.test for task in run.stream.tasks])
    left = []
    for stage in engine.stages():
        asked = torch.cat(read)
        asked = asked[~torch.isin(asked, tests)]
        inside = torch.isin(asked, aside)
        left.append((bool(inside.any()), bool((~inside).any())))
        assert not torch.isin(stage.learner.exemplars.rows, aside).any()
        read.clear()
    assert left == [(True, True), (False, True), (False, True)]


def test_it_is_counted():
    stream = class_incremental(engram.load("digits"), classes_per_task=5)
    method = LatentReplay(root_iterations=4)
    result = engram.run(stream, method=[method, LatentReplay(root="none")], iterations=3)
    one, other = (run["stages"] for run in result.ledger)
    rows = sum(len(task.train) // 6 for task in stream.tasks)
    assert one["0"]["prologue"] == rows
    assert "prologue" not in other["0"]
    assert one["0"]["train"] < other["0"]["train"]
    assert result.cost()["steps"].tolist() == [10, 6]
    table = result.frame()
    logged = table[table["metric"] == "loss/prologue"]
    assert logged["step"].tolist() == [4]  # the mean of all
    assert set(logged["stage"]) == {0}
    assert logged["value"].iloc[0] == pytest.approx(2.3, abs=0.7)  # of ten classes


def test_it_may_have_a_learning_rate_of_its_own():
    def root(root_lr, lr):
        method = replace(METHOD, root_lr=root_lr)
        run = run_of(method, make_streams()[0])
        run = replace(run, training=replace(run.training, lr=lr))
        first = next(Engine([run], device="cpu").stages()).learner
        return torch.cat([first.layout(first.vector)[n].ravel() for n in first.networks.root_names])

    assert torch.equal(root(0.01, 0.1), root(0.0, 0.01))  # tasks leave the root as it is
    assert not torch.equal(root(0.01, 0.1), root(0.0, 0.1))
    both = [run_of(replace(METHOD, root_lr=rate), make_streams()[0]) for rate in (0.1, 0.2)]
    assert len(Engine(both, device="cpu").groups()) == 2


# -- together, and after an interruption -----------------------------------------------------------
@pytest.mark.parametrize("kind", [LatentReplay, LGR])
def test_lockstep_is_the_loop(kind):
    runs = [
        run_of(kind(root_iterations=5, root_batch_size=4, root_share=share), stream, seed)
        for seed, (stream, share) in enumerate(zip(make_streams(), (0.1, 0.2, 0.3), strict=True))
    ]
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )
    for k in alone:
        assert together[k].stage.learner.ledger.to_dict() == alone[k].stage.learner.ledger.to_dict()


def test_orders_with_the_same_first_task_share_nothing():
    """Columns of later classes begin with other weights, so the roots differ."""
    orders = ([0, 1, 2, 3, 4, 5], [0, 1, 4, 5, 2, 3])
    on = [class_incremental(toy_runs.make_clouds(), order=order) for order in orders]
    runs = [run_of(METHOD, stream) for stream in on]
    both, alone = toy_runs.train_runs(runs, together=False), toy_runs.train_runs_alone(runs)
    assert all(toy_runs.trees_equal(both[k].tensors, alone[k].tensors) for k in alone)
    assert not torch.equal(both[0, 0].vector, both[1, 0].vector)


@pytest.mark.parametrize("seeds", [1, 3], ids=["alone", "lockstep"])
@pytest.mark.parametrize("saves", [1, 3, 6, 0])
def test_an_interrupted_run_goes_on_at_its_step(saves, seeds, tmp_path, monkeypatch):
    """The end of a prologue is saved (0 here) though no save is due: no stage records it."""
    monkeypatch.setattr(StepSaver, "due", lambda self: saves > 0)
    monkeypatch.setattr(f"{SLICES}.took", lambda self, *_: None)
    monkeypatch.setattr(f"{SLICES}.__init__.__defaults__", (1.0, 2))

    def go(out: str) -> Any:
        return engram.run(
            make_streams()[1],
            method=LGR(root_iterations=9, noise=3),
            seeds=seeds,
            out=tmp_path / out,
            together=seeds > 1,
            device="cpu",
            model={"name": "mlp", "hidden": (8, 8)},
            lr=0.01,
            batch_size=8,
            epochs=1,
        )

    whole = go("whole")
    heal = crash_after(monkeypatch, saves or 1)
    with pytest.raises(Crash):
        go("cut")
    heal()
    resumed, load = [], StepSaver.load

    def noting(self, place, learner, finished):
        found = load(self, place, learner, finished)
        resumed.append(learner.resume_point.position)
        return found

    monkeypatch.setattr(StepSaver, "load", noting)
    same(whole, go("cut"))
    assert {one[0] for one in resumed} == {0 if saves == 6 else PRETRAINING_STAGE}
    assert saves or {one[2] for one in resumed} == {9}


# -- who trains with whom --------------------------------------------------------------------------
def test_tasks_without_convolutions_are_mapped_on_cuda():
    model = {"name": "lenet", "padding": 2, "latent": 5, "hidden": 6}
    stream = class_incremental(engram.load("digits"), classes_per_task=5)
    expected = {
        "heldout": [False, True, True], "first_task": [False, True], "none": [True, True],
    }  # fmt: skip
    for root, mapped in expected.items():
        runs = [
            Run(stream=stream, method=LatentReplay(root=root), model=model, seed=seed)
            for seed in range(3)
        ]
        engine = Engine(runs, device="cpu")
        engine.groups()
        engine.kind = "cuda"
        ((part, ways),) = engine.parts()
        assert part == [0, 1, 2]
        assert [way.mapped for way in ways.values()] == mapped


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("change", [{"weight_decay": 0.1}, {"optim_reset": False}, {"clip": 0.5}])
def test_a_root_that_stands_still_has_no_gradient_and_no_update(change, together, monkeypatch):
    runs = [
        run_of(LGR(root="none", noise=3), s, optimizer="adam", **change) for s in make_streams()[:2]
    ]
    sizes: set[tuple[int, ...]] = set()
    for verb in ("fused_", "update_"):
        monkeypatch.setattr(Optimizer, verb, noting(getattr(Optimizer, verb), sizes))
    train = functools.partial(toy_runs.train_runs, runs, together=together)
    part, (small,) = train(), {sum(one) for one in sizes}
    sizes.clear()
    monkeypatch.setattr(lockstep, "frozen_names", lambda *_: [])
    monkeypatch.setattr(single, "frozen_names", lambda *_: [])
    whole, (all_,) = train(), {sum(one) for one in sizes}
    assert all_ - small == (2 if together else 1) * (12 * 6 + 12)  # the layer that is the root
    far = max(toy_runs.largest_gap(part[k].tensors, whole[k].tensors) for k in whole)
    assert (
        far < toy_runs.CLOSE if together and "clip" in change else far == 0
    )  # a norm of fewer zeros


def noting(update: Any, sizes: set[tuple[int, ...]]) -> Any:
    """Notes how many numbers each tensor has that the optimiser moves."""

    def noted(self: Any, params: Tensor | list[Tensor], *args: Any) -> None:
        each = [params] if isinstance(params, Tensor) else params
        sizes.add(tuple(one.numel() for one in each))
        update(self, params, *args)

    return noted


def test_joined():
    runs = [run_of(Join(METHOD, engram.methods.EWC(strength=0.1)), s) for s in make_streams()[:2]]
    together, alone = toy_runs.train_runs(runs, together=True), toy_runs.train_runs_alone(runs)
    assert (
        max(toy_runs.largest_gap(together[k].tensors, alone[k].tensors) for k in alone)
        < toy_runs.CLOSE
    )
    assert runs[0].method.prologue() == Prologue(1 / 6, 7, 100)


# -- weights from elsewhere ------------------------------------------------------------------------
class TestExternal:
    def save(self, tmp_path, tensors, name="root.pt"):
        path = tmp_path / name
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(tensors, path)
        else:
            torch.save(tensors, path)
        return str(path), hashlib.sha256(path.read_bytes()).hexdigest()

    def external(self, path, sha):
        return LatentReplay(root="external", root_file=path, root_sha256=sha)

    @pytest.mark.parametrize("name", ["root.pt", "root.safetensors"])
    @pytest.mark.parametrize("prefix", ["", "first.", "backbone.first.", "net.backbone.first."])
    def test_a_root_from_a_file(self, tmp_path, prefix, name):
        tensors = {f"{prefix}weight": torch.randn(12, 6), f"{prefix}bias": torch.randn(12)}
        tensors["fc.weight"] = torch.zeros(3)  # what the root does not have
        path, sha = self.save(tmp_path, tensors, name)
        run = run_of(self.external(path, sha))
        plain = run_of(LatentReplay(root="none"))
        for stage in Engine([run], device="cpu").stages():
            mine = stage.learner.params["net.backbone.first.weight"]
            assert torch.equal(mine, tensors[f"{prefix}weight"].double())
        beside = Engine([run, plain], device="cpu")
        one, other = (beside.learner(r).params["net.backbone.first.bias"] for r in (run, plain))
        assert not torch.equal(one, other)
        assert run.method.prologue() == RootFile(path, sha)

    @pytest.mark.parametrize("form", ["plain", "parallel", "checkpoint"])
    def test_statistics_under_the_names_of_torch(self, tmp_path, form):
        there = Normed((6,))
        there(torch.randn(20, 6))  # moves its statistics
        tensors = there.state_dict()
        assert {"norm.running_mean", "norm.num_batches_tracked"} < set(tensors)
        if form == "parallel":
            tensors = nn.DataParallel(there).state_dict()
        saved = {"state_dict": tensors, "epoch": 3} if form == "checkpoint" else tensors
        path, sha = self.save(tmp_path, saved)
        run = replace(run_of(self.external(path, sha)), model=Normed)
        learner = Engine([run], device="cpu").learner(run)
        for name, own in (("mean", there.norm.running_mean), ("var", there.norm.running_var)):
            found = learner.buffers[f"net.backbone.norm.{name}"]
            assert torch.equal(found, own.to(found.dtype))
        own = learner.params["net.backbone.first.weight"]
        assert torch.equal(own, there.first.weight.detach().to(own.dtype))

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"weight": torch.zeros(12, 5), "bias": torch.zeros(12)}, r"of shape \(12, 6\)"),
            ({"weight": torch.zeros(12, 6)}, "a tensor called backbone.first.bias"),
            ([torch.zeros(3)], "tensors by name"),
        ],
        ids=["another shape", "missing", "a list"],
    )
    def test_weights_that_do_not_fit(self, tensors, message, tmp_path):
        run = run_of(self.external(*self.save(tmp_path, tensors)))
        with pytest.raises(BadArgument, match=f"root_file: expected .*{message}"):
            Engine([run], device="cpu").groups()

    def test_another_content_or_no_file(self, tmp_path):
        path, _ = self.save(tmp_path, {"weight": torch.zeros(1)})
        with pytest.raises(BadArgument, match=r"root_sha256: expected .*, the SHA-256 of root\.pt"):
            Engine([run_of(self.external(path, "0" * 64))], device="cpu").groups()
        with pytest.raises(BadArgument, match="root_file: expected the path of a file"):
            Engine([run_of(self.external(path + "x", "0" * 64))], device="cpu").groups()
        sha = hashlib.sha256(b"no tensors").hexdigest()
        for file in (tmp_path / "root.pt", tmp_path / "root.safetensors"):
            file.write_bytes(b"no tensors")
            run = run_of(self.external(str(file), sha))
            with pytest.raises(BadArgument, match="root_file: expected safetensors, or a state_di"):
                Engine([run], device="cpu").groups()


class Normed(nn.Module):
    """A user's backbone with torch's own batch normalisation in its root."""

    root_modules = ("first", "norm")

    def __init__(self, shape):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.features = 5

    def root(self, x):
        return self.norm(self.first(x.flatten(1)))

    def body(self, z):
        return self.last(z).relu()

    def forward(self, x):
        return self.body(self.root(x))


class TestErrors:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"root": "nowhere"}, {"root_share": 0.0}, {"root_share": 1.0}, {"root_iterations": 0},
            {"root_batch_size": 0}, {"root_lr": -0.1}, {"root_file": "x"},
            {"root_sha256": "0" * 64}, {"root_file": "", "root": "external"},
            {"root_sha256": "12", "root": "external", "root_file": "x"},
        ],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("kind", [LatentReplay, LGR])
    def test_settings(self, kind, wrong):
        with pytest.raises(BadArgument, match=next(iter(wrong))):
            kind(**wrong)

    @pytest.mark.parametrize("method", [METHOD, LatentReplay(), LGR()], ids=["loads", "LR", "LGR"])
    def test_a_model_without_a_root(self, method):
        class Whole(nn.Module):
            def __init__(self, shape):
                super().__init__()
                self.layer = nn.Linear(6, 5)

            def forward(self, x):
                return torch.relu(self.layer(x.flatten(1)))

        with pytest.raises(BadArgument, match=r"model: expected a backbone with root\(x\)"):
            Engine([replace(run_of(method), model=Whole)], device="cpu").groups()

    def test_a_task_with_a_single_row(self):
        stream = class_incremental(toy_runs.make_clouds((1, 1, 9)), classes_per_task=1)
        with pytest.raises(BadArgument, match="share: expected a fraction that takes some rows"):
            first_of(run_of(METHOD, stream))
