"""`Sampler`: which rows of the task and the memory each step of an epoch sees, with reservoirs and
rows that a method has set aside, as a pure function of (seed, stage, epoch, step).

Begin with `build_sampler`, which stacks the `TrainingRows` of all runs to one table; a `Sampler`
selects from it the `StepRows` of an epoch, [R, S, B]: R runs, S steps, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.batch import TrainingRows
from engram.learner.learner import RunLearner
from engram.memory.exemplars import Exemplars
from engram.methods.method import Method, Phase, ReplaySpec

EPOCHS_AHEAD = 64
STEPS_PER_STRETCH = 200  # iterations sampled at once
ROUND = 64  # full batches are padded to multiples for compiled steps: fewer shapes to compile
SIZE_OF_BATCH = -1  # as many memory rows as the batch has rows of the task


class StepRows(NamedTuple):
    """The rows of S steps of R runs or, without these axes, of one step or one run.

    A step has a main batch and, depending on the method's replay, separate memory batches.
    """

    main: TrainingRows  # [R?, S?, B]
    key: Tensor  # [R?, S?] random key of the step
    apart: tuple[TrainingRows, ...] = ()  # separate memory batches
    into: Tensor | tuple[()] = ()  # [R?, S?, B] slot that a row of the main batch enters, or -1
    passes: Tensor | tuple[()] = ()  # [R?, S?, B] whether a row is offered to `Method.admit`

    @property
    def lengths(self) -> tuple[int, ...]:
        """[S] rows of the longest run's main batch."""
        return tuple(self.main.real.amax(0).tolist())

    @property
    def may_enter(self) -> bool:
        """Whether rows pass by a memory that is renewed with every step."""
        return any(isinstance(one, Tensor) for one in (self.into, self.passes))

    @property
    def live(self) -> np.ndarray:
        """[R, S] whether a run has any row at that step."""
        return np.asarray((self.main.real > 0).cpu().numpy())


