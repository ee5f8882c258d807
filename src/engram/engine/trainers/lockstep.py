"""`LockstepTrainer`: many runs at once, with the verbs of a method mapped over stacked runs.

On CUDA a step can be captured as a graph and replayed, since everything that it reads or writes
then has a fixed address; on the CPU the same function runs eagerly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.engine.admission import HeldRows, admit_rows, hold_exemplars
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
from engram.engine.optim import VECTORS, Optimizer
from engram.engine.sampler import StepRows
from engram.engine.stored_values import (
    Recall,
    frozen_names,
    make_empty_tables,
    stack_latents,
    stack_value_tables,
)
from engram.engine.trainers.cuda_graph import CapturedStep
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
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, TeacherCache
from engram.learner.objectives import competing_classes
from engram.learner.parameter_layout import Networks, TrainableSlices
from engram.learner.tensor_tree import leaves, pick, stack, tree_map
from engram.methods.method import (
    Gradient,
    Method,
    State,
    Update,
    check_loss_terms,
    check_step,
    check_update_direction,
)
from engram.models.functional_call import differentiate


class LockstepTrainer(TrainingStep):
    """Train R learners of equal shapes in one phase."""

    lists_frozen = True  # frozen parameters as a list of positions, if all runs agree
    caches_teachers = True  # cache teacher outputs if all steps see the same batch
    _records = False  # whether steps are recorded, besides CUDA graphs

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
        first, varying = learners[0], varying_values(methods)
        if varying is None:
            raise ValueError("methods that train together may differ in PerRun options only")
        super().__init__(
            learners, methods[0], training, phase=phase, slots=slots,
            fixed_addresses=capture or self._records,
        )  # fmt: skip
        self.networks = first.networks
        self.moving = self._movable()
        self._stack(varying)
        self.collate = self._collate()
        self.collate.values = stack_value_tables(learners, slots) if first.values else {}
        self.verbs = MappedVerbs(
            self.method, self.networks, self.moving, phase=phase, recall=self._recall,
            latents=bool(self.collate.latents), accumulate=training.accumulate,
            scales="scale" in self.tensors.opt,
        )  # fmt: skip
        self._teacher_outputs: tuple[Any, ...] = ()  # of older networks to a batch that stays
        self._rows: StepRows | None = None
        self._fused = True  # all runs have one rate, after one number of steps
        self._freeze()
        self._lr = np.full(len(learners), training.lr)  # rates as the device has them
        self._ends: deque[torch.cuda.Event] = deque()  # of stretches that may still be going on
        # [R] steps of each run's optimiser
        self._optimizer_steps = self.tensors.opt["t"].cpu().numpy().copy()
        # rows on disk cannot be fetched inside a captured or compiled step
        self._fetches = capture and not first.feed.on_device
        self._host: StepRows | None = None  # the same rows, their numbers on the host
        self._upcoming: RowAnnouncer | None = None
        self._captures = capture
        self._pool: Any = None
        self._captured: dict[tuple[int, ...], CapturedStep] = {}  # by the periods that end

    def _movable(self) -> TrainableSlices:
        """Return the trainable slices, without a frozen root unless verbs need the whole vector."""
        whole = self._projects or self._follows or not isinstance(self.optimizer, Optimizer)
        frozen = [] if whole else frozen_names(self.learners)
        return TrainableSlices(self.networks.layout, frozen)

    def _stack(self, varying: dict[Any, list[float]]) -> None:
        """Stack the tensors of all learners."""
        learners, device = self.learners, self.learners[0].device
        vector, whole = torch.stack([one.vector for one in learners]), None  # [R, P]
        opt = self._whole_opt = stack([one.opt for one in learners])
        if not self.moving.is_everything:
            whole, take = vector, self.moving.take
            vector = take(whole)  # [R, M]
            opt = {k: take(v) if k in VECTORS else v.clone() for k, v in opt.items()}
        runs, state = len(learners), stack([one.state for one in learners])
        self.tensors = StepTensors(
            vector, stack([one.buffers for one in learners]),
            tree_map(torch.clone, state) if self.fixed_addresses else state, opt,
            torch.full((runs,), self.training.lr, device=device, dtype=vector.dtype),
            *make_counters((runs,), device), whole=whole, hyper=make_tensors(varying, vector),
            number=torch.zeros(1, dtype=torch.long, device=device),
        )  # fmt: skip

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

    def _freeze(self) -> None:
        t, free = self.tensors, self.moving.take(torch.stack([one.free for one in self.learners]))
        drifts = self.optimizer.moves_without_gradient(self.training.optim_reset)
        if self.lists_frozen and bool((free == free[0]).all()):
            t.frozen = positions(~free[0])
            if drifts and t.frozen is not None:
                t.kept, t.kept_at = t.vector[:, t.frozen].clone(), t.frozen
            return
        t.free, t.kept = free, t.vector.clone() if drifts else None

    # -- the step ----------------------------------------------------------------------------------
    def _step(self) -> None:
        """Take one optimiser step of every run."""
        t = self.tensors
        batch, rows = t.batch, None
        if batch is None or self._recall.own:
            rows = self.draw(self._step_rows())
        if batch is None:
            batch = self.collate(rows)  # type: ignore[arg-type]
        batch = self.set_time(batch)
        with self._precision():
            mapped = self.verbs.mapped()(*self._arguments(batch))
        found, made = self.verbs.results(mapped)
        self._teacher_outputs = self._teacher_outputs or made
        into = () if rows is None else self._fill_memory(rows, batch.key, found.values[0])
        self._apply(found, batch, into)
        t.number.add_(1)  # type: ignore[union-attr]

    def _step_rows(self) -> StepRows:
        return select_step(self._rows, self.tensors.number)  # type: ignore[arg-type]

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        return self.verbs.arguments(self.tensors, batch, self._teacher_outputs)

    def _follow(
        self, before: Tensor, data: Tensor, key: Tensor, kept: dict[str, Tensor]
    ) -> tuple[Tensor | None, State]:
        t = self.tensors
        times = (t.began, t.steps, t.epoch_steps, t.lr)
        stacked = (before, t.vector, data, t.taken), (key, times, kept), t.state, t.hyper
        moved, state = self.verbs.after_step(self._is_due, *stacked)
        return (moved if isinstance(moved, Tensor) else None), state

    def _admit(
        self, rows: StepRows, key: Tensor, values: dict[str, Tensor]
    ) -> tuple[HeldRows, Tensor, State]:
        t, passes = self.tensors, rows.passes
        assert isinstance(passes, Tensor)
        if t.live is not None:
            passes = passes & t.live[:, None]
        tables = {name: table[:, : self._slots] for name, table in self.collate.values.items()}
        return self.verbs.admit(t.held, tables, rows.main, passes, values, key, t.state, t.hyper)

    def _rate(self) -> float | Tensor | None:
        t = self.tensors
        if not self._fused or not is_fusable(self.optimizer, t.vector):
            return None
        return t.lr[0] if t.vector.is_cuda else float(t.lr[0])

    # -- rows -------------------------------------------------------------------------------------
    def load(self, rows: StepRows, fixed: bool) -> None:
        """Set the rows of the next steps, at fixed addresses if a graph was captured."""
        self._ask_about(rows)
        self.verbs.recall = self._recall
        if self._slots and self._recall.own and not self.collate.values:
            first = make_empty_tables(self.learners[0], self.method, rows, self._slots)
            runs = len(self.learners)
            self.collate.values = {k: v.repeat(runs, *[1] * v.ndim) for k, v in first.items()}
        if self._draws is not None and self.tensors.held is None:
            self.tensors.held = hold_exemplars(self.learners, rows, self._slots)
        self._teacher_outputs, self.verbs.stays = (), False
        places, new = row_tensors(self._rows), row_tensors(rows)
        # recordings remain valid for a shorter last stretch of steps
        real = has_no_padding(rows) and self._draws is None  # a memory may be empty
        if not shapes_fit(new, places) or not (self.verbs.padded or real):
            self._rows = clone_rows(rows)
            self.verbs.padded = not real
            self.tensors.batch = None
            self._forget()
        else:
            copy_into_(places, new)
        # a batch that stays has no stored values which follow the steps
        if fixed and not self.collate.feed.augment and not self._recall.rewrites:
            self.tensors.number.zero_()  # type: ignore[union-attr]
            self.tensors.batch = self.collate(select_step(self._rows, self.tensors.number))  # type: ignore[arg-type]
            self._fetches = False
            # teacher outputs are constant if the state, with its snapshots, does not change
            whole = self.training.accumulate == 1
            self.verbs.stays = self.caches_teachers and not self._follows and whole
        elif not self.collate.feed.on_device and not self.collate.latents:
            self._announce_all(move_rows_to_host(rows))

    def _announce_all(self, rows: StepRows) -> None:
        """Announce rows on disk step by step."""
        self._host, self._upcoming = rows, RowAnnouncer(self.collate.feed, rows, cut=False)

    def _fetch(self, number: int) -> None:
        """Copy the rows of the next step to fixed addresses."""
        rows = select_step(self._rows, self.tensors.number)  # type: ignore[arg-type]
        if self._host is not None:
            rows = select_step_on_host(rows, self._host, number)
        batch = self.collate(rows)
        if self.tensors.batch is None:
            self.tensors.batch = tree_map(torch.clone, batch)
        else:
            for place, value in zip(leaves(self.tensors.batch), leaves(batch), strict=True):
                place.copy_(value)

    def reseed(self, key: Tensor) -> None:
        """Set the keys [R, 1] of another epoch over the loaded rows."""
        if self._rows is not None:
            self._rows.key.copy_(key)
        batch = self.tensors.batch
        if batch is not None:
            batch.key.copy_(key[:, 0])
            for number, apart in enumerate(batch.memory):
                apart.key.copy_(torch.as_tensor(keys.fold(batch.key, number)))
        if self._host is not None:
            self._announce_all(self._host)

    # -- steps ------------------------------------------------------------------------------------
    @torch.no_grad()
    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        """Take the steps `start` to `stop` of the loaded rows, of runs that are `live` [R, S].

        `lr` [R, S] are the rates of these steps.
        """
        same = np.all(lr == lr[0]) and np.all(self._optimizer_steps == self._optimizer_steps[0])
        # of all loaded steps: where a checkpoint cuts them must not decide how they are rounded
        self._choose(bool(live.all()), bool(same))
        self._optimizer_steps += live[:, start:stop].sum(1)
        self.tensors.number.fill_(start)  # type: ignore[union-attr]
        for number in range(start, stop):
            self._set_rates(lr[:, number - start])
            self._now = live[:, number]
            if self.tensors.live is not None:
                self.tensors.live.copy_(torch.as_tensor(self._now))
            if self._upcoming is not None:
                self._upcoming(number)
            if self._fetches:
                self._fetch(number)
            if self._captures:
                self._replay()
            else:
                self._step()
            self._count()
        self._keep_near()

    def _replay(self) -> None:
        """Take a step by the recording of its kind."""
        due = self._due()
        if due not in self._captured:
            self._captured[due] = CapturedStep(self._step, self._pool)
        self._captured[due]()

    def _set_rates(self, lr: np.ndarray) -> None:
        """Set the rates [R] of the next step."""
        if not np.array_equal(lr, self._lr):  # copying to the device waits for it
            self.tensors.lr.copy_(torch.as_tensor(lr, dtype=self.tensors.lr.dtype))
            self._lr = lr.copy()

    def _keep_near(self) -> None:
        """Wait for the previous stretch, so that the host is at most two stretches ahead."""
        if self.tensors.vector.is_cuda:
            self._ends.append(torch.cuda.Event())
            self._ends[-1].record()
            if len(self._ends) > 1:
                self._ends.popleft().synchronize()

    def _choose(self, uniform: bool, fused: bool) -> None:
        """Choose the form of the next steps: whether all runs take them, at one rate."""
        t = self.tensors
        if (uniform, fused) == (t.live is None, self._fused):
            return
        self._forget()
        self._fused = fused
        t.live = None if uniform else torch.ones_like(t.lr, dtype=torch.bool)

    def _forget(self) -> None:
        """Discard all recordings: shapes or static choices changed."""
        self._captured.clear()
        if self._captures and self.tensors.vector.is_cuda:
            self._pool = torch.cuda.graph_pool_handle()  # shared: they never run concurrently

    # -- learners ---------------------------------------------------------------------------------
    def write_back(self) -> None:
        """Write the current weights into the learners, as views of the stacked ones."""
        t = self.tensors
        vector, opt = t.vector, t.opt
        if t.whole is not None:
            vector, opt = t.whole, self._whole_opt
            self.moving.put_(vector, t.vector)
            for name, value in t.opt.items():
                if name in VECTORS:
                    self.moving.put_(opt[name], value)
                else:
                    opt[name].copy_(value)
        for index, learner in enumerate(self.learners):
            learner.vector, learner.opt = vector[index], pick(opt, index)
            learner.buffers, learner.state = pick(t.buffers, index), pick(t.state, index)

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """Return the values [n, ...] of a run's first `items` slots."""
        return {k: table[run, :items].clone() for k, table in self.collate.values.items()}

    def _release(self) -> None:
        self._forget()


