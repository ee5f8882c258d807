"""Experience replay with an asymmetric cross-entropy (Caccia et al. 2022, ICLR)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engram import Memory, Method, Replay


@dataclass(frozen=True, kw_only=True)
class ERACE(Method):
    """New rows compete among the classes of their batch, memory rows among all classes seen.

    The original fills its reservoir while a task passes by, so that the memory holds the task's own
    classes as well. Here the memory is filled when a task ends: until then the task's rows stand in
    for themselves, each with the weight `held`.
    """

    memory: Memory = field(default=Memory(total=60))
    held: float = 0.5

    def replay(self, stage):
        return Replay("pair")

    def loss(self, net, batch, state):
        net(batch.x, batch.w)  # one pass over both, reused below
        new = batch.w * (1 - batch.old)
        classes = torch.arange(batch.opened.shape[-1], device=batch.y.device)
        present = ((batch.y[:, :1] == classes) & (new > 0)[:, None]).any(0)  # [C]
        apart = batch._replace(w=new, open=batch.open & (present | (new == 0)[:, None]))
        memory = batch._replace(w=batch.w * batch.old + self.held * new)
        return {"task": net.task(apart), "memory": net.task(memory)}

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
