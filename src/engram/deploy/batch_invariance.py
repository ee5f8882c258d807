"""Does the score of a row depend on the batch it stands in?

The same rows are scored one at a time, shuffled, and with tasks mixed. Networks that use statistics
of the batch at test time (batch norm in training mode, prompts chosen for a whole batch) differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engram import keys
from engram.deploy.deployed_learner import Learner
from engram.deploy.new_task import make_inputs
from engram.errors import bad, check_int, plural

Scores = Callable[[Tensor], Tensor]
BATCH = 64
MOST_ROWS = 512  # of given rows; the first of each group
MADE_ROWS = 96
# Beyond these shares of the largest score, a difference is not rounding.
TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}
SAME_BATCHES = "the same batches again"


@dataclass(frozen=True)
class BatchEffect:
    """How far scores moved when the same rows stood in other batches.

    Attributes
    ----------
    how
        In which batches: "one row at a time", "shuffled", "tasks mixed", ...
    gap
        Largest difference of a score.
    allowed
        Largest difference that rounding explains.
    changed, rows
        Rows whose prediction changed, of so many.
    error
        What was raised where these batches could not be scored at all.
    """

    how: str
    gap: float
    allowed: float
    changed: int
    rows: int
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap <= self.allowed

    def __str__(self) -> str:
        if self.ok:
            return f"{self.how}: equal but for rounding (largest difference {self.gap:.1e})"
        if self.error:
            return f"{self.how}: {self.error}"
        text = f"{self.how}: scores differ by up to {self.gap:.2g}"
        return f"{text}, predictions of {self.changed} of {plural(self.rows, 'row')}"


def measure_batch_effects(
    scores: Scores, rows: Tensor, groups: Tensor | None = None, *,
    dtype: torch.dtype = torch.float32, seed: int = 0,
) -> list[BatchEffect]:  # fmt: skip
    """Score rows in several batchings and compare with batches of one group each.

    Parameters
    ----------
    scores
        Maps inputs [B, ...] to scores [B, C].
    rows
        [n, ...] inputs.
    groups
        [n] task or class of each row, so that mixed batches can be compared with those of one.
    dtype
        Precision of the computation, which decides what counts as rounding.

    Examples
    --------
    >>> rows = torch.linspace(-1, 1, 20).reshape(10, 2)
    >>> [one.ok for one in measure_batch_effects(lambda x: 2 * x, rows)]
    [True, True, True, True]
    >>> print(measure_batch_effects(lambda x: x - x.mean(0), rows)[1])
    one row at a time: scores differ by up to 0.95, predictions of 4 of 10 rows
    """
    count = len(rows)
    if count < 2:
        raise bad("rows", "at least two rows", count)
    place = torch.zeros(count, dtype=torch.long) if groups is None else groups.long().cpu()
    if place.shape != (count,):
        raise bad("groups", f"a number for each of {count} rows", tuple(place.shape))
    drawn = keys.uniform(keys.fold(seed, "batches"), count).argsort()
    apart = place.argsort(stable=True)
    shuffled = drawn[place[drawn].argsort(stable=True)]
    sizes = torch.bincount(place).tolist()

    def of_groups(order: Tensor) -> Iterator[Tensor]:
        for part in order.split([size for size in sizes if size]):
            yield from part.split(BATCH)

    known = _score(scores, rows, of_groups(apart))
    finite = known[known.isfinite()].abs()
    allowed = TOLERANCES[dtype] * max(1.0, float(finite.max()) if len(finite) else 0.0)
    ways: dict[str, Iterator[Tensor]] = {
        SAME_BATCHES: of_groups(apart),
        "one row at a time": iter(torch.arange(count).split(1)),
        "shuffled": of_groups(shuffled),
        "all at once": iter([torch.arange(count)]),
    }
    if sum(size > 0 for size in sizes) > 1:
        ways["tasks mixed"] = iter(drawn.split(BATCH))
    effects = []
    for how, batches in ways.items():
        try:
            effects.append(_compare(how, known, _score(scores, rows, batches), allowed))
        except Exception as problem:  # what a network raises for one row, but not for many
            told = f"{type(problem).__name__}: {problem}"
            effects.append(BatchEffect(how, torch.inf, allowed, count, count, told))
    return effects


def _score(scores: Scores, rows: Tensor, batches: Iterator[Tensor]) -> Tensor:
    found: list[Tensor | None] = [None] * len(rows)
    with torch.no_grad():
        for batch in batches:
            answer = scores(rows[batch])
            if not isinstance(answer, Tensor) or answer.ndim < 1 or len(answer) != len(batch):
                shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
                raise bad("net", f"scores [{len(batch)}, C] of {plural(len(batch), 'row')}", shape)
            for place, one in zip(batch.tolist(), answer.detach().double().cpu(), strict=True):
                found[place] = one.flatten()
    return torch.stack([one for one in found if one is not None])


def _compare(how: str, known: Tensor, other: Tensor, allowed: float) -> BatchEffect:
    # columns that do not compete are -inf in both
    gap = torch.where(known == other, torch.zeros_like(known), (known - other).abs())
    gap = gap.nan_to_num(nan=torch.inf).masked_fill(known.isnan() & other.isnan(), 0.0)
    changed = int((known.argmax(1) != other.argmax(1)).sum())
    return BatchEffect(how, float(gap.max()), allowed, changed, len(known))


def check_network_batches(
    net: nn.Module, rows: Tensor, groups: Tensor | None = None
) -> list[BatchEffect]:
    """Measure batch effects of a module, in the mode (training or eval) that it is in.

    Every batching begins with the same weights and buffers, in a copy. The module returns scores, a
    tuple that begins with them, or an object with ``logits``.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> rows = torch.arange(30.0).reshape(10, 3)
    >>> all(one.ok for one in check_network_batches(net.eval(), rows))
    True
    """
    kinds = {value.dtype for value in net.state_dict().values() if value.is_floating_point()}
    coarsest = max(kinds or {torch.float32}, key=lambda kind: TOLERANCES.get(kind, 0.0))
    dtype = coarsest if coarsest in TOLERANCES else torch.float32

    def scores(batch: Tensor) -> Tensor:
        # a copy for each batch, of all but the weights: what a batch moves must not reach the next
        shared = {id(value): value for value in net.parameters()}
        own = copy.deepcopy(net, shared)
        answer: Any = own(batch.to(dtype) if batch.is_floating_point() else batch)
        answer = getattr(answer, "logits", answer)
        found: Tensor = answer[0] if isinstance(answer, tuple) else answer
        return found

    with torch.random.fork_rng(devices=[]):
        return measure_batch_effects(scores, rows, groups, dtype=dtype)


def check_model_batches(
    learner: Learner, x: Any = None, groups: Any = None, *, task: int | None = None
) -> list[BatchEffect]:
    """Measure batch effects of a kept model.

    Parameters
    ----------
    x, groups
        Inputs as for `Learner.predict`, and the task or class of each. Default: inputs made from a
        seed, which need no data.
    task
        Whose head scores the rows; with a head per task, default: each in turn.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.eye(4, dtype=np.float32).repeat(10, 0), np.arange(4).repeat(10)
    >>> learner = Learner("Finetune", {"name": "mlp", "hidden": [8]}, device="cpu", iterations=3)
    >>> all(one.ok for one in check_model_batches(learner.learn(x, y)))
    True
    """
    now = learner.snapshot
    rows = make_rows(now.facts["inputs"]) if x is None else torch.as_tensor(x)
    place = None if groups is None else torch.as_tensor(groups)
    if len(rows) > MOST_ROWS:
        rows, place = thin_rows(rows, place, MOST_ROWS)
    weights = torch.float64 if now.precision == "float64" else torch.float32
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(now.precision, weights)
    tasks = [task]
    if task is None and now.facts["head"] == "multi":
        tasks = list(range(len(now.facts["tasks"])))
    found = []
    for head in tasks:
        effects = measure_batch_effects(partial(now.scores, task=head), rows, place, dtype=dtype)
        name = "" if head is None else f"head of task {head + 1}, "
        found += [replace(one, how=f"{name}{one.how}") for one in effects]
    return found


def make_rows(about: dict[str, Any], count: int = MADE_ROWS) -> Tensor:
    """Draw inputs of the shape and type of training, as a kept model describes them."""
    check_int("count", count, 2)
    drawn = keys.uniform(keys.fold(0, "batches", "rows"), count, *about["shape"])
    return make_inputs(about, drawn)


def thin_rows(rows: Tensor, groups: Tensor | None, most: int) -> tuple[Tensor, Tensor | None]:
    """Take evenly spaced rows, at most so many."""
    chosen = torch.linspace(0, len(rows) - 1, most).long()
    return rows[chosen], None if groups is None else groups[chosen]
