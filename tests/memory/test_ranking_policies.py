from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from engram.errors import BadArgument
from engram.memory import Memory
from engram.memory.ranking_policies import (
    Herding,
    Plane,
    entropy,
    entropy_weights,
    herding_order,
    plane_weights,
    random_order,
    random_orders,
    weighted_order,
)
from tests.refusals import refuses

FIVE = torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5], [-0.2, 1]], dtype=torch.float64)
close = pytest.approx


# -- herding ------------------------------------------------------------------------------------
def gaps(features: Tensor, order: Tensor) -> list[float]:
    """Distance of the mean of the first k picks from the mean of all."""
    means = features[order].cumsum(0) / torch.arange(1, len(order) + 1)[:, None]
    return (features.mean(0) - means).norm(dim=-1).tolist()


def test_t_b3_raw() -> None:
    order = herding_order(FIVE, 3, normalize=False)
    assert order.tolist() == [3, 2, 1]
    assert gaps(FIVE, order) == close([0.063246, 0.298329, 0.029814], abs=1e-5)


def test_t_b3_normalised() -> None:
    assert herding_order(FIVE, 3).tolist() == [3, 2, 0]


def greedy(features: Tensor, count: int) -> list[int]:
    """The definition, by brute force."""
    mean, order = features.mean(0), []
    for k in range(1, count + 1):
        picked = features[order].sum(0)
        distance = ((features + picked) / k - mean).norm(dim=-1)
        distance[order] = math.inf
        order.append(int((distance <= distance.min() + 1e-9).nonzero()[0, 0]))
    return order


features = st.integers(1, 3).flatmap(
    lambda d: st.lists(
        st.lists(st.integers(-3, 3), min_size=d, max_size=d), min_size=1, max_size=12
    )
)


@given(features)
def test_herding_is_the_greedy_definition(rows: list[list[int]]) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    assert herding_order(x, len(x), normalize=False).tolist() == greedy(x, len(x))


@given(features, st.integers(0, 12), st.booleans())
def test_a_prefix_of_herding_is_herding(rows: list[list[int]], m: int, normalize: bool) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    longest = herding_order(x, len(x), normalize=normalize)
    assert sorted(longest.tolist()) == list(range(len(x)))
    assert herding_order(x, m, normalize=normalize).tolist() == longest[:m].tolist()


def test_equal_rows_go_by_index() -> None:
    x = torch.randn(1, 33, generator=torch.Generator().manual_seed(0)).expand(301, 33)
    assert herding_order(x, 50).tolist() == list(range(50))


def test_repeats_only_when_asked_for() -> None:
    x = torch.tensor([[0.0], [1.0], [-5.0], [4.0]])  # mean 0: index 0 is perfect every time
    assert herding_order(x, 3, normalize=False, dedupe=False).tolist() == [0, 0, 0]
    assert len(set(herding_order(x, 3, normalize=False).tolist())) == 3
    assert len(herding_order(x, 6, normalize=False, dedupe=False)) == 6
    assert len(herding_order(x, 6, normalize=False)) == 4


def test_inner_product_rule_prefers_long_vectors() -> None:
    x = torch.tensor([[1.0, 0.0], [9.0, 0.0], [-4.0, 0.0]])  # mean (2, 0)
    assert herding_order(x, 1, normalize=False).tolist() == [0]
    assert herding_order(x, 1, normalize=False, rule="inner_product").tolist() == [1]
    assert herding_order(FIVE, 5, rule="inner_product").tolist() == herding_order(FIVE, 5).tolist()


def test_herding_does_not_mind_scale_when_normalised() -> None:
    scale = torch.tensor([[1.0], [30.0], [0.2], [4.0], [2.0]])
    assert herding_order(FIVE * scale, 5).tolist() == herding_order(FIVE, 5).tolist()
    assert (
        herding_order(FIVE * scale, 5, normalize=False).tolist()
        != herding_order(FIVE, 5, normalize=False).tolist()
    )


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_herding_of_a_diverged_network_still_ranks(broken: float) -> None:
    x = FIVE.clone()
    x[2, 1] = broken
    for normalize in (True, False):
        assert sorted(herding_order(x, 5, normalize=normalize).tolist()) == [0, 1, 2, 3, 4]


