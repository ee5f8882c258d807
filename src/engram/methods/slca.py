"""SLCA: a slow backbone, and a head that is aligned after each task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import ce_rows, mean
from engram.methods.classifier_alignment import ClassifierAlignment
from engram.methods.method import State, Terms, Update
from engram.per_run import PerRun
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class SLCA(ClassifierAlignment):
    """A backbone that learns slowly, and a head that is aligned on drawn features after each task.

    A pre-trained backbone forgets least if it moves little: its steps are a hundredth of those of
    the head. The classes of a task compete among themselves, and after each task the head is
    trained on features drawn from a Gaussian of each class (`ClassifierAlignment`). No exemplars
    are kept.

    Parameters
    ----------
    backbone_rate
        Multiplies the steps of the backbone, whatever the optimiser, as a smaller learning rate
        would.
    epochs
        Passes over the drawn features after a task; they are drawn anew for each. 0: none.
    draws
        Features drawn for each class, per epoch; as many rows are in a batch.
    align_lr
        Learning rate of the head in these passes, which use SGD with momentum 0.9.
    temperature
        Logits are divided by their norm and by this; 0: they stay as they are.
    covariance
        ``full`` or ``diagonal``, which keeps variances only: d numbers for each class in place of
        d².

    Examples
    --------
    >>> SLCA().backbone_rate
    0.01

    References
    ----------
    Zhang et al. 2023, International Conference on Computer Vision.
    """

    backbone_rate: PerRun = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_float("backbone_rate", self.backbone_rate, 0.0, 1.0)

    def start(self, learner: RunLearner, task: Task) -> None:
        shown = learner.stream.visible[learner.stage].to(learner.device)
        learner.state = {**learner.state, "shown": shown}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        rows = ce_rows(net(batch.x, batch.w).logits, batch.target, state["shown"])
        return {"task": mean(rows, batch.w)}

    def step(self, update: Update, state: State) -> tuple[Tensor, State]:
        change = update.after - update.before
        slow = [
            one * self.backbone_rate if name.startswith("net.backbone.") else one
            for name, one in update.layout(change).items()
        ]
        return update.before + torch.cat([one.flatten() for one in slow]), state
