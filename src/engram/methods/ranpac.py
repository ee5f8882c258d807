"""RanPAC: ridge regression on random projections of features that stand still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import check_float, check_int
from engram.learner.learner import EVAL_ROWS, RunLearner
from engram.learner.networks import Net
from engram.methods.first_session import FirstSession, LabelledFeatures, class_sums, read_features
from engram.methods.method import MethodNetworks, State
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

RIDGES = tuple(10.0**power for power in range(-8, 10))  # those of the paper
FITTED = 0.8  # share of a task's rows to which each ridge is fitted; the rest compares them
FIRST_RIDGE = 1.0  # until a task has a class of two rows


class RandomProjection(nn.Module):
    """A linear map to `width` dimensions that is drawn once, and ReLU.

    Examples
    --------
    >>> RandomProjection(3, 5)(torch.ones(2, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(self, features: int, width: int, number: int = 0) -> None:
        super().__init__()
        drawn = keys.normal(keys.fold(number, "RanPAC"), features, width)
        # asks for no gradient: a constant, of which all runs share one copy
        self.weight = nn.Parameter(drawn, requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(features @ self.weight.to(features.dtype))


def solve_ridge(gram: Tensor, sums: Tensor, ridge: float) -> Tensor:
    """Return the weights [C, M] of ridge regression to the classes.

    Examples
    --------
    >>> solve_ridge(torch.eye(2).double(), torch.tensor([[4.0, 2.0]]).double(), 1.0).tolist()
    [[2.0, 1.0]]
    """
    whole = gram.double().clone()
    whole.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(whole)
    if int(failed):  # singular but for rounding errors, with a tiny ridge
        found: Tensor = torch.linalg.solve(whole, sums.double().T).T
        return found
    solved: Tensor = torch.cholesky_solve(sums.double().T, factor).T
    return solved


def choose_ridge(
    fitted: Tensor,
    targets: Tensor,
    held: Tensor,
    wanted: Tensor,
    gram: Tensor | None = None,
    least: float = 0.0,
) -> float:
    """Return the ridge of `RIDGES` with the least squared error on held-out rows.

    Rows are projected features [n, M] with targets [n, C]. One decomposition serves all ridges: of
    the Gram matrix [M, M], which may be given, or, if there are fewer rows, of their inner products
    [n, n]. Those below `least` are left out.

    Examples
    --------
    >>> rows = torch.tensor([[1.0], [2.0]]).double()
    >>> choose_ridge(rows, rows, torch.ones(1, 1).double(), torch.ones(1, 1).double() / 2)
    10.0
    """
    wide = len(fitted) < fitted.shape[1]
    if wide:
        gram = fitted @ fitted.T
    elif gram is None:
        gram = fitted.T @ fitted
    values, vectors = torch.linalg.eigh(gram.to(fitted))
    if wide:  # predictions K' (K + r)^-1 Y of inner products K
        left, right = (held @ fitted.T) @ vectors, vectors.T @ targets
    else:
        left, right = held @ vectors, vectors.T @ (fitted.T @ targets)
    ridges = [ridge for ridge in RIDGES if ridge >= least] or RIDGES[-1:]
    scale = 1 / (values.clamp(min=0) + torch.tensor(ridges).to(values)[:, None])  # [ridges, n]
    errors = [((left * one) @ right - wanted).square().sum() for one in scale]
    return ridges[int(torch.stack(errors).argmin())]


def hold_out(found: LabelledFeatures, seed: int) -> Tensor:
    """Return a mask [n] of a fifth of the rows of each class, rounded down.

    Which rows follows from their numbers and the seed, not from the task in which they come.

    Examples
    --------
    >>> rows = LabelledFeatures(torch.zeros(6, 1), torch.tensor([0] * 5 + [1]), torch.arange(6))
    >>> hold_out(rows, seed=0).tolist().count(True)
    1
    """
    key = keys.fold(torch.tensor(keys.fold(seed, "RanPAC")), found.rows)
    drawn = keys.uniform(key)
    order = drawn.argsort(stable=True)
    order = order[found.labels[order].argsort(stable=True)]  # class by class, each in drawn order
    count = torch.bincount(found.labels)
    place = torch.arange(len(order)) - (count.cumsum(0) - count)[found.labels[order]]
    fitted = count - (count * (1 - FITTED) + 1e-9).long()
    mask = torch.zeros(len(order), dtype=torch.bool)
    mask[order] = place >= fitted[found.labels[order]]
    return mask


@dataclass(frozen=True, kw_only=True)
class RanPAC(FirstSession):
    """Ridge regression to the classes on a random projection of frozen features.

    Features are multiplied by a random matrix that is drawn once, and what is below 0 is cut off.
    Of these wider features a Gram matrix and sums per class are accumulated, from which the weights
    of a linear classifier are solved for after each task. Sums do not depend on the order of the
    tasks, so at a fixed ridge the result does not, either. Nothing is trained, and no exemplars are
    kept.

    Parameters
    ----------
    width
        Dimensions of the projection. The paper: 10,000, whose Gram matrix has 400 MB in single
        precision; 2,000 has 16 MB.
    ridge
        Added to the diagonal of the Gram matrix. 0: chosen after each task from 10^-8 to 10^9, by
        the squared error on a fifth of the task's own rows. Those that the precision of the Gram
        matrix cannot hold beside its trace are left out.
    projection
        Number of the random projection. It does not follow the seed: all runs share one matrix.
    train_first
        Train the network on the first task, as the paper does with adapters in its first phase.
        Under a frozen backbone (``model.freeze``) there is nothing to train.

    Examples
    --------
    >>> RanPAC().width, [phase.rows for phase in RanPAC().phases(0)]
    (2000, ['none'])

    References
    ----------
    McDonnell et al. 2023, Advances in Neural Information Processing Systems.
    """

    width: int = 2000
    ridge: PerRun = 0.0
    projection: int = 0
    train_first: bool = False

    def __post_init__(self) -> None:
        check_int("width", self.width, 1)
        check_float("ridge", self.ridge)
        check_int("projection", self.projection)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        assert stream.features is not None  # known where networks are made
        return {"projection": RandomProjection(stream.features, self.width, self.projection)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        found, classes = read_features(learner, task.train), len(learner.opened)
        net: Any = learner.net()
        # in the precision of the run, which halves the memory of sums in single precision
        wide = torch.cat([
            net.projection(some.to(learner.device)) for some in found.features.split(EVAL_ROWS)
        ])  # fmt: skip
        state, labels = learner.state, found.labels.to(learner.device)
        count, sums = class_sums(wide, labels, classes)
        held = hold_out(found, learner.seed)
        fitted = wide[~held]
        part = fitted.T @ fitted  # serves the choice of the ridge, too
        gram = part + wide[held].T @ wide[held]
        if state:
            gram, sums = gram.add_(state["gram"]), sums.add_(state["sums"])
            count = count.add_(state["count"])
        ridge = self.ridge or float(state.get("ridge", FIRST_RIDGE))
        # without numbers there is nothing to choose: the scores will say that the run has diverged
        if not self.ridge and bool(held.any()) and bool(wide.isfinite().all()):
            shown = labels.unique()  # the error of other classes is 0 at every ridge
            targets = (labels[:, None] == shown).double()
            # a smaller one would be lost among the rounding errors of the Gram matrix
            least = torch.finfo(gram.dtype).eps * float(gram.trace())
            ridge = choose_ridge(
                fitted.double(), targets[~held], wide[held].double(), targets[held], part, least
            )
        weight = solve_ridge(gram, sums, ridge).to(gram.dtype)
        chosen = torch.tensor(ridge, dtype=torch.float64, device=learner.device)
        learner.state = {
            "gram": gram, "sums": sums, "count": count, "weight": weight, "ridge": chosen,
        }  # fmt: skip

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "weight" not in state:  # before the first task is over
            return output
        wide = net.projection(output.features).to(state["weight"].dtype)
        return output._replace(logits=wide @ state["weight"].T)
