"""Ids of experiments: hashes of all that determines their numbers (data, stream, model, method,
settings, user code).
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import inspect
import json
import math
import sys
import sysconfig
import types
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engram import methods
from engram.data import Data
from engram.engine.run_definition import FIGURES, resolve_auto
from engram.engine.training import Training
from engram.errors import bad
from engram.experiments.build_methods import plain_method
from engram.experiments.plain_values import code_name, to_plain
from engram.memory import Memory
from engram.methods.method import Method
from engram.models.build import model_defaults
from engram.models.pretrained_folders import FOLDERS, weights_sha256
from engram.models.pretrained_weights import file_sha256
from engram.models.timm_networks import is_timm
from engram.models.user_networks import is_user_network_name, load_maker
from engram.streams import SCENARIOS
from engram.streams.stream import Stream
from engram.streams.task_orders import ORDER_OPTIONS, order_text

ID_FORMAT = 3  # ids of another format are not comparable
# An id hashes what differs from the defaults, so that a new option changes no id. When a default
# changes, the former one is added here, as in ``{"EWC.strength": 1.0}``, to keep ids valid.
FORMER_DEFAULTS: dict[str, Any] = {
    "DERpp.outputs": "seen",
    "GEM.memory": Memory(fraction=0.2),
}
IDENTITY_PARTS = {  # of an experiment, in the words of a message
    "data": "the data",
    "stream": "the stream",
    "model": "the structure, source or starting weights of the model",
    "method": "the source or an option of the method",
    "training": "the training settings",
    "average": "the average",
}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of an experiment.

    Parameters
    ----------
    id
        The name under which its numbers are recorded.
    content
        The experiment as a recipe, in plain values; under ``identity`` the hashes of its parts.
    """

    id: str
    content: Mapping[str, Any]


def identify(
    stream: Stream,
    *,
    method: Method,
    model: Any,
    training: Training,
    average: str,
    counted_from: str = "",
) -> Identity:
    """Identify an experiment, whether given as a recipe or by objects.

    Seeds, order, label and `keep` do not count. `counted_from` is the order to which the
    orders of a study are relative.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> from engram.methods import ER
    >>> rest = {"method": ER(), "training": Training(), "average": "micro"}
    >>> first = identify(class_incremental(load("blobs")), model="mlp", **rest)
    >>> spelt = class_incremental(load("blobs"), classes_per_task=2, valid=0)
    >>> identify(spelt, model={"name": "mlp", "hidden": [256, 256]}, **rest).id == first.id
    True
    >>> other = class_incremental(load("blobs", seed=1))
    >>> identify(other, model="mlp", **rest).id == first.id
    False
    """
    section = describe_stream(stream)
    values = {
        "data": stream.data.fingerprint(),
        "stream": {**_stream_facts(stream), "counted from": counted_from},
        "model": _describe_model(model),
        "method": describe(method, "method"),
        "training": _describe_training(training, stream),
        "average": average,
    }
    parts = {name: short_hash(value) for name, value in values.items()}
    content = {
        "stream": {**section, "head": stream.head}, "model": plain_model(model),
        "method": plain_method(method), "training": to_plain(training), "average": average,
    }  # fmt: skip
    facts: dict[str, Any] = {"form": ID_FORMAT, "asked": options_hash(content), **parts}
    source = stream.origin.source if stream.origin else None
    if source is None:
        facts["data_in_memory"] = True
    elif source.root is not None:
        facts["data_root"] = source.root
    if not has_address(model):
        facts["model_built"] = True
    if published := weights_sha256(model):
        facts["weights"] = published
    return Identity(id=short_hash(parts), content={**content, "identity": facts})


def _describe_training(training: Training, stream: Stream) -> Any:
    """Describe the training settings in a normal form, so that equal settings are equal."""
    spelt = [
        name for name, meant in resolve_auto(stream).items() if getattr(training, name) == meant
    ]
    changes: dict[str, Any] = dict.fromkeys(spelt, "auto")
    if training.plateau_watch == "score":
        changes["plateau_watch"] = FIGURES[stream.labels]
    return describe(replace(training, **changes), "training")


