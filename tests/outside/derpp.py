"""Dark experience replay++ (Buzzega et al. 2020, NeurIPS)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engram import Memory, Method, Replay, keys
from engram.losses import mean

MARKS = 4  # numbers by which a stored row is recognised


def marks_of(x):
    """[B, MARKS] a few projections of each input: enough to tell rows apart, too few to restore."""
    flat = x.flatten(1)
    probe = keys.normal(keys.fold(0, "marks"), flat.shape[1], MARKS, device=flat.device)
    return flat @ probe.to(flat.dtype)


@dataclass(frozen=True, kw_only=True)
class DERpp(Method):
    """Replay with the logits that the network had when a row was stored.

    A batch does not say which item of the memory a row is, so logits are kept with marks of their
    inputs and looked up by them.
    """

    memory: Memory = field(default=Memory(total=60))
    alpha: float = 0.1
    beta: float = 0.5

    def replay(self, stage):
        return Replay("pair")

    def loss(self, net, batch, state):
        logits = net(batch.x, batch.w).logits
        new, old = batch.w * (1 - batch.old), batch.w * batch.old
        terms = {"task": net.task(batch._replace(w=new))}
        if "logits" not in state:
            return terms
        item = torch.cdist(marks_of(batch.x), state["marks"]).argmin(-1)
        then = (batch.opened >= 0) & (batch.opened <= batch.stage[:, None])  # when it was stored
        away = (logits - state["logits"][item]).square() * then
        return {
            **terms,
            "memory": self.beta * net.task(batch._replace(w=old)),
            "dark": self.alpha * mean(away.sum(-1) / then.sum(-1).clamp(min=1), old),
        }

    def finish(self, learner, task):
        before = learner.exemplars
        kept = self.memory.update(learner, task.train)
        learner.exemplars = kept
        room, classes = self.memory.total, len(learner.opened)
        marks = torch.full((room, MARKS), 1e6, dtype=learner.vector.dtype)  # far from any input
        logits = torch.zeros(room, classes, dtype=learner.vector.dtype)
        marks[: len(kept)] = marks_of(learner.batch(kept.rows, kept.stages).x).cpu()
        logits[: len(kept)] = learner.outputs(kept.rows, kept.stages).logits
        if len(before):  # what was stored before keeps the logits of then
            found, place = same_items(kept, before)
            logits[: len(kept)][found] = learner.state["logits"].cpu()[place]
        learner.state = {"marks": marks.to(learner.device), "logits": logits.to(learner.device)}


def same_items(kept, before):
    """Which items of a memory were in it before, and at which place."""
    pairs = (kept.rows[:, None] == before.rows) & (kept.stages[:, None] == before.stages)
    found = pairs.any(1)
    return found, pairs[found].to(torch.uint8).argmax(1)
