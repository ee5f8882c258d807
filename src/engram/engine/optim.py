"""Optimisers of parameter vectors [P] or [R, P], in place, with learning rate schedules, early
stopping and best epochs.

torch.optim does not support a learning rate per run, so the update is implemented here. If all runs
have the same rate and step count, torch's fused kernel does the same arithmetic in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from engram.engine.training import Training
from engram.errors import unknown
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks
from engram.learner.tensor_tree import tree_map

EPS = 1e-8
MOMENTS = ("m", "v")
VECTORS = (*MOMENTS, "average")  # parts of an optimiser's state with one number per parameter
FIRST_SCALE = 2.0**16  # of a loss in half precision, as in torch.amp.GradScaler
OptimizerState = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """SGD, Adam or AdamW with torch's formulas."""

    kind: str
    momentum: float
    betas: tuple[float, float]
    decay: float
    nesterov: bool = False

    @classmethod
    def from_training(cls, training: Training) -> Optimizer:
        return cls(
            training.optimizer, training.momentum, training.betas, training.weight_decay,
            training.nesterov,
        )  # fmt: skip

    def fresh(self, vector: Tensor) -> OptimizerState:
        """The state before the first step."""
        steps = torch.zeros(vector.shape[:-1], dtype=torch.float32, device=vector.device)
        if self.kind == "sgd":
            return {"m": torch.zeros_like(vector), "t": steps}
        return {"m": torch.zeros_like(vector), "v": torch.zeros_like(vector), "t": steps}

    def moves_without_gradient(self, reset: bool) -> bool:
        """Whether an entry without gradient may still change: by decay, or by old momentum."""
        return self.decay > 0 or not reset

    def fused_(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        t: Tensor, lr: float | Tensor,
    ) -> None:  # fmt: skip
        """Take one fused step on matching lists of tensors; `t` counts the steps."""
        if self.kind == "sgd":
            t.add_(1)
            buffers: list[Tensor | None] = list(m) if self.momentum else [None] * len(m)
            sgd(
                params, grads, buffers, foreach=False, fused=True, weight_decay=self.decay,
                momentum=self.momentum, lr=lr, dampening=0.0, nesterov=self.nesterov,  # type: ignore[arg-type]
                maximize=False, has_sparse_grad=False,
            )  # fmt: skip
            return
        step = adam if self.kind == "adam" else adamw
        counters = [t] * len(params)
        if t.is_cuda and len(params) > 1:  # incremented concurrently: each tensor needs its own
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
        """Return both betas to the power of `t` [2, ...], in double precision."""
        return torch.stack([beta ** t.double() for beta in self.betas])

    def scales(self, powers: Tensor, lr: Tensor) -> Tensor:
        """Return Adam's bias corrections [2, ...]: rate over the first one, and the second one."""
        first, second = 1 - powers
        return torch.stack([lr / first, second.rsqrt()]).to(lr.dtype)

    def update_(
        self,
        vector: Tensor,
        grad: Tensor,
        opt: OptimizerState,
        lr: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        """Take a step with learning rates and step counts that differ per run.

        `scales` are the corrections of this step, if the caller has computed them.
        """
        opt["t"].add_(1)
        rate = lr.unsqueeze(-1)  # [..., 1]
        if self.decay and self.kind != "adamw":
            grad = grad + self.decay * vector
        if self.kind == "sgd":
            if self.momentum:
                moved = opt["m"].mul_(self.momentum).add_(grad)
                grad = grad + self.momentum * moved if self.nesterov else moved
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
class PartitionedOptimizer:
    """Several optimisers, each on its slice of the vector with its own multiple of the rate."""

    parts: tuple[tuple[slice, float, Optimizer], ...]

    def fresh(self, vector: Tensor) -> OptimizerState:
        """The state before the first step."""
        states = [one.fresh(vector) for _, _, one in self.parts]
        return max(states, key=len)  # one for all, with a second moment if any part has one

    def moves_without_gradient(self, reset: bool) -> bool:
        """Whether an entry without gradient may still move."""
        return any(one.moves_without_gradient(reset) for _, _, one in self.parts)

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
        self,
        vector: Tensor,
        grad: Tensor,
        opt: OptimizerState,
        lr: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        """As `Optimizer.update_`, slice by slice; the steps are counted once."""
        for place, factor, one in self.parts:
            own = {name: opt[name][..., place] for name in MOMENTS if name in opt}
            own["t"] = opt["t"].clone()
            mine = None if scales is None else torch.stack([scales[0] * factor, scales[1]])
            one.update_(vector[..., place], grad[..., place], own, lr * factor, mine)
        opt["t"].add_(1)


def make_optimizer(training: Training, networks: Networks) -> Optimizer | PartitionedOptimizer:
    """The recipe's optimiser, or one with parts where rates or optimisers differ.

    They do where a further network has its own, and by `Training.lr_of`.
    """
    usual = Optimizer.from_training(training)
    own = {k: n for k, n in networks.settings.items() if n.lr or n.optimizer}
    if not own and not training.lr_of:
        return usual
    rates = multiples_of(training.lr_of, networks.layout.shapes)
    parts: list[tuple[slice, float, Optimizer]] = []
    start = 0
    for path, size in zip(networks.layout.shapes, networks.layout.sizes, strict=True):
        settings, kind, factor = own.get(path.partition(".")[0]), usual, rates[path]
        if settings is not None:
            kind = replace(usual, kind=settings.optimizer or usual.kind)
            factor *= settings.lr / training.lr if settings.lr else 1.0
        place = slice(start, start + size)
        if parts and parts[-1][1:] == (factor, kind):
            parts[-1] = (slice(parts[-1][0].start, place.stop), factor, kind)
        elif size:
            parts.append((place, factor, kind))
        start = place.stop
    return PartitionedOptimizer(tuple(parts)) if parts else usual


def multiples_of(
    rates: Sequence[tuple[str, float]] | Mapping[str, float], names: Iterable[str]
) -> dict[str, float]:
    """Return the multiple of the learning rate of each parameter: that of its longest beginning.

    Examples
    --------
    >>> multiples_of({"net": 0.5, "net.head": 2.0}, ["net.head.bias", "net.body.weight", "other"])
    {'net.head.bias': 2.0, 'net.body.weight': 0.5, 'other': 1.0}
    >>> multiples_of({"net.haed": 2.0}, ["net.head.bias"])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: lr_of: unknown name 'net.haed', did you mean 'net.head'? ...
    """
    given, names = dict(rates), list(names)
    for start in given:
        if not any(_begins(name, start) for name in names):
            parts = [name.split(".") for name in names]
            known = dict.fromkeys(".".join(p[:k]) for p in parts for k in range(1, len(p) + 1))
            raise unknown("lr_of", start, list(known))
    return {
        name: given[max(own, key=len)] if (own := [o for o in given if _begins(name, o)]) else 1.0
        for name in names
    }


def _begins(name: str, start: str) -> bool:
    """Whether a name begins with whole parts: net.head begins net.head.bias, not net.header."""
    return name == start or name.startswith(f"{start.rstrip('.')}.")


def reset_optimizer(
    training: Training, learners: Sequence[RunLearner], *, shared: bool = False
) -> None:
    """Give learners the state before the first step: of the optimiser, averages, loss scales.

    `shared`: learners that will be stacked may hold the same tensors.
    """
    optimizer, common = make_optimizer(training, learners[0].networks), None
    for learner in learners:
        if common is None or not shared:
            common = optimizer.fresh(learner.vector)
            if training.precision == "fp16":
                common["scale"] = torch.full_like(common["t"], FIRST_SCALE)
                common["streak"] = torch.zeros_like(common["t"])
        average = {"average": learner.vector.clone()} if training.ema else {}
        learner.opt = {**common, **average}


# -- learning rate schedules, early stopping and best epochs of R runs -----------------------------


class Schedule:
    """What happens between epochs; the same arithmetic for one run or many.

    Plateau and stopping may watch different numbers: the rate follows the validation loss or the
    score by which the stream is judged, stopping and the best epoch follow that score.
    """

    def __init__(self, training: Training, runs: int, rates: np.ndarray | None = None) -> None:
        self.training = training
        self.lr = np.full(runs, training.lr) if rates is None else np.array(rates, dtype=float)
        self.totals = np.ones(runs, dtype=int)  # [R] steps of the phase, for a cosine
        self.active = np.ones(runs, dtype=bool)
        self.improved = np.zeros(runs, dtype=bool)
        self._plateau_best = np.full(runs, -np.inf)
        self._bad = np.zeros(runs, dtype=int)
        self._best = np.full(runs, -np.inf)
        self._idle = np.zeros(runs, dtype=int)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes, by name; to be written into, when a run goes on."""
        names = ("lr", "active", "improved", "_plateau_best", "_bad", "_best", "_idle")
        return {name: getattr(self, name) for name in names}

    def rates(self, done: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Return the rates [R, S] of steps, after `done` [R] steps that the runs have taken.

        Examples
        --------
        >>> schedule = Schedule(Training(lr=1.0, schedule="cosine", warmup_steps=2), runs=1)
        >>> schedule.totals[:] = 6
        >>> schedule.rates(np.zeros(1, dtype=int), np.ones((1, 6), dtype=bool)).round(3).tolist()
        [[0.5, 1.0, 1.0, 0.854, 0.5, 0.146]]
        """
        t, base = self.training, np.repeat(self.lr[:, None], live.shape[1], 1)
        if not t.warmup_steps and t.schedule != "cosine":
            return base
        number = done[:, None] + live.cumsum(1) - live  # [R, S] steps before each step
        after = number - t.warmup_steps
        if t.schedule == "cosine":
            length = np.maximum(self.totals[:, None] - t.warmup_steps, 1)
            cosine = 0.5 * (1 + np.cos(np.pi * np.clip(after / length, 0.0, 1.0)))
            base = np.where(after > 0, base * cosine, base)
        if t.warmup_steps:
            base = base * np.minimum((number + 1) / t.warmup_steps, 1.0)
        return base

    def after_epoch(self, epoch: int, watched: dict[str, np.ndarray]) -> None:
        """Take the validation numbers [R] of this epoch into account."""
        t = self.training
        if t.schedule == "step" and epoch + 1 in t.milestones:
            self.lr = self.lr * t.factor
        if t.schedule == "plateau":
            self._plateau(watched)
        if t.patience or t.restore_best:
            score = watched["score"]
            gain = (score > self._best) & self.active
            self.improved = (score >= self._best) & self.active  # of equal epochs the last is best
            self._best = np.where(gain, score, self._best)
            self._idle = np.where(gain, 0, self._idle + 1)
        if t.patience:
            self.active &= self._idle < t.patience
        if t.stop_lr:  # 1.0 * 0.1 * 0.1 is a little more than 0.01, and 0.3 * 0.1 a little less
            self.active &= self.lr > t.stop_lr * (1 - 1e-9)

    def _plateau(self, watched: dict[str, np.ndarray]) -> None:
        t = self.training
        score = -watched["loss"] if t.plateau_watch == "loss" else watched["score"]
        gain = score > self._plateau_best + t.plateau_threshold
        self._plateau_best = np.where(gain, score, self._plateau_best)
        self._bad = np.where(gain, 0, self._bad + 1)
        cut = (self._bad > t.plateau_patience) & self.active
        self.lr = np.where(cut, self.lr * t.factor, self.lr)
        self._bad = np.where(cut, 0, self._bad)


class BestEpoch:
    """Weights, buffers and method state of each learner after its best epoch so far.

    Of epochs with equal scores the last one counts: it was trained longest.
    """

    def __init__(self, learners: Sequence[RunLearner]) -> None:
        self.learners = learners
        self.saved: list[Any] = []  # per run: (vector, buffers, state)

    def keep(self, improved: np.ndarray) -> None:
        """After an epoch: copies of the learners that have `improved` [R]; of all, at first."""
        first = not self.saved
        self.saved = self.saved or [None] * len(self.learners)
        for run, learner in enumerate(self.learners):
            if first or improved[run]:
                parts = (learner.vector, learner.buffers, learner.state)
                self.saved[run] = tree_map(torch.clone, parts)

    def restore(self) -> None:
        """Restore the learners to their best epochs."""
        for learner, parts in zip(self.learners, self.saved, strict=False):
            learner.vector, learner.buffers, learner.state = parts
