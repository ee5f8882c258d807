"""The state of a learner from one rank to all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engram import parallel
from engram.engine.checkpoints.resume_point import ResumePoint
from engram.engine.checkpoints.single import load_state_dict, state_dict
from engram.learner.learner import Learner
from engram.parallel import Ranks


def from_first(ranks: Ranks, learner: Learner) -> None:
    """Let every rank's learner be that of rank 0, with the place inside a task where it stands."""
    first = ranks.rank == 0
    tensors, facts = state_dict(learner) if first else ({}, {})
    point = learner.resume_point if first else None
    if point is not None:
        more, facts["resume"] = point.packed()
        tensors |= more
    forms = {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()}
    forms, facts = ranks.of_first((forms, facts))
    for name, (shape, dtype) in forms.items():
        raw = torch.uint8 if dtype == torch.bool else dtype
        value = tensors[name].to(raw) if first else torch.empty(shape, dtype=raw)
        tensors[name] = ranks.from_first_(value.to(ranks.device)).cpu().to(dtype)
    if first:
        return
    where = facts.pop("resume", None)
    load_state_dict(learner, tensors, facts)
    learner.resume_point = None if where is None else ResumePoint.unpacked(tensors, where)


def agree(learners: Sequence[Learner]) -> None:
    """After a task: what rank 0 has, others have, whatever their devices rounded differently."""
    ranks = parallel.current()
    for learner in learners if ranks is not None else ():
        from_first(ranks, learner)  # type: ignore[arg-type]
