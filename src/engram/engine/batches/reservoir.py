"""A reservoir that changes while a task is learnt.

A reservoir looks at no network: which row ends in which slot follows from the order in which rows
pass by. So what it holds at every step is known when the steps are sampled; there is no state on
the device, and a run has the same memory alone, in lockstep and after a resume.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engram import keys


class Contents(NamedTuple):
    """What R reservoirs of M slots hold before each of S steps, and where its rows go after it."""

    holder: Tensor  # [R, S, M] place of the row among the task's rows; -1: an earlier task's
    filled: Tensor  # [R, S] slots in use
    into: Tensor  # [R, S, B] slot that each row of the step enters and still holds after it, or -1


class Reservoir:
    """Lets the rows of a task pass by, chunk of steps after chunk of steps.

    Parameters
    ----------
    seen
        [R] rows that passed by before the task.
    slots
        M, slots of each reservoir.
    seeds
        [R] seeds of the runs.
    draws
        Batches drawn from the reservoir per step.
    """

    def __init__(self, seen: Tensor, slots: int, seeds: Tensor, draws: int = 1) -> None:
        self.slots, self.draws = slots, draws
        self.seen = seen.clone()  # grows as rows pass by
        self._key = keys.fold(seeds, "memory", "reservoir")
        self.holder = seeds.new_full((len(seeds), slots), -1)  # [R, M] as `Contents.holder`

    @property
    def filled(self) -> Tensor:
        """[R] slots in use now."""
        return self.seen.clamp(max=self.slots)

    def unchanged(self, steps: int, rows: int) -> Contents:
        """Nothing passes by: the first epoch is over."""
        runs = len(self.seen)
        return Contents(
            self.holder[:, None].expand(-1, steps, -1), self.filled[:, None].expand(-1, steps),
            self.holder.new_full((), -1).expand(runs, steps, rows),
        )  # fmt: skip

    def insert(self, index: Tensor, arrives: Tensor) -> Contents:
        """Rows `index` [R, S, B] of the task pass by where `arrives`."""
        runs, steps, size = index.shape
        here = arrives.flatten(1)  # [R, n]
        place = self.seen[:, None] + here.long().cumsum(1) - 1  # the how-manieth row ever, from 0
        drawn = keys.below(keys.fold(self._key[:, None], place), (place + 1).clamp(min=1))  # type: ignore[index]
        target = torch.where(place < self.slots, place, drawn)
        enters = here & (target < self.slots)
        arrival = torch.arange(steps * size, device=index.device).expand(runs, -1)
        # [R, S + 1, M] the last arrival in each slot within the step before
        last = index.new_full((runs, (steps + 1) * self.slots), -1)
        where = (arrival // size + 1) * self.slots + torch.where(enters, target, 0)
        last.scatter_reduce_(1, where, torch.where(enters, arrival, -1), "amax")
        last = last.view(runs, steps + 1, self.slots)
        stays = enters & (last.flatten(1).gather(1, where) == arrival)
        into = torch.where(stays, target, -1).view(runs, steps, size)
        newest = last.cummax(1).values  # arrivals are numbered in time
        rows = index.flatten(1).gather(1, newest.clamp(min=0).flatten(1)).view_as(newest)
        holder = torch.where(newest >= 0, rows, self.holder[:, None])
        count = here.view(runs, steps, size).sum(-1).cumsum(1)
        before = self.seen[:, None] + torch.cat([torch.zeros_like(count[:, :1]), count[:, :-1]], 1)
        self.holder, self.seen = holder[:, -1].clone(), self.seen + count[:, -1]
        return Contents(holder[:, :-1], before.clamp(max=self.slots), into)
