"""Bias correction (Wu et al. 2019, CVPR): distillation, and a second stage on two numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engram import BadArgument, Memory, Method, PerRun, ReplaySpec
from engram.losses import distill_rows, mean

DAMPING = 1e-3


def corrected(logits, state, prefix=""):
    """Logits with each class's own scale and shift."""
    return state[prefix + "scale"] * logits + state[prefix + "shift"]


def fit(logits, y, new, seen, steps=12):
    """(scale, shift) of the new classes' logits that make the labels most likely.

    The published second stage takes steps of SGD on held-out exemplars; two numbers need no more
    than damped Newton steps on the balanced exemplars.
    """
    none = torch.tensor([1.0, 0.0], dtype=torch.float64)
    both, hit = none, (y[:, None] == torch.arange(logits.shape[1])).double()
    inputs = torch.stack([logits, torch.ones_like(logits)]) * new  # [2, n, C] slopes of a logit
    for _ in range(steps):
        moved = torch.where(new, both[0] * logits + both[1], logits).masked_fill(~seen, -1e9)
        p = moved.softmax(-1)
        slope = (inputs * (p - hit)).sum(-1).mean(-1) + DAMPING * (both - none)
        middle = (inputs * p).sum(-1)  # [2, n]
        curve = torch.einsum("anc,bnc,nc->ab", inputs, inputs, p) - middle @ middle.T
        move = torch.linalg.solve(curve / len(y) + DAMPING * torch.eye(2), slope)
        both = both - move / move.norm().clamp(min=1.0)
    return both


@dataclass(frozen=True, kw_only=True)
class BiC(Method):
    """The old network teaches all rows; then the new classes' logits are scaled and shifted."""

    memory: Memory = field(default=Memory(total=60))
    temperature: PerRun = 2.0

    def replay(self, stage):
        return ReplaySpec("union")

    def start(self, learner, task):
        stages = torch.arange(len(learner.stream))[:, None]
        if bool((learner.stream.visible & (learner.stream.opening != stages)).any()):
            raise BadArgument("stream: expected tasks whose classes are new, got known classes")
        ones = torch.ones(len(learner.opened), device=learner.device, dtype=learner.vector.dtype)
        if learner.stage == 0:
            learner.state = {"scale": ones, "shift": 0 * ones}
            return
        old = {f"old {name}": value for name, value in learner.state.items()}
        learner.state = {**learner.state, **old, "teacher": learner.snapshot()}

    def loss(self, net, batch, state):
        logits = net(batch.x, batch.w).logits
        task = net.task(batch)
        if "teacher" not in state:
            return {"task": task}
        old = corrected(net.frozen(state["teacher"])(batch.x).logits, state, "old ")
        rows = distill_rows(logits, old, batch.known, temperature=self.temperature)
        share = (batch.known.sum() / batch.seen.sum().clamp(min=1)).to(task.dtype)
        return {"task": (1 - share) * task, "distill": share * mean(rows, batch.w)}

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
        state = {name: learner.state[name] for name in ("scale", "shift")}
        new = learner.opened == learner.stage
        if learner.stage and bool(new.any()):
            kept = learner.exemplars
            logits = learner.outputs(kept.rows, kept.stages).logits.double()
            scale, shift = fit(logits, kept.columns, new, learner.seen.cpu()).tolist()
            new = new.to(learner.device)
            state["scale"] = torch.where(new, scale, state["scale"])
            state["shift"] = torch.where(new, shift, state["shift"])
        learner.state = state

    def answer(self, net, x, state, stage):
        output = net(x)
        return output._replace(logits=corrected(output.logits, state))
