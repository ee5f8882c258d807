"""How a stream was made: streams of scenarios know it, those put together by hand do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from engram.data.core import Data, Source
from engram.errors import bad

if TYPE_CHECKING:
    from engram.streams.core import Stream

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What made a stream; a changed one (a slice, `replace`) does not claim it.

    Parameters
    ----------
    kind
        Name of the scenario.
    options
        Its options, defaults included.
    data, source
        Name of the data it was given, and where that can be had again, None if only in memory.
    """

    kind: str
    options: Mapping[str, Any]
    data: str
    source: Source | None = None

    def change(self, **options: Any) -> Origin:
        """The origin with further options."""
        return replace(self, options={**self.options, **options})


def scenario(make: Callable[P, Stream]) -> Callable[P, Stream]:
    """Let a function from data to a stream note in the stream how it was made.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> origin = class_incremental(load("blobs"), classes_per_task=5).origin
    >>> origin.kind, origin.options["classes_per_task"], origin.options["valid"]
    ('class_incremental', 5, 0.0)
    """
    signature = inspect.signature(make)
    given, *others = signature.parameters.values()
    defaults = {one.name: one.default for one in others if one.default is not one.empty}

    @wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> Stream:
        if args and not isinstance(args[0], Data):
            expected = "Data, such as engram.load('digits') or Data.from_arrays(x, y)"
            raise bad(given.name, expected, args[0])
        stream = make(*args, **options)
        whole = {**defaults, **signature.bind(*args, **options).arguments}
        return with_origin(stream, _origin(make.__name__, whole, whole.pop(given.name)))

    setattr(made, "__kwdefaults__", defaults)  # noqa: B010 - which list the options, here as there
    return made


def _origin(kind: str, options: Mapping[str, Any], data: Data) -> Origin:
    return Origin(kind=kind, options=options, data=data.name, source=data.source)


def with_origin(stream: Stream, origin: Origin | None) -> Stream:
    """The stream itself, which from now on knows how it was made."""
    object.__setattr__(stream, "origin", origin)
    return stream
