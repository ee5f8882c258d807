"""`RiverLearner`: a learner as a classifier of river. Needs the extra ``river``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from river.base import MiniBatchClassifier

from engram.deploy.deployed_learner import Learner
from engram.deploy.row_by_row import RowByRow


class RiverLearner(RowByRow, MiniBatchClassifier):  # type: ignore[misc]
    """A classifier of river that learns every `rows` rows as a task, as `RowByRow` says.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> learner = Learner("ER", "mlp", epochs=5, batch_size=16, lr=0.02, device="cpu")
    >>> model = preprocessing.StandardScaler() | RiverLearner(learner, rows=50)
    >>> rows = datasets.ImageSegments().take(500)
    >>> evaluate.progressive_val_score(rows, model, metrics.Accuracy()).get() > 0.7
    True
    """

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        small = {"name": "mlp", "hidden": [8]}
        yield {"learner": Learner("ER", small, epochs=1, batch_size=16, device="cpu"), "rows": 50}
