"""Numbers printed in the five papers, to compare with; and which of them are in doubt."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import choose, unknown

if TYPE_CHECKING:
    import pandas as pd

PAPERS = ("confer", "iirc", "cgl", "cnd", "rwalk")
DOCUMENTS = ("protocols", "confer_orders", "iirc_cifar_hierarchy", "iirc_imagenet_hierarchy")
_KEYS = (
    "table", "dataset", "setting", "order", "augmentation", "method", "nd_method", "stage",
    "metric",
)  # fmt: skip
# Notes of the list that leave the printed number as good as any: about its unit, and about another
# table of the same paper.
_REMARKS = ("std > 1 (unit: ", "same lambda gives slightly different ")
# Task-IL tables whose forgetting columns are rotated as well; the other Task-IL ones are not.
_ROTATED_TASK_TABLES = ("4", "8")


def reference(
    paper: str,
    table: str | int | None = None,
    *,
    confer_cf_columns: str = "rotated",
    confer_cf_norm: str = "i-1",
) -> pd.DataFrame:
    """The numbers of a paper's tables, one per row, with reasons for doubt.

    Columns: paper, table, dataset, setting, order, augmentation, method, stage, metric, value, std
    (cnd also nd_method, backbone; rwalk also params), printed_stage, doubt ("" for none). A value
    is NaN where the printed number is not legible. Units are the paper's: fractions in confer and
    iirc, percent in cgl and cnd, in rwalk percent for A and fractions for F and I.

    Parameters
    ----------
    paper
        confer, iirc, cgl, cnd or rwalk.
    table
        Number of one table; default: all.
    confer_cf_columns
        Forgetting columns of ConFER's Class-IL tables and of tables 4 and 8 fit their accuracies
        only if they are rotated by one: printed stage k holds stage k + 1, the last column stage 2.
        ``rotated`` puts the right stage into `stage`, ``as_printed`` leaves it.
    confer_cf_norm
        Tables 4 and 8 fit better still if later stages were divided by i - 2 instead of i - 1;
        ``i-2`` scales them back to i - 1, the default takes them as they are.

    Examples
    --------
    >>> cf = reference("confer", 6).query("method == 'A-GEM' and augmentation == 'without'")
    >>> cf[cf.stage == 2][["printed_stage", "value"]].values.tolist()
    [[8, 0.82]]
    """
    choose("paper", str(paper).lower(), PAPERS)
    choose("confer_cf_columns", confer_cf_columns, ["rotated", "as_printed"])
    choose("confer_cf_norm", confer_cf_norm, ["i-1", "i-2"])
    whole = _paper(str(paper).lower()).copy()
    if str(paper).lower() == "confer" and confer_cf_columns == "rotated":
        whole = _rotate(whole)
    if str(paper).lower() == "confer" and confer_cf_norm == "i-2":
        whole = _rescale(whole)
    if table is None:
        return whole
    names = list(dict.fromkeys(whole["table"]))
    if str(table) not in names:
        raise unknown("table", table, names)
    return whole[whole["table"] == str(table)].reset_index(drop=True)


def document(name: str) -> Any:
    """A bundled JSON document: protocols, confer_orders or one of the IIRC hierarchies.

    Examples
    --------
    >>> sorted(document("protocols"))
    ['CGL', 'CND', 'ConFER', 'IIRC', 'RWalk']
    """
    choose("name", name, DOCUMENTS)
    return json.loads(_text(f"{name}.json"))


def _text(name: str) -> str:
    folder = resources.files("engram.records").joinpath("reference")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _csv(name: str) -> pd.DataFrame:
    import io

    import pandas as pd

    return pd.read_csv(io.StringIO(_text(name)), dtype=str, keep_default_na=False)


@functools.cache
def _paper(paper: str) -> pd.DataFrame:
    import pandas as pd

    printed = _csv(f"{paper}_results.csv")
    table = printed.copy()
    for name in ("value", "std"):
        table[name] = [float(text) if text else np.nan for text in printed[name]]
    stages = [int(text) if text else None for text in printed["stage"]]
    table["stage"] = pd.array(stages, dtype="Int64")
    table["printed_stage"] = table["stage"]
    table["doubt"] = _doubts(printed)
    return table


def _doubts(printed: pd.DataFrame) -> list[str]:
    """All reasons to doubt each row, joined by semicolons; mere remarks are none."""
    reasons: list[list[str]] = [[] for _ in range(len(printed))]
    for flag in flags(str(printed["paper"].iloc[0])):
        if flag["reason"].startswith(_REMARKS):
            continue
        for row in np.flatnonzero(matches(printed, flag)):
            reasons[row].append(flag["reason"])
    return ["; ".join(one) for one in reasons]


def flags(paper: str) -> list[dict[str, str]]:
    """The flags of one paper (its name as printed), from both lists."""
    found = [dict(f) for f in _csv("suspicious.csv").to_dict("records") if f["paper"] == paper]
    if paper == "CND":
        for cell in _csv("cnd_ambiguous_cells.csv").to_dict("records"):
            why = f"{cell['status']} cell: {cell['reason']}"
            found.append({**{k: cell.get(k, "") for k in _KEYS}, "value": "", "reason": why})
    return [{str(k): str(v) for k, v in flag.items()} for flag in found]


def matches(printed: pd.DataFrame, flag: dict[str, str]) -> npt.NDArray[np.bool_]:
    """[rows] the rows a flag speaks about: ``*`` or nothing is any value, ``a|b`` either."""
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


def _rotated_rows(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    class_il = (table["setting"] == "Class-IL") | table["table"].isin(_ROTATED_TASK_TABLES)
    return np.asarray((table["metric"] == "CF") & class_il, np.bool_)


def _rotate(table: pd.DataFrame) -> pd.DataFrame:
    rows = _rotated_rows(table)
    stage = table["printed_stage"].to_numpy(np.int64)
    last = table.groupby(["table", "dataset"])["printed_stage"].transform("max").to_numpy(np.int64)
    wrapped = rows & (stage == last)
    table["stage"] = table["stage"].mask(rows, stage + 1).mask(wrapped, 2)
    # The paper shows where the last column belongs in table 6 and its copy only.
    unsure = wrapped & ~table["table"].isin(("4", "6", "8")).to_numpy()
    reason = "meaning of the last printed column not determined, taken as stage 2"
    known = table["doubt"].to_numpy(object)
    table.loc[unsure, "doubt"] = [f"{old}; {reason}" if old else reason for old in known[unsure]]
    return table


def _rescale(table: pd.DataFrame) -> pd.DataFrame:
    stage = table["stage"].to_numpy(np.float64)
    rows = table["table"].isin(_ROTATED_TASK_TABLES).to_numpy() & (stage > 2)
    factor = np.where(rows, (stage - 2) / np.maximum(stage - 1, 1), 1.0)
    table["value"] = table["value"] * factor
    table["std"] = table["std"] * factor
    return table
