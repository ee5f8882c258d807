"""Detectors that only read features and logits: one pass over any rows serves all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.learner.batch import Batch
from engram.learner.net import Net
from engram.models.output import Output
from engram.novelty.base import Detector, State
from engram.novelty.facts import class_rows
from engram.novelty.passes import SIZE, Head, heads_of, one_each, outside_outputs, train_outputs
from engram.probes.view import StageView


@dataclass(frozen=True)
class OutputDetector(Detector):
    """A detector that only reads features and logits: all of them share one pass over any rows.

    Write `familiarity`, and `learn` where something is fitted.
    """

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        """[B] from features [B, F], logits [B, C] and the last layer's class rows [C, F]."""
        raise NotImplementedError(f"{type(self).__name__}.familiarity is not written")

    def unwritten(self) -> tuple[str, ...]:
        asks = type(self).familiarity is OutputDetector.familiarity
        usual = type(self).score is OutputDetector.score and type(self)._of is OutputDetector._of
        return ("familiarity",) if asks and usual else ()

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        """As `fit`, from what the network says of the rows."""
        return state

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        return self.learn(_flat(net(batch.x)), batch, state)

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        return self._of(net, net(x), columns, state)

    def _of(self, net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
        return self.familiarity(_flat(output), class_rows(net), columns, state)

    def _fit_all(self, view: StageView, state: Any) -> Any:
        if type(self).fit is not OutputDetector.fit:  # it looks at inputs after all
            return super()._fit_all(view, state)
        for batch, output in train_outputs(view):
            state = self._map(view, lambda net, *args: self.learn(*args), output, batch, state)
        return state

    def _validation(self, view: StageView) -> Iterator[Any]:
        return itertools.repeat(None)

    def _of_rows(
        self, view: StageView, x: Any, output: Output, columns: Tensor, state: Any
    ) -> Tensor:
        found: Tensor = self._map(view, self._of, output, columns, state)
        return found

    def outside_scores(self, view: StageView, state: Any) -> Tensor:
        columns = heads_of(view)[-1].columns
        parts = [
            self._map(view, self._of, output, columns, state) for output in outside_outputs(view)
        ]
        return torch.cat(parts, 1).float()

    def _scored(self, view: StageView, head: Head, state: Any) -> Tensor:
        features, logits, _ = view.outputs
        size, parts = 16 * SIZE, []
        for start in range(0, features.shape[1], size):
            some = Output(features[:, start : start + size], logits[:, start : start + size])
            parts.append(one_each(self, self._map(view, self._of, some, head.columns, state)))
        return torch.where(head.wanted, torch.cat(parts, 1), torch.nan)


def _flat(output: Output) -> Output:
    return Output(output.features.flatten(1), output.logits)
