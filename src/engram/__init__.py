"""Continual learning: train networks on a stream of tasks, measure what they forget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names once more, for type checkers
    from engram import methods, metrics, models, records, report
    from engram.data import Data, datasets, load
    from engram.deploy import Gate, Learner, ModelStore, Monitor
    from engram.engine.training import Training
    from engram.errors import AccessError, BadArgument, EngramError, RecordError
    from engram.experiments import Recipe, run
    from engram.experiments.open_world import open_world
    from engram.experiments.order_study import orders
    from engram.experiments.search import search
    from engram.experiments.sweep import sweep
    from engram.experiments.verification import verify
    from engram.memory import Memory
    from engram.methods.method import Method, ReplaySpec
    from engram.novelty.detector import Detector
    from engram.per_run import PerRun
    from engram.probes.probe import Probe
    from engram.records import Result, from_csv, import_log, read
    from engram.serve.client import Client
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

__version__ = "0.1.0"

# Where each public name is defined. It is imported when it is first used, so that `import engram`
# and the command line stay quick.
_MODULE_OF = {
    **dict.fromkeys(("Data", "datasets", "load"), "data"),
    **dict.fromkeys(("AccessError", "BadArgument", "EngramError", "RecordError"), "errors"),
    **dict.fromkeys(("Method", "ReplaySpec"), "methods.method"),
    **dict.fromkeys(("Recipe", "run"), "experiments"),
    **dict.fromkeys(("Result", "from_csv", "import_log", "read"), "records"),
    **dict.fromkeys(("Stream", "Task"), "streams"),
    # scenarios, and functions from stream to stream
    **dict.fromkeys(("class_incremental", "task_incremental", "domain_incremental"), "streams"),
    **dict.fromkeys(("joint", "hierarchical", "iirc", "permuted", "rotated"), "streams"),
    **dict.fromkeys(("blurry", "new_instances", "online", "balance", "reorder"), "streams"),
    **dict.fromkeys(("tinyimagenet_seq", "eight_task"), "streams"),
    "Client": "serve.client",
    **dict.fromkeys(("Gate", "Learner", "ModelStore", "Monitor"), "deploy"),
    "Memory": "memory",
    "PerRun": "per_run",
    "Detector": "novelty.detector",
    "Probe": "probes.probe",
    "open_world": "experiments.open_world",
    "orders": "experiments.order_study",
    "search": "experiments.search",
    "sweep": "experiments.sweep",
    "verify": "experiments.verification",
    "Training": "engine.training",
}
_PACKAGES = (
    "checks",
    "data",
    "deploy",
    "distributed",
    "engine",
    "errors",
    "experiments",
    "html_repr",
    "io",
    "keys",
    "learner",
    "linear_algebra",
    "losses",
    "memory",
    "methods",
    "metrics",
    "models",
    "novelty",
    "per_run",
    "plugins",
    "probes",
    "process",
    "records",
    "renamed",
    "report",
    "reproduce",
    "serve",
    "streams",
)

__all__ = [
    "AccessError",
    "BadArgument",
    "Client",
    "Data",
    "Detector",
    "EngramError",
    "Gate",
    "Learner",
    "Memory",
    "Method",
    "ModelStore",
    "Monitor",
    "PerRun",
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
    "import_log",
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
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "Replay":
        hint = "engram.ReplaySpec is what replay() returns, engram.methods.Replay the method"
        raise AttributeError(f"module 'engram' has no attribute 'Replay': {hint}")
    if name in _PACKAGES:
        return import_module(f"engram.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'engram' has no attribute {name!r}")
    value = getattr(import_module(f"engram.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
