"""One task of one run, or of a group of runs: begin, train, finish."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.engine.batches.latents import encode, hold_root
from engram.engine.batches.reservoir import Renewal
from engram.engine.batches.sampler import AS_BATCH, Dealer, table
from engram.engine.batches.values import complete
from engram.engine.checkpoints.resume_point import Midway, Saver
from engram.engine.driver import Driver, Progress
from engram.engine.evaluation.divergence import sound_scores
from engram.engine.evaluation.evaluate import answers, test_items
from engram.engine.groups import host_verbs as company
from engram.engine.groups.streams import Part, side_by_side
from engram.engine.optim import optimizer_of
from engram.engine.phases import TASK, Trained, prepared
from engram.engine.training import Training
from engram.errors import bad
from engram.learner import warm
from engram.learner.learner import Items, Learner
from engram.learner.tree import tree_map
from engram.methods.base import Method, Phase, ReplaySpec

ROUND = 64  # whole tasks are padded to such multiples for compiled steps: fewer shapes to compile


@dataclass
class StageOutcome:
    """What one stage of one learner gave."""

    scores: np.ndarray  # [items, C] single precision
    losses: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    curve: list[tuple[int, np.ndarray]] = field(default_factory=list)  # evaluate_every
    seconds: float = 0.0
    steps: int = 0
    features: Tensor | None = None  # [items, F] of the test items, where a probe asks for them


def run_stage(
    learners: Sequence[Learner],
    methods: Sequence[Method],
    training: Training,
    stage: int,
    *,
    mapped: bool,
    capture: bool = False,
    compile: bool = False,
    progress: Progress | None = None,
    features: bool = False,
    saver: Saver | None = None,
    places: Sequence[int] = (),
) -> list[StageOutcome]:
    """Train all learners on task `stage` and evaluate them on every task.

    Learners that were interrupted inside the task (`Learner.midway`) go on there. Mapped runs share
    their steps; others each take their own, side by side.
    """
    with numerics(training.precision):
        wide = len(learners) if mapped else 1
        count = len(learners) // wide
        reports = _reports(progress, count)
        parts = []
        for number in range(count):
            mine = slice(number * wide, (number + 1) * wide)
            turns = _stage(
                learners[mine], methods[mine], training, stage, mapped, capture, compile,
                reports[number], features, saver, count,
            )  # fmt: skip
            parts.append(Part(turns, places[mine], learners[mine]))
        return side_by_side(parts, learners[0].device, saver)


def _reports(progress: Progress | None, count: int) -> Sequence[Progress | None]:
    """For each of `count` parts; the steps reported are their mean."""
    if progress is None or count == 1:
        return [progress] * count
    done = [0] * count

    def report(steps: int, total: int, number: int) -> None:
        done[number] = steps
        progress(sum(done) // count, total)

    return [partial(report, number=number) for number in range(count)]


@contextmanager
def numerics(precision: str) -> Iterator[None]:
    """How CUDA multiplies and convolves for the length of a stage.

    Torch would convolve 32-bit floats in tf32 by default; here ``float32`` means what it says.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def _stage(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, stage: int,
    mapped: bool, capture: bool, compile: bool, progress: Progress | None, features: bool,
    saver: Saver | None, parts: int,
) -> Generator[list[Midway] | None, None, list[StageOutcome]]:  # fmt: skip
    (warm.mapped if mapped else warm.plain)(learners[0].device)
    began = time.perf_counter() - warm.spent()  # a method may warm up further things on its way
    midways: list[Midway] = [one.midway for one in learners if one.midway is not None]
    if midways:
        began -= midways[0].facts["seconds"]
        for one in learners:
            one.meet(stage)
    else:
        enter(learners, methods, training, stage, mapped=mapped)
    before = [(one.exemplars.rows, one.exemplars.stages, one.values) for one in learners]
    _need_validation(learners, training)
    trained = Trained(len(learners))
    if midways:
        trained.restore(midways)
    encode(learners, methods[0], stage)
    for number, phase in enumerate(methods[0].phases(stage)):
        here = bool(midways) and number == midways[0].position[0]
        if phase.rows == "none" or (midways and number < midways[0].position[0]):
            continue
        free = [one.free for one in learners]
        with prepared(learners, training, phase, number, here) as settings:
            multiple = ROUND if compile else 1
            dealer = _dealer(learners, methods[0], settings, stage, multiple, phase, number)
            driver = Driver(
                learners, methods, settings, dealer, mapped, capture, compile, progress,
                phase.name, number, saver, parts > 1,
            )  # fmt: skip

            def extra(run: int, free: list[Tensor] = free) -> tuple[dict[str, Any], dict[str, Any]]:
                facts, tensors = trained.of_run(run)
                facts["seconds"] = time.perf_counter() - warm.spent() - began
                facts["ledger"] = learners[run].ledger.to_dict()
                return facts, tensors | {"free": free[run]}

            driver.extra = extra
            if here:
                driver.restore(midways)
                for one, midway in zip(learners, midways, strict=True):
                    one.ledger.become(midway.facts["ledger"])
            yield from driver.drive()
        trained.add(driver)
        if dealer.room:
            for r, one in enumerate(learners):
                one.exemplars = dealer.settled(r, one.exemplars)
                one.values = driver.trainer.remembered(r, len(one.exemplars))
    for one in learners:
        one.latents = {}
    losses, curve, steps = trained.losses, trained.curve, trained.steps
    alive = [i for i, one in enumerate(learners) if one.diverged < 0]
    company.each([learners[i] for i in alive], [methods[i] for i in alive], "finish")
    for learner, method, kept in zip(learners, methods, before, strict=True):
        _check_budget(learner, method)
        if learner.diverged < 0:
            complete(learner, method, kept)
        learner.midway = None
    found = answers(learners, methods, features=features)
    for learner, answer in zip(learners, found, strict=True):
        if learner.diverged < 0 and not _sound(learner, answer.scores):
            learner.diverged = stage
    seconds = (time.perf_counter() - warm.spent() - began) / (len(learners) * parts)
    return [
        StageOutcome(
            answer.scores, losses[r], [(s, c[r]) for s, c in curve if _sound(learners[r], c[r])],
            seconds, steps[r], answer.features,
        )
        for r, answer in enumerate(found)
    ]  # fmt: skip


