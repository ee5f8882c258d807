"""L2P against a plain loop over rows; what its variants promise."""

from __future__ import annotations

import pytest
import torch

from engram import keys
from engram.methods import L2P
from tests.methods import small
from tests.plain import transformers as plain
from tests.refusals import refuses


def chosen_prompts(weights, x, top):
    similar = plain.cosines(plain.query(x), weights["pool.prompt_keys"])
    return similar, [row.argsort(descending=True)[:top].tolist() for row in similar]


def logits_of(weights, x, chosen):
    pool = weights["pool.prompts"]

    def insert(row):
        return {"tokens": torch.cat([pool[number] for number in chosen[row]])}

    length = len(chosen[0]) * pool.shape[1]
    return plain.head(weights, plain.features(x, insert, length))


def most_frequent(chosen, top):
    every = [number for one in chosen for number in one]
    counts = [(-every.count(number), number) for number in set(every)]
    return [[number for _, number in sorted(counts)[:top]]] * len(chosen)


def test_is_the_plain_loop():
    def cost(weights, x, y, stage):
        similar, chosen = chosen_prompts(weights, x, 3)
        far = torch.stack([(1 - s[c]).sum() for s, c in zip(similar, chosen, strict=True)])
        return plain.task_cost(logits_of(weights, x, chosen), y, stage) + 0.7 * far.mean()

    def scores(weights, x, stage):
        return logits_of(weights, x, chosen_prompts(weights, x, 3)[1])

    plain.follow(L2P(pool=5, length=2, top=3, pull=0.7), lambda stage: ("pool.",), cost, scores)


def test_a_batch_has_the_prompts_that_most_of_its_rows_choose():
    method = L2P(pool=5, length=2, top=2, choice="batch")
    learner = small.after(method, 0, plain.WHOLE, on=plain.ON, model=plain.ToyTransformer)
    x = 5 * keys.normal(7, 12, 5).double()  # far apart, so that rows choose other prompts
    weights = learner.params
    chosen = chosen_prompts(weights, x, 2)[1]
    wanted = logits_of(weights, x, most_frequent(chosen, 2))
    state, none = learner.state, torch.tensor(-1)
    got = method.answer(learner.net(), x, state, none).logits
    assert torch.allclose(got, wanted, rtol=0, atol=1e-9)
    alone = torch.cat([method.answer(learner.net(), one, state, none).logits for one in x.split(1)])
    assert not torch.allclose(got, alone, atol=1e-3)
    rows = L2P(pool=5, length=2, top=2)
    got = rows.answer(learner.net(), x, state, none).logits
    alone = torch.cat([rows.answer(learner.net(), one, state, none).logits for one in x.split(1)])
    assert torch.allclose(got, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"length": 0, "pull": 0.0}])
def test_without_length_the_head_alone_is_trained(options):
    def cost(weights, x, y, stage):
        return plain.task_cost(plain.head(weights, plain.query(x)), y, stage)

    plain.follow(
        L2P(**options), lambda stage: (), cost,
        lambda weights, x, stage: plain.head(weights, plain.query(x)),
    )  # fmt: skip


def test_bad_options_and_models_are_refused():
    with refuses("top"):
        L2P(top=11)
    with refuses("choice"):
        L2P(choice="column")
    with refuses("model"):
        small.after(L2P())
    with refuses("model"):
        small.after(L2P(), model={"name": plain.ToyTransformer, "freeze": True})
