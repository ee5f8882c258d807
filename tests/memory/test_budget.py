from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from engram.errors import BadArgument
from engram.memory import Exemplars, Herding, Memory, Policy, Random, policies
from engram.memory.ranking_policies import group_by_class
from tests.memory.conftest import ToyLearner
from tests.refusals import refuses

Streams = Callable[..., tuple[ToyLearner, list[Tensor]]]
UPDATED = sorted(set(policies()) - {"admit"})  # after a task; the method fills the other itself
RANKED = sorted(set(UPDATED) - {"reservoir"})


def pairs(kept: Exemplars) -> list[tuple[int, int]]:
    return list(zip(kept.rows.tolist(), kept.stages.tolist(), strict=True))


# -- goldens ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("quota", "each", "used"), [("floor", 14, 98), ("ceil", 15, 105)])
def test_t_b1(class_stream: Streams, quota: str, each: int, used: int) -> None:
    learner, tasks = class_stream(7, 100)
    kept = learner.run(Memory(total=100, quota=quota), tasks)[-1]
    assert kept.counts().tolist() == [each] * 7
    assert len(kept) == used


@pytest.mark.parametrize("shrink", ["equal", "random"])
def test_t_p1(class_stream: Streams, shrink: str) -> None:
    learner, tasks = class_stream(3, 50)
    history = learner.run(Memory(total=6, shared_by="task", shrink=shrink), tasks)
    newest = [int((kept.stages == k).sum()) for k, kept in enumerate(history)]
    assert newest == [6, 3, 2]
    assert [len(kept) for kept in history] == [6, 6, 6]
    if shrink == "equal":
        assert torch.bincount(history[-1].stages).tolist() == [2, 2, 2]


def test_t_p5(toy: Callable[..., ToyLearner]) -> None:
    learner = toy(torch.zeros(500, dtype=torch.long), 1)
    history = learner.run(Memory(fraction=0.2), list(torch.arange(500).split([237, 263])))
    assert [len(kept) for kept in history] == [48, 48 + 53]
    assert pairs(history[1])[:48] == pairs(history[0])  # never cut


def test_items_per_task_grow_with_the_tasks(class_stream: Streams) -> None:
    learner, tasks = class_stream(6, 10, per_task=2)
    tasks[1] = tasks[1][:3]  # fewer than are asked for
    history = learner.run(Memory(per_task=8), tasks)
    assert [len(kept) for kept in history] == [8, 11, 19]
    assert pairs(history[-1])[:11] == pairs(history[1])  # never cut


def test_n6_equal_share_of_tasks_is_not_a_number_per_class(class_stream: Streams) -> None:
    learner, tasks = class_stream(20, 60, per_task=2)
    sizes = [len(kept) for kept in learner.run(Memory(total=90, shared_by="task"), tasks)]
    assert sizes == [90 // t * t for t in range(1, 11)]


@pytest.mark.parametrize(
    ("rounding", "share", "rows", "kept"),
    [
        ("ceil", 0.07, 100, 7),  # 7.000000000000001 in binary
        ("floor", 0.29, 100, 29),  # 28.999999999999996 in binary
        ("floor", 0.2, 237, 47),
        ("nearest", 0.2, 237, 47),
        ("nearest", 0.5, 5, 3),
        ("ceil", 1.0, 9, 9),
        ("ceil", 1, 9, 9),
        ("ceil", 1e-4, 9, 1),
    ],
)
def test_rounding_of_a_fraction(rounding: str, share: float, rows: int, kept: int) -> None:
    learner = ToyLearner(torch.zeros(rows, dtype=torch.long), 1)
    memory = Memory(fraction=share, rounding=rounding)
    assert len(memory.update(learner, torch.arange(rows))) == kept
    assert memory.capacity(sizes=[rows, rows]) == 2 * kept


# -- invariants ---------------------------------------------------------------------------------
@st.composite
def streams(draw: st.DrawFn) -> tuple[Tensor, list[Tensor]]:
    """Up to five tasks of up to three classes each; classes may come back, labels may be two."""
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    width = draw(st.integers(1, 2))
    seed = draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (sum(sizes), width), generator=generator) + torch.arange(width) * 3
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = -1
    return labels, list(torch.arange(sum(sizes)).split(sizes))


