"""How many threads of the CPU a training step is worth.

Sharing a sum of a microsecond among threads costs more than it saves, and on a busy machine, where
one thread waits for the other to be scheduled, seven times as much as the step itself. The choice
follows from the run alone, never from a clock, so that its numbers do not depend on the machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engram.engine.training import Training
from engram.learner.learner import Learner

SMALL = 1 << 26  # multiplications of a step's forward pass: about ten milliseconds of one core
TOLD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_most: list[int] = []  # threads that runs may use, inside `limited`


@contextmanager
def limited() -> Iterator[None]:
    """While this lasts, small runs use one thread of those there are; afterwards all is as before.

    Who sets ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS`` has chosen, and nothing is touched.
    """
    if any(os.environ.get(name) for name in TOLD) or torch.get_num_threads() == 1:
        yield
        return
    _most.append(torch.get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(_most.pop())


def settle(learners: Sequence[Learner], training: Training, *, mapped: bool) -> None:
    """Before a task: one thread for runs whose steps are small, all that there are for others."""
    if not _most or learners[0].device.type != "cpu":
        return
    size = work(learners[0], training.batch_size) * (len(learners) if mapped else 1)
    wanted = 1 if size <= SMALL else _most[-1]
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def work(learner: Learner, batch_size: int) -> int:
    """Multiplications of a forward pass, roughly and rather too many.

    Every parameter counts once for each place of a sample at which it may be used: once where a
    layer takes the whole sample, at every pixel or joint otherwise.
    """
    shape = learner.stream.data.sample_shape
    whole = any(
        one.ndim == 2 and one.shape[-1] == math.prod(shape) for one in learner.params.values()
    )
    places = 1 if whole or len(shape) == 1 else math.prod(shape) // min(shape)
    return int(learner.vector.numel()) * batch_size * places
