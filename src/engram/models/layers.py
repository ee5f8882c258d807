"""`BatchNorm` and `Dropout` that support padding, mapping over runs and resuming."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level

from engram import keys
from engram.distributed import Ranks
from engram.errors import bad, check_float
from engram.models.forward_pass import KEY, ROW_WEIGHTS, SHARE, call_number


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics exclude rows of weight 0.

    On the other rows it equals ``torch.nn.BatchNorm1d`` and ``2d``. The running statistics are
    replaced instead of modified, so that ``torch.func.functional_call`` returns them, unless
    `in_place` is set. A batch with fewer than two values per channel does not change them.

    Parameters
    ----------
    features
        Size of the channel axis.
    axis
        1 for [B, F, ...], -1 for [..., F]. The first axis is always the rows; it may be a multiple
        of the number of weights when a model folded another axis into it (row-major).

    Examples
    --------
    >>> from engram.models.forward_pass import forward_context
    >>> layer, x = BatchNorm(1), torch.tensor([[1.0], [3.0], [99.0]])
    >>> with forward_context(weights=torch.tensor([1.0, 1.0, 0.0])):
    ...     y = layer(x)
    >>> [round(v, 2) for v in y[:2, 0].tolist()], round(float(layer.mean), 2)
    ([-1.0, 1.0], 0.2)
    """

    mean: Tensor
    var: Tensor

    def __init__(
        self,
        features: int,
        momentum: float = 0.1,
        eps: float = 1e-5,
        *,
        axis: int = 1,
        affine: bool = True,
    ) -> None:
        super().__init__()
        if axis not in (1, -1):
            raise bad("axis", "1 or -1", axis)
        self.features, self.momentum, self.eps, self.axis = features, momentum, eps, axis
        self.in_place = False  # whether the running statistics may be written, not replaced
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))

    def extra_repr(self) -> str:
        return f"{self.features}, momentum={self.momentum}, eps={self.eps}, axis={self.axis}"

    def forward(self, x: Tensor) -> Tensor:
        weights = ROW_WEIGHTS.get() if self.training else None
        if self.training and SHARE.get() is not None:
            return self._train(x)
        enough = not self.training or x.numel() > self.features
        # The stock kernel is fastest but writes in place, which mapped tensors cannot always do.
        if weights is None and enough and maybe_current_level() is None:
            return self._stock(x)
        if not self.training:
            return self._scale(x - self._spread(self.mean, x), self.var, x)
        return self._train(x)

    def _stock(self, x: Tensor) -> Tensor:
        fold = self.axis == -1 and x.ndim > 2
        rows = x.reshape(-1, self.features) if fold else x
        mean, var = self.mean, self.var
        if self.training and not self.in_place:
            # through the dict: the checks of setattr cost as much as the clones
            self._buffers["mean"], self._buffers["var"] = mean, var = mean.clone(), var.clone()
        y = torch.batch_norm(
            *(rows, self.weight, self.bias, mean, var),
            *(self.training, self.momentum, self.eps, torch.backends.cudnn.enabled),
        )
        return y.reshape(x.shape) if fold else y

    def real_rows(self, x: Tensor) -> Tensor:
        """Return [B] 1 for rows of x that count in this pass, 0 for padding."""
        weights = ROW_WEIGHTS.get()
        if weights is None:
            return torch.ones(len(x), dtype=x.dtype, device=x.device)
        real = (weights > 0).to(x.dtype)
        return real if len(real) == len(x) else self._stretch(real, len(x))

    def _train(self, x: Tensor) -> Tensor:
        real = self.real_rows(x)
        count = real.sum() * (x.numel() // (len(x) * self.features))
        share = SHARE.get()
        if share is not None:  # statistics are those of all ranks' rows
            share.ranks.sum_(count)
        ranks = None if share is None else share.ranks
        y, mean, var = normalise(
            x, real, *self.factors(), eps=self.eps, axis=self.axis, ranks=ranks
        )
        self.observe(mean, var, count)
        return y

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the factors [F] and offsets [F] of normalised values."""
        one, zero = torch.ones_like(self.mean), torch.zeros_like(self.mean)
        return (
            one if self.weight is None else self.weight,
            zero if self.bias is None else self.bias,
        )

    def observe(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update the running statistics by those of a batch with `count` values per channel."""
        rate = self.momentum * (count > 1).to(mean.dtype)
        unbiased = var.detach() * (count / (count - 1).clamp(min=1))
        self.mean = self.mean + rate * (mean.detach() - self.mean)
        self.var = self.var + rate * (unbiased - self.var)

    def _scale(self, centred: Tensor, var: Tensor, x: Tensor) -> Tensor:
        factor = (var + self.eps).rsqrt()
        if self.weight is None or self.bias is None:
            return centred * self._spread(factor, x)
        return centred * self._spread(factor * self.weight, x) + self._spread(self.bias, x)

    def _spread(self, value: Tensor, x: Tensor) -> Tensor:
        """A value per channel, shaped to broadcast over x."""
        return value if self.axis == -1 else value.reshape(-1, *[1] * (x.ndim - 2))

    @staticmethod
    def _stretch(real: Tensor, rows: int) -> Tensor:
        if rows % len(real):
            raise bad("weights", f"one per row or a divisor of {rows} rows", len(real))
        return real.unsqueeze(1).expand(-1, rows // len(real)).reshape(-1)


class Dropout(nn.Module):
    """Dropout whose mask is a function of the pass's key, the layer's name and the element.

    A run draws the same mask alone, among others and after a resume. `name` is the module path;
    ``Classifier`` sets it.

    Parameters
    ----------
    p
        Probability of dropping.
    channels
        Drop whole channels of [B, C, ...], as ``torch.nn.Dropout2d`` does.

    Examples
    --------
    >>> from engram.models.forward_pass import forward_context
    >>> layer = Dropout(0.5)
    >>> with forward_context(key=3):
    ...     first = layer(torch.ones(4, 4))
    >>> with forward_context(key=3):
    ...     again = layer(torch.ones(4, 4))
    >>> torch.equal(first, again), sorted(set(first.flatten().tolist()))
    (True, [0.0, 2.0])
    """

    def __init__(self, p: float = 0.5, *, channels: bool = False, name: str = "dropout") -> None:
        super().__init__()
        self.p, self.channels, self.name = check_float("p", p, 0.0, 1.0), channels, name

    def extra_repr(self) -> str:
        return f"{self.p}, name={self.name!r}"

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        key = KEY.get()
        if key is None:
            raise bad(
                f"key of dropout layer {self.name!r}",
                "an integer key in training mode (with forward_context(weights, key): ...)",
                None,
            )
        repeat = call_number(self)
        key = keys.fold(key, self.name, repeat) if repeat else keys.fold(key, self.name)
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else tuple(x.shape)
        share = SHARE.get()
        if share is None:
            kept = keys.dropout_mask(key, self.p, *shape, device=x.device)
        else:  # the mask of the whole batch; a model may have folded an axis into the rows
            folded = len(x) // share.rows
            start, total = share.start * folded, share.total * folded
            kept = keys.dropout_mask(key, self.p, total, *shape[1:], device=x.device)
            kept = kept[start : start + len(x)]
        return torch.where(kept, x / (1 - self.p), 0.0) if self.p < 1 else torch.zeros_like(x)


# -- batch normalisation as one autograd function --------------------------------------------------
# Composed of plain operations, its gradient would read and write the activations about twice as
# often, and in lockstep that memory traffic dominates the time of a step.


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
        # where instead of a product, so that padding rows may be infinite
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
    """Normalise x, and return the mean and (biased) variance [F] of its real rows, too.

    Parameters
    ----------
    real
        [B] 1 for rows that count, 0 for padding.
    axis
        Channel axis, 1 or -1.
    ranks
        Ranks that hold other rows of the batch; mean and variance are over all of them.

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
