"""Which rows a phase trains on: those of the task, of the memory, or of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engram import keys
from engram.engine.batches.held import without_held
from engram.engine.batches.padding import PaddedItems, pad_items
from engram.engine.batches.reservoir import Reservoir
from engram.engine.batches.sampler import AS_BATCH, Sampler
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.items import Items
from engram.learner.learner import Learner
from engram.methods.base import Method, Phase, ReplaySpec

ROUND = 64  # whole tasks are padded to such multiples for compiled steps: fewer shapes to compile


def build_sampler(
    learners: Sequence[Learner], method: Method, training: Training, phase: Phase | None = None,
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
        if replay.held:
            pairs = zip(learners, items, strict=True)
            items = [without_held(one, own, method, replay.held) for one, own in pairs]
    rows = multiple if not training.batch_size else 1
    main = pad_items(items, device, class_weights=training.class_weights, multiple=rows)
    memory, size = _replayed(learners, replay, stage, multiple)
    seeds, reservoir = [one.seed for one in learners], None
    if number:  # another phase draws otherwise
        seeds = [int(keys.fold(seed, "phase", number)) for seed in seeds]
    if replay.renew == "step":
        size = replay.size or AS_BATCH
        seen = torch.tensor([one.exemplars.seen for one in learners], device=device)
        own = torch.tensor([one.seed for one in learners], device=device)
        reservoir = Reservoir(seen, _slots(method), own, replay.draws)
    return Sampler(
        main, memory, seeds=seeds, stage=stage, last=training.last, reservoir=reservoir,
        batch_size=training.batch_size, pair=replay.kind == "pair", memory_size=size,
        dtype=learners[0].feed.dtype, iterations=training.length(stage)[1],
    )  # fmt: skip


def _task_items(learner: Learner, replay: ReplaySpec, stage: int) -> Items:
    """Rows of the main batch: the task's own, with exemplars or earlier tasks where replayed so."""
    own, exemplars = learner.task.train, learner.exemplars
    if replay.kind not in ("past", "complete"):
        mine = learner.items()
        if replay.kind != "union" or not len(exemplars):
            return mine
        pairs = zip(mine, learner.items(exemplars.rows, exemplars.stages), strict=True)
        return Items(*map(torch.cat, pairs))
    rows, stages = [own], [torch.full_like(own, stage)]
    for k in range(stage):
        rows.append(learner.stream.tasks[k].train)
        stages.append(torch.full_like(rows[-1], k))
    if replay.kind == "complete":
        return learner.complete_items(torch.cat(rows), torch.cat(stages))
    return learner.items(torch.cat(rows), torch.cat(stages))


def _memory_only(learner: Learner, method: Method) -> Items:
    exemplars = learner.exemplars
    if not len(exemplars):
        name = type(method).__name__
        raise bad("exemplars", f"some for a phase on the memory (fill it in {name}.start)", "none")
    return learner.items(exemplars.rows, exemplars.stages)


def _replayed(
    learners: Sequence[Learner], replay: ReplaySpec, stage: int, multiple: int
) -> tuple[list[PaddedItems], int]:
    """Memories to draw from at every step, and how many rows (0: all of them)."""
    if stage == 0 or not all(len(one.exemplars) for one in learners):
        return [], 0
    if replay.kind not in ("pair", "apart", "tasks"):
        return [], 0
    device = learners[0].device
    items = [one.items(one.exemplars.rows, one.exemplars.stages) for one in learners]
    if replay.kind == "tasks":
        past = [[_of_stage(one, k) for one in items] for k in range(stage)]
        return [pad_items(one, device, multiple=multiple) for one in past], replay.size
    copies = replay.draws if replay.renew == "task" else 1
    return [pad_items(items, device)] * copies, replay.size or AS_BATCH


def _of_stage(items: Items, stage: int) -> Items:
    which = items.stages == stage
    return Items(*(leaf[which] for leaf in items))


def _slots(method: Method) -> int:
    """Slots of a reservoir that is renewed with every step."""
    memory = method.memory_budget
    if memory is None or memory.policy != "reservoir":
        wanted = f"a reservoir for {type(method).__name__}, as in Memory(total=500, "
        raise bad("memory", wanted + "policy='reservoir'), because replay has renew='step'", memory)
    return memory.total or 0


def check_budget(learner: Learner, method: Method) -> None:
    """Refuse more exemplars than the method declared."""
    memory, stage = method.memory_budget, learner.stage
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
