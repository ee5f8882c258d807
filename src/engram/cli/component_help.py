"""Texts of ``engram list``: names with one line each, or one component in full. Imports torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DATA_FOR = {  # by which a scenario is shown, where digits will not do
    "domain_incremental": "skeletons", "iirc": "cifar100", "tinyimagenet_seq": "tiny_imagenet",
    "eight_task": "multi_domain",
}  # fmt: skip
# modules of engram.metrics, and functions in others, that measure nothing
NO_METRICS = (
    "cost", "significance", "statistics",
    "ancestors", "curve", "mean_over_tasks", "pair_scores", "stage_scores", "threshold",
)  # fmt: skip
EMPTY_NOTES: dict[str, str] = {}
FOOTNOTES = {
    "training": "What one means: engram list training NAME",
    "recipes": "Run one with: engram reproduce NAME. A recipe of your own is a YAML file:\n\n"
    "  stream: {data: digits, kind: class_incremental, classes_per_task: 2}\n"
    "  method: {name: ER, memory: {total: 200}}\n"
    "  model: mlp\n"
    "  training: {epochs: 5, lr: 0.001}\n"
    "  seeds: 3\n\n"
    "Run it with: engram run RECIPE.yaml",
}


def list_entries(kind: str, root: Path | None = None) -> dict[str, str]:
    """Names of a kind, one line about each.

    Examples
    --------
    >>> list_entries("models")["mlp"] != ""
    True
    """
    if kind == "datasets":
        from engram.data import datasets

        known = {one.name: one for one in datasets(root)}
        return {k: v.summary + ("" if v.available else "; not found") for k, v in known.items()}
    return _READERS[kind]()


def first_line(thing: Any) -> str:
    """The first sentence of a docstring.

    Examples
    --------
    >>> first_line(first_line)
    'The first sentence of a docstring.'
    """
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _methods() -> dict[str, str]:
    from engram import methods

    names = sorted(methods.__all__, key=str.lower)
    return {name: first_line(getattr(methods, name)) for name in names}


def _is_subclass(thing: Any, base: type[Any]) -> bool:
    return isinstance(thing, type) and issubclass(thing, base)


def _memories() -> dict[str, str]:
    from engram.memory import policies

    return policies()


def _package(name: str) -> dict[str, str]:
    """Public classes and functions of a package that may be missing."""
    if find_spec(f"engram.{name}") is None:
        return {}
    package = import_module(f"engram.{name}")
    every = {one: getattr(package, one) for one in package.__all__}
    return {one: first_line(thing) for one, thing in every.items() if callable(thing)}


def _detectors() -> dict[str, str]:
    from engram.novelty import detectors

    return {name: first_line(one) for name, one in detectors().items()}


def _metrics() -> dict[str, str]:
    from engram import metrics

    found = {}
    for name, line in _package("metrics").items():
        thing = getattr(metrics, name)
        home = getattr(thing, "__module__", "").rpartition(".")[2]
        if inspect.isfunction(thing) and home not in NO_METRICS and name not in NO_METRICS:
            found[name] = line
    return found


def _models() -> dict[str, str]:
    from engram.models import models

    return models()


def _stream_contexts() -> dict[str, str]:
    from engram.streams import NEEDED, SCENARIOS

    return {
        name: first_line(scenario) + "".join(
            f" Needs {option}, such as --set '{option}={value}'."
            for option, value in NEEDED.get(name, {}).items()
        )
        for name, scenario in SCENARIOS.items()
    }  # fmt: skip


def _recipes() -> dict[str, str]:
    from engram.reproduce import table_names

    return table_names()


def _training() -> dict[str, str]:
    from engram.engine.training import Training

    return {f.name: _default(f) for f in fields(Training)}


_READERS: Mapping[str, Callable[[], dict[str, str]]] = {
    "methods": _methods, "memories": _memories, "detectors": _detectors, "models": _models,
    "streams": _stream_contexts, "metrics": _metrics, "recipes": _recipes, "training": _training,
}  # fmt: skip


# -- one of them ---------------------------------------------------------------------------------


def describe_component(kind: str, name: str, line: str) -> str:
    """The long form: docstring, then fields or arguments with their defaults."""
    if kind == "datasets":
        return f"{name}: {line}\nMore: engram data inspect {name}"
    if kind == "recipes":
        return f"{name}: {line}\nWhat it would run: engram reproduce {name} --dry-run"
    if kind == "memories":
        from engram.memory import Memory

        return f"{name}: {line}\n\nfields of memory:\n{list_settings(Memory)}"
    if kind == "training":
        from engram.engine.training import Training

        return f"{name} = {line}\n\n{explain_field(Training, name)}"
    if kind == "streams":
        return _about_stream(name)
    thing = _find_component(kind, name)
    listed = list_settings(thing)
    parts = [f"{name}: {_docstring_text(thing)}"]
    if kind == "detectors" and thing.fits:
        from engram.novelty import Detector

        parts.append(explain_field(Detector, "refit").rstrip())
    if listed:
        parts.append(f"{'fields' if is_dataclass(thing) else 'options'}:\n{listed}")
    return "\n\n".join(parts)


def _about_stream(name: str) -> str:
    """A scenario with its options, what it needs, and a command that runs it."""
    from engram.experiments.recipe_sections import COMMON_STREAM_FIELDS
    from engram.streams import NEEDED, SCENARIOS

    scenario, needed = SCENARIOS[name], NEEDED.get(name, {})
    shared = ", ".join(one for one in COMMON_STREAM_FIELDS if one not in ("kind", "data"))
    lines = [f"engram run --data {DATA_FOR.get(name, 'digits')} --stream {name} --method ER"]
    lines += [f"--set '{option}={value}'" for option, value in needed.items()]
    words = f"It needs {', '.join(needed)}. " if needed else ""
    return "\n\n".join([
        f"{name}: {_docstring_text(scenario)}", f"options:\n{list_settings(scenario)}",
        f"{words}Every stream also takes {shared}. Such as:",
        f"  {' '.join(lines)}",
    ])  # fmt: skip


def _find_component(kind: str, name: str) -> Any:
    if kind == "models":
        from engram.models.build import _MODELS

        return _MODELS[name]
    home = {"methods": "methods", "detectors": "novelty", "metrics": "metrics"}[kind]
    return getattr(import_module(f"engram.{home}"), name)


def explain_field(thing: Any, field: str) -> str:
    """What the ``Parameters`` of a docstring say about a field.

    Examples
    --------
    >>> from engram.engine.training import Training
    >>> print(explain_field(Training, "optim_reset"))
    optim_reset
        Reset the optimiser's state at every task.
    """
    entries = re.split(r"\n(?=\w)", _docstring_text(thing).partition("\n----------\n")[2])
    return next(one for one in entries if field in one.splitlines()[0].split(", "))


def _docstring_text(thing: Any) -> str:
    """A docstring without its examples."""
    return (inspect.getdoc(thing) or "").split("\nExamples\n---")[0].rstrip()


def list_settings(thing: Any) -> str:
    """Fields of a dataclass, or arguments of a function, with defaults.

    Examples
    --------
    >>> print(list_settings(lambda x, *, size=3: x))
      size = 3
    """
    if is_dataclass(thing):
        return "\n".join(f"  {f.name} = {_default(f)}" for f in fields(thing) if f.init)
    given = inspect.signature(thing).parameters.values()
    named = [p for p in given if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
    return "\n".join(
        f"  {p.name} = {'(required)' if p.default is p.empty else repr(p.default)}" for p in named
    )


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return repr(field.default)
    if field.default_factory is not MISSING:
        return repr(field.default_factory())
    return "(required)"
