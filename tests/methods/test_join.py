from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from engram.engine.engine import Engine
from engram.engine.hyperparameters import varying_values
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.tensor_tree import flatten
from engram.memory import Memory
from engram.methods.er import ER
from engram.methods.finetune import Finetune
from engram.methods.icarl import ICaRL
from engram.methods.join import Join
from engram.methods.joint import Joint
from engram.methods.lwf import LwF
from engram.methods.method import Gradient, Method, State, Terms, Update
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams import Stream, Task, class_incremental, task_incremental
from tests.methods.rehearsal import SGD, TINY, Normed, clouds, final, lockstep_gap, spied, train

STREAM = class_incremental(clouds())
SMALL = Memory(total=18)


@dataclass(frozen=True, kw_only=True)
class Pull(Method):
    """Stay near the weights of the task before, and count the steps."""

    strength: PerRun = 0.1

    def start(self, learner: RunLearner, task: Task) -> None:
        steps = learner.state.get("steps", torch.zeros(()))
        learner.state = {"steps": steps}
        if learner.stage:
            learner.state = {"steps": steps, "anchor": learner.vector.clone()}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        terms = {"task": net.task(batch)}
        if "anchor" in state:
            terms["penalty"] = self.strength * (net.vector - state["anchor"]).square().sum()
        return terms

    def step(self, update: Update, state: State) -> State:
        return {**state, "steps": state["steps"] + 1}


@dataclass(frozen=True, kw_only=True)
class Both(Pull):
    """`Pull` and replay in one method, written by hand."""

    memory: Memory = SMALL

    def replay(self, stage: int) -> Any:
        return ER().replay(stage)

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)


@dataclass(frozen=True, kw_only=True)
class Half(Method):
    """Half the gradient."""

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        return 0.5 * grad(batch)


@dataclass(frozen=True, kw_only=True)
class Extra(Method):
    """A further network."""

    def networks(self, stream: Stream) -> dict[str, nn.Module]:
        return {"generator": nn.Linear(2, 2)}


@dataclass(frozen=True, kw_only=True)
class Backwards(Method):
    head: ClassVar[str] = "cosine"

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        return output._replace(logits=-output.logits)


@dataclass(frozen=True, kw_only=True)
class Warm(Method):
    head: ClassVar[Any] = {"name": "cosine", "scale": 10}


@dataclass(frozen=True, kw_only=True)
class Other(Method):
    head: ClassVar[Any] = {"name": "cosine", "scale": 4}


@dataclass(frozen=True, kw_only=True)
class Bare(Method):
    head: ClassVar[Any] = {"name": "linear", "bias": False}


SINGLE = [
    Finetune(),
    Pull(),
    ER(memory=SMALL, reduce="sum"),
    LwF(),
    Half(),
    Joint(),
    ICaRL(memory=Memory(per_class=3, policy="herding")),
    Backwards(),
]


@pytest.mark.parametrize("method", SINGLE, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_single_part_is_that_method(method: Method, optimizer: str) -> None:
    alone = train(method, STREAM, optimizer=optimizer, model=Normed)
    joined = train(Join(method), STREAM, optimizer=optimizer, model=Normed)
    for a, b in zip(alone, joined, strict=True):
        assert (a.scores == b.scores).all()
    one, other = alone[-1].learner, joined[-1].learner
    assert torch.equal(one.vector, other.vector)
    assert flatten({"0": one.state}).keys() == flatten(other.state).keys()
    assert torch.equal(one.exemplars.rows, other.exemplars.rows)


@pytest.mark.parametrize("method", SINGLE, ids=lambda m: type(m).__name__)
def test_a_single_part_is_that_method_in_lockstep(method: Method) -> None:
    settings = Training(**{**SGD, "optimizer": "adam"})
    found = []
    for one in (method, Join(method)):
        runs = [Run(stream=STREAM, method=one, model=TINY, seed=s, training=settings)
                for s in (0, 1)]  # fmt: skip
        stages = list(Engine(runs, device="cpu", together=True).stages())
        found.append(torch.stack([stage.learner.vector for stage in stages[-2:]]))
    assert torch.equal(*found)


@pytest.mark.parametrize("parts", [(ER(memory=SMALL), Pull()), (Pull(), ER(memory=SMALL))])
def test_joined_is_the_same_as_written_in_one(parts: tuple[Method, ...]) -> None:
    assert torch.equal(final(Join(*parts), STREAM), final(Both(), STREAM))


def test_task_term_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, Join)
    train(Join(ER(memory=SMALL), Pull()), STREAM)
    assert set(seen.terms[0]) == {"task"}
    assert set(seen.terms[-1]) == {"task", "penalty"}
    plain = spied(monkeypatch, ER)
    train(ER(memory=SMALL), STREAM)
    assert seen.values("task", 0) == plain.values("task", 0)


