"""How much the order of learning matters: any recipe under many task or class orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.engine.run_spec import Run
from engram.errors import bad, choose
from engram.metrics.order import OrderDisparity, order_disparity
from engram.recipes.execute import Watcher, execute
from engram.recipes.plan import Plan
from engram.recipes.recipe import Recipe
from engram.records import Result
from engram.streams.core import Stream
from engram.streams.orders import (
    all_task_orders,
    class_order,
    order_name,
    parse_order,
    random_class_orders,
    reorder,
)

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("task", "class")
TASK, CLASS = "t", "c"  # what an order's text begins with


def order_plans(
    recipe: Recipe,
    *,
    task_orders: Sequence[Sequence[int]] = (),
    class_orders: Sequence[Sequence[int]] = (),
    stream: Stream | None = None,
    root: str | None = None,
) -> list[Plan]:
    """One plan per order and seed; all share the recipe's id and are told apart by their order."""
    stream = recipe.build_stream(root=root) if stream is None else stream
    content = recipe.plain()
    content["stream"] = {**content["stream"], "head": stream.head}
    found = [(TASK + order_name(o), reorder(stream, task_order=o)) for o in task_orders]
    found += [(CLASS + order_name(o), reorder(stream, class_order=o)) for o in class_orders]
    return [
        Plan(
            run=Run(
                stream=ordered,
                method=recipe.method,
                model=recipe.model,
                training=recipe.training,
                seed=seed,
            ),
            content=content,
            recipe=recipe.id,
            label=recipe.label,
            order=name,
            keep=recipe.keep,
            average=recipe.average,
        )
        for name, ordered in found
        for seed in recipe.seeds
    ]


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
    watcher: Watcher | None = None,
    deadline: float | None = None,
    group_size: int = 0,
) -> OrderStudy:
    """Run recipes under many orders of the same tasks or classes, in lockstep.

    Parameters
    ----------
    task_orders
        ``"all"`` permutations of the tasks, a number of seeded ones, or the orders themselves.
    class_orders
        A number of seeded class orders, cut into tasks as the stream is, or the orders themselves.
    compile
        As in `engram.run`.
    group_size
        Runs trained together at most; 0 for all.

    Examples
    --------
    >>> recipe = Recipe.of({"stream": {"data": "blobs"}, "method": "Finetune",
    ...                     "training": {"epochs": 1}})
    >>> study = orders(recipe, task_orders=2, class_orders=2)
    >>> len(study.result)
    4
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    plans: list[Plan] = []
    built: dict[str, Stream] = {}
    for one in recipes:
        where = repr(one.stream)
        stream = built.setdefault(where, built.get(where) or one.build_stream(root=data))
        plans += order_plans(
            one,
            stream=stream,
            task_orders=_task_orders(task_orders, len(stream), order_seed),
            class_orders=_class_orders(class_orders, len(stream.order), order_seed),
        )
    result = execute(
        plans, out=out, device=device, together=True, compile=compile, watcher=watcher,
        deadline=deadline, group_size=group_size,
    )  # fmt: skip
    return OrderStudy(result, tuple(tuple(task.new) for task in stream.tasks))


def _task_orders(asked: Any, tasks: int, seed: int) -> list[Sequence[int]]:
    if asked == "all":
        return [tuple(o) for o in all_task_orders(tasks)]
    if isinstance(asked, int):
        return [tuple(o) for o in random_class_orders(tasks, asked, seed)] if asked else []
    if isinstance(asked, str):
        raise bad("task_orders", "'all', a number, or a list of orders", asked)
    return [tuple(o) for o in asked]


def _class_orders(asked: Any, classes: int, seed: int) -> list[Sequence[int]]:
    if isinstance(asked, int):
        return [tuple(o) for o in random_class_orders(classes, asked, seed)] if asked else []
    return [tuple(o) for o in asked]


@dataclass(frozen=True, eq=False)
class OrderStudy:
    """Results under many orders, and what they say about order sensitivity."""

    result: Result
    tasks: tuple[tuple[int, ...], ...]  # class ids of each task in the recipe's own order

    def performance(
        self, label: str, *, level: str = "task", seed: int | None = None
    ) -> np.ndarray[Any, Any]:
        """[order, unit] final accuracy of each task or class under each order.

        Task level takes the runs under task orders; class level those under class orders and the
        task orders, which are class orders as well.
        """
        choose("level", level, LEVELS)
        table = self.class_table(label, seed=seed)
        if level == "class":
            return table.to_numpy()
        table = table[[name.startswith(TASK) for name in table.index.get_level_values("order")]]
        means = [table[list(task)].to_numpy().mean(1) for task in self.tasks]
        return np.stack(means, axis=1)

    def class_table(self, label: str, *, seed: int | None = None) -> pd.DataFrame:
        """Final accuracy per class, one row per (seed, order)."""
        frame = self.result.frame()
        last = frame["stage"].max()
        head = self.result.heads[0]
        rows = frame[
            (frame["metric"] == "class_accuracy") & (frame["stage"] == last)
            & (frame["step"] == -1) & (frame["head"] == head) & (frame["label"] == label)
        ]  # fmt: skip
        if seed is not None:
            rows = rows[rows["seed"] == seed]
        if rows.empty:
            raise bad("label", f"one of {self.result.labels} with finished runs", label)
        rows = rows.astype({"order": str})
        found: pd.DataFrame = rows.pivot_table(
            index=["seed", "order"], columns="cls", values="value"
        )
        return found

    def disparity(self, label: str, *, level: str = "task") -> list[OrderDisparity]:
        """Order disparity of each repetition (seed)."""
        seeds = sorted({run.seed for run in self.result.select(label=label).runs})
        return [order_disparity(self.performance(label, level=level, seed=seed)) for seed in seeds]

    def summary(self, *, ddof: int = 0) -> pd.DataFrame:
        """AOPD and MOPD of every method at task and class level, mean and spread over seeds."""
        import pandas as pd

        rows = []
        for label in self.result.labels:
            row: dict[str, Any] = {"label": label}
            for level in LEVELS:
                if level == "task" and not self._has(label, TASK):
                    continue
                found = self.disparity(label, level=level)
                for name in ("aopd", "mopd"):
                    values = np.array([getattr(one, name) for one in found])
                    row[f"{level}_{name}"] = values.mean()
                    row[f"{level}_{name}_std"] = (
                        values.std(ddof=ddof) if len(values) > ddof else np.nan
                    )
            rows.append(row)
        return pd.DataFrame(rows).set_index("label")

    def _has(self, label: str, kind: str) -> bool:
        return any(run.order.startswith(kind) for run in self.result.select(label=label).runs)

    def extremes(self, label: str) -> pd.DataFrame:
        """Final average accuracy and forgetting under every order, best order first."""
        import pandas as pd

        chosen = self.result.select(label=label)
        frame = pd.DataFrame(
            {
                "order": [run.order for run in chosen.runs],
                "average_accuracy": chosen.metric("average_accuracy"),
                "forgetting": chosen.metric("forgetting"),
            }
        )
        frame = frame.groupby("order", as_index=False).mean()
        return frame.sort_values("average_accuracy", ascending=False, ignore_index=True)

    def by_end(self, label: str, *, place: str = "first") -> pd.DataFrame:
        """Mean accuracy and forgetting by the task that was learnt first, or last."""
        choose("place", place, ("first", "last"))
        frame = self.extremes(label)
        frame = frame[frame["order"].str.startswith(TASK)].copy()
        index = 0 if place == "first" else -1
        frame[f"{place}_task"] = [parse_order(o.removeprefix(TASK))[index] for o in frame["order"]]
        return frame.groupby(f"{place}_task")[["average_accuracy", "forgetting"]].mean()


def task_orders_as_class_orders(stream: Stream) -> list[list[int]]:
    """Every task order of a stream, rewritten as a class order."""
    return [class_order(stream, order) for order in all_task_orders(len(stream))]
