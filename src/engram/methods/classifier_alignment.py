"""ClassifierAlignment: after each task the head is trained on features drawn from one Gaussian for
each class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import check_choice, check_float, check_int
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Views
from engram.methods.first_session import read_features
from engram.methods.method import Method, State
from engram.per_run import PerRun
from engram.streams.stream import Task

COVARIANCES = ("full", "diagonal")
LEAST_VARIANCE = 1e-4  # added to every variance, as the authors do
MOMENTUM = 0.9
LEAST_NORM = 1e-7


def normalize_logits(logits: Tensor, opened: Tensor) -> Tensor:
    """Divide logits [B, C] by the mean over tasks of the norm of each task's logits.

    `opened` [C] is the task of each class.

    Examples
    --------
    >>> logits = torch.tensor([[3.0, 4.0, 1.0]])
    >>> normalize_logits(logits, torch.tensor([0, 0, 1])).round(decimals=3)
    tensor([[1.0000, 1.3330, 0.3330]])
    """
    member = F.one_hot(opened).to(logits.dtype)  # [C, T]
    member = member[:, member.sum(0) > 0]
    norms = (logits.square() @ member + LEAST_NORM**2).sqrt()
    return logits / norms.mean(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class ClassifierAlignment(Method):
    """Train the head on features drawn from a Gaussian of each class, after each further task.

    When a task ends, a mean and a covariance of the features of each of its classes are kept. From
    the second task on, the head alone is trained on features drawn from the Gaussians of all
    classes so far, equally many of each, which removes the preference for the newest classes. It is
    the second half of `SLCA`, and can be joined with other methods: ``LwF+ClassifierAlignment``.

    Parameters
    ----------
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
    >>> from engram.methods import Join, LwF
    >>> [part.describe()["name"] for part in Join(LwF(), ClassifierAlignment()).parts]
    ['LwF', 'ClassifierAlignment']

    References
    ----------
    Zhang et al. 2023, International Conference on Computer Vision.
    """

    epochs: int = 5
    draws: int = 256
    align_lr: PerRun = 0.01
    temperature: PerRun = 0.1
    covariance: str = "full"

    def __post_init__(self) -> None:
        check_int("epochs", self.epochs)
        check_int("draws", self.draws, 1)
        check_float("align_lr", self.align_lr, open_low=True)
        check_float("temperature", self.temperature)
        check_choice("covariance", self.covariance, COVARIANCES)

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.state = {**learner.state, **self._fit(learner, task)}
        if learner.stage and self.epochs:
            self._align(learner)

    def _fit(self, learner: RunLearner, task: Task) -> State:
        """Return the Gaussians with those of the task's classes."""
        found, old = read_features(learner, task.train), learner.state
        classes, width = len(learner.opened), found.features.shape[1]
        like = found.features.to(learner.device)
        spread = (width, width) if self.covariance == "full" else (width,)
        mean = old["mean"].clone() if "mean" in old else like.new_zeros(classes, width)
        factor = old["factor"].clone() if "factor" in old else like.new_zeros(classes, *spread)
        for column in found.labels.unique().tolist():
            own = found.features[found.labels == column].double()
            mean[column], away = own.mean(0).to(mean), own - own.mean(0)
            count = max(1, len(own) - 1)
            if self.covariance == "full":
                covariance = away.T @ away / count
                covariance.diagonal().add_(LEAST_VARIANCE)
                factor[column] = torch.linalg.cholesky_ex(covariance)[0].to(factor)
            else:
                factor[column] = (away.square().sum(0) / count + LEAST_VARIANCE).sqrt().to(factor)
        return {"mean": mean, "factor": factor}

    def _align(self, learner: RunLearner) -> None:
        """Train the head on drawn features of all classes so far."""
        columns = learner.seen.nonzero()[:, 0]
        opened = learner.opened[columns].to(learner.device)
        params = learner.params
        head = {name: params[name].clone() for name in params if name.startswith("net.head.")}
        optimizer = torch.optim.SGD(
            [one.requires_grad_() for one in head.values()], lr=self.align_lr, momentum=MOMENTUM
        )
        net = learner.net()
        with torch.enable_grad():
            for epoch in range(self.epochs):
                features, labels = self._draw(learner, columns, epoch)
                for some, target in zip(
                    features.split(self.draws), labels.split(self.draws), strict=True
                ):
                    optimizer.zero_grad()
                    logits = net.given(Views({**params, **head})).head(some)[:, columns]
                    if self.temperature:
                        logits = normalize_logits(logits, opened) / self.temperature
                    torch.autograd.backward(F.cross_entropy(logits, target))
                    optimizer.step()
        with torch.no_grad():
            for name, value in head.items():
                params[name].copy_(value)

    def _draw(self, learner: RunLearner, columns: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return shuffled features [n, d] and their places [n] among the classes so far."""
        mean, factor = learner.state["mean"], learner.state["factor"]
        key = keys.fold(learner.seed, "alignment", learner.stage, epoch)
        parts = []
        for column in columns.tolist():
            noise = keys.normal(keys.fold(key, column), self.draws, mean.shape[1]).to(mean)
            full = self.covariance == "full"
            parts.append(
                mean[column] + (noise @ factor[column].T if full else noise * factor[column])
            )
        count = len(columns) * self.draws
        order = keys.permutation(key, count, count).to(mean.device)
        labels = torch.arange(len(columns), device=mean.device).repeat_interleave(self.draws)
        return torch.cat(parts)[order], labels[order]
