"""Means and a shared covariance of features, stage by stage, and distances from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

State = Mapping[str, Any]
RTOL = 1e-6  # of the largest variance: what is less is none
PENALTIES = tuple(10.0**k for k in range(-4, 5))  # C of a logistic regression
FOLDS = 5


def combined(parts: Tensor, weights: tuple[float, ...], bias: float) -> Tensor:
    """[B] probability that an input is familiar, from the scores [B, L] of layers.

    Examples
    --------
    >>> round(combined(torch.tensor([[-1.0, -3.0]]), (0.5, -0.2), 0.1).item(), 6)
    0.549834
    """
    return torch.sigmoid(parts @ torch.tensor(weights).to(parts) + bias)


def pooled(layer: Tensor) -> Tensor:
    """[B, F] the output of a layer, averaged over places where it has some."""
    return layer.flatten(2).mean(-1) if layer.ndim > 2 else layer


def nothing(like: Tensor, columns: int, f: int) -> dict[str, Tensor]:
    """Means and covariance of no rows."""
    empty = like.new_zeros
    return {
        "means": empty(columns, f), "known": empty(columns).bool(),
        "covariance": empty(f, f), "precision": empty(f, f), "rows": empty(()),
        "sums": empty(columns, f), "counts": empty(columns), "squares": empty(f, f),
    }  # fmt: skip


def add(state: State, f: Tensor, which: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Sums over rows f [B, F] with classes [B, C] and weights [B]."""
    return {
        **state, "sums": state["sums"] + which.mT @ f, "counts": state["counts"] + which.sum(0),
        "squares": state["squares"] + (f * w[:, None]).mT @ f,
    }  # fmt: skip


def closed(state: State, shrink: float = 0.0) -> dict[str, Tensor]:
    """Means of new classes and the covariance of all rows so far, from the sums of a stage."""
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
        "covariance": covariance, "precision": inverse(covariance, shrink),
        "sums": torch.zeros_like(sums), "counts": torch.zeros_like(counts),
        "squares": torch.zeros_like(spread),
    }  # fmt: skip


def inverse(covariance: Tensor, shrink: float = 0.0) -> Tensor:
    """The precision, whatever the rank; see `Mahalanobis.shrink`.

    Examples
    --------
    >>> inverse(torch.diag(torch.tensor([4.0, 1e-9, 0.0]))).diag().tolist()
    [0.25, 0.0, 0.0]
    """
    if shrink:
        mean = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
        covariance = covariance + shrink * mean * torch.eye(len(covariance)).to(covariance)
    rtol = None if shrink else RTOL
    found: Tensor = torch.linalg.pinv(covariance, rtol=rtol, hermitian=True)
    return found


def nearest(features: Tensor, state: State) -> Tensor:
    """[B] minus half the squared distance to the nearest known mean.

    Examples
    --------
    >>> state = {"means": torch.tensor([[1.0, 0.0], [4.0, 5.0]]).double(),
    ...          "known": torch.ones(2, dtype=torch.bool), "precision": 2 * torch.eye(2).double()}
    >>> nearest(torch.tensor([[1.0, 1.0]]), state).item()
    -1.0
    """
    away = features.double()[:, None] - state["means"]  # [B, C, F]
    far = ((away @ state["precision"]) * away).sum(-1)
    best: Tensor = (-0.5 * far).masked_fill(~state["known"], -torch.inf).amax(-1)
    return best.nan_to_num(neginf=0.0)  # nothing is known yet


def logistic(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [L] and bias of a logistic regression of rows [n, L] against others [m, L].

    Its penalty is chosen by cross-validation. Without rows on one side, all inputs are alike.

    Examples
    --------
    >>> rows = torch.tensor([[-1.0], [-2.0], [-1.5], [-9.0], [-8.0]]).double()
    >>> inside, outside = rows[:3], rows[3:]
    >>> weights, bias = logistic(inside, outside)
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
