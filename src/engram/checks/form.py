"""What a method is: a frozen dataclass of plain hyper-parameters."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from engram.checks.explain import place_of
from engram.checks.report import Broken, require
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.base import EITHER, Method, Phase, Prologue, ReplaySpec, RootFile, pace_of
from engram.models.build import check_head
from engram.recipes.names import build_method, plain_method

READS = ("own", "past")


def check_frozen_dataclass_with_defaults(method: Method) -> None:
    """A method is a frozen dataclass, and every field has a default."""
    kind = type(method)
    name = kind.__name__
    own = is_dataclass(kind) and ("__dataclass_fields__" in vars(kind) or not _new_fields(kind))
    require(own, f"decorate {name} with @dataclass(frozen=True, kw_only=True)")
    frozen = getattr(kind, "__dataclass_params__").frozen  # noqa: B009 - unknown to type checkers
    require(frozen, f"{name} can be changed: write @dataclass(frozen=True, kw_only=True)")
    if hasattr(method, "parts"):  # a composition has parts in place of defaults
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
        raise Broken(
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
    """`replay`, `phases`, `reads`, `head`, `decides` and `pace` have values the engine knows."""
    require(method.reads in READS, f"reads must be one of {READS}, it is {method.reads!r}")
    try:
        check_head(method.head)
    except BadArgument as error:
        raise Broken(str(error)) from error
    ways = isinstance(method.decides, tuple) and set(method.decides) <= set(EITHER)
    require(
        ways and "argmax" in method.decides,
        f"decides must be ('argmax',) or {EITHER}, it is {method.decides!r}",
    )
    pace_of(method)
    held = [n for n, value in vars(method).items() if isinstance(value, Memory)]
    require(
        not held or method.memory_budget is not None,
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
        f"{place_of(type(method), 'prologue')}prologue must return a Prologue, a RootFile or None, "
        f"not {begun!r}",
    )


def _check_phases(method: Method, stage: int) -> None:
    """Refuse what is no list of trainings."""
    found: Any = method.phases(stage)
    listed = isinstance(found, (tuple, list)) and all(isinstance(one, Phase) for one in found)
    require(
        listed and bool(found),
        f"{place_of(type(method), 'phases')}phases({stage}) must return a tuple of Phase, not "
        f"{found!r}",
    )