@given(streams(), st.integers(30, 60), st.sampled_from(UPDATED))
def test_a_total_is_never_exceeded(
    stream: tuple[Tensor, list[Tensor]], total: int, policy: str
) -> None:
    labels, tasks = stream
    memory = Memory(total=total, policy=policy)
    history = ToyLearner(labels, 6).run(memory, tasks)
    for stage, kept in enumerate(history):
        assert len(kept) <= total == memory.capacity()
        seen = {int(r) for rows in tasks[: stage + 1] for r in rows}
        assert set(kept.rows.tolist()) <= seen  # nothing of the future
        assert all(int(r) in tasks[s].tolist() for r, s in pairs(kept))
        assert bool((kept.columns[:, None] == labels[kept.rows]).any(-1).all())


@given(streams(), st.integers(30, 60), st.sampled_from(RANKED))
def test_shrinking_keeps_a_prefix_of_every_ranking(
    stream: tuple[Tensor, list[Tensor]], total: int, policy: str
) -> None:
    labels, tasks = stream
    cut = ToyLearner(labels, 6).run(Memory(total=total, policy=policy), tasks)[-1]
    whole = ToyLearner(labels, 6).run(Memory(per_class=1000, policy=policy), tasks)[-1]
    groups = {(s, c) for s, c in zip(whole.stages.tolist(), whole.columns.tolist(), strict=True)}
    quota = total // len(groups) if groups else 0
    for stage, column in groups:
        full = whole.take((whole.stages == stage) & (whole.columns == column))
        part = cut.take((cut.stages == stage) & (cut.columns == column))
        assert part.rows.tolist() == full.rows[:quota].tolist()
        assert part.ranks.tolist() == list(range(min(quota, len(full))))


@given(streams(), st.integers(5, 40), st.sampled_from(["equal", "random"]))
def test_a_budget_shared_by_tasks_is_never_exceeded(
    stream: tuple[Tensor, list[Tensor]], budget: int, shrink: str
) -> None:
    labels, tasks = stream
    memory = Memory(total=budget, shared_by="task", shrink=shrink)
    for stage, kept in enumerate(ToyLearner(labels, 6).run(memory, tasks)):
        assert len(kept) <= budget == memory.capacity()
        assert len(set(pairs(kept))) == len(kept)
        if shrink == "equal":
            assert max(torch.bincount(kept.stages).tolist(), default=0) <= budget // (stage + 1)


@given(streams(), st.integers(1, 20))
def test_a_quota_of_ceil_stays_below_its_capacity(
    stream: tuple[Tensor, list[Tensor]], total: int
) -> None:
    labels, tasks = stream
    memory = Memory(total=total, quota="ceil")
    groups = sum(len(group_by_class(rows, labels[rows])) for rows in tasks)
    if groups:
        kept = ToyLearner(labels, 6).run(memory, tasks)
        assert max(map(len, kept)) <= (memory.capacity(groups=groups) or 0)
    assert memory.capacity() is None


# -- groups -------------------------------------------------------------------------------------
def test_a_class_that_comes_back_has_a_group_per_task(toy: Callable[..., ToyLearner]) -> None:
    learner = toy(torch.tensor([0, 0, 0, 1, 1, 0, 0, 0, 2, 2]), 3)
    history = learner.run(Memory(per_class=2), [torch.arange(5), torch.arange(5, 10)])
    groups = list(zip(history[1].stages.tolist(), history[1].columns.tolist(), strict=True))
    assert groups == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 2), (1, 2)]
    learner.exemplars = Exemplars.empty()
    assert len(learner.run(Memory(total=4), [torch.arange(5), torch.arange(5, 10)])[1]) == 4


