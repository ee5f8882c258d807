"""Experience replay with an asymmetric cross-entropy (Caccia et al. 2022, ICLR)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engram import Memory, Method, ReplaySpec


@dataclass(frozen=True, kw_only=True)
class ERACE(Method):
    """New rows compete among the classes of their batch, memory rows among all classes seen.

    The memory is a reservoir that changes with every step, so it holds the task's own classes soon:
    by them alone new classes learn to stand against old ones.
    """

    memory: Memory = field(default=Memory(total=60, policy="reservoir"))

    def replay(self, stage):
        return ReplaySpec("pair", renew="step")

    def loss(self, net, batch, state):
        net(batch.x, batch.w)  # one pass over both, reused below
        new, old = batch.w * (1 - batch.old), batch.w * batch.old
        classes = torch.arange(batch.opened.shape[-1], device=batch.y.device)
        present = ((batch.y[:, :1] == classes) & (new > 0)[:, None]).any(0)  # [C]
        apart = batch.open & (present | (new == 0)[:, None])
        task, memory = batch._replace(w=new, open=apart), batch._replace(w=old)
        return {"task": net.task(task), "memory": net.task(memory)}
