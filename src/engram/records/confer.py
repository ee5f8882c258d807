"""What is known to be wrong in ConFER's printed tables, and the numbers set right.

Accuracy and forgetting of a block (a data set, an order, with or without augmentation) are two
views of one matrix: i Acc_i + (i - 1) CF_i is the sum of the accuracies that the first i tasks had
right after they were learnt. As printed, many of these exceed 1. They do not if every forgetting
table is rotated by one column, and those of Task-IL were divided by i - 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

BLOCK = ("dataset", "setting", "order", "augmentation", "method")
ORDER_IN_DOUBT = "order in doubt"
# Sets whose accuracies right after learning are those of O1 under O2 and O3 as well, although
# their tasks hold other classes. On CK+ they differ.
ORDERLESS = ("RAF-DB", "AffectNet", "FER-2013", "iCV-MEFED", "BAUM-1")
# Notes of the list that are settled once the columns are rotated.
_SETTLED = (
    "CF columns shifted by one stage? (strong evidence)",
    "last printed stage fits Acc of stage 2 ",
)
_LAST_COLUMN = "meaning of the last printed column not determined, taken as stage 2"


def corrected(table: pd.DataFrame, *, rotated: bool = True, rescaled: bool = True) -> pd.DataFrame:
    """The table with forgetting in its right columns and norm, and doubts about orders."""
    forgetting = (table["metric"] == "CF").to_numpy(np.bool_)
    if rotated:
        _rotate(table, forgetting)
    if rescaled:
        _rescale(table, forgetting & (table["setting"] == "Task-IL").to_numpy(np.bool_))
    other = table["dataset"].isin(ORDERLESS) & table["order"].isin(("O2", "O3"))
    _doubt(table, other.to_numpy(np.bool_), ORDER_IN_DOUBT)
    return table


def learnt(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracies of tasks right after they were learnt, from accuracy and forgetting.

    One row per method of a block, one column per task; NaN where a number is lacking.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [(1, "Acc", 0.9), (2, "Acc", 0.7), (2, "CF", 0.4)]
    >>> table = pd.DataFrame(rows, columns=["stage", "metric", "value"])
    >>> table = table.assign(**dict.fromkeys(BLOCK, "x"))
    >>> learnt(table).round(2).values.tolist()
    [[0.9, 0.9]]
    """
    parts = {
        name: table[table["metric"] == name].pivot_table(
            index=list(BLOCK), columns="stage", values="value"
        )
        for name in ("Acc", "CF")
    }
    accuracy = parts["Acc"]
    first = accuracy.columns[0]
    forgetting = parts["CF"].reindex(index=accuracy.index, columns=accuracy.columns)
    forgetting[first] = 0.0  # nothing to forget yet
    stage = accuracy.columns.to_numpy(np.float64)
    sums: pd.DataFrame = accuracy * stage + forgetting * (stage - 1)
    found = sums.diff(axis=1)
    found[first] = sums[first]
    return found


def _rotate(table: pd.DataFrame, rows: npt.NDArray[np.bool_]) -> None:
    stage = table["printed_stage"].to_numpy(np.int64)
    last = table.groupby(["table", "dataset"])["printed_stage"].transform("max").to_numpy(np.int64)
    wrapped = rows & (stage == last)
    table["doubt"] = [_unsettled(text) for text in table["doubt"]]
    table["stage"] = table["stage"].mask(rows, stage + 1).mask(wrapped, 2)
    # Of Class-IL only table 6 shows where the last column belongs; in Task-IL all tables do.
    shown = (table["setting"] == "Task-IL") | (table["table"] == "6")
    _doubt(table, wrapped & ~shown.to_numpy(np.bool_), _LAST_COLUMN)


def _unsettled(doubt: str) -> str:
    return "; ".join(one for one in doubt.split("; ") if not one.startswith(_SETTLED))


def _rescale(table: pd.DataFrame, rows: npt.NDArray[np.bool_]) -> None:
    stage = table["stage"].to_numpy(np.float64)
    factor = np.where(rows & (stage > 2), (stage - 2) / np.maximum(stage - 1, 1), 1.0)
    table["value"] = table["value"] * factor
    table["std"] = table["std"] * factor


def _doubt(table: pd.DataFrame, rows: npt.NDArray[np.bool_], reason: str) -> None:
    known = table["doubt"].to_numpy(object)[rows]
    table.loc[rows, "doubt"] = [f"{old}; {reason}" if old else reason for old in known]
