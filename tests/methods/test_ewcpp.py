from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner.learner import RunLearner
from engram.memory import Memory
from engram.methods.ewcpp import EWCpp, moving_average
from engram.methods.method import State, Update
from tests.methods import small


def test_weights_of_the_average() -> None:  # [T-E5]
    old, new = torch.tensor(0.1), torch.tensor(0.5)
    assert moving_average(old, new, 0.9).item() == pytest.approx(0.46)
    assert moving_average(old, new, 0.9, "running").item() == pytest.approx(0.14)


def follow(method: EWCpp, gradients: list[list[float]], state: State) -> State:
    still = torch.zeros(len(gradients[0]))
    for gradient in gradients:
        update = Update(still, still, torch.tensor(gradient), state["steps"] + 1)
        state = method.step(update, state)
    return state


def fresh(*extra: str) -> State:
    zero = torch.zeros(2)
    return {"running": zero, "steps": torch.tensor(0)} | dict.fromkeys(extra, zero)


GRADIENTS = [[1.0, -0.5], [0.5, 0.5], [0.2, -0.1]]


def test_running_fisher_by_hand() -> None:
    found = follow(EWCpp(init="zero"), GRADIENTS[:2], fresh())["running"]
    assert torch.allclose(found, torch.tensor([0.315, 0.2475]))
    found = follow(EWCpp(), GRADIENTS[:2], fresh())["running"]
    assert torch.allclose(found, torch.tensor([0.9 * 0.25 + 0.1, 0.25]))


def test_first_batch_counts_only_in_the_first_task() -> None:
    state = fresh() | {"running": torch.ones(2), "anchor": torch.zeros(2)}
    found = follow(EWCpp(), GRADIENTS[:1], state)["running"]
    assert torch.allclose(found, torch.tensor([0.9 * 1.0 + 0.1, 0.9 * 0.25 + 0.1]))


def test_intervals() -> None:
    method = EWCpp(init="zero", update="interval", every=2)
    state = follow(method, GRADIENTS, fresh("total"))
    assert torch.allclose(state["running"], 0.9 * torch.tensor([1.25, 0.5]) / 2)
    assert torch.allclose(state["total"], torch.tensor([0.04, 0.01]))  # begun anew


class Recorder(EWCpp):
    """Notes every gradient it is given."""

    seen: list[Tensor] = []  # noqa: RUF012

    def step(self, update: Update, state: State) -> State:
        self.seen.append(update.grad.clone())
        return super().step(update, state)


def recorded(**options: Any) -> tuple[list[Tensor], RunLearner]:
    Recorder.seen = []
    training = Training(precision="float64", optimizer="sgd", lr=0.01, iterations=5, batch_size=16)
    run = Run(
        stream=small.stream(), method=Recorder(**options), model=small.MODEL, training=training
    )
    stages = list(Engine([run], device="cpu", together=False).stages())
    return Recorder.seen, stages[-1].learner


def test_a_run_is_the_formula_over_all_tasks() -> None:
    gradients, learner = recorded(strength=5.0)
    running = gradients[0].square()
    for gradient in gradients[1:]:
        running = 0.9 * gradient.square() + 0.1 * running
    assert torch.allclose(learner.state["importance"], running, atol=1e-15)


def test_leftover_steps_of_an_interval_count() -> None:
    gradients, learner = recorded(strength=5.0, init="zero", update="interval", every=3)
    running = torch.zeros_like(learner.vector)
    for start in range(0, 15, 5):
        for part in (gradients[start : start + 3], gradients[start + 3 : start + 5]):
            mean = torch.stack(part).square().mean(0)
            running = 0.9 * mean + 0.1 * running
    assert torch.allclose(learner.state["importance"], running, atol=1e-15)


def test_gradient_leaves_the_penalty_out() -> None:
    # in the second task the first step does not feel the penalty; in the second step it is there,
    # at the same weights for any strength, so a gradient with penalty would differ with it
    weak, strong = (recorded(strength=s)[0][5:8] for s in (1.0, 100.0))
    assert torch.equal(weak[0], strong[0])
    assert torch.equal(weak[1], strong[1])
    assert not torch.equal(weak[2], strong[2])


def test_normalised_importance_spans_zero_to_one() -> None:
    learner = small.after(EWCpp(strength=1.0, normalize=True), 0)
    importance = learner.state["importance"]
    assert importance[learner.free].min() == 0
    assert importance.max() == pytest.approx(1)
    assert not importance[~learner.free].any()


def test_penalty_is_zero_right_after_a_task() -> None:
    method = EWCpp(strength=3.0)
    learner = small.after(method, 1)
    value, slope = small.penalty_of(method, learner, learner.vector)
    assert value == 0
    assert not slope.any()
    assert small.penalty_of(method, learner, small.moved(learner))[0] > 0


def test_without_strength_it_is_finetuning() -> None:
    assert small.is_finetuning(EWCpp(strength=0))
    assert not small.is_finetuning(EWCpp(strength=0.1))


def test_lockstep_is_the_loop() -> None:
    assert small.gap([EWCpp(strength=s, alpha=a) for s, a in ((5.0, 0.9), (9.0, 0.5))]) < 1e-10
    interval = EWCpp(strength=5.0, update="interval", every=4, memory=Memory(total=12))
    assert small.gap([interval] * 2) < 1e-10


@pytest.mark.parametrize(
    "options,words",
    [
        ({"strength": -1.0}, "strength"),
        ({"alpha": 1.5}, r"alpha: expected a number in \[0, 1\]"),
        ({"alpha": -0.1}, "alpha"),
        ({"every": 0}, "every: expected a whole number"),
        ({"alpha_on": "old"}, "alpha_on: unknown name"),
        ({"init": "one"}, "init: unknown name"),
        ({"update": "epoch"}, "update: unknown name"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        EWCpp(**options)
