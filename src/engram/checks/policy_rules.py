"""Rules for memory policies: a valid ranking, the budget, and determinism by the seed."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from engram.checks import equality_rules, leakage_rules
from engram.checks.check_report import DoesNotApply, require
from engram.checks.toy_runs import make_runs, make_streams, train_runs, trees_equal
from engram.engine.engine import Engine
from engram.learner.learner import RunLearner
from engram.memory import Exemplars, Memory
from engram.memory.ranking_policies import make_ranking
from engram.methods.er import ER

TOTAL = 12
DRAWS, KEPT, PASSED = 200, 2, 5  # reservoirs drawn, their size, rows offered


def make_replay(policy: Any) -> ER:
    """Make experience replay with this policy and a small budget."""
    if policy == "admit":
        raise DoesNotApply("the method decides which rows enter")
    return ER(memory=Memory(total=TOTAL, policy=policy))


def _make_learner() -> RunLearner:
    runs = make_runs(ER(), make_streams()[:1])
    return next(iter(Engine(runs, device="cpu", together=False).stages())).learner


def _rank_rows(policy: Any, learner: RunLearner, rows: Tensor, column: int, count: int) -> Tensor:
    options = {"normalize": True, "dedupe": True, "rule": "distance", "pd_transform": "abs_eps"}
    return make_ranking(policy, **options)(learner, rows, column, count)  # type: ignore[arg-type]


def _require_ranking(policy: Any) -> None:
    if policy in ("reservoir", "admit"):
        raise DoesNotApply("rows are kept as they pass by, not ranked")


def check_prefix_of_a_ranking_is_a_ranking(policy: Any) -> None:
    """The first n of a long ranking are the ranking of length n, without repetition."""
    _require_ranking(policy)
    learner = _make_learner()
    labels = learner.labels(learner.task.train)[:, 0]
    for column in (0, 1, -1):
        rows = learner.task.train if column < 0 else learner.task.train[labels == column]
        whole = _rank_rows(policy, learner, rows, column, len(rows))
        require(
            sorted(whole.tolist()) == list(range(len(rows))),
            f"a full ranking must name each of {len(rows)} rows once (column {column})",
        )
        for count in (1, 2, len(rows) // 2):
            part = _rank_rows(policy, learner, rows, column, count)[:count]
            require(
                torch.equal(part, whole[:count]),
                f"the ranking of length {count} is not the "
                "beginning of the full one: rank all rows, then cut",
            )


def check_only_the_seed_decides(policy: Any) -> None:
    """The same seed keeps the same rows; no global generator is used or moved."""
    found = []
    for junk in (0, 1):
        random.seed(junk)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(junk)
            before = torch.get_rng_state()
            runs = make_runs(make_replay(policy), make_streams()[:1])
            found.append(train_runs(runs))
            moved = not torch.equal(before, torch.get_rng_state())
        require(not moved, "the policy draws from torch's generator: draw with engram.keys")
    for key, one in found[0].items():
        kept = trees_equal(tuple(one.exemplars[:4]), tuple(found[1][key].exemplars[:4]))
        require(kept, f"the same seed keeps other rows after task {key[1]}")


def check_policy_within_budget(policy: Any) -> None:
    """No more items than the budget, all of them training rows of tasks so far."""
    leakage_rules.check_memory_within_budget(make_replay(policy))


def check_policy_sees_no_future(policy: Any) -> None:
    """What is kept does not depend on test rows or on later tasks."""
    leakage_rules.check_test_and_future_rows_do_not_matter(make_replay(policy))


def check_policy_ignores_class_ids(policy: Any) -> None:
    """Other ids for the same classes: the same rows are kept."""
    equality_rules.check_class_ids_do_not_matter(make_replay(policy))


def check_policy_in_lockstep(policy: Any) -> None:
    """In lockstep and alone, the same rows are kept."""
    equality_rules.require_lockstep_is_alone(make_runs(make_replay(policy), make_streams()))


class _PassingLearner:
    """A stand-in for a learner that sees rows in one task."""

    def __init__(self, seed: int) -> None:
        self.seed, self.stage, self.exemplars = seed, 0, Exemplars.empty()
        self.opened = torch.zeros(1, dtype=torch.long)

    def labels(self, rows: Tensor) -> Tensor:
        return torch.zeros(len(rows), 1, dtype=torch.long)


def check_reservoir_is_uniform(policy: Any) -> None:
    """Of all rows offered, one in each task, each is kept with the same probability."""
    if policy != "reservoir":
        raise DoesNotApply("no reservoir")
    counts, memory = torch.zeros(PASSED), Memory(total=KEPT, policy="reservoir")
    for seed in range(DRAWS):
        learner: Any = _PassingLearner(seed)
        for learner.stage, rows in enumerate(torch.arange(PASSED).split(1)):
            learner.exemplars = memory.update(learner, rows)
        counts[learner.exemplars.rows] += 1
    expected = DRAWS * KEPT / PASSED
    # counts of a draw sum to KEPT, so their variance is that of drawing without replacement
    spread = expected * (1 - KEPT / PASSED) * PASSED / (PASSED - 1)
    chi = float(((counts - expected) ** 2 / spread).sum())
    require(
        chi < 23,
        f"rows are kept {counts.int().tolist()} times where {expected:.0f} are expected of each "
        "(chi-square with 4 degrees of freedom; 23 is a chance of 1 in 10,000)",
    )
