"""Normalisation by batch statistics as one differentiable function, with few passes over memory.

Written out in plain operations, its gradient would read and write the activations about twice as
often, and in lockstep that traffic is what a step costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engram.parallel import Ranks


def _spread(value: Tensor, x: Tensor, axis: int) -> Tensor:
    """A value per channel [F] (or per row and channel [B, F]), shaped to broadcast over x."""
    if axis == -1:
        return value if value.ndim == 1 else value.reshape(len(value), *[1] * (x.ndim - 2), -1)
    return value.reshape(*value.shape, *[1] * (x.ndim - 2))


def _inner(x: Tensor, axis: int) -> list[int]:
    """Axes besides rows and channels."""
    return [i for i in range(1, x.ndim) if i != axis % x.ndim]


def _row_sums(x: Tensor, axis: int) -> Tensor:
    """[B, F]: masks then act on a small tensor."""
    inner = _inner(x, axis)
    return x.sum(inner) if inner else x


class _Normalise(torch.autograd.Function):
    """(x - mean) * rsqrt(var + eps) * weight + bias, statistics over rows where `real` is 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float, axis: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        inner = _inner(x, axis)
        count = _count(x, real, axis)
        mask = real[:, None] > 0
        # where, not times: what stands in a padding row must not matter even if it is not finite
        mean = torch.where(mask, _row_sums(x, axis), 0.0).sum(0) / count
        centred = x - _spread(mean, x, axis)
        if inner:
            squares = torch.linalg.vector_norm(centred, dim=inner).square()
        else:
            squares = centred.square()
        var = torch.where(mask, squares, 0.0).sum(0) / count
        scale = (var + eps).rsqrt() * weight
        y = torch.addcmul(_spread(bias, x, axis), centred, _spread(scale, x, axis))
        return y, mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, real, weight, _, ctx.eps, ctx.axis = inputs
        _, mean, var = output
        ctx.save_for_backward(x, real, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dmean: Tensor, dvar: Tensor) -> Any:
        x, real, weight, mean, var = ctx.saved_tensors
        axis = ctx.axis
        count = _count(x, real, axis)
        centred = x - _spread(mean, x, axis)
        rstd = (var + ctx.eps).rsqrt()
        dbias = _row_sums(dy, axis).sum(0)
        product = _row_sums(dy * centred, axis).sum(0)
        dweight = product * rstd
        # through the statistics, which only real rows make
        to_mean = dmean - rstd * weight * dbias
        to_var = dvar - 0.5 * product * weight * rstd**3
        shift = real[:, None] * (to_mean / count)  # [B, F]
        slope = real[:, None] * (2 * to_var / count)
        through = torch.addcmul(_spread(shift, x, axis), centred, _spread(slope, x, axis))
        dx = torch.addcmul(through, dy, _spread(rstd * weight, x, axis))
        return dx, None, dweight, dbias, None, None


def _count(x: Tensor, real: Tensor, axis: int) -> Tensor:
    """How many values per channel count, at least 1."""
    per_row = x.numel() // (x.shape[0] * x.shape[axis])
    return (real.sum() * per_row).clamp(min=1)


class _NormaliseTogether(torch.autograd.Function):
    """`_Normalise` of rows that several ranks hold: sums are those of all of them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float, axis: int,
        ranks: Ranks,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        mask = real[:, None] > 0
        sums = torch.where(mask, _row_sums(x, axis), 0.0).sum(0)
        values = real.sum() * (x.numel() // (x.shape[0] * x.shape[axis]))
        total = ranks.sum_(torch.cat([sums, values[None]]))
        count = total[-1].clamp(min=1)
        mean = total[:-1] / count
        centred = x - _spread(mean, x, axis)
        squares = _row_sums(centred.square(), axis)
        var = ranks.sum_(torch.where(mask, squares, 0.0).sum(0)) / count
        scale = (var + eps).rsqrt() * weight
        ctx.eps, ctx.axis, ctx.ranks = eps, axis, ranks
        ctx.save_for_backward(x, real, weight, mean, var, count)
        ctx.mark_non_differentiable(mean, var)
        return torch.addcmul(_spread(bias, x, axis), centred, _spread(scale, x, axis)), mean, var

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        x, real, weight, mean, var, count = ctx.saved_tensors
        axis = ctx.axis
        centred = x - _spread(mean, x, axis)
        rstd = (var + ctx.eps).rsqrt()
        dbias = _row_sums(dy, axis).sum(0)
        product = _row_sums(dy * centred, axis).sum(0)
        # through the statistics, which the rows of all ranks make
        to_mean, to_var = ctx.ranks.sum_(torch.stack([dbias, product]))
        to_mean = -rstd * weight * to_mean
        to_var = -0.5 * to_var * weight * rstd**3
        shift = real[:, None] * (to_mean / count)
        slope = real[:, None] * (2 * to_var / count)
        through = torch.addcmul(_spread(shift, x, axis), centred, _spread(slope, x, axis))
        dx = torch.addcmul(through, dy, _spread(rstd * weight, x, axis))
        return dx, None, product * rstd, dbias, None, None, None


def normalise(
    x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, *, eps: float, axis: int,
    ranks: Ranks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normalised x, and the mean and (biased) variance [F] of its real rows.

    Parameters
    ----------
    real
        [B] 1 for rows that count, 0 for padding.
    axis
        Channel axis, 1 or -1.
    ranks
        Who holds further rows of the batch; mean and variance are then those of all.

    Examples
    --------
    >>> x, real = torch.tensor([[1.0], [3.0], [99.0]]), torch.tensor([1.0, 1.0, 0.0])
    >>> y, mean, var = normalise(x, real, torch.ones(1), torch.zeros(1), eps=0.0, axis=1)
    >>> y[:2, 0].tolist(), mean.item(), var.item()
    ([-1.0, 1.0], 2.0, 1.0)
    """
    found: tuple[Tensor, Tensor, Tensor]
    if ranks is not None:
        found = _NormaliseTogether.apply(x, real, weight, bias, eps, axis, ranks)  # type: ignore[no-untyped-call]
        return found
    found = _Normalise.apply(x, real, weight, bias, eps, axis)  # type: ignore[no-untyped-call]
    return found
