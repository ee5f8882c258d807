"""How much the order of learning matters: any recipe under many task or class orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.errors import bad, whole
from engram.recipes.callback import Callback
from engram.recipes.execute import execute
from engram.recipes.order_study import CLASS, TASK, OrderStudy, Tasks
from engram.recipes.plan import Plan, Planner
from engram.recipes.recipe import Recipe
from engram.streams.core import Stream
from engram.streams.orders import (
    all_task_orders,
    order_name,
    random_class_orders,
    reorder,
)


def order_plans(
    recipe: Recipe,
    *,
    task_orders: Sequence[Sequence[int]] = (),
    class_orders: Sequence[Sequence[int]] = (),
    stream: Stream | None = None,
    root: str | None = None,
    planner: Planner | None = None,
) -> list[Plan]:
    """One plan per order and seed; all share one id, their orders tell them apart."""
    stream = recipe.build_stream(root=root) if stream is None else stream
    found = {TASK + order_name(o): reorder(stream, task_order=o) for o in task_orders}
    found |= {CLASS + order_name(o): reorder(stream, class_order=o) for o in class_orders}
    return (planner or Planner(root)).plans(recipe, stream, orders=found)


def orders(
    recipe: Recipe | Sequence[Recipe],
    *,
    task_orders: int | str | Sequence[Sequence[int]] = "all",
    class_orders: int | Sequence[Sequence[int]] = 0,
    order_seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    data: str | None = None,
    compile: bool = False,
    deterministic: bool = False,
    checkpoint_every: float | str = "5m",
    callback: Callback | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    again: bool = False,
) -> OrderStudy:
    """Run recipes with many orders of the same tasks or classes, in lockstep.

    Parameters
    ----------
    recipe
        One or more recipes; they may share a label and have different numbers of tasks.
    task_orders
        ``"all"`` permutations of the tasks, a number of seeded ones, or the orders themselves.
    class_orders
        A number of seeded class orders, cut into tasks as the stream is, or the orders themselves.
    compile, deterministic, checkpoint_every, again
        As in `engram.run`.
    group_size
        Maximum number of runs trained together; 0 for all.

    Examples
    --------
    >>> recipe = Recipe.of({"stream": {"data": "blobs"}, "method": "Finetune",
    ...                     "training": {"epochs": 1}})
    >>> study = orders(recipe, task_orders=2, class_orders=2)
    >>> len(study.result)
    4
    """
    recipes = _recipes(recipe)
    plans: list[Plan] = []
    tasks: dict[str, Tasks] = {}
    built: dict[str, Stream] = {}
    planner = Planner(data)
    for one in recipes:
        where = repr(one.stream)
        stream = built.setdefault(where, built.get(where) or one.build_stream(root=data))
        found = order_plans(
            one,
            stream=stream,
            planner=planner,
            task_orders=_task_orders(task_orders, len(stream), order_seed),
            class_orders=_class_orders(class_orders, stream.order, order_seed),
        )
        tasks.update((plan.recipe, tuple(task.shown for task in stream)) for plan in found[:1])
        plans += found
    if not plans:
        raise bad("task_orders", "at least one order (or class_orders)", task_orders)
    result = execute(
        plans, out=out, device=device, together=True, compile=compile, callback=callback,
        deadline=deadline, group_size=group_size, again=again, deterministic=deterministic,
        checkpoint_every=checkpoint_every,
    ).result()  # fmt: skip
    return OrderStudy(result, tasks)


def _recipes(given: Any) -> list[Recipe]:
    """The recipes of a study, which must be told apart by their ids."""
    found = [given] if isinstance(given, Recipe) else given
    if isinstance(found, (str, Mapping)) or not isinstance(found, Sequence) or not len(found):
        raise bad("recipe", "a Recipe (Recipe.of makes one of a dict) or a list of them", given)
    for i, one in enumerate(found):
        if not isinstance(one, Recipe):
            raise bad(f"recipe[{i}]", "a Recipe (Recipe.of makes one of a dict)", one)
    for key, times in Counter(map(_study, found)).items():
        if times > 1:
            labels = [one.label for one in found if _study(one) == key]
            expected = "recipes that differ in more than their labels, seeds and what they keep"
            raise bad("recipe", expected, f"{times} times the same, labels {labels}")
    return list(found)


def _study(recipe: Recipe) -> tuple[str, str]:
    """What a recipe asks, and the order from which the orders of a study count."""
    return recipe.key, recipe.order


def _task_orders(given: Any, tasks: int, seed: int) -> list[Sequence[int]]:
    if isinstance(given, str):
        if given != "all":
            raise bad("task_orders", "'all', a number, or a list of orders", given)
        return [tuple(o) for o in all_task_orders(tasks)]
    if isinstance(given, int):
        count = whole("task_orders", given)
        return [tuple(o) for o in random_class_orders(tasks, count, seed)] if count else []
    return _listed("task_orders", given)


def _class_orders(given: Any, classes: Sequence[int], seed: int) -> list[Sequence[int]]:
    if isinstance(given, int):
        count, ids = whole("class_orders", given), sorted(classes)
        drawn = random_class_orders(len(ids), count, seed) if count else []
        return [tuple(ids[i] for i in order) for order in drawn]
    return _listed("class_orders", given)


def _listed(argument: str, given: Any) -> list[Sequence[int]]:
    try:
        found: list[Sequence[int]] = [tuple(order) for order in given]
    except TypeError:
        raise bad(
            argument, "a number, or a list of orders such as [(0, 1), (1, 0)]", given
        ) from None
    twice = [order for order, times in Counter(found).items() if times > 1]
    if twice:
        raise bad(argument, "every order only once", f"{twice} more than once")
    return found
