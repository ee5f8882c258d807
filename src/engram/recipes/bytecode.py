"""What a function does, as a digest that comments, formatting and docstrings do not change."""

from __future__ import annotations

import dis
import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

_SILENT = {"NOP", "CACHE", "EXTENDED_ARG", "RESUME"}  # formatting may add or remove them
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}
_KIND = 0x3AC  # flags that change a call: *args, **kwargs, generators, coroutines


@dataclass(frozen=True)
class Body:
    """A digest of some instructions, and the names that they look up library_name.

    `imports` are (name, level) of import statements inside the function.
    """

    digest: str
    names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[tuple[str, int]]


@lru_cache(maxsize=4096)
def body(code: CodeType) -> Body:
    """What a code object and those inside it do.

    Not the text of the file: that may have been edited after it was imported.

    Examples
    --------
    >>> def f(x):
    ...     return x + 1
    >>> def g(x):
    ...     '''The same, explained.'''
    ...     return (
    ...         x + 1  # one more
    ...     )
    >>> def h(x):
    ...     return x + 2
    >>> body(f.__code__).digest == body(g.__code__).digest != body(h.__code__).digest
    True
    """
    kept = [one for one in dis.get_instructions(code) if one.opname not in _SILENT]
    places = [one.offset for one in kept]
    inner = [body(one.argval) for one in kept if isinstance(one.argval, CodeType)]
    lines: list[Any] = [
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND),
        *((one.opname, _argument(one, places)) for one in kept),
        *(tuple(_place(places, part) for part in (entry.start, entry.end, entry.target))
          + (entry.depth, entry.lasti) for entry in _protected(code)),
    ]  # fmt: skip
    imports = {
        (str(one.argval), _level(kept, i))
        for i, one in enumerate(kept)
        if one.opname == "IMPORT_NAME"
    }
    return Body(
        hashlib.blake2b(repr(lines).encode(), digest_size=12).hexdigest(),
        _found(kept, _GLOBAL).union(*(one.names for one in inner)),
        _found(kept, _ATTRIBUTE).union(*(one.attributes for one in inner)),
        frozenset(imports).union(*(one.imports for one in inner)),
    )


def _found(kept: list[dis.Instruction], operations: set[str]) -> frozenset[str]:
    return frozenset(str(one.argval) for one in kept if one.opname in operations)


def _protected(code: CodeType) -> Any:
    """The ranges of try blocks, which are no instructions."""
    return getattr(dis.Bytecode(code), "exception_entries", ())


def _level(kept: list[dis.Instruction], i: int) -> int:
    """How many packages an import statement goes up."""
    value = kept[i - 2].argval if i >= 2 else 0
    return value if isinstance(value, int) else 0


def _place(places: list[int], offset: int) -> int:
    """The number of the instruction at an offset, or of the next one that is kept."""
    return bisect_left(places, offset)


def _argument(one: dis.Instruction, places: list[int]) -> Any:
    if one.opcode in _JUMPS:
        return _place(places, one.argval)
    if isinstance(one.argval, CodeType):
        return body(one.argval).digest
    return constant(one.argval)


def constant(value: Any) -> Any:
    """A constant with its type; sets have no order, and 1 is not 1.0 here."""
    if isinstance(value, tuple):
        return tuple(constant(one) for one in value)
    if isinstance(value, frozenset):
        return "set", sorted(repr(constant(one)) for one in value)
    return type(value).__name__, repr(value)
