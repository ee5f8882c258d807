"""Exemplars under a budget: a policy ranks, the budget cuts."""

from __future__ import annotations

from engram.memory.budget import Memory, check_memory
from engram.memory.catalogue import policies
from engram.memory.entropy import Entropy
from engram.memory.exemplars import Exemplars
from engram.memory.herding import Herding
from engram.memory.plane import Plane
from engram.memory.random import Random
from engram.memory.source import Outputs, Policy, Source

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
