"""One optimiser step of R runs: mapped, in place, on tensors at fixed addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engram.engine.batches.collate import Collate, Minibatch, at_step, only_own_rows
from engram.engine.batches.latents import stacked, still_root
from engram.engine.batches.sampler import Minibatches
from engram.engine.batches.values import tables_of, write_
from engram.engine.groups.hyperparameters import as_tensors, varying
from engram.engine.optim import Optimizer, optimizer_of
from engram.engine.trainers.mapped_verbs import MappedVerbs
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.moving import Moving
from engram.learner.scopes import competing
from engram.learner.tree import leaves, stack, tree_map
from engram.methods.base import Method


class MappedStep:
    """What R learners of equal shapes are trained with, stacked [R, ...], and a step of them all.

    Read `_step`: gradients of all runs, updates, what methods keep of it.
    """

    lists_frozen = True  # parameters that may not move as a list of places, where runs agree

    def __init__(
        self, learners: Sequence[Learner], methods: Sequence[Method], training: Training, *,
        slots: int = 0, phase: str = "task",
    ) -> None:  # fmt: skip
        first, found = learners[0], varying(methods)
        if found is None:
            raise ValueError("methods of one lockstep group may differ in float fields only")
        self.learners, self.method, self.training = list(learners), methods[0], training
        self.networks, self.optimizer = first.networks, optimizer_of(training, first.networks)
        self._follows, self._clip = self.method.implements("step"), training.clip
        self.moving = self._movable()
        self.whole: Tensor | None = None  # [R, P] where `vector` holds the moving part of it only
        self.vector = torch.stack([one.vector for one in learners])  # [R, P]
        self.buffers = stack([one.buffers for one in learners])
        self.state = tree_map(torch.clone, stack([one.state for one in learners]))
        self.opt = stack([one.opt for one in learners])
        self._whole_opt = self.opt
        if not self.moving.all:
            self.whole, take = self.vector, self.moving.take
            self.vector = take(self.whole)  # [R, M]
            self.opt = {k: v.clone() if k == "t" else take(v) for k, v in self.opt.items()}
        self.hyper = as_tensors(found, self.vector)
        self.collate = self._collate()
        self.collate.values = tables_of(learners, slots) if first.values else {}
        self.verbs = MappedVerbs(
            self.method, self.networks, self.moving, phase=phase,
            remembers=bool(slots) and self.method.implements("remember"),
            latents=bool(self.collate.latents),
        )  # fmt: skip
        device, runs = first.device, len(learners)
        self.lr = torch.full((runs,), training.lr, device=device, dtype=self.vector.dtype)
        self.live = torch.ones(runs, dtype=torch.bool, device=device)  # who takes the step
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)  # among the loaded rows
        self.sums: dict[str, Tensor] = {}  # [R] of loss terms since they were last taken
        self.fixed_batch: Batch | None = None
        self._answers: tuple[Any, ...] = ()  # of older networks to it, where it stays
        self._rows: Minibatches | None = None
        self._uniform = True  # every run takes every step
        self._fused = True  # with one rate, after one number of steps
        self._freeze(training)

    def _movable(self) -> Moving:
        """What may move: not a root that stands still, unless verbs speak of the whole vector."""
        whole = (
            self.method.implements("gradient")
            or self._follows
            or not isinstance(self.optimizer, Optimizer)
        )
        return Moving(self.networks.layout, [] if whole else still_root(self.learners))

    def _collate(self) -> Collate:
        """From rows to batches of all runs."""
        learners, first = self.learners, self.learners[0]
        device = first.device
        opened = torch.stack([one.opened for one in learners])
        scopes = [  # per run on the host, and moved once
            competing(first.scope, one.opened, one.stream.visible, first.stage) for one in learners
        ]
        now = torch.full((len(learners),), first.stage, device=device)
        made = Collate(
            first.feed, opened=opened.to(device), scopes=torch.stack(scopes).to(device), now=now,
            stage=first.stage, alone=only_own_rows(self.method, first.stage),
        )  # fmt: skip
        made.latents = stacked(learners)
        return made

    @torch.no_grad()
    def _step(self) -> None:
        """One optimiser step of every run."""
        batch, rows = self.fixed_batch, None
        if batch is None or self.verbs.remembers:
            rows = self._step_rows()
        if batch is None:
            batch = self.collate(rows)  # type: ignore[arg-type]
        with self._precision():
            mapped = self.verbs.mapped()(*self._arguments(batch))
        total, data, terms, buffers, found, made = self.verbs.results(mapped)
        self._answers = self._answers or made
        self._mask_(total)
        if self._clip:
            norm = total.norm(dim=-1, keepdim=True).clamp(min=1e-12)  # per run
            total = total * (self._clip / norm).clamp(max=1.0)  # `data` may be the same tensor
        before = self.vector.clone() if self._follows or not self._uniform else None
        if self._uniform:
            self._update_uniform(total)
        else:
            self._update_masked(total, before)  # type: ignore[arg-type]
        if self._restore is not None:
            self.vector[:, self._frozen] = self._restore
        if self._restore_all is not None:
            self.vector.copy_(torch.where(self._free_mask(), self.vector, self._restore_all))
        if self._follows:
            self._mask_(data)
            after = self.verbs.after_step(before, self.vector, data, self.state, self.hyper)  # type: ignore[arg-type]
            self._assign(self.state, after)
        self._assign(self.buffers, buffers)
        if rows is not None and isinstance(rows.into, Tensor):
            for name, value in found.items():
                write_(self.collate.values[name], rows.into, value)
        self._log(terms)
        self.step_number.add_(1)

    def _step_rows(self) -> Minibatch:
        return at_step(self._rows, self.step_number)  # type: ignore[arg-type]

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        return self.verbs.arguments(
            self.vector, self.whole, self.buffers, self.state, batch, self.hyper, self._answers
        )

    def _precision(self) -> Any:
        if self.training.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.vector.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def _interval(self) -> None:
        """The method's `interval` for every run; those that are not at its end stay as they are."""
        self._assign(self.state, self.verbs.after_interval(self.vector, self.state, self.hyper))

    # -- parameters that may not move -------------------------------------------------------------
    def _freeze(self, training: Training) -> None:
        free = self.moving.take(torch.stack([one.free for one in self.learners]))
        same = self.lists_frozen and bool((free == free[0]).all())
        frozen = (~free[0]).nonzero()[:, 0]
        self._free = None if same else free
        self._frozen = frozen if same and len(frozen) else None
        moves = self.optimizer.moves_still(training.optim_reset)
        back = self._frozen is not None and moves
        self._restore = self.vector[:, frozen].clone() if back else None
        self._restore_all = self.vector.clone() if self._free is not None and moves else None

    def _mask_(self, vector: Tensor) -> None:
        if self._frozen is not None:
            vector.index_fill_(1, self._frozen, 0.0)
        elif self._free is not None:
            vector.mul_(self._free)

    def _free_mask(self) -> Tensor:
        return self._free if self._free is not None else torch.ones_like(self.vector).bool()

    # -- updates ----------------------------------------------------------------------------------
    def _update_uniform(self, total: Tensor) -> None:
        steps = self.opt["t"]
        second = [self.opt["v"]] if "v" in self.opt else []
        if not self._fused or (self.vector.is_cuda and self.vector.dtype != torch.float32):
            # the fused kernels take one rate, in float32, which would round a float64 run
            self.optimizer.update_(self.vector, total, self.opt, self.lr)
            return
        rate = self.lr[0] if self.vector.is_cuda else float(self.lr[0])
        shared = steps[0]
        self.optimizer.fused_([self.vector], [total], [self.opt["m"]], second, shared, rate)
        steps.copy_(shared.expand_as(steps).clone())

    def _update_masked(self, total: Tensor, before: Tensor) -> None:
        """Learning rates per run; runs that are not live stay exactly as they are."""
        old = tree_map(torch.clone, self.opt)
        self.optimizer.update_(self.vector, total, self.opt, self.lr)
        alive = self.live
        self.vector.copy_(torch.where(alive[:, None], self.vector, before))
        for new, before_step in zip(leaves(self.opt), leaves(old), strict=True):
            new.copy_(torch.where(_spread(alive, new), new, before_step))

    def _assign(self, target: Any, value: Any) -> None:
        """Write a new tree into the old one's places, for runs that are live."""

        def write(old: Tensor, new: Tensor) -> None:
            if new is old:  # handed through: a masked write would still pass over it
                return
            new = new.to(old.dtype)
            old.copy_(new if self._uniform else torch.where(_spread(self.live, old), new, old))

        tree_map(write, target, value)

    def _log(self, terms: dict[str, Tensor]) -> None:
        for name, term in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(term)
            value = term if self._uniform else torch.where(self.live, term, 0.0)
            self.sums[name].add_(value)


def _spread(live: Tensor, like: Tensor) -> Tensor:
    return live.reshape(-1, *[1] * (like.ndim - 1))
