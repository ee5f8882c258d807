from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner import gradients
from engram.learner import learner as learner_module
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.memory import Memory
from engram.methods.ewc import EWC
from engram.methods.finetune import Finetune
from engram.methods.fisher import fisher_information, visible_label_nll
from engram.methods.method import Method
from engram.methods.quadratic_penalty import (
    merge_quadratics,
    penalty_gradient,
    quadratic_penalty,
    scale_to_unit_range,
)
from tests.methods import small


def all_equal(found: Tensor, expected: float) -> bool:
    return torch.allclose(found, torch.full_like(found, expected), atol=1e-5)


class TestGoldens:
    def test_per_sample_and_batch_fisher(self) -> None:  # [T-E1]
        learner = small.bare([[0.0], [0.0]], [[2.0], [1.0]], [0, 1])
        rows = small.given(learner)
        assert all_equal(fisher_information(learner, rows=rows), 0.625)
        assert all_equal(fisher_information(learner, rows=rows, group=2), 0.0625)
        assert all_equal(fisher_information(learner, rows=rows, group="full"), 0.0625)

    @pytest.mark.parametrize(
        "labels,expected", [("all", 0.196612), ("pred", 0.072329), ("true", 0.534447)]
    )
    def test_labels(self, labels: str, expected: float) -> None:  # [T-E2]
        learner = small.bare([[1.0], [0.0]], [[1.0], [1.0]], [1, 1])
        assert all_equal(
            fisher_information(learner, labels=labels, rows=small.given(learner)), expected
        )

    def test_sampled_labels_average_to_the_expectation(self) -> None:  # [T-E2]
        learner = small.bare([[1.0], [0.0]], [[1.0]] * 4000, [1] * 4000)
        found = fisher_information(learner, labels="sample", rows=small.given(learner))
        assert torch.allclose(found, torch.tensor(0.196612).double(), atol=0.01)

    def test_penalty_and_gradient(self) -> None:  # [T-E3]
        importance, d, zero = torch.full((2,), 0.625), torch.tensor([0.2, -0.4]), torch.zeros(2)
        half, whole = EWC(strength=10.0).factor(), EWC(strength=10.0, half=False).factor()
        assert quadratic_penalty(d, zero, importance, half).item() == pytest.approx(0.625)
        assert quadratic_penalty(d, zero, importance, whole).item() == pytest.approx(1.25)
        found = penalty_gradient(d, zero, importance, half)
        assert torch.allclose(found, torch.tensor([1.25, -2.5]))


def one_at_a_time(learner: RunLearner) -> Tensor:
    """The Fisher information by hand, with its own copy of every step."""
    batch, weights = learner.batch(), learner.params
    leaves = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
    total = torch.zeros_like(learner.vector)
    for x, y in zip(batch.x, batch.target, strict=True):
        inside = {**leaves, **learner.buffers}
        logits = functional_call(learner.networks.eval, inside, ("net", x[None])).logits
        log_p = logits[0, learner.seen].log_softmax(-1)[y]
        found = torch.autograd.grad(log_p, list(leaves.values()))
        total += torch.cat([g.flatten() for g in found]).square()
    return total / len(batch.x)


