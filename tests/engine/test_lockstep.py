"""A run in company is the run alone, in an engine of its own: whatever the others are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engram import methods
from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    MODELS,
    ORDERS,
    choose_model,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    train_runs,
    train_runs_alone,
    trees_equal,
)
from engram.engine.engine import Engine, SharedPrefixes
from engram.engine.hyperparameters import varying_values
from engram.engine.run_definition import Run
from engram.learner.bound_module import BoundNet
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.losses import mean
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune, RWalk
from engram.methods.method import Method, ReplaySpec
from engram.per_run import PerRun, per_run_fields
from engram.streams import class_incremental, task_incremental

DATA = make_clouds()
SIX = 6  # numbers of a sample


def alike(runs: Sequence[Run], **options: Any) -> None:
    alone = train_runs_alone(runs)
    company = train_runs(runs, together=True, **options)
    assert alone.keys() == company.keys()
    for key, one in alone.items():
        assert largest_gap(company[key].tensors, one.tensors) < CLOSE, key
        assert (
            largest_gap(torch.as_tensor(company[key].scores), torch.as_tensor(one.scores)) < 1e-5
        ), key


def run_of(method: Method, model: Any = None, seed: int = 0, order: int = 1) -> Run:
    make = task_incremental if method.task_identity == "required" else class_incremental
    stream = make(DATA, order=list(ORDERS[order]))
    given = choose_model(method, "plain") if model is None else model
    return Run(stream=stream, method=method, model=given, training=EXACT, seed=seed)


# -- networks --------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Brings(Method):
    """Adds what a network of its own makes of the inputs."""

    slope: PerRun = 0.01
    steep: bool = False

    def networks(self, stream: Any) -> Mapping[str, nn.Module]:
        act = nn.Hardtanh(-0.1, 0.1) if self.steep else nn.LeakyReLU(self.slope)
        return {"own": nn.Sequential(nn.Linear(SIX, 4), act, nn.Linear(4, 1))}

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        found = net.own(batch.x.flatten(1)).squeeze(-1)
        pull = mean((found - 1).square(), batch.w) + 0.1 * mean(found, batch.w).square()
        return {"task": net.task(batch), "own": pull}


def test_two_settings_of_a_brought_network_keep_their_own():
    runs = [run_of(Brings(slope=s)) for s in (0.01, 0.9)] + [run_of(Brings(steep=True))]
    engine = Engine(runs, device="cpu", together=True)
    assert engine.groups() == [[0], [1], [2]]
    alike(runs)
    found = train_runs(runs, together=True)
    assert largest_gap(found[0, 2].vector, found[1, 2].vector) > 1e-3


class Stretch(nn.Module):
    """A network with settings of all kinds; its class and shapes are always the same."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(SIX, 5), nn.Dropout(settings.get("p", 0.0))
        self.act = settings.get("act", nn.Tanh())
        self.scale, self.f = settings.get("scale", 1.0), settings.get("f", torch.abs)
        self.fixed = settings.get("fixed", torch.ones(5))
        self.register_buffer("mask", settings.get("mask", torch.ones(5)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.act(self.scale * self.first(x.flatten(1))))
        return self.f(h * self.mask.to(h.dtype) * self.fixed.to(h.dtype))


def power(n: int) -> Any:
    return lambda x: x**n


PAIRS = [
    {"p": 0.5}, {"act": nn.LeakyReLU(0.3)}, {"act": nn.ELU()}, {"scale": 2.0}, {"f": torch.square},
    {"f": power(3)}, {"fixed": torch.arange(5.0)}, {"mask": torch.tensor([1.0, 0, 1, 0, 1])},
]  # fmt: skip


@pytest.mark.parametrize(
    "settings", PAIRS, ids=[next(iter(p)) + str(i) for i, p in enumerate(PAIRS)]
)
def test_networks_that_compute_differently_train_apart(settings):
    base: dict[str, Any] = {"f": power(2)} if "f" in settings else {}
    models = [lambda shape: Stretch(**base), lambda shape: Stretch(**{**base, **settings})]
    runs = [run_of(Finetune(), model) for model in models]
    assert Engine(runs, device="cpu", together=True).groups() == [[0], [1]]
    alike(runs)


@pytest.mark.parametrize("settings", [{}, *PAIRS])
def test_seeds_of_one_network_train_together(settings):
    def model(shape: Any) -> nn.Module:
        return Stretch(**settings)

    runs = [run_of(Finetune(), model, seed) for seed in range(3)]
    assert Engine(runs, device="cpu", together=True).groups() == [[0, 1, 2]]
    alike(runs)


def test_a_class_made_in_a_factory_is_the_same_in_every_call():
    def model(shape: Any) -> nn.Module:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.act = nn.Linear(SIX, 5), lambda x: x.tanh()

            def forward(self, x: Tensor) -> Tensor:
                return self.act(self.first(x.flatten(1)))  # type: ignore[no-any-return]

        return Own()

    runs = [run_of(Finetune(), model, seed) for seed in range(2)]
    assert Engine(runs, device="cpu", together=True).groups() == [[0, 1]]
    alike(runs)


def test_weights_and_layers_that_are_shared():
    class Shared(nn.Module):
        def __init__(self, shape: Any) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(SIX, SIX), nn.Linear(SIX, SIX)
            self.again = self.first
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.again(torch.tanh(self.first(x.flatten(1)))))
            return torch.relu(self.second(h))

    alike([run_of(EWC(strength=0.1), Shared, seed, order=seed) for seed in range(3)])


