"""A detector that also scores rows which are no test items: what arrives without labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import bad
from engram.learner.learner import Learner
from engram.learner.net import Net
from engram.learner.tree import stack
from engram.novelty.base import Detector, State
from engram.novelty.facts import among, facts_of
from engram.novelty.passes import SIZE
from engram.novelty.softmax import Softmax
from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows

ARRIVED, HELD = "arrived", "held"


@dataclass(frozen=True)
class Scout(Probe):
    """Asks a detector about rows that have arrived, and about rows held aside, after the last task.

    Stored are the scores of both, ``arrived`` and ``held``, [n] each; scores of rows held aside
    that the network gets wrong are NaN, since thresholds are set by what it gets right.

    Parameters
    ----------
    detector
        Who is asked; it is fitted after every stage, as always.
    arrived, held
        Numbers of rows.
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)
    detector: Detector = field(default_factory=Softmax)
    arrived: tuple[int, ...] = ()
    held: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Always the same: rows are no name."""
        return "scout"

    @property
    def outside(self) -> bool:
        return self.detector.outside

    def check(self, learner: Learner) -> None:
        if learner.stream.labels == "set" or learner.stream.head != "single":
            raise bad("stream", "one label per row and one head for all tasks",
                      (learner.stream.labels, learner.stream.head))  # fmt: skip
        self.detector.refuse(facts_of(learner))

    def after_stage(self, view: StageView) -> StageRows | Mapping[str, Any]:
        rows = self.detector.after_stage(view)
        if view.stage < len(view.streams[0]) - 1:
            return rows
        state = stack(view.kept or [])
        for name, wanted in ((ARRIVED, self.arrived), (HELD, self.held)):
            parts = list(self._scores(view, torch.tensor(wanted, dtype=torch.long), state))
            scores = torch.cat([part[0] for part in parts], 1) if parts else view.open[:, :0]
            if name == HELD and parts:
                right = torch.cat([part[1] for part in parts], 1) == _columns(view, wanted)
                scores = torch.where(right, scores, torch.nan)
            view.store(name, scores.float())
        return rows

    def _scores(self, view: StageView, rows: Tensor, state: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """[R, B] familiarity and predicted columns of some rows at a time."""

        def one_run(net: Net, x: Tensor, columns: Tensor, state: State) -> tuple[Tensor, Tensor]:
            predicted = among(net(x).logits, columns).argmax(-1)
            return self.detector.score(net, x, columns, state).float(), predicted

        for start in range(0, len(rows), SIZE):
            some = rows[start : start + SIZE].to(view.device)
            stages = torch.full_like(some, view.stage)
            x = torch.stack([learner.feed(some, stages) for learner in view.learners])
            yield view.map(one_run, x, view.open, state)


def _columns(view: StageView, rows: tuple[int, ...]) -> Tensor:
    """[R, n] true labels of rows as columns of each run."""
    found = []
    for stream in view.streams:
        labels = stream.data.labels[list(rows)].tolist()
        found.append([stream.position[label] for label in labels])
    return torch.tensor(found, device=view.device)