class TestFisher:
    """Wrong forms that other codes have must fail here."""

    @pytest.mark.parametrize("model", [None, small.Normed])
    def test_is_the_mean_of_squares_sample_by_sample(self, model: Any) -> None:
        learner = small.after(Finetune(), 1, model=model)
        assert torch.allclose(
            fisher_information(learner), one_at_a_time(learner), atol=1e-14, rtol=1e-9
        )

    @pytest.mark.parametrize("labels", ["true", "pred", "sample", "all"])
    def test_does_not_depend_on_chunks(self, labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
        learner = small.after(Finetune(), 1)
        whole = fisher_information(learner, labels=labels)
        monkeypatch.setattr(learner_module, "EVAL_ROWS", 7)
        monkeypatch.setattr(gradients, "CHUNK_ENTRIES", 3 * len(learner.vector))
        assert torch.allclose(fisher_information(learner, labels=labels), whole, atol=1e-15)
        monkeypatch.setattr(gradients, "is_only_linear", lambda _networks: False)
        assert torch.allclose(fisher_information(learner, labels=labels), whole, atol=1e-15)

    def test_moves_neither_weights_nor_batch_statistics(self) -> None:
        learner = small.after(Finetune(), 0, model=small.Normed)
        before = learner.snapshot()
        for group in (1, 8, "full"):
            fisher_information(learner, group=group)
        assert torch.equal(learner.vector, before["vector"])
        assert before["buffers"]
        for name, value in before["buffers"].items():
            assert torch.equal(learner.buffers[name], value)

    def test_may_use_the_statistics_of_the_rows(self) -> None:
        learner = small.after(Finetune(), 0, model=small.Normed)
        batch, before = learner.batch(), learner.snapshot()["buffers"]
        vector = learner.vector.clone().requires_grad_(True)
        net = FunctionalNet(learner.networks, vector, learner.buffers, training=True)
        (slope_,) = torch.autograd.grad(net.task(batch), vector)
        found = fisher_information(learner, group="full", batch_statistics=True)
        assert torch.allclose(found, slope_.square(), atol=1e-15)
        assert not torch.allclose(found, fisher_information(learner, group="full"))
        assert all(torch.equal(value, learner.buffers[name]) for name, value in before.items())

    def test_of_columns_that_are_not_open_is_zero(self) -> None:
        learner = small.after(Finetune(), 1)
        views = learner.layout(fisher_information(learner, labels="all"))
        for name in learner.networks.class_rows:
            assert bool((views[name][4:] == 0).all())
            assert bool(views[name][:4].any())

    def test_of_other_heads_is_zero(self) -> None:
        learner = small.after(Finetune(), 1, on=small.stream(multi=True))
        weight = learner.layout(fisher_information(learner))[learner.networks.class_rows[0]]
        assert bool((weight[[0, 1, 4, 5]] == 0).all())
        assert bool(weight[2:4].any())

    def test_of_a_single_class_is_zero(self) -> None:
        learner = small.after(EWC(), 0, on=small.stream(1))
        assert bool((learner.state["importance"] == 0).all())

    def test_mini_batches_mix_classes(self) -> None:
        # rows lie sorted by class; groups cut from them in that order would be of one class each
        learner = small.after(Finetune(), 0)
        shuffled = fisher_information(learner, group=24)
        sorted_groups = learner.average_gradient(visible_label_nll, group=24)
        assert not torch.allclose(shuffled, sorted_groups, rtol=0.05)

    def test_objective_is_the_training_loss(self) -> None:
        balanced = Training(**{**_fields(small.EXACT), "loss": "balanced"})
        uneven = small.stream((3, 1, 2))
        plain, fair = (
            small.after(Finetune(), 0, training, on=uneven) for training in (small.EXACT, balanced)
        )
        assert torch.allclose(
            fisher_information(plain, group="full", term="objective"),
            fisher_information(plain, group="full"),
        )
        by_hand = fair.average_gradient(lambda net, batch: net.task(batch), group="full")
        assert torch.equal(fisher_information(fair, group="full", term="objective"), by_hand)
        # of one row there is nothing to balance
        each = fisher_information(fair, term="objective")
        assert torch.allclose(each, fisher_information(fair), atol=1e-15)

    def test_of_binary_losses_is_bernoulli(self) -> None:
        binary = Training(**{**_fields(small.EXACT), "loss": "bce"})
        learner = small.after(Finetune(), 0, binary)
        batch = learner.batch()
        rows = torch.autograd.functional.jacobian(
            lambda v: _bernoulli_rows(learner, v, batch), learner.vector
        )
        assert torch.allclose(fisher_information(learner), rows.square().mean(0), atol=1e-14)
        with pytest.raises(BadArgument, match="labels: expected 'true'"):
            small.after(EWC(labels="pred"), 0, binary)


def _bernoulli_rows(learner: RunLearner, vector: Tensor, batch: Any) -> Tensor:
    inside = {**learner.networks.layout(vector), **learner.buffers}
    logits = functional_call(learner.networks.eval, inside, ("net", batch.x)).logits[:, :2]
    target = torch.nn.functional.one_hot(batch.target, 2).to(logits)
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return each.sum(-1)


def _fields(training: Training) -> dict[str, Any]:
    return {name: getattr(training, name) for name in training.__dataclass_fields__}


class TestMerge:
    def test_value_and_gradient_are_those_of_the_sum(self) -> None:
        torch.manual_seed(0)
        tasks = [(torch.rand(5).double(), torch.randn(5).double()) for _ in range(3)]
        for importance, _ in tasks:
            importance[0] = 0.0
        state: dict[str, Any] = {}
        for importance, anchor in tasks:
            state = merge_quadratics(state, importance, anchor)
        x = torch.randn(5).double().requires_grad_(True)
        one = (
            quadratic_penalty(x, state["anchor"], state["importance"], 2.0) + 2.0 * state["offset"]
        )
        many = sum(quadratic_penalty(x, anchor, importance, 2.0) for importance, anchor in tasks)
        assert torch.allclose(one, many)  # type: ignore[arg-type]
        slopes = [torch.autograd.grad(value, x)[0] for value in (one, many)]  # type: ignore[list-item]
        assert torch.allclose(*slopes)
        assert torch.equal(state["anchor"][0], tasks[-1][1][0])

    def test_the_anchor_is_exact_where_one_task_pulls(self) -> None:
        torch.manual_seed(0)
        before, after = torch.randn(4000), torch.randn(4000)
        old, new = torch.rand(4000), torch.rand(4000)
        old[:1000] = 0.0
        new[1000:2000] = 0.0
        old[2000:3000] *= 1e-12  # lost in the sum
        merged = merge_quadratics(merge_quadratics({}, old, before), new, after)
        assert torch.equal(merged["anchor"][:1000], after[:1000])
        assert torch.equal(merged["anchor"][1000:2000], before[1000:2000])
        assert torch.equal(merged["anchor"][2000:3000], after[2000:3000])
        between = merged["anchor"][3000:]
        assert bool((between >= torch.minimum(before, after)[3000:]).all())
        assert bool((between <= torch.maximum(before, after)[3000:]).all())
        # nothing pulls a parameter that lies at the anchor of its only task
        vector = after.clone()
        assert not penalty_gradient(vector, merged["anchor"], merged["importance"], 1e4)[
            :1000
        ].any()

    def test_heads_that_nothing_pulls_stand_still(self) -> None:
        wide = {"name": "mlp", "hidden": (64,)}
        training = Training(epochs=20, batch_size=16, lr=0.01)  # Adam, float32
        on = small.stream(multi=True)
        run = Run(method=EWC(), training=training, stream=on, model=wide, seed=0)
        heads = [
            stage.learner.params["net.head.weight"].detach().clone()
            for stage in Engine([run], device="cpu", together=False).stages()
        ]
        assert torch.equal(heads[2][:2], heads[0][:2])
        assert torch.equal(heads[2][2:4], heads[1][2:4])

    def test_constant_importances_normalise_to_zero(self) -> None:
        flat, every = torch.full((4,), 1e-7), torch.ones(4, dtype=torch.bool)
        assert scale_to_unit_range([flat], [every], "minmax_global")[0].tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
    def test_the_last_bit_of_equal_importances_is_not_blown_up(
        self, size: float, dtype: torch.dtype
    ) -> None:
        flat, every = torch.full((4,), size, dtype=dtype), torch.ones(4, dtype=torch.bool)
        flat[1] = torch.nextafter(flat[1], torch.tensor(torch.inf, dtype=dtype))
        flat[2] = torch.nextafter(flat[2], torch.tensor(0.0, dtype=dtype))
        assert scale_to_unit_range([flat], [every], "minmax_global")[0].tolist() == [0, 0, 0, 0]
        assert scale_to_unit_range([flat], [every], "max_only")[0].tolist() == pytest.approx(
            [1] * 4
        )
        spread = torch.tensor([1.0, 1.0, 1.0, 1.001], dtype=dtype) * size  # real, however small
        assert scale_to_unit_range([spread], [every], "minmax_global")[0].tolist() == [0, 0, 0, 1]
        assert scale_to_unit_range([0 * flat], [every], "max_only")[0].tolist() == [0, 0, 0, 0]


class TestEWC:
    def test_without_strength_it_is_finetuning(self) -> None:
        assert small.is_finetuning(EWC(strength=0))
        assert not small.is_finetuning(EWC(strength=5.0))

    def test_penalty_is_zero_right_after_a_task_and_positive_off_it(self) -> None:
        method = EWC(strength=3.0)
        learner = small.after(method, 0)
        value, slope_ = small.penalty_of(method, learner, learner.vector)
        assert value == 0
        assert not slope_.any()
        value, slope_ = small.penalty_of(method, learner, small.moved(learner))
        assert value > 0
        assert bool(slope_.any())

    def test_penalty_works_while_the_second_task_is_trained(self) -> None:
        # a code that compares saved with saved weights logs 0 and moves as far as finetuning
        method = EWC(strength=200.0)
        first = small.after(method, 0)
        away = {
            type(m): quadratic_penalty(
                small.after(m, 1).vector, first.vector, first.state["importance"], 1.0
            )
            for m in (method, Finetune())
        }
        assert away[EWC] < 0.5 * away[Finetune]
        assert penalty_logged(method) > 0

    def test_sums_over_tasks_and_state_does_not_grow(self) -> None:
        method = EWC(strength=3.0)
        found = []
        for stage in range(3):
            learner = small.after(method, stage)
            found.append((fisher_information(learner), learner.vector))
            assert {k: v.shape for k, v in learner.state.items()} == {
                "importance": learner.vector.shape,
                "anchor": learner.vector.shape,
                "offset": torch.Size([]),
            }
        here = small.moved(learner)
        expected = sum(float(quadratic_penalty(here, at, f, 1.5)) for f, at in found)
        assert small.penalty_of(method, learner, here)[0] == pytest.approx(expected)

    def test_lockstep_is_the_loop(self) -> None:
        many = [EWC(strength=5.0), EWC(strength=5.0), EWC(strength=80)]
        assert small.gap(many) < 1e-10
        for method in (EWC(strength=5.0, labels="sample"), EWC(strength=5.0, group="full")):
            assert small.gap([method] * 2) < 1e-10

    def test_lockstep_is_the_loop_with_batch_norm(self) -> None:
        method: Method = EWC(strength=5.0, labels="pred", memory=Memory(total=12))
        assert small.gap([method] * 2, model=small.Normed) < 1e-10

    def test_exemplars_join_the_rows(self) -> None:
        with_samples = EWC(strength=1.0, memory=Memory(per_class=4))
        learner = small.after(with_samples, 1)
        assert len(learner.exemplars) == 16
        assert with_samples.replay(1).kind == "union"
        assert EWC().replay(1).kind == "none"
        assert not torch.equal(small.after(EWC(strength=1.0), 1).vector, learner.vector)

    @pytest.mark.parametrize(
        "options,words",
        [
            ({"strength": -1.0}, "strength: expected a number of at least 0"),
            ({"labels": "tru"}, "did you mean 'true'"),
            ({"group": 0}, "group: expected a whole number"),
            ({"group": "all"}, "group: expected a whole number"),
            ({"group": 4, "labels": "all"}, "group: expected 1"),
            ({"term": "loss"}, "term: unknown name"),
            ({"batch_statistics": True}, "group: expected more than 1"),
            ({"term": "objective", "labels": "pred"}, "labels: expected 'true'"),
            ({"memory": 500}, "memory: expected a Memory"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(BadArgument, match=words):
            EWC(**options)

    def test_whole_numbers_become_floats(self) -> None:
        assert isinstance(EWC(strength=5).strength, float)


def penalty_logged(method: Method) -> float:
    """The last logged mean of the penalty in the second task."""
    run = Run(stream=small.stream(), method=method, model=small.MODEL, training=small.EXACT)
    stages = list(Engine([run], device="cpu").stages())
    return stages[1].losses[-1][1]["penalty"]