def drop_defaults(
    values: Mapping[str, Any], defaults: Mapping[str, Any], of: str
) -> dict[str, Any]:
    """The options that differ from their defaults; `of` names what has them.

    Examples
    --------
    >>> drop_defaults({"lr": 0.1, "epochs": 1}, {"lr": 1e-3, "epochs": 1}, of="Training")
    {'lr': 0.1}
    """
    found = {}
    for name, value in values.items():
        default = FORMER_DEFAULTS.get(f"{of}.{name}", defaults.get(name, MISSING))
        if isinstance(value, Mapping) and is_dataclass(default):  # a recipe in plain values
            default = to_plain(default)
        if not _is_equal(value, default):
            found[name] = value
    return found


def _is_equal(value: Any, default: Any) -> bool:
    """Whether two options are recognised as the same, however they are spelt."""
    if value is default:
        return True
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        pairs = zip(value, default, strict=False)
        return len(value) == len(default) and all(_is_equal(a, b) for a, b in pairs)
    plain = (bool, int, float, str, type(None))
    if isinstance(value, plain) and isinstance(default, plain):
        return value == default and isinstance(value, bool) == isinstance(default, bool)
    kind = type(value)
    if kind is not type(default) or not (kind is dict or is_dataclass(kind)):
        return False
    return bool(describe(value, "option") == describe(default, "option"))


def _field_defaults(cls: type[Any]) -> dict[str, Any]:
    """The defaults of a dataclass's fields, as far as the library's own classes declare them.

    Those of a user's class are told by its source, in which a changed default shows.
    """
    found = {}
    for one in fields(cls):
        owner = next(c for c in cls.__mro__ if one.name in inspect.get_annotations(c))
        if owner.__module__.partition(".")[0] != "engram":
            continue
        if one.default is not MISSING:
            found[one.name] = one.default
        elif one.default_factory is not MISSING:
            found[one.name] = one.default_factory()
    return found


def short_hash(value: Any) -> str:
    """Hash plain values to 12 hexadecimal digits.

    Examples
    --------
    >>> short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def options_hash(content: Mapping[str, Any]) -> str:
    """Hash a recipe with names unresolved, without seeds, order, label and keep."""
    stream = dict(content["stream"])
    kind = str(stream.get("kind", ""))
    stream = {k: v for k, v in stream.items() if k not in (*ORDER_OPTIONS, "head")}
    content_without_defaults = {
        "stream": drop_defaults(stream, _scenario_defaults(kind), kind),
        "model": _describe_model(content["model"], resolve=False),
        "method": _drop_method_defaults(content["method"]),
        "training": drop_defaults(content["training"], to_plain(Training()), "Training"),
        "average": content["average"],
    }
    return short_hash(describe(content_without_defaults, "recipe"))


def _drop_method_defaults(method: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the options of a method section that have their default values."""
    if "parts" in method:
        parts = [_drop_method_defaults(part) for part in method["parts"]]
        return {"name": method["name"], "parts": parts}
    name = str(method["name"])
    known = getattr(methods, name, None)
    if known is None:  # user code
        return dict(method)
    options = {k: v for k, v in method.items() if k != "name"}
    found = drop_defaults(options, to_plain(_field_defaults(known)), name)
    if isinstance(found.get("memory"), Mapping):
        usual = to_plain(_field_defaults(Memory))
        found["memory"] = drop_defaults(found["memory"], usual, "Memory")
    return {"name": name, **found}


def _scenario_defaults(kind: str) -> Mapping[str, Any]:
    """Return the default options of a scenario."""
    made = SCENARIOS.get(kind)
    return {} if made is None else (made.__kwdefaults__ or {})


def describe_stream(stream: Stream) -> dict[str, Any]:
    """Describe a stream as a recipe names it, or one made by hand by its own description."""
    made = stream.origin
    if made is None:
        return {**to_plain(stream.describe()), "data": stream.data.name}
    named: dict[str, Any] = {"kind": made.kind, "data": made.data}
    if made.source is not None:
        named["data"] = made.source.name
        if made.source.options:
            named["data_options"] = to_plain(made.source.options)
    options = {k: v for k, v in made.options.items() if not (k == "order" and v is None)}
    return {**named, **to_plain(options)}


