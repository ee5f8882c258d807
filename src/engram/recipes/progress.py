"""How far runs have come, in numbers and words, for whoever shows it."""

from __future__ import annotations

from collections.abc import Sequence

from engram.recipes.plan import Plan


class StageCount:
    """How much of all stages of all runs is done."""

    def __init__(self, plans: Sequence[Plan], finished: int) -> None:
        self.total = float(sum(len(plan.run.stream) for plan in plans))
        share = self.total / max(len(plans), 1)
        self.before = share * finished
        self._done: dict[tuple[str, int, str], float] = {}

    def reach(self, plan: Plan, done: float) -> None:
        """`done` stages of a run are behind it."""
        self._done[plan.key] = max(done, self._done.get(plan.key, 0.0))

    @property
    def done(self) -> float:
        return self.before + sum(self._done.values())


def title(plans: Sequence[Plan], stage: int) -> str:
    """What is training now, in a few words."""
    labels = list(dict.fromkeys(plan.label for plan in plans))
    name = labels[0] if len(labels) == 1 else f"{len(labels)} recipes"
    group = f", {len(plans)} runs in lockstep" if len(plans) > 1 else ""
    return f"{name}: task {stage + 1} of {len(plans[0].run.stream)}{group}"
