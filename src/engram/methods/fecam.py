"""FeCAM: Mahalanobis distances to class means, with a covariance of each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import check_float
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.first_session import FirstSession, read_features
from engram.methods.method import State
from engram.methods.task_masks import refuse_known_classes
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task

LEAST_EIGENVALUE = 1e-10  # of a correlation matrix that is inverted


def raise_to_power(features: Tensor, power: PerRun) -> Tensor:
    """Raise the sizes of features to a power below 1 (Tukey), which makes long tails shorter.

    Examples
    --------
    >>> raise_to_power(torch.tensor([4.0, -9.0]), 0.5).tolist()
    [2.0, -3.0]
    """
    return features.sign() * features.abs().pow(power)


def shrink_covariance(covariance: Tensor, diagonal: float, rest: float) -> Tensor:
    """Add multiples of the mean variance to the diagonal and of the mean covariance elsewhere.

    Examples
    --------
    >>> shrink_covariance(torch.tensor([[1.0, 0.5], [0.5, 3.0]]), 1.0, 2.0).tolist()
    [[3.0, 1.5], [1.5, 5.0]]
    """
    size = len(covariance)
    eye = torch.eye(size).to(covariance)
    variance = covariance.diagonal().mean()
    between = (covariance.sum() - covariance.trace()) / max(1, size * (size - 1))
    return covariance + diagonal * variance * eye + rest * between * (1 - eye)


def whiten(covariance: Tensor) -> Tensor:
    """Return W with W W' the inverse of the correlation matrix of a covariance matrix.

    Features without any variance are not correlated with others.

    Examples
    --------
    >>> whiten(torch.tensor([[4.0, 0.0], [0.0, 0.0]]).double()).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    variances = covariance.diagonal()
    eye, flat = torch.eye(len(covariance)).to(covariance), variances <= 0
    scale = torch.where(flat, 1.0, variances).sqrt()
    correlation = covariance / scale / scale[:, None]
    correlation = torch.where(flat | flat[:, None] | (eye > 0), eye, correlation)
    factor, failed = torch.linalg.cholesky_ex(correlation)
    if not int(failed):
        found: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False).T
        return found
    if not bool(correlation.isfinite().all()):  # the scores will say that the run has diverged
        return correlation
    values, vectors = torch.linalg.eigh(correlation)  # as the pseudo-inverse of the authors
    inverse = torch.where(values > LEAST_EIGENVALUE, values, torch.inf).rsqrt()
    pseudo: Tensor = vectors * inverse
    return pseudo


@dataclass(frozen=True, kw_only=True)
class FeCAM(FirstSession):
    """Mahalanobis distances to class means, with a covariance of each class, on frozen features.

    The network is trained on the first task and then frozen; no exemplars are kept. Features are
    raised to a power, and a mean and a covariance of them are kept for each class. Covariances of
    few rows are shrunk and divided by the standard deviations, so that classes of different spread
    can be compared. Tasks of known classes are refused.

    Parameters
    ----------
    power
        Power to which the size of a feature is raised (Tukey); 1: features stay as they are.
    shrink_diagonal
        Multiple of the mean variance that is added to the variances.
    shrink_rest
        Multiple of the mean covariance that is added to the covariances.
    train_first
        Train the network on the first task; False: it keeps its initial weights. Under a frozen
        backbone (``model.freeze``) there is nothing to train.

    Examples
    --------
    >>> [phase.rows for stage in (0, 1) for phase in FeCAM().phases(stage)]
    ['task', 'none']

    References
    ----------
    Goswami et al. 2023, Advances in Neural Information Processing Systems.
    """

    power: PerRun = 0.5
    shrink_diagonal: PerRun = 1.0
    shrink_rest: PerRun = 1.0

    def __post_init__(self) -> None:
        check_float("power", self.power, 0.0, 1.0, open_low=True)
        check_float("shrink_diagonal", self.shrink_diagonal)
        check_float("shrink_rest", self.shrink_rest)

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage:
            refuse_known_classes(learner, "FeCAM")

    def finish(self, learner: RunLearner, task: Task) -> None:
        found = read_features(learner, task.train)
        features = raise_to_power(found.features.double(), self.power)
        classes, width, like = len(learner.opened), features.shape[1], found.features
        state = learner.state or {
            "mean": like.new_zeros(classes, width), "whiten": like.new_zeros(classes, width, width),
            "known": torch.zeros(classes, dtype=torch.bool),
        }  # fmt: skip
        state = {name: value.to(learner.device, copy=True) for name, value in state.items()}
        for column in found.labels.unique().tolist():
            own = features[found.labels == column]
            mean = own.mean(0)
            covariance = (own - mean).T @ (own - mean) / max(1, len(own) - 1)
            shrunk = shrink_covariance(covariance, self.shrink_diagonal, self.shrink_rest)
            state["mean"][column] = F.normalize(mean, dim=0).to(state["mean"])
            state["whiten"][column] = whiten(shrunk).to(state["whiten"])
            state["known"][column] = True
        learner.state = state

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "mean" not in state:  # before the first task is over
            return output
        features = raise_to_power(output.features.to(state["mean"].dtype), self.power)
        away = F.normalize(features, dim=-1)[None] - state["mean"][:, None]  # [C, B, d]
        distance = (away @ state["whiten"]).square().sum(-1).T
        farthest = torch.where(state["known"], distance, 0.0).amax(-1, keepdim=True)
        scores = torch.where(state["known"], -distance, -farthest - 1)
        return output._replace(logits=scores)