def test_a_row_with_two_labels_counts_in_both_groups(toy: Callable[..., ToyLearner]) -> None:
    learner = toy(torch.tensor([[0, 1], [0, -1], [-1, 1], [-1, -1]]), 2)
    kept = learner.run(Memory(per_class=5), [torch.arange(4)])[0]
    assert sorted(kept.take(kept.columns == 0).rows.tolist()) == [0, 1]
    assert sorted(kept.take(kept.columns == 1).rows.tolist()) == [0, 2]
    once = toy(learner.table, 2).run(Memory(fraction=1.0), [torch.arange(4)])[0]
    assert sorted(once.rows.tolist()) == [0, 1, 2]  # the row without a label is not stored
    by_row = dict(zip(once.rows.tolist(), once.columns.tolist(), strict=True))
    assert by_row == {0: 0, 1: 0, 2: 1}


def test_classes_with_few_rows_keep_all_of_them(class_stream: Streams) -> None:
    learner, tasks = class_stream(2, 7)
    assert learner.run(Memory(per_class=20), tasks)[-1].counts().tolist() == [7, 7]


def test_strict_refuses_small_classes(class_stream: Streams) -> None:
    learner, tasks = class_stream(2, 7)
    assert len(Memory(per_class=7, strict=True).update(learner, tasks[0])) == 7
    with pytest.raises(BadArgument, match="per_class: expected at most 7, the rows of the class"):
        Memory(per_class=8, strict=True).update(learner, tasks[0])


def test_a_total_below_the_number_of_classes_says_what_would_do(class_stream: Streams) -> None:
    learner, tasks = class_stream(4, 10)
    learner.run(Memory(total=3), tasks[:3])
    learner.stage = 3
    with pytest.raises(
        BadArgument, match=r"total: expected .* 4 classes \(total=4 or more\), got 3"
    ):
        Memory(total=3).update(learner, tasks[3])
    with pytest.raises(BadArgument, match=r"5 tasks \(total=5 or more\), got 4"):
        Memory(total=4, shared_by="task").check(groups=50, tasks=5)
    Memory(total=4).check(groups=4, tasks=9)
    Memory(total=3, quota="ceil").check(groups=4, tasks=2)
    Memory(total=3, policy="reservoir").check(groups=4, tasks=9)


def test_more_tasks_than_items_leave_a_sample_of_the_tasks(toy: Callable[..., ToyLearner]) -> None:
    """A stream without a known end: 40 tasks of two classes, and a third in the first."""
    often = torch.zeros(40)
    for seed in range(6):
        learner = toy(torch.tensor([0, 1] * 80 + [2, 2]), 3, seed=seed)
        tasks = [torch.arange(4) + 4 * k for k in range(40)]
        tasks[0] = torch.cat([tasks[0], torch.tensor([160, 161])])
        history = learner.run(Memory(total=9), tasks)
        assert max(map(len, history)) == 9
        assert history[-1].counts().tolist() == [4, 4, 1]
        often += torch.bincount(history[-1].stages, minlength=40)
    early, late = often[1:20].sum(), often[20:39].sum()
    assert abs(early - late) < 3 * (early + late).sqrt()


def test_random_shrinking_drops_any_old_item(class_stream: Streams) -> None:
    """Equal in expectation only: of 6 + 6 old items any 8 are as likely to stay."""
    shares = torch.zeros(7, dtype=torch.float64)
    for seed in range(400):
        learner, tasks = class_stream(3, 13, seed=seed)
        kept = learner.run(Memory(total=12, shared_by="task", shrink="random"), tasks)[-1]
        first, _, new = torch.bincount(kept.stages).tolist()
        assert (new, len(kept)) == (4, 12)
        shares[first] += 1
    ways = [math.comb(6, k) * math.comb(6, 8 - k) for k in range(2, 7)]
    expected = torch.tensor(ways, dtype=torch.float64) / 495
    assert chisquare(shares[2:].numpy(), 400 * expected.numpy()).pvalue > 1e-3


def test_random_shrinking_makes_only_the_room_that_is_needed(class_stream: Streams) -> None:
    learner, tasks = class_stream(3, 4)
    sizes = [
        len(k) for k in learner.run(Memory(total=10, shared_by="task", shrink="random"), tasks)
    ]
    assert sizes == [4, 8, 10]


