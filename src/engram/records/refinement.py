"""How labels were refined: superclasses and subclasses pair by pair, and who is taken for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engram.errors import RecordError
from engram.records.arrange import RunKey
from engram.records.items import Bools
from engram.records.label_tree import once, pairs, tree_of
from engram.records.recompute import ended, one_of

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

PAIR = ["superclass_kept", "superclass_applied", "subclass_found", "subclass_spread"]


def refinement(result: Result, *, stage: int | None) -> pd.DataFrame:
    """Mean over the runs of a label, one line per label, superclass and subclass."""
    import pandas as pd

    rows = []
    for number, label in enumerate(result.run_labels):
        found = ended(result, number, stage)
        if found is None:
            continue
        k, items, kept = found
        said = kept.predicted(items, head="single") if items.multilabel else None
        if said is None or tree_of(items) is None:
            what = "refinement is a matter of streams whose labels form a tree (hierarchical, iirc)"
            raise RecordError(f"{label}: its labels form no tree; {what}")
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

    k, items, kept = one_of(result, run, stage)
    if not items.multilabel:
        raise RecordError(f"{kept.key}: its rows carry one label each; use result.confusion")
    truth, said = once(kept.predicted(items, head="single"), items, k)
    opened = np.flatnonzero(items.opening <= k)
    names = [items.names[c] for c in opened]

    def table(labels: Bools) -> pd.DataFrame:
        shares = metrics.confusion(truth, labels, order=opened.tolist())
        return pd.DataFrame(shares, index=pd.Index(names, name="true"), columns=pd.Index(names))

    return LabelConfusion(table(said), table(truth))
