"""Training settings of a run: how long, how fast, on which batches."""

from __future__ import annotations

from dataclasses import dataclass

from engram.errors import bad, choose, number, whole
from engram.learner.feed import AUGMENTATIONS
from engram.learner.network import OPTIMIZERS
from engram.learner.objectives import OBJECTIVES
from engram.learner.scopes import SCOPES

SCHEDULES = ("constant", "step", "plateau")
WATCHED = ("loss", "score", "accuracy", "precision_weighted_jaccard")
LAST = ("keep", "drop", "wrap")
PRECISIONS = ("float32", "tf32", "float64", "bf16")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How each task is trained.

    Parameters
    ----------
    epochs, iterations
        Length of a task: passes over its rows, or a number of optimiser steps (then `epochs` is
        ignored). `first_factor` multiplies it for the first task.
    batch_size
        Rows per step; 0 means all rows at once. `last` says what happens to an incomplete last
        batch of an epoch: keep it, drop it, or wrap around to the epoch's first rows.
    scope
        Which logits the training loss covers: ``seen`` classes, the row's ``own`` task, those open
        ``then``, the ``current`` task's for current rows, or ``all``. ``auto``: own for multi-head
        streams, seen otherwise.
    loss
        ``ce``, ``balanced`` (every class of a batch counts equally) or ``bce`` (every class a yes
        or no). ``auto``: bce where rows carry sets of labels, which no other can learn, else ce.
        How predictions are judged follows the stream's labels, whatever the loss.
    class_weights
        Rows weigh inversely to how often their class occurs among all rows of the task and its
        replayed memory, so that ten exemplars of a class count as much as all rows of another.
    optim_reset
        Fresh optimiser state at every task.
    schedule
        ``constant``, ``step`` (multiply by `factor` at each of `milestones`, in epochs) or
        ``plateau`` (multiply by `factor` after `plateau_patience` epochs without gain in
        `plateau_watch`: the validation ``loss``, or the ``score`` that the stream is judged by,
        which is ``accuracy``, or ``precision_weighted_jaccard`` for sets of labels).
    min_lr
        A task ends when `schedule` takes the learning rate below this; 0 never.
    patience, restore_best
        Stop after so many epochs without a better validation score (0 never); go back to the best
        epoch, of equal ones the last. Both need in-task validation rows.
    augment
        Of training images: ``crop`` (padded with 4 black pixels on each side, then cut at random),
        ``resized_crop`` (a part of 8 to 100 percent and of sides 3:4 to 4:3, resized to the whole),
        ``flip``. Where the data has a `crop`, the first two are cut to that size: ``crop`` from
        anywhere in the image, without padding.
    precision
        ``float32``; ``tf32``: products and convolutions with 10 bits of mantissa on CUDA,
        elsewhere the same as float32; ``bf16`` where autocast allows it; ``float64``.
    evaluate_every
        Also evaluate all tasks every so many steps; 0 only after each task.

    Examples
    --------
    >>> Training(epochs=0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: epochs: expected a whole number of at least 1, got 0
    """

    epochs: int = 1
    iterations: int = 0
    first_factor: float = 1.0
    batch_size: int = 64
    last: str = "keep"
    lr: float = 1e-3
    optimizer: str = "adam"
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 0.0
    optim_reset: bool = True
    scope: str = "auto"
    loss: str = "auto"
    class_weights: bool = False
    schedule: str = "constant"
    factor: float = 0.1
    milestones: tuple[int, ...] = ()
    plateau_patience: int = 10
    plateau_threshold: float = 1e-4
    plateau_watch: str = "loss"
    min_lr: float = 0.0
    patience: int = 0
    restore_best: bool = False
    augment: tuple[str, ...] = ()
    precision: str = "float32"
    evaluate_every: int = 0

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, 1)
        for name in ("iterations", "batch_size", "plateau_patience", "patience", "evaluate_every"):
            whole(name, getattr(self, name))
        number("lr", self.lr, 0.0, open_low=True)
        number("first_factor", self.first_factor, 0.0, open_low=True)
        number("momentum", self.momentum, 0.0, 1.0)
        number("factor", self.factor, 0.0, 1.0, open_low=True)
        for name in ("weight_decay", "clip", "plateau_threshold", "min_lr"):
            number(name, getattr(self, name))
        choose("last", self.last, LAST)
        choose("optimizer", self.optimizer, OPTIMIZERS)
        choose("scope", self.scope, ("auto", *SCOPES))
        choose("loss", self.loss, ("auto", *OBJECTIVES))
        choose("schedule", self.schedule, SCHEDULES)
        choose("plateau_watch", self.plateau_watch, WATCHED)
        choose("precision", self.precision, PRECISIONS)
        for name in self.augment:
            choose("augment", name, AUGMENTATIONS)
        if self.schedule == "step" and not self.milestones:
            raise bad("milestones", "at least one epoch for schedule='step'", self.milestones)
        self._check_min_lr()
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise bad("betas", "two numbers in [0, 1)", self.betas)

    def _check_min_lr(self) -> None:
        if self.min_lr and self.schedule == "constant":
            expected = "0, because a constant rate never falls (schedule='plateau' or 'step')"
            raise bad("min_lr", expected, self.min_lr)
        if self.min_lr > self.lr:
            raise bad("min_lr", f"at most the learning rate, {self.lr}", self.min_lr)

    @property
    def validates(self) -> bool:
        """Whether training looks at in-task validation rows."""
        return self.schedule == "plateau" or self.patience > 0 or self.restore_best

    def length(self, stage: int) -> tuple[int, int]:
        """(epochs, iterations) of a stage; one of them is 0."""
        factor = self.first_factor if stage == 0 else 1.0
        if self.iterations:
            return 0, max(1, round(self.iterations * factor))
        return max(1, round(self.epochs * factor)), 0
