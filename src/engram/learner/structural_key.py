"""Hashable keys of Python objects that are equal only if both objects certainly compute the same.

Runs may share networks, a pass over the data or their first tasks only if they are made of the same
parts. Names, shapes and ``==`` do not guarantee this: two networks of one class may differ in a
slope, two functions with the same code in their closures, and a dataclass may exclude a field from
comparison. Therefore everything that can be inspected is compared, and anything else is equal only
to itself.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

_PLAIN = (type(None), bool, int, str, bytes, type(Ellipsis), torch.dtype, torch.device,
          torch.memory_format, torch.layout)  # fmt: skip
# attributes of a module that are compared separately; keys of hooks are arbitrary numbers
_MODULE_FIELDS = frozenset(("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"))
_NUMBERED = "_hooks"
MAX_ENTRIES = 1 << 24  # larger arrays are compared by identity
_HEAP = 1 << 9  # flag of classes defined in Python


class ByIdentity:
    """An object compared by identity; the reference keeps its id from being reused.

    Examples
    --------
    >>> one, other = [1], [1]
    >>> ByIdentity(one) == ByIdentity(one), ByIdentity(one) == ByIdentity(other)
    (True, False)
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def structural_key(value: Any) -> Hashable:
    """Return a key of any object; equal keys mean that both objects compute the same.

    Parameters and persistent buffers of modules are compared by name, shape and dtype: weights may
    differ. Everything else is compared by value.

    Examples
    --------
    >>> structural_key(nn.Linear(2, 3)) == structural_key(nn.Linear(2, 3))
    True
    >>> structural_key(nn.LeakyReLU(0.1)) == structural_key(nn.LeakyReLU(0.2))
    False
    >>> def slope(a):
    ...     return lambda x: a * x
    >>> (
    ...     structural_key(slope(1)) == structural_key(slope(1)),
    ...     structural_key(slope(1)) == structural_key(slope(2)),
    ... )
    (True, False)
    """
    try:
        return _KeyWalk().at(value)
    except RecursionError:  # nested too deeply to be inspected
        return ByIdentity(value)


