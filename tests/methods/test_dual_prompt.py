"""DualPrompt against a plain loop over rows."""

from __future__ import annotations

import torch

from engram import keys
from engram.methods import DualPrompt
from tests.methods import small
from tests.plain import transformers as plain
from tests.refusals import refuses

METHOD = DualPrompt(general=2, expert=3, general_blocks=(0,), expert_blocks=(1, 2), pull=0.6)


def logits_of(weights, x, tasks):
    general = weights["general.prompts"]

    def insert(row):
        expert = weights[f"expert{tasks[row]}.prompts"]
        return {"prefixes": {0: tuple(general[0]), 1: tuple(expert[0]), 2: tuple(expert[1])}}

    return plain.head(weights, plain.features(x, insert))


def similar_to(weights, x, stage):
    rows = torch.cat([weights[f"expert{number}.prompt_keys"][None] for number in range(stage + 1)])
    return plain.cosines(plain.query(x), rows)


def test_is_the_plain_loop():
    def cost(weights, x, y, stage):
        far = 1 - similar_to(weights, x, stage)[:, stage]
        logits = logits_of(weights, x, [stage] * len(x))
        return plain.task_cost(logits, y, stage) + 0.6 * far.mean()

    def scores(weights, x, stage):
        return logits_of(weights, x, similar_to(weights, x, stage).argmax(1).tolist())

    plain.follow(METHOD, lambda stage: ("general.", f"expert{stage}."), cost, scores)


def test_a_batch_may_have_one_expert():
    method = DualPrompt(general=2, expert=3, choice="batch")
    learner = small.after(method, 1, plain.WHOLE, on=plain.ON, model=plain.ToyTransformer)
    x = 5 * keys.normal(7, 12, 5).double()  # far apart, so that rows choose other experts
    asked = plain.query(x)
    learner.params["expert0.prompt_keys"].copy_(asked.mean(0))
    learner.params["expert1.prompt_keys"].copy_(asked[0])
    chosen = similar_to(learner.params, x, 1).argmax(1)
    assert 0 < int(chosen.sum()) < 6  # most rows choose the first
    answer = method.answer(learner.net(), x, learner.state, torch.tensor(-1)).logits
    kinds = [learner.params["general.prompts"], learner.params["expert0.prompts"]]

    def insert(row):
        general, expert = kinds
        return {"prefixes": {0: tuple(general[0]), 1: tuple(general[1]), 2: tuple(expert[0])}}

    wanted = plain.head(learner.params, plain.features(x, insert))
    assert torch.allclose(answer, wanted, rtol=0, atol=1e-9)


def test_bad_options_are_refused():
    with refuses("expert_blocks"):
        DualPrompt(general_blocks=(0, 1), expert_blocks=(1, 2))
    with refuses("general_blocks"):
        DualPrompt(general_blocks=(0, 0))
    with refuses("expert_blocks"):
        small.after(DualPrompt(expert_blocks=(5,)), model=plain.ToyTransformer)
