"""`SingleTrainer`: one run under plain autograd, without functional transforms.

The module's parameters are views of the run's vector, so that methods are the same as in lockstep,
while a step takes as long as in a hand-written training loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import distributed
from engram.engine.batches import (
    Collator,
    RowAnnouncer,
    move_rows_to_host,
    select_step_unpadded,
    uses_only_task_rows,
)
from engram.engine.optim import PartitionedOptimizer, make_optimizer
from engram.engine.sampler import StepRows
from engram.engine.stored_values import (
    frozen_root_names,
    make_empty_tables,
    stack_value_tables,
    write_slots_,
)
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.bound_module import BoundNet
from engram.learner.learner import RunLearner
from engram.learner.objectives import competing_classes
from engram.learner.parameter_layout import TrainableSlices
from engram.methods.method import (
    Gradient,
    Method,
    Terms,
    check_every_n_steps,
    check_loss_terms,
    check_state,
    check_update_direction,
)


class Gradients(NamedTuple):
    """The gradient of one step."""

    parts: list[Tensor]  # of data terms, by parameter
    penalty: Tensor | None = None  # [P] of penalties on the vector
    data: Tensor | None = None  # [P] of data terms, if the method overrides `gradient`
    total: Tensor | None = None  # [P] the update direction of the method, in that case


class SingleTrainer:
    """Train one learner in one phase, in place."""

    def __init__(
        self, learner: RunLearner, method: Method, training: Training, *, slots: int = 0,
        phase: str = "task",
    ) -> None:  # fmt: skip
        self.learner, self.method, self.phase = learner, method, phase
        self.optimizer = make_optimizer(training, learner.networks)
        learner.vector = learner.vector.clone()  # methods may have kept the old tensor as an anchor
        self._projects = method.implements("gradient")
        self._follows, self._pace = method.implements("step"), check_every_n_steps(method)
        self._grouped = isinstance(self.optimizer, PartitionedOptimizer)
        # verbs, optimisers in parts and unfused optimisers need the whole vector
        exact = learner.vector.is_cuda and learner.vector.dtype != torch.float32
        whole = self._projects or self._follows or self._grouped or exact
        frozen = [] if whole else frozen_root_names([learner])
        self.moving = TrainableSlices(learner.networks.layout, frozen)
        self.net = BoundNet(
            learner.networks, learner.vector, learner.buffers,
            channels_last=learner.networks.channels_last, frozen=frozen,
        )  # fmt: skip
        self.collate = _make_collator(learner, method)
        if learner.latents:
            self.collate.latents, self.net.main = learner.latents, "net.top"
        self.sums: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] | None = None  # [R] terms of the stage's first step
        self.steps = 0
        self._rows: StepRows | None = None
        self._lengths: tuple[int, ...] = ()  # of the main batch of every step
        # rows on disk are fetched ahead; latents are a table on the device
        self._fetches = not learner.feed.on_device and not learner.latents
        self._upcoming: RowAnnouncer | None = None
        self._padded = False
        self._slots, self._remembers = slots, bool(slots) and method.implements("remember")
        tables = stack_value_tables([learner], slots) if learner.values else {}
        self.collate.values = {name: table[0] for name, table in tables.items()}
        self._batch: Batch | None = None  # of the current step
        self._found: dict[str, Tensor] = {}  # values that `remember` returned for it
        self._clip = training.clip
        self._autocast = training.precision == "bf16"
        drifts = self.optimizer.moves_without_gradient(training.optim_reset)
        self._frozen_entries = FrozenEntries(
            learner.free, learner.vector, self._parts, drifts=drifts
        )
        self._m = self._parts(learner.opt["m"])
        self._v = self._parts(learner.opt["v"]) if "v" in learner.opt else []
        self._views = self._parts(learner.vector)

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector, one for each trainable parameter."""
        views = self.learner.networks.layout(vector)
        return [views[name] for name in self.moving.names]

    def load(self, rows: StepRows, fixed: bool) -> None:
        """Set the rows of the next steps."""
        self._prepare(rows)
        self._rows = rows
        self._announce_all(rows)

    def _prepare(self, rows: StepRows) -> None:
        self._lengths = rows.lengths
        # the main batch is cut to its length, but a reservoir may be empty at first
        self._padded = any(bool((batch.w == 0).any()) for batch in rows.apart)
        if self._remembers and not self.collate.values:
            self.collate.values = make_empty_tables(self.learner, self.method, rows, self._slots)

    def _announce_all(self, rows: StepRows) -> None:
        """Announce rows on disk step by step, with their numbers on the host."""
        if not self._fetches:
            return
        host = move_rows_to_host(rows)
        self._rows, self._upcoming = host, RowAnnouncer(self.collate.feed, host, cut=True)

    def reseed(self, key: Tensor) -> None:
        """Set the keys [1, 1] of another epoch over the loaded rows."""
        if self._rows is not None:
            self._rows = self._rows._replace(key=key)
            self._announce_all(self._rows)

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Take the steps `start` to `stop` of the loaded rows."""
        if self._rows is None:
            raise ValueError("load rows before running steps")
        rate, gradient = float(lr[0]), self._projected if self._projects else self._gradient
        for number in range(start, stop):
            if self._upcoming is not None:
                self._upcoming(number)
            rows = select_step_unpadded(self._rows, number, self._lengths[number])
            self._batch = self.collate(rows)
            if distributed.current_ranks() is None:
                found = gradient(self._batch)
            else:
                found = self._gradient_or_undo(gradient, self._batch)
            self._step(rows, found, rate)
            self._count()

    def _gradient_or_undo(self, gradient: Callable[[Batch], Gradients], batch: Batch) -> Gradients:
        """Compute a gradient over all ranks; if one is lost, undo the effects of the step."""
        buffers = {name: value.clone() for name, value in self.net.read_buffers().items()}
        sums = dict(self.sums)
        try:
            return gradient(batch)
        except distributed.LostRank:
            self.net.bind_buffers(buffers)
            self.sums = sums
            raise

    def _count(self) -> None:
        """Count a step, and call `interval` if it is due."""
        if self.first is None:
            self.first = {name: value.reshape(1).clone() for name, value in self.sums.items()}
        self.steps += 1  # of the phase
        if self._pace and self.steps % self._pace == 0:
            self._interval()

    def _step(self, rows: StepRows, gradient: Gradients, lr: float | Tensor) -> None:
        """Update the weights, the method's state and stored values."""
        learner, (parts, penalty, data, flat) = self.learner, gradient
        flattened = penalty is not None or self._follows or self._clip or self._grouped
        if flat is None and flattened:
            data = self.moving.gradient(parts)
            flat = data if penalty is None else data + penalty
        if isinstance(rows.into, Tensor):
            for name, value in self._found.items():
                write_slots_(self.collate.values[name], rows.into, value)
        before = learner.vector.clone() if self._follows else None
        if flat is None:
            self._frozen_entries.mask_parts_(parts)
            self._update(self._views, parts, self._m, self._v, lr)
        else:
            self._frozen_entries.mask_(flat)
            if self._clip:
                flat = flat * (self._clip / flat.norm().clamp(min=1e-12)).clamp(max=1.0)
            of = self.moving.pieces
            second = of(learner.opt["v"]) if self._v else []
            self._update(of(learner.vector), of(flat), of(learner.opt["m"]), second, lr)
        self._frozen_entries.restore_frozen_(learner.vector)
        if before is not None and data is not None:
            data = self._frozen_entries.masked(data)
            found = self.method.step(before, learner.vector, data, learner.state)
            self._set_state(check_state(self.method, "step", found))
        self.net.end()

    def _update(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        lr: float | Tensor,
    ) -> None:  # fmt: skip
        self.optimizer.fused_(params, grads, m, v, self.learner.opt["t"], lr)

    def _interval(self) -> None:
        found = self.method.interval(self.learner.vector, self.learner.state)
        self._set_state(check_state(self.method, "interval", found))

    def _set_state(self, state: Any) -> None:
        self.learner.state = state

    def _gradient(self, batch: Batch, *names: str) -> Gradients:
        """Compute the gradient of the loss, or of some of its terms."""
        net, state = self.net, self.learner.state
        net.phase = self.phase
        # the main batch of a single run has no padding
        net.begin(batch.key, (batch.w,) if self._padded else batch.row_weights)
        scope: Any = contextlib.nullcontext()
        if self._autocast:
            scope = torch.autocast(self.learner.device.type, dtype=torch.bfloat16)
        with scope:
            found = self.method.loss(net, batch, state)
        terms = check_loss_terms(self.method, found)
        if self._remembers and batch is self._batch:
            values = self.method.remember(net, batch, state)
            self._found = {name: value.detach() for name, value in values.items()}
        total: Tensor = sum(  # type: ignore[assignment]
            term for name, term in terms.items() if not names or name in names
        )
        if not total.requires_grad:
            expected = "terms that depend on the weights (0 * net.task(batch) if none is to move)"
            raise bad(f"{type(self.method).__name__}.loss", expected, "constants")
        inputs = [*net.parameters, *([net.leaf] if net.touched else [])]
        parts = torch.autograd.grad(total, inputs, allow_unused=True)
        found_parts, ranks = net.flatten_gradients(parts), distributed.current_ranks()
        if ranks is not None:  # each rank has the gradient of its rows; penalties are complete
            found_parts = ranks.sum_all(found_parts)
        self._log(terms)
        return Gradients(found_parts, parts[-1] if net.touched else None)

    def _projected(self, batch: Batch) -> Gradients:
        """Compute the update direction by the method's `gradient`."""
        vector, layout = self.learner.vector, self.learner.networks.layout
        own: list[Tensor] = []  # of the current batch

        def of(which: Batch, names: tuple[str, ...], at: Tensor | None) -> Tensor:
            logged, remembered = dict(self.sums), self._found
            with self.net.use_vector(at), torch.enable_grad():
                found = self._gradient(which, *names)
            if which is not batch or own:  # only the first gradient of the batch is logged
                self.sums, self._found = logged, remembered
            data = layout.flatten(found.parts)
            if which is batch:
                own.append(data)
            return data if found.penalty is None else data + found.penalty

        with torch.no_grad():
            found = self.method.gradient(Gradient(of, vector, layout), batch, self.learner.state)
        total = check_update_direction(self.method, found, vector, bool(own))
        return Gradients([], None, own[0], total.clone() if total is own[0] else total)

    def _log(self, terms: Terms) -> None:
        for name, term in terms.items():
            value = term.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def take_log(self) -> dict[str, Tensor]:
        """Return the sums of the loss terms [1] since the last call, and reset them."""
        sums, self.sums = {k: v.reshape(1) for k, v in self.sums.items()}, {}
        return sums

    def write_back(self) -> None:
        """Write the buffers into the learner, whose vector is updated in place."""
        self.learner.buffers = {k: v.detach().clone() for k, v in self.net.read_buffers().items()}

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what an interrupted run needs besides its learner: sums of losses, values."""
        first = {name: value[0] for name, value in (self.first or {}).items()}
        return {"sums": self.sums, "values": self.collate.values, "first": first}

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """Restore a state, with the number of steps taken."""
        self.sums, self.collate.values = states[0]["sums"], states[0]["values"]
        self.first = {name: value.reshape(1) for name, value in states[0]["first"].items()} or None
        self.steps = steps[0]

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """Return the values [n, ...] of the first `items` slots."""
        return {name: table[:items].clone() for name, table in self.collate.values.items()}

    def finite(self) -> Tensor:
        """Return [1] whether all weights are finite."""
        return torch.isfinite(self.learner.vector).all().reshape(1)

    def close(self) -> None:
        self.write_back()
        self.net.release()


def _make_collator(learner: RunLearner, method: Method) -> Collator:
    """Make the collator of a task."""
    opened, visible = learner.opened.to(learner.device), learner.stream.visible.to(learner.device)
    return Collator(
        learner.feed,
        opened=opened,
        now=torch.tensor(learner.stage, device=learner.device),
        scopes=competing_classes(learner.scope, opened, visible, learner.stage),
        stage=learner.stage,
        alone=uses_only_task_rows(method, learner.stage),
    )


# -- parameters that are frozen while a run trains alone -------------------------------------------


class FrozenEntries:
    """Mask gradients of frozen entries, and restore those that the optimiser changes nevertheless.

    Parameters that are frozen as a whole are never updated.

    Parameters
    ----------
    free
        [P] which entries may move.
    vector
        [P] the weights.
    parts
        Gives the views of a vector, one for each parameter that is updated.
    drifts
        Whether the optimiser moves entries without gradient (weight decay, old momentum).
    """

    def __init__(
        self, free: Tensor, vector: Tensor, parts: Callable[[Tensor], list[Tensor]], *, drifts: bool
    ) -> None:
        frozen = (~free).nonzero()[:, 0]
        self._frozen = frozen if len(frozen) else None
        views = parts(free)
        self._masks = [(i, v) for i, v in enumerate(views) if not bool(v.all())]
        updated = torch.zeros_like(free)
        for mine, may_move in zip(parts(updated), views, strict=True):
            mine.copy_(~may_move)
        self._places = updated.nonzero()[:, 0]
        back = drifts and len(self._places) > 0
        self._before = vector[self._places].clone() if back else None

    def mask_parts_(self, grads: list[Tensor]) -> None:
        """Mask gradients by parameter, in place."""
        for index, mask in self._masks:
            grads[index].mul_(mask)

    def mask_(self, flat: Tensor) -> None:
        """Mask a gradient of the whole vector, in place."""
        if self._frozen is not None:
            flat.index_fill_(0, self._frozen, 0.0)

    def masked(self, flat: Tensor) -> Tensor:
        """Return a masked gradient; a copy if anything is frozen."""
        return flat if self._frozen is None else flat.index_fill(0, self._frozen, 0.0)

    def restore_frozen_(self, vector: Tensor) -> None:
        """Restore frozen entries after an update."""
        if self._before is not None:
            vector[self._places] = self._before
