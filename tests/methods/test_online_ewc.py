from __future__ import annotations

import pytest
import torch

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.ewc import EWC
from engram.methods.finetune import Finetune
from engram.methods.fisher import fisher_information
from engram.methods.online_ewc import OnlineEWC, decay_importance
from engram.methods.quadratic_penalty import merge_quadratics
from tests.methods import small


def test_running_sum() -> None:  # [T-E4]
    old, new = torch.tensor(0.5), torch.tensor(0.2)
    assert decay_importance(old, new, 0.8).item() == pytest.approx(0.6)
    # with gamma once more inside the loss the same numbers count as .48
    one, two = OnlineEWC(gamma=0.8), OnlineEWC(gamma=0.8, gamma_in_loss=True)
    assert 0.6 * float(two.factor()) / float(one.factor()) == pytest.approx(0.48)


def test_state_after_three_tasks() -> None:
    method = OnlineEWC(strength=2.0, gamma=0.5)
    found = [fisher_information(small.after(method, stage)) for stage in range(3)]
    learner = small.after(method)
    expected = 0.25 * found[0] + 0.5 * found[1] + found[2]
    assert torch.allclose(learner.state["importance"], expected)
    assert torch.equal(learner.state["anchor"], learner.vector)
    assert set(learner.state) == {"importance", "anchor"}


def test_one_past_task_is_ewc() -> None:
    two_tasks = small.stream(3)
    both = [small.after(m, on=two_tasks) for m in (EWC(strength=9.0), OnlineEWC(strength=9.0))]
    assert torch.equal(both[0].vector, both[1].vector)


def test_gamma_one_and_equal_anchors_is_the_sum_of_penalties() -> None:
    learner = small.after(Finetune(), 0)
    one, two = fisher_information(learner), fisher_information(learner, labels="pred")
    learner.state = merge_quadratics(merge_quadratics({}, one, learner.vector), two, learner.vector)
    here = small.moved(learner)
    separate = small.penalty_of(EWC(strength=4.0), learner, here)
    learner.state = {"importance": decay_importance(one, two, 1.0), "anchor": learner.vector}
    online = small.penalty_of(OnlineEWC(strength=4.0), learner, here)
    assert separate[0] == pytest.approx(online[0])
    assert torch.allclose(separate[1], online[1])


def test_penalty_is_zero_right_after_every_task() -> None:
    method = OnlineEWC(strength=3.0)
    for stage in range(3):
        learner = small.after(method, stage)
        value, slope = small.penalty_of(method, learner, learner.vector)
        assert value == 0
        assert not slope.any()
        assert small.penalty_of(method, learner, small.moved(learner))[0] > 0


def test_without_strength_it_is_finetuning() -> None:
    assert small.is_finetuning(OnlineEWC(strength=0))
    assert not small.is_finetuning(OnlineEWC(strength=0.1))


def test_lockstep_is_the_loop() -> None:
    options = {"strength": 5.0, "memory": Memory(per_class=3)}
    methods = [
        OnlineEWC(gamma=gamma, gamma_in_loss=True, **options)  # type: ignore[arg-type]
        for gamma in (1.0, 0.5)
    ]
    assert small.gap(methods) < 1e-10


@pytest.mark.parametrize("gamma", [-0.1, 1.1, "one"])
def test_bad_gamma(gamma: float) -> None:
    with pytest.raises(BadArgument, match="gamma: expected a number in"):
        OnlineEWC(gamma=gamma)
