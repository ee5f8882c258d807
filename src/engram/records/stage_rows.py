"""The rows of many runs after one stage, which differ in their numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engram.errors import bad
from engram.records.table import Rows


@dataclass
class StageRows:
    """Rows of R runs after one stage, [R, K]: what a probe returns.

    Examples
    --------
    >>> rows = StageRows(2)
    >>> rows.add("steps", [7.0, 8.0])
    >>> rows.add("accuracy", [[0.9, 0.5], [0.8, 0.4]], task=[0, 1], head="single")
    >>> table = rows.rows(recipe="r", label="ER", seed=[0, 1], order="", stage=3).frame()
    >>> table[["seed", "metric", "task", "value"]].values.tolist()[:3]
    [[0, 'steps', -1, 7.0], [0, 'accuracy', 0, 0.9], [0, 'accuracy', 1, 0.5]]
    """

    runs: int
    _metric: list[str] = field(default_factory=list)
    _head: list[str] = field(default_factory=list)
    _numbers: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ("value", "task", "cls", "step")}
    )

    def add(
        self, metric: str | Sequence[str], value: Any, *, task: Any = -1, cls: Any = -1,
        step: Any = -1, head: str = "",
    ) -> None:  # fmt: skip
        """Values [R, k], or [R] for one row, with places that are broadcast to that shape."""
        value = _array(value)
        value = value[:, None] if value.ndim == 1 else value
        if value.ndim != 2 or len(value) != self.runs:
            raise bad(
                "value", f"numbers [{self.runs}] or [{self.runs}, k], run by run", value.shape
            )
        names = [metric] * value.shape[1] if isinstance(metric, str) else list(metric)
        if len(names) != value.shape[1]:
            raise bad("metric", f"a name for each of {value.shape[1]} columns", names)
        self._metric += names
        self._head += [head] * len(names)
        for name, one in (("value", value), ("task", task), ("cls", cls), ("step", step)):
            self._numbers[name].append(np.broadcast_to(_array(one), value.shape))

    def extend(self, other: StageRows, prefix: str = "") -> None:
        """Add the rows of another collection, their metrics with a prefix."""
        if other.runs != self.runs:
            raise bad("rows", f"rows of {self.runs} runs", other.runs)
        self._metric += [prefix + name for name in other._metric]
        self._head += other._head
        for name, parts in other._numbers.items():
            self._numbers[name] += parts

    def rows(self, *, recipe: Any, label: Any, seed: Any, order: Any, stage: int) -> Rows:
        """The long table of all runs, one run after the other; who they are comes as [R] each."""
        who = {"recipe": recipe, "label": label, "seed": seed, "order": order}
        apart = {k: v if isinstance(v, str) else np.asarray(v)[:, None] for k, v in who.items()}
        rows = Rows()
        if self._metric:
            numbers = {k: np.concatenate(parts, axis=1) for k, parts in self._numbers.items()}
            rows.add_array(self._metric, stage=stage, head=self._head, **apart, **numbers)
        return rows

    def __len__(self) -> int:
        """K, the rows of one run."""
        return len(self._metric)


def _array(value: Any) -> Any:
    """Numbers of any kind as an array on the host."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
