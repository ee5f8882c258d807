"""What every method refuses when it is made, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import pytest
import torch

import engram
from engram import methods
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.method import Method, Phase

MADE: list[Method] = [
    getattr(methods, name)()
    for name in methods.__all__
    if isinstance(getattr(methods, name), type)
    and issubclass(getattr(methods, name), Method)
    and name not in ("Method", "Join")
]
FLOATS = [
    (one, f.name) for one in MADE for f in fields(one) if isinstance(getattr(one, f.name), float)
]
KEEPERS = [one for one in MADE if any(f.name == "memory" for f in fields(one))]


def name_of(value: object) -> str:
    return type(value).__name__ if isinstance(value, Method) else str(value)


def test_there_is_something_to_test():
    assert {"ER", "ICaRL", "GEM", "AGEM", "NaiveRehearsal", "EWC", "RWalk"} <= set(
        map(name_of, KEEPERS)
    )
    assert len(FLOATS) > 10


@pytest.mark.parametrize("method", KEEPERS, ids=name_of)
@pytest.mark.parametrize("wrong", [5, "herding", {"total": 5}, Memory], ids=str)
def test_a_memory_must_be_one(method, wrong):
    with pytest.raises(BadArgument, match="memory: expected a Memory such as"):
        type(method)(memory=wrong)
    steps = method.memory is not None and method.memory.policy in ("admit", "reservoir")
    right = Memory(total=9, policy=method.memory.policy) if steps else Memory(per_class=2)
    assert type(method)(memory=right).memory == right


@pytest.mark.parametrize(("method", "name"), FLOATS, ids=name_of)
@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan, "1", None], ids=str)
def test_numbers_must_be_finite(method, name, wrong):
    with pytest.raises(BadArgument, match=f"{name}: expected"):
        type(method)(**{name: wrong})


@pytest.mark.parametrize("shared_by", ["class", "task"])
def test_a_budget_for_all_is_an_upper_bound_and_one_per_class_or_task_is_not(shared_by):
    stream = engram.class_incremental(engram.load("blobs", classes=4, per_class=10))
    method = methods.ER(memory=Memory(total=10**6, shared_by=shared_by))
    result = engram.run(stream, method=method, epochs=1, device="cpu")
    assert result.cost()["memory_items"].tolist() == [len(stream.data.train)]
    with pytest.raises(BadArgument, match=r"memory\.per_class: expected at most 8"):
        engram.run(stream, method=methods.ER(memory=Memory(per_class=9)), device="cpu")
    with pytest.raises(BadArgument, match=r"memory\.per_task: expected at most 16"):
        engram.run(stream, method=methods.ER(memory=Memory(per_task=17)), device="cpu")


def odd(verb, answer):
    """A method one of whose verbs returns, or leaves in its learner, what it should not."""
    return dataclass(frozen=True)(type("Odd", (Method,), {verb: answer}))()


def leave(name, value):
    return lambda self, learner, task: setattr(learner, name, value)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("verb", "answer", "complaint"),
    [
        ("start", lambda self, *_: {"a": torch.ones(2)}, r"start: expected nothing to be returned"),
        ("finish", lambda self, *_: 0, r"finish: expected nothing to be returned"),
        ("start", leave("state", {"n": 3}), r"learner.state after Odd.*a dict of tensors.*'n': 3"),
        ("finish", leave("state", None), r"learner.state after Odd.*a dict of tensors.*got None"),
        ("start", leave("vector", torch.ones(2)), r"learner.vector after Odd.*a tensor \(2,\)"),
        ("loss", lambda self, net, batch, _: {"a": net.task(batch)[None]}, r"tensors without axes"),
        ("gradient", lambda self, *_: None, r"Odd.gradient: expected a vector"),
        (
            "gradient",
            lambda self, grad, *_: grad.vector[:2],
            r"Odd.gradient: .*got 'a tensor \(2,\)",
        ),
        ("gradient", lambda self, grad, *_: grad.vector, r"Odd.gradient: expected grad to be call"),
        (
            "answer",
            lambda self, net, x, *_: net(x)._replace(logits=net(x).logits[:, :1]),
            r"Odd.answer: expected an Output .*with logits \(\d+, 6\)",
        ),
        ("phases", lambda self, *_: Phase(), r"Odd.phases\(0\): expected a tuple of Phase"),
        ("replay", lambda self, *_: None, r"Odd.replay\(0\): expected a ReplaySpec"),
        ("networks", lambda self, *_: None, r"Odd.networks: expected \{name: module\}"),
        (
            "networks",
            lambda self, *_: {"more": torch.nn.Sequential(torch.nn.LazyLinear(3))},
            r"Odd.networks: expected layers of known sizes .*a lazy layer, 'more",
        ),
        ("prologue", lambda self, *_: 3, r"Odd.prologue: expected a Prologue, a RootFile or None"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_verbs_return_is_looked_at_at_once(verb, answer, complaint, together):
    if verb in ("start", "finish"):
        answer.__name__ = verb
    stream = engram.class_incremental(engram.load("blobs", classes=6, per_class=10))
    with pytest.raises(BadArgument, match=complaint):
        engram.run(
            stream, method=odd(verb, answer), seeds=2, together=together, epochs=1, device="cpu",
            model={"name": "mlp", "hidden": (4,)},
        )  # fmt: skip
