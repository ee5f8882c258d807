"""What happens over the epochs of a stage: deals rows, logs losses, validates, stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.engine.batches.sampler import Dealer, Deck
from engram.engine.checkpoints.resume_point import (
    Midway,
    Saver,
    Slices,
    arrays_of,
    column,
    curve_of,
    put_column,
)
from engram.engine.evaluation.divergence import measured, sound_losses
from engram.engine.evaluation.evaluate import evaluate, validate
from engram.engine.lr_scheduler import Schedule
from engram.engine.trainers.captured import CapturedTrainer
from engram.engine.trainers.compiled import CompiledTrainer
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.learner.tree import tree_map
from engram.methods.base import Method

LOGS_PER_STAGE = 20
STRETCH = 200  # iterations dealt at once
Progress = Callable[[int, int], None]
Turns = Generator[list[Midway] | None]  # after every slice of steps; states where a save is due


class Driver:
    """Goes through epochs (or stretches of iterations), with what happens between them."""

    def __init__(
        self, learners: Sequence[Learner], methods: Sequence[Method], training: Training,
        dealer: Dealer, mapped: bool, capture: bool, compile: bool, progress: Progress | None,
        phase: str = "task", number: int = 0, saver: Saver | None = None, shared: bool = False,
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
        self.trainer.phase, self.number = phase, number
        self.saver, self._slices = saver, Slices()
        self._sliced = shared or saver is not None  # others want their turn, or a save may be due
        self.extra: Callable[[int], tuple[dict[str, Any], dict[str, Any]]] | None = None
        self._start: tuple[int, int] = (0, 0)  # chunk, and step in it, at which to begin
        self._first: Deck | None = None  # the rows of every epoch, where they are the same
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

    def drive(self) -> Turns:
        """All steps. Lets others launch theirs after every slice, and gives what is to be saved."""
        chunks = -(-self.iterations // STRETCH) if self.iterations else self.epochs
        begin, start = self._start
        if self.dealer.renewal is not None:  # what passed by before
            for chunk in range(begin):
                self._deal(chunk)
        for chunk in range(begin, chunks):
            yield from self._chunk(self._deal(chunk), chunk, start)
            start = 0
            if not self.iterations:
                self._between(chunk)
                if not self.schedule.active.any() or self._broken():
                    break
        self._take_log()
        self.trainer.close()
        self._mark_diverged()
        if self._best:
            for learner, best in zip(self.learners, self._best, strict=True):
                learner.vector, learner.buffers, learner.state = best

    def _deal(self, chunk: int) -> Deck:
        """The rows of an epoch, or of a stretch of iterations."""
        if self.iterations:
            start = chunk * STRETCH
            return self.dealer.stretch(start, min(start + STRETCH, self.iterations))
        if not self.dealer.fixed:
            return self.dealer.epoch(chunk)
        first = self._first or self.dealer.epoch(0)
        return self.dealer.renewed(first, chunk) if chunk else first

    def _chunk(self, deck: Deck, chunk: int, start: int) -> Turns:
        steps = deck.live.shape[1]
        live = deck.live & self.schedule.active[:, None]
        fixed = self.dealer.fixed and not self.iterations
        if fixed and self._first is not None:
            self.trainer.renew(deck.key)
        else:
            self.trainer.load(deck, fixed)
        self._first = deck if fixed else None
        every = self.training.evaluate_every
        while start < steps:
            stop = steps if not every else min(steps, start + every - self._done % every)
            while start < stop:
                end = min(stop, start + self._slices.steps) if self._sliced else stop
                began = time.perf_counter()
                self._run(start, end, live)
                if self._sliced:
                    yield None  # launched, not finished
                    self._wait()
                    self._slices.took(end - start, time.perf_counter() - began)
                start = end
                if start == stop:
                    self._report(every)
                if self.saver is not None and self.saver.due():
                    yield self.midways(chunk, start)

    def _run(self, start: int, stop: int, live: np.ndarray) -> None:
        self.trainer.run(start, stop, self.schedule.lr, live)
        self._done += stop - start
        self._own += live[:, start:stop].sum(1)
        self._since += live[:, start:stop].sum(1)

    def _wait(self) -> None:
        """Until the steps launched are done; those of other streams go on."""
        if self.learners[0].device.type == "cuda":
            torch.cuda.current_stream().synchronize()

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

    # -- in the middle of it ---------------------------------------------------------------------
    def _numbers(self) -> dict[str, np.ndarray]:
        return {"own": self._own, "since": self._since, **self.schedule.arrays()}

    def midways(self, chunk: int, start: int) -> list[Midway]:
        """All that is needed to go on at step `start` of a chunk, for every run."""
        self.trainer.current()
        found = []
        for run in range(len(self.learners)):
            facts, tensors = self.extra(run) if self.extra is not None else ({}, {})
            logs = [
                (done, int(since[run]), {k: float(v[run]) for k, v in sums.items()})
                for done, since, sums in self._logs
            ]
            facts |= {"done": self._done, "numbers": column(self._numbers(), run), "logs": logs}
            facts["steps"] = int(np.asarray(self.trainer.steps).reshape(-1)[run])
            tensors |= {"held": self.trainer.held(run)}
            tensors["curve"] = arrays_of([(step, scores[run]) for step, scores in self.curve])
            tensors["best"] = {"0": self._best[run]} if self._best else {}
            found.append(Midway((self.number, chunk, start), facts, tensors))
        return found

    def restore(self, midways: Sequence[Midway]) -> None:
        """Be where the runs were when `midways` made these."""
        first = midways[0]
        _, *self._start = first.position  # type: ignore[assignment]
        self._done = first.facts["done"]
        numbers = self._numbers()
        for run, one in enumerate(midways):
            put_column(numbers, run, one.facts["numbers"])
        for place, (done, _, sums) in enumerate(first.facts["logs"]):
            own = [one.facts["logs"][place] for one in midways]
            since = np.array([entry[1] for entry in own])
            values = {k: torch.tensor([e[2][k] for e in own], dtype=torch.float64) for k in sums}
            self._logs.append((done, since, values))
        curves = [curve_of(one.tensors["curve"]) for one in midways]
        self.curve = [
            (step, [curve[place][1] for curve in curves])
            for place, (step, _) in enumerate(curves[0])
        ]
        device = self.learners[0].device

        def move(tree: Any) -> Any:
            return tree_map(lambda leaf: leaf.to(device), tree)

        if first.tensors["best"]:
            self._best = [move(one.tensors["best"]["0"]) for one in midways]
        self.trainer.restore(
            [move(one.tensors["held"]) for one in midways], [one.facts["steps"] for one in midways]
        )

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
