"""Separate networks: one for each task, so that nothing is shared and nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, MethodNetworks, Network, State, Terms
from engram.models.forward_pass import Output
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class SeparateNetworks(Method):
    """A network of its own for each task.

    The model is that of the first task; each further task begins with another of the same form and
    initial weights of its own. Nothing is forgotten and nothing transferred: what a method with
    shared weights gains or loses shows beside it. The task of a row must be given.

    Examples
    --------
    >>> SeparateNetworks().task_identity, SeparateNetworks().grows
    ('required', True)

    References
    ----------
    van de Ven et al. 2022, Nature Machine Intelligence 4: the row "separate networks".
    """

    task_identity: ClassVar[str] = "required"
    grows: ClassVar[bool] = True  # by a note on each network

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        return {
            f"task{stage}": Network(stream.build_model(), opens=stage)
            for stage in range(1, len(stream))
        }

    def start(self, learner: RunLearner, task: Task) -> None:
        own = f"task{learner.stage}." if learner.stage else "net."
        learner.free = learner.free.clone()
        for name, free in learner.layout(learner.free).items():
            if not name.startswith(own):
                free.fill_(False)
        noted = torch.zeros((), device=learner.device)
        learner.state = {"networks": (noted,) * learner.stage}  # besides the first

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        count = len(state["networks"])
        found = getattr(net, f"task{count}")(batch.x, w=batch.w) if count else net(batch.x, batch.w)
        return {"task": net.task(batch, logits=found.logits)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        further = range(1, len(state["networks"]) + 1)
        each: list[Any] = [net(x), *(getattr(net, f"task{number}")(x) for number in further)]
        newest = torch.full_like(stage, len(each) - 1)
        place = torch.where(stage < 0, newest, stage).reshape(1)
        features = torch.stack([one.features.flatten(1) for one in each])
        logits = torch.stack([one.logits for one in each])
        return Output(features.index_select(0, place)[0], logits.index_select(0, place)[0])
