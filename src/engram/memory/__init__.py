"""Exemplars under a budget: a policy ranks, the budget cuts."""

from __future__ import annotations

from engram.memory.budget import Memory, check_memory
from engram.memory.exemplars import Exemplars
from engram.memory.policies import (
    Entropy,
    Herding,
    Outputs,
    Plane,
    Policy,
    Random,
    Source,
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
    "Source",
    "Outputs",
    "policies",
    "check_memory",
]
