"""The policies by name."""

from __future__ import annotations

import inspect

from engram.errors import bad, choose, unknown
from engram.memory.entropy import Entropy
from engram.memory.groups import checked
from engram.memory.herding import Herding
from engram.memory.plane import Plane
from engram.memory.random import Random
from engram.memory.source import Policy, Ranking
from engram.memory.stratified import Stratified

ARGUMENTS = ("learner", "rows", "column", "count")  # of a ranking
_LINES = {
    "random": "uniform sampling without replacement",
    "stratified": "uniform sampling within each class of a task, in equal shares",
    "reservoir": "uniform sample of all rows seen so far, not balanced by class (total only)",
    "herding": "herding: rows whose running feature mean best follows the class mean",
    "entropy": "sampling weighted by the entropy of the prediction over the classes seen",
    "plane": "sampling weighted by the inverse distance to the decision plane of the class",
}


def policies() -> dict[str, str]:
    """Names of the policies, one line about each.

    Examples
    --------
    >>> sorted(policies())
    ['entropy', 'herding', 'plane', 'random', 'reservoir', 'stratified']
    """
    return dict(_LINES)


def check_policy(policy: str | Policy | Ranking) -> None:
    """Refuse what cannot rank."""
    if isinstance(policy, str):
        choose("policy", policy, _LINES)
    elif isinstance(policy, type) or not (isinstance(policy, Policy) or callable(policy)):
        wanted = f"one of {', '.join(_LINES)}, or an object with a method rank"
        raise bad("policy", wanted, policy)
    else:
        _check_arguments(policy.rank if isinstance(policy, Policy) else policy)


def _check_arguments(rank: Ranking) -> None:
    """Refuse a ranking of one's own that cannot be called as memories call it."""
    taken = inspect.signature(rank)
    try:
        taken.bind(*ARGUMENTS)
    except TypeError:
        wanted = f"a ranking that takes ({', '.join(ARGUMENTS)})"
        raise bad("policy", wanted, f"{name_of(rank)}{taken}") from None


def name_of(policy: str | Policy | Ranking) -> str:
    """What to call a policy in a table."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "__name__", type(policy).__name__))


def ranking_of(
    policy: str | Policy | Ranking, *, normalize: bool, dedupe: bool, rule: str, pd_transform: str
) -> Ranking:
    """The ranking function; answers of a user's own policy are checked."""
    if policy == "random":
        return Random().rank
    if policy == "stratified":
        return Stratified().rank
    if policy == "herding":
        return Herding(normalize=normalize, dedupe=dedupe, rule=rule).rank
    if policy == "entropy":
        return Entropy().rank
    if policy == "plane":
        return Plane(transform=pd_transform).rank
    if isinstance(policy, str):
        raise unknown("policy", policy, _LINES)
    return checked(policy.rank if isinstance(policy, Policy) else policy)
