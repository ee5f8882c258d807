"""Many runs at once: one step of all runs is one mapped function, updated in place.

Everything a step reads or writes has a fixed address, so on CUDA the step is captured once as a
graph and replayed; on the CPU the same function runs eagerly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad as func_grad
from torch.func import vmap

from engram import keys
from engram.engine.batches.collate import Assembler, Dealt, at_step, no_padding, only_own_rows
from engram.engine.batches.latents import stacked
from engram.engine.batches.sampler import Deck
from engram.engine.batches.values import empty_tables, tables_of, write_
from engram.engine.groups.hyperparameters import as_tensors, varying, with_values
from engram.engine.optim import optimizer_of
from engram.engine.trainers.cuda_graph import Captured
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.learner import Learner, competing
from engram.learner.net import FunctionalNet
from engram.learner.tree import leaves, pick, stack, tree_map
from engram.methods.answers import named_terms, next_state
from engram.methods.base import Method, overrides, pace_of

# update, gradient through the networks, loss terms, buffers, what is remembered
Gradients = tuple[Tensor, Tensor, dict[str, Tensor], Any, dict[str, Tensor]]


class LockstepTrainer:
    """Trains R learners of equal shapes through one stage."""

    phase = "task"  # the name of the phase that trains
    lists_held = True  # parameters that may not move as a list of places, where runs agree

    def __init__(
        self,
        learners: Sequence[Learner],
        methods: Sequence[Method],
        training: Training,
        *,
        capture: bool = False,
        room: int = 0,
    ) -> None:
        first = learners[0]
        found = varying(methods)
        if found is None:
            raise ValueError("methods of one lockstep group may differ in float fields only")
        self.learners, self.method, self.training = list(learners), methods[0], training
        self.networks, self.optimizer = first.networks, optimizer_of(training, first.networks)
        self.vector = torch.stack([one.vector for one in learners])  # [R, P]
        self.buffers = stack([one.buffers for one in learners])
        self.state = tree_map(torch.clone, stack([one.state for one in learners]))
        self.opt = stack([one.opt for one in learners])
        self.hyper = as_tensors(found, self.vector)
        device = first.device
        opened = torch.stack([one.opened for one in learners])
        scopes = [  # per run on the host, and moved once
            competing(first.scope, one.opened, one.stream.visible, first.stage) for one in learners
        ]
        now = torch.full((len(learners),), first.stage, device=device)
        self.assemble = Assembler(
            first.feed, opened=opened.to(device), scopes=torch.stack(scopes).to(device), now=now,
            stage=first.stage, alone=only_own_rows(self.method, first.stage),
        )  # fmt: skip
        self.assemble.latents = stacked(learners)
        self.lr = torch.full((len(learners),), training.lr, device=device, dtype=self.vector.dtype)
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)
        self.live = torch.ones(len(learners), dtype=torch.bool, device=device)
        self.sums: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] | None = None  # [R] terms of the stage's first step
        self.steps = np.zeros(len(learners), dtype=int)  # [R] of each run in this stage
        self.fixed_batch: Batch | None = None
        self.assemble.values = tables_of(learners, room) if first.values else {}
        self._room, self._remembers = room, bool(room) and overrides(self.method, "remember")
        self._follows, self._clip = overrides(self.method, "step"), training.clip
        self._pace = math.gcd(*map(pace_of, methods))
        self._touches: bool | None = None  # whether the loss writes penalties on the vector
        self._padded = True
        # rows that the host holds cannot be fetched inside a captured or compiled step
        self._fetches = capture and not first.feed.on_device
        self._deck: Deck | None = None
        self._uniform = True
        self._taken = self.opt["t"].cpu().numpy().copy()  # [R] steps of each run's optimiser
        self._freeze(training)
        self._captured = Captured(self._one) if capture else None
        self._captured_interval = Captured(self._one_interval) if capture else None

    def _freeze(self, training: Training) -> None:
        free = torch.stack([one.free for one in self.learners])
        same = self.lists_held and bool((free == free[0]).all())
        held = (~free[0]).nonzero()[:, 0]
        self._free = None if same else free
        self._held = held if same and len(held) else None
        moves = self.optimizer.moves_still(training.optim_reset)
        self._restore = self.vector[:, held].clone() if self._held is not None and moves else None
        self._restore_all = self.vector.clone() if self._free is not None and moves else None

    # -- one chunk of steps ----------------------------------------------------------------------
    def load(self, deck: Deck, fixed: bool) -> None:
        """Take the rows of the next steps; fixed addresses where a graph was captured."""
        if self._remembers and not self.assemble.values:
            first = empty_tables(self.learners[0], self.method, deck, self._room)
            runs = len(self.learners)
            self.assemble.values = {k: v.repeat(runs, *[1] * v.ndim) for k, v in first.items()}
        if self._deck is None or not self._same_shapes(deck):
            self._deck = _copy_deck(torch.clone, deck)
            self._padded = not no_padding(deck)
            self.fixed_batch = None
            self._forget()
        else:
            for old, new in zip(_deck_leaves(self._deck), _deck_leaves(deck), strict=True):
                old.copy_(new)
        if fixed and not self.assemble.feed.augment:
            self.step_number.zero_()
            self.fixed_batch = self.assemble(at_step(self._deck, self.step_number))
            self._fetches = False

    def _fetch(self) -> None:
        """Lay the rows of the step to come at fixed addresses."""
        batch = self.assemble(at_step(self._deck, self.step_number))  # type: ignore[arg-type]
        if self.fixed_batch is None:
            self.fixed_batch = tree_map(torch.clone, batch)
        else:
            for place, value in zip(leaves(self.fixed_batch), leaves(batch), strict=True):
                place.copy_(value)

    def renew(self, key: Tensor) -> None:
        """Take the keys [R, 1] of another epoch over the loaded rows."""
        if self._deck is not None:
            self._deck.key.copy_(key)
        batch = self.fixed_batch
        if batch is not None:
            batch.key.copy_(key[:, 0])
            for number, apart in enumerate(batch.memory):
                apart.key.copy_(torch.as_tensor(keys.fold(batch.key, number)))

    def _same_shapes(self, deck: Deck) -> bool:
        old, new = list(_deck_leaves(self._deck)), list(_deck_leaves(deck))
        return len(old) == len(new) and all(
            a.shape == b.shape for a, b in zip(old, new, strict=True)
        )

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Steps `start` to `stop` of the loaded deck; `live` [R, S] says who takes each."""
        self.lr.copy_(torch.as_tensor(lr, dtype=self.lr.dtype))
        now = live[:, start:stop]
        same = np.all(lr == lr[0]) and np.all(self._taken == self._taken[0])
        self._set_uniform(bool(same) and bool(now.all()))
        self._taken += now.sum(1)
        self.step_number.fill_(start)
        due = self._due(now)
        one = self._captured or self._one
        one_interval = self._captured_interval or self._one_interval
        for step in range(start, stop):
            if not self._uniform:
                self.live.copy_(torch.as_tensor(live[:, step]))
            if self._fetches:
                self._fetch()
            one()
            if self.first is None:
                self.first = {name: value.clone() for name, value in self.sums.items()}
            if due[step - start]:
                one_interval()

    def _due(self, live: np.ndarray) -> np.ndarray:
        """Count the steps to come; says which of them end an interval of any run."""
        counts = self.steps[:, None] + live.cumsum(1)
        self.steps += live.sum(1)
        ends = counts % self._pace == 0 if self._pace else np.zeros_like(live)
        return np.asarray((ends & live).any(0))

    def _set_uniform(self, uniform: bool) -> None:
        if uniform != self._uniform:
            self._forget()
        self._uniform = uniform

    def _forget(self) -> None:
        """Shapes or static choices changed: what was recorded does not hold any more."""
        for recorded in (self._captured, self._captured_interval):
            if recorded is not None:
                recorded.forget()

    def _one(self) -> None:
        """What is repeated, and captured where steps are."""
        self._step()

    def _one_interval(self) -> None:
        """The same for `interval`."""
        self._interval()

    def _rows(self) -> Dealt:
        return at_step(self._deck, self.step_number)  # type: ignore[arg-type]

    @torch.no_grad()
    def _step(self) -> None:
        """One optimiser step of every run."""
        batch, dealt = self.fixed_batch, None
        if batch is None or self._remembers:
            dealt = self._rows()
        if batch is None:
            batch = self.assemble(dealt)  # type: ignore[arg-type]
        total, data, terms, buffers, found = self._gradients(batch)
        self._mask_(total)
        if self._clip:
            norm = total.norm(dim=-1, keepdim=True).clamp(min=1e-12)  # per run
            total.mul_((self._clip / norm).clamp(max=1.0))
        before = self.vector.clone() if self._follows or not self._uniform else None
        if self._uniform:
            self._update_uniform(total)
        else:
            self._update_masked(total, before)  # type: ignore[arg-type]
        if self._restore is not None:
            self.vector[:, self._held] = self._restore
        if self._restore_all is not None:
            self.vector.copy_(torch.where(self._free_mask(), self.vector, self._restore_all))
        if self._follows:
            self._mask_(data)
            self._assign(
                self.state,
                vmap(self._mapped_step)(before, self.vector, data, self.state, self.hyper),  # type: ignore[arg-type]
            )
        self._assign(self.buffers, buffers)
        if dealt is not None and isinstance(dealt.into, Tensor):
            for name, value in found.items():
                write_(self.assemble.values[name], dealt.into, value)
        self._log(terms)
        self.step_number.add_(1)

    def _mapped_step(
        self, before: Tensor, after: Tensor, data: Tensor, state: Any, hyper: Any
    ) -> Any:
        found = with_values(self.method, hyper).step(before, after, data, state)
        return next_state(self.method, "step", found)

    @torch.no_grad()
    def _interval(self) -> None:
        """The method's `interval` for every run; those that are not at its end stay as they are."""
        found = vmap(self._mapped_interval)(self.vector, self.state, self.hyper)
        self._assign(self.state, found)

    def _mapped_interval(self, after: Tensor, state: Any, hyper: Any) -> Any:
        found = with_values(self.method, hyper).interval(after, state)
        return next_state(self.method, "interval", found)

    def _mask_(self, vector: Tensor) -> None:
        if self._held is not None:
            vector.index_fill_(1, self._held, 0.0)
        elif self._free is not None:
            vector.mul_(self._free)

    def _free_mask(self) -> Tensor:
        return self._free if self._free is not None else torch.ones_like(self.vector).bool()

    def _update_uniform(self, total: Tensor) -> None:
        steps = self.opt["t"]
        second = [self.opt["v"]] if "v" in self.opt else []
        if self.vector.is_cuda and self.vector.dtype != torch.float32:
            # the fused kernels take a float32 rate only, which would round a float64 run
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
        for new, kept in zip(leaves(self.opt), leaves(old), strict=True):
            new.copy_(torch.where(_spread(alive, new), new, kept))

    def _assign(self, target: Any, value: Any) -> None:
        """Write a new tree into the old one's places, for runs that are live."""

        def write(old: Tensor, new: Tensor) -> None:
            if new is old:  # handed through: a masked write would still pass over it
                return
            new = new.to(old.dtype)
            old.copy_(new if self._uniform else torch.where(_spread(self.live, old), new, old))

        tree_map(write, target, value)

    # -- gradients -------------------------------------------------------------------------------
    def _gradients(self, batch: Batch) -> Gradients:
        scope: Any = contextlib.nullcontext()
        if self.training.precision == "bf16":
            scope = torch.autocast(self.vector.device.type, dtype=torch.bfloat16)
        with scope:
            return vmap(self._gradient_of_one)(
                self.vector, self.buffers, self.state, batch, self.hyper
            )

    def _gradient_of_one(
        self, vector: Tensor, buffers: Any, state: Any, batch: Batch, hyper: Any
    ) -> Gradients:
        method = with_values(self.method, hyper)
        kept: dict[str, Any] = {"buffers": buffers}

        def grad(which: Batch, *names: str) -> Tensor:
            def value(weights: Tensor, penalty: Tensor) -> tuple[Tensor, Any]:
                net = FunctionalNet(
                    self.networks, weights, kept["buffers"], penalty=penalty, key=which.key,
                    real=() if self._padded else which.row_weights,
                )  # fmt: skip
                net.phase = self.phase
                if self.assemble.latents:
                    net.main = "net.top"
                terms = named_terms(method, method.loss(net, which, state))
                if self._touches is None or net.touched:
                    self._touches = net.touched
                total = sum(t for name, t in terms.items() if not names or name in names)
                found: dict[str, Tensor] = {}
                if self._remembers and which is batch:  # of the pass that the loss has made
                    found = method.remember(net, which, state)
                return total, (terms, net.buffers, found)  # type: ignore[return-value]

            if self._touches is False:
                one = func_grad(lambda p: value(p, p.detach()), has_aux=True)
                data, (terms, after, found) = one(vector)
                both = data
            else:
                pair = func_grad(value, argnums=(0, 1), has_aux=True)(vector, vector)
                (data, penalty), (terms, after, found) = pair
                both = data + penalty
            kept["buffers"] = after
            if which is batch:
                kept.setdefault("data", data)
                kept.setdefault("terms", terms)
                kept.setdefault("found", found)
            return torch.as_tensor(both)

        total = method.gradient(grad, batch, state)
        if "terms" not in kept:
            raise ValueError("gradient() must call grad on the batch it was given")
        return total, kept["data"], kept["terms"], kept["buffers"], kept["found"]

    # -- log and learners ------------------------------------------------------------------------
    def _log(self, terms: dict[str, Tensor]) -> None:
        for name, term in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(term)
            value = term if self._uniform else torch.where(self.live, term, 0.0)
            self.sums[name].add_(value)

    def take_log(self) -> dict[str, Tensor]:
        """Sums of the loss terms since the last call, [R] each, and start anew."""
        out = {name: value.clone() for name, value in self.sums.items()}
        for value in self.sums.values():
            value.zero_()
        return out

    def current(self) -> None:
        """Let the learners hold the present weights, as views of the stacked ones."""
        for index, learner in enumerate(self.learners):
            learner.vector = self.vector[index]
            learner.buffers, learner.state = pick(self.buffers, index), pick(self.state, index)
            learner.opt = pick(self.opt, index)

    def held(self, run: int) -> dict[str, Any]:
        """What a run that is interrupted needs besides its learner: sums of losses, values."""
        own = {"sums": self.sums, "values": self.assemble.values, "first": self.first or {}}
        return pick(own, run)  # type: ignore[no-any-return]

    def restore(self, held: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """The reverse of `held`, for all runs, with the steps each has taken."""
        together = stack(held)
        self.sums, self.assemble.values = together["sums"], together["values"]
        self.first = together["first"] or None
        self.steps = np.array(steps, dtype=int)

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """[n, ...] the values of a run's first `items` slots."""
        return {k: table[run, :items].clone() for k, table in self.assemble.values.items()}

    def finite(self) -> Tensor:
        """[R] whether all weights of a run are numbers."""
        return torch.isfinite(self.vector).all(-1)

    def close(self) -> None:
        self._forget()
        self.current()


def _deck_leaves(deck: Deck | None) -> list[Tensor]:
    if deck is None:
        return []
    found = [*deck.main, deck.key, *leaves(deck.into)]
    for hand in deck.apart:
        found += hand
    return found


def _copy_deck(f: Any, deck: Deck) -> Deck:
    return deck._replace(
        main=tree_map(f, deck.main),
        apart=tree_map(f, deck.apart),
        key=f(deck.key),
        into=tree_map(f, deck.into),
    )


def _spread(live: Tensor, like: Tensor) -> Tensor:
    return live.reshape(-1, *[1] * (like.ndim - 1))
