"""Mahalanobis distance to the nearest class mean (Lee and others, 2018): class means and a
shared covariance, updated stage by stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, check_choice, check_float
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.models.forward_pass import Output
from engram.novelty.detector import ROWS_PER_BATCH, Detector, Facts, State, mask_logits
from engram.novelty.odin import sign_or_one
from engram.probes.stage_view import StageView


@dataclass(frozen=True)
class Mahalanobis(Detector):
    """Minus half the squared Mahalanobis distance of features to the nearest class mean.

    Means stay as they were when their class was learnt; the covariance, shared by all classes, runs
    over all rows seen so far, as if all residuals had been stored. All classes compete, whatever
    the head.

    Parameters
    ----------
    epsilon
        Size of a step of the input towards the nearest mean, in units of the raw input.
    shrink
        Part of the covariance's mean variance that is added to every variance. Without, directions
        of less than a millionth of the largest variance (unused units, fewer rows than
        dimensions) are left out, as the pseudo-inverse does: distances along them mean nothing.
    right
        Fit on training rows that the network classifies correctly, as the benchmark does.
    layers
        Further layers, by their names in the model; maps are averaged over their places. Each layer
        has means, a covariance and a step of its own.
    combine
        How layers are combined. ``mean``: minus half the squared distance per dimension, which is
        about -1/2 in every layer for inputs like those fitted on. ``logistic``: a logistic
        regression of the task's training rows against the training rows of the outside set, fitted
        anew after every stage with a cross-validated penalty; the score is its log odds, in the
        order of its probability, which would not tell apart what is very likely.
    weights, bias
        A given logistic regression instead, the features' weight last; the score is its
        probability.

    Examples
    --------
    >>> Mahalanobis(layers=("lower.0",), weights=(0.5,))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: weights: expected 2, one per layer and the features' last, got 1
    """

    fits: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {
        "epsilon": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)
    }
    epsilon: float = 0.0
    right: bool = True
    layers: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    bias: float = 0.0
    combine: str = "mean"
    shrink: float = 0.0

    def __post_init__(self) -> None:
        check_float("epsilon", self.epsilon, 0.0, float("inf"))
        check_float("shrink", self.shrink, 0.0, float("inf"))
        check_choice("combine", self.combine, ("mean", "logistic"))
        for name in ("layers", "weights"):  # lists of a recipe
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(set(self.layers)) < len(self.layers):
            raise bad("layers", "every layer once", self.layers)
        if self.weights and len(self.weights) != len(self.layers) + 1:
            expected = f"{len(self.layers) + 1}, one per layer and the features' last"
            raise bad("weights", expected, len(self.weights))
        if self.weights and self.combine == "logistic":
            raise bad("weights", "none where a logistic regression is fitted", self.weights)

    @property
    def outside(self) -> bool:
        return self.combine == "logistic"

    @property
    def only_scores(self) -> tuple[str, ...]:
        return () if self.combine == "logistic" else ("epsilon", "weights", "bias")

    def refuse(self, facts: Facts) -> None:
        for name in self.layers:
            facts.width(name)

    def start(self, facts: Facts) -> State:
        widths = [*(facts.width(name) for name in self.layers), facts.features]
        like = facts.like.double()
        more = {
            str(i): make_empty_statistics(like, facts.columns, f) for i, f in enumerate(widths[:-1])
        }
        last = make_empty_statistics(like, facts.columns, widths[-1])
        found = {**last, "std": facts.std, **({"layers": more} if more else {})}
        if self.combine == "logistic":
            found |= {"weights": like.new_zeros(len(widths)), "bias": like.new_zeros(())}
        return found

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        output = self._output(net, batch.x)
        *below, f = self._seen(output)
        w = self._counts_for_fit(output, batch).to(f)
        which = F.one_hot(batch.target, len(state["counts"])).to(f) * w[:, None]  # [B, C]
        return self._each(state, lambda own, i: add_to_sums(own, (*below, f)[i], which, w))

    def _counts_for_fit(self, output: Output, batch: Batch) -> Tensor:
        """Return [B] which rows count: no padding and, optionally, no misclassified rows."""
        if not self.right:
            return batch.w > 0
        return (mask_logits(output.logits, batch.open).argmax(-1) == batch.target) & (batch.w > 0)

    def finish(self, state: State) -> State:
        return self._each(state, lambda own, i: update_gaussians(own, self.shrink))

    def fit_stage(self, view: StageView) -> Any:
        state = super().fit_stage(view)
        if self.combine != "logistic":
            return state

        def familiar(net: Net, batch: Batch, state: State) -> tuple[Tensor, Tensor]:
            real = self._counts_for_fit(self._output(net, batch.x), batch)
            return self.by_layer(net, batch.x, state), real

        # the rows were counted when they were fitted on
        rows = self.rows_to_fit(view.for_probe(view.needs, None), self.rows_at_once)
        each = [view.map(familiar, batch, state) for batch in rows]
        inside, real = (torch.cat(parts, 1) for parts in zip(*each, strict=True))
        other = [view.map(self.by_layer, x, state) for x in view.outside("train", ROWS_PER_BATCH)]
        outside = torch.cat(other, 1)
        found = [fit_logistic(own[kept], far) for own, kept, far in zip(inside, real, outside)]
        weights, bias = (torch.stack(parts).to(inside) for parts in zip(*found))
        return {**state, "weights": weights, "bias": bias}

    def by_layer(self, net: Net, x: Tensor, state: State) -> Tensor:
        """Compute minus half the squared distance [B, L] in every layer, features last."""
        own = self._parts(state)

        def familiarity(x: Tensor) -> Tensor:
            seen = self._seen(self._output(net, x))
            return torch.stack(
                [nearest_distance(f, one) for f, one in zip(seen, own, strict=True)], -1
            )

        if not self.epsilon:
            return familiarity(x)
        # one pass forward; for every layer one back, and one of the input that it moved
        usual, back = torch.func.vjp(familiarity, x)[:2]
        moved = []
        for i in range(len(own)):
            (slope,) = back(-F.one_hot(torch.tensor(i), len(own)).to(usual).expand_as(usual))
            near = x - self.epsilon * sign_or_one(slope) / state["std"]
            moved.append(familiarity(near)[:, i])
        return torch.stack(moved, -1)

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        parts = self.by_layer(net, x, state)
        if self.combine == "logistic":
            odds: Tensor = parts @ state["weights"] + state["bias"]
            return odds
        if self.weights:
            return combine_layers(parts, self.weights, self.bias)
        if not self.layers:
            return parts[:, 0]
        widths = [own["means"].shape[-1] for own in self._parts(state)]
        return (parts / torch.tensor(widths).to(parts)).mean(-1)

    @property
    def _paths(self) -> tuple[str, ...]:
        return tuple(f"net.backbone.{name}" for name in self.layers)

    def _output(self, net: Net, x: Tensor) -> Output:
        return net(x, want=self._paths) if self.layers else net(x)

    def _seen(self, output: Output) -> list[Tensor]:
        """Return the outputs [B, F] of every layer, features last."""
        found = [pool_places(output.layers[name]) for name in self._paths]
        return [one.double() for one in (*found, output.features.flatten(1))]

    def _parts(self, state: State) -> list[State]:
        return [*(state["layers"][str(i)] for i in range(len(self.layers))), state]

    def _each(self, state: State, change: Any) -> State:
        *below, last = (change(own, i) for i, own in enumerate(self._parts(state)))
        more = {"layers": {str(i): own for i, own in enumerate(below)}} if below else {}
        return {**state, **last, **more}


# -- class means and a shared covariance of features, updated stage by stage -----------------------

GaussianState = Mapping[str, Any]
RTOL = 1e-6  # of the largest variance: what is less is none
PENALTIES = tuple(10.0**k for k in range(-4, 5))  # C of a logistic regression
FOLDS = 5


def combine_layers(parts: Tensor, weights: tuple[float, ...], bias: float) -> Tensor:
    """Combine scores [B, L] of layers to the probability [B] that an input is familiar.

    Examples
    --------
    >>> round(combine_layers(torch.tensor([[-1.0, -3.0]]), (0.5, -0.2), 0.1).item(), 6)
    0.549834
    """
    return torch.sigmoid(parts @ torch.tensor(weights).to(parts) + bias)


def pool_places(layer: Tensor) -> Tensor:
    """Average the output of a layer over positions, if it has any: [B, F]."""
    return layer.flatten(2).mean(-1) if layer.ndim > 2 else layer


def make_empty_statistics(like: Tensor, columns: int, f: int) -> dict[str, Tensor]:
    """Make the state before any rows."""
    empty = like.new_zeros
    return {
        "means": empty(columns, f), "known": empty(columns).bool(),
        "covariance": empty(f, f), "precision": empty(f, f), "rows": empty(()),
        "sums": empty(columns, f), "counts": empty(columns), "squares": empty(f, f),
    }  # fmt: skip


def add_to_sums(state: GaussianState, f: Tensor, which: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Add rows f [B, F] with classes [B, C] and weights [B] to the sums."""
    return {
        **state, "sums": state["sums"] + which.mT @ f, "counts": state["counts"] + which.sum(0),
        "squares": state["squares"] + (f * w[:, None]).mT @ f,
    }  # fmt: skip


