"""Recipes, and the functions that run them: `run`, `sweep`, `search`, `orders`, `open_world`; ids,
overrides, recording, callbacks.

Not here: training (engram.engine) and files of results (engram.records); processes and clusters
are in experiments.pools. Begin with recipe.Recipe, then plan and run_plans.execute, where all of
these functions end.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.experiments.build_methods import build_method, method_label
    from engram.experiments.callbacks import Callback
    from engram.experiments.order_study import OrderStudy
    from engram.experiments.overrides import set_value
    from engram.experiments.plan import Plan, make_plans
    from engram.experiments.recipe import Recipe
    from engram.experiments.run_methods import run
    from engram.experiments.run_plans import execute

# Imported on first use, so that the command line can list pools without importing torch.
_MODULE_OF = {
    "Callback": "callbacks",
    "OrderStudy": "order_study",
    "Plan": "plan",
    "Recipe": "recipe",
    "build_method": "build_methods",
    "execute": "run_plans",
    "method_label": "build_methods",
    "make_plans": "plan",
    "run": "run_methods",
    "set_value": "overrides",
}

__all__ = [
    "Callback",
    "OrderStudy",
    "Plan",
    "Recipe",
    "build_method",
    "execute",
    "method_label",
    "make_plans",
    "run",
    "set_value",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'engram.experiments' has no attribute {name!r}")
    value = getattr(import_module(f"engram.experiments.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
