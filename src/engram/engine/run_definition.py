"""`Run`: the stream, method, model, settings and seed of one run, with checks that they fit
together, and the score of its predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engram import metrics
from engram.engine.training import Training
from engram.errors import bad, check_choice, check_int
from engram.learner.batch import Batch
from engram.losses import multi_hot
from engram.methods.method import (
    DECISIONS,
    TASK_IDENTITIES,
    Method,
    check_arguments,
    tells_task,
)
from engram.streams.stream import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """Everything one run is made of."""

    stream: Stream
    method: Method
    model: Any = "mlp"
    training: Training = field(default_factory=Training)
    seed: int = 0
    features: bool = False  # keep features of the test items after each stage, for probes
    unseen: bool = False  # score the test items of tasks to come after each stage, too
    begun: bool = False  # the run continues an earlier one: its pretraining is done

    def __post_init__(self) -> None:
        check_int("seed", self.seed)
        if not isinstance(self.method, Method):
            raise bad("method", "a method such as engram.methods.ER()", self.method)
        check_arguments(self.method)
        if self.stream.online and (self.training.epochs > 1 and not self.training.iterations):
            raise bad("epochs", "1, because the stream is online", self.training.epochs)
        check_label_kind(self)
        check_task_identity(self)
        memory = self.method.memory
        if memory is not None:
            memory.check(groups=self.stream.count_groups(), tasks=len(self.stream))

    @property
    def scope(self) -> str:
        """The training scope, with ``auto`` resolved by the stream's head."""
        return self._resolve("scope")

    @property
    def loss(self) -> str:
        """The training loss, with ``auto`` resolved by the stream's labels."""
        return self._resolve("loss")

    def _resolve(self, name: str) -> str:
        value: str = getattr(self.training, name)
        return resolve_auto(self.stream)[name] if value == "auto" else value


def resolve_auto(stream: Stream) -> dict[str, str]:
    """Return the values of settings that are ``auto`` for a run over a stream.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> resolve_auto(class_incremental(load("blobs")))
    {'scope': 'seen', 'loss': 'ce'}
    """
    scope = "own" if stream.head == "multi" else "seen"
    return {"scope": scope, "loss": LOSSES[stream.labels]}


def check_task_identity(run: Run) -> None:
    """Raise if the method's answers need the task of a row, and the stream does not tell it."""
    method, stream = run.method, run.stream
    asked = check_choice(
        f"{type(method).__name__}.task_identity", method.task_identity, TASK_IDENTITIES
    )
    if asked == "required" and stream.head != "multi":
        expected = "one whose tasks are given when rows are tested (head='multi')"
        raise bad("stream", f"{expected}, for {type(method).__name__}", f"head={stream.head!r}")
    if tells_task(method, stream.head) and stream.labels == "set":
        expected = f"one label per row, for {type(method).__name__} with the task given"
        raise bad("stream", expected, "sets of labels")


def check_exemplars(run: Run) -> None:
    """Raise if a memory has more exemplars per class or task than the largest one has rows."""
    memory, stream = run.method.memory, run.stream
    if memory is None:
        return
    for kind, asked in (("class", memory.per_class), ("task", memory.per_task)):
        if asked is None:
            continue
        sizes = [len(task.train) for task in stream.tasks]
        if kind == "class":
            sizes = [_largest_class(stream, k) for k in range(len(stream))]
        if asked > max(sizes):
            expected = f"at most {max(sizes)}, the training rows of the largest {kind}"
            raise bad(f"memory.per_{kind}", expected, asked)


def check_validation(stream: Stream, training: Training, stages: Iterable[int]) -> None:
    """Raise for tasks without the validation rows that settings need."""
    if not training.validates:
        return
    for stage in stages:
        task = stream.tasks[stage]
        if len(task.valid) == 0:
            wanted = "in-task validation rows for plateau, patience or restore_best"
            how = "such as valid=0.1; a small share of few rows may be none"
            raise bad("stream", f"{wanted} ({how})", f"{len(task.train)} rows, all for training, "
                      f"in task {stage}")  # fmt: skip


def _largest_class(stream: Stream, stage: int) -> int:
    """Return the number of training rows of a task's largest class."""
    labels = stream.targets[stream.tasks[stage].train]
    return int(torch.bincount(labels[labels >= 0]).max())


# -- how the predictions of a run are scored: its stream decides, not its loss ---------------------

# the score of a run, for rows with one label and for rows with a set of labels
FIGURES = {"single": "accuracy", "set": "precision_weighted_jaccard"}
LOSSES = {"single": "ce", "set": "bce"}


def check_label_kind(run: Run) -> None:
    """Raise for a method, loss or watched score that does not fit the labels of the stream."""
    kind, training = run.stream.labels, run.training
    name, needed = type(run.method).__name__, DECISIONS[kind]
    if needed not in run.method.decides:
        wanted = _describe_fitting_methods(kind)
        if kind == "set" and run.method.for_label_sets:
            wanted += f": {name} with {run.method.for_label_sets}"
        raise bad("method", wanted, f"{name}, whose scores allow {_describe_decisions(run.method)}")
    if kind == "set" and training.loss not in ("auto", "bce"):
        expected = "'bce' (or 'auto'), because rows of this stream carry sets of labels"
        raise bad("loss", expected, training.loss)
    if kind == "set" and run.stream.head == "multi":
        expected = "a single head: a row with several labels may belong to several tasks"
        raise bad("stream.head", expected, run.stream.head)
    if training.plateau_watch not in ("loss", "score", FIGURES[kind]):
        expected = f"'loss' or 'score', which is {FIGURES[kind]!r} for this stream"
        raise bad("plateau_watch", expected, training.plateau_watch)


def _describe_fitting_methods(kind: str) -> str:
    if kind == "single":
        return "one whose scores have an argmax, because rows of this stream carry one label"
    return (
        "one that decides label by label (decides = ('argmax', 'threshold'): scores above 0 are "
        "predicted labels), because rows of this stream carry sets of labels"
    )


def _describe_decisions(method: Method) -> str:
    return " or ".join(method.decides) or "no decision"


def score_batch(scores: Tensor, batch: Batch, kind: str) -> Tensor:
    """Score predictions [B, C] on the rows of a batch, among their open classes.

    Examples
    --------
    >>> from engram.learner.batch import Batch
    >>> none = torch.zeros(2)
    >>> open_ = torch.ones(2, 3, dtype=torch.bool)
    >>> batch = Batch(
    ...     none, torch.tensor([[0, 2], [1, -1]]), none, none, none, open_, none, none, none, none
    ... )
    >>> scores = torch.tensor([[3.0, -1.0, 2.0], [1.0, 2.0, -1.0]])
    >>> score_batch(scores, batch, "set").item(), score_batch(scores, batch, "single").item()
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
