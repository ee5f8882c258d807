from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.finetune import Finetune
from engram.methods.method import State, Update
from engram.methods.quadratic_penalty import quadratic_penalty, scale_to_unit_range
from engram.methods.rwalk import RWalk, average_scores, loss_drop_per_distance
from tests.methods import small

GRADIENTS = [(1, -0.5), (0.5, 0.5), (0.2, -0.1), (0.1, 0.3)]
UPDATES = [(-0.1, 0.1), (-0.1, 0.05), (-0.05, 0.02), (-0.05, -0.02)]


def fresh(**more: Any) -> State:
    zero = torch.zeros(2, dtype=torch.float64)
    names = ("running", "drop", "origin", "earned")
    return dict.fromkeys(names, zero) | {"steps": torch.tensor(0)} | more


def walked(method: RWalk, state: State, steps: int = 4) -> State:
    at = torch.zeros(2, dtype=torch.float64)
    for gradient, update in list(zip(GRADIENTS, UPDATES, strict=True))[:steps]:
        after = at + torch.tensor(update, dtype=torch.float64)
        grad = torch.tensor(gradient, dtype=torch.float64)
        state = method.step(Update(at, after, grad, state["steps"] + 1), state)
        at = after
    return state


def close(found: Tensor, expected: Any) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=found.dtype), atol=1e-5)


class TestGoldens:
    def test_scores_of_two_intervals(self) -> None:  # [T-R1]
        method = RWalk(init="zero", every=2)
        one = walked(method, fresh(), 2)
        assert close(one["running"], [0.315, 0.2475])
        assert close(one["earned"], [20.547945, 6.606111])
        assert not one["drop"].any()
        assert close(one["origin"], [-0.2, 0.15])
        two = walked(method, fresh())
        assert close(two["running"], [0.01575, 0.084375])
        assert close(two["earned"], [34.452928, 14.606111])

    def test_average_over_tasks(self) -> None:  # [T-R2]
        old, new = torch.tensor([10.0, 2.0]), torch.tensor([20.0, 6.0])
        assert close(average_scores(old, new, "mean"), [15.0, 4.0])
        assert close(average_scores(old, new, "agem_accumulate"), [25.0, 6.0])
        assert close(average_scores(None, new, "mean"), [20.0, 6.0])
        assert close(average_scores(None, new, "agem_accumulate"), [20.0, 6.0])
        assert close(average_scores(None, new, "literal_half_first"), [10.0, 3.0])

    def test_normalised_and_penalty(self) -> None:  # [T-R3]
        every = torch.ones(3, dtype=torch.bool)

        def norm(*values: float) -> Tensor:
            return scale_to_unit_range([torch.tensor(values).double()], [every], "minmax_global")[0]

        fisher, score = norm(0.4, 0.1, 0.2), norm(15, 4, 4)
        assert close(fisher, [1, 0, 1 / 3])
        assert close(score, [1, 0, 0])
        d = torch.tensor([0.1, 0.2, -0.3]).double()
        found = quadratic_penalty(d, torch.zeros(3).double(), fisher + score, RWalk().factor())
        assert found.item() == pytest.approx(50.0, abs=1e-5)
        assert float(RWalk(half=True).factor()) == 500


