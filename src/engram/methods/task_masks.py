"""What methods with masks for each task share: heads of their own, statistics for each task."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import State


def refuse_known_classes(learner: RunLearner, method: str) -> None:
    """Raise for a stream with tasks that show known classes: their heads cannot stand still."""
    stream = learner.stream
    opens = stream.opening == torch.arange(len(stream.visible))[:, None]  # [T, C]
    if bool((stream.visible & ~opens).any()):
        raise bad("stream", f"tasks whose classes are all new, for {method}", "known classes")


def free_new_classes(learner: RunLearner) -> None:
    """Let the task's own rows of the last layers move, and no other ones."""
    heads = learner.layout(learner.free)
    for name in learner.networks.class_rows:
        heads[name].fill_(False)
        heads[name][learner.new.to(learner.device)] = True


def append(kept: Tensor | None, row: Tensor) -> Tensor:
    """Append a row [...] to some [n, ...], if there are any.

    Examples
    --------
    >>> append(append(None, torch.tensor([1])), torch.tensor([2])).tolist()
    [[1], [2]]
    """
    return row[None].clone() if kept is None else torch.cat([kept, row[None]])


def keep_statistics(learner: RunLearner) -> None:
    """Keep the running statistics of this task beside those of the tasks before it."""
    if learner.buffers:
        kept = learner.state.get("statistics", {})
        now = {name: append(kept.get(name), value) for name, value in learner.buffers.items()}
        learner.state = {**learner.state, "statistics": now}


def choose_statistics(net: Net, state: State, stage: Tensor) -> dict[str, Tensor]:
    """Return the running statistics of a task; the current ones while it is trained."""
    kept = state.get("statistics", {})
    return {
        name: choose_row(kept[name], stage, value) if name in kept else value
        for name, value in net.statistics().items()
    }


def choose_row(rows: Tensor, number: Tensor, default: Tensor) -> Tensor:
    """Return a row of some by its number []; the default where there is none.

    Examples
    --------
    >>> rows, default = torch.tensor([[1.0], [2.0]]), torch.tensor([9.0])
    >>> [choose_row(rows, torch.tensor(k), default).item() for k in (-1, 0, 1, 2)]
    [9.0, 1.0, 2.0, 9.0]
    """
    known = (number >= 0) & (number < len(rows))
    place = number.clamp(0, len(rows) - 1).reshape(1)
    return torch.where(known, rows.index_select(0, place)[0], default)
