"""`LockstepTrainer`: many runs at once, with the verbs of a method mapped over stacked runs.

Everything that a step reads or writes has a fixed address, so that on CUDA the step can be captured
as a graph and replayed; on the CPU the same function runs eagerly.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.engine.batches import (
    Collator,
    RowAnnouncer,
    clone_rows,
    copy_into_,
    has_no_padding,
    move_rows_to_host,
    row_tensors,
    select_step,
    select_step_on_host,
    shapes_fit,
    uses_only_task_rows,
)
from engram.engine.hyperparameters import make_tensors, replace_values, varying_values
from engram.engine.optim import Optimizer, make_optimizer
from engram.engine.sampler import StepRows
from engram.engine.stored_values import (
    frozen_root_names,
    make_empty_tables,
    stack_latents,
    stack_value_tables,
    write_slots_,
)
from engram.engine.trainers.cuda_graph import CapturedStep
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, TeacherCache
from engram.learner.objectives import competing_classes
from engram.learner.parameter_layout import Networks, TrainableSlices
from engram.learner.tensor_tree import leaves, pick, stack, tree_map
from engram.methods.method import (
    Gradient,
    Method,
    check_every_n_steps,
    check_loss_terms,
    check_state,
    check_update_direction,
)
from engram.models.functional_call import differentiate

# -- one optimiser step of R runs, in place, on tensors at fixed addresses -------------------------


class MappedStep:
    """The stacked state [R, ...] of R learners of equal shapes, and one training step of all.

    Read `_step`: gradients of all runs, optimiser updates, method states.
    """

    lists_frozen = True  # frozen parameters as a list of positions, if all runs agree

    def __init__(
        self, learners: Sequence[RunLearner], methods: Sequence[Method], training: Training, *,
        slots: int = 0, phase: str = "task",
    ) -> None:  # fmt: skip
        first, found = learners[0], varying_values(methods)
        if found is None:
            raise ValueError("methods of one lockstep group may differ in float fields only")
        self.learners, self.method, self.training = list(learners), methods[0], training
        self.networks, self.optimizer = first.networks, make_optimizer(training, first.networks)
        self._follows, self._clip = self.method.implements("step"), training.clip
        self.moving = self._movable()
        self.whole: Tensor | None = None  # [R, P] where `vector` holds the moving part of it only
        self.vector = torch.stack([one.vector for one in learners])  # [R, P]
        self.buffers = stack([one.buffers for one in learners])
        self.state = tree_map(torch.clone, stack([one.state for one in learners]))
        self.opt = stack([one.opt for one in learners])
        self._whole_opt = self.opt
        if not self.moving.is_everything:
            self.whole, take = self.vector, self.moving.take
            self.vector = take(self.whole)  # [R, M]
            self.opt = {k: v.clone() if k == "t" else take(v) for k, v in self.opt.items()}
        self.hyper = make_tensors(found, self.vector)
        self.collate = self._collate()
        self.collate.values = stack_value_tables(learners, slots) if first.values else {}
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
        self._teacher_outputs: tuple[Any, ...] = ()  # of older networks to it, where it stays
        self._rows: StepRows | None = None
        self._uniform = True  # every run takes every step
        self._fused = True  # with one rate, after one number of steps
        self._freeze(training)

    def _movable(self) -> TrainableSlices:
        """Return the trainable slices, without a frozen root unless verbs need the whole vector."""
        whole = (
            self.method.implements("gradient")
            or self._follows
            or not isinstance(self.optimizer, Optimizer)
        )
        return TrainableSlices(
            self.networks.layout, [] if whole else frozen_root_names(self.learners)
        )

    def _collate(self) -> Collator:
        """Make the collator of all runs."""
        learners, first = self.learners, self.learners[0]
        device = first.device
        opened = torch.stack([one.opened for one in learners])
        scopes = [  # per run on the host, and moved once
            competing_classes(first.scope, one.opened, one.stream.visible, first.stage)
            for one in learners
        ]
        now = torch.full((len(learners),), first.stage, device=device)
        made = Collator(
            first.feed, opened=opened.to(device), scopes=torch.stack(scopes).to(device), now=now,
            stage=first.stage, alone=uses_only_task_rows(self.method, first.stage),
        )  # fmt: skip
        made.latents = stack_latents(learners)
        return made

    @torch.no_grad()
    def _step(self) -> None:
        """Take one optimiser step of every run."""
        batch, rows = self.fixed_batch, None
        if batch is None or self.verbs.remembers:
            rows = self._step_rows()
        if batch is None:
            batch = self.collate(rows)  # type: ignore[arg-type]
        with self._precision():
            mapped = self.verbs.mapped()(*self._arguments(batch))
        total, data, terms, buffers, found, made = self.verbs.results(mapped)
        self._teacher_outputs = self._teacher_outputs or made
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
                write_slots_(self.collate.values[name], rows.into, value)
        self._log(terms)
        self.step_number.add_(1)

    def _step_rows(self) -> StepRows:
        return select_step(self._rows, self.step_number)  # type: ignore[arg-type]

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        return self.verbs.arguments(
            self.vector,
            self.whole,
            self.buffers,
            self.state,
            batch,
            self.hyper,
            self._teacher_outputs,
        )

    def _precision(self) -> Any:
        if self.training.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.vector.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def _interval(self) -> None:
        """Call the method's `interval` for every run."""
        self._assign(self.state, self.verbs.after_interval(self.vector, self.state, self.hyper))

    # -- frozen parameters ------------------------------------------------------------------------
    def _freeze(self, training: Training) -> None:
        free = self.moving.take(torch.stack([one.free for one in self.learners]))
        same = self.lists_frozen and bool((free == free[0]).all())
        frozen = (~free[0]).nonzero()[:, 0]
        self._free = None if same else free
        self._frozen = frozen if same and len(frozen) else None
        moves = self.optimizer.moves_without_gradient(training.optim_reset)
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
            # fused kernels accept one float32 rate, which would round a float64 run
            self.optimizer.update_(self.vector, total, self.opt, self.lr)
            return
        rate = self.lr[0] if self.vector.is_cuda else float(self.lr[0])
        shared = steps[0]
        self.optimizer.fused_([self.vector], [total], [self.opt["m"]], second, shared, rate)
        steps.copy_(shared.expand_as(steps).clone())

    def _update_masked(self, total: Tensor, before: Tensor) -> None:
        """Update with learning rates per run; runs that are not live are unchanged."""
        old = tree_map(torch.clone, self.opt)
        self.optimizer.update_(self.vector, total, self.opt, self.lr)
        alive = self.live
        self.vector.copy_(torch.where(alive[:, None], self.vector, before))
        for new, before_step in zip(leaves(self.opt), leaves(old), strict=True):
            new.copy_(torch.where(_broadcast_like(alive, new), new, before_step))

    def _assign(self, target: Any, value: Any) -> None:
        """Write a new tree into the tensors of the old one, for runs that are live."""

        def write(old: Tensor, new: Tensor) -> None:
            if new is old:  # unchanged: save the masked write
                return
            new = new.to(old.dtype)
            old.copy_(
                new if self._uniform else torch.where(_broadcast_like(self.live, old), new, old)
            )

        tree_map(write, target, value)

    def _log(self, terms: dict[str, Tensor]) -> None:
        for name, term in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(term)
            value = term if self._uniform else torch.where(self.live, term, 0.0)
            self.sums[name].add_(value)


