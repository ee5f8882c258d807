"""`Output` of a network, the context of one forward pass, and checks of sample shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level

from engram.distributed import Ranks
from engram.errors import bad
from engram.keys import Key


class Output(NamedTuple):
    """One forward pass: it serves the classifier, herding, nearest mean and every detector.

    Examples
    --------
    >>> import torch
    >>> Output(torch.zeros(2, 8), torch.zeros(2, 3)).logits.shape
    torch.Size([2, 3])
    """

    features: Tensor  # [B, F]
    logits: Tensor  # [B, C], every class the head has room for
    # outputs of submodules that were asked for, by path
    layers: dict[str, Tensor] = {}  # noqa: RUF012


# -- context of a forward pass: row weights and a random key ---------------------------------------
# Both are passed in context variables rather than arguments, so that any module may sit between the
# engine and the layer that needs them.

ROW_WEIGHTS: ContextVar[Tensor | None] = ContextVar("row weights of this pass", default=None)
KEY: ContextVar[Key | None] = ContextVar("key of this pass", default=None)
PLAIN: ContextVar[bool] = ContextVar("no custom kernels: the pass is being traced", default=False)
_CALLS: ContextVar[dict[int, int] | None] = ContextVar("calls in this pass", default=None)


def can_be_read(x: Tensor) -> bool:
    """Whether the values of a tensor may decide what is computed.

    Not on a device, which would have to be waited for, nor inside of mapped or traced passes, whose
    shapes do not depend on values.

    Examples
    --------
    >>> import torch
    >>> can_be_read(torch.zeros(1)), torch.vmap(lambda x: x * can_be_read(x))(torch.ones(1))
    (True, tensor([0.]))
    """
    traced = PLAIN.get() or torch.compiler.is_compiling() or type(x) is not Tensor
    return not (x.is_cuda or traced or maybe_current_level() is not None)


class Share(NamedTuple):
    """Of how many rows a pass has which: other ranks have the rest."""

    ranks: Ranks
    start: int
    rows: int
    total: int


SHARE: ContextVar[Share | None] = ContextVar("share of the rows of this pass", default=None)


@contextmanager
def share_context(share: Share) -> Iterator[None]:
    """Declare that forward passes inside the context see a share of the rows only."""
    token = SHARE.set(share)
    try:
        yield
    finally:
        SHARE.reset(token)


class forward_context:  # noqa: N801 - reads as a statement: with forward_context(...)
    """Set row weights and key for the length of one forward pass.

    Parameters
    ----------
    weights
        [B] row weights; rows of weight 0 are padding and stay out of batch statistics. None says
        that every row counts, and is the fast path.
    key
        Integer or 0-dim integer tensor from which dropout draws.

    Examples
    --------
    >>> with forward_context(None, 7):
    ...     KEY.get()
    7
    >>> KEY.get() is None
    True
    """

    __slots__ = ("_calls", "_key", "_weights", "key", "weights")

    def __init__(self, weights: Tensor | None = None, key: Key | None = None) -> None:
        self.weights = weights
        self.key = key

    def __enter__(self) -> None:
        self._weights: Token[Tensor | None] = ROW_WEIGHTS.set(self.weights)
        self._key: Token[Key | None] = KEY.set(self.key)
        self._calls: Token[dict[int, int] | None] = _CALLS.set({})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CALLS.reset(self._calls)
        KEY.reset(self._key)
        ROW_WEIGHTS.reset(self._weights)


def call_number(module: nn.Module) -> int:
    """Return how often `module` was called before in this forward pass.

    A dropout layer used at two places of a network must draw two masks.
    """
    calls = _CALLS.get()
    if calls is None:
        return 0
    number = calls.get(id(module), 0)
    calls[id(module)] = number + 1
    return number


# -- checks of sample shapes -----------------------------------------------------------------------


def check_image_shape(
    model: str, shape: tuple[int, ...], *, least: int = 1
) -> tuple[int, int, int]:
    """(channels, height, width) of an image model's input, or a clear error.

    Examples
    --------
    >>> check_image_shape("cnn", (20,))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: sample_shape: expected images [C, H, W] for cnn, got (20,)
    """
    if len(shape) != 3:
        grey = " (grey ones have one channel: x[:, None])" if len(shape) == 2 else ""
        raise bad("sample_shape", f"images [C, H, W] for {model}{grey}", shape)
    if min(shape[1:]) < least:
        raise bad("sample_shape", f"images of at least {least} x {least} for {model}", shape)
    return shape[0], shape[1], shape[2]


def check_skeleton_shape(model: str, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(channels, frames, joints, persons) of a skeleton model's input, or a clear error.

    Examples
    --------
    >>> check_skeleton_shape("gcn", (3, 52, 20))
    (3, 52, 20, 1)
    """
    if len(shape) not in (3, 4):
        expected = f"skeletons [C, T, V] or [C, T, V, persons] for {model}"
        raise bad("sample_shape", expected, shape)
    return shape[0], shape[1], shape[2], shape[3] if len(shape) == 4 else 1


def make_average_pool(found: tuple[int, int], wanted: int) -> nn.Module:
    """An average over places that leaves `wanted` x `wanted` of them; none where there are as many.

    Then it would change nothing, but has no deterministic gradient on CUDA.

    Examples
    --------
    >>> make_average_pool((7, 7), 7), make_average_pool((8, 8), 7)
    (Identity(), AdaptiveAvgPool2d(output_size=7))
    """
    return nn.Identity() if found == (wanted, wanted) else nn.AdaptiveAvgPool2d(wanted)
