"""Methods that hold important weights where they were: EWC, SI, MAS."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, Finetune, Settings

Named = dict[str, Tensor]


@dataclass
class Spring:
    """Importances and the weights they pull to."""

    importance: Named = field(default_factory=dict)
    anchor: Named = field(default_factory=dict)


class Held(Finetune):
    """Cross-entropy plus strength * sum of importance * (weight - anchor)^2."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, strength: float
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.strength = strength
        self.springs: list[Spring] = []

    def weights(self) -> Named:
        return {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def penalty(self) -> Tensor:
        total = torch.zeros(())
        weights = dict(self.net.named_parameters())
        for spring in self.springs:  # a head that is new has no importance and no anchor yet
            for name, importance in spring.importance.items():
                moved = weights[name] - spring.anchor[name]
                total = total + (importance * moved**2).sum()
        return total

    def backward(self, rows: Tensor) -> None:
        (self.cost(rows) + self.strength * self.penalty()).backward()

    def gradients(self, value: Tensor) -> Named:
        self.net.zero_grad()
        value.backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.net.named_parameters()
        }

    def accumulate(self, importance: Named) -> None:
        """One spring whose importances are sums over tasks, and whose anchor is the newest."""
        if self.springs:
            for name, old in self.springs[0].importance.items():
                importance[name] = importance[name] + old
        self.springs = [Spring(importance, self.weights())]


class EWC(Held):
    """One spring per past task: strength / 2, the squared gradients of each sample's likelihood."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, strength: float
    ) -> None:
        super().__init__(images, multi, seed, settings, strength=strength / 2)

    def finish(self) -> None:
        rows = self.own_rows()
        fisher = {name: torch.zeros_like(w) for name, w in self.weights().items()}
        for row in rows:
            for name, g in self.gradients(self.cost(row[None])).items():
                fisher[name] += g**2 / len(rows)
        self.springs.append(Spring(fisher, self.weights()))


class MAS(Held):
    """The importance is the mean size of the gradients of |logits|^2, summed over tasks."""

    def finish(self) -> None:
        rows = self.own_rows()
        omega = {name: torch.zeros_like(w) for name, w in self.weights().items()}
        for row in rows:
            logits = self.net(self.images.x[row][None])
            if self.multi:
                logits = logits[:, self.task * CLASSES_PER_TASK :]
            for name, g in self.gradients((logits**2).sum()).items():
                omega[name] += g.abs() / len(rows)
        self.accumulate(omega)


class SI(Held):
    """The importance is each weight's share in the fall of the loss, over the squared way."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, strength: float,
        xi: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings, strength=strength)
        self.xi = xi
        self.path: Named = {}

    def backward(self, rows: Tensor) -> None:
        self.before = self.weights()
        if not self.path:  # the first step of a task
            self.begin = self.before
            self.path = {name: torch.zeros_like(w) for name, w in self.before.items()}
        self.slope = self.gradients(self.cost(rows))
        if self.springs:
            (self.strength * self.penalty()).backward()  # added to the gradients of the cost

    def stepped(self) -> None:
        for name, now in self.weights().items():
            self.path[name] -= self.slope[name] * (now - self.before[name])

    def finish(self) -> None:
        weights = self.weights()
        omega = {
            name: path / ((weights[name] - self.begin[name]) ** 2 + self.xi)
            for name, path in self.path.items()
        }
        self.accumulate(omega)
        self.path = {}
