"""The form of a method: a frozen dataclass, known verbs and declarations, valid returns, finite
numbers.

What fails here would fail in most other checks as well, so it is named here and they are not run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engram.checks.check_report import BrokenRule, find_place, require
from engram.checks.toy_runs import (
    EXACT,
    all_finite,
    choose_model,
    make_runs,
    make_streams,
    sample_shape,
    shrink_settings,
    spy_on,
    spy_on_host_verbs,
    train_runs,
)
from engram.engine.evaluation import MOST_GROWTH as MEASURE
from engram.engine.evaluation import is_penalty
from engram.errors import AccessError, BadArgument
from engram.experiments.build_methods import build_method, plain_method
from engram.learner.parameter_layout import Network
from engram.learner.tensor_tree import flatten, leaves, tree_shapes
from engram.memory import Exemplars, Memory
from engram.methods.join import Join
from engram.methods.method import (
    ARGMAX_OR_THRESHOLD,
    VERBS,
    Method,
    Phase,
    Prologue,
    ReplaySpec,
    RootFile,
    describe_wrong_arguments,
)
from engram.models.block_views import outline_blocks
from engram.models.build import build, check_head
from engram.models.classifier import Classifier
from engram.models.forward_pass import Output
from engram.streams.stream_outline import LatentOutline, StreamOutline

SINGLE = replace(EXACT, precision="float32", epochs=1)
DIVERGED_TERM = (
    1e20  # a loss term of this size has diverged, though float64 could go on for a while
)
LARGEST_GROWTH = 1e3  # a term that grows by more than this in one step did not get there by steps


# -- return values ---------------------------------------------------------------------------------
def check_verbs_return_what_they_should(method: Method) -> None:
    """In a short run, every verb returns what the contract requires."""
    _inspect_networks(method)
    try:
        train_runs(make_runs(watch_verbs(shrink_settings(method)), make_streams()[:1]))
    except AccessError:
        return  # reported by the next check
    except BadArgument as error:
        if not str(error).startswith("exemplars:") or "expected Exemplars" in str(error):
            raise  # errors about the budget have their own check


def check_single_precision(method: Method) -> None:
    """The same holds in float32, the default precision of runs."""
    after = train_runs(
        make_runs(watch_verbs(shrink_settings(method)), make_streams()[:1], training=SINGLE)
    )
    last = after[max(after)]
    require(last.vector.dtype == torch.float32, f"weights have become {last.vector.dtype}")


def watch_verbs(method: Method) -> Method:
    """Wrap a method so that the return values of its verbs are checked."""
    kind = type(method)

    def around(verb: str, look: Any, original: Callable[..., Any], *args: Any) -> Any:
        answer = original(*args)
        if fault := look(answer, *args):
            raise BrokenRule(find_place(kind, "phases" if verb == "before" else verb) + fault)
        return answer

    for verb, look in INSPECTIONS.items():
        if method.implements(verb):
            method = spy_on(method, verb, partial(around, verb, look))
    return spy_on_host_verbs(
        method, lambda verb, *args: around(verb, partial(_inspect_host, verb), *args)
    )


def _inspect_terms(terms: Any, *_: Any) -> str:
    if not isinstance(terms, dict) or not terms:
        return f"loss must return {{name: term}}, it returns {_kind(terms)}"
    for name, term in terms.items():
        if not isinstance(name, str):
            return f"names of loss terms are strings, not {name!r}"
        if not isinstance(term, Tensor) or term.ndim:
            return f"term {name!r} of loss must be a tensor without axes, it is {_kind(term)}"
    return ""


def _inspect_remembered(found: Any, _net: Any, batch: Any, _state: Any) -> str:
    rows = len(batch.w)
    good = isinstance(found, dict) and all(
        isinstance(value, Tensor) and value.ndim and len(value) == rows for value in found.values()
    )
    if good:
        return ""
    held = {k: _kind(v) for k, v in found.items()} if isinstance(found, dict) else _kind(found)
    return f"remember must return {{name: values}} of {rows} rows each, it returns {held}"


def _inspect_direction(found: Any, _grad: Any, _batch: Any, _state: Any) -> str:
    one_axis = isinstance(found, Tensor) and found.ndim == 1
    return "" if one_axis else f"gradient must return a vector [P], it returns {_kind(found)}"


def _inspect_step(found: Any, update: Any, state: Any) -> str:
    moved, after = found if isinstance(found, tuple) and len(found) == 2 else (None, found)
    if moved is not None and getattr(moved, "shape", None) != update.after.shape:
        return f"step must return weights [P] with the state, it returns {_kind(moved)}"
    if isinstance(after, dict) and _all_tensors(after) and tree_shapes(after) == tree_shapes(state):
        return ""
    held = {k: _kind(v) for k, v in after.items()} if isinstance(after, dict) else _kind(after)
    return (
        "step must return a state with the keys, shapes and dtypes it was given, "
        f"{ {k: _kind(v) for k, v in state.items()} }; it returns {held}"
    )


def _inspect_answer(found: Any, net: Any, x: Any, *_more: Any) -> str:
    wanted = len(x), net.networks.classes
    if not isinstance(found, Output):
        return f"answer must return an Output, as net(x) is one, it returns {_kind(found)}"
    good = isinstance(found.logits, Tensor) and tuple(found.logits.shape) == wanted
    return "" if good else (
        f"the logits of answer must be [rows, classes] {wanted}, they are {_kind(found.logits)}"
    )  # fmt: skip


def _inspect_host(verb: str, found: Any, learner: Any, _task: Any) -> str:
    state, kept, weights = learner.state, learner.exemplars, learner.vector
    if found is not None:
        return f"{verb} edits the learner and returns nothing, it returns {_kind(found)}"
    if not isinstance(state, dict) or not _all_tensors(state):
        return (
            f"after {verb}, learner.state must be a dict of tensors (or of dicts and tuples of "
            f"them), it holds {_kind(_first_odd_leaf(state))}: only tensors can be "
            "stacked, saved, mapped"
        )
    if not isinstance(kept, Exemplars):
        return (
            f"after {verb}, learner.exemplars must be what Memory.update returns, it is "
            f"{_kind(kept)}"
        )
    if not isinstance(weights, Tensor) or weights.shape != learner.free.shape:
        want = tuple(learner.free.shape)
        return f"after {verb}, learner.vector must have the shape {want}, it is {_kind(weights)}"
    return ""


INSPECTIONS: dict[str, Callable[..., str]] = {
    "loss": _inspect_terms,
    "remember": _inspect_remembered,
    "gradient": _inspect_direction,
    "step": _inspect_step,
    "answer": _inspect_answer,
}


def _inspect_networks(method: Method) -> None:
    stream = make_streams()[0]

    def build_model() -> Classifier:
        return build(
            choose_model(method, "plain"), sample_shape=sample_shape(),
            classes=len(stream.order), seed=0,
        )  # fmt: skip

    blocks = outline_blocks(build_model().backbone)
    outline = StreamOutline.from_stream(stream).with_features(
        16 if blocks is None else blocks.width, LatentOutline((16,), False), build_model, blocks
    )
    found = method.networks(outline)
    place = find_place(type(method), "networks")
    named = isinstance(found, Mapping) and all(
        isinstance(name, str) and isinstance(module, nn.Module | Network)
        for name, module in found.items()
    )
    require(named, f"{place}networks must return {{name: module}}, it returns {_kind(found)}")
    require("net" not in found, f"{place}'net' is the main network: give yours another name")


def _all_tensors(tree: Any) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in leaves(tree))


def _first_odd_leaf(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return next(leaf for leaf in leaves(state) if not isinstance(leaf, Tensor))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


# -- state -----------------------------------------------------------------------------------------
def check_state_has_one_shape(method: Method) -> None:
    """Runs whose tasks differ in numbers of rows have state of the same shapes."""
    on = make_streams()[:2]
    trained = train_runs(make_runs(shrink_settings(method), on, training=replace(EXACT, epochs=1)))
    for (run, stage), after in trained.items():
        mine, first = flatten(after.state), flatten(trained[0, stage].state)
        for name in sorted(mine.keys() | first.keys()):
            here, there = (tree.get(name) for tree in (mine, first))
            if tree_shapes(here) != tree_shapes(there):
                rows = [len(on[place].tasks[stage].train) for place in (0, run)]
                raise BrokenRule(
                    f"after task {stage}, state[{name!r}] is {_kind(there)} in a run whose task "
                    f"has {rows[0]} rows, and {_kind(here)} in one with {rows[1]}: runs that "
                    "train together are stacked, so its shape must not depend on the rows "
                    "(what is kept of single rows belongs into the memory)"
                )


# -- divergence ------------------------------------------------------------------------------------
def check_stays_finite(method: Method) -> None:
    """On harmless data no loss term, weight, state or score diverges."""
    seen: list[dict[str, float]] = []  # the terms of every step so far
    stages: list[int] = []

    def around(original: Callable[..., Any], net: Any, batch: Any, state: Any) -> Any:
        terms = original(net, batch, state)
        seen.append({name: float(term.detach()) for name, term in terms.items()})
        stages.append(int(batch.now))
        return terms

    trained = train_runs(
        make_runs(spy_on(shrink_settings(method), "loss", around), make_streams()[:1])
    )
    for step, terms in enumerate(seen):
        for name, value in terms.items():
            if not abs(value) < DIVERGED_TERM:
                before = seen[step - 1].get(name, 0.0) if step else 0.0
                raise BrokenRule(_divergence(name, value, before, seen, stages[step], step))
    if any(after.diverged >= 0 and all_finite(after.vector) for after in trained.values()):
        sizes = [(abs(v), step, n) for step, terms in enumerate(seen) for n, v in terms.items()
                 if not is_penalty(n)]  # fmt: skip
        _, step, name = max(sizes)  # the engine has stopped the run before any number broke
        before = seen[step - 1].get(name, 0.0) if step else 0.0
        if abs(seen[step][name]) > MEASURE:
            raise BrokenRule(_divergence(name, seen[step][name], before, seen, stages[step], step))
    for (_, stage), after in trained.items():
        parts = {**after.tensors, "scores": torch.as_tensor(after.scores)}
        odd = [name for name, part in parts.items() if not all_finite(part)]
        require(
            not odd,
            f"{' and '.join(odd)} hold infinite numbers or NaN after task {stage}, while the loss "
            f"is finite: look at {_list_writing_verbs(method)}",
        )


def _divergence(
    name: str, value: float, before: float, seen: list[dict[str, float]], stage: int, step: int
) -> str:
    text = f"term {name!r} is {value:.3g} in step {step} (task {stage}) on harmless data"
    first = next((abs(t[name]) for t in seen if t.get(name)), 0.0)
    if abs(before) > LARGEST_GROWTH * max(first, 1.0):
        return (
            f"{text}, after {before:.1e} in the step before: it grows from step to step, so lower "
            "its strength (SGD, learning rate 0.02, inputs of size 3; float fields above 10 are "
            "0.1 here)"
        )
    return (
        f"{text}, after {before:.3g} in the step before: look for a division by 0, the logarithm "
        "of 0, or an exponential that overflows"
    )


def _list_writing_verbs(method: Method) -> str:
    verbs = [v for v in ("start", "phases", "gradient", "step", "finish", "answer")
             if method.implements(v)]  # fmt: skip
    return ", ".join(verbs) or "the networks"


# The class: a frozen dataclass of plain hyper-parameters.


READS = ("own", "past")


def check_frozen_dataclass_with_defaults(method: Method) -> None:
    """A method is a frozen dataclass, and every field has a default."""
    kind = type(method)
    name = kind.__name__
    own = is_dataclass(kind) and ("__dataclass_fields__" in vars(kind) or not _new_fields(kind))
    require(own, f"decorate {name} with @dataclass(frozen=True, kw_only=True)")
    frozen = getattr(kind, "__dataclass_params__").frozen  # noqa: B009 - unknown to type checkers
    require(frozen, f"{name} can be changed: write @dataclass(frozen=True, kw_only=True)")
    if isinstance(method, Join):  # it has parts in place of defaults
        return
    bare = [
        f.name
        for f in fields(method)
        if f.init and f.default is MISSING and f.default_factory is MISSING
    ]
    require(not bare, f"give every field a default; {', '.join(bare)} has none")
    try:
        hash(method)
    except TypeError as error:
        held = [f.name for f in fields(method) if not _hashable(getattr(method, f.name))]
        raise BrokenRule(
            f"{', '.join(held)} can be changed ({error}): give a tuple in place of a list"
        ) from error


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _new_fields(kind: type) -> set[str]:
    known = {f.name for f in fields(kind)} if is_dataclass(kind) else set()
    return set(vars(kind).get("__annotations__", {})) - known


def check_recipe_round_trip(method: Method) -> None:
    """Written into a recipe and read back, the method is the same."""
    plain = plain_method(method)
    again = build_method(plain)
    require(
        again == method,
        f"a recipe gives back {again!r} and not {method!r}: fields must be numbers, strings, "
        "booleans, tuples of them, or a Memory",
    )


def check_declarations(method: Method) -> None:
    """`replay`, `phases`, `reads`, `head` and `decides` have valid values."""
    require(method.reads in READS, f"reads must be one of {READS}, it is {method.reads!r}")
    try:
        check_head(method.head)
    except BadArgument as error:
        raise BrokenRule(str(error)) from error
    ways = isinstance(method.decides, tuple) and set(method.decides) <= set(ARGMAX_OR_THRESHOLD)
    require(
        ways and "argmax" in method.decides,
        f"decides must be ('argmax',) or {ARGMAX_OR_THRESHOLD}, it is {method.decides!r}",
    )
    held = [n for n, value in vars(method).items() if isinstance(value, Memory)]
    require(
        not held or method.memory is not None,
        f"the field {', '.join(held)} holds a Memory, but the budget is read from a field called "
        "memory: rename it",
    )
    for stage in range(3):
        first, second = method.replay(stage), method.replay(stage)
        require(
            isinstance(first, ReplaySpec),
            f"replay({stage}) must return a ReplaySpec, not {first!r}",
        )
        require(first == second, f"replay({stage}) changes from call to call: return a constant")
        past = first.kind == "past" and method.reads != "past"
        require(not past, 'a replay of kind "past" needs reads = "past"')
        _check_phases(method, stage)
    begun = method.prologue()
    require(
        begun is None or isinstance(begun, (Prologue, RootFile)),
        f"{find_place(type(method), 'prologue')}prologue must return a Prologue, a RootFile or "
        f"None, not {begun!r}",
    )


def _check_phases(method: Method, stage: int) -> None:
    """Raise unless `phases` returns a tuple of `Phase`."""
    found: Any = method.phases(stage)
    listed = isinstance(found, (tuple, list)) and all(isinstance(one, Phase) for one in found)
    require(
        listed and bool(found),
        f"{find_place(type(method), 'phases')}phases({stage}) must return a tuple of Phase, not "
        f"{found!r}",
    )


# Names and arguments of verbs.


# names that the engine looks up, and a test of their values
DECLARATION_CHECKS: dict[str, Any] = {
    "reads": lambda value: value == "past",
    "head": lambda value: value == "cosine",
    "grows": lambda value: isinstance(value, bool),
}
NEAR_SIMILARITY = 0.75  # similarity of names, 1 for equal ones


def check_verbs_are_known(method: Method) -> None:
    """Verbs have the contract's names and arguments, and the method defines at least one."""
    name = type(method).__name__
    for word, value in _own_names(method):
        meant = _find_intended(method, word, value)
        require(
            not meant,
            f"{find_place(type(method), word)}the engine never looks at {word!r}, did you mean "
            f"{meant!r}? If it is a helper of yours, name it '_{word}'",
        )
    for verb in VERBS:
        fault = describe_wrong_arguments(type(method), verb)
        require(not fault, find_place(type(method), verb) + fault)
    library = type(method).__module__.startswith("engram.")
    own = any(method.implements(verb) for verb in VERBS) or method.head != Method().head
    require(
        own or library,
        f"{name} overrides no verb, so it is plain finetuning: write at least one of "
        f"{', '.join(VERBS)}",
    )


def _own_names(method: Method) -> Iterator[tuple[str, Any]]:
    """Iterate over public names that the author's classes add, with their values."""
    for kind in type(method).__mro__:
        if kind is object or kind.__module__.startswith("engram."):
            continue
        for word, value in vars(kind).items():
            if not word.startswith("_") and not hasattr(Method, word):
                yield word, value


def _find_intended(method: Method, word: str, value: Any) -> str:
    """Find the verb or declaration that a similar name was meant to be, if not defined too."""
    if isinstance(value, type):
        return ""
    if callable(value) or isinstance(value, staticmethod | classmethod):
        missing = [verb for verb in VERBS if not method.implements(verb)]
        inside = [verb for verb in missing if verb in word.lower().split("_")]
    else:
        missing = [name for name, fits in DECLARATION_CHECKS.items() if fits(value)]
        missing, inside = [n for n in missing if n not in vars(type(method))], []
    near = difflib.get_close_matches(word.lower(), missing, n=1, cutoff=NEAR_SIMILARITY)
    return next(iter(inside + near), "")
