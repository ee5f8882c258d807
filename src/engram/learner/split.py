"""A forward pass of which every rank computes its share of the rows.

A loss may be any function of a network's answers: means with denominators of their own, margins,
projections. So it is not the loss that is shared out but the pass: each rank puts its rows through
the network, all ranks get all answers, and each computes the whole loss from them. On the way back
a rank follows its own rows only, and the sum of all ranks' gradients is that of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engram.learner.tree import tree_map
from engram.models.context import Share, share_context
from engram.parallel import Ranks

Pass = Callable[[Tensor, Tensor | None], Any]  # from inputs and row weights to answers


def split(ranks: Ranks, forward: Pass, x: Tensor, w: Tensor | None) -> Any:
    """Answers to all rows of `x`, each row computed by one rank."""
    rows, where = len(x), ranks.share(len(x))
    own = _Scatter.apply(x, ranks, where)  # type: ignore[no-untyped-call]
    with share_context(Share(ranks, where.start, where.stop - where.start, rows)):
        found = forward(own, None if w is None else w[where])
    return gathered(ranks, found, where, rows)


def gathered(ranks: Ranks, found: Any, where: slice, rows: int) -> Any:
    """The answers of all ranks, in place of those of one."""
    return tree_map(lambda leaf: _Gather.apply(leaf, ranks, where, rows), found)  # type: ignore[no-untyped-call]


def splits(ranks: Ranks | None, args: tuple[Any, ...]) -> bool:
    """Whether a pass can be shared out: one batch, with a row for every rank."""
    return (
        ranks is not None
        and len(args) == 1
        and isinstance(args[0], Tensor)
        and args[0].ndim > 0
        and len(args[0]) >= ranks.world
    )


def repeated(ranks: Ranks, forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A pass that every rank computes as a whole; weights get one share of its gradient each."""
    whole = tuple(lessened(one, float(ranks.world)) for one in args)
    return tree_map(lambda leaf: lessened(leaf, 1 / ranks.world), forward(*whole))


def lessened(value: Any, factor: float) -> Any:
    """The same value, whose gradient is multiplied by a factor."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return _Lessened.apply(value, factor)  # type: ignore[no-untyped-call]


class _Scatter(torch.autograd.Function):
    """One rank's rows; the gradient of all rows is what all ranks found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, where: slice) -> Tensor:
        ctx.ranks, ctx.where, ctx.rows = ranks, where, len(x)
        return x[where].clone() if x.requires_grad else x[where]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.ranks.joined(grad, ctx.where, ctx.rows), None, None


class _Gather(torch.autograd.Function):
    """The rows of all ranks; a rank goes on with the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, where: slice, rows: int) -> Tensor:
        ctx.where = where
        return ranks.joined(own, where, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad[ctx.where], None, None, None


class _Lessened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None