# -- a method's verbs, mapped over all runs that train in lockstep ---------------------------------

# gradients, and (terms, buffers, values, teacher outputs, what `gradient` kept)
MappedGradients = tuple[Any, Any]


class MappedVerbs:
    """``loss``, ``gradient`` and ``step`` of a method for R runs.

    No tensor of a run is kept here: all come as arguments, so that a step can be traced on others.

    Parameters
    ----------
    moving
        What is trained; the rest of the vector stands beside it.
    recall
        Of which rows of a step the method says what is remembered.
    latents
        Whether inputs are latents, which only the main network's top sees.
    accumulate, scales
        Number of parts of a batch whose gradients are added up, and whether losses are scaled.
    """

    def __init__(
        self, method: Method, networks: Networks, moving: TrainableSlices, *, phase: str,
        recall: Recall, latents: bool, accumulate: int = 1, scales: bool = False,
    ) -> None:  # fmt: skip
        self.method, self.networks, self.moving = method, networks, moving
        self.phase, self.recall, self.latents = phase, recall, latents
        self.accumulate, self.weighs = accumulate, scales or accumulate > 1
        self.projects = method.implements("gradient")
        self.touches: bool | None = None  # whether the loss writes penalties on the vector
        self.padded = True  # whether some rows of a batch may not count
        self.stays = False  # whether batch and state are the same in all steps

    # -- gradients: the step itself calls what `mapped` returns, so that whoever looks at the stack
    # inside of a loss finds few frames
    def mapped(self) -> Callable[..., Any]:
        """Return the mapped function from `arguments` to the input of `results`."""
        if self.projects:
            return vmap(self._project_one)
        return vmap(self._gradient_function(self._apart))

    def _gradient_function(self, apart: bool) -> Callable[..., Any]:
        """Return the gradient of the loss of one run; `apart`: penalties separately."""
        found = differentiate(self._loss_of_one, argnums=(0, 1) if apart else 0, has_aux=True)
        return partial(self._sum_over_parts, found) if self.weighs else found

    def _sum_over_parts(
        self, gradient: Callable[..., Any], weights: Tensor, beside: Any, buffers: Any, state: Any,
        batch: Batch, hyper: Any, scale: Any, *rest: Any,
    ) -> MappedGradients:  # fmt: skip
        """Return the gradient of a loss that is scaled, or of parts of the batch, added up."""
        now = {"buffers": buffers, "made": ()}

        def compute(part: Batch, weight: Tensor) -> LossGradient:
            found, (terms, after, values, now["made"], _) = gradient(
                weights, beside, now["buffers"], state, part, hyper, weight, *rest
            )
            before = now["buffers"]  # which a part of padding alone leaves as they are
            now["buffers"] = {k: torch.where(weight > 0, v, before[k]) for k, v in after.items()}
            return found, terms, values

        found, terms, values = sum_over_parts(compute, batch, self.accumulate, scale)
        return found, (terms, now["buffers"], values, now["made"], {})

    @property
    def _apart(self) -> bool:
        """Whether gradients of penalties and of data terms are computed separately."""
        return self.touches is not False and self.moving.is_everything

    def arguments(self, t: StepTensors, batch: Batch, answers: Any = ()) -> tuple[Any, ...]:
        """Return weights, what is passed with them, and all arguments of a loss.

        Beside weights that are all there are: the vector that penalties are on, or nothing. Beside
        those that move: the whole vector. `answers` are what older networks said to the batch.
        """
        beside: Any = t.vector if self._apart and not self.projects else ()
        beside = beside if t.whole is None else t.whole
        scale = t.opt.get("scale", ())
        return t.vector, beside, t.buffers, t.state, batch, t.hyper, scale, answers

    def results(self, found: Any) -> tuple[Gradients, tuple[Any, ...]]:
        """Unpack gradients, and the outputs of older networks."""
        gradient, (terms, buffers, values, made, kept) = found
        data, penalty = gradient if isinstance(gradient, tuple) else (gradient, None)
        if self.projects:  # the update direction beside the gradient
            flat = penalty
        else:
            flat = data if penalty is None else data + penalty
        return Gradients(flat, [], data, terms, buffers, values, kept), made

    def _loss_of_one(
        self, weights: Tensor, beside: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        weight: Any = (), answers: tuple[Any, ...] = (), names: tuple[str, ...] = (),
        remembers: bool = True, own: bool = True,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """Compute the loss of one run, or some of its terms, times a weight; and other outputs.

        `own`: the weights of the rows are those that the step has drawn.
        """
        method = replace_values(self.method, hyper)
        net = FunctionalNet(
            self.networks, weights, buffers, key=batch.key,
            penalty=weights.detach() if isinstance(beside, tuple) else beside,
            partial=None if self.moving.is_everything else (self.moving, beside),
            real=batch.row_weights if own and not self.padded else (),
        )  # fmt: skip
        net.phase = self.phase
        net.teacher_cache = TeacherCache(batch.x, state, answers) if self.stays else None
        if self.latents:
            net.main = "net.top"
        terms = check_loss_terms(method, method.loss(net, batch, state))
        if self.touches is None or net.touched:
            self.touches = net.touched
        total = add_terms(terms, names)
        if isinstance(weight, Tensor):
            total = total * weight
        found: tuple[dict[str, Tensor], ...] = ({},)
        if remembers and self.recall:  # of the pass that the loss made
            found = self.recall.ask(method, net, batch, state)
        kept = tuple(net.teacher_cache.made) if net.teacher_cache is not None else ()
        return total, (terms, net.buffers, found, kept, {})

    def _project_one(
        self, vector: Tensor, _: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        scale: Any = (), answers: tuple[Any, ...] = (),
    ) -> MappedGradients:  # fmt: skip
        """Compute the update direction by the method's `gradient`."""
        own: dict[str, Any] = {"buffers": buffers}

        def of(which: Batch, names: tuple[str, ...], at: Tensor | None) -> Tensor:
            remembers = which is batch
            weights = vector if at is None else at
            # row weights of a batch that the method makes may be 0
            drawn = any(which.w is w for w in batch.row_weights)
            rest = (own["buffers"], state, which, hyper, scale, (), names, remembers, drawn)
            apart = self.touches is not False
            found = self._gradient_function(apart)(weights, weights if apart else (), *rest)
            data, (terms, after, remembered, *_) = found
            penalty = None
            if isinstance(data, tuple):
                data, penalty = data
            if at is None:  # running statistics follow the current weights alone
                own["buffers"] = after
            if which is batch:
                own.setdefault("data", data)
                own.setdefault("rest", (terms, remembered))
            return torch.as_tensor(data if penalty is None else data + penalty)

        @cache
        def net() -> FunctionalNet:
            return FunctionalNet(
                self.networks, vector, buffers, key=keys.fold(batch.key, "gradient"),
                real=() if self.padded else batch.row_weights,
            )  # fmt: skip

        kept: dict[str, Tensor] = {}
        layout = self.networks.layout
        grad = Gradient(of, vector, layout, lambda other: net().given(other), kept)
        total = replace_values(self.method, hyper).gradient(grad, batch, state)
        total = check_update_direction(self.method, total, vector, "rest" in own)
        terms, remembered = own["rest"]
        return (own["data"], total), (terms, own["buffers"], remembered, (), kept)

    # -- what enters a memory ----------------------------------------------------------------------
    def admit(self, *stacked: Any) -> tuple[HeldRows, Tensor, State]:
        """Return what `admit_rows` returns for all runs; their options come last."""

        def one(*own: Any) -> Any:
            return admit_rows(replace_values(self.method, own[-1]), *own[:-1])

        found: tuple[HeldRows, Tensor, State] = vmap(one)(*stacked)
        return found

    # -- what follows a step ----------------------------------------------------------------------
    def after_step(
        self, due: Callable[[int], bool], weights: Any, beside: Any, state: Any,
        hyper: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return what the method's ``step`` makes of the weights, () if nothing, and all states.

        `due`: whether a period ends with it for some run, for `Update.every`.
        """
        found: tuple[Any, Any] = vmap(partial(self._step_of_one, due))(
            weights, beside, state, hyper
        )
        return found

    def _step_of_one(
        self, due: Callable[[int], bool], weights: Any, beside: Any, state: Any,
        hyper: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        before, after, data, taken = weights
        key, times, kept = beside
        layout = self.networks.layout
        update = Update(before, after, data, taken, due, key, times, kept, layout)
        found = replace_values(self.method, hyper).step(update, state)
        moved, state = check_step(self.method, found, after)
        return (() if moved is None else moved), state
