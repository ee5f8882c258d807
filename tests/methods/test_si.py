from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.finetune import Finetune
from engram.methods.method import State, Update
from engram.methods.quadratic_penalty import penalty_gradient
from engram.methods.si import SI, path_contribution
from tests.methods import small

ONE = torch.tensor(1)  # the first step


def walk(method: SI, points: list[float], gradients: list[float], state: State) -> State:
    for before, after, gradient in zip(points, points[1:], gradients, strict=False):
        values = (torch.tensor([v]) for v in (before, after, gradient))
        state = method.step(Update(*values, ONE), state)
    return state


def test_path_integral() -> None:  # [T-S1]
    points = [1.0, 0.5, 0.25]
    start: State = {"path": torch.zeros(1), "anchor": torch.ones(1)}
    path = walk(SI(), points, [2 * p for p in points], start)["path"]
    assert path.item() == pytest.approx(1.25)
    moved = torch.tensor([-0.75])
    assert path_contribution(path, moved, 0.1).item() == pytest.approx(1.886792, abs=1e-5)
    assert path_contribution(path, moved, 1e-3).item() == pytest.approx(2.218279, abs=1e-5)


@pytest.mark.parametrize("clamp,expected", [("none", -2.857143), ("task_term", 0), ("total", 0)])
def test_step_against_the_gradient(clamp: str, expected: float) -> None:  # [T-S2]
    method = SI(clamp=clamp)
    learner = small.bare([[1.0]], [[1.0]], [0])
    method.start(learner, learner.task)
    after = torch.tensor([1.2], dtype=torch.float64)
    update = Update(learner.vector, after, torch.tensor([2.0]).double(), ONE)
    learner.state = method.step(update, learner.state)
    assert learner.state["path"].item() == pytest.approx(-0.4)
    learner.vector = after
    method.finish(learner, learner.task)
    assert learner.state["importance"].item() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(learner.state["anchor"], after)


def test_clamps_of_two_tasks_differ() -> None:
    def second(clamp: str) -> float:
        method = SI(clamp=clamp, xi=1.0)
        learner = small.bare([[0.0]], [[1.0]], [0])
        for path in (3.0, -1.0):
            method.start(learner, learner.task)
            learner.state["path"] = torch.tensor([path]).double()
            method.finish(learner, learner.task)
        return float(learner.state["importance"])

    assert [second(c) for c in ("none", "task_term", "total")] == [2.0, 3.0, 2.0]


def test_total_gradient_adds_the_closed_form() -> None:
    state: State = {
        "path": torch.zeros(2), "anchor": torch.tensor([1.0, 2.0]),
        "importance": torch.tensor([3.0, 0.5]),
    }  # fmt: skip
    before, after, grad = torch.tensor([2.0, 0.0]), torch.zeros(2), torch.ones(2)
    update = Update(before, after, grad, ONE)
    total = grad + torch.tensor([2 * 7 * 3.0, 2 * 7 * 0.5 * -2])
    found = SI(strength=7.0, grad="total").step(update, state)["path"]
    assert torch.allclose(found, -total * (after - before))
    plain = SI(strength=7.0).step(update, state)["path"]
    assert torch.allclose(plain, -grad * (after - before))


class Recorder(SI):
    """Notes the steps it is given."""

    seen: list[tuple[Tensor, Tensor, Tensor]] = []  # noqa: RUF012

    def step(self, update: Update, state: State) -> State:
        self.seen.append((update.before.clone(), update.after.clone(), update.grad.clone()))
        return super().step(update, state)


def recorded(**options: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    Recorder.seen = []
    training = Training(
        precision="float64", optimizer="sgd", lr=0.01, momentum=0.0, iterations=5, batch_size=16
    )
    run = Run(
        stream=small.stream(3), method=Recorder(**options), model=small.MODEL, training=training
    )
    list(Engine([run], device="cpu", together=False).stages())
    return Recorder.seen


def test_gradient_leaves_the_penalty_out() -> None:
    method = SI(strength=20.0)
    first = small.after(Finetune(), 0)  # only for the layout
    steps = recorded(strength=20.0)
    state = _state_after_first_task(method, steps[:5], first.free)
    for before, after, grad in steps[5:]:
        # without momentum the displacement is -lr times the whole gradient
        whole = (before - after) / 0.01
        pull = penalty_gradient(before, state["anchor"], state["importance"], 20.0)
        assert torch.allclose(whole, grad + pull, atol=1e-9)
    assert float(pull.abs().max()) > 1e-6


def _state_after_first_task(method: SI, steps: list[Any], free: Tensor) -> State:
    path = sum(-grad * (after - before) for before, after, grad in steps)
    start, end = steps[0][0], steps[-1][1]
    return {"importance": path_contribution(path, end - start, method.xi), "anchor": end}


def test_pi_is_the_rwalk_baseline() -> None:
    assert SI.pi() == SI(strength=0.1, xi=1e-3, clamp="task_term")
    assert SI.pi(strength=10.0, memory=Memory(per_class=10)).memory == Memory(per_class=10)


def test_penalty_is_zero_right_after_a_task() -> None:
    method = SI(strength=3.0, clamp="task_term")
    for stage in (0, 1):
        learner = small.after(method, stage)
        value, slope_ = small.penalty_of(method, learner, learner.vector)
        assert value == 0
        assert not slope_.any()
        assert small.penalty_of(method, learner, small.moved(learner))[0] > 0
        assert not learner.state["importance"][~learner.free].any()


def test_without_strength_it_is_finetuning() -> None:
    assert small.is_finetuning(SI(strength=0))
    assert not small.is_finetuning(SI(strength=0.1))


def test_a_single_class_gives_zero() -> None:
    learner = small.after(SI(), 0, on=small.stream(1))
    assert not learner.state["importance"].any()


def test_lockstep_is_the_loop() -> None:
    assert small.gap([SI(strength=s, clamp="task_term") for s in (1.0, 1.0, 4.0)]) < 1e-10
    total = SI(strength=0.5, clamp="total", grad="total", memory=Memory(per_class=4))
    assert small.gap([total] * 2, model=small.Normed) < 1e-10


@pytest.mark.parametrize(
    "options,words",
    [
        ({"strength": -1.0}, "strength"),
        ({"xi": 0.0}, "xi"),
        ({"clamp": "omega"}, "clamp: unknown name"),
        ({"grad": "loss"}, "grad: unknown name"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        SI(**options)
