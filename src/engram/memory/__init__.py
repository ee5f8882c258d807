"""Exemplar memories: a policy ranks the rows of a task, a budget says how many are kept.

Exemplars are row numbers, never copies of data; how they are replayed is in `engram.methods` and
`engram.engine`. Begin with `budget.Memory`, then `ranking_policies`.
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
