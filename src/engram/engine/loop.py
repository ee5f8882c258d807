"""The training loop over one task of R runs that train together; a single run is a group of one.

Read `train_task` first: open the task, start, phases, epochs, steps, validate, finish, evaluate.
The optimiser step is in `engram.engine.trainers`, the rows of a step in `engram.engine.sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from engram.distributed import LostRank
from engram.engine import backend, host_verbs
from engram.engine.admission import Draws
from engram.engine.checkpoints import (
    Checkpointer,
    ResumePoint,
    StepSlices,
    restore_phase,
    synchronise_ranks,
)
from engram.engine.evaluation import (
    count_scored,
    evaluate,
    learner_scores_are_sound,
    mark_diverged,
    score_test_items,
    validate,
)
from engram.engine.history import History, PhaseLog
from engram.engine.optim import BestEpoch, Schedule, reset_optimizer
from engram.engine.phases import call_before, list_phases, prepare_phase
from engram.engine.run_definition import check_validation
from engram.engine.sampler import build_sampler, check_budget
from engram.engine.stored_values import encode_latents, freeze_root
from engram.engine.trainers import make_trainer
from engram.engine.training import Training
from engram.learner import torch_startup
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import tree_map
from engram.methods.method import Method, Phase
from engram.records.stage_result import StageResult

Progress = Callable[[int, int], None]


def train_task(
    learners: Sequence[RunLearner], methods: Sequence[Method], training: Training, stage: int, *,
    mapped: bool, capture: bool = False, compile: bool = False, progress: Progress | None = None,
    features: bool = False, checkpointer: Checkpointer | None = None, places: Sequence[int] = (),
    rates: Sequence[float] = (), keep_final_state: bool = False,
) -> list[StageResult] | None:  # fmt: skip
    """Train all learners on task `stage` and evaluate them on every task.

    Learners that were interrupted inside the task (`RunLearner.resume_point`) continue there.
    `places` are the numbers of the runs, for the `checkpointer`; `rates` their learning rates, if
    they differ from that of `training`. `keep_final_state` also saves the state after the last
    step. Returns None if the `checkpointer` ends the training inside the task.
    """

    def stops_at(points: list[ResumePoint] | None) -> bool:
        """Save the learners at these points, and return whether to end now."""
        if checkpointer is None or points is None:
            return False
        checkpointer.save(places, learners, points)
        return checkpointer.should_stop

    points = [one.resume_point for one in learners if one.resume_point is not None]
    backend.set_threads(learners, training, mapped=mapped)
    (torch_startup.warm_up_mapped if mapped else torch_startup.warm_up)(learners[0].device)
    clock = torch_startup.Stopwatch(points[0].facts["seconds"] if points else 0.0)
    open_task(learners, methods, training, stage, mapped=mapped, resumed=bool(points))
    history = History([one.before for one in learners], points)
    encode_latents(learners, methods[0], stage)
    for number, phase in list_phases(methods[0], stage, learners[0].networks, points):
        resumed = bool(points) and number == points[0].position[0]
        if not resumed:
            call_before(learners, methods, number)
        with prepare_phase(learners, training, phase, number, resumed) as (settings, free):
            now = PhaseTraining(
                learners, methods, settings, phase, number, mapped=mapped, capture=capture,
                compile=compile, progress=progress, rates=rates,
            )  # fmt: skip
            now.trainer.count_from(history.steps)
            slices = StepSlices(now, history, clock, free, checkpointer, keep_final_state)
            if resumed:
                restore_phase(now, points)
            for epoch in now.epochs():
                now.load(epoch)
                for start, stop in now.stretches(slices):
                    try:
                        with backend.default_dtype(learners[0].vector.dtype):
                            now.trainer.run(start, stop, now.rates(start, stop), now.live)
                    except LostRank:  # save the state before this step, then end
                        if stops_at(slices.stopped(epoch, start)):
                            return None
                        raise
                    if slices.sliced:
                        slices.took(stop - start)
                    now.count(start, stop)
                    if slices.due and stops_at(slices.points(epoch, stop)):
                        return None
                now.validate(epoch)
            now.close()
        history.add(now.log)
    finish_task(learners, methods)
    synchronise_ranks(learners)
    results = evaluate(learners, methods, features=features)
    count_scored(learners, held=True)
    for learner, result in zip(learners, results, strict=True):
        if learner.diverged < 0 and not learner_scores_are_sound(learner, result.scores):
            learner.diverged = stage
        learner.before = []
    history.complete(results, clock.seconds / len(learners), training.evaluate_rows)
    return results


def open_task(
    learners: Sequence[RunLearner], methods: Sequence[Method], training: Training, stage: int, *,
    mapped: bool = False, resumed: bool = False,
) -> None:  # fmt: skip
    """Open the task's classes, call `Method.start`, reset the optimiser.

    For `resumed` learners this has been done. Mapped runs are stacked before they train, so that
    their optimiser states need not be copied.
    """
    if resumed:
        for learner in learners:
            learner.enter(stage)
            if learner.resume_point is not None:
                # files of earlier versions lack it; of the built-in methods only BiC needs it
                none = torch.empty(0, dtype=torch.long)
                learner.aside = learner.resume_point.tensors.get("aside", none)
    else:
        vectors = torch.stack([one.vector for one in learners]).unbind(0)  # one call, not thousands
        for learner, vector in zip(learners, vectors, strict=True):
            learner.open_classes(stage)
            learner.vector = vector
            freeze_root(learner, methods[0], stage)
        host_verbs.call_for_all_with_values(learners, methods, "start")
        fresh = [one for one in learners if training.optim_reset or not one.opt]
        if fresh:
            reset_optimizer(training, fresh, shared=mapped)
        for learner in learners:
            if learner not in fresh and not mapped:
                learner.opt = tree_map(torch.clone, learner.opt)
    for learner in learners:
        check_validation(learner.stream, training, [stage])


class PhaseTraining:
    """The sampler, trainer, schedule and log of one phase of a task."""

    def __init__(
        self, learners: Sequence[RunLearner], methods: Sequence[Method], training: Training,
        phase: Phase, number: int, *, mapped: bool, capture: bool = False, compile: bool = False,
        progress: Progress | None = None, rates: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self.learners, self.methods, self.training = learners, methods, training
        self.number, self.mapped, self.progress = number, mapped, progress
        self.sampler = build_sampler(
            learners, methods[0], training, phase, number, compile=compile and mapped
        )
        self.trainer = make_trainer(
            learners, methods, training, mapped=mapped, capture=capture, compile=compile,
            slots=self.sampler.slots, phase=phase.name,
        )  # fmt: skip
        if self.sampler.admits:
            drawn = self.sampler.drawn_rows()
            self.trainer.draw_from(
                Draws(self.sampler.slots, self.sampler.draws, *drawn, self.sampler.pair)
            )
        own = rates and not phase.lr  # a phase may set one rate for all
        self.schedule = Schedule(training, len(learners), np.array(rates) if own else None)
        self.best = BestEpoch(learners) if training.restore_best else None
        self._epochs, self.iterations = training.length(learners[0].stage)
        steps = self.iterations or self._epochs * self.sampler.steps_per_epoch
        self.log = PhaseLog(len(learners), steps)
        self.live = np.ones((len(learners), 0), dtype=bool)  # [R, S] whether a run takes a step
        self._present = self.live  # [R, S] whether a run has rows at a step
        self.start = (0, 0)  # epoch, and step in it, at which to begin
        self._loaded = False

    def epochs(self) -> Iterator[int]:
        """Iterate over epochs (or stretches of iterations) until all runs stop."""
        first, _ = self.start
        self.sampler.skip(first)
        for epoch in range(first, self.sampler.chunks or self._epochs):
            yield epoch
            broken = not self.mapped and not self.iterations and not self.log.finite
            if broken or not self.schedule.active.any():
                return  # a single run stops if its loss is not finite

    def load(self, epoch: int) -> None:
        """Load the rows of an epoch into the trainer."""
        rows = self.sampler(epoch)
        if self._loaded and self.sampler.fixed:
            self.trainer.reseed(rows.key)
        else:
            self.trainer.load(rows, self.sampler.fixed)
            self._present = rows.live
        if not self._loaded:
            own = self._present.sum(1) * self._epochs
            self.schedule.totals[:] = self.iterations or own
            each = self.sampler.full_batches if self.iterations else self._present.sum(1)
            self.trainer.plan(self.schedule.totals, each)
        self._loaded = True
        self.live = self._present & self.schedule.active[:, None]

    def rates(self, start: int, stop: int) -> np.ndarray:
        """Return the learning rates [R, stop - start] of steps of this epoch."""
        return self.schedule.rates(self.trainer.steps, self.live[:, start:stop])

    def stretches(self, slices: StepSlices) -> Iterator[tuple[int, int]]:
        """Iterate over (start, stop) of steps, cut where a curve or checkpoint may be due."""
        (_, start), steps, every = self.start, self.live.shape[1], self.training.evaluate_every
        self.start = (0, 0)
        while start < steps:
            stop = min(steps, start + every - self.log.done % every) if every else steps
            stop = slices.cut(start, stop)
            yield start, stop
            start = stop

    def count(self, start: int, stop: int) -> None:
        """After steps: evaluate for the curve if it is due, record losses, report progress."""
        self.log.count(self.live[:, start:stop])
        every, done = self.training.evaluate_every, self.log.done
        curve = bool(every) and done % every == 0
        if not curve and stop < self.live.shape[1]:
            return
        if curve:
            with self.trainer.scored_weights():
                most = self.training.evaluate_rows
                self.log.curve.append((done, score_test_items(self.learners, self.methods, most)))
            count_scored(self.learners, held=False, most=most)
        if self.log.due:
            self.log.record(self.trainer)
        if self.progress is not None:
            self.progress(done, self.log.total)

    def validate(self, epoch: int) -> None:
        """At the end of an epoch: learning rates, early stopping, best epochs."""
        if self.iterations:
            return
        if not self.training.validates:
            self.schedule.after_epoch(epoch, {})
            return
        with self.trainer.scored_weights():
            self.schedule.after_epoch(epoch, validate(self.learners, self.methods))
            if self.best is not None:
                self.best.keep(self.schedule.improved)

    def close(self) -> None:
        """Finish the phase: write weights, best epochs and memory into the learners."""
        self.log.record(self.trainer)
        self.trainer.close()
        mark_diverged(self.learners, self.trainer, self.log)
        if self.best is not None:
            self.best.restore()
        if self.sampler.slots:
            for r, one in enumerate(self.learners):
                one.exemplars = (
                    self.trainer.held_exemplars(r)
                    if self.sampler.admits
                    else self.sampler.reservoir_after(r, one.exemplars)
                )
                one.values = self.trainer.remembered(r, len(one.exemplars))
        elif self.trainer.rewrites:
            for r, one in enumerate(self.learners):
                one.values = self.trainer.remembered(r, len(one.exemplars))


def finish_task(learners: Sequence[RunLearner], methods: Sequence[Method]) -> None:
    """Call `Method.finish` for all runs that have not diverged."""
    for one in learners:
        one.latents, one.aside = {}, None
    alive = [i for i, one in enumerate(learners) if one.diverged < 0]
    host_verbs.call_for_all_with_values(
        [learners[i] for i in alive], [methods[i] for i in alive], "finish"
    )
    for learner, method in zip(learners, methods, strict=True):
        check_budget(learner, method)
        learner.resume_point = None
