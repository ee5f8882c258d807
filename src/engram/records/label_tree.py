"""Label sets that form a tree: scores of superclasses, subclasses and classes without one."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.records import head_views
from engram.records.scored_items import Bools, EvaluationItems, Ints

PREFIXES = ("superclass/", "fine/")  # of label names given by `engram.hierarchical`
COUNTED = "labels_per_image"
# numbers over all test rows of the tasks so far, each once
LABEL_VIEWS = (
    COUNTED, "superclass_score", "subclass_precision", "orphan_precision", "hierarchical_f1",
    "mistake_depth",
)  # fmt: skip


class LabelTree(NamedTuple):
    """The tree of the labels of a stream, by output columns."""

    parent: Ints  # [C] the label directly above, -1 at the top
    superclasses: Bools  # [C]
    subclasses: Bools  # [C] fine classes that have a superclass
    orphans: Bools  # [C] fine classes that have none


@functools.lru_cache(maxsize=4)  # called after every stage of every run
def find_label_tree(items: EvaluationItems) -> LabelTree | None:
    """Find the tree of the items' labels; None if they form none.

    Examples
    --------
    >>> items = EvaluationItems(
    ...     rows=[0, 1],
    ...     task=[0, 0],
    ...     targets=[[0, 1], [2, -1]],
    ...     opening=[0, 0, 0],
    ...     visible=[[1, 1, 1]],
    ...     classes=[2, 0, 1],
    ...     multilabel=True,
    ...     names=("superclass/pet", "fine/cat", "fine/oak"),
    ... )
    >>> find_label_tree(items).parent.tolist(), find_label_tree(items).orphans.tolist()
    ([-1, 0, -1], [False, False, True])
    """
    if not items.multilabel or not all(name.startswith(PREFIXES) for name in items.names):
        return None
    parent = items.parent  # labels are listed from the top down
    inner = np.array([name.startswith(PREFIXES[0]) for name in items.names], np.bool_)
    return LabelTree(parent, inner, ~inner & (parent >= 0), ~inner & (parent < 0))


def label_views(sets: Bools, items: EvaluationItems, *, stage: int) -> dict[str, float]:
    """Score predicted label sets [n, C] by level; NaN for a level without open labels."""
    from engram import metrics

    truth, predicted = distinct_rows(sets, items, stage)
    found = {COUNTED: float(predicted.sum(axis=1).mean()) if len(predicted) else float("nan")}
    tree = find_label_tree(items)
    if tree is None or not len(truth):
        return found
    score = functools.partial(metrics.precision_weighted_jaccard, truth, predicted)
    precision = functools.partial(metrics.subclass_precision, truth, predicted)
    for name, number, mask in (
        ("superclass_score", score, tree.superclasses),
        ("subclass_precision", precision, tree.subclasses),
        ("orphan_precision", precision, tree.orphans),
    ):
        there = bool((mask & (items.opening <= stage)).any())
        found[name] = float(number(within=mask)) if there else float("nan")
    found["hierarchical_f1"] = metrics.hierarchical_f1(truth, predicted, tree.parent)
    found["mistake_depth"] = metrics.mistake_depth(truth, predicted, tree.parent)
    return found


def distinct_rows(sets: Bools, items: EvaluationItems, stage: int) -> tuple[Bools, Bools]:
    """Return true and predicted label sets of the tasks so far, each row once."""
    truth = head_views.true_sets(items, stage=stage)
    rows = items.counted(stage) & truth.any(axis=1)
    return truth[rows], sets[rows]


def refinement_pairs(
    sets: Bools, items: EvaluationItems, *, stage: int
) -> dict[tuple[int, int], list[float]]:
    """Compute the shares of `Result.refinement` for each open superclass and its subclasses."""
    tree = find_label_tree(items)
    if tree is None:
        raise RecordError("items: the labels form no tree of superclasses and subclasses")
    truth, predicted = distinct_rows(sets, items, stage)
    found = {}
    for sub in np.flatnonzero((tree.parent >= 0) & (items.opening <= stage)).tolist():
        above = int(tree.parent[sub])
        own, siblings = truth[:, sub], truth[:, above] & ~truth[:, sub]
        found[above, sub] = [
            _mean_share(predicted[siblings, above]), _mean_share(predicted[own, above]),
            _mean_share(predicted[own, sub]), _mean_share(predicted[siblings, sub]),
        ]  # fmt: skip
    return found


def _mean_share(part: npt.NDArray[Any]) -> float:
    return float(part.mean()) if len(part) else float("nan")
