"""`TrainingStep`: one optimiser step of one run, or of R runs at once.

Read `TrainingStep._apply` first: mask, clip, update, average, the method's own step. Trainers
differ in where a gradient comes from (`single`: plain autograd; `lockstep`: mapped over runs) and
in what repeats the step (`captured`: a CUDA graph; `compiled`: fused kernels). All tensors of a
step are declared in `StepTensors`.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.engine.admission import Draws, HeldRows
from engram.engine.batches import Collator
from engram.engine.optim import Optimizer, OptimizerState, make_optimizer
from engram.engine.sampler import StepRows
from engram.engine.stored_values import Recall, rewrite_values_, write_slots_
from engram.engine.training import PRECISIONS, Training
from engram.errors import unknown
from engram.learner.batch import NO_VALUES, Batch
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import pick, stack, tree_map
from engram.memory import Exemplars
from engram.methods.method import Method, Phase, State, Terms


@dataclass
class StepTensors:
    """Every tensor that a step reads or writes, besides the data; R runs have a first axis R.

    A compiled step is traced on all of them. The learner's checkpoint holds `vector`, `buffers`,
    `state` and `opt`; `sums` and `first` are saved inside a task.
    """

    vector: Tensor  # [R?, M] the trained weights
    buffers: dict[str, Tensor]
    state: State
    opt: OptimizerState
    lr: Tensor  # [R?]
    taken: Tensor  # [R?] steps in this task
    began: Tensor  # [R?] those before this phase
    steps: Tensor  # [R?] planned steps of the phase
    epoch_steps: Tensor  # [R?] steps of an epoch
    sums: dict[str, Tensor] = field(default_factory=dict)  # [R?] of loss terms since the last log
    first: dict[str, Tensor] = field(default_factory=dict)  # [R?] loss terms of the first step
    whole: Tensor | None = None  # [R, P] where `vector` is the trained part of it
    live: Tensor | None = None  # [R] which runs take the step
    hyper: dict[Any, Tensor] = field(default_factory=dict)  # [R] options that differ between runs
    held: HeldRows | None = None  # what memories hold that their method fills
    number: Tensor | None = None  # [1] of the step among the loaded rows
    frozen: Tensor | None = None  # [F] entries that must not move, if all runs agree
    free: Tensor | None = None  # [R, M] which entries may move, if runs differ
    kept: Tensor | None = None  # values of entries that must not move, but which decay would
    kept_at: Tensor | None = None  # their positions, if all runs agree
    batch: Batch | None = None  # if it is the same in all steps, or fetched by the host
    rows: StepRows | None = None  # of one step, where they are selected outside the trace
    corrections: dict[str, Tensor] = field(default_factory=dict)  # of Adam, computed a step ahead

    def tree(self) -> dict[str, Any]:
        """Return all tensors as a tree; an absent one is an empty tuple."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: () if value is None else value for name, value in values.items()}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> StepTensors:
        """Return the tensors of a `tree`."""
        parts: dict[str, Any] = dict(tree)
        for name, value in tree.items():
            if isinstance(value, tuple) and not value:
                parts[name] = None
        return cls(**parts)


class Gradients(NamedTuple):
    """What a step computes before anything moves.

    The update direction is either `flat` or, for one run without further demands, `parts`.
    """

    flat: Tensor | None  # [R?, M]
    parts: list[Tensor]  # one for each trained parameter
    data: Tensor | None  # [R?, M] gradient without penalties
    terms: Terms  # [R?] of the loss
    buffers: dict[str, Tensor] | None = None  # None: the modules have them
    # [R?, B, ...] what `Method.remember` returned for the batch, and for its memory batches
    values: tuple[dict[str, Tensor], ...] = ({},)
    kept: dict[str, Tensor] = NO_VALUES  # [R?, ...] what `Method.gradient` kept for `Method.step`


