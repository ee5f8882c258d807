"""Values as plain ones that tell them apart: arrays by content, own classes by what they do."""

from __future__ import annotations

import copyreg
import functools
import importlib
import math
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engram.data import Data
from engram.errors import bad
from engram.recipes.bytecode import body
from engram.recipes.code_origin import digest, library_name
from engram.streams.core import Stream

_OF_CLASSES = {  # what Python itself puts into a class
    "__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__",
    "__dict__", "__doc__", "__firstlineno__", "__match_args__", "__module__", "__orig_bases__",
    "__parameters__", "__qualname__", "__static_attributes__", "__weakref__", "_abc_impl",
    "_is_protocol", "_is_runtime_protocol", "__annotate__", "__annotate_func__",
}  # fmt: skip
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_WRAPPED = {
    staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func",
    functools._lru_cache_wrapper: "__wrapped__",
}  # fmt: skip


def describe(value: Any, where: str) -> Any:
    """Nested plain values from which equal things are recognised, in another process as well.

    Arrays and weights count by their content; functions and classes that are not part of an
    installed package by what they do, with everything they refer to. `where` names the value in
    the complaint about something that cannot be recognised again.

    Examples
    --------
    >>> describe({"lr": 1.0, "sizes": (3, 4)}, "training")
    {'lr': 1, 'sizes': [3, 4]}
    >>> one, same, other = (lambda x: x + 1), (lambda x: (x + 1)), (lambda x: x)
    >>> describe(one, "f") == describe(same, "f") != describe(other, "f")
    True
    >>> describe((i for i in "ab"), "method.words")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: method.words: expected something that can be recognised when ...
    """
    return _Describer().value(value, where)


