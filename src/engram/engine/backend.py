"""Where and how torch computes while runs train: device, precision, determinism."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engram.errors import bad, choose

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


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
    kind, colon, index = str(name).partition(":")
    choose("device", kind, ("auto", "cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise bad("device", "cpu, because no CUDA device is available here", name)
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if colon and not (index.isdecimal() and int(index) < count):
        raise bad("device", f"{kind}, or {kind}:0 to {kind}:{count - 1}", name)
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


@contextmanager
def measuring(precision: str) -> Iterator[None]:
    """How CUDA computes while probes and detectors measure a finished stage.

    Networks convolve as when the stage was evaluated. Products of matrices keep all their digits:
    detectors fit covariances and take distances, which do not bear the rounding of a network.

    Examples
    --------
    >>> with measuring("float32"):
    ...     torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    (False, False)
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = False, precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def unsearched() -> Iterator[None]:
    """Let cuDNN take what it deems best for shapes that are met a few times only.

    Else it tries its algorithms on every new shape, which takes longer than such a pass itself.
    """
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, False
    try:
        yield
    finally:
        cudnn.benchmark = before


@contextmanager
def determinism(on: bool, device: torch.device) -> Iterator[None]:
    """Let torch use algorithms only that give the same bits every time, while this lasts.

    On the CPU they do so anyway. On CUDA some are slower, and an operation for which torch has no
    such algorithm is an error. Where `on` is False nothing is touched.

    Examples
    --------
    >>> with determinism(True, torch.device("cpu")):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not on:
        yield
        return
    cudnn, workspace = torch.backends.cudnn, os.environ.get(WORKSPACE)
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.benchmark, cudnn.deterministic
    if device.type == "cuda" and workspace is None:  # cuBLAS reads it, and torch insists on it
        os.environ[WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
