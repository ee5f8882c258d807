"""Random numbers without generators: every draw is a pure function of an integer key.

A key is folded from (seed, purpose, stage, step, ...). The same key gives the same draw for a run
alone, in lockstep, after resuming, and on any device. All arithmetic is on 64-bit integers with
wrap-around (splitmix64), so it can be mapped by ``torch.func.vmap`` and captured into a CUDA graph.
Large draws on CUDA use the kernels of `engram.key_kernels`, with bitwise equal results.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import maybe_current_level
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

Key = int | Tensor

_STEP = -7046029254386353131  # the golden ratio as an odd 64-bit step
_MIX_A = -4658895280553007687
_MIX_B = -7723592293110705685
_MASK = (1 << 64) - 1
_LARGEST = (1 << 63) - 1
_LARGE = 4096  # minimum size of a draw by a kernel
_kernel_works: dict[torch.device, bool] = {}


def _wrap(value: int) -> int:
    """Wrap a Python integer to the signed 64-bit number that a tensor would hold."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    value = _wrap((value ^ _shift(value, 30)) * _MIX_A)
    value = _wrap((value ^ _shift(value, 27)) * _MIX_B)
    return value ^ _shift(value, 31)


def _shift(value: int, bits: int) -> int:
    """Shift to the right without copying the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix_(value: Tensor) -> Tensor:
    """Mix a tensor in place, as `_mix`."""
    value = value.bitwise_xor_(_shift_(value, 30)).mul_(_MIX_A)
    value = value.bitwise_xor_(_shift_(value, 27)).mul_(_MIX_B)
    return value.bitwise_xor_(_shift_(value, 31))


def _shift_(value: Tensor, bits: int) -> Tensor:
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def fold(key: Key, *what: Key | str) -> Key:
    """Derive a new key from `key` and anything that distinguishes draws: names, stages, steps.

    Integers and tensors give equal keys, so that host and device agree.

    Examples
    --------
    >>> fold(0, "order", 3) == int(fold(torch.tensor(0), "order", torch.tensor(3)))
    True
    >>> fold(0, "order", 3) == fold(0, "order", 4)
    False
    """
    for item in what:
        add = zlib.crc32(item.encode()) if isinstance(item, str) else item
        key = _fold_number(key, add)
    return key


def _fold_number(key: Key, add: Key) -> Key:
    if isinstance(add, Tensor):
        key, add = (key + add, 0) if isinstance(key, Tensor) else (add, key)
    number = _wrap(int(add) + _STEP)
    if not isinstance(key, Tensor):
        return _mix(_wrap(int(key) + number))
    if _is_on_host(key):
        return torch.tensor(_mix(_wrap(int(key) + number)))
    if _has_kernel(key):
        from engram import key_kernels

        return key_kernels.mix(key, number)
    return _mix_(key + number)


def _is_on_host(key: Tensor) -> bool:
    """Whether a key is a single number in the memory of the host: Python mixes it sooner."""
    return (
        not key.ndim and key.is_cpu and key.dtype == torch.long and type(key) is Tensor
        and not _is_transformed()
    )  # fmt: skip


def _is_transformed() -> bool:
    """Whether what happens now is mapped, differentiated by a transform, or traced."""
    if torch.compiler.is_compiling():
        return True
    return maybe_current_level() is not None or bool(_len_torch_dispatch_stack())


def fold_each(key: Key, *names: str, device: torch.device | str | None = None) -> Tensor:
    """Fold each of several names into a key: keys [..., n] whose draws equal those of each alone.

    Examples
    --------
    >>> fold_each(5, "a", "b").tolist() == [fold(5, "a"), fold(5, "b")]
    True
    """
    key = torch.as_tensor(key, device=device)
    found = fold(key.unsqueeze(-1), _name_numbers(names, key.device))
    return torch.as_tensor(found)


@contextmanager
def _outside_transforms() -> Iterator[None]:
    """Make a tensor that is cached outside of tracing, mapping and differentiation around it."""
    with _disable_current_modes(), temporarily_clear_interpreter_stack():
        yield


@lru_cache(maxsize=64)
def _name_numbers(names: tuple[str, ...], device: torch.device) -> Tensor:
    """Return what `fold` adds for names; cached, since a copy from the host cannot be captured."""
    with _outside_transforms():
        numbers = torch.tensor([zlib.crc32(name.encode()) for name in names], device=device)
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()  # any stream may read it from now on
    return numbers


@lru_cache(maxsize=64)
def _counter(count: int, device: torch.device) -> Tensor:
    """Return 1 to `count` times the step; cached, since compilers multiply an arange in 32 bits.

    A tensor of a level of differentiation that has ended could not be used again.
    """
    with _outside_transforms():
        counter = torch.arange(1, count + 1, device=device) * _STEP
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()  # any stream may read it from now on
    return counter


def bits(key: Key, *shape: int, device: torch.device | str | None = None) -> Tensor:
    """Draw 63 random bits per entry, shape ``key.shape + shape``."""
    key = torch.as_tensor(key, device=device)
    count = math.prod(shape)
    if not shape and _is_on_host(key):
        number = int(key)
        drawn = _mix(_wrap(_mix(_wrap(number + _STEP)) + number))
        return torch.tensor(drawn & _LARGEST)
    if _has_kernel(key, count):
        from engram import key_kernels

        return key_kernels.bits(key, count).reshape(*key.shape, *shape)
    return _bits(key, count).reshape((*key.shape, *shape))


def _bits(key: Tensor, count: int) -> Tensor:
    """Draw bits [..., count] with torch; in place, since allocation takes half of the time."""
    spread = key.unsqueeze(-1)
    drawn = _mix_(spread + _counter(count, key.device))
    return _mix_(drawn.add_(spread)).bitwise_and_(_LARGEST)


def _has_kernel(key: Tensor, count: int = _LARGE) -> bool:
    """Whether to use a kernel for keys, or `count` draws of each: not when mapped or traced."""
    if not key.is_cuda or key.dtype != torch.long or _is_transformed():
        return False
    if key.device not in _kernel_works:
        if torch.cuda.is_current_stream_capturing():  # a trial is not possible now
            return False
        _kernel_works[key.device] = _try_kernel(key.device)
    return _kernel_works[key.device] and key.numel() * count >= _LARGE


def _try_kernel(device: torch.device) -> bool:
    """Whether the kernel compiles on this machine and draws the same numbers as torch."""
    if importlib.util.find_spec("triton") is None:
        return False
    key = torch.tensor([1, -(2**62) - 5], device=device)
    drawn = _bits(key, 3000)
    expected = _mix_(key + _STEP), drawn, (drawn >> 39) >= 2**23
    try:
        from engram import key_kernels as kernels

        found = (
            kernels.mix(key, _STEP), kernels.bits(key, 3000),
            kernels.dropout_mask(key, 2**23, 3000),
        )  # fmt: skip
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = repr(error)
    else:
        if all(map(torch.equal, found, expected)):
            return True
        reason = "they differ from torch's"
    warnings.warn(f"keys and masks run without custom kernels: {reason}", stacklevel=2)
    return False


def uniform(key: Key, *shape: int, device: torch.device | str | None = None) -> Tensor:
    """Draw uniform numbers in [0, 1) as float64.

    Examples
    --------
    >>> uniform(7, 3).shape
    torch.Size([3])
    """
    drawn = bits(key, *shape, device=device)
    if _is_on_host(drawn):
        return torch.tensor((int(drawn) >> 10) * 2.0**-53, dtype=torch.float64)
    return (drawn >> 10).double() * 2.0**-53


def normal(key: Key, *shape: int, device: torch.device | str | None = None) -> Tensor:
    """Draw standard normal numbers as float64."""
    drawn: Tensor = torch.special.ndtri(uniform(key, *shape, device=device).clamp(2.0**-53))
    return drawn


def randint(key: Key, n: Key, *shape: int, device: torch.device | str | None = None) -> Tensor:
    """Draw integers in [0, n); `n` may be a tensor with a value for each run.

    Computed by multiplying and shifting 31 bits, without floating point, so that every device draws
    the same numbers.
    """
    drawn = bits(key, *shape, device=device) >> 32
    if isinstance(n, int):  # not made a tensor: a copy from the host cannot be captured
        return (drawn * n) >> 31
    count = n.to(drawn.device)
    return (drawn * count.reshape(*count.shape, *[1] * len(shape))) >> 31


def dropout_mask(
    key: Key, drop: float, *shape: int, device: torch.device | str | None = None
) -> Tensor:
    """Draw a mask that is False with probability `drop`."""
    key, least = torch.as_tensor(key, device=device), round(drop * 2**24)
    count = math.prod(shape)
    if _has_kernel(key, count):
        from engram import key_kernels

        return key_kernels.dropout_mask(key, least, count).reshape(*key.shape, *shape)
    return (bits(key, *shape) >> 39) >= least


def permutation(key: Key, length: int, n: Key, device: torch.device | str | None = None) -> Tensor:
    """Draw a permutation of 0..n-1 in the first n of `length` positions; the rest is padding.

    The position of an entry does not depend on `length`, so padding changes nothing.

    Examples
    --------
    >>> permutation(3, 5, 5).tolist() == permutation(3, 8, 5).tolist()[:5]
    True
    """
    drawn = bits(key, length, device=device)
    count = torch.as_tensor(n, device=drawn.device)
    here = torch.arange(length, device=drawn.device) < count.unsqueeze(-1)
    return torch.where(here, drawn, _LARGEST).argsort(dim=-1, stable=True)


def torch_seed(key: Key) -> int:
    """Return a seed for `torch.manual_seed`, for initialisers that use torch's generator."""
    return int(key) & 0x7FFFFFFFFFFFFFFF
