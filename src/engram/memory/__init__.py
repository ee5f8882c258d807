"""Exemplars under a budget: a policy ranks the rows of a task, the budget cuts the ranking.

How exemplars are replayed is in `methods` and `engine`; exemplars are row numbers, never copies of
data. Begin with `budget` (`Memory`), then `policies`.
"""

from __future__ import annotations

from engram.memory.budget import Memory, check_memory
from engram.memory.exemplars import Exemplars
from engram.memory.ranking_policies import (
    Entropy,
    Herding,
    Outputs,
    Plane,
    Policy,
    PolicyLearner,
    Random,
    policies,
)

__all__ = [
    "Memory",
    "Exemplars",
    "Random",
    "Herding",
    "Entropy",
    "Plane",
    "Policy",
    "PolicyLearner",
    "Outputs",
    "policies",
    "check_memory",
]
