"""The method on trial, tamed: calm, short, with little memory, in variations."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from engram.checks.toys import EXACT
from engram.engine.prologue import streams_of
from engram.engine.run import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.base import Method, Prologue
from engram.methods.join import Join
from engram.streams import Stream


def each_part(method: Method, change: Any) -> Method:
    """The method changed; a Join with each of its parts changed."""
    if isinstance(method, Join):
        return Join(*(change(part) for part in method.parts))
    changed: Method = change(method)
    return changed


def tame(method: Method, training: Training = EXACT) -> Method:
    """The method with every float field above 10 set to 0.1, and with phases that are not long.

    A stiff penalty and a plain gradient step of fixed size explode, whoever wrote the method. And
    a whole number that makes a phase longer than the training's epochs is set to these.
    """

    def calmer(part: Method) -> Method:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.init and isinstance(value, float) and value > 10:
                part = changed(part, field.name, 0.1)
            elif field.init and type(value) is int and value > training.epochs:
                brief = changed(part, field.name, training.epochs)
                part = brief if _lengths(brief) < _lengths(part) else part
        return part

    return short(each_part(method, calmer))


def _lengths(method: Method) -> int:
    """How long the phases of three tasks last, where the method itself says so."""
    phases = [phase for stage in range(3) for phase in method.phases(stage)]
    return sum(phase.epochs + phase.iterations for phase in phases)


SHORT = 10  # steps of a prologue


def short(method: Method) -> Method:
    """The method with a prologue of a few steps, which is enough to see whether it is right."""
    asked = method.prologue()
    if not isinstance(asked, Prologue) or asked.iterations <= SHORT:
        return method
    found, kind = copy.copy(method), _with_short_prologue(cast(Any, type(method)))
    object.__setattr__(found, "__class__", kind)
    return found


def rows_aside(method: Method, stream: Stream, seed: int = 0) -> Tensor:
    """Rows that no task has, because a prologue reads them."""
    run = Run(stream=stream, method=method, seed=seed)
    before = streams_of(run)[1]
    parts = [] if before is None else [task.train for task in before.tasks]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


@cache  # one class for all, so that runs can be told to be alike
def _with_short_prologue(kind: Any) -> Any:
    def prologue(self: Any) -> Any:
        asked: Any = kind.prologue(self)
        return replace(asked, iterations=SHORT) if isinstance(asked, Prologue) else asked

    return type(kind.__name__, (kind,), {"prologue": prologue, "__module__": kind.__module__})


def tight(method: Method) -> Method:
    """The method with a memory so small that its budget cuts."""
    sizes = {"total": 12, "per_class": 2, "per_task": 3}

    def smaller(part: Method) -> Method:
        memory = getattr(part, "memory", None)
        if not isinstance(memory, Memory):
            return part
        given = {k: v for k, v in sizes.items() if getattr(memory, k) is not None}
        return replace(part, memory=replace(memory, **given))  # type: ignore[call-arg, arg-type]

    return each_part(method, smaller)


def varied(method: Method, count: int) -> list[Method]:
    """Copies of a method whose float fields differ, as far as the method accepts them."""
    found = [method]
    for number in range(1, count):
        found.append(each_part(method, lambda part, n=number: _scaled(part, 0.5**n)))
    return found


def _scaled(part: Method, factor: float) -> Method:
    for field in fields(part):
        value = getattr(part, field.name)
        if field.init and isinstance(value, float):
            part = changed(part, field.name, value * factor)
    return part


def changed(part: Method, name: str, value: Any) -> Method:
    """The method with another value of a field, or as it is where that is refused."""
    try:
        return replace(part, **{name: value})
    except BadArgument:  # outside what the field allows
        return part