def _sound(learner: Learner, scores: np.ndarray) -> bool:
    """Whether a learner answers the test rows of the tasks that it has seen."""
    asked = test_items(learner.stream)[1] <= learner.stage
    return sound_scores(scores, asked.numpy(), learner.seen.cpu().numpy())


def enter(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, stage: int, *,
    mapped: bool = False,
) -> None:  # fmt: skip
    """Open the task's classes, let methods prepare, renew the optimiser.

    Mapped runs are stacked before they train, so their optimisers need no copies of their own.
    """
    copies = torch.stack([one.vector for one in learners]).unbind(0)  # one call, not thousands
    for learner, vector in zip(learners, copies, strict=True):
        learner.open_classes(stage)
        learner.vector = vector
        hold_root(learner, methods[0], stage)
    company.each(learners, methods, "start")
    optimizer = optimizer_of(training, learners[0].networks)
    fresh = optimizer.fresh(learners[0].vector)
    for learner in learners:
        if training.optim_reset or not learner.opt:
            learner.opt = fresh if mapped else optimizer.fresh(learner.vector)
        elif not mapped:
            learner.opt = tree_map(torch.clone, learner.opt)


def _need_validation(learners: Sequence[Learner], training: Training) -> None:
    if training.validates and any(len(one.task.valid) == 0 for one in learners):
        expected = "in-task validation rows for plateau, patience or restore_best"
        raise bad("stream", f"{expected} (build it with valid=0.1, say)", "a task without any")


