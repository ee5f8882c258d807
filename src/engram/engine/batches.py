"""From sampled rows to the Batch a loss sees; the same for one run and for many."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from engram import distributed, keys
from engram.engine.sampler import StepRows
from engram.engine.stored_values import LATENT_NAME, Latents, look_up_latents, read_slots
from engram.learner.batch import Batch, TrainingRows
from engram.learner.feed import PREFETCH_BATCHES, Feed
from engram.learner.tensor_tree import leaves, tree_map
from engram.methods.method import Method


class Collator:
    """Facts of a stage that every batch carries, for R runs ([R, ...]) or one (no R axis).

    `alone` says that all rows are the current task's, so that nothing differs from row to row;
    `even`, that the same classes compete for every row.
    """

    def __init__(
        self, feed: Feed, *, opened: Tensor, scopes: Tensor, now: Tensor, stage: int, alone: bool,
        even: bool = False,
    ) -> None:  # fmt: skip
        self.feed, self.alone, self.even = feed, alone, even or alone
        self.current = scopes.select(-2, stage).unsqueeze(-2)  # [R?, 1, C]
        self.opened = opened  # [R?, C]
        self.scopes = scopes  # [R?, T, C] classes that compete for a row of each task
        self.now = now  # [R?]
        self.values: dict[str, Tensor] = {}  # [R?, M + 1, ...] what is remembered, by slot
        self.latents: Latents = {}  # of the task's rows, where the top alone is trained
        self._no_slot = torch.tensor(-1, device=now.device)

    def tensors(self) -> dict[str, Any]:
        """All that differs between stages and groups."""
        names = ("current", "opened", "scopes", "now", "values", "latents")
        return {name: getattr(self, name) for name in names}

    def with_tensors(self, tensors: dict[str, Any]) -> Collator:
        """The same with other tensors."""
        twin = copy.copy(self)
        for name, value in tensors.items():
            setattr(twin, name, value)
        return twin

    def __call__(self, rows: StepRows) -> Batch:
        """The batch of one step, with the batches kept apart from it."""
        memory = (self._batch(one, keys.fold(rows.key, j)) for j, one in enumerate(rows.apart))
        return self._batch(rows.main, rows.key)._replace(memory=tuple(memory))

    def _batch(self, part: TrainingRows, key: keys.Key) -> Batch:
        key, stage = torch.as_tensor(key), part.stages
        if self.alone:
            old = torch.zeros_like(part.w)
        else:
            old = ((part.slot >= 0) | (stage < self.now.unsqueeze(-1))).to(part.w.dtype)
        if self.even:
            open_ = self.current.expand(*stage.shape, -1)
        else:
            spread = stage[..., None].expand(*stage.shape, self.scopes.shape[-1])
            open_ = self.scopes.gather(-2, spread)
        return Batch(
            x=self._inputs(part, key),
            y=part.y,
            w=part.w,
            stage=stage,
            old=old,
            open=open_,
            slot=self._no_slot.expand(stage.shape) if self.alone else part.slot,
            opened=self.opened,
            now=self.now,
            key=key,
            values={name: read_slots(table, part.slot) for name, table in self._payload()},
        )

    def _inputs(self, part: TrainingRows, key: Tensor) -> Tensor:
        if not self.latents:
            return self.feed.fetch_augmented(
                part.rows, part.stages, key, distributed.current_ranks()
            )
        by_slot = None if self.alone else self.values.get(LATENT_NAME)
        return look_up_latents(self.latents, part.rows, part.slot, by_slot)

    def _payload(self) -> list[tuple[str, Tensor]]:
        """What is remembered, but for latents where those are the inputs themselves."""
        return [(k, v) for k, v in self.values.items() if not (self.latents and k == LATENT_NAME)]


def uses_only_task_rows(method: Method, stage: int) -> bool:
    """Whether every row of every batch is the current task's."""
    phases = method.phases(stage)
    return method.replay(stage).kind == "none" and all(
        phase.rows in ("task", "none") for phase in phases
    )


def select_step(rows: StepRows, step: Tensor) -> StepRows:
    """Rows of one step of all runs, the step number being a tensor (so that it captures)."""
    return cast(StepRows, tree_map(lambda leaf: leaf.index_select(1, step).squeeze(1), rows))


def select_step_unpadded(rows: StepRows, step: int, length: int) -> StepRows:
    """Rows of one step of one run, cut to its real length: nothing is padded."""
    main = TrainingRows(*(leaf[0, step, :length] for leaf in rows.main))
    apart = tuple(TrainingRows(*(leaf[0, step] for leaf in part)) for part in rows.apart)
    into = rows.into[0, step, :length] if isinstance(rows.into, Tensor) else ()
    passes = rows.passes[0, step, :length] if isinstance(rows.passes, Tensor) else ()
    return StepRows(main, rows.key[0, step], apart, into, passes)


