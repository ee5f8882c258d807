"""Joint training with complete labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec


@dataclass(frozen=True, kw_only=True)
class IncrementalJoint(Method):
    """Train at task k on all rows of tasks 1..k, each once, with every label opened so far.

    The upper bound of streams that hide labels (Abdelsalam et al. 2021, CVPR): the superclass of a
    row of this task, and the subclass of a row of an earlier one, are both shown.

    Examples
    --------
    >>> IncrementalJoint().replay(1)
    ReplaySpec(kind='complete', size=0)
    """

    reads: ClassVar[str] = "past"
    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("complete")
