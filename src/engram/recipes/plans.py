"""From recipes to plans: one run per seed, data and streams shared."""

from __future__ import annotations

from collections.abc import Sequence

from engram.data import Data
from engram.recipes.plain import to_plain
from engram.recipes.plan import Plan
from engram.recipes.recipe import Recipe
from engram.streams.core import Stream


def recipe_plans(recipe: Recipe, stream: Stream) -> list[Plan]:
    """One plan per seed of a recipe."""
    content = dict(recipe.content)
    content["stream"] = {**content["stream"], "head": stream.head}
    return [
        Plan(
            run=run,
            content=content,
            recipe=recipe.id,
            label=recipe.label,
            order=recipe.order,
            keep=recipe.keep,
            average=recipe.average,
        )
        for run in recipe.runs(stream)
    ]


def plans_of(recipes: Sequence[Recipe], root: str | None = None) -> list[Plan]:
    """Plans of several recipes; equal data and streams are built once and shared."""
    loaded: dict[str, Data] = {}
    built: dict[str, Stream] = {}
    plans: list[Plan] = []
    for recipe in recipes:
        source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
        if source not in loaded:
            loaded[source] = recipe.data(root)
        where = repr(to_plain(recipe.stream))
        if where not in built:
            built[where] = recipe.build_stream(loaded[source])
        plans += recipe_plans(recipe, built[where])
    return plans
