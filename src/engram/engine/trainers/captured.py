"""`CapturedTrainer`: one run on CUDA, whose steps are recorded as CUDA graphs and replayed.

Small networks are limited by the time to launch kernels, so that replaying a recording is several
times as fast. Everything that a step reads or writes has a fixed address.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.engine.backend import without_cudnn_benchmark
from engram.engine.batches import (
    RowAnnouncer,
    clone_rows,
    copy_into_,
    move_rows_to_host,
    row_tensors,
    select_step,
    select_step_unpadded,
    shapes_fit,
)
from engram.engine.sampler import StepRows
from engram.engine.trainers.cuda_graph import CapturedStep
from engram.engine.trainers.single import SingleTrainer
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import leaves, tree_map
from engram.methods.method import Method, Terms


class CapturedTrainer(SingleTrainer):
    """A `SingleTrainer` that replays its steps, with one recording per batch length."""

    def __init__(
        self, learner: RunLearner, method: Method, training: Training, *, slots: int = 0,
        phase: str = "task",
    ) -> None:  # fmt: skip
        super().__init__(learner, method, training, slots=slots, phase=phase)
        learner.state = tree_map(torch.clone, learner.state)  # written in place from here on
        vector = learner.vector
        self._lr = torch.zeros((), device=vector.device, dtype=vector.dtype)
        self._number = torch.zeros(1, dtype=torch.long, device=vector.device)  # of the step
        self._recorded: dict[int, CapturedStep] = {}
        self._laid: dict[int, Batch] = {}  # batches that the host fetched, by their length
        self._host: StepRows | None = None
        self._usual = 0  # the length of most batches; an epoch's last one may be shorter
        self._forget()

    def load(self, rows: StepRows, fixed: bool) -> None:
        self._prepare(rows)
        known, new = row_tensors(self._rows), row_tensors(rows)
        if not known or not shapes_fit(new, known):
            self._rows = clone_rows(rows)
            self._forget()
        else:
            copy_into_(known, new)
        self._usual = Counter(self._lengths).most_common(1)[0][0]
        self._announce_all(rows)

    def _announce_all(self, rows: StepRows) -> None:
        if self._fetches:  # outside of what is recorded, which reads a batch at a fixed address
            self._host = move_rows_to_host(rows)
            self._upcoming = RowAnnouncer(self.collate.feed, self._host, cut=True)

    def reseed(self, key: Tensor) -> None:
        if self._rows is not None:
            self._rows.key.copy_(key)
        if self._host is not None:
            self._announce_all(self._host._replace(key=key))

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        if self._rows is None:
            raise ValueError("load rows before running steps")
        self._lr.fill_(float(lr[0]))
        self._number.fill_(start)
        for number in range(start, stop):
            length = self._lengths[number]
            if self._host is not None and self._upcoming is not None:
                self._upcoming(number)
                rows = select_step_unpadded(self._host, number, length)
                self._copy_batch(length, self.collate(rows))
            if length not in self._recorded:
                self._recorded[length] = CapturedStep(
                    partial(self._captured_step, length), self._pool
                )
            with contextlib.nullcontext() if length == self._usual else without_cudnn_benchmark():
                self._recorded[length]()
            self._count()

    def _copy_batch(self, length: int, batch: Batch) -> None:
        """Copy a batch fetched by the host to the addresses that its recorded step reads."""
        if length not in self._laid:
            self._laid[length] = tree_map(torch.clone, batch)
            return
        for place, value in zip(leaves(self._laid[length]), leaves(batch), strict=True):
            place.copy_(value)

    def _captured_step(self, length: int) -> None:
        rows = select_step(self._rows, self._number)  # type: ignore[arg-type]
        main, key, apart, into = tree_map(lambda leaf: leaf[0], rows)
        main, into = tree_map(lambda leaf: leaf[:length], (main, into))
        rows = StepRows(main, key, apart, into)
        self._batch = self._laid[length] if self._fetches else self.collate(rows)
        gradient = self._projected if self._projects else self._gradient
        self._step(rows, gradient(self._batch), self._lr)
        self._number.add_(1)

    def _interval(self) -> None:
        self._recorded_interval()

    def _update(
        self, params: list[Tensor], grads: list[Tensor], m: list[Tensor], v: list[Tensor],
        lr: float | Tensor,
    ) -> None:  # fmt: skip
        if params[0].dtype == torch.float32:
            super()._update(params, grads, m, v, lr)
            return
        # fused kernels accept float32 rates only, which would round a float64 run
        learner = self.learner
        flat = grads[0] if len(grads) == 1 else learner.networks.layout.flatten(grads)
        self.optimizer.update_(learner.vector, flat, learner.opt, self._lr)

    def _set_state(self, state: Any) -> None:
        def write(old: Tensor, new: Tensor) -> None:
            if new is not old:
                old.copy_(new)

        tree_map(write, self.learner.state, state)

    def _log(self, terms: Terms) -> None:
        for name, term in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(term.detach())
            self.sums[name].add_(term.detach())

    def take_log(self) -> dict[str, Tensor]:
        sums = {name: value.clone().reshape(1) for name, value in self.sums.items()}
        for value in self.sums.values():
            value.zero_()
        return sums

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        """Discard all recordings: shapes changed, or the stage is over."""
        self._recorded.clear()
        self._laid.clear()
        # recordings share a memory pool, since they never run concurrently; a pool cannot be used
        # again after its last recording is gone
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded_interval = CapturedStep(super()._interval, self._pool)
