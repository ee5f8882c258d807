"""What methods that tell new classes from old ones ask of a stream."""

from __future__ import annotations

import torch

from engram.errors import bad
from engram.learner.learner import RunLearner


def need_new_classes(learner: RunLearner, method: str, *, strict: bool = False) -> None:
    """Raise unless every task has new classes and, if `strict`, no others.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(20)], [0, 1, 2, 3] * 5)
    >>> class Learner:
    ...     stream = class_incremental(data)
    >>> need_new_classes(Learner, "WA", strict=True)
    """
    stages = torch.arange(len(learner.stream))[:, None]
    opens = learner.stream.opening == stages  # [T, C]
    if not bool(opens.any(-1).all()):
        raise bad("stream", f"new classes in every task, for {method}", "a task without any")
    if strict and bool((learner.stream.visible & ~opens).any()):
        expected = f"tasks whose classes are all new, for {method}"
        raise bad("stream", expected, "known classes in a task")
