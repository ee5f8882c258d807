"""`MethodView`, which checks every read of a method, and `Ledger`, which counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.errors import AccessError, BadArgument, bad, check_choice, check_int
from engram.streams.stream import Stream, Task

READS = ("own", "past")


class MethodView:
    """Access control for a method while it learns task `stage` of a stream.

    Parameters
    ----------
    reads
        ``own``: the current task's training and in-task validation rows, and the memory.
        ``past``: those of earlier tasks as well, whether kept or not.
    ledger
        Counts the reads; share one between the stages of a run.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams.incremental_streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1, 2, 3] * 10)
    >>> view = MethodView(class_incremental(data), 1)
    >>> view.allow(view.train[:3], torch.tensor([1, 1, 1]))
    >>> view.ledger
    Ledger(train 3, valid 0, memory 0, past 0)
    >>> view.allow(torch.tensor([0]), torch.tensor([0]))
    Traceback (most recent call last):
    ...
    engram.errors.AccessError: task 1: row 0 as of task 0 is a train row of task 0 and not in the \
memory. A method may read train and valid rows of its own task and what its memory holds; to read \
earlier tasks it must declare reads = "past".
    """

    def __init__(
        self, stream: Stream, stage: int, *, reads: str = "own", ledger: Ledger | None = None
    ) -> None:
        self.stream, self.reads = stream, check_choice("reads", reads, READS)
        if check_int("stage", stage) >= len(stream):
            raise bad("stage", f"a task from 0 to {len(stream) - 1}", stage)
        self.stage = stage
        self.ledger = Ledger() if ledger is None else ledger
        self._tables: dict[tuple[str, torch.device], Tensor] = {}
        self._read: dict[str, Tensor] = {}  # the rows read so far, which count once

    def __repr__(self) -> str:
        return f"MethodView(task {self.stage} of {len(self.stream)}, reads {self.reads!r})"

    @property
    def task(self) -> Task:
        return self.stream[self.stage]

    @property
    def train(self) -> Tensor:
        """Training rows of the current task."""
        return self.task.train

    @property
    def valid(self) -> Tensor:
        """In-task validation rows of the current task."""
        return self.task.valid

    def allow(
        self,
        rows: Tensor,
        stages: Tensor,
        memory_rows: Tensor | None = None,
        memory_stages: Tensor | None = None,
    ) -> None:
        """Count a read of `rows` [n] as of tasks `stages` [n], or raise AccessError.

        `memory_rows`, `memory_stages` [m]: the (row, stage) pairs in the memory.
        """
        self._check_shapes(rows, stages, memory_rows, memory_stages)
        if not len(rows):
            return
        stages = stages.to(rows.device)
        inside = (rows >= 0) & (rows < len(self.stream.data))
        inside &= (stages >= 0) & (stages <= self.stage)
        safe, when = torch.where(inside, rows, 0), torch.where(inside, stages, 0)
        now = inside & (when == self.stage)
        train = now & self._table("train", rows.device)[safe]
        valid = now & self._table("valid", rows.device)[safe]
        kept = inside & ~now & self._in_memory(safe, when, memory_rows, memory_stages)
        past = inside & ~now & ~kept & self._in_past(safe, when)
        refused = ~(train | valid | kept | past)
        if refused.any():
            raise AccessError(self._complaint(rows[refused], stages[refused]))
        for kind, part in zip(READ_KINDS[:4], (train, valid, kept, past), strict=True):
            own = kind in ("train", "valid")
            self._count(kind, rows[part], None if own else stages[part])

    def _count(self, kind: str, rows: Tensor, stages: Tensor | None = None) -> None:
        """Count the rows, as of the current task or of `stages`, that were not read before."""
        places = rows if stages is None else stages.to(rows.device) * len(self.stream.data) + rows
        known = self._read.get(kind, places[:0].cpu())
        if not len(rows) or (kind == "train" and len(known) == len(self.train)):
            return
        whole = rows is self.train and len(known) == 0  # the rows of a task differ
        found = rows if whole else torch.unique(torch.cat([known, places.cpu()]))
        self._read[kind] = found
        more = len(found) - len(known)
        if stages is None:  # a task that was interrupted has counted some of its rows before
            own = self.train if kind == "train" else self.task.valid
            more = min(more, max(len(own) - self.ledger.count(self.stage, kind), 0))
        self.ledger.record(self.stage, kind, more)

    def allow_task(self) -> None:
        """Count a read of all training rows of the current task, which is always allowed."""
        self._count("train", self.train)

    def allow_now(self, rows: Tensor) -> None:
        """Like `allow`, for rows as of the current task; fast if all are training rows."""
        if rows.ndim == 1 and len(rows) and _are_in_range(rows, len(self.stream.data)):
            train, valid = (self._table(kind, rows.device)[rows] for kind in ("train", "valid"))
            if bool(train.all()) and not bool(valid.any()):
                return self._count("train", rows)
        return self.allow(rows, torch.full_like(rows, self.stage))

    def allow_memory(self, rows: Tensor, stages: Tensor) -> None:
        """Like `allow`, for the whole memory; fast if all of it is from earlier tasks."""
        known = rows.ndim == 1 and rows.shape == stages.shape and len(rows)
        if (
            known
            and _are_in_range(rows, len(self.stream.data))
            and _are_in_range(stages, self.stage)
        ):
            return self._count("memory", rows, stages)
        return self.allow(rows, stages, rows, stages)

    def allow_kept(self, rows: Tensor, stages: Tensor, held: Tensor, held_stages: Tensor) -> None:
        """Raise for exemplars that are neither training rows of the task nor in the old memory.

        `rows`, `stages` [n]: the new memory; `held`, `held_stages` [m]: the old one. Nothing is
        counted, because nothing is read.
        """
        self._check_shapes(rows, stages, held, held_stages)
        good = self._may_stay(rows, stages, held, held_stages)
        if good.all():
            return
        refused = torch.from_numpy(~good)
        row, stage = int(rows[refused][0]), int(stages[refused][0])
        more = f" (and {int(refused.sum()) - 1} more)" if int(refused.sum()) > 1 else ""
        raise AccessError(
            f"task {self.stage}: exemplars hold row {row} as of task {stage}{more}, which "
            f"{self._fault(row, stage)}. Exemplars are training rows of the current task, as of "
            "that task, or were in the memory before."
        )

    def _may_stay(self, rows: Tensor, stages: Tensor, *held: Tensor) -> np.ndarray:
        """[n] whether a memory may hold each item; in numpy, which is three times as fast here."""
        row, stage = rows.numpy(), stages.numpy()
        size, cpu = len(self.stream.data), torch.device("cpu")
        inside = (row >= 0) & (row < size) & (stage >= 0) & (stage <= self.stage)
        row, stage = np.where(inside, row, 0), np.where(inside, stage, self.stage)
        now = stage == self.stage
        good = now & self._table("train", cpu).numpy()[row]
        if not now.all():
            before, when = (part.numpy() for part in held)
            place, table = (size * when + before)[when < self.stage], self._scratch(cpu).numpy()
            table[place] = True
            good[~now] = table[(size * stage + row)[~now]]
            table[place] = False
        if self.reads == "past":
            for k in np.unique(stage[~good]).tolist():
                here = (stage == k) & ~good
                good[here] = np.isin(row[here], self.stream[k].train.cpu().numpy())
        found: np.ndarray = inside & good
        return found

    def _check_shapes(self, *parts: Tensor | None) -> None:
        named = dict(zip(("rows", "stages", "memory_rows", "memory_stages"), parts, strict=True))
        for first, second in (("rows", "stages"), ("memory_rows", "memory_stages")):
            a, b = named[first], named[second]
            if (a is None) != (b is None):
                raise bad(second, f"one number for each of {first}", b)
            if a is not None and b is not None and (a.ndim != 1 or a.shape != b.shape):
                raise bad(second, f"shape {tuple(a.shape)} [n], as {first}", tuple(b.shape))

    def _table(self, kind: str, device: torch.device) -> Tensor:
        """[N] whether a row is of this kind in the current task; cached for the stream."""
        known: dict[Any, Tensor] = self.stream.__dict__.setdefault("_kind_tables", {})
        if (kind, self.stage, device) not in known:
            table = torch.zeros(len(self.stream.data), dtype=torch.bool)
            table[getattr(self.task, kind).cpu()] = True
            known[kind, self.stage, device] = table.to(device)
        return known[kind, self.stage, device]

    def _in_memory(self, rows: Tensor, stages: Tensor, kept: Tensor | None,
                   kept_stages: Tensor | None) -> Tensor:  # fmt: skip
        if kept is None or kept_stages is None or not len(kept) or self.stage == 0:
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        n = len(self.stream.data)
        kept, kept_stages = kept.to(rows.device), kept_stages.to(rows.device)
        # padding and current rows must not alias an earlier pair
        real = (kept >= 0) & (kept < n) & (kept_stages >= 0) & (kept_stages < self.stage)
        place = (kept_stages * n + kept)[real]
        # one scratch table for all calls: setting and clearing costs the size of the memory, not N
        held = self._scratch(rows.device)
        held[place] = True
        found = held[(stages * n + rows).clamp(max=len(held) - 1)]
        held[place] = False
        return found

    def _scratch(self, device: torch.device) -> Tensor:
        if ("scratch", device) not in self._tables:
            size = len(self.stream.data) * self.stage
            self._tables["scratch", device] = torch.zeros(size, dtype=torch.bool, device=device)
        return self._tables["scratch", device]

    def _in_past(self, rows: Tensor, stages: Tensor) -> Tensor:
        if self.reads != "past" or self.stage == 0:
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        if ("past", rows.device) not in self._tables:
            table = torch.zeros(self.stage, len(self.stream.data), dtype=torch.bool)
            for k, task in enumerate(self.stream.tasks[: self.stage]):
                table[k, torch.cat([task.train, task.valid]).cpu()] = True
            self._tables["past", rows.device] = table.to(rows.device)
        return self._tables["past", rows.device][stages.clamp(max=self.stage - 1), rows]

    def _complaint(self, rows: Tensor, stages: Tensor) -> str:
        row, stage = int(rows[0]), int(stages[0])
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        fault = f"task {self.stage}: row {row} as of task {stage}{more} {self._fault(row, stage)}. "
        rule = "A method may read train and valid rows of its own task and what its memory holds"
        if self.reads == "past":
            return fault + rule + ', and with reads = "past" those of earlier tasks.'
        return fault + rule + '; to read earlier tasks it must declare reads = "past".'

    def _fault(self, row: int, stage: int) -> str:
        if not 0 <= row < len(self.stream.data):
            return f"does not exist: rows go from 0 to {len(self.stream.data) - 1}"
        if not 0 <= stage < len(self.stream):
            return f"does not exist: tasks go from 0 to {len(self.stream) - 1}"
        if stage > self.stage:
            return "belongs to a future task"
        found = _describe_uses(self.stream, row)
        lost = " and not in the memory" if stage < self.stage else ""
        return f"is {found}{lost}"


def _are_in_range(numbers: Tensor, stop: int) -> bool:
    low, high = torch.aminmax(numbers)
    return int(low) >= 0 and int(high) < stop


def _describe_uses(stream: Stream, row: int) -> str:
    """Describe where a row occurs."""
    found: list[str] = []
    for kind in ("train", "valid", "post_valid", "test"):
        where = [k for k, task in enumerate(stream) if bool((getattr(task, kind) == row).any())]
        if where:
            word = "task" if len(where) == 1 else "tasks"
            found.append(f"a {kind} row of {word} {', '.join(map(str, where))}")
    return " and ".join(found) or "in no task"


def check_row_numbers(**given: Any) -> None:
    """Raise for rows or stages that are not tensors [n] of whole numbers.

    Examples
    --------
    >>> check_row_numbers(rows=[3, 4])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: rows: expected a tensor [n] of whole numbers, ... got a value of ...
    """
    for name, value in given.items():
        if value is None:
            continue
        got = f"a value of type {type(value).__name__}"
        if isinstance(value, Tensor):
            fractions = value.is_floating_point() or value.is_complex()
            if value.ndim == 1 and value.dtype != torch.bool and not fractions:
                continue
            got = f"one of shape {tuple(value.shape)} and dtype {value.dtype}"
        expected = "a tensor [n] of whole numbers, such as task.train[:10]"
        raise BadArgument(f"{name}: expected {expected}, got {got}")


# -- the ledger of rows that a run has read --------------------------------------------------------

READ_KINDS = (
    "train", "valid", "memory", "past", "probe", "prologue", "outside", "held_out", "test",
)  # fmt: skip
SCORED_KINDS = ("held_out", "test")  # read after training, for evaluation


class Ledger:
    """Number of rows read, by stage and kind. A row that a method reads again counts once.

    Kinds: ``train`` and ``valid`` rows of the current task; ``memory``: stored rows; ``past``: rows
    of earlier tasks that are not stored (only for methods that declare it); ``probe``: rows on
    which probes were fitted after a stage (see `engram.Probe`); ``prologue``: rows set aside from
    all tasks for pretraining; ``outside``: rows of another data set on which detectors were tuned;
    ``held_out`` validation and ``test`` rows that were scored, after every stage and for curves.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.record(0, "train", 64)
    >>> ledger.record(1, "memory", 10)
    >>> ledger.to_dict()
    {'0': {'train': 64}, '1': {'memory': 10}}
    >>> ledger.total("memory")
    10
    """

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, int]] = {}

    def record(self, stage: int, kind: str, count: int) -> None:
        """Add `count` rows read."""
        check_choice("kind", kind, READ_KINDS)
        if check_int("count", count) > 0:
            kinds = self._counts.setdefault(check_int("stage", stage), {})
            kinds[kind] = kinds.get(kind, 0) + count

    def count(self, stage: int, kind: str) -> int:
        """Return the number of rows of a kind read in a stage."""
        return self._counts.get(stage, {}).get(check_choice("kind", kind, READ_KINDS), 0)

    def total(self, kind: str) -> int:
        """Return the number of rows of a kind read in all stages."""
        return sum(self.count(stage, kind) for stage in self._counts)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts by stage and kind, as values that JSON can hold."""
        return {
            str(stage): {kind: kinds[kind] for kind in READ_KINDS if kind in kinds}
            for stage, kinds in sorted(self._counts.items())
        }

    @classmethod
    def from_dict(cls, plain: dict[str, dict[str, int]]) -> Ledger:
        """Make the ledger from the result of `to_dict`."""
        ledger = cls()
        for stage, kinds in plain.items():
            for kind, count in kinds.items():
                ledger.record(int(stage), kind, count)
        return ledger

    def load_dict(self, plain: dict[str, dict[str, int]]) -> None:
        """Replace all counts by those of a `to_dict`."""
        self._counts = Ledger.from_dict(plain)._counts

    def copy(self) -> Ledger:
        """Return an independent ledger with the same counts."""
        twin = Ledger()
        twin._counts = {stage: dict(kinds) for stage, kinds in self._counts.items()}
        return twin

    def __repr__(self) -> str:
        shown = [kind for kind in READ_KINDS if kind in READ_KINDS[:4] or self.total(kind)]
        return f"Ledger({', '.join(f'{kind} {self.total(kind)}' for kind in shown)})"