def test_the_part_with_a_memory_brings_the_task_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order: otherwise the plain mean would replace its sum."""
    runs = []
    for parts in (
        (Pull(), ER(memory=SMALL, reduce="sum")),
        (ER(memory=SMALL, reduce="sum"), Pull()),
    ):
        seen = spied(monkeypatch, Join)
        runs.append((final(Join(*parts), STREAM), set(seen.terms[-1])))
        monkeypatch.undo()
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1] == {"task", "memory", "penalty"}


def test_two_penalties_of_one_name_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, Join)
    both = final(Join(Pull(strength=0.2), Pull(strength=0.1)), STREAM)
    assert set(seen.terms[-1]) == {"task", "penalty", "penalty.1"}
    assert (both - final(Pull(strength=0.3), STREAM)).abs().max() < 1e-10


def test_states_are_kept_apart_and_empty_ones_survive() -> None:
    stages = train(Join(Finetune(), Pull(), LwF()), STREAM)
    state = stages[-1].learner.state
    assert state["0"] == {}
    assert state["2"] == {}  # the teacher went with its task
    assert int(state["1"]["steps"]) == sum(stage.steps for stage in stages)
    # a file holds tensors only, so empty states vanish there
    kept = {"1": state["1"]}
    join = Join(Finetune(), Pull(), LwF())
    vector = torch.zeros(3)
    update = Update(vector, vector, vector, torch.tensor(1))
    assert join.step(update, kept)["1"]["steps"] == state["1"]["steps"] + 1
    assert join.step(update, kept).keys() == kept.keys()


@pytest.mark.parametrize(
    "parts, words",
    [
        ((ER(), ER(mix="union")), "memory or replay.*paired.* and .*union"),
        ((ER(), Joint()), "memory or replay.*ER.* and .*Joint"),
        ((Half(), Pull(), Half()), "a gradient.*Half.* and .*Half"),
        ((Backwards(), ICaRL()), "an answer.*Backwards.* and .*ICaRL"),
        ((Backwards(), Warm(), Other()), r"same head.*Warm.*scale=10.* and .*Other.*scale=4"),
        ((Backwards(), Bare()), "same head.*Backwards.*'cosine'.* and .*Bare.*'linear'"),
        ((), "at least one method"),
        ((ER,), "methods such as"),
        (("ER",), "methods such as"),
    ],
)
def test_refused_at_construction(parts: Any, words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        Join(*parts)


def test_what_the_parts_declare() -> None:
    join = Join(Pull(), Joint())
    assert (join.reads, join.head, join.memory) == ("past", "linear", None)
    assert join.replay(1).kind == "past"
    other = Join(Pull(), ER(memory=SMALL), Backwards())
    assert (other.reads, other.head, other.memory) == ("own", "cosine", SMALL)
    assert Join(Pull()).replay(1).kind == "none"
    assert Join(Warm(), Backwards()).head == Join(Backwards(), Warm()).head == Warm.head
    assert set(Join(Pull(), Extra()).networks(STREAM)) == {"generator"}
    with pytest.raises(BadArgument, match="generator"):
        Join(Extra(), Extra()).networks(STREAM)
    assert [verb for verb in ("start", "step", "gradient", "answer") if join.implements(verb)] == [
        "start",
        "step",
    ]


def test_it_is_a_plain_value() -> None:
    join = Join(ER(), Pull(strength=0.5))
    assert join == Join(ER(), Pull(strength=0.5))
    assert hash(join) == hash(Join(ER(), Pull(strength=0.5)))
    assert join != Join(Pull(strength=0.5), ER())
    assert [f.name for f in fields(join)] == ["parts"]
    assert Join(Join(ER(), Pull()), LwF()) == Join(ER(), Pull(), LwF())
    assert repr(Join(Half())) == "Join(parts=(Half(),))"
    described = join.describe()
    assert [part["name"] for part in described["parts"]] == ["ER", "Pull"]
    found = varying_values([join, Join(ER(), Pull(strength=2.0))])
    assert found == {("parts", 1, "strength"): [0.5, 2.0]}
    with pytest.raises(AttributeError):
        join.parts = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        replace(join, memory=SMALL)


@pytest.mark.parametrize(
    "method",
    [
        Join(ER(memory=SMALL), Pull()),
        Join(LwF(), Pull(), Half()),
        Join(ICaRL(memory=Memory(per_class=3, policy="herding")), Pull()),
    ],
    ids=["ER+Pull", "LwF+Pull+Half", "ICaRL+Pull"],
)
def test_lockstep(method: Join) -> None:
    assert lockstep_gap(method) < 1e-10


def test_lockstep_with_strengths_and_own_heads() -> None:
    methods = [Join(ER(memory=SMALL), Pull(strength=s)) for s in (0.0, 0.1, 0.4)]
    assert lockstep_gap(methods, scenario=task_incremental) < 1e-10
