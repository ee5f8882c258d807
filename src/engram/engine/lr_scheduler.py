"""Learning rates, early stopping and best epochs of R runs, decided on the host once per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.learner.tree import tree_map


class Schedule:
    """What happens between epochs; the same arithmetic for one run or many.

    Plateau and stopping may watch different numbers: the rate follows the validation loss or the
    score by which the stream is judged, stopping and the best epoch follow that score.
    """

    def __init__(self, training: Training, runs: int, rates: np.ndarray | None = None) -> None:
        self.training = training
        self.lr = np.full(runs, training.lr) if rates is None else np.array(rates, dtype=float)
        self.active = np.ones(runs, dtype=bool)
        self.improved = np.zeros(runs, dtype=bool)
        self._plateau_best = np.full(runs, -np.inf)
        self._bad = np.zeros(runs, dtype=int)
        self._best = np.full(runs, -np.inf)
        self._idle = np.zeros(runs, dtype=int)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes, by name; to be written into, when a run goes on."""
        names = ("lr", "active", "improved", "_plateau_best", "_bad", "_best", "_idle")
        return {name: getattr(self, name) for name in names}

    def after_epoch(self, epoch: int, watched: dict[str, np.ndarray]) -> None:
        """Take the validation numbers [R] of this epoch into account."""
        t = self.training
        if t.schedule == "step" and epoch + 1 in t.milestones:
            self.lr = self.lr * t.factor
        if t.schedule == "plateau":
            self._plateau(watched)
        if t.patience or t.restore_best:
            score = watched["score"]
            gain = (score > self._best) & self.active
            self.improved = (score >= self._best) & self.active  # of equal epochs the last is best
            self._best = np.where(gain, score, self._best)
            self._idle = np.where(gain, 0, self._idle + 1)
        if t.patience:
            self.active &= self._idle < t.patience
        if t.min_lr:  # 1.0 * 0.1 * 0.1 is a little more than 0.01, and 0.3 * 0.1 a little less
            self.active &= self.lr > t.min_lr * (1 - 1e-9)

    def _plateau(self, watched: dict[str, np.ndarray]) -> None:
        t = self.training
        score = -watched["loss"] if t.plateau_watch == "loss" else watched["score"]
        gain = score > self._plateau_best + t.plateau_threshold
        self._plateau_best = np.where(gain, score, self._plateau_best)
        self._bad = np.where(gain, 0, self._bad + 1)
        cut = (self._bad > t.plateau_patience) & self.active
        self.lr = np.where(cut, self.lr * t.factor, self.lr)
        self._bad = np.where(cut, 0, self._bad)


class BestEpoch:
    """Weights, buffers and method state of each learner after its best epoch so far.

    Of epochs with equal scores the last one counts: it was trained longest.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = learners
        self.saved: list[Any] = []  # per run: (vector, buffers, state)

    def keep(self, improved: np.ndarray) -> None:
        """After an epoch: copies of the learners that have `improved` [R]; of all, at first."""
        first = not self.saved
        self.saved = self.saved or [None] * len(self.learners)
        for run, learner in enumerate(self.learners):
            if first or improved[run]:
                parts = (learner.vector, learner.buffers, learner.state)
                self.saved[run] = tree_map(torch.clone, parts)

    def restore(self) -> None:
        """Let the learners be what they were after their best epochs."""
        for learner, parts in zip(self.learners, self.saved, strict=False):
            learner.vector, learner.buffers, learner.state = parts
