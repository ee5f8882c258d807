"""LUCIR: a cosine head, imprinted class vectors, feature distillation, a margin for old classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from engram.errors import check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import bce_rows, mean, multi_hot
from engram.memory import Memory, check_memory
from engram.methods.icarl import distillation_targets
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task

VARIANTS = ("full", "no_margin", "distil", "distil_no_margin")
GROWTHS = ("old_new", "new_old")
REDUCTIONS = ("mean", "sum")
MOST_IMPRINT_ROWS = 1000  # rows of a class whose features are averaged at most
CLOSED_COSINE = -2.0  # below every cosine


def mean_direction(features: Tensor, length: Tensor | float) -> Tensor:
    """Compute the mean direction [d] of features [n, d], scaled to the given length.

    Examples
    --------
    >>> import torch
    >>> row = mean_direction(torch.tensor([[3.0, 4.0], [4.0, 3.0]]), 1.5)
    >>> [round(v, 6) for v in row.tolist()]
    [1.06066, 1.06066]
    """
    return F.normalize(F.normalize(features, dim=-1).mean(0), dim=0) * length


def cosine_distance(features: Tensor, old: Tensor) -> Tensor:
    """Compute 1 - cosine [B] of features [B, d] and old features; 0 if both are zero.

    Examples
    --------
    >>> import torch
    >>> round(cosine_distance(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])).item(), 6)
    0.04
    """
    return 0.5 * (F.normalize(features, dim=-1) - F.normalize(old, dim=-1)).square().sum(-1)


def feature_weight_growth(old: Tensor, new: Tensor, direction: str) -> Tensor:
    """Return the factor of the feature term that depends on the numbers of classes.

    Examples
    --------
    >>> import torch
    >>> round(5 * feature_weight_growth(torch.tensor(10.0), torch.tensor(5.0), "old_new").item(), 6)
    7.071068
    """
    over, under = (old, new) if direction == "old_new" else (new, old)
    return (over / under.clamp(min=1)).sqrt()


def margin_violations(
    cosines: Tensor, y: Tensor, known: Tensor, new: Tensor, *, margin: Tensor | float, hardest: int,
    reduce: str = "mean",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute by how much known labels miss the margin above the hardest new classes [B].

    Every known label of a row [B, L] is compared with each of the `hardest` new classes; `reduce`
    is over these, followed by a mean over labels. Also returns [B] 1 for rows with a known label.

    Examples
    --------
    >>> import torch
    >>> cosines = torch.tensor([[0.6, 0.5, 0.3, -0.2]])
    >>> known = torch.tensor([True, False, False, False])
    >>> short, count = margin_violations(
    ...     cosines, torch.tensor([[0, -1]]), known, ~known, margin=0.5, hardest=2
    ... )
    >>> round(short.item(), 6), count.item()
    (0.3, 1.0)
    """
    classes = cosines.shape[-1]
    rivals = (
        cosines.masked_fill(~new, CLOSED_COSINE).topk(min(hardest, classes), -1).values
    )  # [B, K]
    there = (rivals > CLOSED_COSINE).to(cosines.dtype)
    places = y.clamp(min=0)
    known_labels = ((y >= 0) & known[places]).to(cosines.dtype)  # [B, L]
    own = cosines.gather(-1, places)
    short = (margin - own.unsqueeze(-1) + rivals.unsqueeze(-2)).clamp(min=0) * there.unsqueeze(-2)
    total = short.sum(-1)  # [B, L]
    if reduce == "mean":
        total = total / there.sum(-1, keepdim=True).clamp(min=1)
    labels = known_labels.sum(-1)
    return (total * known_labels).sum(-1) / labels.clamp(min=1), (labels > 0).to(cosines.dtype)


