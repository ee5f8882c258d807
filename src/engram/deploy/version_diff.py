"""`VersionDiff`: how two versions of a learner differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.deploy.deployed_learner import Learner
from engram.errors import plural
from engram.experiments.plain_values import to_plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class VersionDiff:
    """Differences between two versions, as `ModelStore.diff` returns them.

    Attributes
    ----------
    first, second
        Numbers of the versions.
    classes
        Accuracy of each class in both, on the kept rows of the second; NaN where a version does not
        know the class.
    predictions
        Kept rows that are predicted otherwise: their label, and both predictions.
    settings
        Options of the learner that differ, with both values.
    nbytes
        Bytes by kind in both.
    """

    first: int
    second: int
    classes: pd.DataFrame
    predictions: pd.DataFrame
    settings: dict[str, tuple[Any, Any]]
    nbytes: pd.DataFrame

    def __str__(self) -> str:
        parts = [f"version {self.first} -> version {self.second}"]
        if len(self.classes):
            parts.append(self.classes.round(3).to_string())
        parts.append(f"{plural(len(self.predictions), 'prediction')} of kept rows changed")
        parts += [f"{name}: {a!r} -> {b!r}" for name, (a, b) in self.settings.items()]
        parts.append(self.nbytes.to_string())
        return "\n".join(parts)


def compare_versions(one: Learner, other: Learner, first: int, second: int) -> VersionDiff:
    """Compare two learners on the calibration rows of the second."""
    import pandas as pd

    kept, names = other.snapshot.calibration, other.snapshot.labels
    table = pd.DataFrame(columns=["rows", "before", "after"])
    changed = pd.DataFrame(columns=["label", "before", "after"])
    if kept is not None and len(kept.y):
        truth = names[kept.y.numpy()]
        before, after = one.predict(kept.x), other.predict(kept.x)
        known = set(one.classes_.tolist())
        lines = []
        for label in np.unique(truth).tolist():
            rows = truth == label
            was = float((before[rows] == label).mean()) if label in known else float("nan")
            now = float((after[rows] == label).mean())
            lines.append({"label": label, "rows": int(rows.sum()), "before": was, "after": now})
        table = pd.DataFrame(lines).set_index("label")
        differ = before != after
        changed = pd.DataFrame(
            {"label": truth[differ], "before": before[differ], "after": after[differ]}
        )
    a, b = (to_plain(learner.get_params()) for learner in (one, other))
    settings = {k: (a.get(k), b.get(k)) for k in {**a, **b} if a.get(k) != b.get(k)}
    sizes = pd.DataFrame({"before": one.nbytes(), "after": other.nbytes()}).fillna(0).astype(int)
    return VersionDiff(first, second, table, changed, settings, sizes)