def test_trained_modules_of_one_kind_keep_their_weights():
    """Two modules of equal structure, the same seed, method and tasks: two runs all the same."""
    modules = []
    for seed in range(2):
        torch.manual_seed(seed)
        modules.append(nn.Sequential(nn.Flatten(), nn.Linear(SIX, 5), nn.ReLU()))
    runs = [run_of(Finetune(), module) for module in modules]
    assert Engine(runs, device="cpu", together=True).groups() == [[0, 1]]
    alike(runs)


@pytest.mark.parametrize("inside", [nn.BatchNorm1d(4), nn.Dropout(0.2)], ids=["norm", "dropout"])
def test_brought_networks_are_made_fit_for_company(inside):
    @dataclass(frozen=True, kw_only=True)
    class Carries(Method):
        def networks(self, stream: Any) -> Mapping[str, nn.Module]:
            layers = (nn.Linear(SIX, 4), nn.Tanh(), inside, nn.Linear(4, 4), inside)
            return {"own": nn.Sequential(*layers, nn.Linear(4, 1))}

        def loss(self, net: Any, batch: Any, state: Any) -> Any:
            found = net.own(batch.x.flatten(1), w=batch.w).squeeze(-1)
            return {"task": net.task(batch), "own": 0.1 * mean((found - 1).square(), batch.w)}

    alike(make_runs(Carries(), make_streams()))


# -- row weights -----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Weighs(Method):
    """Statistics of batch normalisation over rows of even columns only, or over every second."""

    memory: Memory = field(default_factory=lambda: Memory(total=12))

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair")

    def finish(self, learner: Any, task: Any) -> None:
        learner.exemplars = self.memory.update(learner, task.train)

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        chosen = batch.w * (batch.target % 2 == 0)
        logits = net(batch.x, chosen).logits
        return {"task": net.networks.objective(logits, batch)}


@pytest.mark.parametrize("orders", [ORDERS, ORDERS[:1] * 3], ids=["padded", "equal"])
def test_row_weights_mean_the_same_alone_and_in_company(orders):
    runs = make_runs(Weighs(), make_streams(orders=orders), model="normed")
    alike(runs)
    plain = train_runs([replace(runs[0], method=ER(memory=Memory(total=12)))])
    mine = train_runs(runs[:1])
    assert largest_gap(mine[0, 0].buffers, plain[0, 0].buffers) > 1e-3


