"""The contract of detectors: how familiar does a network find an input?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.net import Net
from engram.learner.tree import leaves, stack, tree_map
from engram.models.output import Output
from engram.novelty.facts import Facts, among, facts_of
from engram.novelty.passes import (
    SIZE,
    Head,
    heads_of,
    one_each,
    shuffled,
    valid_outputs,
)
from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.novelty import CALIBRATION, FAMILIARITY
from engram.records.stage_rows import StageRows

State = Mapping[str, Any]


@dataclass(frozen=True)
class Detector(Probe):
    """Base class: scores every test item after every stage; higher means more familiar.

    Write `score`, and `fit` where something is fitted to training rows: pure, for one run, row by
    row. Everything else is done here: all runs of a group at once, head by head, state over the
    stages, records. A detector is a probe, so it changes no training and no id.

    Attributes
    ----------
    fits
        Whether `fit` reads training rows.
    by_head
        Whether a score depends on the head's columns; if not, one pass serves all heads.
    mapped
        Whether all of it can be mapped over runs with `torch.func.vmap`; if not, they take turns.
    searched
        Options and values among which `Tuned` chooses where it is given no others.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Norm(Detector):
    ...     def score(self, net, x, columns, state):
    ...         return net(x).features.norm(dim=1)
    >>> Norm().name
    'norm'
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)
    fits: ClassVar[bool] = False
    by_head: ClassVar[bool] = True
    mapped: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def start(self, facts: Facts) -> State:
        """The state before the first stage: a tree of tensors."""
        return {}

    def begin(self, state: State, stage: int) -> State:
        """The state before the training rows of a stage."""
        return state

    @property
    def passes(self) -> int:
        """How often `fit` sees every training row; beyond 1, each time in another order."""
        return 1

    def passes_over(self, rows: int) -> int:
        """The same for a task of so many rows."""
        return self.passes

    @property
    def rows_at_once(self) -> int:
        """The most rows of a batch of `fit`."""
        return SIZE

    @property
    def only_scores(self) -> tuple[str, ...]:
        """Options that `fit` does not look at: one fit serves a search over them."""
        return ()

    def fit_options(self, rows: Sequence[int]) -> dict[str, Any]:
        """Options that decide a fit to tasks of so many rows, one of each run.

        Two detectors of one class for which they are equal need one fit.
        """
        left_out = self.only_scores
        return {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out
        }

    def digest(self, net: Net, x: Tensor) -> Tensor:
        """[B, ...] what `fit` gets as ``batch.x`` where it makes several passes; computed once."""
        return x

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        """The state after some training rows of the task (those of weight 0 are padding)."""
        return state

    def finish(self, state: State) -> State:
        """The state after all training rows of the task."""
        return state

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        """[B] how familiar the inputs are under the head with these columns [C] (a mask)."""
        raise NotImplementedError(f"{type(self).__name__}.score is not written")

    def unwritten(self) -> tuple[str, ...]:
        """Methods that an own detector must have and lacks."""
        return ("score",) if type(self).score is Detector.score else ()

    def refuse(self, facts: Facts) -> None:
        """Raise an error if the detector cannot work on such a run."""

    def check(self, learner: Learner) -> None:
        stream, name = learner.stream, type(self).__name__
        for verb in self.unwritten():
            raise bad(f"{name}.{verb}", "a method that the detector defines itself", "none")
        if stream.labels == "set":
            raise bad("stream", f"one label per row for {name}", "sets of labels")
        if len(stream) < 2:
            raise bad("stream", f"at least two tasks for {name}: what comes is novel", 1)
        self.refuse(facts_of(learner))

    # -- over all runs ---------------------------------------------------------------------------
    def after_stage(self, view: StageView) -> StageRows | Mapping[str, Any]:
        began = time.perf_counter()
        return self.recorded(view, self.fitted(view), began)

    def recorded(self, view: StageView, state: Any, began: float) -> dict[str, Any]:
        """Keep the state, store the scores; seconds since `began` and bytes of each run."""
        view.keep(state)
        view.store(FAMILIARITY, torch.stack(self._scores(view, state), 1))
        calibration = self.calibrated(view, state)
        if calibration is not None:
            view.store(CALIBRATION, calibration)
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(state))
        seconds = (time.perf_counter() - began) / len(view)
        return {"seconds": np.full(len(view), seconds), "bytes": np.full(len(view), float(size))}

    def _map(self, view: StageView, function: Callable[..., Any], *args: Any) -> Any:
        """`view.map`, or one run after the other where nothing can be mapped."""
        if self.mapped or len(view) == 1:
            return view.map(function, *args)
        each = []
        for r in range(len(view)):
            own = (tree_map(lambda leaf, r=r: leaf[r : r + 1], arg) for arg in args)
            each.append(view.only([r], None).map(function, *own))
        return tree_map(lambda *parts: torch.cat(parts), *each)

    def fitted(self, view: StageView) -> Any:
        """The state after the stage, [R, ...]."""
        state = view.state
        if not view.stage:
            state = stack([dict(self.start(facts_of(one))) for one in view.learners])
        if self.fits:
            state = self._map(view, lambda net, state: self.begin(state, view.stage), state)
            state = self._fit_all(view, state)
            state = self._map(view, lambda net, state: self.finish(state), state)
        return tree_map(torch.detach, state)

    def _fit_all(self, view: StageView, state: Any) -> Any:
        """The state after all batches."""
        if self.passes == 1 and type(self).digest is Detector.digest:
            for batch in view.batches(self.rows_at_once):
                state = tree_map(torch.detach, self._map(view, self.fit, batch, state))
            return state
        digested = [
            batch._replace(x=self._map(view, self.digest, batch.x)) for batch in view.batches(SIZE)
        ]
        return self._fit_several(view, digested, state)

    def _fit_several(self, view: StageView, digested: list[Batch], state: Any) -> Any:
        """The state after all passes over what `digest` made of the rows."""
        found = state
        for found in self._passes(view, digested, state):  # noqa: B007 - the last one counts
            pass
        return found

    def _passes(self, view: StageView, digested: list[Batch], state: Any) -> Iterator[Any]:
        """The state after each pass."""
        wanted = [self.passes_over(len(one.task.train)) for one in view.learners]
        for again in range(max(wanted)):
            for batch in shuffled(digested, view, again, self.rows_at_once, wanted):
                state = tree_map(torch.detach, self._map(view, self.fit, batch, state))
            yield state

    def calibrated(self, view: StageView, state: Any) -> Tensor | None:
        """[R, V] scores of validation rows that the network gets right, NaN for the others."""
        columns = heads_of(view)[-1].columns
        parts = []
        for (batch, output), x in zip(valid_outputs(view), self._validation(view), strict=False):
            right = self._map(view, _right, batch, output, columns)
            scores = self._of_rows(view, x, output, columns, state)
            parts.append(torch.where(right, scores.float(), torch.nan))
        return torch.cat(parts, 1) if parts else None

    def _validation(self, view: StageView) -> Iterator[Any]:
        """Inputs of the validation rows; what is counted is their first reading."""
        return (batch.x for batch in view.of(view.needs, None).validation(SIZE))

    def _of_rows(
        self, view: StageView, x: Any, output: Output, columns: Tensor, state: Any
    ) -> Tensor:
        found: Tensor = self._map(view, self.score, x, columns, state)
        return found

    def outside_scores(self, view: StageView, state: Any) -> Tensor:
        """[R, M] scores of the outside set's validation rows under the newest head."""
        columns = heads_of(view)[-1].columns
        parts = [
            self._map(view, self.score, x, columns, state) for x in view.outside("valid", SIZE)
        ]
        return torch.cat(parts, 1).float()

    def _scores(self, view: StageView, state: Any) -> list[Tensor]:
        """[R, n] under every head, NaN for items that are never compared under it."""
        heads = heads_of(view)
        if self.by_head:
            return [self._scored(view, head, state) for head in heads]
        wanted = torch.stack([head.wanted for head in heads]).any(0)
        whole = self._scored(view, Head(heads[-1].columns, wanted), state)
        return [torch.where(head.wanted, whole, torch.nan) for head in heads]

    def _scored(self, view: StageView, head: Head, state: Any) -> Tensor:
        found = torch.full(head.wanted.shape, torch.nan, device=view.device)
        for part, x in view.inputs(SIZE):
            wanted = head.wanted[:, part]
            if wanted.any():
                scores = one_each(self, self._map(view, self.score, x, head.columns, state))
                found[:, part] = torch.where(wanted, scores, torch.nan)
        return found


def _right(net: Net, batch: Batch, output: Output, columns: Tensor) -> Tensor:
    """[B] whether the largest logit of the head is that of a row's class."""
    return (among(output.logits, columns).argmax(-1) == batch.target) & (batch.w > 0)
