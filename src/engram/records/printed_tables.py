"""Tables printed in the five papers, with doubts flagged and ConFER's tables corrected; and what
released code bases gave where they were run.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import check_choice, unknown

if TYPE_CHECKING:
    import pandas as pd

PAPERS = ("confer", "iirc", "cgl", "cnd", "rwalk")
CODE_BASES = ("mammoth",)  # whose numbers are runs of their code, not printed
DOCUMENTS = ("protocols", "confer_orders", "iirc_cifar_hierarchy", "iirc_imagenet_hierarchy")
_KEYS = (
    "table", "dataset", "setting", "order", "augmentation", "method", "nd_method", "stage",
    "metric",
)  # fmt: skip
# Flags that leave the printed number valid: about its unit, or about another table of the paper.
_REMARKS = ("std > 1 (unit: ", "same lambda gives slightly different ")


def reference(
    paper: str,
    table: str | int | None = None,
    *,
    confer_cf_columns: str = "rotated",
    confer_cf_norm: str | None = None,
) -> pd.DataFrame:
    """Return the numbers of a paper's tables, one per row, with reasons for doubt.

    Columns: paper, table, dataset, setting, order, augmentation, method, stage, metric, value, std
    (cnd also nd_method, backbone; rwalk also params), printed_stage, printed_value, doubt ("" for
    none; code bases also params, repetitions, seeds and seconds: the numbers whose mean the value
    is, and of the processor). A value is NaN if the printed number is illegible. Units are the
    paper's: fractions in confer and iirc, percent in cgl and cnd, in rwalk percent for A and
    fractions for F and I.

    ConFER's forgetting is corrected as described for `confer_cf_columns`; `printed_stage` and
    `printed_value` keep what the paper shows.

    Parameters
    ----------
    paper
        confer, iirc, cgl, cnd or rwalk; or a code base: mammoth.
    table
        Number of one table; default: all.
    confer_cf_columns
        The columns of ConFER's forgetting tables match the accuracies only if they are rotated by
        one: printed stage k holds stage k + 1, the last column stage 2. ``rotated`` puts the right
        stage into `stage`, ``as_printed`` leaves it.
    confer_cf_norm
        The divisor behind Task-IL forgetting: ``i-2`` rescales the numbers to i - 1, which the
        formula has, ``i-1`` takes them as they are. Default: ``i-2`` if the columns are rotated, no
        change if they are as printed.

    Examples
    --------
    >>> cf = reference("confer", 6).query("method == 'A-GEM' and augmentation == 'without'")
    >>> cf[cf.stage == 2][["printed_stage", "value"]].values.tolist()
    [[8, 0.82]]
    """
    name = str(paper).lower()
    check_choice("paper", name, (*PAPERS, *CODE_BASES))
    check_choice("confer_cf_columns", confer_cf_columns, ["rotated", "as_printed"])
    rotated = confer_cf_columns == "rotated"
    norm = confer_cf_norm if confer_cf_norm is not None else "i-2" if rotated else "i-1"
    check_choice("confer_cf_norm", norm, ["i-1", "i-2"])
    whole = _check_paper(name).copy()
    if name == "confer":
        whole = correct_confer_table(whole, rotated=rotated, rescaled=norm == "i-2")
    if table is None:
        return whole
    names = list(dict.fromkeys(whole["table"]))
    if str(table) not in names:
        raise unknown("table", table, names)
    return whole[whole["table"] == str(table)].reset_index(drop=True)


def document(name: str) -> Any:
    """Load a bundled JSON document: protocols, confer_orders or one of the IIRC hierarchies.

    Examples
    --------
    >>> sorted(document("protocols"))
    ['CGL', 'CND', 'ConFER', 'IIRC', 'RWalk']
    """
    check_choice("name", name, DOCUMENTS)
    return json.loads(_read_text(f"{name}.json"))


def _read_text(name: str) -> str:
    folder = resources.files("engram.records").joinpath("reference")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _read_csv(name: str) -> pd.DataFrame:
    import io

    import pandas as pd

    return pd.read_csv(io.StringIO(_read_text(name)), dtype=str, keep_default_na=False)


@functools.cache
def _check_paper(paper: str) -> pd.DataFrame:
    import pandas as pd

    printed = _read_csv(f"{paper}_results.csv")
    table = printed.copy()
    for name in ("value", "std"):
        table[name] = [float(text) if text else np.nan for text in printed[name]]
    stages = [int(text) if text else None for text in printed["stage"]]
    table["stage"] = pd.array(stages, dtype="Int64")
    table["printed_stage"] = table["stage"]
    table["printed_value"] = table["value"]
    table["doubt"] = _join_doubts(printed)
    return table


def _join_doubts(printed: pd.DataFrame) -> list[str]:
    """Join the reasons to doubt each row by semicolons; mere remarks do not count."""
    reasons: list[list[str]] = [[] for _ in range(len(printed))]
    for flag in read_flags(str(printed["paper"].iloc[0])):
        if flag["reason"].startswith(_REMARKS):
            continue
        for row in np.flatnonzero(matching_rows(printed, flag)):
            reasons[row].append(flag["reason"])
    return ["; ".join(one) for one in reasons]


def read_flags(paper: str) -> list[dict[str, str]]:
    """Read the flags of one paper (its name as printed) from both lists."""
    found = [dict(f) for f in _read_csv("suspicious.csv").to_dict("records") if f["paper"] == paper]
    if paper == "CND":
        for cell in _read_csv("cnd_ambiguous_cells.csv").to_dict("records"):
            why = f"{cell['status']} cell: {cell['reason']}"
            found.append({**{k: cell.get(k, "") for k in _KEYS}, "value": "", "reason": why})
    return [{str(k): str(v) for k, v in flag.items()} for flag in found]


def matching_rows(printed: pd.DataFrame, flag: dict[str, str]) -> npt.NDArray[np.bool_]:
    """Mark the rows that a flag is about: ``*`` or "" matches any value, ``a|b`` either."""
    wanted = dict(flag)
    keep = np.ones(len(printed), np.bool_)
    if wanted.get("metric") == "lambda":  # a doubt about a parameter, not about a result
        keep &= (printed["params"] == f"lambda={wanted['value']}").to_numpy()
        wanted["metric"] = wanted["value"] = ""
    for key in _KEYS:
        value = wanted.get(key, "")
        if value in ("", "*") or key not in printed:
            continue
        keep &= printed[key].isin(value.split("|")).to_numpy()
    if wanted.get("value"):
        keep &= (printed["value"] == wanted["value"]).to_numpy()
    return keep


# Corrections of ConFER's tables. Accuracy and forgetting of a block (data set, order, augmentation
# or not) describe one matrix: i Acc_i + (i - 1) CF_i is the sum of the accuracies that the first i
# tasks had right after they were learnt. As printed, many of these accuracies exceed 1. They do not
# if every forgetting table is rotated by one column and those of Task-IL were divided by i - 2.


BLOCK_COLUMNS = ("dataset", "setting", "order", "augmentation", "method")
ORDER_IN_DOUBT = "order in doubt"
# Sets whose accuracies right after learning are those of O1 under O2 and O3 as well, although
# their tasks hold other classes. On CK+ they differ.
DATA_IN_DOUBT = ("RAF-DB", "AffectNet", "FER-2013", "iCV-MEFED", "BAUM-1")
# Flags that no longer apply once the columns are rotated.
_SETTLED = (
    "CF columns shifted by one stage? (strong evidence)",
    "last printed stage fits Acc of stage 2 ",
)
_LAST_COLUMN = "meaning of the last printed column not determined, taken as stage 2"


def correct_confer_table(
    table: pd.DataFrame, *, rotated: bool = True, rescaled: bool = True
) -> pd.DataFrame:
    """Put forgetting into its right columns and norm, and add doubts about orders."""
    forgetting = (table["metric"] == "CF").to_numpy(np.bool_)
    if rotated:
        _rotate(table, forgetting)
    if rescaled:
        _rescale(table, forgetting & (table["setting"] == "Task-IL").to_numpy(np.bool_))
    other = table["dataset"].isin(DATA_IN_DOUBT) & table["order"].isin(("O2", "O3"))
    _add_doubt(table, other.to_numpy(np.bool_), ORDER_IN_DOUBT)
    return table


def learning_accuracies(table: pd.DataFrame) -> pd.DataFrame:
    """Compute the accuracies of tasks right after they were learnt from accuracy and forgetting.

    One row per method of a block, one column per task; NaN where a number is missing.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [(1, "Acc", 0.9), (2, "Acc", 0.7), (2, "CF", 0.4)]
    >>> table = pd.DataFrame(rows, columns=["stage", "metric", "value"])
    >>> table = table.assign(**dict.fromkeys(BLOCK_COLUMNS, "x"))
    >>> learning_accuracies(table).round(2).values.tolist()
    [[0.9, 0.9]]
    """
    parts = {
        name: table[table["metric"] == name].pivot_table(
            index=list(BLOCK_COLUMNS), columns="stage", values="value"
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
    table["doubt"] = [_drop_settled(text) for text in table["doubt"]]
    table["stage"] = table["stage"].mask(rows, stage + 1).mask(wrapped, 2)
    # Of Class-IL only table 6 shows where the last column belongs; in Task-IL all tables do.
    shown = (table["setting"] == "Task-IL") | (table["table"] == "6")
    _add_doubt(table, wrapped & ~shown.to_numpy(np.bool_), _LAST_COLUMN)


def _drop_settled(doubt: str) -> str:
    return "; ".join(one for one in doubt.split("; ") if not one.startswith(_SETTLED))


def _rescale(table: pd.DataFrame, rows: npt.NDArray[np.bool_]) -> None:
    stage = table["stage"].to_numpy(np.float64)
    factor = np.where(rows & (stage > 2), (stage - 2) / np.maximum(stage - 1, 1), 1.0)
    table["value"] = table["value"] * factor
    table["std"] = table["std"] * factor


def _add_doubt(table: pd.DataFrame, rows: npt.NDArray[np.bool_], reason: str) -> None:
    known = table["doubt"].to_numpy(object)[rows]
    table.loc[rows, "doubt"] = [f"{old}; {reason}" if old else reason for old in known]
