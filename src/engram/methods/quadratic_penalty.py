"""Quadratic penalties on parameters, strength * sum_i W_i (theta_i - anchor_i)^2, and the base
class of the methods that use them.

One importance W and one anchor are kept, whatever the number of tasks, because a sum of quadratics
is one quadratic plus a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.linear_algebra import inner_product
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task

NORMS = ("minmax_global", "max_only", "per_tensor")
TINY = 1e-32  # added to denominators of normalised importances
# Entries that differ by at most this many units in the last place of the largest one are equal:
# sums over the steps of a task are rounded.
ULPS = 100


class _Quadratic(torch.autograd.Function):
    """sum_i W_i (x_i - a_i)^2 with its gradient 2 W (x - a) written out.

    The time of a penalty is that of passes over the parameters. W (x - a) is computed once for both
    the value and the gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(vector: Tensor, anchor: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
        moved = vector - anchor
        weighted = importance * moved
        return inner_product(weighted, moved), weighted

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> Any:
        (weighted,) = ctx.saved_tensors
        return (2 * slope) * weighted, None, None


def quadratic_penalty(
    vector: Tensor, anchor: Tensor, importance: Tensor, strength: float | Tensor
) -> Tensor:
    """Compute the weighted squared distance from the anchor.

    Examples
    --------
    >>> moved, fisher = torch.tensor([0.2, -0.4]), torch.tensor([0.625, 0.625])
    >>> round(quadratic_penalty(moved, torch.zeros(2), fisher, 10 / 2).item(), 6)
    0.625
    """
    found: Tensor
    found, _ = _Quadratic.apply(vector, anchor, importance)  # type: ignore[no-untyped-call]
    return strength * found


def penalty_gradient(
    vector: Tensor, anchor: Tensor, importance: Tensor, strength: float | Tensor
) -> Tensor:
    """Compute the gradient [P] of `quadratic_penalty` in closed form."""
    return 2 * strength * importance * (vector - anchor)


def merge_quadratics(state: State, importance: Tensor, anchor: Tensor) -> State:
    """Add a quadratic to that of the state, if any, as one quadratic.

    S (x - m)^2 + F (x - a)^2 = (S + F) (x - m')^2 + S F / (S + F) (m - a)^2, entry by entry, where
    m' is the weighted mean. The last part is kept as ``offset``, so that the logged penalty is the
    sum over tasks.

    Examples
    --------
    >>> one, two = torch.tensor([1.0]), torch.tensor([3.0])
    >>> both = merge_quadratics(
    ...     merge_quadratics({}, one, torch.tensor([0.0])), two, torch.tensor([4.0])
    ... )
    >>> {name: value.item() for name, value in both.items()}
    {'importance': 4.0, 'anchor': 3.0, 'offset': 12.0}
    """
    if "importance" not in state:
        zero = torch.zeros((), dtype=anchor.dtype, device=anchor.device)
        return {**state, "importance": importance, "anchor": anchor, "offset": zero}
    old, at = state["importance"], state["anchor"]
    total = old + importance
    safe = torch.where(total > 0, total, 1.0)
    mean = at + importance / safe * (anchor - at)
    # With only one nonzero importance the anchor is exactly its weight, without rounding errors,
    # which Adam would turn into steps. An entry without any importance follows the latest weights.
    mean = torch.where(total == old, at, mean)
    mean = torch.where(total == importance, anchor, mean)
    apart = (old * importance / safe * (at - anchor).square()).sum()
    return {**state, "importance": total, "anchor": mean, "offset": state["offset"] + apart}


def scale_to_unit_range(parts: Iterable[Tensor], free: Iterable[Tensor], norm: str) -> list[Tensor]:
    """Rescale importances to [0, 1] over the free entries; the others become 0.

    `parts` are tensors that are rescaled together. If all entries are equal, up to rounding, they
    become 1 with ``max_only`` and 0 otherwise.

    Examples
    --------
    >>> fisher, every = torch.tensor([0.4, 0.1, 0.2]), torch.ones(3, dtype=torch.bool)
    >>> [round(v, 4) for v in scale_to_unit_range([fisher], [every], "minmax_global")[0].tolist()]
    [1.0, 0.0, 0.3333]
    """
    parts, free = list(parts), list(free)
    chosen = torch.cat([part[mask] for part, mask in zip(parts, free, strict=True)])
    if not len(chosen):
        return [torch.zeros_like(part) for part in parts]
    low = torch.zeros_like(chosen[0]) if norm == "max_only" else chosen.min()
    width = chosen.max() - low + TINY
    rounding = ULPS * torch.finfo(chosen.dtype).eps * chosen.max().abs()
    width = torch.where(width > rounding, width, torch.inf)
    pairs = zip(parts, free, strict=True)
    return [torch.where(mask, (part - low) / width, 0.0) for part, mask in pairs]


def normalise_importance(learner: RunLearner, importance: Tensor, norm: str) -> Tensor:
    """Rescale an importance [P] of a learner to [0, 1]; unopened columns become 0."""
    if norm != "per_tensor":
        return scale_to_unit_range([importance], [learner.free], norm)[0]
    values, masks = learner.layout(importance), learner.layout(learner.free)
    each = (scale_to_unit_range([values[name]], [masks[name]], norm)[0] for name in values)
    return learner.networks.layout.flatten(each)


def check_floats(method: Method, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise for numbers outside their bounds, and convert integers to floats."""
    for name, (low, high) in bounds.items():
        value = check_float(name, getattr(method, name), low, high)
        object.__setattr__(method, name, float(value))


@dataclass(frozen=True, kw_only=True)
class Anchored(Method):
    """Base class of methods that penalise moving important parameters away from an anchor.

    ``finish`` of a subclass leaves ``importance`` and ``anchor`` in the state; the penalty applies
    from the next task on. With a `memory` the exemplars are mixed into the task's rows, one plain
    shuffled set (the "-S" rows of the papers).
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    strength: PerRun = 1.0
    memory: Memory | None = None

    def __post_init__(self) -> None:
        check_floats(self, {"strength": (0.0, float("inf"))})
        check_memory(self.memory, optional=True)

    def factor(self) -> float | Tensor:
        """Factor of the weighted squared distance."""
        return self.strength

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("none" if self.memory is None else "union")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        terms = {"task": net.task(batch)}
        if "importance" in state:
            importance, anchor = state["importance"], state["anchor"]
            terms["penalty"] = quadratic_penalty(net.vector, anchor, importance, self.factor())
            if "offset" in state:
                terms["penalty"] = terms["penalty"] + self.factor() * state["offset"]
        return terms

    def store(self, learner: RunLearner, task: Task) -> None:
        """Update the exemplars, if the method has a memory; called at the end of ``finish``."""
        if self.memory is not None:
            learner.exemplars = self.memory.update(learner, task.train)
