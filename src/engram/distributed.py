"""`Ranks`: the processes of a ``torchrun`` job that compute one run together, with their shards,
sums, gathers and broadcasts.

Every rank holds the whole run: weights, memory, method. Only the forward pass and its gradient are
split (`engram.learner.networks`), so all ranks hold equal numbers at all times.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from engram.errors import EngramError, bad
from engram.process import is_torchrun

T = TypeVar("T")
RANK_TIMEOUT = timedelta(hours=1)  # ranks wait while one of them writes the results


class LostRank(EngramError):
    """Another process of the job was lost, so that the current step cannot be finished."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a job, seen from one of them.

    Parameters
    ----------
    rank, world
        Number of this process, from 0, and number of processes.
    device
        Device of this process.
    """

    rank: int
    world: int
    device: torch.device

    def row_slice(self, rows: int) -> slice:
        """Return the slice of `rows` rows that belongs to this rank; sizes differ by one at most.

        Examples
        --------
        >>> [Ranks(rank, 3, torch.device("cpu")).row_slice(7) for rank in range(3)]
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
        """
        each, more = divmod(rows, self.world)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def shard(self, parts: Sequence[T]) -> list[T]:
        """Select this rank's parts: every `world`-th one."""
        return list(parts[self.rank :: self.world])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place; all ranks get bitwise equal sums."""
        with self._translate_errors():
            dist.all_reduce(tensor)
        return tensor

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum several tensors over all ranks in one message."""
        flat = self.sum_(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def gather_rows(self, own: Tensor, where: slice, rows: int) -> Tensor:
        """Gather [rows, ...] from all ranks; `own` are this rank's rows, at `where`."""
        full = own.new_zeros(rows, *own.shape[1:])
        full[where] = own
        return self.sum_(full)

    def gather(self, own: Sequence[Tensor], where: Sequence[slice], rows: int) -> Tensor:
        """Gather [rows, ...] from the parts of all ranks; `own` are at the slices `where`."""
        full = own[0].new_zeros(rows, *own[0].shape[1:])
        for part, place in zip(own, where, strict=True):
            full[place] = part
        return self.sum_(full)

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor, in place, by that of rank 0."""
        with self._translate_errors():
            dist.broadcast(tensor, 0)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return the value that rank 0 passes, which can be pickled."""
        values: list[Any] = [value if self.rank == 0 else None]
        with self._translate_errors():
            dist.broadcast_object_list(values, device=self.device)
        received: T = values[0]
        return received

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:
            text = str(problem).strip().splitlines()[:1] or [repr(problem)]
            raise LostRank(f"rank {self.rank} lost contact with another: {text[0]}") from problem


_NOW: Ranks | None = None


def current_ranks() -> Ranks | None:
    """Return the ranks that compute together now; None if this process computes alone."""
    return _NOW


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks | None]:
    """Let the processes of a job compute together inside the context; yields None without a job."""
    global _NOW
    if not is_torchrun():
        yield None
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if int(os.environ["LOCAL_RANK"]) >= torch.cuda.device_count():
            wanted = f"at most {torch.cuda.device_count()} processes, one per CUDA device"
            raise bad("--nproc-per-node", wanted, os.environ["LOCAL_WORLD_SIZE"])
        torch.cuda.set_device(device)
    if not dist.is_initialized():  # once per process: a script may call `run` several times
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=RANK_TIMEOUT)
        atexit.register(dist.destroy_process_group)
    before, _NOW = _NOW, Ranks(dist.get_rank(), dist.get_world_size(), device)
    try:
        yield _NOW
    finally:
        _NOW = before


@contextmanager
def without_ranks() -> Iterator[None]:
    """Let this process compute alone inside the context."""
    global _NOW
    before, _NOW = _NOW, None
    try:
        yield
    finally:
        _NOW = before