def _broadcast_like(live: Tensor, like: Tensor) -> Tensor:
    return live.reshape(-1, *[1] * (like.ndim - 1))


class LockstepTrainer(MappedStep):
    """Train R learners of equal shapes in one phase; the step itself is in `MappedStep`."""

    caches_teachers = True  # cache teacher outputs if all steps see the same batch

    def __init__(
        self,
        learners: Sequence[RunLearner],
        methods: Sequence[Method],
        training: Training,
        *,
        capture: bool = False,
        slots: int = 0,
        phase: str = "task",
    ) -> None:
        super().__init__(learners, methods, training, slots=slots, phase=phase)
        self._slots = slots
        self._lr = np.full(len(learners), training.lr)  # rates as the device has them
        self._ends: deque[torch.cuda.Event] = deque()  # of stretches that may still be going on
        self.first: dict[str, Tensor] | None = None  # [R] terms of the phase's first step
        self.steps = np.zeros(len(learners), dtype=int)  # [R] of each run in this phase
        self._taken = self.opt["t"].cpu().numpy().copy()  # [R] steps of each run's optimiser
        self._pace = math.gcd(*map(check_every_n_steps, methods))
        # rows on disk cannot be fetched inside a captured or compiled step
        self._fetches = capture and not learners[0].feed.on_device
        self._host: StepRows | None = None  # the same rows, their numbers on the host
        self._upcoming: RowAnnouncer | None = None
        step, interval = self._repeated()
        self._captured = CapturedStep(step) if capture else None
        self._captured_interval = CapturedStep(interval) if capture else None

    # -- rows -------------------------------------------------------------------------------------
    def load(self, rows: StepRows, fixed: bool) -> None:
        """Set the rows of the next steps, at fixed addresses if a graph was captured."""
        if self.verbs.remembers and not self.collate.values:
            first = make_empty_tables(self.learners[0], self.method, rows, self._slots)
            runs = len(self.learners)
            self.collate.values = {k: v.repeat(runs, *[1] * v.ndim) for k, v in first.items()}
        self._teacher_outputs, self.verbs.stays = (), False
        places, new = row_tensors(self._rows), row_tensors(rows)
        # recordings remain valid for a shorter last stretch of steps
        if not shapes_fit(new, places) or not (self.verbs.padded or has_no_padding(rows)):
            self._rows = clone_rows(rows)
            self.verbs.padded = not has_no_padding(rows)
            self.fixed_batch = None
            self._forget()
        else:
            copy_into_(places, new)
        if fixed and not self.collate.feed.augment:
            self.step_number.zero_()
            self.fixed_batch = self.collate(select_step(self._rows, self.step_number))  # type: ignore[arg-type]
            self._fetches = False
            # teacher outputs are constant if the state, with its snapshots, does not change
            self.verbs.stays = self.caches_teachers and not self._follows and not self._pace
        elif not self.collate.feed.on_device and not self.collate.latents:
            self._announce_all(move_rows_to_host(rows))

    def _announce_all(self, rows: StepRows) -> None:
        """Announce rows on disk step by step."""
        self._host, self._upcoming = rows, RowAnnouncer(self.collate.feed, rows, cut=False)

    def _fetch(self, number: int) -> None:
        """Copy the rows of the next step to fixed addresses."""
        rows = select_step(self._rows, self.step_number)  # type: ignore[arg-type]
        if self._host is not None:
            rows = select_step_on_host(rows, self._host, number)
        batch = self.collate(rows)
        if self.fixed_batch is None:
            self.fixed_batch = tree_map(torch.clone, batch)
        else:
            for place, value in zip(leaves(self.fixed_batch), leaves(batch), strict=True):
                place.copy_(value)

    def reseed(self, key: Tensor) -> None:
        """Set the keys [R, 1] of another epoch over the loaded rows."""
        if self._rows is not None:
            self._rows.key.copy_(key)
        batch = self.fixed_batch
        if batch is not None:
            batch.key.copy_(key[:, 0])
            for number, apart in enumerate(batch.memory):
                apart.key.copy_(torch.as_tensor(keys.fold(batch.key, number)))
        if self._host is not None:
            self._announce_all(self._host)

    # -- steps ------------------------------------------------------------------------------------
    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Take the steps `start` to `stop` of the loaded rows, of runs that are `live` [R, S]."""
        if not np.array_equal(lr, self._lr):  # copying to the device waits for it
            self.lr.copy_(torch.as_tensor(lr, dtype=self.lr.dtype))
            self._lr = lr.copy()
        now = live[:, start:stop]
        same = np.all(lr == lr[0]) and np.all(self._taken == self._taken[0])
        self._set_uniform(bool(now.all()), bool(same))
        self._taken += now.sum(1)
        self.step_number.fill_(start)
        due = self._due(now)
        step, interval = self._repeated()
        step, interval = self._captured or step, self._captured_interval or interval
        for number in range(start, stop):
            if not self._uniform:
                self.live.copy_(torch.as_tensor(live[:, number]))
            if self._upcoming is not None:
                self._upcoming(number)
            if self._fetches:
                self._fetch(number)
            step()
            if self.first is None:
                self.first = {name: value.clone() for name, value in self.sums.items()}
            if due[number - start]:
                interval()
        self._keep_near()

    def _keep_near(self) -> None:
        """Wait for the previous stretch, so that the host is at most two stretches ahead."""
        if self.vector.is_cuda:
            self._ends.append(torch.cuda.Event())
            self._ends[-1].record()
            if len(self._ends) > 1:
                self._ends.popleft().synchronize()

    def _due(self, live: np.ndarray) -> np.ndarray:
        """Count the next steps, and return which of them end an interval of any run."""
        counts = self.steps[:, None] + live.cumsum(1)
        self.steps += live.sum(1)
        ends = counts % self._pace == 0 if self._pace else np.zeros_like(live)
        return np.asarray((ends & live).any(0))

    def _set_uniform(self, uniform: bool, fused: bool) -> None:
        if (uniform, fused) != (self._uniform, self._fused):
            self._forget()
        self._uniform, self._fused = uniform, fused

    def _forget(self) -> None:
        """Discard all recordings: shapes or static choices changed."""
        for recorded in (self._captured, self._captured_interval):
            if recorded is not None:
                recorded.forget()

    def _repeated(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the functions to repeat, or to capture: a step, and an interval."""
        return self._step, self._interval

    # -- log and learners -------------------------------------------------------------------------
    def take_log(self) -> dict[str, Tensor]:
        """Return the sums of the loss terms [R] since the last call, and reset them."""
        out = {name: value.clone() for name, value in self.sums.items()}
        for value in self.sums.values():
            value.zero_()
        return out

    def write_back(self) -> None:
        """Write the current weights into the learners, as views of the stacked ones."""
        vector, opt = self.vector, self.opt
        if self.whole is not None:
            vector, opt = self.whole, self._whole_opt
            self.moving.put_(vector, self.vector)
            for name, value in self.opt.items():
                if name == "t":
                    opt[name].copy_(value)
                else:
                    self.moving.put_(opt[name], value)
        for index, learner in enumerate(self.learners):
            learner.vector, learner.opt = vector[index], pick(opt, index)
            learner.buffers, learner.state = pick(self.buffers, index), pick(self.state, index)

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what an interrupted run needs besides its learner: sums of losses, values."""
        own = {"sums": self.sums, "values": self.collate.values, "first": self.first or {}}
        return pick(own, run)  # type: ignore[no-any-return]

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """Restore the states of all runs, with the number of steps each has taken."""
        together = stack(states)
        self.sums, self.collate.values = together["sums"], together["values"]
        self.first = together["first"] or None
        self.steps = np.array(steps, dtype=int)

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """Return the values [n, ...] of a run's first `items` slots."""
        return {k: table[run, :items].clone() for k, table in self.collate.values.items()}

    def finite(self) -> Tensor:
        """Return [R] whether all weights of a run are finite."""
        return torch.isfinite(self.vector).all(-1)

    def close(self) -> None:
        self._forget()
        self.write_back()


