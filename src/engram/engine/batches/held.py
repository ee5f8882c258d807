"""Rows that a method puts aside: no batch holds them, a second step may be fitted on them."""

from __future__ import annotations

import torch

from engram.errors import bad
from engram.learner.items import Items
from engram.learner.learner import Learner
from engram.learner.proxy import proxy_of
from engram.methods.base import Method


def without_held(learner: Learner, items: Items, method: Method, every: int) -> Items:
    """The items without exemplars put aside, those to be stored after the task included.

    A random memory chooses by keys alone, so what it will keep is known before the task is learnt.
    """
    memory = method.memory_budget
    if memory is None or memory.policy != "random":
        wanted = "a memory of the policy 'random', because replay puts rows aside"
        raise bad("memory", wanted, memory)
    with proxy_of(learner) as seen:
        after = memory.update(seen, learner.task.train)
    aside = [kept.rows[kept.ranks % every == 1] for kept in (learner.exemplars, after)]
    left = ~torch.isin(items.rows, torch.cat(aside))
    return Items(*(leaf[left] for leaf in items))
