"""Two operations of the graph network, each as few passes over memory as it can be.

In lockstep a step of the graph network costs what its passes over the activations cost: the
products of matrices are small. So what lies between two products is one operation here. On CUDA
it is done by kernels of our own (``graph_kernels``); where those do not apply, by the plain
functions below, which also say what the kernels compute.

All tensors have the runs R first; a network calls with one run, and mapping over runs adds to R.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engram.models.forward_pass import PLAIN

MAX_WIDTH = 1024  # channels that one program of a kernel can hold


def applies(x: Tensor) -> bool:
    """Whether the kernels can be used for activations like x [..., W]."""
    fits = x.is_cuda and x.dtype == torch.float32 and x.shape[-1] <= MAX_WIDTH
    return fits and not PLAIN.get() and not torch.is_autocast_enabled("cuda") and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


# -- what is computed ------------------------------------------------------------------------------
def plain_mix(
    near: Tensor, far: Tensor, bias: Tensor, shift: Tensor, real: Tensor, weight: Tensor,
    beta: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """relu(near + bias) + relu(far + shift), batch-normalised over the rows where `real` is 1.

    near and far are [R, B, V, W], real [R, B], the others [R, W]. Returns y, mean, biased variance.
    """
    h = _activate(near, far, bias, shift)
    count, mask = _count(near, real), real[..., None, None] > 0
    mean = torch.where(mask, h, 0.0).sum((1, 2)) / count
    centred = h - _spread(mean)
    var = torch.where(mask, centred.square(), 0.0).sum((1, 2)) / count
    scale = (var + eps).rsqrt() * weight
    return centred * _spread(scale) + _spread(beta), mean, var


def plain_mix_back(
    dy: Tensor, dmean: Tensor, dvar: Tensor, near: Tensor, far: Tensor, bias: Tensor,
    shift: Tensor, real: Tensor, weight: Tensor, mean: Tensor, var: Tensor, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of near, far, bias, shift, weight and beta."""
    centred = _activate(near, far, bias, shift) - _spread(mean)
    count, rstd = _count(near, real), (var + eps).rsqrt()
    dbeta, product = dy.sum((1, 2)), (dy * centred).sum((1, 2))
    level = (dmean - rstd * weight * dbeta) / count
    slope = (2 * dvar - product * weight * rstd**3) / count
    through = real[..., None, None] * (_spread(level) + centred * _spread(slope))
    dh = through + dy * _spread(rstd * weight)
    dnear = torch.where(near + _spread(bias) > 0, dh, 0.0)
    dfar = torch.where(far + _spread(shift) > 0, dh, 0.0)
    return dnear, dfar, dnear.sum((1, 2)), dfar.sum((1, 2)), product * rstd, dbeta


