"""`FirstSession`, base class of methods that train on the first task at most, and fit closed forms
to features from then on; with the sums per class that several of them keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from engram.learner.learner import RunLearner
from engram.methods.method import Method, Phase


class LabelledFeatures(NamedTuple):
    """Features of the training rows of a task, with their labels as output columns."""

    features: Tensor  # [n, d]
    labels: Tensor  # [n]
    rows: Tensor  # [n] row numbers


@dataclass(frozen=True, kw_only=True)
class FirstSession(Method):
    """A network that is trained on the first task at most, and stands still from then on.

    Parameters
    ----------
    train_first
        Train the network on the first task; False: it keeps the weights it came with. Under a
        backbone that is frozen (``model.freeze``) there is nothing to train, and nothing is.
    """

    train_first: bool = True

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if stage == 0 and self.train_first:
            return (Phase(needs=("net.backbone.",)),)
        return (Phase(rows="none"),)


def read_features(learner: RunLearner, rows: Tensor) -> LabelledFeatures:
    """Return features of rows of the task by the main network, without rows that show no label."""
    features, labels = learner.outputs(rows).features, learner.labels(rows)[:, 0]
    known = labels >= 0
    if bool(known.all()):
        return LabelledFeatures(features, labels, rows)
    return LabelledFeatures(features[known], labels[known], rows[known])


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return counts [C] and sums [C, d] of rows [n, d] with labels [n].

    Examples
    --------
    >>> import torch
    >>> count, total = class_sums(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]), 2)
    >>> count.tolist(), total.tolist()
    ([2.0, 1.0], [[4.0], [7.0]])
    """
    member = F.one_hot(labels, classes).to(features.dtype)  # [n, C]
    return member.sum(0), member.T @ features
