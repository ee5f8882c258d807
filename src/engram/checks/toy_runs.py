"""Tiny data, networks and runs for checks, methods with mild settings, and learners that have
entered a task.

Many checks look at the same run of a method: inside `share_runs` it is trained once.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from engram import keys
from engram.data.dataset import Data
from engram.engine.admission import Draws
from engram.engine.batches import select_step
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items
from engram.engine.loop import open_task, train_task
from engram.engine.pretraining import split_stream
from engram.engine.run_definition import Run
from engram.engine.sampler import StepRows, build_sampler
from engram.engine.stored_values import encode_latents
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.learner_proxy import call_verb
from engram.learner.networks import FunctionalNet
from engram.learner.structural_key import ByIdentity, structural_key
from engram.learner.tensor_tree import leaves, tree_map
from engram.memory import Exemplars, Memory
from engram.methods.join import Join
from engram.methods.method import (
    FROZEN_TRANSFORMER,
    Gradient,
    Method,
    Phase,
    Prologue,
    Update,
)
from engram.models.transformer import TokenNetwork, TransformerBlock
from engram.per_run import per_run_fields
from engram.records.stage_result import StageResult
from engram.streams import Stream, class_incremental

T = TypeVar("T")
SIZES = (31, 12, 24, 17, 28, 9)  # training rows per class, so that tasks differ in size
TESTS = 10
ORDERS = ((0, 1, 2, 3, 4, 5), (5, 1, 3, 0, 4, 2), (2, 4, 5, 3, 1, 0))
SAMPLE = (2, 1, 3)  # a skeleton of three joints, which other networks take as six numbers
BONES = ((1, 2), (3, 2))
# double precision and SGD: Adam alone lifts a rounding error from 1e-16 to 1e-8
EXACT = Training(epochs=2, batch_size=16, optimizer="sgd", lr=0.02, precision="float64")
CLOSE = 1e-10


class NormedNetwork(nn.Module):
    """A network with batch normalisation in its upper part."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features, width = 12, math.prod(sample_shape)
        self.first, self.norm = nn.Linear(width, 12), nn.BatchNorm1d(12)
        self.root_modules = ("first",)

    def root(self, x: Tensor) -> Tensor:
        answer: Tensor = self.first(x.flatten(1))
        return answer

    def body(self, z: Tensor) -> Tensor:
        return torch.relu(self.norm(z))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