def _stream_facts(stream: Stream) -> dict[str, Any]:
    """Describe a stream without its data and the order of its classes."""
    made = stream.origin
    if made is None or ":" in made.kind:  # by what it is, as the user's function may change
        view = None if stream.view is None else describe(stream.view, "stream.view")
        return {"tasks": stream.fingerprint(), "view": view}
    options = {k: v for k, v in made.options.items() if k not in ORDER_OPTIONS}
    options = drop_defaults(options, _scenario_defaults(made.kind), made.kind)
    return {"kind": made.kind, **describe(options, "stream")}


def describe_order(stream: Stream) -> str:
    """Describe an explicit order by class ids, or a published one by its number.

    Domains are given by the values of their attribute.
    """
    options = {} if stream.origin is None else dict(stream.origin.options)
    if (order := options.get("order")) is not None:
        by = options.get("by")
        names = stream.data.classes if by is None else stream.data.attribute_names.get(by, ())
        ids = [names.index(one) if isinstance(one, str) else int(one) for one in order]
        options["order"] = ids
    return order_text(options)


def _describe_model(model: Any, *, resolve: bool = True) -> Any:
    """Describe a library model by non-default options, or a user's model by code and weights.

    Without `resolve`, a user's model given by name stays a name.
    """
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, Mapping) and isinstance(model.get("freeze"), Mapping):
        kept_as = model["freeze"].get("dtype", "float32")  # not where features are kept
        model = {**model, "freeze": True if kept_as == "float32" else {"dtype": kept_as}}
    if isinstance(model, Mapping) and is_timm(model.get("name")):
        if model.get("weights"):
            model = {**model, "sha256": model.get("sha256") or file_sha256(str(model["weights"]))}
            model.update(weights=True, sha256=str(model["sha256"]).lower())
    elif isinstance(model, Mapping) and isinstance(model.get("name"), str) \
            and not is_user_network_name(model["name"]):  # fmt: skip
        name = str(model["name"])
        model = {
            "name": name,
            **drop_defaults({**model}, {**model_defaults(name), "name": name}, name),
        }
        if published := weights_sha256(model):
            model.update(sha256=published)
            if name in FOLDERS:  # what the folder holds, not where it lies
                del model["path"]
        elif model.get("sha256"):  # which weights a model begins with, not where their file lies
            model.update(weights=True, sha256=str(model["sha256"]).lower())
    elif isinstance(model, Mapping) and resolve:
        model = {**model, "name": load_maker(model["name"])}
        model = model if len(model) > 1 else model["name"]
    return describe(model, "model")


def has_address(model: Any) -> bool:
    """Whether a model can be made again from its name: not one with weights of its own.

    Examples
    --------
    >>> has_address("mlp"), has_address(nn.Linear), has_address(nn.Linear(2, 2))
    (True, True, False)
    """
    name = model.get("name") if isinstance(model, Mapping) else model
    return isinstance(name, str) or not (isinstance(name, nn.Module) or "<" in code_name(name))


def plain_model(model: Any) -> Any:
    """Convert a model to the form of a recipe; a user's model becomes the name of its class."""
    return to_plain(model) if isinstance(model, (str, Mapping)) else code_name(model)


# Descriptions of values: arrays by content, user classes by their code.


