"""Label sets that form a tree: views of superclasses, subclasses and classes without one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.records import views
from engram.records.items import Bools, Ints, Items

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.arrange import RunKey
    from engram.records.result import Result

PREFIXES = ("superclass/", "fine/")  # of the names that `engram.hierarchical` gives to labels
COUNTED = "labels_per_image"
# numbers over all test rows of the tasks so far, each once
LABEL_VIEWS = (
    COUNTED, "superclass_score", "subclass_precision", "orphan_precision", "hierarchical_f1",
    "mistake_depth",
)  # fmt: skip
PAIR = ["superclass_kept", "superclass_applied", "subclass_found", "subclass_spread"]


class LabelTree(NamedTuple):
    """The tree of the labels of a stream, by output columns."""

    parent: Ints  # [C] the label right above, -1 at the top
    superclasses: Bools  # [C]
    subclasses: Bools  # [C] fine classes that have a superclass
    orphans: Bools  # [C] fine classes that have none


@functools.lru_cache(maxsize=4)  # asked after every stage of every run
def tree_of(items: Items) -> LabelTree | None:
    """The tree of the items' labels, None where they form none.

    Examples
    --------
    >>> items = Items(rows=[0, 1], task=[0, 0], targets=[[0, 1], [2, -1]], opening=[0, 0, 0],
    ...               visible=[[1, 1, 1]], classes=[2, 0, 1], multilabel=True,
    ...               names=("superclass/pet", "fine/cat", "fine/oak"))
    >>> tree_of(items).parent.tolist(), tree_of(items).orphans.tolist()
    ([-1, 0, -1], [False, False, True])
    """
    if not items.multilabel or not all(name.startswith(PREFIXES) for name in items.names):
        return None
    parent = np.full(items.width, -1, np.int64)
    for row in np.unique(items.targets, axis=0):  # labels stand from the top down
        line = row[row >= 0]
        parent[line[1:]] = line[:-1]
    inner = np.array([name.startswith(PREFIXES[0]) for name in items.names], np.bool_)
    return LabelTree(parent, inner, ~inner & (parent >= 0), ~inner & (parent < 0))


def label_views(sets: Bools, items: Items, *, stage: int) -> dict[str, float]:
    """Numbers about the predicted label sets [n, C]; NaN for labels of which none is open yet."""
    from engram import metrics

    truth, said = _once(sets, items, stage)
    found = {COUNTED: float(said.sum(axis=1).mean()) if len(said) else float("nan")}
    tree = tree_of(items)
    if tree is None or not len(truth):
        return found
    score = functools.partial(metrics.precision_weighted_jaccard, truth, said)
    precision = functools.partial(metrics.subclass_precision, truth, said)
    for name, number, mask in (
        ("superclass_score", score, tree.superclasses),
        ("subclass_precision", precision, tree.subclasses),
        ("orphan_precision", precision, tree.orphans),
    ):
        there = bool((mask & (items.opening <= stage)).any())
        found[name] = float(number(within=mask)) if there else float("nan")
    found["hierarchical_f1"] = metrics.hierarchical_f1(truth, said, tree.parent)
    found["mistake_depth"] = metrics.mistake_depth(truth, said, tree.parent)
    return found


def _once(sets: Bools, items: Items, stage: int) -> tuple[Bools, Bools]:
    """True and predicted label sets of the items of the tasks so far, each row once."""
    truth = views.true_sets(items, stage=stage)
    rows = items.counted(stage) & truth.any(axis=1)
    return truth[rows], sets[rows]


def pairs(sets: Bools, items: Items, *, stage: int) -> dict[tuple[int, int], list[float]]:
    """For each open superclass and subclass right beneath it, the shares of `refinement`."""
    tree = tree_of(items)
    if tree is None:
        raise RecordError("items: their labels form no tree of superclasses and subclasses")
    truth, said = _once(sets, items, stage)
    found = {}
    for sub in np.flatnonzero((tree.parent >= 0) & (items.opening <= stage)).tolist():
        above = int(tree.parent[sub])
        own, siblings = truth[:, sub], truth[:, above] & ~truth[:, sub]
        found[above, sub] = [
            _share(said[siblings, above]), _share(said[own, above]),
            _share(said[own, sub]), _share(said[siblings, sub]),
        ]  # fmt: skip
    return found


def _share(part: npt.NDArray[Any]) -> float:
    return float(part.mean()) if len(part) else float("nan")


def refinement(result: Result, *, stage: int | None) -> pd.DataFrame:
    """Mean over the runs of a label, one line per label, superclass and subclass."""
    import pandas as pd

    from engram.records.recompute import one_of

    rows = []
    for number, label in enumerate(result.run_labels):
        k, items, kept = one_of(result, number, stage)
        said = kept.predicted(items, head="single") if items.multilabel else None
        if said is None or tree_of(items) is None:
            raise RecordError(f"{result.runs[number]}: its labels form no tree")
        for (above, sub), values in pairs(said, items, stage=k).items():
            names = (items.names[above], items.names[sub])
            rows.append((label, *(name.split("/", 1)[1] for name in names), *values))
    keys = ["label", "superclass", "subclass"]
    table = pd.DataFrame(rows, columns=pd.Index([*keys, *PAIR]))
    return table.groupby(keys, sort=False).mean()


class LabelConfusion(NamedTuple):
    """Shares of the images of a true label (row) that have, or are said to have, another."""

    predicted: pd.DataFrame
    truth: pd.DataFrame


def label_confusion(result: Result, run: RunKey | int, *, stage: int | None) -> LabelConfusion:
    """See `Result.label_confusion`."""
    import pandas as pd

    from engram import metrics
    from engram.records.recompute import one_of

    k, items, kept = one_of(result, run, stage)
    if not items.multilabel:
        raise RecordError(f"{kept.key}: its rows carry one label each; use result.confusion")
    truth, said = _once(kept.predicted(items, head="single"), items, k)
    opened = np.flatnonzero(items.opening <= k)
    names = [items.names[c] for c in opened]

    def table(labels: Bools) -> pd.DataFrame:
        shares = metrics.confusion(truth, labels, order=opened.tolist())
        return pd.DataFrame(shares, index=pd.Index(names, name="true"), columns=pd.Index(names))

    return LabelConfusion(table(said), table(truth))