class _KeyWalk:
    """A traversal of an object; a part that occurs again is referred to by its first occurrence."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, Any]] = {}  # holds the objects, since ids are keys

    def at(self, value: Any) -> Hashable:
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, (float, complex)):
            return type(value), repr(value)  # nan is nan, and 0.0 is not -0.0
        if isinstance(value, (Enum, types.BuiltinFunctionType, np.dtype)):
            return ByIdentity(value)
        if id(value) in self._met:
            return "again", self._met[id(value)][0]
        self._met[id(value)] = len(self._met), value
        return self._inside(value)

    def _inside(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in (tuple, list, torch.Size) or (
            isinstance(value, tuple) and _is_python_class(kind)
        ):
            return self.at(kind), tuple(map(self.at, value))
        if kind in (dict, OrderedDict):
            return self.at(kind), tuple((self.at(k), self.at(v)) for k, v in value.items())
        if kind in (set, frozenset):
            return kind, frozenset(map(self.at, value))
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value if isinstance(value, np.ndarray) else np.asarray(value))
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            return self._module(value)
        if isinstance(value, type):
            return self._class(value)
        if found := self._callable(value):
            return found
        return self._object(value)

    def _constant(self, value: Tensor | None) -> Hashable:
        """Key of a tensor that belongs to a module, however large it is."""
        if value is None or id(value) in self._met:
            return self.at(value)
        self._met[id(value)] = len(self._met), value
        return self._tensor(value, most=sys.maxsize)

    def _tensor(self, value: Tensor, most: int = MAX_ENTRIES) -> Hashable:
        plain = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
        if not plain or value.numel() > most or is_functorch_wrapped_tensor(value):
            return ByIdentity(value)
        host = value.detach().cpu().contiguous()
        data = hashlib.sha256(host.reshape(-1).view(torch.uint8).numpy().data).digest()
        return type(value), tuple(value.shape), value.dtype, data

    def _array(self, value: np.ndarray) -> Hashable:
        if value.dtype.hasobject or value.size > MAX_ENTRIES:
            return ByIdentity(value)
        data = hashlib.sha256(np.ascontiguousarray(value).data).digest()
        return np.ndarray, value.shape, value.dtype.str, data

    def _module(self, module: nn.Module) -> Hashable:
        owned = set(module._buffers) - module._non_persistent_buffers_set
        tensors = [(k, self._weight(v)) for k, v in module._parameters.items()]
        tensors += [
            (k, self._weight(v) if k in owned else self._constant(v))
            for k, v in module._buffers.items()
        ]
        inner = tuple((k, self.at(v)) for k, v in module._modules.items())
        rest = tuple(
            (k, self.at(list(v.values()) if k.endswith(_NUMBERED) and isinstance(v, dict) else v))
            for k, v in sorted(vars(module).items()) if k not in _MODULE_FIELDS
        )  # fmt: skip
        return self.at(type(module)), tuple(tensors), inner, rest

    def _weight(self, value: Tensor | None) -> Hashable:
        """Key of a tensor whose values belong to a run; shared tensors are recognised."""
        if value is None:
            return None
        place, _ = self._met.setdefault(id(value), (len(self._met), value))
        return place, tuple(value.shape), value.dtype

    def _class(self, kind: type) -> Hashable:
        """Key of a class: its identity if importable, its contents if defined in a function."""
        if not _is_python_class(kind) or _is_importable(kind):
            return ByIdentity(kind)
        skipped = ("__dict__", "__weakref__", "__doc__", "__static_attributes__")
        inside = [(k, self.at(v)) for k, v in vars(kind).items() if k not in skipped]
        return kind.__qualname__, tuple(map(self.at, kind.__bases__)), tuple(inside)

    def _callable(self, value: Any) -> Hashable:
        if isinstance(value, types.FunctionType):
            cells = [_read_cell(cell) for cell in value.__closure__ or ()]
            parts = (value.__defaults__, value.__kwdefaults__, cells, vars(value))
            return value.__code__, ByIdentity(value.__globals__), tuple(map(self.at, parts))
        if isinstance(value, types.MethodType):
            return types.MethodType, self.at(value.__self__), self.at(value.__func__)
        if isinstance(value, functools.partial):
            given = (value.func, value.args, value.keywords)
            return functools.partial, tuple(map(self.at, given))
        if isinstance(value, weakref.ref):
            return weakref.ref, self.at(value())
        if isinstance(value, (staticmethod, classmethod)):
            return type(value), self.at(value.__func__)
        if isinstance(value, property):
            return property, tuple(map(self.at, (value.fget, value.fset, value.fdel)))
        return None

    def _object(self, value: Any) -> Hashable:
        """Of a class written in Python, all that its objects hold; others are like none."""
        kinds = type(value).__mro__[:-1]
        slotted = any("__slots__" in vars(kind) for kind in kinds)
        if slotted or not all(map(_is_python_class, kinds)) or not hasattr(value, "__dict__"):
            return ByIdentity(value)
        inside = sorted(vars(value).items())
        return self.at(type(value)), tuple((k, self.at(v)) for k, v in inside)


def _is_python_class(kind: type) -> bool:
    """Whether a class was written in Python; those of C hold more than can be seen."""
    small = kind.__basicsize__ <= object.__basicsize__ + 16 or issubclass(kind, tuple)
    return bool(kind.__flags__ & _HEAP) and small


def _is_importable(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ()


def object_attributes(owner: Any) -> Mapping[str, Any]:
    """Return all attributes set on an object, slots and fields of a dataclass included."""
    slots = (getattr(kind, "__slots__", ()) for kind in type(owner).__mro__)
    names = [n for some in slots for n in ((some,) if isinstance(some, str) else some)]
    found = {name: getattr(owner, name) for name in names if hasattr(owner, name)}
    return {**found, **getattr(owner, "__dict__", {})}