class TestVariants:
    def test_distance_without_half(self) -> None:
        drop, fisher, moved = torch.tensor(0.15), torch.tensor(0.315), torch.tensor(-0.2)
        assert loss_drop_per_distance(drop, fisher, moved, 1e-3, True).item() == pytest.approx(
            20.547945, abs=1e-4
        )
        full = loss_drop_per_distance(drop, fisher, moved, 1e-3, False).item()
        assert full == pytest.approx(0.15 / (0.315 * 0.04 + 1e-3), abs=1e-4)

    def test_first_batch_as_start(self) -> None:
        one = walked(RWalk(every=2), fresh(), 1)
        assert close(one["running"], [1.0, 0.25])
        later = fresh(anchor=torch.zeros(2).double())  # a later task: F goes on
        assert close(walked(RWalk(every=2), later, 1)["running"], [0.9, 0.225])

    def test_alpha_on_running(self) -> None:
        one = walked(RWalk(every=2, alpha_on="running", init="zero"), fresh(), 1)
        assert close(one["running"], [0.1, 0.025])

    def test_negative_scores(self) -> None:
        # the second parameter's first step goes against its gradient
        state = {"running": torch.ones(2).double()}
        by_interval = walked(RWalk(init="zero", every=1), fresh(**state))["earned"]
        by_task = walked(RWalk(init="zero", every=1, clamp="task"), fresh(**state))["earned"]
        assert by_task[1] < by_interval[1]
        assert by_task[0] == by_interval[0]

    def test_agem_uses_the_fisher_before_and_never_clears_the_sum(self) -> None:
        method = RWalk(init="zero", every=2, impl="agem", kl_half=False)
        start = fresh(total=torch.zeros(2).double())
        one = walked(method, start, 2)
        assert close(one["earned"], [0.15 / 1e-3, 0.025 / 1e-3])  # F was still 0
        assert close(one["running"], [0.9 * 1.25 / 2, 0.9 * 0.5 / 2])
        two = walked(method, start)
        squares = torch.tensor([1.25 + 0.05, 0.5 + 0.1]).double()
        assert close(two["running"], (0.9 * squares / 2 + 0.1 * one["running"]).tolist())
        gain = 0.015 / (one["running"][0] * 0.1**2 + 1e-3)
        assert two["earned"][0].item() == pytest.approx(150 + gain.item(), abs=1e-4)

    def test_total_gradient(self) -> None:
        pulled = {"anchor": torch.ones(2).double(), "importance": torch.ones(2).double()}
        plain = walked(RWalk(strength=1.0), fresh(**pulled), 1)
        total = walked(RWalk(strength=1.0, grad="total"), fresh(**pulled), 1)
        pull = 2 * (0 - 1.0)
        assert close(total["drop"] - plain["drop"], [-pull * -0.1, -pull * 0.1])
        assert torch.equal(total["running"], plain["running"])

    def test_one_step_intervals_are_a_path_integral_per_step(self) -> None:
        # with F = 2 and every = 1 the ratio is -g d / (d^2 + eps): PI of every single step
        two = torch.full((2,), 2.0).double()
        state = walked(RWalk(every=1, alpha=0.0, init="zero"), fresh(running=two))
        expected = sum(
            (-g * d / (d * d + 1e-3)).clamp(min=0)
            for g, d in zip(
                torch.tensor(GRADIENTS).double(), torch.tensor(UPDATES).double(), strict=True
            )
        )
        assert torch.allclose(state["earned"], expected)  # type: ignore[arg-type]

    @pytest.mark.parametrize("flush", [True, False])
    def test_flush(self, flush: bool) -> None:
        learner = small.bare([[0.0], [0.0]], [[1.0]], [0])
        method = RWalk(every=3, init="zero", flush=flush)
        method.start(learner, learner.task)
        learner.state = walked(method, learner.state)
        before = learner.state["earned"].clone()
        learner.vector = torch.tensor(UPDATES).double().sum(0)
        method.finish(learner, learner.task)
        assert bool((learner.state["score"] > before).any()) == flush

    @pytest.mark.parametrize("norm", ["minmax_global", "max_only", "per_tensor"])
    def test_norms(self, norm: str) -> None:
        learner = small.after(RWalk(strength=1.0, norm=norm), 1)
        importance = learner.state["importance"]
        assert importance.min() >= 0
        assert importance.max() <= 2 + 1e-12
        assert not importance[~learner.free].any()
        views = learner.layout(importance)
        tops = [view.max().item() > 0.99 for view in views.values()]
        assert all(tops) if norm == "per_tensor" else any(tops)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_entries_equal_up_to_rounding_are_equal(self, seed: int) -> None:
        """Of two classes, both biases have the same gradient but for its sign and last bit."""
        learner = small.after(RWalk(norm="per_tensor"), 0, small.ADAM, seed=seed)
        assert not learner.layout(learner.state["importance"])["net.head.bias"].any()


class TestRun:
    def test_both_parts_lie_in_zero_to_one_and_reach_one(self) -> None:
        learner = small.after(RWalk(strength=1.0), 1)
        assert learner.free.sum() < len(learner.free)
        for name in ("running", "score"):
            part = scale_to_unit_range([learner.state[name]], [learner.free], "minmax_global")[0]
            assert part.min() == 0
            assert part.max() == pytest.approx(1)

    def test_state_does_not_grow(self) -> None:
        sizes = []
        for stage in range(3):
            state = small.after(RWalk(strength=1.0), stage).state
            sizes.append({name: value.shape for name, value in state.items()})
        assert sizes[0] == sizes[1] == sizes[2]

    def test_penalty_is_zero_right_after_a_task(self) -> None:
        method = RWalk(strength=3.0)
        for stage in (0, 1):
            learner = small.after(method, stage)
            value, slope = small.penalty_of(method, learner, learner.vector)
            assert value == 0
            assert not slope.any()
            assert small.penalty_of(method, learner, small.moved(learner))[0] > 0

    def test_without_strength_it_is_finetuning(self) -> None:
        assert small.is_finetuning(RWalk(strength=0))
        assert not small.is_finetuning(RWalk(strength=0.1))

    def test_samples_help(self) -> None:
        samples = RWalk(strength=0.1, memory=Memory(per_class=5))
        assert small.accuracy(samples) > small.accuracy(Finetune()) + 0.1

    def test_a_single_class_stays_finite(self) -> None:
        learner = small.after(RWalk(strength=1.0), on=small.stream(1))
        assert bool(torch.isfinite(learner.vector).all())

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"impl": "agem", "avg": "agem_accumulate", "kl_half": False, "flush": False},
            {"clamp": "task", "grad": "total", "norm": "max_only", "memory": Memory(per_class=4)},
        ],
    )
    def test_lockstep_is_the_loop(self, options: dict[str, Any]) -> None:
        methods = [RWalk(strength=s, every=3, **options) for s in (1.0, 1.0, 3.0)]
        assert small.gap(methods) < 1e-10

    def test_lockstep_is_the_loop_with_heads_of_their_own(self) -> None:
        streams = [small.stream(multi=True, seed=seed) for seed in range(2)]
        assert small.gap([RWalk(strength=1.0, every=3)] * 2, streams=streams) < 1e-10


@pytest.mark.parametrize(
    "options,words",
    [
        ({"strength": -1.0}, "strength"),
        ({"alpha": 1.01}, r"alpha: expected a number in \[0, 1\]"),
        ({"every": 0}, "every: expected a whole number of at least 1"),
        ({"eps": 0.0}, "eps"),
        ({"clamp": "step"}, "clamp"),
        ({"avg": "median"}, "avg"),
        ({"norm": "minmax"}, "did you mean 'minmax_global'"),
        ({"impl": "facil"}, "impl"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        RWalk(**options)
