"""What happens over the epochs of a stage: deals rows, logs losses, validates, stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.engine.captured import CapturedTrainer
from engram.engine.deck import Dealer, Deck
from engram.engine.divergence import measured, sound_losses
from engram.engine.evaluate import evaluate, validate
from engram.engine.lockstep import LockstepTrainer
from engram.engine.lockstep_compiled import CompiledTrainer
from engram.engine.schedule import Schedule
from engram.engine.single import SingleTrainer
from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.learner.tree import tree_map
from engram.methods.base import Method

LOGS_PER_STAGE = 20
STRETCH = 200  # iterations dealt at once
Progress = Callable[[int, int], None]


class Driver:
    """Goes through epochs (or stretches of iterations), with what happens between them."""

    def __init__(
        self, learners: Sequence[Learner], methods: Sequence[Method], training: Training,
        dealer: Dealer, mapped: bool, capture: bool, compile: bool, progress: Progress | None,
        phase: str = "task",
    ) -> None:  # fmt: skip
        self.learners, self.methods, self.training, self.dealer = (
            learners,
            methods,
            training,
            dealer,
        )
        self.stage, self.mapped, self.progress = learners[0].stage, mapped, progress
        self.trainer: LockstepTrainer | SingleTrainer
        if mapped:
            kind = CompiledTrainer if compile else LockstepTrainer
            self.trainer = kind(learners, methods, training, capture=capture, room=dealer.room)
        else:
            alone = CapturedTrainer if capture else SingleTrainer
            self.trainer = alone(learners[0], methods[0], training, room=dealer.room)
        self.trainer.phase = phase
        self.schedule = Schedule(training, len(learners))
        self.curve: list[tuple[int, list[np.ndarray]]] = []
        self._logs: list[tuple[int, np.ndarray, dict[str, Tensor]]] = []
        self._own = np.zeros(len(learners), dtype=int)
        self._since = np.zeros(len(learners), dtype=int)
        self._done = 0
        self._best: list[Any] = []  # per run: (vector, buffers, state) of its best epoch
        epochs, iterations = training.length(self.stage)
        self.epochs, self.iterations = epochs, iterations
        self.total = iterations or epochs * dealer.steps_per_epoch

    def drive(self) -> None:
        if self.iterations:
            for start in range(0, self.iterations, STRETCH):
                stop = min(start + STRETCH, self.iterations)
                self._chunk(self.dealer.stretch(start, stop), fixed=False)
        else:
            deck = self.dealer.epoch(0)
            for epoch in range(self.epochs):
                if epoch:
                    fixed = self.dealer.fixed
                    deck = self.dealer.renewed(deck, epoch) if fixed else self.dealer.epoch(epoch)
                self._chunk(deck, fixed=self.dealer.fixed, again=epoch > 0)
                self._between(epoch)
                if not self.schedule.active.any() or self._broken():
                    break
        self._take_log()
        self.trainer.close()
        self._mark_diverged()
        if self._best:
            for learner, best in zip(self.learners, self._best, strict=True):
                learner.vector, learner.buffers, learner.state = best

    def _chunk(self, deck: Deck, *, fixed: bool, again: bool = False) -> None:
        steps = deck.live.shape[1]
        live = deck.live & self.schedule.active[:, None]
        if fixed and again:
            self.trainer.renew(deck.key)
        else:
            self.trainer.load(deck, fixed)
        every = self.training.evaluate_every
        start = 0
        while start < steps:
            stop = steps if not every else min(steps, start + every - self._done % every)
            self.trainer.run(start, stop, self.schedule.lr, live)
            self._done += stop - start
            self._own += live[:, start:stop].sum(1)
            self._since += live[:, start:stop].sum(1)
            start = stop
            self._report(every)

    def _report(self, every: int) -> None:
        if every and self._done % every == 0:
            self.trainer.current()
            self.curve.append((self._done, evaluate(self.learners, self.methods)))
        interval = max(1, self.total // LOGS_PER_STAGE)
        if self._done >= (len(self._logs) + 1) * interval:
            self._take_log()
        if self.progress is not None:
            self.progress(self._done, self.total)

    def _between(self, epoch: int) -> None:
        watched: dict[str, np.ndarray] = {}
        if self.training.validates:
            self.trainer.current()
            watched = validate(self.learners, self.methods)
        self.schedule.after_epoch(epoch, watched)
        if self.training.restore_best:
            self._keep_best()

    def _keep_best(self) -> None:
        first = not self._best
        self._best = self._best or [None] * len(self.learners)
        for r, learner in enumerate(self.learners):
            if first or self.schedule.improved[r]:
                copies = (learner.vector, learner.buffers, learner.state)
                self._best[r] = tree_map(torch.clone, copies)

    def _take_log(self) -> None:
        if self._since.any():
            self._logs.append((self._done, self._since.copy(), self.trainer.take_log()))
            self._since[:] = 0

    def _broken(self) -> bool:
        """A single run stops as soon as its loss is not finite; others go on in any case."""
        if self.mapped or not self._logs:
            return False
        return not all(bool(torch.isfinite(v).all()) for v in self._logs[-1][2].values())

    def _mark_diverged(self) -> None:
        first = {name: value.cpu() for name, value in (self.trainer.first or {}).items()}
        for r, learner in enumerate(self.learners):
            learner.units = measured(learner.units, first, r)
        logs = [sums for _, _, sums in self._logs]
        sound = sound_losses(logs, [one.units for one in self.learners], self._own)
        whole = self.trainer.finite().tolist()
        for learner, *fine in zip(self.learners, sound, whole, strict=True):
            if not all(fine):
                learner.diverged = self.stage

    @property
    def done(self) -> int:
        """Steps so far, of the run that took most."""
        return self._done

    def own_steps(self) -> list[int]:
        return [int(n) for n in self._own]

    def losses(self) -> list[list[tuple[int, dict[str, float]]]]:
        """Mean of every loss term since the last log, per run."""
        out: list[list[tuple[int, dict[str, float]]]] = [[] for _ in self.learners]
        for done, since, sums in self._logs:
            host = [value.double().cpu().numpy() / np.maximum(since, 1) for value in sums.values()]
            names, columns = [*sums, "total"], [*host, np.add.reduce(host)]
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for own, steps, row in zip(out, since, rows, strict=True):
                if steps:
                    own.append((done, dict(zip(names, row, strict=True))))
        return out
