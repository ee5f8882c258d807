"""What the figures of all papers have in common: tables of numbers, and how methods look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from engram.report.style import Style


def frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Records as a table whose columns are there even if nothing is.

    Examples
    --------
    >>> frame([], ["method", "accuracy"]).columns.tolist()
    ['method', 'accuracy']
    """
    import pandas as pd

    return pd.DataFrame([dict(one) for one in records], columns=list(columns))


def looks(known: Sequence[str], names: Iterable[Any] = ()) -> dict[str, Style]:
    """A look per name: that of its place in `known` in whatever figure it is, others after them.

    Examples
    --------
    >>> few, all = looks(["EWC", "LwF"], ["LwF"]), looks(["EWC", "LwF"], ["EWC", "LwF", "new"])
    >>> few["LwF"] == all["LwF"] != all["new"]
    True
    """
    from engram.report.style import styles

    return styles(list(dict.fromkeys([*known, *map(str, names)])))


class Legend:
    """Says of each name once that it belongs into the legend.

    Examples
    --------
    >>> legend = Legend()
    >>> legend("EWC"), legend("LwF"), legend("EWC")
    (True, True, False)
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, name: str) -> bool:
        first = name not in self._seen
        self._seen.add(name)
        return first
