"""Learning a unified classifier incrementally via rebalancing (Hou et al. 2019, CVPR)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F

from engram import Memory, Method, PerRun, ReplaySpec
from engram.losses import mean

CLOSED = -2.0  # below every cosine


@dataclass(frozen=True, kw_only=True)
class LUCIR(Method):
    """A cosine head, imprinted rows for new classes, features held in place, a margin for old ones.

    Parameters
    ----------
    hold
        Weight of the distance between old and new features; grows with the classes known.
    margin, hardest, push
        Memory rows should be nearer to their class than to each of the `hardest` new ones by the
        margin; the weight of that.
    """

    head: ClassVar[str] = "cosine"
    memory: Memory = field(default=Memory(per_class=8, policy="herding"))
    hold: PerRun = 1.0
    margin: PerRun = 0.5
    hardest: int = 2
    push: PerRun = 1.0

    def replay(self, stage):
        return ReplaySpec("union")

    def start(self, learner, task):
        learner.state = {"teacher": learner.snapshot()} if learner.stage else {}
        y = learner.labels(task.train)[:, 0]
        unit = F.normalize(learner.outputs(task.train).features, dim=-1)
        rows = learner.params["net.head.weight"]
        for column in learner.new.nonzero()[:, 0].tolist():
            rows[column] = unit[y == column].mean(0).to(rows.device, rows.dtype)

    def loss(self, net, batch, state):
        output = net(batch.x, batch.w)
        terms = {"task": net.task(batch)}
        if "teacher" not in state:
            return terms
        before = net.frozen(state["teacher"])(batch.x).features
        away = 1 - F.cosine_similarity(output.features, before, dim=-1)
        known, new = batch.known.sum(), batch.new.sum()
        grown = (known / new.clamp(min=1)).to(away.dtype).sqrt()
        cosines = net.head.cosines(output.features)
        own = cosines.gather(1, batch.target[:, None])
        among = batch.new & batch.seen
        rivals = cosines.masked_fill(~among, CLOSED).topk(self.hardest, -1).values
        short = torch.where(rivals > CLOSED, (self.margin - own + rivals).clamp(min=0), 0.0)
        return {
            **terms,
            "hold": self.hold * grown * mean(away, batch.w),
            "margin": self.push * mean(short.sum(-1), batch.w * batch.old),
        }

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
