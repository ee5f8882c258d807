"""What methods share that insert something into a transformer whose weights stand still."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import mean
from engram.methods.method import State
from engram.models.insertions import Insertion, Insertions, Prefix
from engram.streams.stream_outline import BlockOutline, StreamOutline

ROWS_AT_ONCE = 64  # of a pass on the host


def need_outline(stream: StreamOutline, method: str) -> BlockOutline:
    """Return the sizes of the model's blocks; raise if it is no transformer."""
    if stream.blocks is None:
        raise bad("model", f"a transformer, into which {method} inserts", "another network")
    return stream.blocks


def check_numbers(name: str, given: Any) -> tuple[int, ...]:
    """Return numbers of blocks in order; raise for anything else.

    Examples
    --------
    >>> check_numbers("blocks", [3, 2])
    (2, 3)
    """
    if not isinstance(given, (tuple, list)) or not given or len({*given}) < len(given):
        raise bad(name, "different numbers of blocks, such as (0, 1)", given)
    return tuple(sorted(check_int(name, number) for number in given))


def choose_blocks(name: str, given: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Return the numbers of blocks that a transformer of this depth has.

    Examples
    --------
    >>> choose_blocks("blocks", (2, 3, 4), depth=4)
    (2, 3)
    >>> choose_blocks("blocks", (4,), depth=4)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: blocks: expected numbers of blocks below 4, the depth ..., got (4,)
    """
    found = tuple(number for number in given if number < depth)
    if not found:
        raise bad(name, f"numbers of blocks below {depth}, the depth of the model", given)
    return found


def enter_task(learner: RunLearner, state: State) -> None:
    """Set the state, with the classes that the task shows; only their columns of the head move.

    Columns of other classes are trained where there are exemplars, as in a Join with replay.
    """
    shown = learner.stream.visible[learner.stage].to(learner.device)
    learner.state = {**state, "shown": shown}
    if len(learner.exemplars):
        return
    free = learner.layout(learner.free)
    for name in learner.networks.class_rows:
        free[name][~shown] = False


def train_task_classes(net: Net, batch: Batch, state: State, logits: Tensor) -> Tensor:
    """Compute the objective among the classes of the task; for exemplars among all that compete."""
    old = (batch.old > 0)[:, None]
    return net.task(batch._replace(open=batch.open & (state["shown"] | old)), logits=logits)


def compute_query(net: Net, x: Tensor) -> Tensor:
    """Compute the features [B, F] of rows that have passed the transformer with nothing inserted.

    It costs a pass without a gradient; that of a row of the data is made once.
    """

    def pass_plainly(rows: Tensor) -> Tensor:
        found: Tensor = net.detached().insert(rows, Insertions()).features
        return found

    return net.compute_once(x, pass_plainly, "query")


def compare(query: Tensor, keys: Tensor) -> Tensor:
    """Compute the cosines [B, M] of queries [B, F] and keys [M, F].

    Examples
    --------
    >>> compare(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [[1.0, 0.0]]
    """
    return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).mT


def choose_most_frequent(chosen: Tensor, weights: Tensor, count: int, keys: int) -> Tensor:
    """Return the numbers [count] that most rows have among their chosen ones [B, n].

    Of those that as many rows have, lower numbers come first.

    Examples
    --------
    >>> chosen = torch.tensor([[0, 2], [2, 1], [1, 2]])
    >>> choose_most_frequent(chosen, torch.ones(3), 2, keys=3).tolist()
    [2, 1]
    """
    numbers = torch.arange(keys, device=chosen.device)
    hits = (chosen[..., None] == numbers).any(1) & (weights > 0)[:, None]
    return (hits.sum(0) * keys - numbers).topk(count).indices


def pull_to_keys(similar: Tensor, w: Tensor) -> Tensor:
    """Compute the mean over rows of the sum of 1 - cosine over the keys [B, n] chosen for them."""
    return mean((1 - similar).sum(-1), w)


def open_new(learner: RunLearner, name: str) -> None:
    """Let the network of this task move, and those of earlier tasks stand still.

    Networks of a kind are called ``name0``, ``name1``, ...
    """
    own = f"{name}{learner.stage}."
    for entry, free in learner.layout(learner.free).items():
        if entry.startswith(name) and not entry.startswith(own):
            free.fill_(False)


class Prompts(nn.Module):
    """Vectors that are inserted, and the keys by which rows choose among them.

    Examples
    --------
    >>> found = Prompts((10, 5, 8), keys=(10, 8))
    >>> found.prompts.shape, found.prompt_keys.shape
    (torch.Size([10, 5, 8]), torch.Size([10, 8]))
    """

    def __init__(self, shape: tuple[int, ...], keys: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.empty(shape).uniform_(-1, 1))
        if keys is not None:
            self.prompt_keys = nn.Parameter(torch.empty(keys).uniform_(-1, 1))


def note_tasks(learner: RunLearner) -> tuple[Tensor, ...]:
    """Return a note for each task so far: how many networks of tasks are open is structure."""
    return (torch.zeros((), device=learner.device),) * (learner.stage + 1)


def stack_networks(net: Net, name: str, part: str, count: int) -> Tensor:
    """Return a parameter of the networks ``name0``, ``name1``, ... as one tensor [count, ...]."""
    return torch.stack([net.params[f"{name}{number}.{part}"] for number in range(count)])


def insert_prefixes(blocks: tuple[int, ...], values: Tensor) -> dict[int, Insertion]:
    """Return prefixes [..., blocks, 2, n, W] of keys and of values, as insertions by block."""
    return {
        number: Insertion(Prefix(*values[..., place, :, :, :].unbind(-3)))
        for place, number in enumerate(blocks)
    }
