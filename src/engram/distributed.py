"""Several processes of a ``torchrun`` job as one run: sharding, gathering and broadcasting
between ranks.

Every rank holds the whole run: weights, memory, method. What is shared out is the forward pass and
its gradient (`engram.learner.networks`); ranks never hold different numbers.
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
RANK_TIMEOUT = timedelta(
    hours=1
)  # that ranks wait for each other: one of them writes what all found


class LostRank(EngramError):
    """Another process of the job is gone: the step it took part in cannot be finished."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a job, seen from one of them.

    Parameters
    ----------
    rank, world
        The number of this process, from 0, and how many there are.
    device
        Where this process computes.
    """

    rank: int
    world: int
    device: torch.device

    def share(self, rows: int) -> slice:
        """Which of so many rows are this rank's; shares differ by one row at most.

        Examples
        --------
        >>> [Ranks(rank, 3, torch.device("cpu")).share(7) for rank in range(3)]
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
        """
        each, more = divmod(rows, self.world)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def deal(self, parts: Sequence[T]) -> list[T]:
        """Those of some parts that are this rank's turn."""
        return list(parts[self.rank :: self.world])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place; every rank gets the same bits."""
        with self._all_there():
            dist.all_reduce(tensor)
        return tensor

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over all ranks, sent at once."""
        flat = self.sum_(torch.cat([one.reshape(-1) for one in tensors]))
        parts = flat.split([one.numel() for one in tensors])
        return [part.view_as(one) for part, one in zip(parts, tensors, strict=True)]

    def joined(self, own: Tensor, where: slice, rows: int) -> Tensor:
        """[rows, ...] the parts of all ranks, `own` of them being those at `where`."""
        full = own.new_zeros(rows, *own.shape[1:])
        full[where] = own
        return self.sum_(full)

    def gather(self, own: Sequence[Tensor], where: Sequence[slice], rows: int) -> Tensor:
        """[rows, ...] what all ranks made of the parts that they were dealt."""
        full = own[0].new_zeros(rows, *own[0].shape[1:])
        for part, place in zip(own, where, strict=True):
            full[place] = part
        return self.sum_(full)

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """What rank 0 has, in place."""
        with self._all_there():
            dist.broadcast(tensor, 0)
        return tensor

    def broadcast(self, value: T) -> T:
        """What rank 0 has in place of this: any plain value."""
        held: list[Any] = [value if self.rank == 0 else None]
        with self._all_there():
            dist.broadcast_object_list(held, device=self.device)
        found: T = held[0]
        return found

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:
            text = str(problem).strip().splitlines()[:1] or [repr(problem)]
            raise LostRank(f"rank {self.rank} lost contact with another: {text[0]}") from problem


_NOW: Ranks | None = None


def current_ranks() -> Ranks | None:
    """The ranks that compute together now; None where a process works for itself."""
    return _NOW


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks | None]:
    """While this lasts, the processes of a job compute together; None without a job."""
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
    if not dist.is_initialized():  # once for the life of the process: a script may run often
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=RANK_TIMEOUT)
        atexit.register(dist.destroy_process_group)
    before, _NOW = _NOW, Ranks(dist.get_rank(), dist.get_world_size(), device)
    try:
        yield _NOW
    finally:
        _NOW = before


@contextmanager
def without_ranks() -> Iterator[None]:
    """While this lasts, this process works for itself."""
    global _NOW
    before, _NOW = _NOW, None
    try:
        yield
    finally:
        _NOW = before
