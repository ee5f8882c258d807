"""What methods share that replay from a memory which they fill row by row while they train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from engram.errors import bad, check_choice, check_int
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.er import REDUCTIONS, replay_terms
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms


@dataclass(frozen=True, kw_only=True)
class OnlineReplay(Method):
    """Join rows of the memory to every batch; subclasses say which rows `admit` lets in."""

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    memory: Memory = field(default=Memory(total=500, policy="admit"))
    reduce: str = "mean"
    size: int = 0

    def __post_init__(self) -> None:
        check_memory(self.memory)
        if self.memory.policy != "admit":
            wanted = f"'admit', since {type(self).__name__} decides for itself which rows enter"
            raise bad("memory.policy", wanted, self.memory.policy)
        check_choice("reduce", self.reduce, REDUCTIONS)
        check_int("size", self.size)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, renew="step")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        return replay_terms(net, batch, self.reduce)
