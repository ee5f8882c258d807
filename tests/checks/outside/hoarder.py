"""A cheat: replay without a memory, from copies of samples in the state."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram import Method
from engram.losses import masked_ce

EACH = 6  # samples per class


@dataclass(frozen=True, kw_only=True)
class Hoarder(Method):
    """Keeps inputs of every class in its state, and declares no memory."""

    def loss(self, net, batch, state):
        terms = {"task": net.task(batch)}
        if "x" not in state:
            return terms
        logits = net(state["x"]).logits
        open_ = batch.seen.expand(len(logits), -1)
        weights = torch.ones_like(logits[:, 0])
        return {**terms, "hoard": masked_ce(logits, state["y"], open_, weights)}

    def finish(self, learner, task):
        batch = learner.batch()
        x, y = [], []
        if learner.state:
            x, y = [learner.state["x"]], [learner.state["y"]]
        for column in batch.y[:, 0].unique().tolist():
            rows = (batch.y[:, 0] == column).nonzero()[:, 0]
            x.append(batch.x[rows[torch.arange(EACH) % len(rows)]])
            y.append(torch.full((EACH,), column, device=learner.device))
        learner.state = {"x": torch.cat(x), "y": torch.cat(y)}
