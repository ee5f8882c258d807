"""Where and how torch computes while runs train: device, precision, search for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engram.errors import bad, choose


def device_of(name: str | torch.device) -> torch.device:
    """``auto`` takes CUDA where there is one.

    Examples
    --------
    >>> device_of("cpu")
    device(type='cpu')
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.split(":")[0]
    choose("device", kind, ("auto", "cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise bad("device", "cpu, because no CUDA device is available here", name)
    return torch.device(name)


@contextmanager
def numerics(precision: str) -> Iterator[None]:
    """How CUDA multiplies and convolves for the length of a stage.

    Torch would convolve 32-bit floats in tf32 by default; here ``float32`` means what it says.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
