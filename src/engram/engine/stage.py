"""One task of one run, or of a group of runs: begin, train, finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engram.engine import company
from engram.engine.deck import Dealer, Deck, table
from engram.engine.evaluate import evaluate, validate
from engram.engine.lockstep import LockstepTrainer
from engram.engine.optim import Optimizer
from engram.engine.schedule import Schedule
from engram.engine.single import SingleTrainer
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.learner import Items, Learner
from engram.learner.tree import tree_map
from engram.methods.base import Method, Replay

LOGS_PER_STAGE = 20
STRETCH = 200  # iterations dealt at once
Progress = Callable[[int, int], None]


@dataclass
class StageOutcome:
    """What one stage of one learner gave."""

    scores: np.ndarray  # [items, C] half precision
    losses: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    curve: list[tuple[int, np.ndarray]] = field(default_factory=list)  # evaluate_every
    seconds: float = 0.0
    steps: int = 0


def run_stage(
    learners: Sequence[Learner],
    methods: Sequence[Method],
    training: Training,
    stage: int,
    *,
    mapped: bool,
    capture: bool = False,
    progress: Progress | None = None,
) -> list[StageOutcome]:
    """Train all learners on task `stage` and evaluate them on every task."""
    began = time.perf_counter()
    enter(learners, methods, training, stage)
    dealer = _dealer(learners, methods[0].replay(stage), training, stage)
    losses, curve, steps = _train(learners, methods, training, dealer, mapped, capture, progress)
    alive = [i for i, one in enumerate(learners) if one.diverged < 0]
    company.each([learners[i] for i in alive], [methods[i] for i in alive], "finish")
    for learner in learners:
        _check_budget(learner, methods[0])
    scores = evaluate(learners, methods)
    seconds = (time.perf_counter() - began) / len(learners)
    return [
        StageOutcome(scores[r], losses[r], [(s, c[r]) for s, c in curve], seconds, steps[r])
        for r in range(len(learners))
    ]


def enter(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, stage: int
) -> None:
    """Open the task's classes, let methods prepare, renew the optimiser."""
    for learner in learners:
        learner.open_classes(stage)
        learner.vector = learner.vector.clone()
    company.each(learners, methods, "start")
    optimizer = Optimizer.of(training)
    for learner in learners:
        if training.optim_reset or not learner.opt:
            learner.opt = optimizer.fresh(learner.vector)
        else:
            learner.opt = tree_map(torch.clone, learner.opt)


def _check_budget(learner: Learner, method: Method) -> None:
    memory = method.memory_budget
    limit = memory.capacity() if memory is not None else 0
    if limit is not None and len(learner.exemplars) > limit:
        raise bad(
            "exemplars", f"at most {limit} items, the budget of {type(method).__name__}",
            len(learner.exemplars),
        )  # fmt: skip


def _dealer(learners: Sequence[Learner], replay: Replay, training: Training, stage: int) -> Dealer:
    device = learners[0].device
    main = table([_main_items(one, replay, stage) for one in learners], device)
    batch = min(training.batch_size or main.length, main.length)
    memory, size = [], 0
    has_memory = stage > 0 and all(len(one.exemplars) for one in learners)
    if has_memory and replay.kind in ("pair", "apart"):
        memory, size = [_memory_table(learners, None, device)], replay.size or batch
    elif has_memory and replay.kind == "tasks":
        memory = [_memory_table(learners, past, device) for past in range(stage)]
        size = replay.size
    return Dealer(
        main, memory, seeds=[one.seed for one in learners], stage=stage, last=training.last,
        batch_size=training.batch_size, pair=replay.kind == "pair", memory_size=size,
        dtype=learners[0].feed.dtype,
    )  # fmt: skip


def _main_items(learner: Learner, replay: Replay, stage: int) -> Items:
    rows, stages = [learner.task.train], [torch.full_like(learner.task.train, stage)]
    if replay.kind == "union":
        rows.append(learner.exemplars.rows)
        stages.append(learner.exemplars.stages)
    elif replay.kind == "past":
        for k in range(stage):
            rows.append(learner.stream.tasks[k].train)
            stages.append(torch.full_like(rows[-1], k))
    return learner.items(torch.cat(rows), torch.cat(stages))