class DropoutNetwork(nn.Module):
    """A network with dropout in its upper part."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features, width = 12, math.prod(sample_shape)
        self.first, self.drop = nn.Linear(width, 12), nn.Dropout(0.4)
        self.root_modules = ("first",)

    def root(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x.flatten(1)))

    def body(self, z: Tensor) -> Tensor:
        answer: Tensor = self.drop(z)
        return answer

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


class SmoothNetwork(nn.Module):
    """A network in which the gradient of every weight mixes all rows of a batch."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features, width = 16, math.prod(sample_shape)
        self.first, self.second = nn.Linear(width, 16), nn.Linear(16, 16)
        self.root_modules = ("first",)

    def root(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(self.first(x.flatten(1)))

    def body(self, z: Tensor) -> Tensor:
        return nn.functional.softplus(self.second(z))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


class ToyTransformer(TokenNetwork):
    """A transformer whose tokens are waves of single numbers of a sample, at places of their own.

    It stands for one that is pretrained, so its weights do not follow the seed of a run.
    """

    def __init__(self, sample_shape: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        count, width, depth = math.prod(sample_shape), 48, 3
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.scale, self.places = nn.Embedding(count, width), nn.Embedding(count, width)
            self.blocks = nn.ModuleList(
                TransformerBlock(width, 2, width, dropout=dropout) for _ in range(depth)
            )
        self.last_norm = nn.LayerNorm(width)
        self.features, self.split, self.root_modules = width, 1, ("scale", "places", "blocks.0")

    def embed(self, x: Tensor) -> tuple[Tensor, None]:
        h = x.flatten(1)[..., None] * (self.scale.weight / 2) + 3 * self.places.weight
        return torch.sin(h), None

    def find_tokens(self, z: Tensor) -> None:
        return None

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        mean: Tensor = self.last_norm(h).mean(1)
        return mean


GRAPH = {"name": "gcn", "edges": BONES, "width": 6, "hidden": 8}
MODELS: dict[str, Any] = {
    "plain": {"name": "mlp", "hidden": (16,)}, "normed": NormedNetwork, "dropped": DropoutNetwork,
    "smooth": SmoothNetwork,
}  # fmt: skip
# a root that stands still wants a top that can learn
SPLIT_MODELS: dict[str, Any] = MODELS | {"plain": {"name": "mlp", "hidden": (16, 16)}}
GRAPHS: dict[str, Any] = {
    "plain": GRAPH,
    "normed": GRAPH,
    "smooth": GRAPH,
    "dropped": {**GRAPH, "dropout": 0.4},
}
# batch normalisation is no part of a transformer that stands still
TRANSFORMERS: dict[str, Any] = {
    "plain": ToyTransformer,
    "normed": ToyTransformer,
    "smooth": ToyTransformer,
    "dropped": {"name": ToyTransformer, "dropout": 0.4},
}


class OwnNetwork(NamedTuple):
    """A network of the user's, on which methods are checked, and the shape of its samples."""

    model: Any
    sample_shape: tuple[int, ...]


OWN_NETWORK: ContextVar[OwnNetwork | None] = ContextVar("own_network", default=None)


def sample_shape() -> tuple[int, ...]:
    """The shape of toy samples."""
    own = OWN_NETWORK.get()
    return SAMPLE if own is None else own.sample_shape


@contextmanager
def use_network(own: OwnNetwork) -> Iterator[None]:
    """Train toy runs on this network in place of the plain one, inside the context."""
    token = OWN_NETWORK.set(own)
    try:
        yield
    finally:
        OWN_NETWORK.reset(token)


# what `share` has made, by its key, and what stands for runs by theirs
_SHARED: ContextVar[dict[Any, Any] | None] = ContextVar("shared", default=None)


@contextmanager
def share_runs() -> Iterator[None]:
    """Train a toy run that several checks ask for once, inside the context.

    Runs are the same if their methods, streams, networks, settings and seeds are, so one method at
    a time should be checked inside, and nothing that it rests on be changed.
    """
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def _share(key: Any, make: Callable[[], T]) -> T:
    """What `make` returns, made once for each key inside `share_runs`."""
    shared = _SHARED.get()
    if shared is None:
        return make()
    if key not in shared:
        shared[key] = make()
    found: T = shared[key]
    return found


def choose_model(method: Method, kind: str) -> Any:
    """A network of the given kind that the method accepts: some know graphs only."""
    own = OWN_NETWORK.get()
    if own is not None and kind == "plain":
        return own.model
    if method.needed_model == FROZEN_TRANSFORMER:
        return TRANSFORMERS[kind]
    if any(method.replay(stage).latent for stage in range(2)):
        return SPLIT_MODELS[kind]
    try:
        graphs = _asks_for_graphs(method)
    except TypeError:  # not hashable: fields of the method may be anything
        graphs = _asks_for_graphs.__wrapped__(method)
    return (GRAPHS if graphs else MODELS)[kind]


@lru_cache(maxsize=64)
def _asks_for_graphs(method: Method) -> bool:
    stream = give_tasks(class_incremental(make_clouds((2, 2))), method)
    run = Run(stream=stream, method=method, model=MODELS["plain"], training=EXACT)
    learner = Engine([run], device="cpu").learner(run)
    learner.open_classes(0)
    try:
        call_verb("start", method.start, learner)
    except BadArgument as error:
        return str(error).startswith("model:")
    return False


def make_clouds(sizes: Sequence[int] = SIZES, *, rename: Sequence[int] | None = None) -> Data:
    """Separable classes of unequal size; `rename` gives them other ids."""
    key = "clouds", tuple(sizes), rename if rename is None else tuple(rename), sample_shape()
    return _share(key, lambda: _make_clouds(sizes, rename))


def _make_clouds(sizes: Sequence[int], rename: Sequence[int] | None) -> Data:
    key, count = keys.fold(0, "toys"), len(sizes)
    y = torch.arange(count).repeat_interleave(torch.tensor(sizes))
    tests = torch.arange(count).repeat_interleave(TESTS)
    centres = 3 * keys.normal(keys.fold(key, "centres"), count, *sample_shape())
    noise = keys.normal(keys.fold(key, "noise"), len(y) + len(tests), *sample_shape())
    x = (centres[torch.cat([y, tests])] + noise).float()
    names = torch.arange(count) if rename is None else torch.tensor(rename)
    rest = (x[len(y) :], names[tests])
    return Data.from_arrays(x[: len(y)], names[y], test=rest, name="clouds")


def make_streams(
    data: Data | None = None, orders: Sequence[Sequence[int]] = ORDERS, *, valid: float = 0.0
) -> list[Stream]:
    """One stream per order, three tasks of two classes each."""
    data = make_clouds() if data is None else data

    def make(order: Sequence[int]) -> Stream:
        key = "stream", ByIdentity(data), tuple(order), valid
        return _share(key, lambda: class_incremental(data, order=list(order), valid=valid))

    return [make(order) for order in orders]


def make_single_class_stream() -> Stream:
    """Tasks of one class each."""
    data = make_clouds()
    key = "single classes", ByIdentity(data)
    return _share(key, lambda: class_incremental(data, classes_per_task=1))


class StageCopy(NamedTuple):
    """Copies of what a run knows after a stage."""

    vector: Tensor
    buffers: dict[str, Tensor]
    state: dict[str, Any]
    opt: dict[str, Any]
    exemplars: Exemplars
    scores: np.ndarray
    diverged: int
    stage: StageResult

    @property
    def tensors(self) -> dict[str, Any]:
        """Everything training changes."""
        return {"vector": self.vector, "buffers": self.buffers, "state": self.state}


Trained = dict[tuple[int, int], StageCopy]  # by (run, stage)


def make_runs(
    methods: Method | Sequence[Method], on: Sequence[Stream], *, model: str = "plain",
    training: Training = EXACT,
) -> list[Run]:  # fmt: skip
    """One run per stream, with seeds 0, 1, ...; `model` is a key of `MODELS`."""
    each = [methods] * len(on) if isinstance(methods, Method) else list(methods)
    network = choose_model(each[0], model)
    return [
        Run(
            stream=give_tasks(stream, method),
            method=method,
            model=network,
            training=training,
            seed=seed,
        )
        for seed, (stream, method) in enumerate(zip(on, each, strict=True))
    ]


def give_tasks(stream: Stream, method: Method) -> Stream:
    """The stream with a head for each task, if the method needs to be given the task of a row."""
    needs = method.task_identity == "required" and stream.head == "single"
    if not needs or stream.labels != "single":
        return stream
    return _share(("heads", ByIdentity(stream)), lambda: replace(stream, head="multi"))


def _copy_tensor(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def copy_stage(stage: StageResult) -> StageCopy:
    """The learner of a stage, safe from what later stages do to it."""
    one = stage.learner
    trees = tree_map(_copy_tensor, (one.vector, one.buffers, one.state, one.opt))
    rest = (one.exemplars, stage.scores, one.diverged, stage)
    return StageCopy._make((*trees, *rest))


def train_runs(runs: Sequence[Run], *, together: bool = False, **options: Any) -> Trained:
    """All stages of all runs."""

    def train() -> Trained:
        engine = Engine(runs, device="cpu", together=together)
        return {(s.run, s.stage): copy_stage(s) for s in engine.stages(**options)}

    return train() if options else share_training(runs, train, together=together)


def share_training(
    runs: Sequence[Run], train: Callable[[], Trained], *, together: bool = False
) -> Trained:
    """What `train` returns of these runs, made once inside `share_runs`."""
    if _SHARED.get() is None or any(getattr(run.method, "_is_spy", False) for run in runs):
        return train()
    return _share(("trained", together, *map(_run_key, runs)), train)


def _run_key(run: Run) -> Any:
    """What decides the numbers of a run."""
    parts = run.method, run.model, run.training, run.seed
    return ByIdentity(run.stream), *map(structural_key, parts)


def train_runs_alone(runs: Sequence[Run]) -> Trained:
    """All stages of all runs, each run alone in an engine of its own."""
    found: Trained = {}
    for place, run in enumerate(runs):
        found |= {(place, stage): after for (_, stage), after in train_runs([run]).items()}
    return found


def largest_gap(first: Any, second: Any) -> float:
    """Largest difference between two trees, relative to each tensor's size."""
    worst = 0.0
    for a, b in zip(leaves(first), leaves(second), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            scale = max(1.0, float(b.double().abs().max()))
            away = float((a.double() - b.double()).abs().max()) / scale
            worst = max(worst, away if away == away else float("inf"))
    return worst


def trees_equal(first: Any, second: Any) -> bool:
    """Whether two trees are equal, bit by bit."""
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def all_finite(tree: Any) -> bool:
    """Whether no number of a tree is infinite or none."""
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tree))


def accuracies(after: StageCopy) -> list[float]:
    """Accuracy on every task so far, in the stream's own view."""
    stream, now = after.stage.learner.stream, after.stage.stage
    rows, stages = test_items(stream, slice(0, now + 1))
    open_ = stream.visible[stages] if stream.head == "multi" else (stream.opening <= now)[None]
    scores = torch.as_tensor(after.scores[: len(rows)]).masked_fill(~open_, -torch.inf)
    right = (scores.argmax(1) == stream.targets[rows][:, 0]).double()
    return [float(right[stages == k].mean()) for k in range(now + 1)]


# The method on trial, tamed: calm, short, with little memory, in variations.


def change_parts(method: Method, change: Any) -> Method:
    """The method changed; a Join with each of its parts changed."""
    if isinstance(method, Join):
        return Join(*(change(part) for part in method.parts))
    changed: Method = change(method)
    return changed


WIDE, NARROW = 1000, 64  # whole numbers of methods with networks: from where on, and what instead


def shrink_settings(method: Method, training: Training = EXACT) -> Method:
    """The method with every float field above 10 set to 0.1, short phases and narrow networks.

    A stiff penalty and a plain gradient step of fixed size explode, whoever wrote the method. And
    a whole number that makes a phase longer than the training's epochs is set to these. One of a
    thousand or more, of a method with networks of its own, is a width, which need not be large.
    """

    def calmer(part: Method) -> Method:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.init and isinstance(value, float) and value > 10:
                part = replace_field(part, field.name, 0.1)
            elif field.init and type(value) is int and value > training.epochs:
                brief = replace_field(part, field.name, training.epochs)
                shorter = _sum_phase_lengths(brief) < _sum_phase_lengths(part)
                wide = value >= WIDE and not shorter and part.implements("networks")
                part = brief if shorter else part
                part = replace_field(part, field.name, NARROW) if wide else part
        return part

    return shorten_pretraining(change_parts(method, calmer))


def _sum_phase_lengths(method: Method) -> int:
    """How long the phases of three tasks last, where the method itself says so."""
    phases = [phase for stage in range(3) for phase in method.phases(stage)]
    return sum(phase.epochs + phase.iterations for phase in phases)


SHORT_ITERATIONS = 10  # steps of a prologue


def shorten_pretraining(method: Method) -> Method:
    """The method with a prologue of a few steps, which is enough to see whether it is right."""
    asked = method.prologue()
    if not isinstance(asked, Prologue) or asked.iterations <= SHORT_ITERATIONS:
        return method
    found, kind = copy.copy(method), _with_short_prologue(cast(Any, type(method)))
    object.__setattr__(found, "__class__", kind)
    return found


def pretraining_rows(method: Method, stream: Stream, seed: int = 0) -> Tensor:
    """Rows that no task has, because a prologue reads them."""
    run = Run(stream=give_tasks(stream, method), method=method, seed=seed)
    before = split_stream(run)[1]
    parts = [] if before is None else [task.train for task in before.tasks]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


@cache  # one class for all, so that runs can be told to be alike
def _with_short_prologue(kind: Any) -> Any:
    def prologue(self: Any) -> Any:
        asked: Any = kind.prologue(self)
        return replace(asked, iterations=SHORT_ITERATIONS) if isinstance(asked, Prologue) else asked

    return type(kind.__name__, (kind,), {"prologue": prologue, "__module__": kind.__module__})


def shrink_memory(method: Method) -> Method:
    """The method with a memory so small that its budget cuts."""
    sizes = {"total": 12, "per_class": 2, "per_task": 3}

    def smaller(part: Method) -> Method:
        memory = part.memory
        given = "memory" in {field.name for field in fields(part)}
        if not given or not isinstance(memory, Memory):
            return part
        small = {k: v for k, v in sizes.items() if getattr(memory, k) is not None}
        return replace(part, memory=replace(memory, **small))  # type: ignore[call-arg, arg-type]

    return change_parts(method, smaller)


def vary_options(method: Method, count: int) -> list[Method]:
    """Copies of a method whose `PerRun` options differ, as far as the method accepts them."""
    return [method] + [
        change_parts(method, lambda part, n=number: scale_floats(part, 0.5**n, declared=True))
        for number in range(1, count)
    ]


def scale_floats(part: Method, factor: float, *, declared: bool = False) -> Method:
    """The method with other floats: all that it accepts, or those `declared` as `PerRun`."""
    names = per_run_fields(type(part))
    for field in fields(part):
        value = getattr(part, field.name)
        if field.init and isinstance(value, float) and (field.name in names or not declared):
            part = replace_field(part, field.name, value * factor)
    return part


def replace_field(part: Method, name: str, value: Any) -> Method:
    """The method with another value of a field, or as it is where that is refused."""
    try:
        return replace(part, **{name: value})
    except BadArgument:  # outside what the field allows
        return part


# A group of runs stopped in the middle of a task, to look at single steps.


@dataclass
class TaskStart:
    """Learners that have entered a task, and the batches of its first epoch."""

    method: Method
    learners: list[RunLearner]
    trainer: LockstepTrainer
    rows: StepRows

    @property
    def batch(self) -> Batch:
        """The first batch of all runs, [R, ...] leaves."""
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """The batches of all runs, step by step."""
        for step in range(self.rows.live.shape[1]):
            rows = self.trainer.draw(select_step(self.rows, torch.tensor([step])))
            batch = self.trainer.collate(rows)
            yield self.trainer.set_time(batch)

    def own_batches(self, run: int = 0) -> Iterator[Batch]:
        """The batches of one run."""
        for batch in self.batches():
            yield batch.map(lambda leaf: leaf[run])

    def net(self, batch: Batch, run: int = 0, vector: Tensor | None = None) -> FunctionalNet:
        """A run's networks in training mode, as a loss sees them."""
        one = self.learners[run]
        weights = one.vector if vector is None else vector
        net = FunctionalNet(one.networks, weights, one.buffers, key=batch.key)
        if one.latents:
            net.main = "net.top"
        return net

    def gradient(self, batch: Batch, note: Callable[[Batch], None] = lambda _: None) -> Gradient:
        """What a `gradient` of the first run is given; `note` sees the batches it asks for."""
        one = self.learners[0]

        def of(which: Batch, names: tuple[str, ...], elsewhere: Tensor | None) -> Tensor:
            note(which)
            weights = one.vector if elsewhere is None else elsewhere
            weights = weights.clone().requires_grad_(True)
            terms = self.method.loss(self.net(which, vector=weights), which, one.state)
            total = sum(t for name, t in terms.items() if not names or name in names)
            found: Tensor = torch.autograd.grad(torch.as_tensor(total), weights)[0]
            return found

        return Gradient(of, one.vector, one.layout, lambda vector: self.net(batch, vector=vector))

    def update(self, number: int, due: Callable[[int], bool]) -> Update:
        """An update of the first run, as a `Method.step` is given it."""
        batch, before = next(self.own_batches()), self.learners[0].vector
        asked = self.gradient(batch)
        if self.method.implements("gradient"):
            self.method.gradient(asked, batch, self.learners[0].state)
        grad = torch.linspace(-1, 1, len(before), dtype=before.dtype)
        at = torch.tensor(number)
        return Update(
            before, before - 0.01 * grad, grad, at, due, batch.key, batch.times[1:], asked.kept,
            self.learners[0].layout,
        )  # fmt: skip


def enter_task(
    method: Method,
    *,
    stage: int = 1,
    model: str = "plain",
    training: Training = EXACT,
    runs: int = 2,
    on: Sequence[Stream] | None = None,
) -> TaskStart:
    """Train up to a task, enter it, sample its first epoch; `on` gives other streams."""
    group = make_runs(method, on or make_streams()[:runs], model=model, training=training)
    engine = Engine(group, device="cpu", together=True)
    learners, methods = [engine.learner(run) for run in group], [run.method for run in group]
    for past in range(stage):  # one by one: whether the method maps is another question
        for learner in learners:
            train_task([learner], [method], training, past, mapped=False)
    open_task(learners, methods, training, stage)
    encode_latents(learners, method, stage)
    sampler = build_sampler(learners, method, training)
    rows = sampler.epoch(0)
    trainer = LockstepTrainer(learners, methods, training, slots=sampler.slots)
    if sampler.admits:
        drawn = sampler.drawn_rows()
        trainer.draw_from(Draws(sampler.slots, sampler.draws, *drawn, sampler.pair))
    trainer.load(rows, fixed=False)
    steps = rows.live.sum(1)
    trainer.plan(steps, steps)
    return TaskStart(method, learners, trainer, rows)


def spy_on_host_verbs(method: Method, around: Callable[..., Any]) -> Method:
    """A copy of a method whose host verbs go through ``around(name, original, learner, task)``."""

    def watch(name: str) -> Callable[..., Any]:
        return lambda original, *args: around(name, original, *args)

    def phases(original: Callable[..., Any], stage: int) -> tuple[Phase, ...]:
        return tuple(
            replace(one, before=partial(watch("before"), one.before)) if one.before else one
            for one in original(stage)
        )

    for name in ("start", "finish"):
        if method.implements(name):
            method = spy_on(method, name, watch(name))
    return spy_on(method, "phases", phases) if method.implements("phases") else method


def spy_on(method: Method, verb: str, around: Callable[..., Any]) -> Method:
    """A copy of a method one of whose verbs goes through ``around(original, *args)``."""
    kind = type(method)
    written = inspect.getattr_static(kind, verb)

    def passed_on(self: Any, *args: Any) -> Any:
        return around(written.__get__(self, type(self)), *args)

    spy = copy.copy(method)
    object.__setattr__(
        spy, "__class__", type(kind.__name__, (kind,), {verb: passed_on, "_is_spy": True})
    )
    return spy
