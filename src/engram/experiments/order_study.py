"""`engram.orders`: run recipes under many task or class orders, and measure order sensitivity
(`OrderStudy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, check_choice, unknown
from engram.experiments.callbacks import Callback, StageHook
from engram.experiments.plan import CLASS, TASK, Plan, Planner
from engram.experiments.recipe import Recipe
from engram.experiments.recipe_sections import check_orders
from engram.experiments.run_plans import execute
from engram.metrics.order_sensitivity import OrderDisparity, order_disparity
from engram.metrics.statistics import std
from engram.records import Result
from engram.records.prediction_scoring import average_name
from engram.renamed import accept_old_arguments
from engram.streams.stream import Stream
from engram.streams.task_orders import parse_order

if TYPE_CHECKING:
    import pandas as pd


@accept_old_arguments(again="rerun")
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
    exact: bool = False,
    checkpoint_every: float | str = "5m",
    callback: Callback | StageHook | str | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    rerun: bool = False,
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
    compile, deterministic, exact, checkpoint_every, rerun
        As in `engram.run`.
    group_size
        Maximum number of runs trained together; 0 for all.

    Examples
    --------
    >>> recipe = Recipe.of(
    ...     {"stream": {"data": "blobs"}, "method": "Finetune", "training": {"epochs": 1}}
    ... )
    >>> study = orders(recipe, task_orders=2, class_orders=2)
    >>> len(study.result)
    4
    """
    recipes = _read_recipes(recipe)
    section = check_orders(
        {"task_orders": task_orders, "class_orders": class_orders, "order_seed": order_seed}
    )
    plans: list[Plan] = []
    tasks: dict[str, Tasks] = {}
    built: dict[str, Stream] = {}
    planner = Planner(data)
    for one in recipes:
        where = repr(one.stream)
        stream = built.setdefault(where, built.get(where) or one.build_stream(root=data))
        found = planner.plans(one.change(orders=section), stream)
        tasks.update((plan.recipe, tuple(task.shown for task in stream)) for plan in found[:1])
        plans += found
    result = execute(
        plans, out=out, device=device, together=not exact, compile=compile, callback=callback,
        deadline=deadline, group_size=group_size, rerun=rerun, deterministic=deterministic,
        exact=exact, checkpoint_every=checkpoint_every,
    ).result()  # fmt: skip
    return OrderStudy(result, tasks)


def _read_recipes(given: Any) -> list[Recipe]:
    """Read the recipes of a study, whose ids must differ."""
    found = [given] if isinstance(given, Recipe) else given
    if isinstance(found, (str, Mapping)) or not isinstance(found, Sequence) or not len(found):
        raise bad("recipe", "a Recipe (Recipe.of makes one of a dict) or a list of them", given)
    for i, one in enumerate(found):
        if not isinstance(one, Recipe):
            raise bad(f"recipe[{i}]", "a Recipe (Recipe.of makes one of a dict)", one)
    for key, times in Counter(map(_study_key, found)).items():
        if times > 1:
            labels = [one.label for one in found if _study_key(one) == key]
            expected = "recipes that differ in more than their labels, seeds and what they keep"
            raise bad("recipe", expected, f"{times} times the same, labels {labels}")
    return list(found)


def _study_key(recipe: Recipe) -> tuple[str, str]:
    """Return the recipe's key, and the order to which the orders of a study are relative."""
    return recipe.key, recipe.order


# Results of a study.


