"""GSS: scores against gradients taken one by one; class-balanced memories under imbalance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engram.checks import toy_runs
from engram.checks.toy_runs import enter_task
from engram.engine.engine import Engine
from engram.memory import Memory
from engram.methods import CBRS, ER, GSS
from engram.streams import joint
from tests.methods import small

ROOM = Memory(total=12, policy="admit")


def test_scores_are_cosines_of_gradients_one_by_one():
    at = enter_task(GSS(memory=ROOM, size=4), runs=1)
    batch = next(at.own_batches())
    learner, count = at.learners[0], len(batch.w)
    both = batch.join(batch.memory[0])
    gradients = []
    for row in range(len(both.w)):
        weights = learner.vector.clone().requires_grad_(True)
        loss = at.net(batch, vector=weights).task(both.select(slice(row, row + 1)))
        gradients.append(torch.autograd.grad(loss, weights)[0])
    past = [row for row in range(count, len(both.w)) if both.w[row]]
    assert len(past) == 4
    found = at.method.remember(at.net(batch), batch, learner.state)["score"]
    for row in range(count):
        if batch.w[row]:
            like = [float(F.cosine_similarity(gradients[row], gradients[p], 0)) for p in past]
            assert float(found[row]) == pytest.approx(1 + max(like), abs=1e-9)


def test_a_row_like_those_of_the_memory_does_not_enter_when_it_is_full():
    method = GSS(memory=ROOM, size=4)
    entered = {}
    for score in (0.0, 0.99, 1.01, 2.0):
        slots = []
        for number in range(40):
            value = torch.tensor(score)
            row = toy_row(value, number)
            slot, _ = method.admit(row, toy_slots(), {})
            slots.append(int(slot))
        entered[score] = sum(slot >= 0 for slot in slots)
        assert all(slot in (-1, 0, 1) for slot in slots)
    assert entered[0.0] == 40  # C_i / (C_i + 0)
    assert 10 < entered[0.99] < 40
    assert entered[1.01] == entered[2.0] == 0


def toy_row(score, number):
    from engram import keys
    from engram.methods.method import Offer

    key = torch.tensor(keys.fold(7, number))
    return Offer(torch.tensor([0]), torch.tensor(1), {"score": score}, key)


def toy_slots():
    from engram.methods.method import Slots

    scores = torch.tensor([1.5, 0.5, 0.0])  # the last one is never drawn
    used = torch.ones(3, dtype=torch.bool)
    return Slots(torch.zeros(3, 1).long(), torch.zeros(3), {"score": scores}, used, torch.tensor(9))


@pytest.mark.parametrize("model", [None, small.Normed])
def test_lockstep_is_the_loop(model):
    training = small.EXACT if model is None else toy_runs.replace(small.EXACT, epochs=1)
    assert small.gap([GSS(memory=ROOM, size=4)] * 2, training, model=model) < 1e-10


def test_classes_stay_balanced_where_the_stream_is_not():
    """One task of six classes of 9 to 31 rows: a reservoir follows it, CBRS does not."""
    spread = []
    for method in (
        CBRS(memory=ROOM, size=4),
        ER(memory=Memory(total=12, policy="reservoir"), renew="step", size=4),
    ):
        runs = [
            small.Run(method=method, training=small.EXACT, stream=joint(small.clouds()),
                      model=small.MODEL, seed=seed)
            for seed in range(8)
        ]  # fmt: skip
        stages = Engine(runs, device="cpu", together=True).stages()
        counts = torch.stack([one.learner.exemplars.counts(6) for one in stages]).double()
        assert bool((counts.sum(1) == 12).all())
        spread.append(float(counts.std(1).mean()))
    assert spread[0] < 0.6 * spread[1]