# -- draws --------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", UPDATED)
def test_same_seed_same_rows_other_seed_other_rows(class_stream: Streams, policy: str) -> None:
    memory = Memory(total=40, policy=policy)
    rows = []
    for seed in (0, 0, 1):
        learner, tasks = class_stream(4, 50, per_task=2)
        learner.seed = seed
        rows.append(learner.run(memory, tasks)[-1].rows.tolist())
    assert rows[0] == rows[1]
    if policy != "herding":
        assert rows[0] != rows[2]


@pytest.mark.parametrize("policy", RANKED)
def test_updating_twice_changes_nothing(class_stream: Streams, policy: str) -> None:
    learner, tasks = class_stream(4, 20, per_task=2)
    memory = Memory(total=12, policy=policy)
    once = learner.run(memory, tasks)[-1]
    before = [t.clone() for t in once[:4]]
    assert pairs(memory.update(learner, tasks[-1])) == pairs(once)
    assert all(torch.equal(a, b) for a, b in zip(before, once[:4], strict=True))


def test_groups_draw_apart(class_stream: Streams) -> None:
    """The choice in a class depends neither on its neighbours nor on how rows interleave."""
    learner, _ = class_stream(3, 40)
    alone = Memory(per_class=10).update(learner, torch.arange(40, 80))
    mixed = Memory(per_class=10).update(learner, torch.arange(120).view(3, 40).T.reshape(-1))
    assert mixed.take(mixed.columns == 1).rows.tolist() == alone.rows.tolist()
    offsets = [(mixed.take(mixed.columns == c).rows - 40 * c).tolist() for c in range(3)]
    assert offsets[0] != offsets[1] != offsets[2]


def test_tasks_draw_apart(toy: Callable[..., ToyLearner]) -> None:
    """A class that comes back, and old items that have to go, are drawn anew in every task."""
    learner = toy(torch.zeros(200, dtype=torch.long), 1)
    kept = learner.run(Memory(per_class=10), list(torch.arange(80).split(40)))[-1]
    assert (kept.rows[10:] - 40).tolist() != kept.rows[:10].tolist()
    survivors = []
    for stage in (1, 2):
        places = torch.arange(60)
        learner.exemplars = Exemplars(places, places * 0, places * 0, places)
        learner.stage = stage
        memory = Memory(total=60, shared_by="task", shrink="random")
        after = memory.update(learner, torch.arange(100, 120))  # 20 new ones, either way
        survivors.append(after.rows[after.stages == 0].tolist())
    assert [len(rows) for rows in survivors] == [40, 40]
    assert survivors[0] != survivors[1]


def test_random_by_name_is_the_random_policy(class_stream: Streams) -> None:
    shared: dict[str, Any] = {"total": 20, "shared_by": "task"}
    for budget in ({"per_class": 6}, {"per_task": 20}, shared):
        a, tasks = class_stream(6, 20, per_task=2)
        b, _ = class_stream(6, 20, per_task=2)
        named = a.run(Memory(**budget), tasks)[-1]
        built = b.run(Memory(**budget, policy=Random()), tasks)[-1]
        assert pairs(named) == pairs(built)


# -- policies read the network ------------------------------------------------------------------
def test_herding_follows_the_class_mean(class_stream: Streams) -> None:
    learner, tasks = class_stream(2, 50, per_task=2)
    learner.features[[7, 60]] = 100.0  # outliers are never herded first
    kept = learner.run(Memory(per_class=5, policy="herding", normalize=False), tasks)[0]
    assert kept.counts().tolist() == [5, 5]
    assert not {7, 60} & set(kept.rows.tolist())
    flags = Memory(per_class=5, policy="herding", normalize=False)
    built = Memory(per_class=5, policy=Herding(normalize=False))
    learner.exemplars = Exemplars.empty()
    assert pairs(flags.update(learner, tasks[0])) == pairs(built.update(learner, tasks[0]))


def test_repeated_herding_stores_repeats(toy: Callable[..., ToyLearner]) -> None:
    learner = toy(torch.zeros(4, dtype=torch.long), 1)
    learner.features = torch.tensor([[0.0], [1.0], [-5.0], [4.0]])
    memory = Memory(per_class=3, policy="herding", normalize=False, dedupe=False)
    assert memory.update(learner, torch.arange(4)).rows.tolist() == [0, 0, 0]


