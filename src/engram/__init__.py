"""Continual learning: train networks on a stream of tasks, measure what they forget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram import (  # noqa: F401 - for type checkers; modules are no part of __all__
        checks,
        data,
        deploy,
        engine,
        errors,
        keys,
        learner,
        losses,
        memory,
        methods,
        metrics,
        models,
        pools,
        probes,
        recipes,
        records,
        report,
        reproduce,
        serve,
        shares,
        streams,
        tuning,
        yaml_text,
    )
    from engram.data import Data, datasets, load
    from engram.deploy import Learner
    from engram.engine.training import Training
    from engram.errors import AccessError, BadArgument, EngramError, RecordError
    from engram.memory import Memory
    from engram.methods.base import Method, ReplaySpec
    from engram.pools.sweep import sweep
    from engram.probes.base import Probe
    from engram.recipes import Recipe, run
    from engram.recipes.open_world import open_world
    from engram.recipes.orders import orders
    from engram.records import Result, from_csv, read
    from engram.streams import (
        Stream,
        Task,
        balance,
        blurry,
        class_incremental,
        domain_incremental,
        eight_task,
        hierarchical,
        iirc,
        joint,
        new_instances,
        online,
        permuted,
        reorder,
        rotated,
        task_incremental,
        tinyimagenet_seq,
    )
    from engram.tuning.search import search

__version__ = "0.1.0"

# Public names and their homes; a name is imported when it is first used, so that `import engram`
# and the command line stay quick.
_HOME = {
    **dict.fromkeys(
        (
            "checks", "data", "deploy", "disk", "ending", "engine", "errors", "html_text", "job",
            "keys", "learner", "losses", "memory", "methods", "metrics", "models", "novelty",
            "own_code", "parallel", "pools", "probes", "recipes", "records", "report",
            "reproduce", "serve", "shares", "spelling", "streams", "tensor_file", "tuning",
            "yaml_text",
        ),
        "",
    ),
    **dict.fromkeys(("Data", "datasets", "load"), "data"),
    **dict.fromkeys(("AccessError", "BadArgument", "EngramError", "RecordError"), "errors"),
    **dict.fromkeys(("Method", "ReplaySpec"), "methods.base"),
    **dict.fromkeys(("Recipe", "run"), "recipes"),
    **dict.fromkeys(("Result", "from_csv", "read"), "records"),
    **dict.fromkeys(
        (
            "Stream", "Task", "balance", "blurry", "class_incremental", "domain_incremental",
            "eight_task", "hierarchical", "iirc", "joint", "new_instances", "online", "permuted",
            "reorder", "rotated", "task_incremental", "tinyimagenet_seq",
        ),
        "streams",
    ),
    "Learner": "deploy.learner",
    "Memory": "memory",
    "Detector": "novelty.base",
    "Probe": "probes.base",
    "open_world": "recipes.open_world",
    "orders": "recipes.orders",
    "search": "tuning.search",
    "sweep": "pools.sweep",
    "Training": "engine.training",
}  # fmt: skip

__all__ = [
    "AccessError",
    "BadArgument",
    "Data",
    "Detector",
    "EngramError",
    "Learner",
    "Memory",
    "Method",
    "Probe",
    "Recipe",
    "RecordError",
    "ReplaySpec",
    "Result",
    "Stream",
    "Task",
    "Training",
    "balance",
    "blurry",
    "class_incremental",
    "datasets",
    "domain_incremental",
    "eight_task",
    "from_csv",
    "hierarchical",
    "iirc",
    "joint",
    "load",
    "methods",
    "metrics",
    "models",
    "new_instances",
    "online",
    "open_world",
    "orders",
    "permuted",
    "read",
    "records",
    "reorder",
    "report",
    "rotated",
    "run",
    "search",
    "sweep",
    "task_incremental",
    "tinyimagenet_seq",
]


def __getattr__(name: str) -> Any:
    if name == "Replay":
        hint = "engram.ReplaySpec is what replay() returns, engram.methods.Replay the method"
        raise AttributeError(f"module 'engram' has no attribute 'Replay': {hint}")
    if name not in _HOME:
        raise AttributeError(f"module 'engram' has no attribute {name!r}")
    home = _HOME[name]
    if not home:
        return import_module(f"engram.{name}")
    value = getattr(import_module(f"engram.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
