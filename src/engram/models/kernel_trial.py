"""Kernels of our own are tried before they are trusted, and given up in words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def works(gap: Callable[[], float], most: float, *, what: str, broken: list[str]) -> bool:
    """Whether kernels can be made and are at `most` so far from torch's, as `gap` finds.

    Else a warning says that `what` goes on without them, and why, which `broken` keeps: the kernels
    are given up in this process. A missing C compiler shows when the first kernel is made.

    Examples
    --------
    >>> works(lambda: 1e-5, 1e-3, what="pooling", broken=[])
    True
    """
    try:
        found = gap()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        said = repr(error)
    else:
        if found < most:
            return True
        said = f"they differ from torch's by {found:.1e}"
    text = f"{what} run without custom kernels, more slowly: {said}"
    warnings.warn(text, stacklevel=3)
    broken.append(said)
    return False


def waves(*shape: int, device: torch.device) -> Tensor:
    """Numbers without a generator, whose state is a run's own."""
    return torch.arange(math.prod(shape), device=device).mul(7919).sin().view(shape)