def test_entropy_looks_at_seen_classes_only(toy: Callable[..., ToyLearner]) -> None:
    learner = toy(torch.zeros(40, dtype=torch.long), 3)
    learner.opened = torch.tensor([0, 0, -1])
    learner.logits = torch.zeros(40, 3)
    learner.logits[:20, 0] = 1000.0  # certain among the seen ...
    learner.logits[:20, 2] = 1000.0  # ... and torn between a seen and an unopened class
    kept = Memory(per_class=20, policy="entropy").update(learner, torch.arange(40))
    assert sorted(kept.rows.tolist()) == list(range(20, 40))


def test_entropy_of_label_sets_is_that_of_each_label(toy: Callable[..., ToyLearner]) -> None:
    """Sure of two labels at once: torn as a choice of one, certain as a set."""
    labels = torch.tensor([[0, 1]]).repeat(40, 1)
    for table, kept_first in ((labels, False), (labels[:, :1], True)):
        learner = toy(table, 2)
        learner.logits = torch.full((40, 2), 1000.0)
        learner.logits[20:, 1] = 0.0
        kept = Memory(per_task=20, policy="entropy").update(learner, torch.arange(40))
        wanted = range(20) if kept_first else range(20, 40)
        assert sorted(kept.rows.tolist()) == list(wanted)


@pytest.mark.parametrize("budget", ["per_class", "per_task"])
def test_plane_prefers_rows_near_the_plane_of_their_own_class(
    toy: Callable[..., ToyLearner], budget: str
) -> None:
    learner = toy(torch.arange(40) % 2, 2)
    learner.weights = torch.eye(2)
    learner.features = torch.full((40, 2), 1e-6)  # close to the other class's plane: no merit
    far = torch.arange(40)
    learner.features[far, far % 2] = 1e6
    learner.features[[4, 9], [0, 1]] = 1e-3
    size = {"per_class": 1, "per_task": 2}[budget]
    kept = Memory(**{budget: size}, policy="plane").update(learner, torch.arange(40))
    assert sorted(kept.rows.tolist()) == [4, 9]


@pytest.mark.parametrize("policy", RANKED)
def test_a_diverged_network_still_fills_the_memory(class_stream: Streams, policy: str) -> None:
    learner, tasks = class_stream(2, 20)
    learner.features[::2] = math.nan
    learner.logits[1::2] = math.inf
    learner.weights[0] = -math.inf
    kept = learner.run(Memory(per_class=6, policy=policy), tasks)[-1]
    assert len(set(kept.rows.tolist())) == 12


# -- own policies -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Newest:
    """The last rows first."""

    def rank(self, learner: object, rows: Tensor, column: int, count: int) -> Tensor:
        return torch.arange(len(rows)).flip(0)


def oldest(learner: object, rows: Tensor, column: int, count: int) -> Tensor:
    return torch.arange(count)


def test_own_policies(class_stream: Streams) -> None:
    learner, tasks = class_stream(3, 10)
    assert isinstance(Newest(), Policy)
    kept = learner.run(Memory(total=6, policy=Newest()), tasks)[-1]
    assert kept.rows.tolist() == [9, 8, 19, 18, 29, 28]
    learner.exemplars = Exemplars.empty()
    assert learner.run(Memory(per_class=2, policy=oldest), tasks[:1])[0].rows.tolist() == [0, 1]
    assert Memory(total=6, policy=Newest()).describe() == "6 items, shared by classes, Newest"
    assert Memory(per_class=2, policy=oldest).describe() == "2 items per class, oldest"


@pytest.mark.parametrize(
    "order",
    [
        torch.tensor([0]),  # too short
        torch.tensor([0, 0, 1]),  # twice the same
        torch.tensor([0, 1, 10]),  # beyond
        torch.tensor([0, 1, -1]),
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([[0, 1, 2]]),
        torch.ones(10, dtype=torch.bool),
    ],
)
def test_wrong_answers_of_own_policies_are_named(class_stream: Streams, order: Tensor) -> None:
    learner, tasks = class_stream(1, 10)

    def mine(learner: object, rows: Tensor, column: int, count: int) -> Tensor:
        return order

    with pytest.raises(BadArgument, match=r"policy .*mine: expected"):
        Memory(per_class=3, policy=mine).update(learner, tasks[0])