def _check_budget(learner: Learner, method: Method) -> None:
    memory, stage = method.memory_budget, learner.stage
    limit: int | None = 0
    if memory is not None:
        seen = learner.stream.visible[: stage + 1]  # a class that comes back is a group of its own
        sizes = [len(task.train) for task in learner.stream.tasks[: stage + 1]]
        limit = memory.capacity(groups=int(seen.sum()), sizes=sizes)
    if limit is not None and len(learner.exemplars) > limit:
        raise bad(
            "exemplars", f"at most {limit} items, the budget of {type(method).__name__}",
            len(learner.exemplars),
        )  # fmt: skip


def _dealer(
    learners: Sequence[Learner], method: Method, training: Training, stage: int, multiple: int = 1,
    phase: Phase = TASK, number: int = 0,
) -> Dealer:  # fmt: skip
    replay, device = method.replay(stage), learners[0].device
    if phase.rows != "task":
        replay = ReplaySpec("union") if phase.rows == "both" else ReplaySpec()
    if phase.rows == "memory":
        items = [_memory_items(one, method) for one in learners]
    else:
        items = [_main_items(one, replay, stage) for one in learners]
    rows = multiple if not training.batch_size else 1
    main = table(items, device, class_weights=training.class_weights, multiple=rows)
    memory, size = [], 0
    has_memory = stage > 0 and all(len(one.exemplars) for one in learners)
    if has_memory and replay.kind in ("pair", "apart"):
        memory, size = [table(_memory(learners), device)], replay.size or AS_BATCH
        if replay.renew == "task":
            memory = memory * replay.draws
    elif has_memory and replay.kind == "tasks":
        kept = _memory(learners)
        past = [[_of_stage(one, k) for one in kept] for k in range(stage)]
        memory = [table(items, device, multiple=multiple) for items in past]
        size = replay.size
    seeds, renewal = [one.seed for one in learners], None
    if number:  # another phase draws otherwise
        seeds = [int(keys.fold(seed, "phase", number)) for seed in seeds]
    if replay.renew == "step":
        size = replay.size or AS_BATCH
        seen = torch.tensor([one.exemplars.seen for one in learners], device=device)
        own = torch.tensor([one.seed for one in learners], device=device)
        renewal = Renewal(seen, _room(method), own, replay.draws)
    return Dealer(
        main, memory, seeds=seeds, stage=stage, last=training.last, renewal=renewal,
        batch_size=training.batch_size, pair=replay.kind == "pair", memory_size=size,
        dtype=learners[0].feed.dtype,
    )  # fmt: skip


def _room(method: Method) -> int:
    """Slots of a reservoir that is renewed with every step."""
    memory = method.memory_budget
    if memory is None or memory.policy != "reservoir":
        wanted = f"a reservoir for {type(method).__name__}, as in Memory(total=500, "
        raise bad("memory", wanted + "policy='reservoir'), because replay has renew='step'", memory)
    return memory.total or 0


def _main_items(learner: Learner, replay: ReplaySpec, stage: int) -> Items:
    own, kept = learner.task.train, learner.exemplars
    if replay.kind not in ("past", "complete"):
        mine = learner.items()
        if replay.kind != "union" or not len(kept):
            return mine
        pairs = zip(mine, learner.items(kept.rows, kept.stages), strict=True)
        return Items(*map(torch.cat, pairs))
    rows, stages = [own], [torch.full_like(own, stage)]
    for k in range(stage):
        rows.append(learner.stream.tasks[k].train)
        stages.append(torch.full_like(rows[-1], k))
    if replay.kind == "complete":
        return learner.complete_items(torch.cat(rows), torch.cat(stages))
    return learner.items(torch.cat(rows), torch.cat(stages))


def _memory_items(learner: Learner, method: Method) -> Items:
    kept = learner.exemplars
    if not len(kept):
        name = type(method).__name__
        raise bad("exemplars", f"some for a phase on the memory (fill it in {name}.start)", "none")
    return learner.items(kept.rows, kept.stages)


def _memory(learners: Sequence[Learner]) -> list[Items]:
    return [one.items(one.exemplars.rows, one.exemplars.stages) for one in learners]


def _of_stage(items: Items, stage: int) -> Items:
    which = items.stages == stage
    return Items(*(leaf[which] for leaf in items))
