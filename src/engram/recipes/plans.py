"""From recipes to plans: one run per seed, data and streams shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engram.data import Data
from engram.engine.run_spec import Run
from engram.engine.training import Training
from engram.methods.base import Method
from engram.recipes.identity import Identity, identify
from engram.recipes.plain import to_plain
from engram.recipes.plan import Plan
from engram.recipes.recipe import Recipe
from engram.streams.core import Stream


class Planner:
    """Makes plans; what recipes have in common is identified once.

    For one call only: between two calls, data and code may change.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Identity] = {}
        self._alive: list[Any] = []  # objects are known by their ids, which must not come again

    def identity(self, recipe: Recipe, stream: Stream, counted_from: str = "") -> Identity:
        """Who the runs of a recipe over its stream are."""
        parts = (recipe.method, recipe.model, recipe.training)
        made = None if stream.origin is None else stream.origin.options
        about = stream if made is None else {k: v for k, v in made.items() if k != "order"}
        key = (
            *map(id, parts), recipe.average, counted_from, stream.data.fingerprint(),
            recipe.stream["kind"], id(stream) if made is None else repr(to_plain(about)),
        )  # fmt: skip
        if key not in self._known:
            self._alive += [*parts, stream]
            self._known[key] = identify(
                stream, method=recipe.method, model=recipe.model, training=recipe.training,
                average=recipe.average, counted_from=counted_from,
            )  # fmt: skip
        return self._known[key]

    def plans(self, recipe: Recipe, stream: Stream) -> list[Plan]:
        """One plan per seed of a recipe."""
        found = replace(self.identity(recipe, stream), order=recipe.order_in(stream))
        return seeded(
            found, stream, method=recipe.method, model=recipe.model, training=recipe.training,
            seeds=recipe.seeds, keep=recipe.keep, average=recipe.average, label=recipe.label,
        )  # fmt: skip


def seeded(
    identity: Identity,
    stream: Stream,
    *,
    method: Method,
    model: Any,
    training: Training,
    seeds: Sequence[int],
    keep: str,
    average: str,
    label: str,
) -> list[Plan]:
    """One plan per seed of an experiment."""
    kept = {"seeds": list(seeds), "keep": keep, "label": label}
    content = {**identity.content, **kept}
    return [
        Plan(
            run=Run(stream=stream, method=method, model=model, training=training, seed=seed),
            content=content,
            recipe=identity.id,
            label=label,
            order=identity.order,
            keep=keep,
            average=average,
        )
        for seed in seeds
    ]


def plans_of(recipes: Sequence[Recipe], root: str | None = None) -> list[Plan]:
    """Plans of several recipes; equal data and streams are built once and shared."""
    loaded: dict[str, Data] = {}
    built: dict[str, Stream] = {}
    planner = Planner()
    plans: list[Plan] = []
    for recipe in recipes:
        source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
        if source not in loaded:
            loaded[source] = recipe.data(root)
        where = repr(to_plain(recipe.stream))
        if where not in built:
            built[where] = recipe.build_stream(loaded[source])
        plans += planner.plans(recipe, built[where])
    return plans