# -- arguments ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "memory: expected exactly one of per_class, per_task, total, fraction, got none"),
        ({"total": 5, "fraction": 0.1}, "got total=5, fraction=0.1"),
        ({"total": 0}, "total: expected a whole number of at least 1, got 0"),
        ({"per_class": 2.0}, "per_class: expected a whole number"),
        ({"per_task": True}, "per_task: expected a whole number"),
        ({"fraction": 0.0}, r"fraction: expected a number in \(0, 1\], got 0.0"),
        ({"fraction": 1.2}, r"fraction: expected a number in \(0, 1\], got 1.2"),
        ({"fraction": math.nan}, "fraction: expected a number"),
        ({"total": 5, "policy": "hearding"}, "unknown name 'hearding', did you mean 'herding'"),
        ({"total": 5, "policy": 3}, "policy: expected one of .*object with a method rank, got 3"),
        ({"total": 5, "policy": Herding}, "policy: expected one of"),
        (
            {"per_class": 5, "policy": "reservoir"},
            "'reservoir' needs the budget total, got per_class=5",
        ),
        ({"total": 5, "quota": "flor"}, "quota: unknown name 'flor', did you mean 'floor'"),
        ({"total": 5, "shrink": "evenly"}, "shrink: unknown name 'evenly'"),
        ({"total": 5, "shared_by": "tasks"}, "shared_by: unknown name 'tasks', .* 'task'"),
        (
            {"per_task": 5, "shared_by": "task"},
            "shared_by: expected 'class' with per_task=5, because .*, got 'task'",
        ),
        (
            {"total": 5, "shared_by": "task", "policy": "reservoir"},
            "'reservoir' needs the budget total, got total=5, shared_by='task'",
        ),
        ({"fraction": 0.5, "rounding": "up"}, "rounding: unknown name 'up'"),
        ({"total": 5, "rule": "inner"}, "rule: unknown name 'inner'"),
        ({"total": 5, "pd_transform": "abs"}, "pd_transform: unknown name 'abs'"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        Memory(**arguments)


def test_frozen_hashable_and_readable() -> None:
    memory = Memory(per_class=20, policy="herding", normalize=False)
    assert repr(memory) == "Memory(per_class=20, policy='herding', normalize=False)"
    assert eval(repr(memory)) == memory
    assert len({memory, replace(memory), Memory(total=1)}) == 2
    with pytest.raises(FrozenInstanceError):
        memory.total = 3  # type: ignore[misc]
    lines = [
        Memory(total=9, policy="reservoir"), Memory(total=9, shared_by="task"),
        Memory(per_task=9), Memory(fraction=0.2),
    ]  # fmt: skip
    assert [m.describe() for m in lines] == [
        "9 items, reservoir",
        "9 items, shared by tasks, random",
        "9 items per task, random",
        "0.2 of each task, random",
    ]


def test_every_named_policy_has_a_line_and_works(class_stream: Streams) -> None:
    assert all(policies().values())
    for name in UPDATED:
        learner, tasks = class_stream(2, 5)
        assert len(learner.run(Memory(total=4, policy=name), tasks)[-1]) == 4


def test_a_memory_that_the_method_fills_is_not_updated(class_stream: Streams) -> None:
    learner, tasks = class_stream(2, 5)
    with refuses("memory.policy"):
        learner.run(Memory(total=4, policy="admit"), tasks)


def test_capacity() -> None:
    assert Memory(total=100, policy="reservoir", quota="ceil").capacity() == 100
    assert Memory(total=90, shared_by="task").capacity() == 90
    assert Memory(per_task=90).capacity() is None
    assert Memory(per_task=90).capacity(sizes=[237, 10]) == 100
    assert Memory(fraction=0.2).capacity() is None
    assert Memory(fraction=0.2).capacity(sizes=[237, 10]) == 50
    assert Memory(per_class=20).capacity(groups=7) == 140
    assert Memory(total=100, quota="ceil").capacity(groups=7) == 105
