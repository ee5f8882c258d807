"""How the predictions of a run are judged: by its stream, never by its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram import metrics
from engram.errors import bad
from engram.learner.batch import Batch
from engram.losses import multi_hot
from engram.methods.base import DECISIONS

if TYPE_CHECKING:
    from engram.engine.run import Run

# what a run is judged by, for rows of one label and for rows with a set of them
FIGURES = {"single": "accuracy", "set": "precision_weighted_jaccard"}
LOSSES = {"single": "ce", "set": "bce"}


def check_judging(run: Run) -> None:
    """Refuse a method, loss or watched figure that does not fit the labels of the stream."""
    kind, training = run.stream.labels, run.training
    name, needed = type(run.method).__name__, DECISIONS[kind]
    if needed not in run.method.decides:
        wanted = _wanted(kind)
        if kind == "set" and run.method.for_label_sets:
            wanted += f": {name} with {run.method.for_label_sets}"
        raise bad("method", wanted, f"{name}, whose scores allow {_either(run.method)}")
    if kind == "set" and training.loss not in ("auto", "bce"):
        expected = "'bce' (or 'auto'), because rows of this stream carry sets of labels"
        raise bad("loss", expected, training.loss)
    if kind == "set" and run.stream.head == "multi":
        expected = "a single head: a row with several labels may belong to several tasks"
        raise bad("stream.head", expected, run.stream.head)
    if training.plateau_watch not in ("loss", "score", FIGURES[kind]):
        expected = f"'loss' or 'score', which is {FIGURES[kind]!r} for this stream"
        raise bad("plateau_watch", expected, training.plateau_watch)


def _wanted(kind: str) -> str:
    if kind == "single":
        return "one whose scores have an argmax, because rows of this stream carry one label"
    return (
        "one that decides label by label (decides = ('argmax', 'threshold'): scores above 0 are "
        "predicted labels), because rows of this stream carry sets of labels"
    )


def _either(method: object) -> str:
    decides: tuple[str, ...] = getattr(method, "decides", ())
    return " or ".join(decides) or "no decision"


def judged(scores: Tensor, batch: Batch, kind: str) -> Tensor:
    """[] figure of the scores [B, C] on the rows of a batch, among the classes open there.

    Examples
    --------
    >>> from engram.learner.batch import Batch
    >>> none = torch.zeros(2)
    >>> open_ = torch.ones(2, 3, dtype=torch.bool)
    >>> batch = Batch(none, torch.tensor([[0, 2], [1, -1]]), none, none, none, open_, none, none,
    ...               none, none)
    >>> scores = torch.tensor([[3.0, -1.0, 2.0], [1.0, 2.0, -1.0]])
    >>> judged(scores, batch, "set").item(), judged(scores, batch, "single").item()
    (0.625, 1.0)
    """
    if kind == "single":
        shown = scores.masked_fill(~batch.open, -torch.inf)
        return (shown.argmax(-1) == batch.target).to(torch.float64).mean()
    truth = multi_hot(batch.y, scores.shape[-1], torch.bool)
    labelled = truth.any(-1)
    predicted = (scores > 0) & batch.open
    pair = (part[labelled].cpu().numpy() for part in (truth, predicted))
    return torch.as_tensor(metrics.precision_weighted_jaccard(*pair), dtype=torch.float64)
