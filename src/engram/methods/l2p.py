"""L2P: a pool of prompts, from which every row chooses some by their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import FROZEN_TRANSFORMER, Method, MethodNetworks, State, Terms
from engram.methods.prompting import (
    Prompts,
    choose_most_frequent,
    compare,
    compute_query,
    enter_task,
    need_outline,
    pull_to_keys,
    train_task_classes,
)
from engram.models.forward_pass import Output
from engram.models.insertions import Insertions
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class L2P(Method):
    """Learning to prompt: each row chooses prompts from a pool, which stand before its tokens.

    q(x) = features of the transformer with nothing inserted
    the prompts of a row = those of the `top` keys k with the largest cosines to q(x)
    L = CE among the classes of the task + pull * sum of (1 - cos(q(x), k)) over the chosen keys

    The transformer stands still; prompts, keys and the head are trained. Features are the mean of
    the outputs at the prompts.

    Parameters
    ----------
    pool
        Number of prompts.
    length
        Tokens of a prompt; 0: the head alone is trained.
    top
        How many prompts a row chooses.
    pull
        Weight of the distance between queries and the keys chosen.
    choice
        ``row``: every row has the prompts that it chooses. ``batch``: all rows of a batch, in
        training and when they are answered, have those that most of them choose, as published. A
        row's score then depends on the rows beside it.

    Notes
    -----
    The model must be a transformer, which is frozen: ``minilm``, ``vit``, ``timm/vit_...``.

    Examples
    --------
    >>> L2P(top=3).needed_model
    'frozen transformer'
    >>> L2P(top=11)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: top: expected at most 10, the prompts of the pool, got 11

    References
    ----------
    Wang et al. 2022, CVPR.
    """

    needed_model: ClassVar[str] = FROZEN_TRANSFORMER

    pool: int = 10
    length: int = 5
    top: int = 5
    pull: PerRun = 0.5
    choice: str = "row"

    def __post_init__(self) -> None:
        check_int("pool", self.pool, 1)
        check_int("length", self.length)
        check_float("pull", self.pull)
        check_choice("choice", self.choice, ("row", "batch"))
        if check_int("top", self.top, 1) > self.pool:
            raise bad("top", f"at most {self.pool}, the prompts of the pool", self.top)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        width = need_outline(stream, "L2P").width
        keys = (self.pool, int(stream.features or width))
        return {"pool": Prompts((self.pool, self.length, width), keys)}

    def start(self, learner: RunLearner, task: Task) -> None:
        enter_task(learner, {})

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        output, similar = self.insert(net, batch.x, batch.w)
        return {
            "task": train_task_classes(net, batch, state, output.logits),
            "pull": self.pull * pull_to_keys(similar, batch.w),
        }

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        return self.insert(net, x, torch.ones_like(x.flatten(1)[:, 0]))[0]

    def insert(self, net: Net, x: Tensor, w: Tensor) -> tuple[Output, Tensor]:
        """Compute the output, and the cosines [B, top] of queries and the keys chosen."""
        own = net.params.pool
        cosines = compare(compute_query(net, x), own.prompt_keys)
        chosen = cosines.detach().topk(self.top).indices
        if self.choice == "batch":
            common = choose_most_frequent(chosen, w, self.top, self.pool)
            chosen = common.expand_as(chosen)
        prompts = own.prompts[chosen].flatten(1, 2)
        return net.insert(x, Insertions(prompts), True), cosines.gather(-1, chosen)
