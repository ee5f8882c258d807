"""Optimisers on the one vector, for one run [P] or several [R, P], in place.

torch.optim refuses a learning rate per run, so the update is ours. Where every run has the same
rate and step count, torch's fused kernel does the same arithmetic in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from engram.engine.training import Training
from engram.learner.layout import Networks

EPS = 1e-8
PARTS = ("m", "v")  # of an optimiser's state, with one number per parameter
Opt = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """SGD, Adam or AdamW with torch's formulas."""

    kind: str
    momentum: float
    betas: tuple[float, float]
    decay: float

    @classmethod
    def of(cls, training: Training) -> Optimizer:
        return cls(training.optimizer, training.momentum, training.betas, training.weight_decay)

    def fresh(self, vector: Tensor) -> Opt:
        """The state before the first step."""
        steps = torch.zeros(vector.shape[:-1], dtype=torch.float32, device=vector.device)
        if self.kind == "sgd":
            return {"m": torch.zeros_like(vector), "t": steps}
        return {"m": torch.zeros_like(vector), "v": torch.zeros_like(vector), "t": steps}

    def moves_still(self, reset: bool) -> bool:
        """Whether an entry without gradient may still move: by decay, or by old momentum."""
        return self.decay > 0 or not reset

    def fused_(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        t: Tensor, lr: float | Tensor,
    ) -> None:  # fmt: skip
        """One fused step on matching lists of tensors; `t` counts the steps."""
        if self.kind == "sgd":
            t.add_(1)
            buffers: list[Tensor | None] = list(m) if self.momentum else [None] * len(m)
            sgd(
                params, grads, buffers, foreach=False, fused=True, weight_decay=self.decay,
                momentum=self.momentum, lr=lr, dampening=0.0, nesterov=False,  # type: ignore[arg-type]
                maximize=False, has_sparse_grad=False,
            )  # fmt: skip
            return
        step = adam if self.kind == "adam" else adamw
        counters = [t] * len(params)
        if t.is_cuda and len(params) > 1:  # counted at the same time: each needs its own
            counters = list(t.repeat(len(params)).unbind(0))
        else:
            t.sub_(len(params) - 1)  # the kernel adds one per tensor to the shared counter
        step(
            params, grads, m, v, [], counters, foreach=False, fused=True,
            capturable=params[0].is_cuda, differentiable=False, amsgrad=False,
            beta1=self.betas[0], beta2=self.betas[1], lr=lr, weight_decay=self.decay,
            eps=EPS, maximize=False,
        )  # fmt: skip
        if counters[0] is not t:
            t.copy_(counters[0])

    def powers(self, t: Tensor) -> Tensor:
        """[2, ...] both betas to the power of `t`, in double precision."""
        return torch.stack([beta ** t.double() for beta in self.betas])

    def scales(self, powers: Tensor, lr: Tensor) -> Tensor:
        """[2, ...] Adam's corrections of a step: rate over the first moment's, and the second's."""
        first, second = 1 - powers
        return torch.stack([lr / first, second.rsqrt()]).to(lr.dtype)

    def update_(
        self, vector: Tensor, grad: Tensor, opt: Opt, lr: Tensor, scales: Tensor | None = None
    ) -> None:
        """The same step written out, for learning rates and step counts that differ per run.

        `scales` are those of this step, where the caller keeps them.
        """
        opt["t"].add_(1)
        rate = lr.unsqueeze(-1)  # [..., 1]
        if self.decay and self.kind != "adamw":
            grad = grad + self.decay * vector
        if self.kind == "sgd":
            if self.momentum:
                opt["m"].mul_(self.momentum).add_(grad)
                grad = opt["m"]
            vector.sub_(rate * grad)
            return
        if self.decay and self.kind == "adamw":
            vector.mul_(1 - rate * self.decay)
        first, second = self.betas
        if scales is None:
            scales = self.scales(self.powers(opt["t"]), lr)
        step, spread = scales.unsqueeze(-1)  # [..., 1] each
        opt["m"].lerp_(grad, 1 - first)
        opt["v"].mul_(second).addcmul_(grad, grad, value=1 - second)
        vector.sub_(step * opt["m"] / (opt["v"].sqrt() * spread + EPS))


@dataclass(frozen=True)
class Grouped:
    """Several optimisers, each on its slice of the vector with its own multiple of the rate."""

    parts: tuple[tuple[slice, float, Optimizer], ...]

    def fresh(self, vector: Tensor) -> Opt:
        """The state before the first step."""
        states = [one.fresh(vector) for _, _, one in self.parts]
        return max(states, key=len)  # one for all, with a second moment if any part has one

    def moves_still(self, reset: bool) -> bool:
        """Whether an entry without gradient may still move."""
        return any(one.moves_still(reset) for _, _, one in self.parts)

    def powers(self, t: Tensor) -> Tensor:
        """As `Optimizer.powers`: the betas are those of all."""
        return self.parts[0][2].powers(t)

    def scales(self, powers: Tensor, lr: Tensor) -> Tensor:
        """As `Optimizer.scales`."""
        return self.parts[0][2].scales(powers, lr)

    def fused_(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        t: Tensor, lr: float | Tensor,
    ) -> None:  # fmt: skip
        """One step on a whole vector; slices of it lie too far apart for a fused kernel."""
        (vector,), (grad,) = params, grads
        opt = {"m": m[0], "t": t} | ({"v": v[0]} if v else {})
        rate = lr if isinstance(lr, Tensor) else vector.new_tensor(lr)
        self.update_(vector, grad, opt, rate)

    def update_(
        self, vector: Tensor, grad: Tensor, opt: Opt, lr: Tensor, scales: Tensor | None = None
    ) -> None:
        """As `Optimizer.update_`, slice by slice; the steps are counted once."""
        for place, factor, one in self.parts:
            own = {name: opt[name][..., place] for name in PARTS if name in opt}
            own["t"] = opt["t"].clone()
            mine = None if scales is None else torch.stack([scales[0] * factor, scales[1]])
            one.update_(vector[..., place], grad[..., place], own, lr * factor, mine)
        opt["t"].add_(1)


def optimizer_of(training: Training, networks: Networks) -> Optimizer | Grouped:
    """The recipe's optimiser, or one with parts where a further network has its own."""
    usual, parts, start = Optimizer.of(training), [], 0
    for name, settings in networks.settings.items():
        if not (settings.lr or settings.optimizer):
            continue
        first, last = networks.places(name)
        own = replace(usual, kind=settings.optimizer or usual.kind)
        factor = settings.lr / training.lr if settings.lr else 1.0
        parts += [(slice(start, first), 1.0, usual), (slice(first, last), factor, own)]
        start = last
    if not parts:
        return usual
    parts.append((slice(start, len(networks.layout)), 1.0, usual))
    return Grouped(tuple(part for part in parts if part[0].start < part[0].stop))