STEPS_AT_ONCE = 256  # to take apart, so that the views of a long epoch do not fill the memory


def take_apart(rows: StepRows, start: int, stop: int, lengths: Sequence[int]) -> Iterator[StepRows]:
    """Rows of the steps `start` to `stop`, each as `select_step_unpadded` returns them.

    Selecting step by step takes as long as a small layer; this makes all views at once.
    """
    width = rows.main.length

    def part(leaves_: tuple[Any, ...], number: int, length: int = width) -> list[Tensor]:
        each = (steps[number] for steps in leaves_)
        return list(each) if length == width else [leaf[:length] for leaf in each]

    for first in range(start, stop, STEPS_AT_ONCE):
        some = slice(first, min(first + STEPS_AT_ONCE, stop))
        # [leaf][step], but for what is not there
        main, key, apart, into, passes = tree_map(lambda leaf, s=some: leaf[0, s].unbind(), rows)
        for number in range(some.stop - first):
            length = lengths[first + number]
            yield StepRows(
                TrainingRows(*part(main, number, length)),
                key[number],
                tuple(TrainingRows(*part(one, number)) for one in apart),
                part((into,), number, length)[0] if into else (),
                part((passes,), number, length)[0] if passes else (),
            )


class RowAnnouncer:
    """Tells a feed whose rows stay on disk what the next steps will ask for.

    Its row numbers are on the host, where rows are fetched: the device is not waited for.
    """

    def __init__(self, feed: Feed, rows: StepRows, cut: bool) -> None:
        self._feed, self._told = feed, 0
        self._batches = [rows.main.rows, *(part.rows for part in rows.apart)]  # [R, S, B]
        self._lengths = rows.lengths if cut else ()
        feed.announce((), anew=True)

    def __call__(self, step: int) -> None:
        """A step is about to be taken: announce it, and those behind it."""
        steps = self._batches[0].shape[1]
        for number in range(max(step, self._told), min(step + PREFETCH_BATCHES + 1, steps)):
            length = self._lengths[number] if self._lengths else None
            main, *apart = (leaf[:, number] for leaf in self._batches)
            self._feed.announce([main[:, :length], *apart], ranks=distributed.current_ranks())
            self._told = number + 1


def move_rows_to_host(rows: StepRows) -> StepRows:
    """The same with row numbers on the host, all else where it was."""

    def moved(batch: TrainingRows) -> TrainingRows:
        return batch._replace(rows=batch.rows.cpu())

    return rows._replace(main=moved(rows.main), apart=tuple(map(moved, rows.apart)))


def select_step_on_host(step: StepRows, rows: StepRows, number: int) -> StepRows:
    """The rows of a step, their numbers taken from `rows` on the host."""
    main = step.main._replace(rows=rows.main.rows[:, number])
    pairs = zip(step.apart, rows.apart, strict=True)
    apart = tuple(one._replace(rows=host.rows[:, number]) for one, host in pairs)
    return step._replace(main=main, apart=apart)


def shapes_fit(values: Sequence[Tensor], places: Sequence[Tensor]) -> bool:
    """Whether rows [R, S, ...] have the shapes of places, or fewer steps.

    Examples
    --------
    >>> place, shorter = torch.zeros(2, 5, 3), torch.ones(2, 4, 3)
    >>> shapes_fit([shorter], [place]), shapes_fit([place], [shorter])
    (True, False)
    """
    if len(values) != len(places):
        return False
    pairs = zip(values, places, strict=True)
    return all(
        a.ndim == b.ndim and a.shape[:1] + a.shape[2:] == b.shape[:1] + b.shape[2:]
        and a.shape[1] <= b.shape[1]
        for a, b in pairs
    )  # fmt: skip


def copy_into_(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write rows that `shapes_fit` into places; of further steps there, the old rows stay."""
    for place, value in zip(places, values, strict=True):
        place[:, : value.shape[1]].copy_(value)


def has_no_padding(rows: StepRows) -> bool:
    """Whether every row of every batch counts (found out once per stage, not per step)."""
    batches = (rows.main, *rows.apart)
    return all(bool(torch.all(part.w > 0)) for part in batches)


def row_tensors(rows: StepRows | None) -> list[Tensor]:
    """All tensors of rows."""
    return [] if rows is None else list(leaves(rows))


def clone_rows(rows: StepRows) -> StepRows:
    """The same at addresses of their own."""
    return cast(StepRows, tree_map(torch.clone, rows))
