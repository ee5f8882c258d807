"""Mahalanobis distance to the nearest class mean (Lee and others, 2018), stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, number
from engram.learner.batch import Batch
from engram.learner.net import Net
from engram.novelty.base import Detector, Facts, State, among
from engram.novelty.odin import towards


@dataclass(frozen=True)
class Mahalanobis(Detector):
    """Minus half the squared distance of features to the nearest class mean of those seen so far.

    Means stay as they were when their class was learnt; the covariance, shared by all classes, runs
    over all rows seen so far, as if all residuals had been stored. All classes compete, whatever
    the head.

    Parameters
    ----------
    epsilon
        Size of a step of the input towards the nearest mean, in units of the raw input.
    right
        Fit on training rows that the network classifies correctly, as the benchmark does.
    layers
        Further layers, by their names in the model; maps are averaged over their places. Each layer
        has means, a covariance and a step of its own.
    weights, bias
        How layers are combined: a logistic regression, the features' weight last. Without weights
        the score is the mean over layers of minus half the squared distance per dimension, which is
        about -1/2 in every layer for inputs like those fitted on.

    Examples
    --------
    >>> Mahalanobis(layers=("lower.0",), weights=(0.5,))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: weights: expected 2, one per layer and the features' last, got 1
    """

    fits: ClassVar[bool] = True
    epsilon: float = 0.0
    right: bool = True
    layers: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    bias: float = 0.0

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, 0.0, float("inf"))
        for name in ("layers", "weights"):  # lists of a recipe
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(set(self.layers)) < len(self.layers):
            raise bad("layers", "every layer once", self.layers)
        if self.weights and len(self.weights) != len(self.layers) + 1:
            expected = f"{len(self.layers) + 1}, one per layer and the features' last"
            raise bad("weights", expected, len(self.weights))

    def refuse(self, facts: Facts) -> None:
        for name in self.layers:
            facts.width(name)

    def start(self, facts: Facts) -> State:
        widths = [*(facts.width(name) for name in self.layers), facts.features]
        like = facts.like.double()
        more = {str(i): _nothing(like, facts.columns, f) for i, f in enumerate(widths[:-1])}
        last = _nothing(like, facts.columns, widths[-1])
        return {**last, "std": facts.std, **({"layers": more} if more else {})}

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        *below, f = self._seen(net, batch.x)
        w = (batch.w > 0).to(f)
        if self.right:
            said = among(net(batch.x).logits, batch.open).argmax(-1)
            w = w * (said == batch.target).to(f)
        which = F.one_hot(batch.target, len(state["counts"])).to(f) * w[:, None]  # [B, C]
        return self._each(state, lambda own, i: _add(own, (*below, f)[i], which, w))

    def finish(self, state: State) -> State:
        return self._each(state, lambda own, i: _closed(own))

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        parts = [self._familiarity(net, x, state, i) for i in range(len(self.layers) + 1)]
        if self.weights:
            return combined(torch.stack(parts, -1), self.weights, self.bias)
        if not self.layers:
            return parts[0]
        widths = [own["means"].shape[-1] for own in self._parts(state)]
        return torch.stack([m / f for m, f in zip(parts, widths, strict=True)]).mean(0)

    def _familiarity(self, net: Net, x: Tensor, state: State, place: int) -> Tensor:
        own = self._parts(state)[place]

        def familiarity(x: Tensor) -> Tensor:
            return nearest(self._seen(net, x)[place], own)

        if self.epsilon:
            slope = torch.func.grad(lambda x: -familiarity(x).sum())(x)
            x = x - self.epsilon * towards(slope) / state["std"]
        return familiarity(x)

    def _seen(self, net: Net, x: Tensor) -> list[Tensor]:
        """[B, F] of every layer, the features last."""
        names = tuple(f"net.backbone.{name}" for name in self.layers)
        output = net(x, want=names) if names else net(x)
        found = [pooled(output.layers[name]) for name in names]
        return [one.double() for one in (*found, output.features.flatten(1))]

    def _parts(self, state: State) -> list[State]:
        return [*(state["layers"][str(i)] for i in range(len(self.layers))), state]

    def _each(self, state: State, change: Any) -> State:
        *below, last = (change(own, i) for i, own in enumerate(self._parts(state)))
        more = {"layers": {str(i): own for i, own in enumerate(below)}} if below else {}
        return {**state, **last, **more}


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


def _nothing(like: Tensor, columns: int, f: int) -> dict[str, Tensor]:
    empty = like.new_zeros
    return {
        "means": empty(columns, f), "known": empty(columns).bool(),
        "covariance": empty(f, f), "precision": empty(f, f), "rows": empty(()),
        "sums": empty(columns, f), "counts": empty(columns), "squares": empty(f, f),
    }  # fmt: skip


def _add(state: State, f: Tensor, which: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Sums over rows f [B, F] with classes [B, C] and weights [B]."""
    return {
        **state, "sums": state["sums"] + which.mT @ f, "counts": state["counts"] + which.sum(0),
        "squares": state["squares"] + (f * w[:, None]).mT @ f,
    }  # fmt: skip


def _closed(state: State) -> dict[str, Tensor]:
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
        "covariance": covariance, "precision": torch.linalg.pinv(covariance, hermitian=True),
        "sums": torch.zeros_like(sums), "counts": torch.zeros_like(counts),
        "squares": torch.zeros_like(spread),
    }  # fmt: skip


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
