"""InfLoRA: low-rank updates in directions that earlier tasks have left free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engram.errors import bad, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.gpm import FLOOR, extend
from engram.methods.method import FROZEN_TRANSFORMER, Method, MethodNetworks, State, Terms
from engram.methods.prompting import (
    ROWS_AT_ONCE,
    enter_task,
    need_outline,
    train_task_classes,
)
from engram.models.forward_pass import Output
from engram.models.insertions import Insertion, Insertions, LowRank
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

MAPS = ("key", "value")


class Updates(nn.Module):
    """The part of the updates that is trained: [depth, maps, W, r]."""

    def __init__(self, depth: int, width: int, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(depth, len(MAPS), width, rank))


@dataclass(frozen=True, kw_only=True)
class InfLoRA(Method):
    """Interference-free low-rank adaptation of the maps to keys and values, in every block.

    H = tokens that attention in a block is given by the rows of the task, before it is trained
    D = the `rank` leading left singular vectors of H outside the directions of earlier tasks
    W x <- W x + U D' x / sqrt(3), U being trained, from 0
    after the task, U D' / sqrt(3) is added to W, and the leading directions of the tokens to those
    that later tasks leave alone (as in `GPM`), until they hold a share of their squares

    L = CE among the classes of the task. The transformer's own weights are not touched: what is
    added to them is in the state, and does not grow with the number of tasks.

    Parameters
    ----------
    rank
        Rank of the update of a task; 0: the head alone is trained.
    threshold
        Share of the squared tokens that the directions of the first task hold.
    last_threshold
        The share that the rising share would reach after the last task.

    Notes
    -----
    The model must be a transformer, which is frozen: ``minilm``, ``vit``, ``timm/vit_...``. A task
    begins and ends with a pass over its rows.

    Examples
    --------
    >>> InfLoRA(rank=4)
    InfLoRA(rank=4, threshold=0.95, last_threshold=1.0)

    References
    ----------
    Liang and Li 2024, CVPR.
    """

    needed_model: ClassVar[str] = FROZEN_TRANSFORMER

    rank: int = 10
    threshold: PerRun = 0.95
    last_threshold: PerRun = 1.0

    def __post_init__(self) -> None:
        check_int("rank", self.rank)
        check_float("threshold", self.threshold, 0.0, 1.0)
        check_float("last_threshold", self.last_threshold, 0.0, 1.0)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        sizes = need_outline(stream, "InfLoRA")
        if self.rank > sizes.width:
            raise bad("rank", f"at most {sizes.width}, the width of the model", self.rank)
        return {"updates": Updates(sizes.depth, sizes.width, self.rank)}

    def start(self, learner: RunLearner, task: Task) -> None:
        up, state = learner.params["updates.up"], learner.state
        depth, maps, width, _ = up.shape
        up.zero_()
        if not learner.stage:
            state = {
                "added": up.new_zeros(depth, maps, width, width),
                "held": torch.zeros(depth, width, width, dtype=torch.double, device=up.device),
            }
        down = up.new_zeros(depth, self.rank, width)
        moments = sum_moments(learner, task, insert_added(state["added"]))
        if bool(moments.isfinite().all()):  # not so after a run has diverged
            pairs = zip(moments, state["held"], strict=True)
            found = torch.stack([find_directions(*pair, self.rank) for pair in pairs])
            down = found.to(up) / math.sqrt(3)
        enter_task(learner, {**state, "down": down})

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = self.answer(net, batch.x, state, batch.now).logits
        return {"task": train_task_classes(net, batch, state, logits)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        state, up = learner.state, learner.params["updates.up"]
        added = state["added"] + up @ state["down"][:, None]
        up.zero_()
        moments = sum_moments(learner, task, insert_added(added))
        rise = learner.stage / len(learner.stream)
        share = self.threshold + (self.last_threshold - self.threshold) * rise
        held = [extend(*pair, share) for pair in zip(state["held"], moments, strict=True)]
        learner.state = {**state, "added": added, "held": torch.stack(held)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        up: Tensor = net.params["updates.up"]
        blocks = {
            number: Insertion(
                updates={
                    name: (
                        LowRank(state["down"][number], up[number, place]),
                        state["added"][number, place],
                    )
                    for place, name in enumerate(MAPS)
                }
            )
            for number in range(len(up))
        }
        found: Output = net.insert(x, Insertions(blocks=blocks))
        return found


def insert_added(added: Tensor) -> Insertions:
    """Return insertions of what is added to the weights [depth, maps, W, W]."""
    return Insertions(
        blocks={
            number: Insertion(updates=dict(zip(MAPS, one, strict=True)))
            for number, one in enumerate(added)
        }
    )


@torch.no_grad()
def sum_moments(learner: RunLearner, task: Task, more: Insertions) -> Tensor:
    """Compute the sums [depth, W, W] of h h' over the tokens that the rows of the task give."""
    net = learner.net()
    parts = (
        net.input_moments(learner.batch(rows).x, more) for rows in task.train.split(ROWS_AT_ONCE)
    )
    return torch.stack([*parts]).sum(0)


def find_directions(moment: Tensor, held: Tensor, rank: int) -> Tensor:
    """Return the leading eigenvectors [r, d] of a moment outside of what a projector holds.

    Zeros stand for those whose eigenvalues rounding decides. The largest entry of each is positive.

    Examples
    --------
    >>> moment, held = torch.diag(torch.tensor([4.0, 2.0, 3.0])), torch.diag(torch.eye(3)[0])
    >>> find_directions(moment, held, 1).tolist()
    [[0.0, 0.0, 1.0]]
    """
    rest = torch.eye(len(moment), dtype=moment.dtype, device=moment.device) - held
    values, vectors = torch.linalg.eigh(rest @ moment @ rest)
    rows, values = vectors.mT.flip(0)[:rank], values.flip(0)[:rank]
    signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
    certain = values > FLOOR * torch.linalg.matrix_norm(moment, 2)
    found: Tensor = rows * signs * certain[:, None]
    return found
