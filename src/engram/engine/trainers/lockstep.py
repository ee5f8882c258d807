"""Many runs at once: rows come in, a mapped step serves all runs, learners get their weights.

Everything a step reads or writes has a fixed address, so on CUDA the step is captured once as a
graph and replayed; on the CPU the same function runs eagerly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.engine.batches.collate import (
    Upcoming,
    at_host,
    at_step,
    copied,
    fit,
    lay_,
    no_padding,
    on_host,
    row_leaves,
)
from engram.engine.batches.sampler import Minibatches
from engram.engine.batches.values import empty_tables
from engram.engine.trainers.cuda_graph import Captured
from engram.engine.trainers.mapped_step import MappedStep
from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.learner.tree import leaves, pick, stack, tree_map
from engram.methods.base import Method, pace_of


class LockstepTrainer(MappedStep):
    """Trains R learners of equal shapes through one phase; the step itself is in `MappedStep`."""

    keeps_answers = True  # of older networks, where all steps see the same batch

    def __init__(
        self,
        learners: Sequence[Learner],
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
        self._pace = math.gcd(*map(pace_of, methods))
        # rows that the host holds cannot be fetched inside a captured or compiled step
        self._fetches = capture and not learners[0].feed.on_device
        self._host: Minibatches | None = None  # the same rows, their numbers on the host
        self._upcoming: Upcoming | None = None
        step, interval = self._repeated()
        self._captured = Captured(step) if capture else None
        self._captured_interval = Captured(interval) if capture else None

    # -- rows -------------------------------------------------------------------------------------
    def load(self, rows: Minibatches, fixed: bool) -> None:
        """Take the rows of the next steps; fixed addresses where a graph was captured."""
        if self.verbs.remembers and not self.collate.values:
            first = empty_tables(self.learners[0], self.method, rows, self._slots)
            runs = len(self.learners)
            self.collate.values = {k: v.repeat(runs, *[1] * v.ndim) for k, v in first.items()}
        self._answers, self.verbs.stays = (), False
        places, new = row_leaves(self._rows), row_leaves(rows)
        # the last stretch of steps may be shorter: what was recorded holds for it, too
        if not fit(new, places) or not (self.verbs.padded or no_padding(rows)):
            self._rows = copied(rows)
            self.verbs.padded = not no_padding(rows)
            self.fixed_batch = None
            self._forget()
        else:
            lay_(places, new)
        if fixed and not self.collate.feed.augment:
            self.step_number.zero_()
            self.fixed_batch = self.collate(at_step(self._rows, self.step_number))  # type: ignore[arg-type]
            self._fetches = False
            # the state, with older networks in it, is that of the beginning as well
            self.verbs.stays = self.keeps_answers and not self._follows and not self._pace
        elif not self.collate.feed.on_device and not self.collate.latents:
            self._announce_all(on_host(rows))

    def _announce_all(self, rows: Minibatches) -> None:
        """Where rows stay on disk, they are announced step by step."""
        self._host, self._upcoming = rows, Upcoming(self.collate.feed, rows, cut=False)

    def _fetch(self, number: int) -> None:
        """Lay the rows of the step to come at fixed addresses."""
        rows = at_step(self._rows, self.step_number)  # type: ignore[arg-type]
        if self._host is not None:
            rows = at_host(rows, self._host, number)
        batch = self.collate(rows)
        if self.fixed_batch is None:
            self.fixed_batch = tree_map(torch.clone, batch)
        else:
            for place, value in zip(leaves(self.fixed_batch), leaves(batch), strict=True):
                place.copy_(value)

    def rekey(self, key: Tensor) -> None:
        """Take the keys [R, 1] of another epoch over the loaded rows."""
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
        """Steps `start` to `stop` of the loaded rows; `live` [R, S] says who takes each."""
        if not np.array_equal(lr, self._lr):  # the device is waited for when numbers go there
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
        """Wait for the stretch before: who stops or saves is to wait for two of them at most."""
        if self.vector.is_cuda:
            self._ends.append(torch.cuda.Event())
            self._ends[-1].record()
            if len(self._ends) > 1:
                self._ends.popleft().synchronize()

    def _due(self, live: np.ndarray) -> np.ndarray:
        """Count the steps to come; says which of them end an interval of any run."""
        counts = self.steps[:, None] + live.cumsum(1)
        self.steps += live.sum(1)
        ends = counts % self._pace == 0 if self._pace else np.zeros_like(live)
        return np.asarray((ends & live).any(0))

    def _set_uniform(self, uniform: bool, fused: bool) -> None:
        if (uniform, fused) != (self._uniform, self._fused):
            self._forget()
        self._uniform, self._fused = uniform, fused

    def _forget(self) -> None:
        """Shapes or static choices changed: what was recorded does not hold any more."""
        for recorded in (self._captured, self._captured_interval):
            if recorded is not None:
                recorded.forget()

    def _repeated(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What is repeated, and captured where steps are: a step, and an interval."""
        return self._step, self._interval

    # -- log and learners -------------------------------------------------------------------------
    def take_log(self) -> dict[str, Tensor]:
        """Sums of the loss terms since the last call, [R] each, and start anew."""
        out = {name: value.clone() for name, value in self.sums.items()}
        for value in self.sums.values():
            value.zero_()
        return out

    def write_back(self) -> None:
        """Let the learners hold the present weights, as views of the stacked ones."""
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
        """What a run that is interrupted needs besides its learner: sums of losses, values."""
        own = {"sums": self.sums, "values": self.collate.values, "first": self.first or {}}
        return pick(own, run)  # type: ignore[no-any-return]

    def load_state_dict(self, states: Sequence[dict[str, Any]], steps: Sequence[int]) -> None:
        """The reverse of `state_dict`, for all runs, with the steps each has taken."""
        together = stack(states)
        self.sums, self.collate.values = together["sums"], together["values"]
        self.first = together["first"] or None
        self.steps = np.array(steps, dtype=int)

    def remembered(self, run: int, items: int) -> dict[str, Tensor]:
        """[n, ...] the values of a run's first `items` slots."""
        return {k: table[run, :items].clone() for k, table in self.collate.values.items()}

    def finite(self) -> Tensor:
        """[R] whether all weights of a run are numbers."""
        return torch.isfinite(self.vector).all(-1)

    def close(self) -> None:
        self._forget()
        self.write_back()
