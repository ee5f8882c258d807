"""One run without functional transforms: the module itself under plain autograd.

The module's parameters are views of the run's vector, so the method code is the same as in
lockstep, while a step costs what a hand-written loop costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.engine.batches.collate import Assembler, Dealt, only_own_rows, single_steps
from engram.engine.batches.sampler import Deck
from engram.engine.batches.values import empty_tables, tables_of, write_
from engram.engine.optim import Grouped, optimizer_of
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.learner import Learner, competing
from engram.learner.net import BoundNet
from engram.methods.answers import named_terms, next_state
from engram.methods.base import Method, Terms, overrides, pace_of


class SingleTrainer:
    """Trains one learner through one stage, in place."""

    phase = "task"  # the name of the phase that trains

    def __init__(
        self, learner: Learner, method: Method, training: Training, *, room: int = 0
    ) -> None:
        self.learner, self.method = learner, method
        self.optimizer = optimizer_of(training, learner.networks)
        learner.vector = learner.vector.clone()  # methods may have kept the old tensor as an anchor
        device = learner.device
        self.net = BoundNet(
            learner.networks, learner.vector, learner.buffers,
            channels_last=learner.networks.channels_last,
        )  # fmt: skip
        opened, visible = learner.opened.to(device), learner.stream.visible.to(device)
        self.assemble = Assembler(
            learner.feed, opened=opened, now=torch.tensor(learner.stage, device=device),
            scopes=competing(learner.scope, opened, visible, learner.stage), stage=learner.stage,
            alone=only_own_rows(method, learner.stage),
        )  # fmt: skip
        if learner.latents:
            self.assemble.latents, self.net.main = learner.latents, "net.top"
        self.sums: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] | None = None  # [R] terms of the stage's first step
        self.steps = 0
        self._deck: Deck | None = None
        self._padded = False
        self._room, self._remembers = room, bool(room) and overrides(method, "remember")
        tables = tables_of([learner], room) if learner.values else {}
        self.assemble.values = {name: table[0] for name, table in tables.items()}
        self._batch: Batch | None = None  # of the present step
        self._found: dict[str, Tensor] = {}  # what is remembered of it
        self._projects = overrides(method, "gradient")
        self._follows, self._pace = overrides(method, "step"), pace_of(method)
        self._clip = training.clip
        self._grouped = isinstance(self.optimizer, Grouped)
        self._autocast = training.precision == "bf16"
        self._freeze(learner.free, training)
        layout = learner.networks.layout
        self._m = list(layout(learner.opt["m"]).values())
        self._v = list(layout(learner.opt["v"]).values()) if "v" in learner.opt else []
        self._views = list(layout(learner.vector).values())

    def _freeze(self, free: Tensor, training: Training) -> None:
        """Entries that may not move: no gradient, and put back where they could drift."""
        held = (~free).nonzero()[:, 0]
        self._held = held if len(held) else None
        views = self.learner.networks.layout(free)
        self._masks = [(i, v) for i, v in enumerate(views.values()) if not bool(v.all())]
        moves = self.optimizer.moves_still(training.optim_reset)
        self._restore = self.learner.vector[held].clone() if len(held) and moves else None

    def load(self, deck: Deck, fixed: bool) -> None:
        """Take the rows of the next steps."""
        self._prepare(deck)
        self._deck = deck

    def _prepare(self, deck: Deck) -> None:
        # the main batch is cut to its length, but a reservoir may be empty at first
        self._padded = any(bool((hand.w == 0).any()) for hand in deck.apart)
        if self._remembers and not self.assemble.values:
            self.assemble.values = empty_tables(self.learner, self.method, deck, self._room)

    def renew(self, key: Tensor) -> None:
        """Take the keys [1, 1] of another epoch over the loaded rows."""
        if self._deck is not None:
            self._deck = self._deck._replace(key=key)

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Steps `start` to `stop` of the loaded deck (a run alone takes all of them)."""
        rate = float(lr[0])
        for step in range(start, stop):
            self._one(step, rate)
            if self.first is None:
                self.first = {name: value.reshape(1).clone() for name, value in self.sums.items()}
            self.steps += 1  # of the stage
            if self._pace and self.steps % self._pace == 0:
                self._interval()

    def _one(self, step: int, lr: float) -> None:
        if self._deck is None:
            raise ValueError("load rows before running steps")
        self._step(single_steps(self._deck, step), lr)

    def _step(self, dealt: Dealt, lr: float | Tensor) -> None:
        learner, flat = self.learner, None
        self._batch = batch = self.assemble(dealt)
        if self._projects:
            flat, data = self._projected(batch)
        else:
            parts, penalty = self._gradients(batch)
            data = None
            if penalty is not None or self._follows or self._clip or self._grouped:
                data = learner.networks.layout.flatten(parts)
                flat = data if penalty is None else data + penalty
        if isinstance(dealt.into, Tensor):
            for name, value in self._found.items():
                write_(self.assemble.values[name], dealt.into, value)
        before = learner.vector.clone() if self._follows else None
        if flat is None:
            for index, mask in self._masks:
                parts[index].mul_(mask)
            self._update(self._views, parts, self._m, self._v, lr)
        else:
            if self._held is not None:
                flat.index_fill_(0, self._held, 0.0)
            if self._clip:
                flat = flat * (self._clip / flat.norm().clamp(min=1e-12)).clamp(max=1.0)
            second = [learner.opt["v"]] if self._v else []
            self._update([learner.vector], [flat], [learner.opt["m"]], second, lr)
        if self._restore is not None:
            learner.vector[self._held] = self._restore
        if before is not None and data is not None:
            if self._held is not None:
                data = data.index_fill(0, self._held, 0.0)
            found = self.method.step(before, learner.vector, data, learner.state)
            self._set_state(next_state(self.method, "step", found))
        self.net.end()

    def _update(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        lr: float | Tensor,
    ) -> None:  # fmt: skip
        self.optimizer.fused_(params, grads, m, v, self.learner.opt["t"], lr)

    def _interval(self) -> None:
        found = self.method.interval(self.learner.vector, self.learner.state)
        self._set_state(next_state(self.method, "interval", found))

    def _set_state(self, state: Any) -> None:
        self.learner.state = state

    def _loss(self, batch: Batch) -> Terms:
        self.net.phase = self.phase
        # the main batch of one run alone needs no padding
        self.net.begin(batch.key, (batch.w,) if self._padded else batch.row_weights)
        scope: Any = contextlib.nullcontext()
        if self._autocast:
            scope = torch.autocast(self.learner.device.type, dtype=torch.bfloat16)
        with scope:
            terms = self.method.loss(self.net, batch, self.learner.state)
        return named_terms(self.method, terms)

    def _gradients(self, batch: Batch, *names: str) -> tuple[list[Tensor], Tensor | None]:
        """Gradient through the networks, by parameter, and through penalties on the vector."""
        terms = self._loss(batch)
        if self._remembers and batch is self._batch:
            values = self.method.remember(self.net, batch, self.learner.state)
            self._found = {name: value.detach() for name, value in values.items()}
        total: Tensor = sum(  # type: ignore[assignment]
            term for name, term in terms.items() if not names or name in names
        )
        if not total.requires_grad:
            expected = "terms that depend on the weights (0 * net.task(batch) if none is to move)"
            raise bad(f"{type(self.method).__name__}.loss", expected, "constants")
        inputs = [*self.net.parameters, *([self.net.leaf] if self.net.touched else [])]
        found = torch.autograd.grad(total, inputs, allow_unused=True)
        self._log(terms)
        return self.net.as_laid_out(found), found[-1] if self.net.touched else None

    def _projected(self, batch: Batch) -> tuple[Tensor, Tensor]:
        flatten = self.learner.networks.layout.flatten
        kept: list[Tensor] = []

        def grad(which: Batch, *names: str) -> Tensor:
            logged = dict(self.sums)
            with torch.enable_grad():
                parts, penalty = self._gradients(which, *names)
            if which is not batch:
                self.sums = logged  # the log speaks of the current batch
            data = flatten(parts)
            if which is batch:
                kept.append(data)
            return data if penalty is None else data + penalty

        with torch.no_grad():
            total = self.method.gradient(grad, batch, self.learner.state)
        data = kept[0] if kept else total
        return (total.clone() if kept and total is data else total), data

    def _log(self, terms: Terms) -> None:
        for name, term in terms.items():
            value = term.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def take_log(self) -> dict[str, Tensor]:
        """Sums of the loss terms since the last call, [1] each, and forget them."""
        sums, self.sums = {k: v.reshape(1) for k, v in self.sums.items()}, {}
        return sums

    def current(self) -> None:
        """Let the learner hold the present weights (the vector is the learner's own already)."""
        self.learner.buffers = {k: v.detach().clone() for k, v in self.net.read_buffers().items()}

    def held(self, run: int) -> dict[str, Any]:
        """What an interrupted run needs besides its learner: sums of losses, values."""
        first = {name: value[0] for name, value in (self.first or {}).items()}
        return {"sums": self.sums, "values": self.assemble.values, "first": first}

    def restore(self, held: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """The reverse of `held`, with the steps taken."""
        self.sums, self.assemble.values = held[0]["sums"], held[0]["values"]
        self.first = {name: value.reshape(1) for name, value in held[0]["first"].items()} or None
        self.steps = steps[0]

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """[n, ...] the values of the first `items` slots."""
        return {name: table[:items].clone() for name, table in self.assemble.values.items()}

    def finite(self) -> Tensor:
        """[1] whether all weights are numbers."""
        return torch.isfinite(self.learner.vector).all().reshape(1)

    def close(self) -> None:
        self.current()
        self.net.release()
