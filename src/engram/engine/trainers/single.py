"""`SingleTrainer`: one run under plain autograd, without functional transforms.

The module's parameters are views of the run's vector, so that methods are the same as in lockstep,
while a step takes as long as in a hand-written training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from engram import distributed, keys
from engram.engine.admission import HeldRows, admit_rows, admit_rows_on_host, hold_exemplars
from engram.engine.batches import (
    Collator,
    RowAnnouncer,
    move_rows_to_host,
    take_apart,
    uses_only_task_rows,
)
from engram.engine.sampler import StepRows
from engram.engine.stored_values import frozen_names, make_empty_tables, stack_value_tables
from engram.engine.trainers.step import (
    Gradients,
    LossGradient,
    StepTensors,
    TrainingStep,
    add_terms,
    is_fusable,
    make_counters,
    positions,
    sum_over_parts,
)
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.bound_module import BoundNet
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, Net
from engram.learner.objectives import EVEN_SCOPES, competing_classes
from engram.learner.parameter_layout import TrainableSlices
from engram.learner.tensor_tree import pick, tree_map
from engram.methods.method import (
    Gradient,
    Method,
    State,
    Update,
    check_loss_terms,
    check_step,
    check_update_direction,
)


class SingleTrainer(TrainingStep):
    """Train one learner in one phase, in place."""

    _records = False  # whether steps are recorded, so that all addresses are fixed

    def __init__(
        self, learner: RunLearner, method: Method, training: Training, *, slots: int = 0,
        phase: str = "task",
    ) -> None:  # fmt: skip
        super().__init__(
            [learner], method, training, phase=phase, slots=slots, fixed_addresses=self._records
        )
        self.learner = learner
        learner.vector = learner.vector.clone()  # methods may have kept the old tensor as an anchor
        self._fuses = is_fusable(self.optimizer, learner.vector) and "scale" not in learner.opt
        # verbs and unfused optimisers need the whole vector
        whole = self._projects or self._follows or not self._fuses
        self._flat = whole or bool(training.clip or training.clip_value or training.ema)
        # moments of what stands still are 0 where a phase begins with fresh ones, and stay so
        frozen = [] if whole else frozen_names([learner], training.optim_reset)
        if len(frozen) == len(learner.networks.layout.shapes):
            frozen = []
        self.moving = TrainableSlices(learner.networks.layout, frozen)
        self.net = BoundNet(
            learner.networks, learner.vector, learner.buffers,
            channels_last=learner.networks.channels_last, frozen=frozen,
        )  # fmt: skip
        self.collate = _make_collator(learner, method)
        if learner.latents:
            self.collate.latents, self.net.main = learner.latents, "net.top"
        device, dtype = learner.device, learner.vector.dtype
        self.tensors = StepTensors(
            learner.vector, learner.buffers, learner.state, learner.opt,
            torch.full((), training.lr, device=device, dtype=dtype), *make_counters((), device),
        )  # fmt: skip
        self._host_rate = training.lr
        self._rows: StepRows | None = None
        self._lengths: tuple[int, ...] = ()  # of the main batch of every step
        # rows on disk are fetched ahead; latents are a table on the device
        self._fetches = not learner.feed.on_device and not learner.latents
        self._upcoming: RowAnnouncer | None = None
        self._padded = False
        tables = stack_value_tables([learner], slots) if learner.values else {}
        self.collate.values = {name: table[0] for name, table in tables.items()}
        self._freeze()
        opt = learner.opt
        second = self._parts(opt["v"]) if "v" in opt else []
        self._views = self._parts(learner.vector), self._parts(opt["m"]), second

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector, one for each trainable parameter."""
        views = self.learner.networks.layout(vector)
        return [views[name] for name in self.moving.names]

    def _freeze(self) -> None:
        """Find the entries that must not move; parameters frozen as a whole are never updated."""
        learner, t = self.learner, self.tensors
        t.frozen = positions(~learner.free)
        views = self._parts(learner.free)
        # numbers, because a product with truth values is converted entry by entry
        dtype = learner.vector.dtype
        self._masks = [(i, v.to(dtype)) for i, v in enumerate(views) if not bool(v.all())]
        updated = torch.zeros_like(learner.free)
        for mine, may_move in zip(self._parts(updated), views, strict=True):
            mine.copy_(~may_move)
        if self.optimizer.moves_without_gradient(self.training.optim_reset):
            t.kept_at = positions(updated)
            t.kept = None if t.kept_at is None else learner.vector[t.kept_at]

    # -- rows --------------------------------------------------------------------------------------
    def load(self, rows: StepRows, fixed: bool) -> None:
        """Set the rows of the next steps."""
        self._prepare(rows)
        self._rows = rows
        self._announce_all(rows)

    def _prepare(self, rows: StepRows) -> None:
        self._lengths = rows.lengths
        self._ask_about(rows)
        # the main batch is cut to its length, but a reservoir may be empty at first
        self._padded = any(bool((batch.w == 0).any()) for batch in rows.apart)
        if self._draws is not None:
            self._padded = True  # the memory may be empty
            if self.tensors.held is None:
                held = hold_exemplars([self.learner], rows, self._slots)
                self.tensors.held = HeldRows.from_tree(pick(held, 0))
        if self._slots and self._recall.own and not self.collate.values:
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

    # -- steps -------------------------------------------------------------------------------------
    @torch.no_grad()
    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Take the steps `start` to `stop` of the loaded rows, at the rates `lr` [1, S]."""
        if self._rows is None:
            raise ValueError("load rows before running steps")
        compute = self._gradient_function()
        steps = take_apart(self._rows, start, stop, self._lengths)
        for number, step in zip(range(start, stop), steps, strict=True):
            self._set_rate(float(lr[0, number - start]))
            if self._upcoming is not None:
                self._upcoming(number)
            rows = self.draw(step)
            batch = self.set_time(self.collate(rows))
            found = compute(batch)
            self._apply(found, batch, self._fill_memory(rows, batch.key, found.values[0]))
            self._count()

    def _set_rate(self, rate: float) -> None:
        if rate != self._host_rate:
            self._host_rate = rate
            self.tensors.lr.fill_(rate)

    def _rate(self) -> float | Tensor | None:
        return self._host_rate if self._fuses else None

    def _places(self, flat: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        if not flat:
            return self._views
        t, of = self.tensors, self.moving.pieces
        return of(t.vector), of(t.opt["m"]), of(t.opt["v"]) if "v" in t.opt else []

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        return self.moving.pieces(flat)

    # -- gradients ---------------------------------------------------------------------------------
    def _gradient_function(self) -> Callable[[Batch], Gradients]:
        """Return what computes the gradients of a step."""
        compute = self._project if self._projects else self._loss_gradient()
        if distributed.current_ranks() is None:
            return compute
        return partial(self._compute_or_undo, compute)

    def _loss_gradient(self) -> Callable[..., Gradients]:
        weighs = self.training.accumulate > 1 or "scale" in self.tensors.opt
        return self._differentiate_in_parts if weighs else self._differentiate

    def _compute_or_undo(self, compute: Callable[[Batch], Gradients], batch: Batch) -> Gradients:
        """Compute gradients over all ranks; if one is lost, undo the effects of the step."""
        buffers = {name: value.clone() for name, value in self.net.read_buffers().items()}
        try:
            return compute(batch)
        except distributed.LostRank:
            self.net.bind_buffers(buffers)
            raise

    def _differentiate(
        self, batch: Batch, *names: str, remembers: bool = True, own: bool = True,
        weight: Tensor | None = None,
    ) -> Gradients:  # fmt: skip
        """Compute the gradient of the loss, or of some of its terms; times a `weight`.

        `own`: the weights of the rows are those that the step has drawn.
        """
        net, state = self.net, self.tensors.state
        net.phase = self.phase
        net.begin(batch.key, self._weights_without_zeros(batch) if own else ())
        with torch.enable_grad(), self._precision():
            terms = check_loss_terms(self.method, self.method.loss(net, batch, state))
            total = add_terms(terms, names)
            if weight is not None:
                total = total * weight
        if not total.requires_grad:
            expected = "terms that depend on the weights (0 * net.task(batch) if none is to move)"
            raise bad(f"{type(self.method).__name__}.loss", expected, "constants")
        values: tuple[dict[str, Tensor], ...] = ({},)
        if remembers and self._recall:
            values = tree_map(torch.detach, self._recall.ask(self.method, net, batch, state))
        inputs = [*net.parameters, *([net.leaf] if net.touched else [])]
        found = torch.autograd.grad(total, inputs, allow_unused=True)
        parts, penalty = net.flatten_gradients(found), found[-1] if net.touched else None
        net.end()
        terms = {name: term.detach() for name, term in terms.items()}
        ranks = distributed.current_ranks()
        if ranks is not None:  # each rank has the gradient of its rows; penalties are complete
            parts = ranks.sum_all(parts)
        if penalty is None and not self._flat:
            for index, mask in self._masks:
                parts[index].mul_(mask)
            return Gradients(None, parts, None, terms, values=values)
        data = self.moving.gradient(parts)
        flat = data if penalty is None else data + penalty
        return Gradients(flat, [], data, terms, values=values)

    def _differentiate_in_parts(
        self, batch: Batch, *names: str, remembers: bool = True, own: bool = True
    ) -> Gradients:
        """Do the same for parts of the batch, one after the other, and add up."""

        def compute(part: Batch, weight: Tensor) -> LossGradient:
            one = self._differentiate(part, *names, remembers=remembers, own=own, weight=weight)
            found = {"flat": one.flat, "data": one.data, "parts": tuple(one.parts)}
            present = {name: value for name, value in found.items() if value is not None}
            return present, one.terms, one.values

        training, scale = self.training, self.tensors.opt.get("scale")
        found, terms, values = sum_over_parts(compute, batch, training.accumulate, scale)
        flat, data = found.get("flat"), found.get("data")
        return Gradients(flat, list(found["parts"]), data, terms, values=values)

    def _weights_without_zeros(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the row weights of a batch that need no masking."""
        if self._draws is not None:  # rows of a memory that may be empty join it, or are apart
            return ()
        # otherwise the main batch of a single run has no padding
        return (batch.w,) if self._padded else batch.row_weights

    def _project(self, batch: Batch) -> Gradients:
        """Compute the update direction by the method's `gradient`."""
        t, layout = self.tensors, self.learner.networks.layout
        own: list[Gradients] = []  # of the current batch
        drawn = batch.row_weights  # those of a batch that the method makes may be 0
        kept: dict[str, Tensor] = {}
        compute = self._loss_gradient()

        def of(which: Batch, names: tuple[str, ...], at: Tensor | None) -> Tensor:
            # only the first gradient of the batch is logged
            first = which is batch and not own
            with self.net.use_vector(at), self._keep_statistics(at is not None):
                known = any(which.w is w for w in drawn)
                found = compute(which, *names, remembers=first, own=known)
            if first:
                own.append(found)
            return found.flat  # type: ignore[return-value]

        @cache
        def net() -> Net:
            return FunctionalNet(
                self.learner.networks, t.vector, self.net.statistics(), lend=self.net.lend_modules,
                key=keys.fold(batch.key, "gradient"), real=self._weights_without_zeros(batch),
            )  # fmt: skip

        grad = Gradient(of, t.vector, layout, lambda vector: net().given(vector), kept)
        found = self.method.gradient(grad, batch, t.state)
        total = check_update_direction(self.method, found, t.vector, bool(own))
        mine = own[0]
        return mine._replace(flat=total.clone() if total is mine.data else total, kept=kept)

    @contextmanager
    def _keep_statistics(self, keep: bool) -> Iterator[None]:
        """Undo what a pass does to running statistics, which follow the current weights alone."""
        buffers = self.net.read_buffers() if keep else {}
        before = {name: value.clone() for name, value in buffers.items()}
        yield
        for name, value in buffers.items():  # the same tensors: a recording has their addresses
            value.copy_(before[name])
        self.net.bind_buffers(buffers)

    def _follow(
        self, before: Tensor, data: Tensor, key: Tensor, kept: dict[str, Tensor]
    ) -> tuple[Tensor | None, State]:
        t = self.tensors
        times = (t.began, t.steps, t.epoch_steps, t.lr)
        layout = self.learner.networks.layout
        update = Update(before, t.vector, data, t.taken, self._is_due, key, times, kept, layout)
        return check_step(self.method, self.method.step(update, t.state), t.vector)

    def _admit(
        self, rows: StepRows, key: Tensor, values: dict[str, Tensor]
    ) -> tuple[HeldRows, Tensor, State]:
        held, passes = self.tensors.held, rows.passes
        tables = {name: table[: self._slots] for name, table in self.collate.values.items()}
        assert held is not None and isinstance(passes, Tensor)  # noqa: PT018
        state = self.tensors.state
        admit = admit_rows if passes.is_cuda else admit_rows_on_host
        return admit(self.method, held, tables, rows.main, passes, values, key, state)

    # -- learner -----------------------------------------------------------------------------------
    def write_back(self) -> None:
        """Write the buffers and the state into the learner, whose vector is updated in place."""
        self.learner.buffers = {k: v.detach().clone() for k, v in self.net.read_buffers().items()}
        self.learner.state = self.tensors.state

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """Return the values [n, ...] of the first `items` slots."""
        return {name: table[:items].clone() for name, table in self.collate.values.items()}

    def close(self) -> None:
        super().close()
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
        even=learner.scope in EVEN_SCOPES,
    )