class TrainingStep:
    """The tensors of one run or of R runs, and one training step on them.

    Parameters
    ----------
    learners, method, training, phase
        The runs, their method (of the first run), the settings, the name of the training phase.
    tensors, collate
        What a step reads and writes, and what makes its batches.
    fixed_addresses
        Whether new values are written into the old tensors, because a recording refers to these.
    before
        [R] steps that the runs took in earlier phases of the task.
    """

    tensors: StepTensors
    collate: Collator

    def __init__(
        self, learners: Sequence[RunLearner], method: Method, training: Training, *, phase: str,
        slots: int, fixed_addresses: bool, before: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.learners, self.method, self.training = list(learners), method, training
        self.phase, self.fixed_addresses = phase, fixed_addresses
        self.optimizer = make_optimizer(training, learners[0].networks)
        self._follows, self._projects = method.implements("step"), method.implements("gradient")
        self._slots, self._recall = slots, Recall.in_stage(method, learners[0].stage, bool(slots))
        self._before = np.array(before or [0] * len(learners))  # [R]
        self.counts = np.zeros(len(learners), dtype=int)  # [R] steps in this phase
        self._now = np.ones(len(learners), dtype=bool)  # [R] which runs take the present step
        self._draws: Draws | None = None  # from memories that the method fills
        self._periods: set[int] = set()  # that `Update.every` was asked for
        learners[0].networks.objective.was_called = False

    # -- what subclasses provide, besides the gradients --------------------------------------------
    @abstractmethod
    def write_back(self) -> None:
        """Write the current weights into the learners."""

    def _release(self) -> None:
        """Let go of recordings."""

    @abstractmethod
    def _follow(
        self, before: Tensor, data: Tensor, key: Tensor, kept: dict[str, Tensor]
    ) -> tuple[Tensor | None, State]:
        """Return what the method's `step` makes of the weights, None if nothing, and the state."""

    def _places(self, flat: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return trained weights and moments as the lists of tensors to update."""
        t = self.tensors
        return [t.vector], [t.opt["m"]], [t.opt["v"]] if "v" in t.opt else []

    @abstractmethod
    def _admit(
        self, rows: StepRows, key: Tensor, values: dict[str, Tensor]
    ) -> tuple[HeldRows, Tensor, State]:
        """Return what `admit_rows` returns for the rows of a step."""

    def _rate(self) -> float | Tensor | None:
        """Return the learning rate, if one fused update with it serves all runs."""
        return None

    # -- the step ----------------------------------------------------------------------------------
    def _apply(self, found: Gradients, batch: Batch, into: Any = ()) -> None:
        """Update weights, the method's state, averages, stored values and sums of losses.

        `into` are the slots of values to remember.
        """
        t, training, flat, key = self.tensors, self.training, found.flat, batch.key
        alive = self._alive(flat)
        if flat is not None:
            self._mask_(flat)
            flat = limit_gradient(flat, training.clip, training.clip_value)
        before = t.vector.clone() if self._follows or alive is not None else None
        self._update(flat, found.parts, before, alive)
        self._restore_frozen_()
        t.taken.add_(1 if alive is None else alive.to(t.taken.dtype))
        if self._follows and before is not None and found.data is not None:
            self._mask_(found.data)
            moved, state = self._follow(before, found.data, key, found.kept)
            t.state = self._assign(t.state, state, alive)
            self._move(moved, alive)
        if training.ema:
            average_weights_(t.opt, t.vector, training.ema, alive)
        if found.buffers is not None:
            t.buffers = self._assign(t.buffers, found.buffers, alive)
        if self._recall.rewrites:  # first, because a row that enters may take the place
            rewrite_values_(self.collate.values, batch, found.values, alive)
        if isinstance(into, Tensor):
            for name, value in found.values[0].items():
                write_slots_(self.collate.values[name], into, value)
        for name, term in found.terms.items():
            if name not in t.sums:
                t.sums[name] = torch.zeros_like(term)
            t.sums[name].add_(term if t.live is None else torch.where(t.live, term, 0.0))

    def _ask_about(self, rows: StepRows) -> None:
        """Ask the method to remember rows only while some may enter: after an epoch, none do."""
        enters = bool(self._slots) and rows.may_enter
        self._recall = Recall.in_stage(self.method, self.learners[0].stage, enters)

    # -- memories that the method fills ------------------------------------------------------------
    def draw_from(self, draws: Draws) -> None:
        """Let every step draw from memories which the method fills."""
        self._draws = draws

    def draw(self, rows: StepRows) -> StepRows:
        """Return the rows of a step with those that it draws from such a memory."""
        if self._draws is None or self.tensors.held is None:
            return rows
        return self._draws(rows, self.tensors.held)

    def _fill_memory(self, rows: StepRows, key: Tensor, values: dict[str, Tensor]) -> Any:
        """Offer the rows of a step to the memory; returns the slots that they entered."""
        t = self.tensors
        if self._draws is None or not isinstance(rows.passes, Tensor):  # no row passes by
            return rows.into
        held, into, state = self._admit(rows, key, values)
        t.held = self._assign(t.held, held, None)
        t.state = self._assign(t.state, state, None)
        return into

    def held_exemplars(self, run: int) -> Exemplars:
        """Return what the memory of a run holds that its method fills."""
        held = self.tensors.held
        if held is None:
            raise ValueError("load rows before asking what a memory holds")
        return (HeldRows(*pick(held, run)) if held.filled.ndim else held).exemplars()

    def _precision(self) -> Any:
        """Return the context in which a loss is computed."""
        _, dtype = PRECISIONS[self.training.precision]
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.tensors.vector.device.type, dtype=dtype)

    def _alive(self, flat: Tensor | None) -> Tensor | None:
        """Return which runs [R?] may move; None: all. Half precision skips overflown gradients."""
        t = self.tensors
        if "scale" not in t.opt or flat is None:
            return t.live
        finite = torch.isfinite(flat).all(-1)
        adapt_loss_scale_(t.opt, finite, t.live)
        flat.nan_to_num_(0.0, 0.0, 0.0)
        return finite if t.live is None else finite & t.live

    def _update(
        self, flat: Tensor | None, parts: list[Tensor], before: Tensor | None, alive: Tensor | None
    ) -> None:
        """Let the optimiser move the weights of all runs, or of those `alive`."""
        t, rate = self.tensors, self._rate()
        if rate is not None and alive is None:
            params, m, v = self._places(flat is not None)
            grads = parts if flat is None else self._pieces(flat)
            count = t.opt["t"]
            shared = count if count.ndim == 0 else count[0]
            self.optimizer.fused_(params, grads, m, v, shared, rate)
            if count.ndim:
                count.copy_(shared.expand_as(count).clone())
            return
        grad = self._flatten(parts) if flat is None else flat
        old = tree_map(torch.clone, self._moved_by_optimizer()) if alive is not None else {}
        self._update_each(grad)
        if alive is None or before is None:
            return
        t.vector.copy_(torch.where(alive.unsqueeze(-1), t.vector, before))
        for name, value in old.items():
            mask = alive if value.ndim == alive.ndim else alive.unsqueeze(-1)
            t.opt[name].copy_(torch.where(mask, t.opt[name], value))

    def _move(self, moved: Tensor | None, alive: Tensor | None) -> None:
        """Give the trained weights the values `moved`, except for frozen entries."""
        t = self.tensors
        if moved is None or moved is t.vector:
            return
        moved = moved.to(t.vector.dtype)
        if t.frozen is not None:
            moved = moved.index_copy(-1, t.frozen, t.vector.index_select(-1, t.frozen))
        elif t.free is not None:
            moved = torch.where(t.free, moved, t.vector)
        t.vector.copy_(moved if alive is None else torch.where(alive[..., None], moved, t.vector))

    def _moved_by_optimizer(self) -> dict[str, Tensor]:
        opt = self.tensors.opt
        return {name: opt[name] for name in ("m", "v", "t") if name in opt}

    def _update_each(self, grad: Tensor) -> None:
        """Update with a learning rate and a step count per run."""
        t = self.tensors
        self.optimizer.update_(t.vector, grad, t.opt, t.lr)

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Return the pieces of a flat gradient that belong to `_places`."""
        return [flat]

    def _flatten(self, parts: list[Tensor]) -> Tensor:
        return torch.cat([part.reshape(-1) for part in parts])

    # -- entries that must not move ----------------------------------------------------------------
    def _mask_(self, flat: Tensor) -> None:
        """Set the gradient of frozen entries to 0."""
        if self.tensors.frozen is not None:
            flat.index_fill_(-1, self.tensors.frozen, 0.0)
        elif self.tensors.free is not None:
            flat.mul_(self.tensors.free)

    def _restore_frozen_(self) -> None:
        """Undo what decay or old momentum did to frozen entries."""
        t = self.tensors
        if t.kept is None:
            return
        if t.kept_at is not None:
            t.vector.index_copy_(-1, t.kept_at, t.kept)
        elif t.free is not None:
            t.vector.copy_(torch.where(t.free, t.vector, t.kept))

    # -- new values --------------------------------------------------------------------------------
    def _assign(self, old: Any, new: Any, alive: Tensor | None) -> Any:
        """Return the tree that replaces `old`: `new`, for runs that are `alive`."""
        place = self.tensors.vector.untyped_storage().data_ptr()

        def choose(had: Tensor, value: Tensor) -> Tensor:
            if value is had:  # unchanged: save the write
                return had
            if alive is not None:
                mask = alive.reshape(*alive.shape, *[1] * (had.ndim - alive.ndim))
                value = torch.where(mask, value, had)
            if self.fixed_addresses:
                return had.copy_(value)
            # weights are updated in place, so what refers to them is copied
            is_live = value.untyped_storage().data_ptr() == place
            return (value.clone() if is_live else value).to(had.dtype)

        return tree_map(choose, old, new)

    def set_time(self, batch: Batch) -> Batch:
        """Return the batch with the time of this step, for `Batch.clock`."""
        t = self.tensors
        times = (t.taken, t.began, t.steps, t.epoch_steps, t.lr)
        if not batch.memory:
            return batch._replace(times=times)
        memory = tuple(one._replace(times=times) for one in batch.memory)
        return batch._replace(memory=memory, times=times)

    # -- static choices ----------------------------------------------------------------------------
    def _is_due(self, period: int) -> bool:
        """Whether the present step is a multiple of `period` for a run that takes it."""
        self._periods.add(period)
        done = self._before + self.counts + 1
        return bool((self._now & (done % period == 0)).any())

    def _due(self) -> tuple[int, ...]:
        """Return the known periods that end with the present step: each needs a recording."""
        return tuple(sorted(filter(self._is_due, list(self._periods))))

    def _count(self) -> None:
        """Count a step of the runs that took it."""
        self.counts += self._now
        t = self.tensors
        if not t.first:
            if self.phase == Phase.name:
                self.learners[0].networks.objective.check_called(type(self.method).__name__)
            t.first = {name: value.clone() for name, value in t.sums.items()}

    # -- log and checkpoints -----------------------------------------------------------------------
    @property
    def rewrites(self) -> bool:
        """Whether steps replace values that are stored with exemplars."""
        return self._recall.rewrites and bool(self.collate.values)

    @property
    def first(self) -> dict[str, Tensor] | None:
        """[R] loss terms of the phase's first step."""
        found = {name: value.reshape(-1) for name, value in self.tensors.first.items()}
        return found or None

    @property
    def steps(self) -> np.ndarray:
        """[R] steps taken in this phase."""
        return self.counts

    def take_log(self) -> dict[str, Tensor]:
        """Return the sums of the loss terms [R] since the last call, and reset them."""
        found = {name: value.clone().reshape(-1) for name, value in self.tensors.sums.items()}
        for value in self.tensors.sums.values():
            value.zero_()
        return found

    def _saved(self) -> dict[str, Any]:
        t = self.tensors
        held = {} if t.held is None else {"held": t.held}
        return {"sums": t.sums, "first": t.first, "values": self.collate.values, **held}

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what an interrupted run needs besides its learner."""
        saved = self._saved()
        return dict(pick(saved, run)) if self.tensors.taken.ndim else saved

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """Restore the states of all runs, with the number of steps each has taken."""
        saved = stack(states) if self.tensors.taken.ndim else states[0]
        t = self.tensors
        t.sums, t.first, self.collate.values = saved["sums"], saved["first"], saved["values"]
        t.held = HeldRows.from_tree(saved["held"]) if "held" in saved else None
        self.counts = np.array(steps, dtype=int)
        self.count_from(self._before)

    def count_from(self, before: Sequence[int] | np.ndarray) -> None:
        """Count on from the steps [R] of earlier phases of the task."""
        self._before = np.array(before)
        t = self.tensors
        t.began.copy_(torch.as_tensor(self._before).reshape(t.began.shape))
        t.taken.copy_(torch.as_tensor(self._before + self.counts).reshape(t.taken.shape))

    def plan(self, steps: np.ndarray, epoch_steps: np.ndarray) -> None:
        """Note how many steps [R] the phase and each of its epochs shall have."""
        t = self.tensors
        t.steps.copy_(torch.as_tensor(steps).reshape(t.steps.shape))
        t.epoch_steps.copy_(torch.as_tensor(epoch_steps).reshape(t.steps.shape))

    @contextlib.contextmanager
    def scored_weights(self) -> Iterator[None]:
        """Let the learners have the weights to be scored: their own, or the average of these."""
        self.write_back()
        own = [one.vector for one in self.learners]
        for one in self.learners:
            one.vector = one.opt.get("average", one.vector)
        try:
            yield
        finally:
            for one, vector in zip(self.learners, own, strict=True):
                one.vector = vector

    def close(self) -> None:
        """Finish the phase: the learners have the weights from which they go on."""
        self._release()
        self.write_back()
        if self.training.ema:
            for one in self.learners:
                one.vector = one.opt["average"].clone()

    def finite(self) -> Tensor:
        """Return [R] whether all weights are finite."""
        return torch.isfinite(self.tensors.vector).all(-1).reshape(-1)


def make_counters(
    shape: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four counters of steps among `StepTensors`."""
    zeros = (torch.zeros(shape, dtype=torch.long, device=device) for _ in range(4))
    taken, began, steps, epoch_steps = zeros
    return taken, began, steps, epoch_steps


# -- pieces of a step ------------------------------------------------------------------------------


def add_terms(terms: Terms, names: Sequence[str] = ()) -> Tensor:
    """Add up the loss terms of these names, those that there are; of all if none is given.

    Examples
    --------
    >>> terms = {"task": torch.tensor(1.0), "penalty": torch.tensor(2.0)}
    >>> float(add_terms(terms)), float(add_terms(terms, ["penalty", "memory"]))
    (3.0, 2.0)
    >>> add_terms(terms, ["tasks"])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: grad: unknown name 'tasks', did you mean 'task'? ...
    """
    chosen = [term for name, term in terms.items() if not names or name in names]
    if not chosen:
        raise unknown("grad", names[0], list(terms))
    return sum(chosen[1:], chosen[0])  # from 0 on, every step would have a further node


def limit_gradient(flat: Tensor, norm: float, value: float) -> Tensor:
    """Return gradients [..., P], each entry within `value`, each run's norm at most `norm`.

    A bound of 0 is none.

    Examples
    --------
    >>> limit_gradient(torch.tensor([3.0, -4.0]), norm=1.0, value=0.0).tolist()
    [0.600..., -0.800...]
    >>> limit_gradient(torch.tensor([3.0, -4.0]), norm=0.0, value=3.5).tolist()
    [3.0, -3.5]
    """
    if value:
        flat = flat.clamp(-value, value)
    if norm:
        length = flat.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        flat = flat * (norm / length).clamp(max=1.0)
    return flat


def average_weights_(
    opt: OptimizerState, vector: Tensor, decay: float, alive: Tensor | None
) -> None:
    """Move the average [R?, M] of the weights towards `vector`; at first, set it."""
    average = opt["average"]
    share = vector.new_full((), 1.0 - decay)  # in the precision of the weights
    weight = torch.where(opt["t"] <= 1, torch.ones_like(share), share)
    if alive is not None:
        weight = torch.where(alive, weight, torch.zeros_like(share))
    average.add_((vector - average) * weight.unsqueeze(-1))


GROWTH_INTERVAL, GROWTH, BACKOFF = 2000, 2.0, 0.5  # those of torch.amp.GradScaler


def adapt_loss_scale_(opt: OptimizerState, finite: Tensor, live: Tensor | None) -> None:
    """Halve the loss scale of runs whose gradient overflowed; double it after many that did not."""
    scale, streak = opt["scale"], opt["streak"]
    longer = torch.where(finite, streak + 1, 0)
    grown = longer >= GROWTH_INTERVAL
    factor = torch.where(finite, torch.where(grown, GROWTH, 1.0), BACKOFF)
    after, longer = scale * factor, torch.where(grown, 0, longer)
    if live is not None:
        after, longer = torch.where(live, after, scale), torch.where(live, longer, streak)
    scale.copy_(after)
    streak.copy_(longer)


# gradients, loss terms, values to remember
LossGradient = tuple[Any, Terms, tuple[dict[str, Tensor], ...]]


def sum_over_parts(
    compute: Callable[[Batch, Tensor], LossGradient], batch: Batch, count: int, scale: Any
) -> LossGradient:
    """Add up the gradients of `count` parts of a batch, of a loss that is scaled up meanwhile.

    ``compute(part, weight)`` differentiates the loss of a part times its weight. `scale` is a
    tensor [], or anything else for 1.
    """
    scaled = isinstance(scale, Tensor)
    gradient, terms, values = None, dict[str, Tensor](), []
    for part, share in split_batch(batch, count):
        found, own, kept = compute(part, share * scale if scaled else share)
        gradient = found if gradient is None else tree_map(torch.add, gradient, found)
        terms = {name: terms.get(name, 0.0) + share * term for name, term in own.items()}
        values.append(kept)
    if scaled:
        gradient = tree_map(lambda leaf: leaf / scale, gradient)
    return gradient, terms, tuple(interleave(part) for part in zip(*values, strict=True))


def split_batch(batch: Batch, count: int) -> list[tuple[Batch, Tensor]]:
    """Split a batch [B] into batches of every `count`-th row, with their shares of the weight.

    Means over the rows of the batch are the means of the parts, weighted by their shares.
    """
    if count == 1:
        return [(batch, torch.ones_like(batch.w[0]))]
    total, found = batch.w.sum(-1), []
    for place in range(min(count, len(batch.x))):
        part = batch.select(slice(place, None, count))
        weight = part.w.sum(-1)
        # a part of padding alone: any weights do, because its share is 0
        w, key = torch.where(weight > 0, part.w, 1.0), keys.fold(batch.key, "accumulate", place)
        found.append((part._replace(w=w, key=torch.as_tensor(key)), weight / total))
    return found


def interleave(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Undo the split of `split_batch` in named values [b, ...].

    Examples
    --------
    >>> interleave([{"a": torch.tensor([0, 2, 4])}, {"a": torch.tensor([1, 3])}])
    {'a': tensor([0, 1, 2, 3, 4])}
    """
    if len(parts) == 1:
        return parts[0]
    count, lengths = len(parts), [len(next(iter(part.values()), ())) for part in parts]
    starts = np.cumsum([0, *lengths])
    order = [int(starts[i % count]) + i // count for i in range(sum(lengths))]
    return {
        name: torch.cat([part[name] for part in parts])[torch.tensor(order, device=value.device)]
        for name, value in parts[0].items()
    }


def positions(mask: Tensor) -> Tensor | None:
    """Return the positions where a mask [M] is true; None if there are none."""
    places = mask.nonzero()[:, 0]
    return places if len(places) else None


def is_fusable(optimizer: Any, vector: Tensor) -> bool:
    """Whether torch's fused optimisers do the arithmetic in the precision of the weights.

    On CUDA they take the learning rate in float32, which would round a float64 run.
    """
    return isinstance(optimizer, Optimizer) and not (
        vector.is_cuda and vector.dtype != torch.float32
    )
