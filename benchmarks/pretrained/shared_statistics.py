"""Closed forms over many orders of the same classes, from statistics of each class made once.

A task of new classes adds their statistics to what is known: SLDA the scatter around their means,
RanPAC their Gram matrices and sums. These do not depend on the order, so that an order costs the
solutions after its tasks and a product with the test rows, and never passes over the training rows.
What is found is what `engram.run` finds; ``orders --check`` compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.methods import SLDA, RanPAC
from engram.methods.first_session import LabelledFeatures
from engram.methods.method import Method
from engram.methods.ranpac import RIDGES, RandomProjection, hold_out, solve_ridge

ROWS_AT_ONCE = 5000
WORSE = 2.0  # times the least error: beyond it, ridges are too large


class SharedStatistics(Protocol):
    """Statistics of the classes of a data set, from which every order is solved."""

    def accuracies(self, order: Sequence[int], per_task: int) -> list[float]:
        """Return the mean accuracy of the tasks so far after each task."""
        ...


def share_statistics(data: Data, method: Method, seed: int = 0) -> SharedStatistics | None:
    """Make the statistics that a method needs; None if it is none of these closed forms."""
    if type(method) is SLDA:
        return SharedSLDA(data, method)
    return SharedRanPAC(data, method, seed) if type(method) is RanPAC else None


def rows_by_class(data: Data, rows: Tensor) -> list[Tensor]:
    """Return the numbers of some rows of each class, in order."""
    labels = data.labels.flatten()[rows]
    return [rows[labels == one] for one in range(data.n_classes)]


class _Tested:
    """Test rows, class by class in an order, so that the first ones are of the classes so far."""

    def __init__(self, inputs: Tensor, places: list[Tensor], order: Sequence[int]) -> None:
        sizes = torch.tensor([len(places[one]) for one in order])
        self._inputs = inputs[torch.cat([places[one] for one in order])]
        self._labels = torch.repeat_interleave(torch.arange(len(order)), sizes)
        self._ends = sizes.cumsum(0).tolist()

    def score(self, weight: Tensor, per_task: int, bias: Tensor | None = None) -> float:
        """Return the mean accuracy of the tasks of the first classes, the rows of `weight`."""
        ends = self._ends[: len(weight)][per_task - 1 :: per_task]
        end = ends[-1]
        scores = self._inputs[:end] @ weight.T
        found = (scores if bias is None else scores + bias).float().argmax(1)
        right = (found == self._labels[:end]).double()
        tasks = right.tensor_split(ends[:-1])
        return float(torch.stack([one.mean() for one in tasks]).mean())


class SharedSLDA:
    """Counts, means and scatters of the features of each class."""

    def __init__(self, data: Data, method: SLDA) -> None:
        self.method, x = method, torch.as_tensor(data.x)
        classes = rows_by_class(data, data.train)
        self._count = torch.tensor([len(rows) for rows in classes]).double()
        self._mean = torch.stack([x[rows].double().mean(0) for rows in classes])
        self._scatter = x.new_empty(len(classes), x.shape[1], x.shape[1], dtype=torch.double)
        for one, rows in enumerate(classes):
            centred = x[rows].double() - self._mean[one]
            torch.mm(centred.T, centred, out=self._scatter[one])
        places, at = rows_by_class(data, data.test), 0
        self._tested = x[torch.cat(places)].double()
        self._places = []
        for rows in places:
            self._places.append(torch.arange(at, at + len(rows)))
            at += len(rows)

    def accuracies(self, order: Sequence[int], per_task: int) -> list[float]:
        tested, width = _Tested(self._tested, self._places, order), self._mean.shape[1]
        scatter, found = torch.zeros_like(self._scatter[0]), []
        for end in range(per_task, len(order) + 1, per_task):
            for one in order[end - per_task : end]:
                scatter += self._scatter[one]
            seen = list(order[:end])
            covariance, mean = scatter / self._count[seen].sum(), self._mean[seen]
            share = self.method.shrinkage
            scale = float(covariance.trace()) / width if self.method.relative else 1.0
            shrunk = covariance * (1 - share)
            shrunk.diagonal().add_(share * scale)
            weight = torch.cholesky_solve(mean.T, torch.linalg.cholesky(shrunk)).T
            bias = -0.5 * (weight * mean).sum(1)
            found.append(tested.score(weight, per_task, bias))
        return found


class SharedRanPAC:
    """Gram matrices and sums of the projected features of each class.

    A matrix holds two symmetric ones: below the diagonal that of the rows to which ridges are
    fitted, above it that of all rows.
    """

    def __init__(self, data: Data, method: RanPAC, seed: int = 0) -> None:
        self.method, x = method, torch.as_tensor(data.x)
        self._project = RandomProjection(x.shape[1], method.width, method.projection)
        width, classes = method.width, rows_by_class(data, data.train)
        self._grams = x.new_empty(len(classes), width, width)
        self._fitted_diagonal, self._diagonal, self._fitted_sums, self._sums = (
            x.new_empty(len(classes), width) for _ in range(4)
        )
        self._held = []
        for one, rows in enumerate(classes):
            wide = self._widen(x[rows])
            labels = torch.zeros(len(rows), dtype=torch.long)
            held = hold_out(LabelledFeatures(x[rows], labels, rows), seed)
            fitted = wide[~held].T @ wide[~held]
            whole = fitted + wide[held].T @ wide[held]
            self._grams[one] = fitted.tril() + whole.triu(1)
            self._fitted_diagonal[one], self._diagonal[one] = fitted.diagonal(), whole.diagonal()
            self._fitted_sums[one], self._sums[one] = wide[~held].sum(0), wide.sum(0)
            self._held.append(wide[held])
        places, at = rows_by_class(data, data.test), 0
        self._tested = self._widen(x[torch.cat(places)])
        self._places = []
        for rows in places:
            self._places.append(torch.arange(at, at + len(rows)))
            at += len(rows)

    @torch.no_grad()
    def _widen(self, features: Tensor) -> Tensor:
        return torch.cat([self._project(part) for part in features.split(ROWS_AT_ONCE)])

    def accuracies(self, order: Sequence[int], per_task: int) -> list[float]:
        tested, found = _Tested(self._tested, self._places, order), []
        gram, diagonal = torch.zeros_like(self._grams[0]), torch.zeros_like(self._diagonal[0])
        ridge = float(self.method.ridge)
        for end in range(per_task, len(order) + 1, per_task):
            new = list(order[end - per_task : end])
            task = self._grams[new].sum(0)
            gram += task
            diagonal += self._diagonal[new].sum(0)
            if not self.method.ridge:
                least = torch.finfo(gram.dtype).eps * float(diagonal.sum())
                ridge = self._choose_ridge(task, new, least)
            whole = gram.triu(1)
            whole = whole + whole.T
            whole.diagonal().copy_(diagonal)
            weight = solve_ridge(whole, self._sums[list(order[:end])], ridge).to(gram.dtype)
            found.append(tested.score(weight, per_task))
        return found

    def _choose_ridge(self, task: Tensor, new: list[int], least: float) -> float:
        """Return the ridge of the least squared error on held-out rows of the task.

        A decomposition for each, from the smallest one until the error is twice the least: what is
        shrunk too much becomes worse with every further step.
        """
        below, diagonal = task.tril(-1).double(), self._fitted_diagonal[new].double().sum(0)
        sums = self._fitted_sums[new].double().T
        held = torch.cat([self._held[one] for one in new]).double()
        sizes = torch.tensor([len(self._held[one]) for one in new])
        wanted = torch.eye(len(new), dtype=torch.double).repeat_interleave(sizes, 0)
        best, lowest = RIDGES[-1], float("inf")
        for ridge in [one for one in RIDGES if one >= least]:
            whole = below.clone()
            whole.diagonal().copy_(diagonal + ridge)
            factor: Any = torch.linalg.cholesky(whole)  # reads what is below the diagonal
            predicted = held @ torch.cholesky_solve(sums, factor)
            error = float((predicted - wanted).square().sum())
            if error < lowest:
                best, lowest = ridge, error
            elif error > WORSE * lowest:
                break
        return best