LEVELS = ("task", "class")
Tasks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class OrderStudy:
    """Results under many orders, with measures of order sensitivity.

    The `label` of a method is the recipe's label, or its id if several recipes have
    the same label.

    Parameters
    ----------
    result
        All runs; the order of each is ``t`` or ``c`` with the numbers of tasks or classes.
    tasks
        Recipe id -> class ids of each task, in the recipe's own order.

    Examples
    --------
    >>> from engram.experiments import Recipe
    >>> from engram.experiments.order_study import orders
    >>> recipe = Recipe.of(
    ...     {
    ...         "stream": {"data": "blobs", "data_options": {"classes": 4}},
    ...         "method": "Finetune",
    ...         "training": {"epochs": 1},
    ...         "label": "plain",
    ...     }
    ... )
    >>> study = orders(recipe, device="cpu")
    >>> study.names, study.tasks[recipe.id]
    (['plain'], ((0, 1), (2, 3)))
    >>> study.performance("plain").shape, study.performance("plain", level="class").shape
    ((2, 2), (2, 4))
    """

    result: Result
    tasks: Mapping[str, Tasks]

    @property
    def names(self) -> list[str]:
        """One name per recipe: its label, with what differs if several share the label."""
        return self.result.labels

    def _recipe(self, label: str) -> str:
        """Return the recipe id of a label or an id."""
        known = self._recipes()
        if label in known.values():
            return label
        if label not in known:
            raise unknown("label", label, known)
        return known[label]

    def _recipes(self) -> dict[str, str]:
        pairs = zip(self.result.run_labels, self.result.runs, strict=True)
        return {label: run.recipe for label, run in pairs}

    def _finished(self, label: str, kind: str = "") -> Result:
        """Select the recipe's runs that have learnt their last task."""
        chosen = self.result.select(recipe=self._recipe(label))
        last = len(self.tasks[self._recipe(label)]) - 1
        names = {run.order for run in chosen.runs
                 if run.order.startswith(kind) and last in chosen.stages[run]}  # fmt: skip
        if not names:
            what = {"": "", TASK: " under task orders", CLASS: " under class orders"}[kind]
            raise bad("label", f"a recipe with finished runs{what}", label)
        return chosen.select(order=names)

    def performance(
        self, label: str, *, level: str = "task", seed: int | None = None
    ) -> np.ndarray[Any, Any]:
        """Collect the final accuracy of each task or class under each order, [order, unit].

        Task level takes the recorded accuracy of each task in the runs under task orders; class
        level those under class orders and the task orders, which are class orders as well.
        """
        if check_choice("level", level, LEVELS) == "class":
            return self.class_table(label, seed=seed).to_numpy()
        return self.task_table(label, seed=seed).to_numpy()

    def task_table(self, label: str, *, seed: int | None = None) -> pd.DataFrame:
        """Tabulate the final accuracy of each task of the recipe's order by (seed, task order).

        Examples
        --------
        >>> from engram.experiments import Recipe
        >>> from engram.experiments.order_study import orders
        >>> recipe = Recipe.of(
        ...     {
        ...         "stream": {"data": "digits", "kind": "permuted", "tasks": 2},
        ...         "method": "Finetune",
        ...         "training": {"iterations": 1},
        ...     }
        ... )
        >>> orders(recipe, device="cpu").task_table("Finetune").index.tolist()
        [(0, 't0-1'), (0, 't1-0')]
        """
        import pandas as pd

        chosen = self._finished(label, TASK)
        count = len(self.tasks[self._recipe(label)])
        rows = {}
        for run, matrix in zip(chosen.runs, chosen.full_matrix, strict=True):
            order = list(parse_order(run.order.removeprefix(TASK)))
            if seed in (None, run.seed) and count - 1 in chosen.stages[run]:
                values = np.empty(count)
                values[order] = matrix[count - 1, :count]  # the k-th learnt is task order[k]
                rows[run.seed, run.order] = values
        if not rows:
            raise bad("seed", "one with finished runs", seed)
        index = pd.MultiIndex.from_tuples(list(rows), names=["seed", "order"])
        columns = pd.RangeIndex(count, name="task")
        return pd.DataFrame(list(rows.values()), index=index, columns=columns).sort_index()

    def class_table(self, label: str, *, seed: int | None = None) -> pd.DataFrame:
        """Tabulate the final accuracy of each class by (seed, order).

        Examples
        --------
        >>> from engram.experiments import Recipe
        >>> from engram.experiments.order_study import orders
        >>> recipe = Recipe.of(
        ...     {
        ...         "stream": {"data": "blobs", "data_options": {"classes": 4}},
        ...         "method": "Finetune",
        ...         "training": {"epochs": 1},
        ...     }
        ... )
        >>> study = orders(recipe, task_orders=0, class_orders=3, device="cpu")
        >>> table = study.class_table("Finetune")
        >>> table.shape, table.columns.tolist(), table.index.names
        ((3, 4), [0, 1, 2, 3], FrozenList(['seed', 'order']))
        """
        chosen = self._finished(label)
        frame, last = chosen.frame(), len(self.tasks[self._recipe(label)]) - 1
        rows = frame[
            (frame["metric"] == "class_accuracy") & (frame["stage"] == last)
            & (frame["step"] == -1) & (frame["head"] == chosen.heads[0])
        ]  # fmt: skip
        if seed is not None:
            rows = rows[rows["seed"] == seed]
        if rows.empty:
            raise bad("seed", "one with finished runs", seed)
        if (rows["task"] < 0).any():  # label sets: an image that several tasks test counts once
            rows = rows[rows["task"] < 0]
        found: pd.DataFrame = rows.astype({"order": str}).pivot_table(
            index=["seed", "order"], columns="cls", values="value"
        )
        return found

    def disparity(self, label: str, *, level: str = "task") -> list[OrderDisparity]:
        """Compute the order disparity of each repetition (seed)."""
        kind = TASK if check_choice("level", level, LEVELS) == "task" else ""
        seeds = sorted({run.seed for run in self._finished(label, kind).runs})
        return [order_disparity(self.performance(label, level=level, seed=seed)) for seed in seeds]

    def summary(self, *, ddof: int = 0) -> pd.DataFrame:
        """Tabulate AOPD and MOPD of every recipe by task and class, mean and deviation over seeds.

        Deviations divide by the number of seeds, as the benchmark does; ``ddof=1`` by one less,
        as everywhere else, which is NaN for one seed.
        """
        import pandas as pd

        rows = []
        for name, recipe in self._recipes().items():
            row: dict[str, Any] = {"label": name}
            for level in LEVELS:
                if level == "task" and not self._has(recipe, TASK):
                    continue
                found = self.disparity(recipe, level=level)
                for measure in ("aopd", "mopd"):
                    values = np.array([getattr(one, measure) for one in found])
                    row[f"{level}_{measure}"] = values.mean()
                    row[f"{level}_{measure}_std"] = std(values, ddof=ddof)
            rows.append(row)
        return pd.DataFrame(rows).set_index("label")

    def _has(self, recipe: str, kind: str) -> bool:
        return any(run.order.startswith(kind) for run in self.result.select(recipe=recipe).runs)

    def extremes(self, label: str) -> pd.DataFrame:
        """Tabulate average accuracy and forgetting after all tasks by order, best order first.

        For label sets, their score replaces the accuracy. Means over seeds. The first and the last
        line are the best and the worst order.

        Examples
        --------
        >>> from engram.experiments import Recipe
        >>> from engram.experiments.order_study import orders
        >>> recipe = Recipe.of(
        ...     {
        ...         "stream": {"data": "blobs", "data_options": {"classes": 4}},
        ...         "method": "Finetune",
        ...         "training": {"epochs": 1},
        ...     }
        ... )
        >>> table = orders(recipe, device="cpu").extremes("Finetune")
        >>> sorted(table["order"]), table.columns.tolist()
        (['t0-1', 't1-0'], ['order', 'average_accuracy', 'forgetting'])
        """
        import pandas as pd

        chosen = self._finished(label)
        names = (average_name(chosen.figures[0]), "forgetting")
        values = {name: chosen.metric(name) for name in names}
        frame = pd.DataFrame({"order": [run.order for run in chosen.runs], **values})
        frame = frame.groupby("order", as_index=False).mean()
        return frame.sort_values(names[0], ascending=False, ignore_index=True)

    def by_end(self, label: str, *, place: str = "first") -> pd.DataFrame:
        """Tabulate mean accuracy and forgetting by the task that was learnt first, or last.

        Examples
        --------
        >>> from engram.experiments import Recipe
        >>> from engram.experiments.order_study import orders
        >>> recipe = Recipe.of(
        ...     {
        ...         "stream": {"data": "blobs", "data_options": {"classes": 6}},
        ...         "method": "Finetune",
        ...         "training": {"epochs": 1},
        ...     }
        ... )
        >>> orders(recipe, device="cpu").by_end("Finetune", place="last").index.tolist()
        [0, 1, 2]
        """
        check_choice("place", place, ("first", "last"))
        self._finished(label, TASK)  # there must be task orders
        frame = self.extremes(label)
        frame = frame[frame["order"].str.startswith(TASK)].copy()
        index = 0 if place == "first" else -1
        frame[f"{place}_task"] = [parse_order(o.removeprefix(TASK))[index] for o in frame["order"]]
        return frame.drop(columns="order").groupby(f"{place}_task").mean()
