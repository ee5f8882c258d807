"""`CapturedStep`: a training step recorded as a CUDA graph and replayed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

WARM_UP_STEPS = 3  # real steps that are run eagerly on a side stream before the capture


@functools.cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _side_stream() -> torch.cuda.Stream:
    """Return the stream for eager steps, the same for all recordings on a device.

    Torch caches freed memory per stream: each further stream would take the memory of another step.
    """
    return _stream_of(torch.cuda.current_device())


class CapturedStep:
    """Run a step eagerly a few times, then record it and replay the recording.

    The step must read and write tensors at fixed addresses only. Call `forget` when shapes or
    static choices change. Recordings with the same `pool` share memory.
    """

    def __init__(self, step: Callable[[], None], pool: Any = None) -> None:
        self._step, self._pool = step, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._refused = False

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._refused:
            self._step()
            return
        if self._warm < WARM_UP_STEPS:
            torch.cuda.synchronize()  # cuDNN measures its algorithms: nothing else may run
            side = _side_stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream().wait_stream(side)
            self._warm += 1
            return
        graph = torch.cuda.CUDAGraph()
        try:
            # a thread that fetches rows from disk may pin memory meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as a read from the host; nothing was computed yet
            reason = str(error).strip().splitlines()[0]
            text = f"a step could not be captured as a CUDA graph and runs without: {reason}"
            warnings.warn(text, stacklevel=2)
            torch.cuda.synchronize()
            self._warm, self._refused = 0, True
            self._step()
            return
        self._graph = graph
        graph.replay()  # capturing does not run the step

    def forget(self) -> None:
        self._graph = None
        self._warm = 0