def plain_read(z: Tensor, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over joints of sigmoid(z . weight + offset) z, and the maximum over joints.

    z is [R, B, V, W], weight [R, W], offset [R].
    """
    gate = torch.sigmoid((z * _spread(weight)).sum(-1) + offset[:, None, None])
    return (gate[..., None] * z).sum(2), z.amax(2)


def plain_read_back(
    dtotal: Tensor, dtop: Tensor, z: Tensor, weight: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, weight and offset; equal maxima share theirs."""
    gate = torch.sigmoid((z * _spread(weight)).sum(-1) + offset[:, None, None])
    here = (z == z.amax(2, keepdim=True)).to(z.dtype)
    into = (z * dtotal[:, :, None]).sum(-1) * gate * (1 - gate)  # [R, B, V]
    dz = gate[..., None] * dtotal[:, :, None] + into[..., None] * _spread(weight)
    dz = dz + here * (dtop[:, :, None] / here.sum(2, keepdim=True))
    return dz, (into[..., None] * z).sum((1, 2)), into.sum((1, 2))


def _activate(near: Tensor, far: Tensor, bias: Tensor, shift: Tensor) -> Tensor:
    return torch.relu(near + _spread(bias)) + torch.relu(far + _spread(shift))


def _spread(value: Tensor) -> Tensor:
    """[R, W] to broadcast over [R, B, V, W]."""
    return value[:, None, None]


def _count(x: Tensor, real: Tensor) -> Tensor:
    """[R, 1] how many values per channel count, at least 1."""
    return (real.sum(1, keepdim=True) * x.shape[2]).clamp(min=1)


# -- as differentiable operations that map over runs -----------------------------------------------
_proven: dict[str, bool] = {}  # kernels that ran, or failed to, in this process


def _dispatch(name: str, *args: Any) -> Any:
    """The kernel of that name on CUDA, the plain function elsewhere."""
    if not _make_contiguous(args[0]) or not _proven.get(name, True):
        return PLAIN_FUNCTIONS[name](*args)
    if name in _proven:
        return _kernel(name, args)
    try:  # the first time it is compiled, for which a C compiler must be there
        found = _kernel(name, args)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _proven[name] = False
        text = f"the graph network trains without custom kernels, more slowly: {error!r}"
        warnings.warn(text, stacklevel=2)
        return PLAIN_FUNCTIONS[name](*args)
    _proven[name] = True
    return found


def _make_contiguous(x: Tensor) -> bool:
    return x.is_cuda


def _kernel(name: str, args: tuple[Any, ...]) -> Any:
    from engram.models.kernels import graph_kernels

    dense = [a.contiguous() if isinstance(a, Tensor) else a for a in args]
    with torch.cuda.device_of(args[0]):  # kernels start on the current device
        return getattr(graph_kernels, name)(*dense)


class _Operation(torch.autograd.Function):
    """Mapping over more runs makes the first axis longer, whatever maps around it."""

    @classmethod
    def folded(cls, info: Any, dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
        count = info.batch_size
        flat = []
        for arg, dim in zip(args, dims, strict=True):
            if isinstance(arg, Tensor):
                arg = arg.expand(count, *arg.shape) if dim is None else arg.movedim(dim, 0)
                arg = arg.flatten(0, 1)
            flat.append(arg)
        found = cls.apply(*flat)  # type: ignore[no-untyped-call]
        return tuple(one.unflatten(0, (count, -1)) for one in found), (0,) * len(found)


def _double_backward(
    plain: Callable[..., Any], saved: Any, rest: tuple[Any, ...], slopes: Any
) -> Any:
    """Gradients of a gradient, through the plain function."""
    pull = torch.func.vjp(lambda *tensors: plain(*tensors, *rest), *saved)[1]
    return (*pull(tuple(slopes)), *(None for _ in rest))


class _Mix(_Operation):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _dispatch("mix", *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors[:6], *output[1:])  # beta is not needed

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        dnear, dfar, dbias, dshift, dweight, dbeta = _MixBack.apply(  # type: ignore[no-untyped-call]
            *slopes, *ctx.saved_tensors, ctx.eps
        )
        return dnear, dfar, dbias, dshift, None, dweight, dbeta, None

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _Mix.folded(info, dims, args)


class _MixBack(_Operation):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _dispatch("mix_back", *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return _double_backward(plain_mix_back, ctx.saved_tensors, (ctx.eps,), slopes)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _MixBack.folded(info, dims, args)


class _Read(_Operation):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _dispatch("read", *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return _ReadBack.apply(*slopes, *ctx.saved_tensors)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _Read.folded(info, dims, args)


class _ReadBack(_Operation):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _dispatch("read_back", *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return _double_backward(plain_read_back, ctx.saved_tensors, (), slopes)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        return _ReadBack.folded(info, dims, args)


PLAIN_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mix": plain_mix, "mix_back": plain_mix_back, "read": plain_read, "read_back": plain_read_back,
}  # fmt: skip


def mix(
    near: Tensor, far: Tensor, bias: Tensor, shift: Tensor, real: Tensor, weight: Tensor,
    beta: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`plain_mix` of one run: near and far [B, V, W], real [B], the others [W].

    Examples
    --------
    >>> near, one, zero = torch.tensor([[[1.0], [3.0]]]), torch.ones(1), torch.zeros(1)
    >>> y, mean, var = mix(near, -near, zero, zero, one, one, zero, 0.0)
    >>> y.flatten().tolist(), mean.item(), var.item()
    ([-1.0, 1.0], 2.0, 1.0)
    """
    own = (near, far, bias, shift, real, weight, beta)
    y, mean, var = _Mix.apply(*(one[None] for one in own), eps)  # type: ignore[no-untyped-call]
    return y.squeeze(0), mean.squeeze(0), var.squeeze(0)  # y[0] would copy its gradient


def read(z: Tensor, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """`plain_read` of one run: z [B, V, W], weight [W], offset a number.

    Examples
    --------
    >>> total, top = read(torch.tensor([[[2.0], [4.0]]]), torch.zeros(1), torch.tensor(0.0))
    >>> total.item(), top.item()
    (3.0, 4.0)
    """
    total, top = _Read.apply(z[None], weight[None], offset[None])  # type: ignore[no-untyped-call]
    return total.squeeze(0), top.squeeze(0)
