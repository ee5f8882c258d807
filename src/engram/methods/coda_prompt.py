"""CODA-Prompt: prompts that are sums of components, weighted for each row by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, check_float, check_int
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
    check_numbers,
    choose_blocks,
    compute_query,
    enter_task,
    insert_prefixes,
    need_outline,
    note_tasks,
    open_new,
    train_task_classes,
)
from engram.models.forward_pass import Output
from engram.models.insertions import Insertions
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

PARTS = ("prompts", "keys", "attention")


class Components(nn.Module):
    """Components of prompts for some blocks, with their keys and attention vectors."""

    def __init__(self, blocks: int, count: int, prompt: tuple[int, int], width: int) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.zeros(blocks, count, 2, *prompt))
        self.keys = nn.Parameter(torch.zeros(blocks, count, width))
        self.attention = nn.Parameter(torch.zeros(blocks, count, width))


@dataclass(frozen=True, kw_only=True)
class CODAPrompt(Method):
    """Prompts that are sums of components, of which each task adds some and freezes the older ones.

    q(x) = features of the transformer with nothing inserted
    p(x) = sum over components m of cos(q(x) * A_m, K_m) P_m, as prefixes of attention
    L = CE among the classes of the task + orthogonality * R of the prompts P, of K, and of A
    R(V) = mean square of the entries of V V' - 1, V having one row for each component

    The transformer stands still. P, K and A of a task begin as unit vectors that are orthogonal to
    those of earlier tasks, as long as there are dimensions.

    Parameters
    ----------
    components
        How many components a task adds. Published: 100 in all, for 10 tasks.
    length
        Length of a prompt, even: half of it are further keys, half of it values.
    blocks
        Numbers of the blocks with prompts, from 0; those that the model lacks are left out.
    orthogonality
        Weight of the penalty.

    Notes
    -----
    The model must be a transformer, which is frozen: ``minilm``, ``vit``, ``timm/vit_...``.

    Examples
    --------
    >>> CODAPrompt(length=3)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: length: expected an even number, got 3

    References
    ----------
    Smith et al. 2023, CVPR.
    """

    needed_model: ClassVar[str] = FROZEN_TRANSFORMER
    grows: ClassVar[bool] = True  # by a note on the components of each task

    components: int = 10
    length: int = 8
    blocks: tuple[int, ...] = (0, 1, 2, 3, 4)
    orthogonality: PerRun = 0.1

    def __post_init__(self) -> None:
        check_int("components", self.components, 1)
        if check_int("length", self.length) % 2:
            raise bad("length", "an even number", self.length)
        object.__setattr__(self, "blocks", check_numbers("blocks", self.blocks))
        check_float("orthogonality", self.orthogonality)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        sizes = need_outline(stream, "CODAPrompt")
        count = len(choose_blocks("blocks", self.blocks, sizes.depth))
        prompt, width = (self.length // 2, sizes.width), int(stream.features or 0)
        return {
            f"components{stage}": Network(
                Components(count, self.components, prompt, width), opens=stage
            )
            for stage in range(len(stream))
        }

    def start(self, learner: RunLearner, task: Task) -> None:
        enter_task(learner, {"tasks": note_tasks(learner)})
        open_new(learner, "components")
        for part in PARTS:
            names = [f"components{stage}.{part}" for stage in range(learner.stage + 1)]
            *older, new = (learner.params[name].flatten(2) for name in names)
            key = keys.fold(learner.seed, "CODAPrompt", part, learner.stage)
            drawn = keys.normal(key, *new.shape).to(new)
            for place in range(len(new)):
                known = [one[place] for one in older]
                learner.params[names[-1]][place] = make_orthogonal(drawn[place], known).view_as(
                    learner.params[names[-1]][place]
                )

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = self.answer(net, batch.x, state, batch.now).logits
        found = {"task": train_task_classes(net, batch, state, logits)}
        own = net.networks.layout(net.vector)
        rows = [read_components(own, part, len(state["tasks"])).flatten(2) for part in PARTS]
        found["penalty"] = self.orthogonality * sum(map(sum_overlaps, rows), rows[0].new_zeros(()))
        return found

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        own, count = net.params, len(state["tasks"])
        prompts, among, attention = (read_components(own, part, count) for part in PARTS)
        given = compute_query(net, x)[:, None, None, :] * attention  # [B, blocks, M, F]
        weights = F.cosine_similarity(given, among, dim=-1, eps=1e-12)
        values = torch.einsum("bnm,nmklw->bnklw", weights, prompts)
        found: Output = net.insert(
            x, Insertions(blocks=insert_prefixes(self.blocks[: len(prompts)], values))
        )
        return found


def read_components(params: dict[str, Tensor], part: str, tasks: int) -> Tensor:
    """Return a part [blocks, M, ...] of the components of all tasks so far."""
    return torch.cat([params[f"components{stage}.{part}"] for stage in range(tasks)], 1)


def sum_overlaps(rows: Tensor) -> Tensor:
    """Compute how far rows [blocks, M, d] are from orthogonal unit vectors, summed over blocks.

    Examples
    --------
    >>> sum_overlaps(torch.eye(2)[None]), sum_overlaps(torch.ones(1, 2, 1))
    (tensor(0.), tensor(0.5000))
    """
    gram = rows @ rows.mT
    return (gram - torch.eye(gram.shape[-1]).to(gram)).square().mean((-1, -2)).sum()


def make_orthogonal(drawn: Tensor, known: list[Tensor]) -> Tensor:
    """Make unit vectors of rows [M, d], orthogonal to each other and to the `known` ones.

    Those for which no dimension is left have unit length only.

    Examples
    --------
    >>> drawn = torch.tensor([[3.0, 4.0], [1.0, 1.0]])
    >>> make_orthogonal(drawn, [torch.tensor([[1.0, 0.0]])]).tolist()
    [[0.0, 1.0], [0.707..., 0.707...]]
    """
    span, found = torch.cat([*known, drawn[:0]]).double(), []
    basis = torch.linalg.qr(span.mT).Q if len(span) else span.mT
    for row in drawn.double():
        if basis.shape[1] < len(row):
            row = row - basis @ (basis.mT @ row)
            row = F.normalize(row - basis @ (basis.mT @ row), dim=0)
            basis = torch.cat([basis, row[:, None]], 1)
        found.append(F.normalize(row, dim=0))
    return torch.stack(found).to(drawn) if found else drawn
