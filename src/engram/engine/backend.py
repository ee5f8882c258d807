"""Where and how torch computes while runs train: device, precision, determinism, number of CPU
threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from engram.engine.training import Training
from engram.errors import bad, check_choice
from engram.learner.learner import RunLearner

CUBLAS_WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def resolve_device(name: str | torch.device) -> torch.device:
    """``auto`` takes CUDA where there is one.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, index = str(name).partition(":")
    check_choice("device", kind, ("auto", "cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise bad("device", "cpu, because no CUDA device is available here", name)
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if colon and not (index.isdecimal() and int(index) < count):
        raise bad("device", f"{kind}, or {kind}:0 to {kind}:{count - 1}", name)
    return torch.device(name)


class _TorchDefaults:
    """Defaults of torch that are functions, as an attribute."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.get_default_dtype()

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        torch.set_default_dtype(dtype)


TORCH_FLAGS: dict[str, tuple[Any, str]] = {  # of torch, one of each in a process
    "dtype": (_TorchDefaults(), "dtype"),
    "matmul_tf32": (torch.backends.cuda.matmul, "allow_tf32"),
    "cudnn_tf32": (torch.backends.cudnn, "allow_tf32"),
    "benchmark": (torch.backends.cudnn, "benchmark"),
    "deterministic": (torch.backends.cudnn, "deterministic"),
}


class _FlagScopes:
    """Who has set which of torch's flags, and since when.

    Networks are asked from threads while others train, and scopes of two threads need not end in
    the order in which they began: each flag is what the youngest scope that is still open says of
    it, and what it was before all of them once none is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[dict[str, Any]] = []
        self._before: dict[str, Any] = {}

    @contextmanager
    def __call__(self, **wanted: Any) -> Iterator[None]:
        with self._lock:
            self._open.append(wanted)
            for name in wanted:
                self._before.setdefault(name, getattr(*TORCH_FLAGS[name]))
                self._apply(name)
        try:
            yield
        finally:
            with self._lock:  # by identity, since two scopes may be equal
                self._open = [one for one in self._open if one is not wanted]
                for name in wanted:
                    self._apply(name)

    def _apply(self, name: str) -> None:
        wanted = [one[name] for one in self._open if name in one]
        owner, flag = TORCH_FLAGS[name]
        setattr(owner, flag, wanted[-1] if wanted else self._before.pop(name))


_flags = _FlagScopes()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let a method's verbs make tensors in the precision of the weights.

    Without it ``0.5 * mask`` would be float32 in a run in float64.

    Examples
    --------
    >>> with default_dtype(torch.float64):
    ...     (0.5 * torch.tensor([True])).dtype
    torch.float64
    >>> (0.5 * torch.tensor([True])).dtype
    torch.float32
    """
    with _flags(dtype=dtype):
        yield


@contextmanager
def training_numerics(precision: str) -> Iterator[None]:
    """Set the precision and algorithms of CUDA for a training stage."""
    with (
        inference_numerics(precision),
        _flags(benchmark=not torch.are_deterministic_algorithms_enabled()),
    ):
        yield


@contextmanager
def inference_numerics(precision: str) -> Iterator[None]:
    """Set the precision of CUDA for inference with batches of any shape.

    By default torch uses tf32 for convolutions in float32; here ``float32`` is exact.

    Examples
    --------
    >>> with inference_numerics("tf32"):
    ...     torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    (True, True)
    """
    with _flags(matmul_tf32=precision == "tf32", cudnn_tf32=precision == "tf32"):
        yield


@contextmanager
def probe_numerics(precision: str) -> Iterator[None]:
    """Set the precision of CUDA for probes and detectors after a stage.

    Convolutions are as in the evaluation of the stage. Matrix products have full precision, because
    covariances and distances of detectors are sensitive to rounding.

    Examples
    --------
    >>> with probe_numerics("float32"):
    ...     torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    (False, False)
    """
    with _flags(matmul_tf32=False, cudnn_tf32=precision == "tf32"):
        yield


@contextmanager
def without_cudnn_benchmark() -> Iterator[None]:
    """Disable cuDNN's benchmark mode for shapes that occur only a few times.

    Measuring the algorithms for a new shape takes longer than such a pass itself.
    """
    with _flags(benchmark=False):
        yield


@contextmanager
def deterministic_algorithms(on: bool, device: torch.device) -> Iterator[None]:
    """Use only deterministic algorithms of torch inside the context, if `on`.

    On the CPU all are deterministic. On CUDA some are slower, and an operation without a
    deterministic algorithm is an error.

    Examples
    --------
    >>> with deterministic_algorithms(True, torch.device("cpu")):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not on:
        yield
        return
    workspace = os.environ.get(CUBLAS_WORKSPACE_VARIABLE)
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if device.type == "cuda" and workspace is None:  # required by torch for cuBLAS
        os.environ[CUBLAS_WORKSPACE_VARIABLE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        with _flags(benchmark=False, deterministic=True):
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE_VARIABLE, None)


# -- CPU threads of a training step ----------------------------------------------------------------
# Distributing a sum that takes a microsecond over threads costs more than it saves; on a busy
# machine, where threads wait to be scheduled, up to seven times the step itself. The number of
# threads depends on the run alone and not on measured times, so that results do not depend on the
# machine.

SMALL_STEP = 1 << 26  # multiplications of a step's forward pass: about ten milliseconds of one core
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_thread_limits: list[int] = []  # threads that runs may use, inside `limit_threads`


@contextmanager
def limit_threads() -> Iterator[None]:
    """Let small runs use one thread inside the context, and restore the number afterwards.

    Does nothing if ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS`` is set.
    """
    if any(os.environ.get(name) for name in THREAD_VARIABLES) or torch.get_num_threads() == 1:
        yield
        return
    _thread_limits.append(torch.get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(_thread_limits.pop())


@contextmanager
def one_thread(on: bool) -> Iterator[None]:
    """Use one thread inside the context, if `on`, for every run.

    A sum over several threads is rounded in a way that depends on their number.
    """
    before = torch.get_num_threads()
    if on:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if on:
            torch.set_num_threads(before)


def set_threads(learners: Sequence[RunLearner], training: Training, *, mapped: bool) -> None:
    """Use one thread for runs with small steps, and all threads for others."""
    if not _thread_limits or learners[0].device.type != "cpu":
        return
    size = estimate_work(learners[0], training.batch_size) * (len(learners) if mapped else 1)
    wanted = 1 if size <= SMALL_STEP else _thread_limits[-1]
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def estimate_work(learner: RunLearner, batch_size: int) -> int:
    """Estimate the multiplications of a forward pass, rather too high.

    A parameter counts once if a layer takes the whole sample, and once for every pixel or joint of
    a sample otherwise.
    """
    shape = learner.stream.data.sample_shape
    whole = any(
        one.ndim == 2 and one.shape[-1] == math.prod(shape) for one in learner.params.values()
    )
    places = 1 if whole or len(shape) == 1 else math.prod(shape) // min(shape)
    return int(learner.vector.numel()) * batch_size * places