def test_nothing_to_choose_from() -> None:
    assert herding_order(torch.empty(0, 4), 3).tolist() == []
    assert herding_order(torch.empty(0, 4), 3, dedupe=False).tolist() == []
    assert weighted_order(1, torch.empty(0)).tolist() == []


def test_unknown_rule_names_the_nearest() -> None:
    with refuses("rule", near="distance"):
        Herding(rule="distanc")


# -- entropy and plane --------------------------------------------------------------------------
def test_t_b5() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]])
    assert entropy(p).tolist() == close([0.693147, 0.325083, 0.0], abs=1e-5)
    assert entropy_weights(p).tolist() == close([0.680737, 0.319263, 0.0], abs=1e-5)


def test_certain_samples_share_equally() -> None:
    assert entropy_weights(torch.tensor([[1.0], [1.0]])).tolist() == [0.5, 0.5]


def test_t_b4() -> None:
    assert plane_weights(torch.tensor([2.0, 4.0, 4.0])).tolist() == close([0.5, 0.25, 0.25])


def test_plane_distance_below_zero() -> None:
    assert plane_weights(torch.tensor([-2.0, 4.0])).tolist() == close([2 / 3, 1 / 3])
    assert plane_weights(torch.tensor([0.0, 1.0])).tolist() == close([1.0, 0.0], abs=1e-7)
    soft = plane_weights(torch.tensor([0.0, 1.0]), "softplus")
    assert soft.tolist() == close([1.313262 / 2.006409, 0.693147 / 2.006409], abs=1e-5)


def test_unknown_transform() -> None:
    with refuses("transform", near="softplus"):
        Plane(transform="soft_plus")


# -- draws --------------------------------------------------------------------------------------
def test_weighted_order_draws_one_after_the_other() -> None:
    weights, runs = torch.tensor([4.0, 3.0, 2.0, 1.0]).double(), 3000
    orders = torch.stack([weighted_order(key, weights) for key in range(runs)])
    first = torch.bincount(orders[:, 0], minlength=4)
    assert chisquare(first.numpy(), (weights / 10 * runs).numpy()).pvalue > 1e-3
    second = torch.zeros(4).double()
    for i in range(4):
        for j in range(4):
            if i != j:
                second[j] += weights[i] / 10 * weights[j] / (10 - weights[i])
    seen = torch.bincount(orders[:, 1], minlength=4)
    assert chisquare(seen.numpy(), (second * runs).numpy()).pvalue > 1e-3


def test_zero_weights_come_last_in_random_order() -> None:
    weights = torch.tensor([0.0, 1e-300, 0.0, 1.0, 0.0], dtype=torch.float64)
    orders = torch.stack([weighted_order(key, weights) for key in range(600)])
    assert orders[:, :2].tolist() == [[3, 1]] * 600
    assert chisquare(torch.bincount(orders[:, 2])[[0, 2, 4]].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_weights_that_are_none(wrong: float) -> None:
    with pytest.raises(BadArgument, match="weights: expected finite numbers of at least 0"):
        weighted_order(0, torch.tensor([1.0, wrong]))


def test_random_order_is_uniform() -> None:
    orders = torch.stack([random_order(key, 5) for key in range(2000)])
    for place in range(5):
        assert chisquare(torch.bincount(orders[:, place], minlength=5).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("sizes", [[3], [3, 7, 5], [1, 90, 1, 1, 1], [], [0, 4]])
def test_several_random_orders_are_the_single_ones(sizes: list[int]) -> None:
    several = random_orders(range(10, 10 + len(sizes)), sizes)
    single = [random_order(10 + i, n) for i, n in enumerate(sizes)]
    assert [o.tolist() for o in several] == [o.tolist() for o in single]


def test_a_ranking_with_other_arguments_is_refused_at_once() -> None:
    def newest(learner: object, rows: Tensor, count: int) -> Tensor:
        return rows.flip(0)[:count]

    class Late:
        def rank(self, rows: Tensor) -> Tensor:
            return rows

    wanted = r"takes \(learner, rows, column, count\), got "
    with pytest.raises(BadArgument, match=wanted + r".newest\(learner.*rows.*count"):
        Memory(total=9, policy=newest)
    with pytest.raises(BadArgument, match=wanted + r".rank\(rows"):
        Memory(total=9, policy=Late())
    Memory(total=9, policy=lambda *given: given[1])
