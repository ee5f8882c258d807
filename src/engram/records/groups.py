"""Accuracy on groups of test rows, told apart by an attribute of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engram.errors import RecordError, bad, unknown
from engram.records import views
from engram.records.items import Bools, Items
from engram.records.recompute import ended

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result


def group_accuracy(result: Result, *, by: str, stage: int | None) -> pd.DataFrame:
    """See `Result.group_accuracy`."""
    import pandas as pd

    lines: list[dict[str, float]] = []
    names: dict[str, None] = {}  # in the order of the attribute's values, over all runs
    for number, (run, head) in enumerate(zip(result.runs, result.heads, strict=True)):
        found = ended(result, number, stage)
        if found is None:
            lines.append({})
            continue
        k, items, kept = found
        if items.multilabel:
            raise RecordError(f"{run}: has sets of labels; groups are told by accuracy alone")
        met = items.task <= k
        right = np.asarray(views.hits(kept.predicted(items, head=head), items).any(-1))
        groups = groups_of(items, by)
        names |= dict.fromkeys(groups)
        lines.append({
            name: float(right[mine & met].mean()) for name, mine in groups.items()
            if (mine & met).any()
        })  # fmt: skip
    index = pd.MultiIndex.from_tuples(
        [tuple(run) for run in result.runs], names=["recipe", "seed", "order"]
    )
    return pd.DataFrame(lines, index=index, columns=pd.Index(list(names), name=by))


def groups_of(items: Items, by: str) -> dict[str, Bools]:
    """The items [n] of each group that occurs, by its name.

    Examples
    --------
    >>> items = Items(rows=[0, 1, 2], task=[0, 0, 0], targets=[0, 1, 0], opening=[0, 0],
    ...               visible=[[1, 1]], classes=[0, 1], attributes={"camera": [1, 0, 1]},
    ...               attribute_names={"camera": ("left", "right")})
    >>> {name: mine.tolist() for name, mine in groups_of(items, "camera").items()}
    {'left': [False, True, False], 'right': [True, False, True]}
    """
    if by not in items.attributes:
        if not items.attributes:
            raise bad("by", "an attribute of the data, which has none in these records", by)
        raise unknown("by", by, items.attributes)
    values, names = items.attributes[by], items.attribute_names.get(by, ())
    return {
        names[value] if 0 <= value < len(names) else str(value): values == value
        for value in np.unique(values).tolist()
    }
