"""Numbers printed in the five papers, to compare with; and which of them are in doubt."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import choose, unknown
from engram.records import confer

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


def reference(
    paper: str,
    table: str | int | None = None,
    *,
    confer_cf_columns: str = "rotated",
    confer_cf_norm: str | None = None,
) -> pd.DataFrame:
    """The numbers of a paper's tables, one per row, with reasons for doubt.

    Columns: paper, table, dataset, setting, order, augmentation, method, stage, metric, value, std
    (cnd also nd_method, backbone; rwalk also params), printed_stage, printed_value, doubt ("" for
    none). A value is NaN where the printed number is not legible. Units are the paper's: fractions
    in confer and iirc, percent in cgl and cnd, in rwalk percent for A and fractions for F and I.

    ConFER's forgetting is corrected, see `engram.records.confer`; `printed_stage` and
    `printed_value` keep what the paper shows.

    Parameters
    ----------
    paper
        confer, iirc, cgl, cnd or rwalk.
    table
        Number of one table; default: all.
    confer_cf_columns
        The columns of ConFER's forgetting tables fit their accuracies only if they are rotated by
        one: printed stage k holds stage k + 1, the last column stage 2. ``rotated`` puts the right
        stage into `stage`, ``as_printed`` leaves it.
    confer_cf_norm
        What the sums behind Task-IL forgetting were divided by: ``i-2`` scales them to i - 1, which
        the formula says, ``i-1`` takes them as they are. Default: ``i-2`` where columns are
        rotated, nothing is changed where they are as printed.

    Examples
    --------
    >>> cf = reference("confer", 6).query("method == 'A-GEM' and augmentation == 'without'")
    >>> cf[cf.stage == 2][["printed_stage", "value"]].values.tolist()
    [[8, 0.82]]
    """
    name = str(paper).lower()
    choose("paper", name, PAPERS)
    choose("confer_cf_columns", confer_cf_columns, ["rotated", "as_printed"])
    rotated = confer_cf_columns == "rotated"
    norm = confer_cf_norm if confer_cf_norm is not None else "i-2" if rotated else "i-1"
    choose("confer_cf_norm", norm, ["i-1", "i-2"])
    whole = _paper(name).copy()
    if name == "confer":
        whole = confer.corrected(whole, rotated=rotated, rescaled=norm == "i-2")
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
    table["printed_value"] = table["value"]
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
