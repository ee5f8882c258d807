"""A method whose networks grow: a further model for each task, whose logits are added."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.methods.method import Method, Network
from engram.models.forward_pass import Output


@dataclass(frozen=True, kw_only=True)
class Columns(Method):
    """Boosting over tasks: older models stand still, the newest learns what they lack."""

    grows = True

    def networks(self, stream):
        return {
            f"column{stage}": Network(stream.build_model(), opens=stage)
            for stage in range(1, len(stream))
        }

    def start(self, learner, task):
        newest = f"column{learner.stage}." if learner.stage else "net."
        for name, mask in learner.layout(learner.free).items():
            mask &= name.startswith(newest)
        learner.state = {"open": (torch.zeros((), device=learner.device),) * learner.stage}

    def loss(self, net, batch, state):
        logits = self.answer(net, batch.x, state, batch.now, batch.w).logits
        return {"task": net.task(batch, logits=logits)}

    def answer(self, net, x: Tensor, state, stage, w=None) -> Output:
        later = (getattr(net, f"column{k + 1}") for k in range(len(state["open"])))
        parts = [net(x, w), *(column(x, w=w) for column in later)]
        features = torch.cat([one.features for one in parts], -1)
        return Output(features, torch.stack([one.logits for one in parts]).sum(0))
