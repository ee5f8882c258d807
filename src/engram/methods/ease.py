"""EASE: an adapter for each task, and prototypes of all classes in the features of each adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import (
    FROZEN_TRANSFORMER,
    Method,
    MethodNetworks,
    Network,
    State,
    Terms,
)
from engram.methods.prompting import (
    ROWS_AT_ONCE,
    compare,
    enter_task,
    need_outline,
    note_tasks,
    open_new,
    train_task_classes,
)
from engram.methods.task_masks import refuse_known_classes
from engram.models.forward_pass import Output
from engram.models.insertions import Bottleneck, Insertion, Insertions
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

PARTS = ("down", "down_bias", "up", "up_bias")


class Adapters(nn.Module):
    """An adapter in every block, which begins as if there were none."""

    def __init__(self, depth: int, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter((2 * torch.rand(depth, rank, width) - 1) / math.sqrt(width))
        self.down_bias = nn.Parameter(torch.zeros(depth, rank))
        self.up = nn.Parameter(torch.zeros(depth, width, rank))
        self.up_bias = nn.Parameter(torch.zeros(depth, width))


@dataclass(frozen=True, kw_only=True)
class EASE(Method):
    """Expandable subspace ensemble: adapters that do not forget, prototypes as the classifier.

    Each task trains an adapter beside the feed-forward part of every block, with CE among its own
    classes, and keeps it. Then the mean features of its classes with every adapter so far are their
    prototypes. Those of older classes with the new adapter are not seen any more, and are made of
    the new classes' ones:

    P_new(old class) = sum over new classes c of softmax_c(cos(P_own(old class), P_own(c))) P_new(c)

    own: with the adapter that the old class was learnt with. The score of a class is its cosine
    with its own adapter + other * the sum of its cosines with all others.

    Parameters
    ----------
    rank
        Width of an adapter between its two linear maps.
    scale
        Multiplies what an adapter adds.
    other
        Weight of the features of adapters of other tasks.

    Notes
    -----
    The model must be a transformer, which is frozen: ``minilm``, ``vit``, ``timm/vit_...``. A row
    is answered by as many passes as there were tasks.

    Examples
    --------
    >>> EASE(rank=8).grows
    True

    References
    ----------
    Zhou et al. 2024, CVPR.
    """

    needed_model: ClassVar[str] = FROZEN_TRANSFORMER
    grows: ClassVar[bool] = True  # by the prototypes with each adapter

    rank: int = 16
    scale: PerRun = 0.1
    other: PerRun = 0.1

    def __post_init__(self) -> None:
        check_int("rank", self.rank, 1)
        check_float("scale", self.scale)
        check_float("other", self.other)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        sizes = need_outline(stream, "EASE")
        return {
            f"adapter{stage}": Network(Adapters(sizes.depth, sizes.width, self.rank), opens=stage)
            for stage in range(len(stream))
        }

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage:
            refuse_known_classes(learner, "EASE")
        enter_task(learner, {**learner.state, "tasks": note_tasks(learner)})
        open_new(learner, "adapter")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = self.adapt(net, batch.x, len(state["tasks"]) - 1).logits
        return {"task": train_task_classes(net, batch, state, logits)}

    @torch.no_grad()
    def finish(self, learner: RunLearner, task: Task) -> None:
        net, opened = learner.net(), learner.opened.to(learner.device)
        known = learner.state.get("prototypes", ())
        shape = len(opened), learner.class_weights().shape[1]
        sums = [learner.vector.new_zeros(shape) for _ in range(learner.stage + 1)]
        counts = learner.vector.new_zeros(len(opened))
        for rows in task.train.split(ROWS_AT_ONCE):
            batch = learner.batch(rows)
            counts.index_add_(0, batch.target, batch.w)
            for number, total in enumerate(sums):
                total.index_add_(0, batch.target, self.adapt(net, batch.x, number).features)
        new = opened == learner.stage
        means = [one / counts.clamp(min=1)[:, None] for one in sums]
        found = [
            torch.where(new[:, None], mean, old)
            for mean, old in zip(means, (*known, torch.zeros_like(means[-1])), strict=True)
        ]
        for number in range(learner.stage):
            own = opened == number
            found[-1][own] = map_prototypes(found[number][own], found[number][new], found[-1][new])
        learner.state = {**learner.state, "prototypes": tuple(found), "opened": opened}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        prototypes = state.get("prototypes", ())
        if not prototypes:
            return self.adapt(net, x, 0)
        features, scores = [], []
        for number, rows in enumerate(prototypes):
            features.append(self.features_of(net, x, number))
            own = (state["opened"] == number).to(rows)
            scores.append(compare(features[-1], rows) * (own + self.other * (1 - own)))
        return Output(torch.cat(features, -1), torch.stack(scores).sum(0))

    def features_of(self, net: Net, x: Tensor, number: int) -> Tensor:
        """Compute the features with the adapter of a task that is over, which stands still."""

        def adapt(rows: Tensor) -> Tensor:
            return self.adapt(net, rows, number).features

        parts = [net.params[f"adapter{number}.{part}"] for part in PARTS]
        return net.compute_once(x, adapt, "EASE", torch.as_tensor(self.scale), *parts)

    def adapt(self, net: Net, x: Tensor, number: int) -> Output:
        """Compute the output with the adapter of a task."""
        parts = [net.params[f"adapter{number}.{part}"].unbind(0) for part in PARTS]
        blocks = {
            place: Insertion(adapter=Bottleneck(down, down_bias, up, up_bias, self.scale))
            for place, (down, down_bias, up, up_bias) in enumerate(zip(*parts, strict=True))
        }
        found: Output = net.insert(x, Insertions(blocks=blocks))
        return found


def map_prototypes(old: Tensor, new: Tensor, mapped: Tensor) -> Tensor:
    """Make prototypes [O, F] of old classes of those [N, F] of new ones, by how similar they are.

    `old` and `new` have the same features; `mapped` are those of the new classes in others.

    Examples
    --------
    >>> rows = torch.eye(2)
    >>> map_prototypes(rows, rows, torch.tensor([[1.0], [0.0]])).mT.tolist()
    [[0.731..., 0.268...]]
    """
    return compare(old, new).softmax(-1) @ mapped
