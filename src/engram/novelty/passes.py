"""Passes over rows that detectors share, and the heads under which test items are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.net import FunctionalNet
from engram.models.output import Output
from engram.probes.view import StageView

SIZE = 256  # rows of a batch


class Head(NamedTuple):
    """Columns [R, C] that compete, and the test items [R, n] that are compared under them."""

    columns: Tensor
    wanted: Tensor


def heads_of(view: StageView) -> list[Head]:
    """One for each task learnt where the stream has a head per task, else one for all classes."""
    task, later = view.task, view.task > view.stage
    if view.streams[0].head == "single":
        return [Head(view.open, torch.ones_like(later))]
    found = []
    for i in range(view.stage + 1):
        visible = np.stack([one.visible[i] for one in view.items])
        columns = torch.from_numpy(visible).to(view.device)
        found.append(Head(columns, (task == i) | later))
    return found


def newest(view: StageView) -> Tensor:
    """[R, C] columns of the newest task's head, or of all classes so far."""
    return heads_of(view)[-1].columns


def forward(net: FunctionalNet, x: Tensor) -> Output:
    """Features as vectors, and logits."""
    output = net(x)
    return Output(output.features.flatten(1), output.logits)


def train_outputs(view: StageView) -> list[tuple[Batch, Output]]:
    """The task's training rows, their inputs replaced by features, with what the network says."""
    return _counted(view, "train")


def valid_outputs(view: StageView) -> list[tuple[Batch, Output]]:
    """The same of its validation rows."""
    return _counted(view, "valid")


def _counted(view: StageView, part: str) -> list[tuple[Batch, Output]]:
    """Rows count as read by every detector that asks, though the network is asked once."""
    found, sizes = _passed(view, part)
    view.reads["probe"] += sizes
    return found


def _passed(view: StageView, part: str) -> tuple[list[tuple[Batch, Output]], Any]:
    """What the network says of rows, and how many rows [R] these are; found once for a stage."""
    if view.whole is not None:
        parent, places = view.whole
        every, counts = _passed(parent, part)
        sizes = counts[places]
        return list(_trimmed(every, places, int(sizes.max(initial=0)))), sizes
    if part not in view.shared:
        other = view.of(view.needs, None)
        batches = other.batches(SIZE) if part == "train" else other.validation(SIZE)
        each = []
        for batch in batches:
            output = view.map(forward, batch.x)
            each.append((batch._replace(x=output.features), output))
        view.shared[part] = each, other.reads["probe"]
    return view.shared[part]  # type: ignore[no-any-return]


def _trimmed(
    found: list[tuple[Batch, Output]], places: list[int], longest: int
) -> Iterator[tuple[Batch, Output]]:
    """Some runs of a pass, without what is padding for all of them."""
    for batch, output in found:
        rows = min(longest, batch.w.shape[1])
        longest -= rows
        if rows:
            own = batch.map(lambda leaf: leaf[places])
            short = Batch._make([*(leaf[:, :rows] for leaf in own.per_row), *own[7:]])
            said = Output(output.features[places, :rows], output.logits[places, :rows])
            yield short, said


def one_each(detector: Any, scores: Any) -> Tensor:
    """Scores [R, B] of the rows of runs, if an own detector has given such."""
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        got = ["B", *scores.shape[2:]] if isinstance(scores, Tensor) else scores
        raise bad(f"score of {type(detector).__name__}", "one number for each row, ['B'],", got)
    return scores.float()


def outside_outputs(view: StageView, part: str = "valid") -> list[Output]:
    """What the networks say to rows of the outside set."""
    return [view.map(forward, x) for x in view.outside(part, SIZE)]


def shuffled(
    parts: list[Batch], view: StageView, again: int, size: int, passes: Sequence[int]
) -> Iterator[Batch]:
    """The rows of some batches [R, B, ...] in an order of each run's own, padding behind.

    A run that has seen them in all its passes gets padding alone.
    """
    names = Batch._fields[: len(parts[0].per_row)]
    rows: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], 1) for name in names
    }
    drawn = [keys.fold(seed, "detector", view.stage, again) for seed in view.seeds]
    count = (rows["w"] > 0).sum(1)
    order = keys.order(torch.tensor(drawn, device=view.device), rows["w"].shape[1], count)
    run = torch.arange(len(view), device=view.device)[:, None]
    open_yet = torch.tensor([again < own for own in passes], device=view.device)
    rows["w"] = rows["w"] * open_yet[:, None]
    for start in range(0, order.shape[1], size):
        index = order[:, start : start + size]
        yield parts[0]._replace(**{name: value[run, index] for name, value in rows.items()})