_OF_CLASSES = {  # attributes that Python itself adds to a class
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
    """Describe a value by nested plain values that are equal for equal values, in any process.

    Arrays and weights are described by content; functions and classes that are not part of an
    installed package by their code, with everything they refer to. `where` names the value in
    errors about values that cannot be described.

    Examples
    --------
    >>> describe({"lr": 1.0, "sizes": (3, 4)}, "training")
    {'lr': 1, 'sizes': [3, 4]}
    >>> one, same, other = (lambda x: x + 1), (lambda x: x + 1), (lambda x: x)
    >>> describe(one, "f") == describe(same, "f") != describe(other, "f")
    True
    >>> describe((i for i in "ab"), "method.words")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: method.words: expected something that can be recognised when ...
    """
    return _Describer().value(value, where)


class _Describer:
    """One walk over a value; an object met again is referred to by its number."""

    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # keeps objects alive, so that their ids stay unique
        self.path: list[int] = []

    def value(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
            return _plain_number(value)
        if isinstance(value, np.generic):
            return _plain_number(value.item())
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
            return _describe_array(value, where)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return _describe_array(torch.from_numpy(np.ascontiguousarray(value)), where)
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            return {str(k): self.value(v, f"{where}[{k!r}]") for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(repr(self.value(v, where)) for v in value)}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": hash_bytes(value)}
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        once = (type, types.FunctionType, nn.Module, nn.Parameter)
        return self._once(value, where) if isinstance(value, once) else self._object(value, where)

    def _once(self, value: Any, where: str) -> Any:
        """Describe code or a network once; later occurrences are references."""
        if id(value) in self.met:
            return {"again": self.met[id(value)]}
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        if isinstance(value, nn.Parameter):
            return _describe_array(value, where)
        if isinstance(value, nn.Module):
            return self._network(value, where)
        return self._class(value) if isinstance(value, type) else self._function(value)

    def _network(self, module: nn.Module, where: str) -> Any:
        state, hooks = {}, []
        for name, value in vars(module).items():
            if "_hooks" in name:  # keys count all hooks of the process
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
            chosen = drop_defaults(chosen, _field_defaults(type(value)), type(value).__name__)
            inner = {k: self.value(v, f"{where}.{k}") for k, v in chosen.items()}
            return {"of": self.value(type(value), where), "fields": inner}
        return self._reduced(value, where)

    def _reduced(self, value: Any, where: str) -> Any:
        """Describe an object by the values that pickling uses to rebuild it."""
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
            if name not in _OF_CLASSES and not isinstance(part, _SLOTS) and not _is_generated(part)
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
        # a wrapper has the name of what it wraps: its globals tell where it was defined
        home = str(function.__globals__.get("__name__", ""))
        nameless = "<" in code.co_qualname  # a lambda, or defined inside another function
        if not nameless and (name := library_name(home, code.co_qualname)) is not None:
            return name
        own = summarize_code(code)
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
            module = _imported_module(name, level, function)
            found["uses"][f"import {name}"] = self._used(module, own.attributes, where)
        return found

    def _cell(self, cell: Any, where: str) -> Any:
        try:
            inside = cell.cell_contents
        except ValueError:  # not filled yet
            return {}
        return self.value(inside, where)

    def _used(self, value: Any, attributes: frozenset[str], where: str) -> Any:
        """Describe the value of a global name; of a user's module, the attributes used."""
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


def _plain_number(value: Any) -> Any:
    """Normalise a number: 1.0 becomes 1."""
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else repr(value)
    return value


def _describe_array(value: Tensor, where: str) -> Any:
    facts = [str(value.dtype), value.requires_grad]
    if nn.parameter.is_lazy(value):
        return {"array": [*facts, "not sized yet"]}
    try:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {"array": [*facts, list(value.shape), hash_bytes(flat.numpy().data)]}
    except (RuntimeError, NotImplementedError, TypeError):
        raise bad(where, "a tensor with numbers in it", value) from None


def _is_generated(part: Any) -> bool:
    """Return whether `dataclass` generated a method, which the fields determine."""
    code = getattr(part, "__code__", None)
    return code is not None and code.co_qualname.startswith("__create_fn__")


def _imported_module(
    name: str, level: int, function: Callable[..., Any]
) -> types.ModuleType | None:
    """Return the module of an import statement inside a function; None if there is none."""
    package = getattr(sys.modules.get(function.__module__), "__package__", None)
    try:
        return importlib.import_module("." * level + name, package)
    except (ImportError, TypeError):
        return None


# Digests of functions, which do not depend on comments, formatting and docstrings.


_IGNORED_OPERATIONS = {
    "NOP",
    "CACHE",
    "EXTENDED_ARG",
    "RESUME",
}  # formatting may add or remove them
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}
_CALL_FLAGS = 0x3AC  # flags that change a call: *args, **kwargs, generators, coroutines


@dataclass(frozen=True)
class CodeSummary:
    """A digest of some instructions, and the names that they look up outside the function.

    `imports` are (name, level) of import statements inside the function.
    """

    digest: str
    names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[tuple[str, int]]


@lru_cache(maxsize=4096)
def summarize_code(code: CodeType) -> CodeSummary:
    """Summarise a code object and those nested in it.

    The source text is not used, since it may have been edited after the import.

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
    >>> summarize_code(f.__code__).digest == summarize_code(g.__code__).digest != summarize_code(
    ...     h.__code__
    ... ).digest
    True
    """
    kept = [one for one in dis.get_instructions(code) if one.opname not in _IGNORED_OPERATIONS]
    places = [one.offset for one in kept]
    inner = [summarize_code(one.argval) for one in kept if isinstance(one.argval, CodeType)]
    lines: list[Any] = [
        (
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags & _CALL_FLAGS,
        ),
        *((one.opname, _describe_argument(one, places)) for one in kept),
        *(
            tuple(_jump_target(places, part) for part in (entry.start, entry.end, entry.target))
            + (entry.depth, entry.lasti)
            for entry in _try_ranges(code)
        ),
    ]
    imports = {
        (str(one.argval), _import_level(kept, i))
        for i, one in enumerate(kept)
        if one.opname == "IMPORT_NAME"
    }
    return CodeSummary(
        hashlib.blake2b(repr(lines).encode(), digest_size=12).hexdigest(),
        _operands(kept, _GLOBAL).union(*(one.names for one in inner)),
        _operands(kept, _ATTRIBUTE).union(*(one.attributes for one in inner)),
        frozenset(imports).union(*(one.imports for one in inner)),
    )


def _operands(kept: list[dis.Instruction], operations: set[str]) -> frozenset[str]:
    return frozenset(str(one.argval) for one in kept if one.opname in operations)


def _try_ranges(code: CodeType) -> Any:
    """Return the ranges of try blocks, which are not instructions."""
    return getattr(dis.Bytecode(code), "exception_entries", ())


def _import_level(kept: list[dis.Instruction], i: int) -> int:
    """Return the level of a relative import."""
    value = kept[i - 2].argval if i >= 2 else 0
    return value if isinstance(value, int) else 0


def _jump_target(places: list[int], offset: int) -> int:
    """Return the index of the instruction at an offset, or of the next one that is kept."""
    return bisect_left(places, offset)


def _describe_argument(one: dis.Instruction, places: list[int]) -> Any:
    if one.opcode in _JUMPS:
        return _jump_target(places, one.argval)
    if isinstance(one.argval, CodeType):
        return summarize_code(one.argval).digest
    return describe_constant(one.argval)


def describe_constant(value: Any) -> Any:
    """Describe a constant with its type: 1 and 1.0 differ, and sets are sorted."""
    if isinstance(value, tuple):
        return tuple(describe_constant(one) for one in value)
    if isinstance(value, frozenset):
        return "set", sorted(repr(describe_constant(one)) for one in value)
    return type(value).__name__, repr(value)


# The origin of code: the user, or a package that is known by name and version.


_LIBRARIES = ("builtins", "engram", "numpy", "torch")  # their versions: environment-*.json


def hash_bytes(content: bytes | bytearray | memoryview) -> str:
    """Hash bytes to 16 bytes, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def library_name(module: str, name: str) -> str | None:
    """Return the name of library code; None for the user's own code.

    The standard library and the dependencies of this package are named only. For other installed
    packages, the version and the file count too.

    Examples
    --------
    >>> library_name("torch.nn.modules.linear", "Linear"), library_name("__main__", "Own")
    ('torch.nn.modules.linear:Linear', None)
    """
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return f"{top if top == 'engram' else module}:{name}"
    if top in ("__main__", "__mp_main__"):  # in a notebook, a file of the kernel
        return None
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file is None:
        return f"{module}:{name}" if top in sys.stdlib_module_names else None
    place = _file_origin(file)
    if place == "own":
        return None
    if place == "python":
        return f"{module}:{name}"
    version = getattr(sys.modules.get(top), "__version__", "")
    return f"{module}:{name} {version} {_hash_file(file)}"


@functools.cache
def _file_origin(file: str) -> str:
    path = Path(file).resolve()
    paths = sysconfig.get_paths()
    if any(path.is_relative_to(Path(paths[key]).resolve()) for key in ("purelib", "platlib")):
        return "installed"
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return "installed"
    python = any(
        path.is_relative_to(Path(paths[key]).resolve()) for key in ("stdlib", "platstdlib")
    )
    return "python" if python else "own"


@functools.cache
def _hash_file(file: str) -> str:
    path = Path(file)
    return hash_bytes(path.read_bytes()) if path.is_file() else ""
