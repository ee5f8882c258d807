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
from engram.methods.method import Method


class CapturedTrainer(SingleTrainer):
    """A `SingleTrainer` that replays its steps, with one recording per kind of step.

    Steps differ in the length of their batch and in the periods that end with them.
    """

    _records = True

    def __init__(
        self, learner: RunLearner, method: Method, training: Training, *, slots: int = 0,
        phase: str = "task",
    ) -> None:  # fmt: skip
        super().__init__(learner, method, training, slots=slots, phase=phase)
        t = self.tensors
        t.state = tree_map(torch.clone, t.state)  # written in place from here on
        t.number = torch.zeros(1, dtype=torch.long, device=learner.device)
        self._recorded: dict[tuple[int, tuple[int, ...]], CapturedStep] = {}
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

    @torch.no_grad()
    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        if self._rows is None:
            raise ValueError("load rows before running steps")
        self.tensors.number.fill_(start)  # type: ignore[union-attr]
        for number in range(start, stop):
            self._set_rate(float(lr[0, number - start]))
            length = self._lengths[number]
            if self._host is not None and self._upcoming is not None:
                self._upcoming(number)
                rows = select_step_unpadded(self._host, number, length)
                self._copy_batch(length, self.collate(rows))
            kind = length, self._due()
            if kind not in self._recorded:
                self._recorded[kind] = CapturedStep(
                    partial(self._captured_step, length), self._pool
                )
            with contextlib.nullcontext() if length == self._usual else without_cudnn_benchmark():
                self._recorded[kind]()
            self._count()

    def _copy_batch(self, length: int, batch: Batch) -> None:
        """Copy a batch fetched by the host to the addresses that its recorded step reads."""
        if length not in self._laid:
            self._laid[length] = tree_map(torch.clone, batch)
            return
        for place, value in zip(leaves(self._laid[length]), leaves(batch), strict=True):
            place.copy_(value)

    def _captured_step(self, length: int) -> None:
        number: Any = self.tensors.number
        rows = select_step(self._rows, number)  # type: ignore[arg-type]
        main, key, apart, into, passes = tree_map(lambda leaf: leaf[0], rows)
        main, into, passes = tree_map(lambda leaf: leaf[:length], (main, into, passes))
        step = self.draw(StepRows(main, key, apart, into, passes))
        batch = self._laid.get(length) if self._fetches else None
        batch = batch or self.collate(step)
        batch = self.set_time(batch)
        found = self._gradient_function()(batch)
        self._apply(found, batch, self._fill_memory(step, batch.key, found.values[0]))
        number.add_(1)

    def _rate(self) -> float | Tensor | None:
        return self.tensors.lr if self._fuses else None  # read by address

    def _release(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Discard all recordings: shapes changed, or the stage is over."""
        self._recorded.clear()
        self._laid.clear()
        # recordings share a memory pool, since they never run concurrently; a pool cannot be used
        # again after its last recording is gone
        self._pool = torch.cuda.graph_pool_handle()