@dataclass(frozen=True, kw_only=True)
class LUCIR(Method):
    """A cosine head with frozen old class vectors, feature distillation, and a margin loss.

    Before a task the head's vectors of its classes are imprinted: the mean direction of their
    features, with the mean norm of the old vectors. Vectors of classes that the task does not show
    are frozen. The loss is that of the run (softmax for single labels, binary for label sets) plus
    ``strength * sqrt(old / new) * (1 - cos(features, old features))`` plus, on memory rows,
    ``max(0, margin - cos of their class + cos of each of the hardest new classes)``.

    Parameters
    ----------
    memory
        Exemplars to keep: 20 per class by herding, as in the paper and IIRC.
    variant
        ``full``; ``no_margin``: without the margin; ``distil``: binary cross-entropy in which old
        classes have the old network's sigmoid as target, as in `ICaRL`; ``distil_no_margin``: both
        (the last three are IIRC's ablation).
    scale
        Initial factor of the cosines, which is then learnt. The original starts at 1 and trains for
        long; in few steps a scale of 1 cannot separate the classes.
    strength
        Weight of the feature term.
    growth
        ``old_new``: the feature term grows with the number of old classes; ``new_old``: it falls,
        as the IIRC thesis prints it.
    margin
        The margin m.
    hardest
        K, how many of the hardest new classes count.
    push
        Weight of the margin term.
    margin_reduce
        ``mean`` (both codes) or ``sum`` (as printed) over the K classes.

    Notes
    -----
    Hou et al. 2019 (CVPR); with label sets Abdelsalam et al. 2021 (CVPR). An exemplar stored under
    several old labels has the margin for each of them.

    Examples
    --------
    >>> LUCIR(variant="no_margn")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: variant: unknown name 'no_margn', did you mean 'no_margin'? ...
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    memory: Memory = field(default=Memory(per_class=20, policy="herding"))
    variant: str = "full"
    scale: PerRun = 10.0
    strength: PerRun = 5.0
    growth: str = "old_new"
    margin: PerRun = 0.5
    hardest: int = 2
    push: PerRun = 1.0
    margin_reduce: str = "mean"

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_choice("variant", self.variant, VARIANTS)
        check_choice("growth", self.growth, GROWTHS)
        check_choice("margin_reduce", self.margin_reduce, REDUCTIONS)
        check_float("scale", self.scale, open_low=True)
        check_float("strength", self.strength)
        check_float("margin", self.margin)
        check_float("push", self.push)
        check_int("hardest", self.hardest, 1)

    @property
    def head(self) -> dict[str, Any]:
        return {"name": "cosine", "scale": self.scale}

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}
        if learner.stage == 0:
            return
        shown = learner.stream.visible[learner.stage]
        learner.state = {"teacher": learner.snapshot(), "shown": shown.to(learner.device)}
        imprint_new_classes(learner, task)
        may_move = learner.layout(learner.free).head.weight
        may_move[(learner.known & ~shown).to(learner.device)] = False

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        output = net(batch.x, batch.w)
        if "teacher" not in state:
            return {"task": self._task(net, batch, state, None)}
        old = net.frozen(state["teacher"])(batch.x)
        away = cosine_distance(output.features, old.features)
        counts = (batch.known.sum().to(away.dtype), batch.new.sum().to(away.dtype))
        grown = feature_weight_growth(*counts, self.growth)
        terms = {
            "task": self._task(net, batch, state, old.logits),
            "hold": self.strength * grown * mean(away, batch.w),
        }
        if "no_margin" not in self.variant:
            cosines = net.head.cosines(output.features)
            short, count = margin_violations(
                cosines, batch.y, batch.known, batch.new, margin=self.margin, hardest=self.hardest,
                reduce=self.margin_reduce,
            )  # fmt: skip
            terms["margin"] = self.push * mean(short, batch.w * batch.old * count)
        return terms

    def _task(self, net: Net, batch: Batch, state: State, old: Tensor | None) -> Tensor:
        if "distil" not in self.variant:
            return net.task(batch)
        logits = net(batch.x, batch.w).logits
        if old is None:
            targets = multi_hot(batch.y, logits.shape[-1], logits.dtype)
        else:
            targets = distillation_targets(batch, old, state["shown"])
        return mean(bce_rows(logits, targets, batch.seen), batch.w)

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}


def imprint_new_classes(learner: RunLearner, task: Task) -> None:
    """Set the head's rows of new classes to the mean directions of their features.

    Their length is the mean length of the old rows.
    """
    rows, y = learner.params.head.weight, learner.labels(task.train)
    length = rows[learner.known.to(rows.device)].norm(dim=-1).mean()
    for column in learner.new.nonzero()[:, 0].tolist():
        own = task.train[(y == column).any(-1).to(task.train.device)][:MOST_IMPRINT_ROWS]
        features = learner.outputs(own).features.to(rows.device, rows.dtype)
        rows[column] = mean_direction(features, length)