def _memory_table(learners: Sequence[Learner], past: int | None, device: torch.device):  # type: ignore[no-untyped-def]
    found = []
    for learner in learners:
        kept = learner.exemplars
        which = slice(None) if past is None else kept.stages == past
        found.append(learner.items(kept.rows[which], kept.stages[which]))
    return table(found, device)


def _train(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, dealer: Dealer,
    mapped: bool, capture: bool, progress: Progress | None,
):  # type: ignore[no-untyped-def]  # fmt: skip
    if training.validates and any(len(one.task.valid) == 0 for one in learners):
        raise bad("training", "in-task validation rows (build the stream with valid=0.1, say) "
                  "for plateau, patience or restore_best", "a task without any")  # fmt: skip
    driver = _Driver(learners, methods, training, dealer, mapped, capture, progress)
    driver.drive()
    return driver.losses(), driver.curve, driver.own_steps()


class _Driver:
    """Goes through epochs (or stretches of iterations), with what happens between them."""

    def __init__(
        self, learners: Sequence[Learner], methods: Sequence[Method], training: Training,
        dealer: Dealer, mapped: bool, capture: bool, progress: Progress | None,
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
            self.trainer = LockstepTrainer(learners, methods, training, capture=capture)
        else:
            self.trainer = SingleTrainer(learners[0], methods[0], training)
        self.schedule = Schedule(training, len(learners))
        self.curve: list[tuple[int, list[np.ndarray]]] = []
        self._logs: list[tuple[int, np.ndarray, dict[str, Tensor]]] = []
        self._own = np.zeros(len(learners), dtype=int)
        self._since = np.zeros(len(learners), dtype=int)
        self._done, self._best = 0, None
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
                if epoch and not self.dealer.fixed:
                    deck = self.dealer.epoch(epoch)
                self._chunk(deck, fixed=self.dealer.fixed, again=epoch > 0)
                self._between(epoch)
                if not self.schedule.active.any() or self._broken():
                    break
        self._take_log()
        self.trainer.close()
        self._mark_diverged()
        if self._best is not None:
            for learner, best in zip(self.learners, self._best, strict=True):
                learner.vector, learner.buffers, learner.state = best

    def _chunk(self, deck: Deck, *, fixed: bool, again: bool = False) -> None:
        steps = deck.live.shape[1]
        live = deck.live & self.schedule.active[:, None]
        if isinstance(self.trainer, LockstepTrainer) and not (fixed and again):
            self.trainer.load(deck, fixed)
        every = self.training.evaluate_every
        start = 0
        while start < steps:
            stop = steps if not every else min(steps, start + every - self._done % every)
            if isinstance(self.trainer, LockstepTrainer):
                self.trainer.run(start, stop, self.schedule.lr, live)
            else:
                self.trainer.run(deck, start, stop, float(self.schedule.lr[0]))
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
        best = self._best or [None] * len(self.learners)
        for r, learner in enumerate(self.learners):
            if best[r] is None or self.schedule.improved[r]:
                copies = (learner.vector, learner.buffers, learner.state)
                best[r] = tree_map(torch.clone, copies)
        self._best = best

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
        sound = torch.ones(len(self.learners), dtype=torch.bool)
        for _, _, sums in self._logs:
            for value in sums.values():
                sound &= torch.isfinite(value).cpu()
        for r, learner in enumerate(self.learners):
            if not sound[r] or not bool(torch.isfinite(learner.vector).all()):
                learner.diverged = self.stage

    def own_steps(self) -> list[int]:
        return [int(n) for n in self._own]

    def losses(self) -> list[list[tuple[int, dict[str, float]]]]:
        """Mean of every loss term since the last log, per run."""
        out: list[list[tuple[int, dict[str, float]]]] = [[] for _ in self.learners]
        for done, since, sums in self._logs:
            host = {name: value.double().cpu().numpy() for name, value in sums.items()}
            for r in range(len(self.learners)):
                if since[r]:
                    means = {name: float(value[r] / since[r]) for name, value in host.items()}
                    out[r].append((done, means | {"total": sum(means.values())}))
        return out