# -- A method's verbs, mapped over all runs that train in lockstep ---------------------------------

# update, gradient through the networks, loss terms, buffers, remembered values, teacher outputs
MappedGradients = tuple[Tensor, Tensor, dict[str, Tensor], Any, dict[str, Tensor], tuple[Any, ...]]


class MappedVerbs:
    """``loss``, ``gradient``, ``step`` and ``interval`` of a method for R runs.

    No tensor of a run is kept here: all come as arguments, so that a step can be traced on others.

    Parameters
    ----------
    moving
        What is trained; the rest of the vector stands beside it.
    remembers
        Whether the method says what is remembered of a batch.
    latents
        Whether inputs are latents, which only the main network's top sees.
    """

    def __init__(
        self,
        method: Method,
        networks: Networks,
        moving: TrainableSlices,
        *,
        phase: str,
        remembers: bool,
        latents: bool,
    ) -> None:
        self.method, self.networks, self.moving = method, networks, moving
        self.phase, self.remembers, self.latents = phase, remembers, latents
        self.projects = method.implements("gradient")
        self.touches: bool | None = None  # whether the loss writes penalties on the vector
        self.padded = True  # whether some rows of a batch may not count
        self.stays = False  # whether batch and state are the same in all steps

    # -- gradients: the step itself calls what `mapped` returns, so that whoever looks at the stack
    # inside of a loss finds few frames
    def mapped(self) -> Callable[..., Any]:
        """Return the mapped function from `arguments` to the input of `results`."""
        if self.projects:
            return vmap(self._projected_of_one)
        apart = (0, 1) if self._apart else 0
        return vmap(differentiate(self._loss_of_one, argnums=apart, has_aux=True))

    @property
    def _apart(self) -> bool:
        """Whether gradients of penalties and of data terms are computed separately."""
        return self.touches is not False and self.moving.is_everything

    def arguments(
        self, vector: Tensor, whole: Tensor | None, buffers: Any, state: Any, batch: Batch,
        hyper: Any, answers: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return weights, what is passed with them, and all arguments of a loss.

        Beside weights that are all there are: the vector that penalties are on, or nothing. Beside
        those that move: the `whole` vector. `answers` are what older networks said to the batch.
        """
        beside: Any = vector if self._apart and not self.projects else ()
        return vector, beside if whole is None else whole, buffers, state, batch, hyper, answers

    def results(self, found: Any) -> MappedGradients:
        """Unpack update, gradient of data terms, loss terms, buffers, values, teacher outputs."""
        if self.projects:
            return found  # type: ignore[no-any-return]
        data, (*rest, kept) = found
        if not isinstance(data, tuple):
            return data, data, *rest, kept
        return data[0] + data[1], data[0], *rest, kept

    def _loss_of_one(
        self, weights: Tensor, beside: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        answers: tuple[Any, ...] = (), names: tuple[str, ...] = (), remembers: bool | None = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """Compute the loss of one run, or some of its terms, with its other outputs."""
        method = replace_values(self.method, hyper)
        net = FunctionalNet(
            self.networks, weights, buffers, key=batch.key,
            penalty=weights.detach() if isinstance(beside, tuple) else beside,
            partial=None if self.moving.is_everything else (self.moving, beside),
            real=() if self.padded else batch.row_weights,
        )  # fmt: skip
        net.phase = self.phase
        net.teacher_cache = TeacherCache(batch.x, state, answers) if self.stays else None
        if self.latents:
            net.main = "net.top"
        terms = check_loss_terms(method, method.loss(net, batch, state))
        if self.touches is None or net.touched:
            self.touches = net.touched
        total = sum(t for name, t in terms.items() if not names or name in names)
        found: dict[str, Tensor] = {}
        if self.remembers if remembers is None else remembers:  # of the pass that the loss made
            found = method.remember(net, batch, state)
        kept = tuple(net.teacher_cache.made) if net.teacher_cache is not None else ()
        return total, (terms, net.buffers, found, kept)  # type: ignore[return-value]

    def _projected_of_one(
        self, vector: Tensor, _: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        answers: tuple[Any, ...] = (),
    ) -> MappedGradients:  # fmt: skip
        """Compute the update direction by the method's `gradient`."""
        own: dict[str, Any] = {"buffers": buffers}

        def of(which: Batch, names: tuple[str, ...], at: Tensor | None) -> Tensor:
            remembers = self.remembers and which is batch
            weights = vector if at is None else at
            rest = (own["buffers"], state, which, hyper, (), names, remembers)
            apart = (0, 1) if self.touches is not False else 0
            penalised = weights if self.touches is not False else ()
            found = differentiate(self._loss_of_one, argnums=apart, has_aux=True)(
                weights, penalised, *rest
            )
            data, (terms, after, remembered, _) = found
            penalty = None
            if isinstance(data, tuple):
                data, penalty = data
            own["buffers"] = after
            if which is batch:
                own.setdefault("data", data)
                own.setdefault("terms", terms)
                own.setdefault("found", remembered)
            return torch.as_tensor(data if penalty is None else data + penalty)

        grad = Gradient(of, vector, self.networks.layout)
        total = replace_values(self.method, hyper).gradient(grad, batch, state)
        total = check_update_direction(self.method, total, vector, "terms" in own)
        return total, own["data"], own["terms"], own["buffers"], own["found"], ()

    # -- what follows a step ----------------------------------------------------------------------
    def after_step(
        self, before: Tensor, after: Tensor, data: Tensor, state: Any, hyper: Any
    ) -> Any:
        """Return the states of all runs after the method's ``step``."""
        return vmap(self._step_of_one)(before, after, data, state, hyper)

    def _step_of_one(
        self, before: Tensor, after: Tensor, data: Tensor, state: Any, hyper: Any
    ) -> Any:
        found = replace_values(self.method, hyper).step(before, after, data, state)
        return check_state(self.method, "step", found)

    def after_interval(self, after: Tensor, state: Any, hyper: Any) -> Any:
        """Return the states of all runs after the method's ``interval``."""
        return vmap(self._interval_of_one)(after, state, hyper)

    def _interval_of_one(self, after: Tensor, state: Any, hyper: Any) -> Any:
        found = replace_values(self.method, hyper).interval(after, state)
        return check_state(self.method, "interval", found)
