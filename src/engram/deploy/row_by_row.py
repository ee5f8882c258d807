"""`RowByRow`: a learner that is given one row at a time, and collects them into tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd

from engram.deploy.deployed_learner import Learner
from engram.deploy.new_task import Array
from engram.errors import bad, check_int

Row = Mapping[Hashable, Any]


class RowByRow:
    """A classifier that collects rows and learns every `rows` of them as a task.

    It has the methods of a classifier of river, and is one where river is installed
    (`engram.deploy.river_learner.RiverLearner`).

    A row counts when its task is complete: until then predictions are those of the model before
    it. Before the first task, the prediction is the commonest label so far. At most `rows - 1` rows
    wait; `learn_now` learns them.

    The features are those of the first task, in which one that is missing in a row counts as its
    mean over the others. Later rows may lack some (they count as that mean as well), and what the
    first task did not have is ignored. Values are numbers: encode others before, by river's
    ``OneHotEncoder``, say.

    Parameters
    ----------
    learner
        What is trained: a learner that has learnt nothing yet. It is copied.
    rows
        Number of rows of a task.

    Examples
    --------
    >>> learner = Learner("ER", "mlp", epochs=5, batch_size=8, lr=0.01, device="cpu")
    >>> model = RowByRow(learner, rows=20)
    >>> for k in range(40):
    ...     model.learn_one({"size": float(k % 2), "age": 1.0}, ["cat", "dog"][k % 2])
    >>> model.predict_one({"age": 1.0, "size": 1.0}), model.tasks
    ('dog', 2)
    """

    def __init__(self, learner: Learner, rows: int = 32) -> None:
        if not isinstance(learner, Learner) or learner.tasks:
            got = f"one of {learner.tasks} tasks" if isinstance(learner, Learner) else learner
            raise bad("learner", "an engram.Learner that has learnt nothing yet", got)
        self.learner, self.rows = learner, check_int("rows", rows, 1)
        self._own = deepcopy(learner)
        self._means: dict[Hashable, float] = {}  # features of the model, and what missing ones are
        self._waiting: list[dict[Hashable, float]] = []
        self._labels: list[Any] = []

    # -- learning ----------------------------------------------------------------------------------
    def learn_one(self, x: Row, y: Any) -> None:
        """Take a row; if a task is complete by it, learn the task."""
        self._waiting.append(_to_numbers(x))
        self._labels.append(y)
        if len(self._waiting) >= self.rows:
            self.learn_now()

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Take the rows of a frame, one after the other."""
        if len(X) != len(y):
            raise bad("y", f"one label for each of {len(X)} rows", len(y))
        for row, label in zip(_rows(X), y.tolist()):
            self.learn_one(row, label)

    def learn_now(self) -> None:
        """Learn the rows that wait as a task, however few they are."""
        if not self._waiting:
            return
        rows, labels = self._waiting, self._labels
        means = self._means or _mean_by_feature(rows)
        if not means:
            raise bad("x", "rows of at least one feature", "none")
        self._own.learn(_to_matrix(rows, means), labels)
        self._means, self._waiting, self._labels = means, [], []

    @property
    def tasks(self) -> int:
        """Number of tasks learnt so far."""
        return self._own.tasks

    @property
    def learnt(self) -> Learner:
        """The learner as it is now, for novelty or to be saved; its columns are `features`."""
        return self._own

    @property
    def features(self) -> list[Hashable]:
        """The features of the model, in the order of its columns; those of the first task."""
        return list(self._means)

    # -- predicting --------------------------------------------------------------------------------
    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Any, float]:
        """Probability of each label so far; labels that only wait have none."""
        (found,) = self._probabilities([x])
        return dict(zip(self._known(), found.tolist()))

    def predict_one(self, x: Row, **kwargs: Any) -> Any:
        """Predict the most likely label; None before the first row."""
        found = self.predict_proba_one(x)
        return max(found, key=found.__getitem__) if found else None

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Probabilities of the rows of a frame, one column for each label so far."""
        return pd.DataFrame(self._probabilities(_rows(X)), X.index, self._known())

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Predict the most likely labels of the rows of a frame."""
        known, found = self._known(), self._probabilities(_rows(X))
        best = [known[place] for place in found.argmax(1)] if known else [None] * len(X)
        return pd.Series(best, X.index)

    def _known(self) -> list[Any]:
        known: list[Any] = self._own.classes_.tolist() if self.tasks else []
        return [*known, *(one for one in Counter(self._labels) if one not in known)]

    def _probabilities(self, rows: list[Row]) -> Array:
        known = self._known()
        found = np.zeros((len(rows), len(known)))
        if self.tasks and rows:
            share = self._own.predict_proba(_to_matrix(map(_to_numbers, rows), self._means))
            found[:, : share.shape[1]] = share
        elif known:
            count = Counter(self._labels)
            found[:] = [count[one] / len(self._labels) for one in known]
        return found


def _rows(X: pd.DataFrame) -> list[Row]:
    return [dict(row) for row in X.to_dict("records")]


def _to_numbers(x: Row) -> dict[Hashable, float]:
    """Values as numbers, without those that are missing."""
    found = {}
    for name, value in x.items():
        if value is None:
            continue
        if not isinstance(value, (int, float, np.number, np.bool_)):
            raise bad(f"feature {name!r}", "a number (encode others before)", value)
        if value == value:  # nan is missing as well
            found[name] = float(value)
    return found


def _mean_by_feature(rows: list[dict[Hashable, float]]) -> dict[Hashable, float]:
    """Mean of each feature over the rows that have it, sorted by name."""
    names = sorted({name for row in rows for name in row}, key=lambda one: (str(type(one)), one))
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def _to_matrix(rows: Any, means: Mapping[Hashable, float]) -> Array:
    table = [[row.get(name, mean) for name, mean in means.items()] for row in rows]
    return np.array(table, dtype=np.float32)