class Sampler:
    """Sample the epochs of one phase of a task, or stretches of its iterations."""

    def __init__(
        self,
        main: TrainingRows,
        memory: Sequence[TrainingRows],
        *,
        seeds: Sequence[int],
        stage: int,
        batch_size: int,
        incomplete_batch: str,
        pair: bool,
        memory_size: int,
        dtype: torch.dtype,
        reservoir: Reservoir | None = None,
        iterations: int = 0,
        steps_per_epoch: int = 0,
        admits: int = 0,
        draws: int = 1,
    ) -> None:
        self.admits, self.draws = admits, draws  # slots of a memory that the method fills
        self.main, self.memory, self.stage = main, list(memory), stage
        self._real = main.real  # [R]
        self.device, self.dtype, self.incomplete_batch, self.pair = (
            main.rows.device,
            dtype,
            incomplete_batch,
            pair,
        )
        self.batch = min(batch_size, main.length) if batch_size else main.length
        self.memory_size = memory_size  # 0: all items, in order; or SIZE_OF_BATCH
        self.seeds = torch.tensor(list(seeds), device=self.device)
        self.whole = self.batch >= main.length  # one batch is the epoch: no order to draw
        self._keys: tuple[int, keys.Key] = (-1, 0)
        self.reservoir = reservoir  # the memory is a reservoir that changes with every step
        self.total = iterations  # 0: epochs are sampled
        self.epoch_steps = steps_per_epoch  # 0: an epoch is a pass over the rows
        self._first: StepRows | None = None  # the rows of every epoch, where they are the same

    # -- epochs and stretches, to be called in order -----------------------------------------------
    @property
    def chunks(self) -> int:
        """Number of stretches of iterations, 0 if epochs are sampled."""
        return -(-self.total // STEPS_PER_STRETCH)

    def __call__(self, number: int) -> StepRows:
        """Return the rows of an epoch, or of a stretch of iterations; to be called in order."""
        if self.total:
            start = number * STEPS_PER_STRETCH
            return self.iterations(start, min(start + STEPS_PER_STRETCH, self.total))
        if self.epoch_steps:
            return self.iterations(number * self.epoch_steps, (number + 1) * self.epoch_steps)
        if not self.fixed:
            return self.epoch(number)
        self._first = self._first or self.epoch(0)
        return self.reseed_rows(self._first, number) if number else self._first

    def skip(self, count: int) -> None:
        """Skip `count` epochs or stretches, whose rows enter the reservoir."""
        for number in range(count if self.reservoir is not None else 0):
            self(number)

    # -- single epochs and stretches ---------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Number of slots of a memory that is renewed with every step, 0 for others."""
        return self.admits if self.reservoir is None else self.reservoir.slots

    def drawn_rows(self) -> tuple[int, Tensor]:
        """Return the number of memory rows drawn per step, and how many [R] each run uses."""
        size, wanted = self._wanted()
        return size, wanted.sum(-1)[:, 0]

    def reservoir_after(self, run: int, before_task: Exemplars) -> Exemplars:
        """Return the reservoir of a run after the task, given its exemplars before it."""
        if self.reservoir is None:
            return before_task
        count, seen = int(self.reservoir.filled[run]), int(self.reservoir.seen[run])
        holder = self.reservoir.holder[run, :count].cpu()
        new, place = holder >= 0, holder.clamp(min=0)
        source = (self.main.rows, self.main.stages, self.main.y[..., 0])
        parts = []
        for before, items in zip(before_task[:3], source, strict=True):
            old = torch.full((count,), -1)
            old[: len(before)] = before[:count]
            parts.append(torch.where(new, items[run].cpu()[place], old))
        return Exemplars._make([*parts, torch.arange(count), seen])

    @property
    def fixed(self) -> bool:
        """Whether every epoch has exactly the same rows."""
        drawn = bool(self.memory) and bool(self.memory_size)
        changes = self.reservoir is not None or bool(self.admits)
        passes = not self.total and not self.epoch_steps  # an epoch is a pass over the rows
        return self.whole and not drawn and not changes and passes

    def reseed_rows(self, rows: StepRows, epoch: int) -> StepRows:
        """Return the rows of a fixed epoch with the keys of another epoch."""
        part, place = divmod(epoch, EPOCHS_AHEAD)
        if self._keys[0] != part:  # many epochs at once, since a key may cost more than a step
            epochs = torch.arange(EPOCHS_AHEAD, device=self.device) + part * EPOCHS_AHEAD
            self._keys = part, keys.fold(self.seeds[:, None], "step", self.stage, epochs, 0)
        return rows._replace(key=self._keys[1][:, place : place + 1])  # type: ignore[index]

    @property
    def full_batches(self) -> np.ndarray:
        """[R] steps of an epoch among iterations, which have full batches only."""
        return np.asarray(torch.clamp(self._real // self.batch, min=1).cpu().numpy())

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_steps or self._steps_per_pass

    @property
    def _steps_per_pass(self) -> int:
        if self.incomplete_batch == "drop":
            return max(1, self.main.length // self.batch)
        return -(-self.main.length // self.batch)

    def epoch(self, epoch: int) -> StepRows:
        """Sample one pass over the rows of every run."""
        steps, size = self._steps_per_pass, self.batch
        place = torch.arange(steps * size, device=self.device).expand(len(self.seeds), -1)
        epochs = torch.full((len(self.seeds), steps), epoch, device=self.device)
        order = self._permutations(torch.full_like(self.seeds, epoch))  # [R, n]
        count = self._real[:, None]
        own = count.clamp(max=size)  # a task smaller than the batch is one batch of its own size
        if self.incomplete_batch == "wrap":
            index, real = order.gather(1, place % count), place < -(-count // own) * own
        else:
            limit = count if self.incomplete_batch == "keep" else count // own * own
            index, real = order.gather(1, place.clamp(max=self.main.length - 1)), place < limit
        inside = torch.arange(steps, device=self.device).expand(len(self.seeds), -1)
        index, real = index.view(-1, steps, size), real.view(-1, steps, size)
        return self._step_rows(index, real, epochs, inside)

    def iterations(self, start: int, stop: int) -> StepRows:
        """Sample iterations: consecutive shuffled passes without incomplete last batches."""
        size, device = self.batch, self.device
        per = torch.clamp(self._real // size, min=1)[:, None]  # [R, 1] steps per pass
        step = torch.arange(start, stop, device=device)[None]  # [1, S]
        epochs, inside = step // per, step % per  # [R, S]
        first = epochs[:, :1]
        span = int((epochs[:, -1:] - first).max()) + 1
        orders = self._permutations(first + torch.arange(span, device=device))  # [R, E, n]
        place = inside[..., None] * size + torch.arange(size, device=device)  # [R, S, B]
        which = (epochs - first)[..., None] * self.main.length
        flat = which + place.clamp(max=self.main.length - 1)
        index = orders.flatten(1).gather(1, flat.flatten(1)).view_as(flat)
        return self._step_rows(index, place < self._real[:, None, None], epochs, inside)

    def _permutations(self, epochs: Tensor) -> Tensor:
        """Draw the orders [R, ..., n] of the rows in epochs [R, ...]."""
        places = torch.arange(self.main.length, device=self.device).expand(*epochs.shape, -1)
        if self.whole:
            return places
        each = (-1, *[1] * (epochs.ndim - 1))
        real = self._real.view(each)
        key = keys.fold(self.seeds.view(each), "order", self.stage, epochs)
        drawn = keys.permutation(key, self.main.length, real)
        # rows that fit into one batch are not shuffled, in lockstep as in a single run
        return torch.where(real[..., None] <= self.batch, places, drawn)

    def _step_rows(self, index: Tensor, real: Tensor, epochs: Tensor, inside: Tensor) -> StepRows:
        key = keys.fold(self.seeds[:, None], "step", self.stage, epochs, inside)  # [R, S]
        main = self._choose(self.main, index, real)
        into: Tensor | tuple[()] = ()
        # rows pass by once, in the first epoch
        passes = real & (epochs == 0)[..., None]
        if self.admits:
            passes = passes & (main.y[..., 0] >= 0)
            none = not bool(passes.any())  # after the first epoch
            return StepRows(main, key, passes=() if none else passes)  # type: ignore[arg-type]
        if self.reservoir is None:
            apart = tuple(self._memory_batch(t, key, j) for j, t in enumerate(self.memory))
        else:
            now = self.reservoir
            some = bool(passes.any())
            held = now.insert(index, passes) if some else now.unchanged(*index.shape[1:])
            apart = tuple(self._reservoir_batch(held, key, j) for j in range(now.draws))
            into = held.into
        if self.pair and apart:
            main, into = join_memory_rows(apart[0], main, into)
            apart = ()
        return StepRows(main, key, apart, into)  # type: ignore[arg-type]

    def _memory_batch(self, source: TrainingRows, key: keys.Key, number: int) -> TrainingRows:
        runs, steps = key.shape  # type: ignore[union-attr]
        if not self.memory_size:
            index = torch.arange(source.length, device=self.device).expand(runs, steps, -1)
            return self._choose(source, index, index < source.real[:, None, None])
        size, wanted = self._wanted()
        count = source.real[:, None].expand(runs, steps)
        index = keys.randint(keys.fold(key, "memory", number), count, size)
        return self._choose(source, index, wanted.expand(runs, steps, size))

    def _wanted(self) -> tuple[int, Tensor]:
        """Return the number of memory rows drawn per step, and which of them each run uses."""
        size = self.batch if self.memory_size == SIZE_OF_BATCH else self.memory_size
        own = torch.full_like(self._real, size)
        if self.memory_size == SIZE_OF_BATCH:
            own = self._real.clamp(max=size)  # a small task's batch is small, so is its share
        return size, torch.arange(size, device=self.device) < own[:, None, None]

    def _reservoir_batch(self, held: ReservoirContents, key: keys.Key, number: int) -> TrainingRows:
        """Draw memory rows of each step from the reservoirs at that step."""
        size, wanted = self._wanted()
        drawn = keys.fold(key, "memory", number)
        slot = keys.randint(drawn, held.filled.clamp(min=1), size)  # [R, S, m]
        there = (held.filled > 0)[..., None] & wanted
        holder = held.holder.gather(2, slot)
        batch = self._choose(self.main, holder.clamp(min=0), there)
        if self.memory:  # rows of earlier tasks, by slot
            memory = self.memory[0]
            old = self._choose(memory, slot.clamp(max=memory.length - 1), there)
            new = holder >= 0
            batch = TrainingRows(*(
                torch.where(new.unsqueeze(-1) if a.ndim > new.ndim else new, a, b)
                for a, b in zip(batch, old, strict=True)
            ))  # fmt: skip
        return batch._replace(slot=slot)

    def _choose(self, source: TrainingRows, index: Tensor, real: Tensor) -> TrainingRows:
        """Select rows of a table at positions [R, S, B], with weight 0 for those not `real`."""
        found = source.gather(index)
        return found._replace(w=real.to(self.dtype) * found.w.to(self.dtype))


def join_memory_rows(
    memory: TrainingRows, main: TrainingRows, beside: Tensor | tuple[()]
) -> tuple[TrainingRows, Tensor | tuple[()]]:
    """Join memory rows and rows of the task, with all padding at the end.

    `beside` are slots or a mask of the rows of the task: -1 or False for those of the memory. Then
    a short last batch is a prefix, and a row has the same position as in a single run.
    """
    there = main.w.amax(-1, keepdim=True)  # [R, S, 1] whether the run takes this step
    memory = memory._replace(w=memory.w * there)
    joined = memory.join(main)
    front = (joined.w == 0).to(torch.uint8).argsort(dim=-1, stable=True)  # [R, S, B]
    if isinstance(beside, Tensor):
        none = beside.new_full(memory.slot.shape, False if beside.dtype == torch.bool else -1)
        beside = torch.cat([none, beside], -1).gather(-1, front)
    return joined.gather(front), beside


def pad_runs(
    items: Sequence[TrainingRows], device: torch.device, *, multiple: int = 1
) -> TrainingRows:
    """The rows [n] of several runs as one table [R, n], n being a multiple of so many rows.

    Shorter runs repeat their first row with the weight 0.
    """
    longest = max(one.length for one in items)
    longest += -longest % multiple

    def padded(one: TrainingRows) -> TrainingRows:
        if one.length == longest:
            return one
        place = torch.arange(longest)
        found = one.take(place.where(place < one.length, 0))
        return found._replace(w=found.w.where(place < one.length, 0.0))

    tables = zip(*map(padded, items), strict=True)
    return TrainingRows(*(torch.stack(leaves).to(device) for leaves in tables))


def balance_classes(items: TrainingRows) -> TrainingRows:
    """The same with weights that give every class (the first label counts) the same total, mean 1.

    Examples
    --------
    >>> n = torch.zeros(3, dtype=torch.long)
    >>> rows = TrainingRows(n, n, torch.tensor([[0], [0], [1]]), torch.ones(3), n)
    >>> balance_classes(rows).w.tolist()
    [0.75, 0.75, 1.5]
    """
    labels = items.y[:, 0].clamp(min=0)
    inverse = 1 / torch.bincount(labels)[labels]
    return items._replace(w=inverse * (len(labels) / inverse.sum()))


# -- a reservoir that changes while a task is learnt -----------------------------------------------


class ReservoirContents(NamedTuple):
    """What R reservoirs of M slots hold before each of S steps, and where its rows go after it."""

    holder: Tensor  # [R, S, M] place of the row among the task's rows; -1: an earlier task's
    filled: Tensor  # [R, S] slots in use
    into: Tensor  # [R, S, B] slot that each row of the step enters and still holds after it, or -1


class Reservoir:
    """Lets the rows of a task pass by, chunk of steps after chunk of steps.

    A reservoir looks at no network: which row ends in which slot follows from the order in which
    rows pass by. So what it holds at every step is known when the steps are sampled; there is no
    state on the device, and a run has the same memory alone, in lockstep and after a resume.

    Parameters
    ----------
    seen
        [R] rows that passed by before the task.
    slots
        M, slots of each reservoir.
    seeds
        [R] seeds of the runs.
    draws
        Batches drawn from the reservoir per step.
    """

    def __init__(self, seen: Tensor, slots: int, seeds: Tensor, draws: int = 1) -> None:
        self.slots, self.draws = slots, draws
        self.seen = seen.clone()  # grows as rows pass by
        self._key = keys.fold(seeds, "memory", "reservoir")
        self.holder = seeds.new_full(
            (len(seeds), slots), -1
        )  # [R, M] as `ReservoirContents.holder`

    @property
    def filled(self) -> Tensor:
        """[R] slots in use now."""
        return self.seen.clamp(max=self.slots)

    def unchanged(self, steps: int, rows: int) -> ReservoirContents:
        """Nothing passes by: the first epoch is over."""
        runs = len(self.seen)
        return ReservoirContents(
            self.holder[:, None].expand(-1, steps, -1), self.filled[:, None].expand(-1, steps),
            self.holder.new_full((), -1).expand(runs, steps, rows),
        )  # fmt: skip

    def insert(self, index: Tensor, arrives: Tensor) -> ReservoirContents:
        """Rows `index` [R, S, B] of the task pass by where `arrives`."""
        runs, steps, size = index.shape
        here = arrives.flatten(1)  # [R, n]
        place = self.seen[:, None] + here.long().cumsum(1) - 1  # the how-manieth row ever, from 0
        drawn = keys.randint(keys.fold(self._key[:, None], place), (place + 1).clamp(min=1))  # type: ignore[index]
        target = torch.where(place < self.slots, place, drawn)
        enters = here & (target < self.slots)
        arrival = torch.arange(steps * size, device=index.device).expand(runs, -1)
        # [R, S + 1, M] the last arrival in each slot within the step before
        last = index.new_full((runs, (steps + 1) * self.slots), -1)
        where = (arrival // size + 1) * self.slots + torch.where(enters, target, 0)
        last.scatter_reduce_(1, where, torch.where(enters, arrival, -1), "amax")
        last = last.view(runs, steps + 1, self.slots)
        stays = enters & (last.flatten(1).gather(1, where) == arrival)
        into = torch.where(stays, target, -1).view(runs, steps, size)
        newest = last.cummax(1).values  # arrivals are numbered in time
        rows = index.flatten(1).gather(1, newest.clamp(min=0).flatten(1)).view_as(newest)
        holder = torch.where(newest >= 0, rows, self.holder[:, None])
        count = here.view(runs, steps, size).sum(-1).cumsum(1)
        before = self.seen[:, None] + torch.cat([torch.zeros_like(count[:, :1]), count[:, :-1]], 1)
        self.holder, self.seen = holder[:, -1].clone(), self.seen + count[:, -1]
        return ReservoirContents(holder[:, :-1], before.clamp(max=self.slots), into)


# -- which rows a phase trains on ------------------------------------------------------------------


def build_sampler(
    learners: Sequence[RunLearner], method: Method, training: Training, phase: Phase | None = None,
    number: int = 0, *, compile: bool = False,
) -> Sampler:  # fmt: skip
    """The sampler of a phase, the `number`-th of the task that the learners are in."""
    stage, device, phase = learners[0].stage, learners[0].device, phase or Phase()
    replay, multiple = method.replay(stage), ROUND if compile else 1
    if phase.rows != "task":
        replay = ReplaySpec("union") if phase.rows == "both" else ReplaySpec()
    if phase.rows == "memory":
        items = [_memory_only(one, method) for one in learners]
    else:
        items = [_task_items(one, replay, stage) for one in learners]
    items = [_leave_out(one, own) for one, own in zip(learners, items, strict=True)]
    rows = multiple if not training.rows_per_step else 1
    if training.class_weights:
        items = [balance_classes(one) for one in items]
    main = pad_runs(items, device, multiple=rows)
    memory, size = _memories_to_replay(learners, replay, stage, multiple)
    seeds, reservoir = [one.seed for one in learners], None
    if number:  # another phase draws otherwise
        seeds = [int(keys.fold(seed, "phase", number)) for seed in seeds]
    admits = 0
    if replay.renew == "step" and method.implements("admit"):
        admits, memory, size = _count_slots(learners[0], method), [], replay.size or SIZE_OF_BATCH
    elif replay.renew == "step":
        size = replay.size or SIZE_OF_BATCH
        seen = torch.tensor([one.exemplars.seen for one in learners], device=device)
        own = torch.tensor([one.seed for one in learners], device=device)
        reservoir = Reservoir(seen, _reservoir_slots(method), own, replay.draws)
    return Sampler(
        main, memory, seeds=seeds, stage=stage, reservoir=reservoir,
        batch_size=training.rows_per_step, incomplete_batch=training.incomplete_batch,
        pair=replay.kind == "pair", memory_size=size, dtype=learners[0].feed.dtype,
        iterations=training.length(stage)[1], steps_per_epoch=training.steps_per_epoch,
        admits=admits, draws=replay.draws,
    )  # fmt: skip


def _count_slots(learner: RunLearner, method: Method) -> int:
    """Return the slots of a memory that the method fills row by row; raise if it cannot."""
    name, memory = type(method).__name__, method.memory
    if memory is None or memory.policy != "admit":
        wanted = f"the policy 'admit' for {name}, as in Memory(total=500, policy='admit'), because"
        raise bad("memory", f"{wanted} the method has a verb admit", memory)
    if not learner.feed.on_device:
        wanted = f"'task' for {name} where rows stay on disk: which ones a step draws is known to"
        raise bad("replay.renew", f"{wanted} the device alone", "step")
    return memory.total or 0


def _task_items(learner: RunLearner, replay: ReplaySpec, stage: int) -> TrainingRows:
    """Rows of the main batch: the task's own, with exemplars or earlier tasks where replayed so."""
    own, exemplars = learner.task.train, learner.exemplars
    if replay.kind not in ("past", "complete"):
        mine = learner.items()
        if replay.kind != "union" or not len(exemplars):
            return mine
        return mine.join(learner.items(exemplars.rows, exemplars.stages))
    rows, stages = [own], [torch.full_like(own, stage)]
    for k in range(stage):
        rows.append(learner.stream.tasks[k].train)
        stages.append(torch.full_like(rows[-1], k))
    if replay.kind == "complete":
        return learner.complete_items(torch.cat(rows), torch.cat(stages))
    return learner.items(torch.cat(rows), torch.cat(stages))


def _memory_only(learner: RunLearner, method: Method) -> TrainingRows:
    exemplars = learner.exemplars
    if not len(exemplars):
        name = type(method).__name__
        raise bad("exemplars", f"some for a phase on the memory (fill it in {name}.start)", "none")
    return learner.items(exemplars.rows, exemplars.stages)


def _memories_to_replay(
    learners: Sequence[RunLearner], replay: ReplaySpec, stage: int, multiple: int
) -> tuple[list[TrainingRows], int]:
    """Memories to draw from at every step, and how many rows (0: all of them)."""
    if stage == 0 or not all(len(one.exemplars) for one in learners):
        return [], 0
    if replay.kind not in ("pair", "separate", "tasks"):
        return [], 0
    device = learners[0].device
    items = [one.items(one.exemplars.rows, one.exemplars.stages) for one in learners]
    if replay.kind == "tasks":
        past = [
            [
                _leave_out(one, own.take(own.stages == k))
                for one, own in zip(learners, items, strict=True)
            ]
            for k in range(stage)
        ]
        return [pad_runs(one, device, multiple=multiple) for one in past], replay.size
    if replay.renew == "task":
        items = [_leave_out(one, own) for one, own in zip(learners, items, strict=True)]
    elif any(_leave_out(one, own) is not own for one, own in zip(learners, items, strict=True)):
        wanted = "rows of the task only, where replay renews the memory in every step"
        raise bad("learner.set_aside", wanted, "exemplars")
    copies = replay.draws if replay.renew == "task" else 1
    return [pad_runs(items, device)] * copies, replay.size or SIZE_OF_BATCH


def _reservoir_slots(method: Method) -> int:
    """Slots of a reservoir that is renewed with every step."""
    memory = method.memory
    if memory is None or memory.policy != "reservoir":
        wanted = f"a reservoir for {type(method).__name__}, as in Memory(total=500, "
        raise bad("memory", wanted + "policy='reservoir'), because replay has renew='step'", memory)
    return memory.total or 0


def check_budget(learner: RunLearner, method: Method) -> None:
    """Refuse more exemplars than the method declared."""
    memory, stage = method.memory, learner.stage
    limit: int | None = 0
    if memory is not None:
        seen = learner.stream.visible[: stage + 1]  # a class that comes back is a group of its own
        sizes = learner.stream.train_sizes[: stage + 1]
        limit = memory.capacity(groups=int(seen.sum()), sizes=sizes)
    if limit is not None and len(learner.exemplars) > limit:
        raise bad(
            "exemplars", f"at most {limit} items, the budget of {type(method).__name__}",
            len(learner.exemplars),
        )  # fmt: skip


# -- rows that a method has set aside --------------------------------------------------------------


def _leave_out(learner: RunLearner, items: TrainingRows) -> TrainingRows:
    """The items without rows that the method has set aside."""
    if learner.aside is None or not len(learner.aside):
        return items
    aside = torch.isin(items.rows, learner.aside)
    if aside.all() and items.length:
        raise bad("learner.set_aside", "some rows left to train on", f"all {items.length}")
    return items.take(~aside) if aside.any() else items
