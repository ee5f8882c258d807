"""Dark experience replay++ (Buzzega et al. 2020, NeurIPS)."""

from __future__ import annotations

from dataclasses import dataclass, field

from engram import Memory, Method, PerRun, ReplaySpec
from engram.losses import mean


@dataclass(frozen=True, kw_only=True)
class DERpp(Method):
    """Replay with the logits that the network had when a row was stored.

    Rows are stored when a task ends; one draw serves the logits and the labels.
    """

    memory: Memory = field(default=Memory(total=60))
    alpha: PerRun = 0.1
    beta: PerRun = 0.5

    def replay(self, stage):
        return ReplaySpec("pair")

    def remember(self, net, batch, state):
        return {"logits": net(batch.x, batch.w).logits}

    def loss(self, net, batch, state):
        logits = net(batch.x, batch.w).logits
        new, old = batch.w * (1 - batch.old), batch.w * batch.old
        terms = {"task": net.task(batch._replace(w=new))}
        if "logits" not in batch.values:
            return terms
        then = (batch.opened >= 0) & (batch.opened <= batch.stage[:, None])  # when it was stored
        away = (logits - batch.values["logits"]).square() * then
        return {
            **terms,
            "memory": self.beta * net.task(batch._replace(w=old)),
            "dark": self.alpha * mean(away.sum(-1) / then.sum(-1).clamp(min=1), old),
        }

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