@pytest.mark.parametrize("bound", [True, False])
def test_rows_of_weight_zero_are_left_out_of_statistics(bound):
    run = run_of(Finetune(), MODELS["normed"])
    one = Engine([run], device="cpu").learner(run)
    one.open_classes(0)
    batch = one.batch(one.task.train[:10])
    w = (torch.arange(10) % 3 > 0).to(batch.w)
    net: Any
    if bound:
        net = BoundNet(one.networks, one.vector.clone(), one.buffers)
        net.begin(0, batch.row_weights)
    else:
        net = FunctionalNet(one.networks, one.vector, one.buffers, real=batch.row_weights)
    net(batch.x, w)
    weights = one.params
    path = "net.backbone.first"
    hidden = batch.x[w > 0].flatten(1) @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]
    found = net.read_buffers() if bound else net.buffers
    assert torch.allclose(found["net.backbone.norm.mean"], 0.1 * hidden.mean(0), atol=1e-12)


# -- beginnings ------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Home(Method):
    """Pulls towards the weights a run began with."""

    strength: PerRun = 0.1

    def start(self, learner: Any, task: Any) -> None:
        vector, buffers = learner.networks.initial()
        learner.state = {"home": vector, "buffers": buffers}

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        pull = self.strength * (net.vector - state["home"]).square().sum()
        return {"task": net.task(batch), "pull": pull}


@pytest.mark.parametrize("model", ["plain", "normed"])
def test_initial_weights_are_the_runs_own(model):
    runs = make_runs(Home(), make_streams(), model=model)
    alike(runs)
    engine = Engine(runs, device="cpu", together=True)
    for run in runs:
        one = engine.learner(run)
        assert trees_equal(one.networks.initial(), (one.vector, one.buffers))


@dataclass(frozen=True, kw_only=True)
class Hidden(Method):
    """A field that is neither compared nor shown."""

    strength: PerRun = field(default=0.0, compare=False, repr=False)

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        pull = self.strength * net.vector.square().sum()
        return {"task": net.task(batch), "pull": pull}


@dataclass(frozen=True)
class WorkedOut(Method):
    """A value that a field decides, set when the method is made."""

    strength: PerRun = 0.0
    twice: PerRun = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.strength)

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        pull = self.twice * net.vector.square().sum()
        return {"task": net.task(batch), "pull": pull}


@pytest.mark.parametrize("kind", [Hidden, WorkedOut])
def test_methods_are_equal_only_if_all_they_hold_is(kind):
    runs = [run_of(kind(strength=s)) for s in (0.0, 0.1)]
    assert len(SharedPrefixes().leaders(range(2), runs, 0)) == 2
    alike(runs)


