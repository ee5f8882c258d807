"""Methods that bend the gradient away from harm: A-GEM and GEM."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from tests.plain.images import Images
from tests.plain.loop import Settings
from tests.plain.rehearsal import Rehearsal


class Projecting(Rehearsal):
    """Gradients as one vector, there and back."""

    def gradient(self, rows: Tensor) -> Tensor:
        self.net.zero_grad()
        self.cost(rows).backward()
        return torch.cat([
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone()
            for p in self.net.parameters()
        ])  # fmt: skip

    def put(self, gradient: Tensor) -> None:
        start = 0
        for p in self.net.parameters():
            p.grad = gradient[start : start + p.numel()].view_as(p).clone()
            start += p.numel()


class AGEM(Projecting):
    """Without its part against the gradient on a random batch of the memory."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.total = total

    def backward(self, rows: Tensor) -> None:
        gradient = self.gradient(rows)
        if self.kept:
            memory = self.memory()
            drawn = memory[torch.randint(len(memory), (self.settings.batch_size,))]
            reference = self.gradient(drawn)
            along = torch.dot(gradient, reference)
            if along < 0:
                gradient = gradient - along / torch.dot(reference, reference) * reference
        self.put(gradient)

    def finish(self) -> None:
        self.keep_at_random(self.total)


class GEM(Projecting):
    """The nearest gradient that goes against none of the past tasks' ones."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, margin: float,
        fraction: float, eps: float = 1e-3,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.margin, self.fraction, self.eps = margin, fraction, eps

    def backward(self, rows: Tensor) -> None:
        gradient = self.gradient(rows)
        if self.kept:
            past = torch.stack([self.gradient(kept) for kept in self.kept.values()])
            if bool((past @ gradient < 0).any()):
                gradient = gradient + past.T @ self.weights(past, gradient)
        self.put(gradient)

    def weights(self, past: Tensor, gradient: Tensor) -> Tensor:
        """argmin v' (M M' + eps) v / 2 + (M g)' v over v >= margin, by non-negative least squares.

        With v = u + margin and M M' + eps = L L' it is min |L' u + L^-1 (M g + margin L L' 1)|.
        """
        m, g = past.double().numpy(), gradient.double().numpy()
        matrix = m @ m.T + self.eps * np.eye(len(m))
        lower = np.linalg.cholesky(matrix)
        right = np.linalg.solve(lower, m @ g + self.margin * matrix.sum(1))
        u, _ = nnls(lower.T, -right)
        return torch.tensor(u + self.margin, dtype=past.dtype)

    def finish(self) -> None:
        """A share of the task, whatever the classes; `kept` goes by task here."""
        rows = self.own_rows()
        count = int(np.ceil(self.fraction * len(rows)))
        self.kept[self.task] = rows[torch.randperm(len(rows))[:count]]
