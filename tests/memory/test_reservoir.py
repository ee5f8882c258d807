from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare
from torch import Tensor

from engram import keys
from engram.errors import BadArgument
from engram.memory import Memory
from engram.memory.ranking_policies import draw_slots, fill_slots


def test_t_b2() -> None:
    # a, b, c, d: c draws slot 1, d draws 3, which is none
    assert fill_slots(torch.tensor([0, 0, 1, 3]), seen=0, size=2).tolist() == [0, 2]


def one_by_one(slots: list[int], seen: int, size: int) -> list[int]:
    """The algorithm as it is told: n is 1-based."""
    kept = [-1] * min(seen, size)
    for i, j in enumerate(slots):
        n = seen + i + 1
        if n <= size:
            kept.append(i)
        elif j < size:
            kept[j] = i
    return kept


@given(st.lists(st.integers(0, 12), max_size=15), st.integers(0, 9), st.integers(1, 6))
def test_settle_is_the_algorithm_told_step_by_step(slots: list[int], seen: int, size: int) -> None:
    drawn = torch.tensor([min(j, seen + i) for i, j in enumerate(slots)], dtype=torch.long)
    assert fill_slots(drawn, seen, size).tolist() == one_by_one(drawn.tolist(), seen, size)


def test_draws_reach_zero_and_n_minus_one_and_no_further() -> None:
    drawn = draw_slots(torch.arange(3000)[:, None], 3, 3)  # rows number 4, 5, 6
    assert drawn.amin(0).tolist() == [0, 0, 0]
    assert drawn.amax(0).tolist() == [3, 4, 5]
    for place, n in enumerate((4, 5, 6)):
        assert chisquare(torch.bincount(drawn[:, place], minlength=n).numpy()).pvalue > 1e-3


def off_by_one(key: keys.Key, seen: int, count: int) -> Tensor:
    """The mutant: 0..n-2."""
    place = torch.arange(seen, seen + count)
    return keys.randint(keys.fold(key, place), place.clamp(min=1))


def uniformity(draw: Callable[[keys.Key, int, int], Tensor], runs: int = 3000) -> float:
    """p-value of equal inclusion of six arrivals in a reservoir of two.

    Two picks of one run exclude each other, so their counts vary less than independent ones: the
    statistic is scaled by (n - 1) / (n - M).
    """
    drawn = draw(torch.arange(runs)[:, None], 0, 6)
    inside = torch.cat([fill_slots(slots, 0, 2) for slots in drawn])
    counts = torch.bincount(inside, minlength=6).double()
    expected = runs * 2 / 6
    statistic = float(((counts - expected) ** 2 / expected).sum()) * (6 - 1) / (6 - 2)
    return float(chi2.sf(statistic, df=5))


def test_inclusion_is_uniform_and_the_off_by_one_is_caught() -> None:
    assert uniformity(draw_slots) > 1e-3
    assert uniformity(off_by_one) < 1e-12


def test_inclusion_is_uniform_over_tasks(toy: Callable[..., Any]) -> None:
    tasks = [torch.arange(2), torch.arange(2, 3), torch.arange(3, 6)]
    memory = Memory(total=2, policy="reservoir")
    counts = torch.zeros(6)
    for seed in range(700):
        counts[toy(torch.zeros(6, dtype=torch.long), 1, seed).run(memory, tasks)[-1].rows] += 1
    assert counts.sum() == 1400
    assert chisquare(counts.numpy()).pvalue > 1e-2  # conservative: true spread is smaller


def test_seen_counts_on_and_slots_keep_their_items(toy: Callable[..., Any]) -> None:
    tasks = list(torch.arange(60).split([3, 17, 40]))
    labels = torch.arange(60) // 20
    history = toy(labels, 3).run(Memory(total=8, policy="reservoir"), tasks)
    assert [len(kept) for kept in history] == [3, 8, 8]
    assert [kept.seen for kept in history] == [3, 20, 60]
    for kept in history:
        assert kept.ranks.tolist() == list(range(len(kept)))
        assert kept.columns.tolist() == labels[kept.rows].tolist()
        assert len(set(kept.rows.tolist())) == len(kept)
    stage_of = torch.tensor([0] * 3 + [1] * 17 + [2] * 40)
    last, before = history[2], history[1]
    assert last.stages.tolist() == stage_of[last.rows].tolist()
    same = last.stages < 2
    assert last.rows[same].tolist() == before.rows[same].tolist()


def test_rows_are_visited_in_random_order(toy: Callable[..., Any]) -> None:
    memory, rows = Memory(total=5, policy="reservoir"), [torch.arange(5)]
    labels = torch.zeros(5, dtype=torch.long)
    orders = {tuple(toy(labels, 1, seed).run(memory, rows)[0].rows.tolist()) for seed in range(9)}
    assert len(orders) > 5


def test_exemplars_of_another_memory_are_refused(class_stream: Callable[..., Any]) -> None:
    learner, tasks = class_stream(2, 10)
    learner.run(Memory(per_class=3), tasks[:1])
    with pytest.raises(BadArgument, match="exemplars: expected 0 of 0 rows"):
        Memory(total=5, policy="reservoir").update(learner, tasks[1])
