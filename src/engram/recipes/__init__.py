"""Recipes: what to run, as data; and how it is run and recorded."""

from __future__ import annotations

from engram.recipes.api import run
from engram.recipes.assign import set_value
from engram.recipes.callback import Callback
from engram.recipes.execute import execute
from engram.recipes.names import build_method, method_label
from engram.recipes.order_study import OrderStudy
from engram.recipes.plan import Plan, plans_of
from engram.recipes.recipe import Recipe

__all__ = [
    "OrderStudy",
    "Plan",
    "Recipe",
    "Callback",
    "build_method",
    "execute",
    "method_label",
    "plans_of",
    "run",
    "set_value",
]