def test_what_a_method_works_out_varies_with_its_field():
    assert varying_values([WorkedOut(1.0), WorkedOut(2.0)]) == {
        ("strength",): [1.0, 2.0], ("twice",): [2.0, 4.0],
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Undeclared(Method):
    """Options that decide which way a loss goes, and are not declared."""

    strength: float = 0.5
    floor: int = 0

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        task = net.task(batch)
        return {"task": task, "pull": net.vector.square().sum()} if self.strength > 1 else {
            "task": self.strength * task
        }  # fmt: skip


def test_numbers_that_are_not_declared_train_apart():
    runs = [run_of(Undeclared(strength=s)) for s in (0.5, 0.25, 2.0)]
    with pytest.warns(UserWarning, match=r"Undeclared.strength differs .*: engram.PerRun`"):
        assert Engine(runs, device="cpu", together=True).groups() == [[0], [1], [2]]
    assert Engine(runs, device="cpu", together=False).groups() == [[0], [1], [2]]
    whole = [run_of(Undeclared(floor=f)) for f in (0, 1)]  # a number of another kind: no advice
    assert Engine(whole, device="cpu", together=True).groups() == [[0], [1]]


@dataclass(frozen=True, kw_only=True)
class Declared(Method):
    shares: tuple[PerRun, ...] = (0.5, 1.0)
    floor: PerRun | None = None
    memory: Memory = field(default=Memory(fraction=0.5))


def test_declared_numbers_are_found_wherever_they_are():
    one, two = Declared(), Declared(shares=(0.5, 2), memory=Memory(fraction=0.25))
    assert varying_values([one, two]) == {
        ("shares", 1): [1.0, 2.0], ("memory", "fraction"): [0.5, 0.25],
    }  # fmt: skip
    assert varying_values([Declared(floor=1.0), Declared(floor=2)]) == {("floor",): [1.0, 2.0]}
    assert varying_values([Declared(floor=1.0), Declared()]) is None

    class Own(Declared):
        shares: float = 0.0  # type: ignore[assignment]

    assert varying_values([Own(), Own()]) == {}
    assert per_run_fields(Own) == {"floor"}


@pytest.mark.parametrize("name", [n for n in methods.__all__ if n not in ("Join", "Method")])
def test_floats_of_built_in_methods_are_declared_where_runs_may_differ(name):
    """Two runs with other values train together, unless the value decides how a run is trained."""
    kind = getattr(methods, name)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        return
    # learning rates of further trainings; whether gradients are bounded at all
    decisive = {"generator_lr", "root_lr", "clip"}
    decisive |= {"share"} if name in ("SupSup", "XdG") else set()  # numbers of weights, of units
    floats = {f.name for f in fields(kind) if "float" in str(f.type)}
    assert floats <= decisive
    for option in per_run_fields(kind) & {f.name for f in fields(kind)}:
        values = (10.0, 20.0) if option == "scale" else (0.25, 0.5)
        pair = [replace(kind(), **{option: value}) for value in values]
        assert len(Engine(list(map(run_of, pair)), device="cpu", together=True).groups()) == 1


@dataclass(frozen=True, kw_only=True)
class Shares(ER):
    """A replay whose size follows from a float."""

    share: PerRun = 0.5

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", max(1, int(16 * self.share)))


def test_replays_that_differ_train_apart():
    runs = [run_of(Shares(memory=Memory(total=12), share=s)) for s in (0.25, 1.0)]
    assert Engine(runs, device="cpu", together=True).groups() == [[0], [1]]
    alike(runs)


# -- importance passes -----------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Asks(Method):
    """A term that closes over what the run is: its columns, and a number."""

    def finish(self, learner: RunLearner, task: Any) -> None:
        column, power = int(learner.labels(task.train)[0, 0]), 1 + learner.seed

        def term(net: Any, batch: Any, by: int = learner.seed) -> Tensor:
            logits = net(batch.x, batch.w).logits
            return mean(logits[..., column] ** power + by * logits[..., 0], batch.w)

        found = learner.average_gradient(term, transform=lambda g: g.abs() ** power)
        sized = learner.average_gradient(term, group=2 + learner.seed)
        learner.state = {"found": found, "sized": sized}


def test_terms_that_close_over_different_values_are_different_terms():
    alike(make_runs(Asks(), make_streams()))


# -- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [SI(strength=0.3), RWalk(strength=0.2)], ids=str)
@pytest.mark.parametrize(
    "training",
    [{"clip": 0.05}, {"weight_decay": 0.1, "momentum": 0.9}, {"clip": 0.05, "weight_decay": 0.1}],
    ids=str,
)
def test_what_a_step_is_told_is_the_plain_gradient_together_too(training, method):
    """Clipping and decay change the update, not the gradient that `step` gets."""
    runs = make_runs(method, make_streams(), training=replace(EXACT, optimizer="sgd", **training))
    alike(runs)
