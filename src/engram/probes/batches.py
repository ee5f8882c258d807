"""Training rows for probes: through the learner's guard, counted apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engram.learner.batch import Batch
from engram.learner.items import Items
from engram.learner.learner import Learner
from engram.learner.tree import stack
from engram.streams.guard import MethodView
from engram.streams.ledger import Ledger


def probe_items(learner: Learner, memory: bool) -> Items:
    """The task's training rows and, if asked for, the exemplars of earlier tasks.

    What the guard counts goes to a ledger that is thrown away: the caller counts it as the probe's.
    """
    usual = learner.guard
    learner.guard = MethodView(learner.stream, learner.stage, reads=learner.reads, ledger=Ledger())
    try:
        own, kept = learner.items(), learner.exemplars
        if not memory or not len(kept):
            return own
        held = learner.items(kept.rows, kept.stages)
        past = held.stages < learner.stage  # those of the task are among its rows already
        return Items(*(torch.cat([a, b[past]]) for a, b in zip(own, held, strict=True)))
    finally:
        learner.guard = usual


def validation_items(learner: Learner) -> Items:
    """The in-task validation rows of the current task, counted as the probe's."""
    usual = learner.guard
    learner.guard = MethodView(learner.stream, learner.stage, reads=learner.reads, ledger=Ledger())
    try:
        return learner.items(learner.task.valid)
    finally:
        learner.guard = usual


def stacked(
    learners: Sequence[Learner], items: Sequence[Items], start: int, stop: int,
    counts: Sequence[int] | None = None,
) -> Batch:  # fmt: skip
    """Rows `start` to `stop` of every run as one batch [R, B, ...]; shorter runs are padded.

    `counts` says how many items of each run are real; without, all are.
    """
    found = []
    for r, (learner, own) in enumerate(zip(learners, items, strict=True)):
        place = torch.arange(start, stop)
        last = (len(own.rows) if counts is None else counts[r]) - 1
        index = place.clamp(max=max(last, 0))  # padding repeats a real row, weight 0
        batch = learner.collate(Items(*(leaf[index] for leaf in own)))
        found.append(batch._replace(w=(place <= last).to(batch.w)))
    return stack(found)  # type: ignore[no-any-return]
