"""Read the pickles that public data sets come in without letting them run anything.

Nothing named in the file is ever imported: `find_class` knows a few names, those of plain arrays.
It does not answer with numpy's own functions, whose `_reconstruct` allocates whatever size a file
names and whose arrays may hold objects, but with stand-ins that only note what they were told;
arrays are built afterwards from checked facts, and are never larger than the bytes in the file.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from engram.errors import bad

_KINDS = "biufSU"


class _Dtype:
    """Stands in for numpy.dtype: remembers the type code and the byte order."""

    def __init__(self, code: Any) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text[:1] not in _KINDS or not text[1:].isdigit():
            raise pickle.UnpicklingError(f"array type {code!r}")
        self.code, self.order = text, "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        order = order.decode("ascii") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.order = order

    def real(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


class _Array:
    """Stands in for numpy.ndarray while the pickle is read."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, "F" if fortran else "C")

    def fill(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Dtype) or not isinstance(raw, (bytes, bytearray)):
            raise pickle.UnpicklingError("an array of objects")
        real = dtype.real()
        if len(raw) != math.prod(shape) * real.itemsize:
            raise pickle.UnpicklingError(f"{len(raw)} bytes for an array of shape {shape}")
        self.value = np.frombuffer(bytes(raw), real).reshape(shape, order=order).copy(order)


def _new_array(*_: Any) -> _Array:
    return _Array()


def _new_filled(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
    array = _Array()
    array.fill(raw, dtype, shape, order)
    return array


def _new_dtype(code: Any, *_: Any) -> _Dtype:
    return _Dtype(code)


def _new_scalar(dtype: Any, raw: Any = None) -> Any:
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("a scalar that is not a plain number")
    return np.frombuffer(raw, dtype.real())[0].item()


def _new_bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes into old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _Name:
    """A function under the name a pickle calls it by; a pickle cannot change it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a change to a name")


_NAMES: dict[tuple[str, str], _Name | None] = {
    ("numpy", "ndarray"): None,  # only ever an argument of _reconstruct
    ("numpy", "dtype"): _Name(_new_dtype),
    ("_codecs", "encode"): _Name(_new_bytes),
    ("builtins", "bytes"): _Name(_new_bytes),
    ("__builtin__", "bytes"): _Name(_new_bytes),
}
for _home in ("numpy.core", "numpy._core"):  # before and since numpy 2
    _NAMES[f"{_home}.multiarray", "_reconstruct"] = _Name(_new_array)
    _NAMES[f"{_home}.multiarray", "scalar"] = _Name(_new_scalar)
    _NAMES[f"{_home}.numeric", "_frombuffer"] = _Name(_new_filled)


class _Reader(pickle._Unpickler):
    """Knows a handful of names, none of which does anything.

    The unpickler written in Python: that in C keeps what it has read in an array as long as the
    largest index in the file, so that nine bytes take 4 GB. It costs .4 s on CIFAR-100.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return _NAMES[module, name]


def read_pickle(content: bytes, label: str = "pickle") -> Any:
    """Lists, tuples, dicts, numbers, text and plain arrays out of a pickle; anything else raises.

    Text written by Python 2 comes back as bytes.

    Examples
    --------
    >>> import pickle
    >>> read_pickle(pickle.dumps({b"labels": [1, 2]}))
    {b'labels': [1, 2]}
    >>> read_pickle(pickle.dumps(print), "x")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: x: expected plain arrays and lists, got 'the name builtins.print'
    """
    try:
        return _resolve(_Reader(io.BytesIO(content), encoding="bytes").load(), {})
    except Exception as problem:  # a broken or hostile file may raise anything
        shown = str(problem) or type(problem).__name__
        raise bad(label, "plain arrays and lists", shown) from None


def _resolve(value: Any, done: dict[int, Any]) -> Any:
    """Replace stand-ins by arrays; shared parts are visited once."""
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without contents")
        return value.value
    if isinstance(value, _Dtype):
        return value.real()
    if not isinstance(value, (list, tuple, dict)):
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {_key(k): _resolve(v, done) for k, v in value.items()}
        else:
            done[id(value)] = type(value)(_resolve(one, done) for one in value)
    return done[id(value)]


def _key(key: Any) -> Any:
    if not isinstance(key, (str, bytes, int)):
        raise pickle.UnpicklingError(f"a key of type {type(key).__name__}")
    return key