def update_gaussians(state: GaussianState, shrink: float = 0.0) -> dict[str, Tensor]:
    """Update means of new classes and the covariance of all rows from the sums of a stage."""
    sums, counts = state["sums"], state["counts"]
    fresh = sums / counts.clamp(min=1)[:, None]
    means = torch.where(state["known"][:, None], state["means"], fresh)
    # sum over the rows of (f - mean)(f - mean)', from sums of f and of f f'
    cross = means.mT @ sums
    spread = state["squares"] - cross - cross.mT + (means * counts[:, None]).mT @ means
    rows = state["rows"] + counts.sum()
    covariance = (state["covariance"] * state["rows"] + spread) / rows.clamp(min=1)
    return {
        **state, "means": means, "known": state["known"] | (counts > 0), "rows": rows,
        "covariance": covariance, "precision": invert_covariance(covariance, shrink),
        "sums": torch.zeros_like(sums), "counts": torch.zeros_like(counts),
        "squares": torch.zeros_like(spread),
    }  # fmt: skip


def invert_covariance(covariance: Tensor, shrink: float = 0.0) -> Tensor:
    """Compute the precision matrix of a covariance of any rank; see `Mahalanobis.shrink`.

    Examples
    --------
    >>> invert_covariance(torch.diag(torch.tensor([4.0, 1e-9, 0.0]))).diag().tolist()
    [0.25, 0.0, 0.0]
    """
    if shrink:
        mean = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
        covariance = covariance + shrink * mean * torch.eye(len(covariance)).to(covariance)
    rtol = None if shrink else RTOL
    found: Tensor = torch.linalg.pinv(covariance, rtol=rtol, hermitian=True)
    return found


