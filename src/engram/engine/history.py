"""Losses, curves and numbers of steps, recorded during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.engine.checkpoints import ResumePoint
from engram.engine.evaluation import learner_scores_are_sound
from engram.engine.trainers.trainer import Trainer
from engram.records.stage_result import StageResult

LOGS_PER_STAGE = 20

Losses = list[tuple[int, dict[str, float]]]  # (step, mean of every term since the last entry)
Curves = list[tuple[int, list[np.ndarray]]]  # (step, scores [items, C] of each run)


class PhaseLog:
    """Losses, curves and steps of R runs in one phase of a task with `total` steps."""

    def __init__(self, runs: int, total: int) -> None:
        self.total = total
        self.done = 0  # steps so far, of the run that took most
        self.steps = np.zeros(runs, dtype=int)  # [R] of each run
        self.since = np.zeros(runs, dtype=int)  # [R] those that are not in `sums` yet
        self.sums: list[tuple[int, np.ndarray, dict[str, Tensor]]] = []  # (done, since, terms [R])
        self.curve: Curves = []

    def count(self, live: np.ndarray) -> None:
        """Count steps, taken by the runs that are `live` [R, S] in each."""
        self.done += live.shape[1]
        taken = live.sum(1)
        self.steps += taken
        self.since += taken

    @property
    def due(self) -> bool:
        """Whether the losses should be recorded now."""
        return self.done >= (len(self.sums) + 1) * max(1, self.total // LOGS_PER_STAGE)

    def record(self, trainer: Trainer) -> None:
        """Record the losses since the last call."""
        if self.since.any():
            self.sums.append((self.done, self.since.copy(), trainer.take_log()))
            self.since[:] = 0

    @property
    def finite(self) -> bool:
        """Whether the losses recorded last are finite."""
        last = self.sums[-1][2] if self.sums else {}
        return all(bool(torch.isfinite(value).all()) for value in last.values())

    def losses(self) -> list[Losses]:
        """Return the mean of every loss term since the last entry, per run."""
        out: list[Losses] = [[] for _ in self.steps]
        for done, since, sums in self.sums:
            host = [value.double().cpu().numpy() / np.maximum(since, 1) for value in sums.values()]
            names, columns = [*sums, "total"], [*host, np.add.reduce(host)]
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for own, steps, row in zip(out, since, rows, strict=True):
                if steps:
                    own.append((done, dict(zip(names, row, strict=True))))
        return out

    def state_dict(self, run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part of one run, as plain values and tensors."""
        sums = [
            (done, int(since[run]), {k: float(v[run]) for k, v in terms.items()})
            for done, since, terms in self.sums
        ]
        numbers = {"steps": int(self.steps[run]), "since": int(self.since[run])}
        return {"done": self.done, "sums": sums, **numbers}, unstack_curve(self.curve, run)

    def load_state_dict(self, facts: Sequence[dict[str, Any]], curves: Sequence[Any]) -> None:
        """The reverse of `state_dict`, for all runs."""
        self.done = facts[0]["done"]
        self.steps[:], self.since[:] = ([one[k] for one in facts] for k in ("steps", "since"))
        self.sums = []
        for place, (done, _, names) in enumerate(facts[0]["sums"]):
            own = [one["sums"][place] for one in facts]
            terms = {k: torch.tensor([e[2][k] for e in own], dtype=torch.float64) for k in names}
            self.sums.append((done, np.array([entry[1] for entry in own]), terms))
        self.curve = stack_curves(curves)


class History:
    """Losses, curves and steps of R runs over the phases of a task.

    Runs that go on inside the task bring those of its earlier phases, in `points`; others the
    losses of what came `before` the task, whose steps were counted for themselves.
    """

    def __init__(self, before: Sequence[Losses], points: Sequence[ResumePoint] = ()) -> None:
        self.losses: list[Losses] = [list(one) for one in before]
        self.curve: Curves = []
        self.steps = [0] * len(before)
        self._before = 0  # steps of earlier phases
        if points:
            earlier = [one.facts["earlier"] for one in points]
            self.losses = [[(step, terms) for step, terms in one["losses"]] for one in earlier]
            self.steps, self._before = [one["steps"] for one in earlier], earlier[0]["before"]
            self.curve = stack_curves([one.tensors["earlier"] for one in points])

    def state_dict(self, run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a run's earlier phases gave, as plain values and tensors."""
        facts = {"losses": self.losses[run], "steps": self.steps[run], "before": self._before}
        return facts, unstack_curve(self.curve, run)

    def add(self, log: PhaseLog) -> None:
        """Append what a phase gave; its steps go on where those of the one before ended."""
        start = self._before
        for own, more in zip(self.losses, log.losses(), strict=True):
            own += [(start + step, terms) for step, terms in more]
        self.curve += [(start + step, scores) for step, scores in log.curve]
        self.steps = [done + int(more) for done, more in zip(self.steps, log.steps, strict=True)]
        self._before += log.done

    def complete(self, results: Sequence[StageResult], seconds: float, most: int) -> None:
        """Add to the results of the runs what training gave; curves without scores that are none.

        `seconds` is each run's share, `most` what ``evaluate_rows`` says.
        """
        for run, result in enumerate(results):
            curve = [(step, scores[run]) for step, scores in self.curve]
            result.curve = [
                one for one in curve if learner_scores_are_sound(result.learner, one[1], most)
            ]
            result.curve_rows = most
            result.losses, result.steps = self.losses[run], self.steps[run]
            result.seconds = seconds


def unstack_curve(curves: Curves, run: int) -> dict[str, Any]:
    """Return the curve of one run as a tree of tensors."""
    return {str(step): torch.as_tensor(scores[run]) for step, scores in curves}


def stack_curves(trees: Sequence[dict[str, Any]]) -> Curves:
    """Combine the results of `unstack_curve` for all runs."""
    return [(int(step), [tree[step].numpy() for tree in trees]) for step in trees[0]]