class _Describer:
    """One walk over a value; what is met a second time is referred to by its number."""

    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # ids are of living objects only
        self.path: list[int] = []

    def value(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
            return _plain(value)
        if isinstance(value, np.generic):
            return _plain(value.item())
        if id(value) in self.path:
            return {"around": len(self.path) - self.path.index(id(value))}
        self.path.append(id(value))
        try:
            return self._value(value, where)
        finally:
            self.path.pop()

    def _value(self, value: Any, where: str) -> Any:
        if isinstance(value, (Data, Stream)):
            return {type(value).__name__: value.fingerprint()}
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            return _array(value, where)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return _array(torch.from_numpy(np.ascontiguousarray(value)), where)
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            return {str(k): self.value(v, f"{where}[{k!r}]") for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(repr(self.value(v, where)) for v in value)}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": digest(value)}
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        once = (type, types.FunctionType, nn.Module, nn.Parameter)
        return self._once(value, where) if isinstance(value, once) else self._object(value, where)

    def _once(self, value: Any, where: str) -> Any:
        """Code and networks: shared parts are shared, not repeated."""
        if id(value) in self.met:
            return {"again": self.met[id(value)]}
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        if isinstance(value, nn.Parameter):
            return _array(value, where)
        if isinstance(value, nn.Module):
            return self._network(value, where)
        return self._class(value) if isinstance(value, type) else self._function(value)

    def _network(self, module: nn.Module, where: str) -> Any:
        state, hooks = {}, []
        for name, value in vars(module).items():
            if "_hooks" in name:  # by numbers that count all hooks of the process
                hooks += list(value.values()) if isinstance(value, Mapping) else []
            elif not isinstance(value, RemovableHandle):
                state[name] = self.value(value, f"{where}.{name}")
        found = {"of": self.value(type(module), where), "state": state}
        return {**found, "hooks": self.value(hooks, f"{where} (hooks)")} if hooks else found

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, property):
            return [self.value(f, where) for f in (value.fget, value.fset, value.fdel)]
        for kind, inside in _WRAPPED.items():
            if isinstance(value, kind):
                return {kind.__name__: self.value(getattr(value, inside), where)}
        if isinstance(value, types.MethodType):
            return [self.value(value.__func__, where), self.value(value.__self__, where)]
        if isinstance(value, functools.partial):
            return [self.value(v, where) for v in (value.func, value.args, value.keywords)]
        if isinstance(value, weakref.ref):
            return self.value(value(), where)
        if isinstance(value, Enum):
            return [self.value(type(value), where), value.name]
        if is_dataclass(value):
            chosen = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
            inner = {k: self.value(v, f"{where}.{k}") for k, v in chosen.items()}
            return {"of": self.value(type(value), where), "fields": inner}
        return self._reduced(value, where)

    def _reduced(self, value: Any, where: str) -> Any:
        """What copying and pickling would take to make the object again."""
        try:
            known_how = copyreg.dispatch_table.get(type(value))
            parts: Any = known_how(value) if known_how else value.__reduce_ex__(4)
        except Exception:  # locks, files, generators
            expected = (
                "something that can be recognised when it is run again (plain values, arrays, "
                "functions, classes, and objects made of them)"
            )
            raise bad(where, expected, value) from None
        if isinstance(parts, str):
            return {"name": f"{type(value).__module__}:{parts}"}
        whole = [list(part) if hasattr(part, "__next__") else part for part in parts]
        return [self.value(part, where) for part in whole]

    # -- code --------------------------------------------------------------------------------

    def _class(self, cls: type[Any]) -> Any:
        if (name := library_name(cls.__module__, cls.__qualname__)) is not None:
            return name
        where = f"class {cls.__name__}"
        inside = {
            name: self.value(part, f"{where}: {name}")
            for name, part in sorted(vars(cls).items())
            if name not in _OF_CLASSES and not isinstance(part, _SLOTS) and not _made(part)
            and not (issubclass(cls, Enum) and not callable(part))
        }  # fmt: skip
        if issubclass(cls, Enum):
            inside["members"] = {n: self.value(m.value, where) for n, m in cls.__members__.items()}
        bases = [self.value(base, where) for base in cls.__bases__]
        return {"class": cls.__name__, "bases": bases, "inside": inside}

    def _function(self, function: types.FunctionType) -> Any:
        where = f"function {function.__qualname__}"
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        found: dict[str, Any] = {"held": {n: self._cell(c, f"{where}: {n}") for n, c in cells}}
        # a wrapper bears the name of what it wraps: its own globals say where it comes from
        home = str(function.__globals__.get("__name__", ""))
        nameless = "<" in code.co_qualname  # a lambda, or made inside another function
        if not nameless and (name := library_name(home, code.co_qualname)) is not None:
            return name
        own = body(code)
        found["does"] = own.digest
        found["defaults"] = self.value(
            [function.__defaults__, function.__kwdefaults__], f"{where} (defaults)"
        )
        found["uses"] = {
            name: self._used(function.__globals__[name], own.attributes, f"{where}: {name}")
            for name in sorted(own.names)
            if name in function.__globals__ and not name.startswith("__")
        }
        for name, level in sorted(own.imports):
            module = _imported(name, level, function)
            found["uses"][f"import {name}"] = self._used(module, own.attributes, where)
        return found

    def _cell(self, cell: Any, where: str) -> Any:
        try:
            inside = cell.cell_contents
        except ValueError:  # not filled yet
            return {}
        return self.value(inside, where)

    def _used(self, value: Any, attributes: frozenset[str], where: str) -> Any:
        """A global name's value; of an own module, what is taken out of it."""
        if not isinstance(value, types.ModuleType):
            return self.value(value, where)
        if (name := library_name(value.__name__, "")) is not None or id(value) in self.path:
            return name or value.__name__
        self.path.append(id(value))
        try:
            return {
                name: self._used(vars(value)[name], attributes, f"{where}.{name}")
                for name in sorted(attributes & vars(value).keys())
            }
        finally:
            self.path.pop()


def _plain(value: Any) -> Any:
    """A number however it was written: 1.0 is 1."""
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else repr(value)
    return value


def _array(value: Tensor, where: str) -> Any:
    facts = [str(value.dtype), value.requires_grad]
    if nn.parameter.is_lazy(value):
        return {"array": [*facts, "not sized yet"]}
    try:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {"array": [*facts, list(value.shape), digest(flat.numpy().data)]}
    except (RuntimeError, NotImplementedError, TypeError):
        raise bad(where, "a tensor with numbers in it", value) from None


def _made(part: Any) -> bool:
    """Whether `dataclass` wrote a method; the fields say it all."""
    code = getattr(part, "__code__", None)
    return code is not None and code.co_qualname.startswith("__create_fn__")


def _imported(name: str, level: int, function: Callable[..., Any]) -> types.ModuleType | None:
    """The module of an import statement inside a function, None if there is none."""
    package = getattr(sys.modules.get(function.__module__), "__package__", None)
    try:
        return importlib.import_module("." * level + name, package)
    except (ImportError, TypeError):
        return None
