"""`Training`: the training settings of a run, such as epochs, batch size and learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engram.errors import bad, check_bool, check_choice, check_float, check_int
from engram.learner.feed import AUGMENTATIONS
from engram.learner.objectives import OBJECTIVES, SCOPES
from engram.learner.parameter_layout import OPTIMIZERS
from engram.renamed import accept_old_names

SCHEDULES = ("constant", "step", "plateau", "cosine")
WATCHED_SCORES = ("loss", "score", "accuracy", "precision_weighted_jaccard")
INCOMPLETE_BATCHES = ("keep", "drop", "wrap")
WHOLE_NUMBERS = (
    "iterations", "batch_size", "steps_per_epoch", "plateau_patience", "patience",
    "evaluate_every", "evaluate_rows", "warmup_steps",
)  # fmt: skip
PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {  # of weights; of autocast
    "float32": (torch.float32, None), "tf32": (torch.float32, None),
    "float64": (torch.float64, None), "bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float32, torch.float16),
}  # fmt: skip


@accept_old_names
@dataclass(frozen=True, kw_only=True)
class Training:
    """How each task is trained.

    Parameters
    ----------
    epochs, iterations, first_task_scale
        Training length of a task: passes over its rows, or optimiser steps (`epochs` is then
        ignored). `first_task_scale` multiplies the length of the first task.
    steps_per_epoch
        Steps of an epoch, whatever number of rows a task has: shuffled passes follow one another
        without incomplete batches, and an epoch may end inside one. Then `epochs`, `patience`,
        `plateau_patience` and `milestones`, which count epochs, mean as much training on a tenth of
        the rows as on all of them. 0: one pass over the rows.
    batch_size, incomplete_batch
        Rows per step; 0 means all rows at once. `incomplete_batch`, what to do with a last batch of
        an epoch that has fewer rows: ``keep`` it, ``drop`` it, or ``wrap`` around to the first rows
        of the epoch.
    accumulate
        Number of batches whose gradients are averaged for one optimiser step: as one batch of
        `accumulate` times the rows, except that layers with batch statistics, and means over rows
        replayed in batches of their own, see each by itself.
    lr, optimizer, momentum, nesterov, betas, weight_decay
        Learning rate; ``sgd``, ``adam`` or ``adamw``; momentum of SGD, and whether it is
        Nesterov's; betas of Adam and AdamW; weight decay, which AdamW decouples from the gradient.
    lr_of
        Multiples of the learning rate by the beginnings of parameters' names, such as
        ``{"net.backbone": 0.1}`` for a pre-trained backbone below a new head; the longest beginning
        counts, 0 keeps parameters as they are. Names are those of ``net.params``.
    clip, clip_value
        Largest norm of the gradient, which is scaled down beyond it, and largest absolute value of
        its entries; 0: no clipping.
    ema
        Exponential moving average of the weights: the share of the average that stays in every
        step, such as 0.999; 0: none. The average is validated, evaluated and kept, and the next
        task starts from it; with `optim_reset` it begins anew with every task. Running statistics
        are those of the last step.
    optim_reset
        Reset the optimiser's state at every task.
    scope
        Classes over which the training loss is computed: those ``seen`` so far, those of the row's
        ``own`` task, those open ``at_time`` of the row's task, for the rows of the ``current`` task
        its classes and for memory rows all seen ones, or ``all``. ``auto``: own for multi-head
        streams, seen otherwise.
    loss
        ``ce`` (cross-entropy), ``balanced`` (cross-entropy, every class in a batch with equal
        weight) or ``bce`` (binary, per class). ``auto``: bce where rows carry sets of labels, which
        need it, otherwise ce. Evaluation follows the stream's labels, whatever the loss.
    label_smoothing
        Share of each target that is spread evenly over the classes that compete; 0: none.
    class_weights
        Weight rows inversely to the frequency of their class in the task and its replayed memory,
        so that ten exemplars of one class count as much as all rows of another.
    schedule, factor, milestones, plateau_patience, plateau_threshold, plateau_watch
        ``constant``, ``step`` (multiply the learning rate by `factor` at each of `milestones`, in
        epochs) or ``plateau`` (multiply by `factor` once `plateau_watch` has not improved by more
        than `plateau_threshold` for more than `plateau_patience` epochs), or ``cosine`` (fall to 0
        by a half cosine over the steps of the task). Watched is the validation
        ``loss`` or ``score``: ``accuracy``, or ``precision_weighted_jaccard`` for sets of labels.
    warmup_steps
        Steps at the beginning of each task in which the learning rate rises linearly; 0: none.
    stop_lr
        End the task when `schedule` takes the learning rate below this; 0: never.
    patience, restore_best
        Stop after so many epochs without a better validation score (0: never); restore the best
        epoch, the last of equal ones. Both need in-task validation rows.
    augment
        Augmentation of training images: ``crop`` (pad by 4 black pixels on each side, then crop at
        random), ``resized_crop`` (8 to 100 percent of the area, aspect ratio 3:4 to 4:3), ``flip``.
        If the data has a `crop`, both crops have that size, and ``crop`` does not pad. Of training
        skeletons, anew in every step: ``rotate`` (up to 60 degrees around x and y), ``scale`` (0.5
        to 1.5), ``frames`` (as many drawn with replacement, in their order).
    precision
        ``float32``; ``tf32``: matrix products and convolutions with 10 bits of mantissa on CUDA,
        elsewhere the same as float32; ``bf16`` or ``fp16`` where autocast allows it, the latter
        with dynamic scaling of the loss; ``float64``.
    evaluate_every, evaluate_rows
        Also evaluate all tasks every so many steps; 0: only after each task. At those steps, on at
        most so many test rows of each task, evenly spread over them and the same for all runs; 0:
        on all.

    Examples
    --------
    >>> Training(epochs=0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: epochs: expected a whole number of at least 1, got 0
    """

    epochs: int = 1
    iterations: int = 0
    steps_per_epoch: int = 0
    first_task_scale: float = 1.0
    batch_size: int = 64
    incomplete_batch: str = "keep"
    accumulate: int = 1
    lr: float = 1e-3
    optimizer: str = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    lr_of: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    clip: float = 0.0
    clip_value: float = 0.0
    ema: float = 0.0
    optim_reset: bool = True
    scope: str = "auto"
    loss: str = "auto"
    label_smoothing: float = 0.0
    class_weights: bool = False
    schedule: str = "constant"
    factor: float = 0.1
    milestones: tuple[int, ...] = ()
    plateau_patience: int = 10
    plateau_threshold: float = 1e-4
    plateau_watch: str = "loss"
    warmup_steps: int = 0
    stop_lr: float = 0.0
    patience: int = 0
    restore_best: bool = False
    augment: tuple[str, ...] = ()
    precision: str = "float32"
    evaluate_every: int = 0
    evaluate_rows: int = 0

    def __post_init__(self) -> None:
        check_int("epochs", self.epochs, 1)
        check_int("accumulate", self.accumulate, 1)
        for name in WHOLE_NUMBERS:
            check_int(name, getattr(self, name))
        check_float("lr", self.lr, 0.0, open_low=True)
        object.__setattr__(self, "lr_of", check_rates(self.lr_of))
        check_float("first_task_scale", self.first_task_scale, 0.0, open_low=True)
        check_float("momentum", self.momentum, 0.0, 1.0)
        check_bool("nesterov", self.nesterov)
        check_float("ema", self.ema, 0.0, 1.0)
        check_float("label_smoothing", self.label_smoothing, 0.0, 1.0)
        check_float("factor", self.factor, 0.0, 1.0, open_low=True)
        for name in ("weight_decay", "clip", "clip_value", "plateau_threshold", "stop_lr"):
            check_float(name, getattr(self, name))
        check_choice("incomplete_batch", self.incomplete_batch, INCOMPLETE_BATCHES)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("scope", self.scope, ("auto", *SCOPES))
        check_choice("loss", self.loss, ("auto", *OBJECTIVES))
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("plateau_watch", self.plateau_watch, WATCHED_SCORES)
        check_choice("precision", self.precision, PRECISIONS)
        for name in self.augment:
            check_choice("augment", name, AUGMENTATIONS)
        if self.schedule == "step" and not self.milestones:
            raise bad("milestones", "at least one epoch for schedule='step'", self.milestones)
        self._check_stop_lr()
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise bad("nesterov", "False unless the optimizer is sgd with momentum", True)
        if self.accumulate > 1 and not self.batch_size:
            raise bad("accumulate", "1 where batch_size is 0, all rows at once", self.accumulate)
        if self.evaluate_rows and not self.evaluate_every:
            raise bad("evaluate_rows", "0 unless evaluate_every is given", self.evaluate_rows)
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise bad("betas", "two numbers in [0, 1)", self.betas)

    def _check_stop_lr(self) -> None:
        if self.stop_lr and self.schedule in ("constant", "cosine"):
            expected = f"0 where the schedule is {self.schedule} (it goes with plateau and step)"
            raise bad("stop_lr", expected, self.stop_lr)
        if self.stop_lr > self.lr:
            raise bad("stop_lr", f"at most the learning rate, {self.lr}", self.stop_lr)

    @property
    def rows_per_step(self) -> int:
        """Rows of the current task per optimiser step; 0: all."""
        return self.batch_size * self.accumulate

    @property
    def validates(self) -> bool:
        """Whether training uses in-task validation rows."""
        return self.schedule == "plateau" or self.patience > 0 or self.restore_best

    def count_epoch_steps(self, rows: int) -> int:
        """Return the number of batches in an epoch of a task of so many rows.

        Examples
        --------
        >>> Training(batch_size=64).count_epoch_steps(1600)
        25
        >>> Training(batch_size=64, steps_per_epoch=125).count_epoch_steps(1600)
        125
        """
        return self.steps_per_epoch or math.ceil(rows / (self.batch_size or max(1, rows)))

    def length(self, stage: int) -> tuple[int, int]:
        """Return (epochs, iterations) of a stage; one of them is 0."""
        factor = self.first_task_scale if stage == 0 else 1.0
        if self.iterations:
            return 0, max(1, round(self.iterations * factor))
        return max(1, round(self.epochs * factor)), 0


def check_rates(rates: Any) -> tuple[tuple[str, float], ...]:
    """Return multiples of the learning rate by beginnings of names, as sorted pairs.

    Examples
    --------
    >>> check_rates({"net.head": 2, "net.backbone": 0.1})
    (('net.backbone', 0.1), ('net.head', 2.0))
    """
    pairs = list(rates.items() if isinstance(rates, Mapping) else rates)
    found: dict[str, float] = {}
    for pair in pairs:
        if not isinstance(pair, Iterable) or isinstance(pair, str) or len(pair := tuple(pair)) != 2:
            raise bad("lr_of", "a mapping such as {'net.backbone': 0.1}", rates)
        name, rate = pair
        if not isinstance(name, str) or not name or name in found:
            raise bad("lr_of", "beginnings of names of parameters, each once", name)
        found[name] = float(check_float(f"lr_of {name}", rate))
    return tuple(sorted(found.items()))
