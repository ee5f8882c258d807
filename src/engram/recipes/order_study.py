"""What results under many orders say about the order of learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, choose, unknown
from engram.metrics.order import OrderDisparity, order_disparity
from engram.metrics.statistics import std
from engram.records import Result
from engram.records.judging import average_name
from engram.streams.orders import parse_order

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("task", "class")
TASK, CLASS = "t", "c"  # what an order's text begins with
Tasks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class OrderStudy:
    """Results under many orders, and what they say about order sensitivity.

    Where a method asks for a `label`, give the recipe's label; its id where several recipes have
    the same label.

    Parameters
    ----------
    result
        All runs; the order of each is ``t`` or ``c`` and the numbers of tasks or classes.
    tasks
        Recipe id -> class ids of each task, in the recipe's own order.

    Examples
    --------
    >>> from engram.recipes import Recipe
    >>> from engram.recipes.orders import orders
    >>> recipe = Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 4}},
    ...                     "method": "Finetune", "training": {"epochs": 1}, "label": "plain"})
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
        """One name per recipe: its label, with its id where several share the label."""
        return self.result.labels

    def _recipe(self, label: str) -> str:
        """The recipe that a label or an id means."""
        known = self._recipes()
        if label in known.values():
            return label
        same = [key for name, key in known.items() if name == f"{label} [{key}]"]
        if same:
            raise bad("label", f"an id ({', '.join(same)}), since recipes share this label", label)
        if label not in known:
            raise unknown("label", label, known)
        return known[label]

    def _recipes(self) -> dict[str, str]:
        pairs = zip(self.result.run_labels, self.result.runs, strict=True)
        return {label: run.recipe for label, run in pairs}

    def _finished(self, label: str, kind: str = "") -> Result:
        """The recipe's runs that have learnt their last task."""
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
        """[order, unit] final accuracy of each task or class under each order.

        Task level takes the recorded accuracy of each task in the runs under task orders; class
        level those under class orders and the task orders, which are class orders as well.
        """
        if choose("level", level, LEVELS) == "class":
            return self.class_table(label, seed=seed).to_numpy()
        return self.task_table(label, seed=seed).to_numpy()

    def task_table(self, label: str, *, seed: int | None = None) -> pd.DataFrame:
        """Final accuracy of each task of the recipe's own order, one row per (seed, task order).

        Examples
        --------
        >>> from engram.recipes import Recipe
        >>> from engram.recipes.orders import orders
        >>> recipe = Recipe.of({"stream": {"data": "digits", "kind": "permuted", "tasks": 2},
        ...                     "method": "Finetune", "training": {"iterations": 1}})
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
        """Final accuracy of each class, one row per (seed, order).

        Examples
        --------
        >>> from engram.recipes import Recipe
        >>> from engram.recipes.orders import orders
        >>> recipe = Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 4}},
        ...                     "method": "Finetune", "training": {"epochs": 1}})
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
        """Order disparity of each repetition (seed)."""
        kind = TASK if choose("level", level, LEVELS) == "task" else ""
        seeds = sorted({run.seed for run in self._finished(label, kind).runs})
        return [order_disparity(self.performance(label, level=level, seed=seed)) for seed in seeds]

    def summary(self, *, ddof: int = 0) -> pd.DataFrame:
        """AOPD and MOPD of every recipe at task and class level, mean and deviation over seeds.

        Deviations divide by the number of seeds, as the benchmark's own do; ``ddof=1`` by one less,
        as everywhere else. NaN for one seed.
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
        """Average accuracy and forgetting after all tasks under every order, best order first.

        Of label sets, their score in place of the accuracy. Mean over seeds. The first and the last
        line are the best and the worst order.

        Examples
        --------
        >>> from engram.recipes import Recipe
        >>> from engram.recipes.orders import orders
        >>> recipe = Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 4}},
        ...                     "method": "Finetune", "training": {"epochs": 1}})
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
        """Mean accuracy and forgetting by the task that was learnt first, or last.

        Examples
        --------
        >>> from engram.recipes import Recipe
        >>> from engram.recipes.orders import orders
        >>> recipe = Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 6}},
        ...                     "method": "Finetune", "training": {"epochs": 1}})
        >>> orders(recipe, device="cpu").by_end("Finetune", place="last").index.tolist()
        [0, 1, 2]
        """
        choose("place", place, ("first", "last"))
        self._finished(label, TASK)  # there must be task orders
        frame = self.extremes(label)
        frame = frame[frame["order"].str.startswith(TASK)].copy()
        index = 0 if place == "first" else -1
        frame[f"{place}_task"] = [parse_order(o.removeprefix(TASK))[index] for o in frame["order"]]
        return frame.drop(columns="order").groupby(f"{place}_task").mean()