def nearest_distance(features: Tensor, state: GaussianState) -> Tensor:
    """Compute minus half the squared distance [B] to the nearest known mean.

    Examples
    --------
    >>> state = {
    ...     "means": torch.tensor([[1.0, 0.0], [4.0, 5.0]]).double(),
    ...     "known": torch.ones(2, dtype=torch.bool),
    ...     "precision": 2 * torch.eye(2).double(),
    ... }
    >>> nearest_distance(torch.tensor([[1.0, 1.0]]), state).item()
    -1.0
    """
    away = features.double()[:, None] - state["means"]  # [B, C, F]
    far = ((away @ state["precision"]) * away).sum(-1)
    best: Tensor = (-0.5 * far).masked_fill(~state["known"], -torch.inf).amax(-1)
    return best.nan_to_num(neginf=0.0)  # nothing is known yet


def fit_logistic(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression of rows [n, L] against others [m, L]: weights [L] and bias.

    Its penalty is chosen by cross-validation. Without rows on one side, all inputs are alike.

    Examples
    --------
    >>> rows = torch.tensor([[-1.0], [-2.0], [-1.5], [-9.0], [-8.0]]).double()
    >>> inside, outside = rows[:3], rows[3:]
    >>> weights, bias = fit_logistic(inside, outside)
    >>> (inside @ weights + bias > 0).tolist(), (outside @ weights + bias > 0).tolist()
    ([True, True, True], [False, False])
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    x = torch.cat([inside, outside]).double().cpu().numpy()
    y = np.arange(len(x)) < len(inside)
    if y.all() or not y.any():
        return inside.new_zeros(x.shape[1]), inside.new_zeros(())
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    x = (x - mean) / scale
    folds = min(FOLDS, int(y.sum()), int((~y).sum()))
    made = [LogisticRegression(C=penalty, max_iter=1000) for penalty in PENALTIES]
    best = LogisticRegression(max_iter=1000)
    if folds > 1:
        how = {"cv": folds, "scoring": "neg_log_loss"}  # where all are right, accuracy says nothing
        best = made[int(np.argmax([cross_val_score(one, x, y, **how).mean() for one in made]))]
    best.fit(x, y)
    weights = best.coef_[0] / scale
    return torch.from_numpy(weights), torch.tensor(best.intercept_[0] - weights @ mean)
