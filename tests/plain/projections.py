"""Methods that bend the gradient away from harm: A-GEM, GEM, GPM, Adam-NSCL and OWM."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from tests.plain.images import Images
from tests.plain.loop import Finetune, Settings
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


class GPM(Finetune):
    """What the optimiser does to a layer, without the directions of its inputs in earlier tasks."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *,
        threshold: float = 0.97, increase: float = 0.003, samples: int = 300,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.threshold, self.increase, self.samples = threshold, increase, samples
        self.layers = [one for one in self.net.trunk if isinstance(one, nn.Linear)]
        self.bases = [torch.zeros(one.in_features + 1, 0) for one in self.layers]
        self.projectors: list[Tensor] = []

    @torch.no_grad()
    def backward(self, rows: Tensor) -> None:
        with torch.enable_grad():
            super().backward(rows)
        self.before = [(one.weight.clone(), one.bias.clone()) for one in self.layers]

    @torch.no_grad()
    def stepped(self) -> None:
        for one, old, free in zip(self.layers, self.before, self.projectors, strict=False):
            change = torch.cat([one.weight - old[0], (one.bias - old[1])[:, None]], 1) @ free
            one.weight.copy_(old[0] + change[:, :-1])
            one.bias.copy_(old[1] + change[:, -1])

    @torch.no_grad()
    def finish(self) -> None:
        own = self.own_rows()
        x = self.images.x[own[torch.randperm(len(own))[: self.samples]]]
        share, place = self.threshold + self.increase * self.task, 0
        for one in self.net.trunk:
            if isinstance(one, nn.Linear):
                given = torch.cat([x, torch.ones(len(x), 1)], 1).T.double()
                base = self.bases[place].double()
                u, s, _ = torch.linalg.svd(given - base @ (base.T @ given), full_matrices=False)
                held = given.square().sum() - s.square().sum()
                count = int((held + s.square().cumsum(0) < share * given.square().sum()).sum())
                count = 0 if held >= share * given.square().sum() else count + 1
                self.bases[place] = torch.cat([base, u[:, :count]], 1).float()
                place += 1
            x = one(x)
        self.projectors = [torch.eye(len(base)) - base @ base.T for base in self.bases]


class AdamNSCL(GPM):
    """What the optimiser does to a layer, where inputs of all earlier tasks hardly reach."""

    scale, floor = 10.0, 1e-7

    def start(self) -> None:
        if self.task < 0:
            self.moments = [torch.zeros(len(one), len(one)).double() for one in self.bases]
            self.before = []

    def backward(self, rows: Tensor) -> None:
        (GPM if self.projectors else Finetune).backward(self, rows)

    @torch.no_grad()
    def finish(self) -> None:
        x, place = self.images.x[self.own_rows()], 0
        for one in self.net.trunk:
            if isinstance(one, nn.Linear):
                given = torch.cat([x, torch.ones(len(x), 1)], 1).double()
                self.moments[place].addmm_(given.T, given)
                place += 1
            x = one(x)
        self.projectors = [self.null_space(moment) for moment in self.moments]

    def null_space(self, moment: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(moment)  # from the smallest on
        least = max(values[0], self.floor * values[-1])
        basis = vectors[:, values <= self.scale * least]
        return (basis @ basis.T).float()


class OWM(Finetune):
    """What the optimiser does to a layer, without the mean inputs of batches of earlier tasks."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *,
        alpha: float = 0.1, size: int = 64,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.alpha, self.size = alpha, size
        self.hidden = [one for one in self.net.trunk if isinstance(one, nn.Linear)]
        widths = [*(one.in_features for one in self.hidden), self.net.width]
        self.projectors = [torch.eye(width + 1).double() for width in widths]

    @torch.no_grad()
    def backward(self, rows: Tensor) -> None:
        with torch.enable_grad():
            super().backward(rows)
        places = [*range(len(self.hidden)), *[len(self.hidden)] * len(self.net.heads)]
        self.layers = list(zip([*self.hidden, *self.net.heads], places, strict=True))
        self.before = [(one.weight.clone(), one.bias.clone()) for one, _ in self.layers]

    def start(self) -> None:
        self.free = [one.float() for one in self.projectors]

    @torch.no_grad()
    def stepped(self) -> None:
        if not self.task:
            return
        for (one, place), old in zip(self.layers, self.before, strict=True):
            change = torch.cat([one.weight - old[0], (one.bias - old[1])[:, None]], 1)
            change = change @ self.free[place]
            one.weight.copy_(old[0] + change[:, :-1])
            one.bias.copy_(old[1] + change[:, -1])

    @torch.no_grad()
    def finish(self) -> None:
        own = self.own_rows()
        for batch in own[torch.randperm(len(own))].split(self.size):
            x, given = self.images.x[batch], []
            for one in self.net.trunk:
                given += [x] if isinstance(one, nn.Linear) else []
                x = one(x)
            for place, inputs in enumerate([*given, x]):
                mean = torch.cat([inputs.mean(0), torch.ones(1)]).double()
                along = self.projectors[place] @ mean
                self.projectors[place] -= along.outer(along) / (self.alpha + mean @ along)
