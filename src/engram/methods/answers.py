"""What verbs take and return, looked at where the engine calls them: one clear line, not a bug."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from engram.errors import BadArgument, bad
from engram.learner.network import MethodNetworks, Network, modules_of
from engram.methods.base import Method, Phase, Prologue, ReplaySpec, RootFile, State, Terms
from engram.models.output import Output

VERBS = tuple(
    name
    for name, value in vars(Method).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in ("implements", "describe")
)


_SOUND = WeakSet[type]()  # classes whose verbs were looked at: a study has thousands of runs


def wrong_arguments(kind: type[Method], verb: str) -> str:
    """What is wrong with the arguments of a class's verb, or nothing.

    Examples
    --------
    >>> class Short(Method):
    ...     def loss(self, net, batch): ...
    >>> wrong_arguments(Short, "loss")
    'loss is called with (net, batch, state), it takes (net, batch)'
    """
    wanted = list(inspect.signature(getattr(Method, verb)).parameters)[1:]
    call = f"({', '.join(wanted)})"
    written = inspect.getattr_static(kind, verb)
    bound = getattr(kind, verb)
    if not callable(bound):
        return f"{verb} must be a function of {call}"
    given = inspect.signature(bound)
    if not isinstance(written, staticmethod | classmethod):
        given = given.replace(parameters=list(given.parameters.values())[1:])
    try:
        given.bind(*wanted)
    except TypeError:
        return f"{verb} is called with {call}, it takes {given}"
    return ""


def check_arguments(method: Method) -> None:
    """Refuse a method one of whose verbs cannot be called as the engine calls it."""
    kind = type(method)
    if kind in _SOUND:
        return
    for verb in VERBS:
        if fault := wrong_arguments(kind, verb):
            raise BadArgument(f"method: {kind.__name__}.{fault}")
    _check_declared(method)
    _SOUND.add(kind)


def _check_declared(method: Method) -> None:
    """Refuse declarations of the first two tasks that are of another kind than they should be."""
    name = type(method).__name__
    for stage in (0, 1):
        replay, phases = method.replay(stage), method.phases(stage)
        if not isinstance(replay, ReplaySpec):
            raise bad(f"{name}.replay({stage})", "a ReplaySpec to be returned", replay)
        listed = isinstance(phases, Sequence) and all(isinstance(one, Phase) for one in phases)
        if not listed:
            raise bad(f"{name}.phases({stage})", "a tuple of Phase to be returned", phases)
    before = method.prologue()
    if before is not None and not isinstance(before, Prologue | RootFile):
        raise bad(f"{name}.prologue", "a Prologue, a RootFile or None to be returned", before)


def named_terms(method: Method, terms: Any) -> Terms:
    """What `loss` returned, if it is named terms."""
    if isinstance(terms, dict) and terms and all(map(_is_number, terms.values())):
        return terms
    raise bad(
        f"{type(method).__name__}.loss", "{name: term}, terms being tensors without axes", terms
    )


def _is_number(term: Any) -> bool:
    return isinstance(term, Tensor) and term.ndim == 0


def direction(method: Method, found: Any, vector: Tensor, asked: bool) -> Tensor:
    """What `gradient` returned, if it can be one, and was made with a gradient of the batch."""
    where = f"{type(method).__name__}.gradient"
    if not isinstance(found, Tensor) or found.shape != vector.shape:
        got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else found
        raise bad(where, f"a vector {tuple(vector.shape)} to be returned", got)
    if not asked:
        raise bad(where, "grad to be called with the batch it was given", "no such call")
    return found


def class_scores(method: Method, output: Output, state: State) -> Tensor:
    """What `scores` returns, if it is a score for each row and class."""
    found: Any = method.scores(output, state)
    if isinstance(found, Tensor) and found.shape == output.logits.shape:
        return found
    wanted = f"scores {tuple(output.logits.shape)} to be returned, [rows, classes]"
    got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else found
    raise bad(f"{type(method).__name__}.scores", wanted, got)


def own_networks(method: Method, found: Any) -> MethodNetworks:
    """What `networks` returned, if it is modules by name."""
    where = f"{type(method).__name__}.networks"
    if not isinstance(found, Mapping) or not all(
        isinstance(one, nn.Module | Network) for one in found.values()
    ):
        raise bad(where, "{name: module} to be returned", found)
    for name, module in modules_of(found).items():
        for path, weight in module.named_parameters(name):
            if isinstance(weight, nn.parameter.UninitializedParameter):
                wanted = "layers of known sizes (stream.features is the width of the features)"
                raise bad(where, wanted, f"a lazy layer, {path.rpartition('.')[0]!r}")
    return found


def next_state(method: Method, verb: str, state: Any) -> State:
    """What `step` or `interval` returned, if it can be a state."""
    if isinstance(state, dict):
        return state
    raise bad(f"{type(method).__name__}.{verb}", "a state to be returned, a dict", state)
