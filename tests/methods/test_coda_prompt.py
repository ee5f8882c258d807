"""CODAPrompt against a plain loop over rows and components."""

from __future__ import annotations

import torch

from engram import keys
from engram.methods import CODAPrompt
from engram.methods.coda_prompt import make_orthogonal
from tests.methods import small
from tests.plain import transformers as plain
from tests.refusals import refuses

METHOD = CODAPrompt(components=2, length=4, blocks=(0, 2), orthogonality=0.3)


def stacked(weights, part, stage):
    return torch.cat([weights[f"components{number}.{part}"] for number in range(stage + 1)], 1)


def begin(weights, x, y, stage):
    """Unit vectors by Gram and Schmidt, one after the other."""
    for part in ("prompts", "keys", "attention"):
        name = f"components{stage}.{part}"
        shape = weights[name].flatten(2).shape
        drawn = keys.normal(keys.fold(0, "CODAPrompt", part, stage), *shape).double()
        rows = []
        for place in range(2):
            known = [v for k in range(stage) for v in weights[f"components{k}.{part}"][place]]
            known = [one.flatten() for one in known]
            # older components have moved, and are no longer orthogonal to each other
            span = torch.linalg.svd(torch.stack(known).T, full_matrices=False).U.T if known else []
            own = []
            for vector in drawn[place]:
                for other in (*span, *own):
                    vector = vector - (vector @ other) * other
                own.append(vector / vector.norm())
            rows.append(torch.stack(own))
        weights[name] = torch.stack(rows).view(weights[name].shape)


def logits_of(weights, x, stage):
    prompts, among, attention = (
        stacked(weights, part, stage) for part in ("prompts", "keys", "attention")
    )
    asked = plain.query(x)

    def insert(row):
        made = {}
        for place, block in enumerate((0, 2)):
            total = 0
            for m in range(prompts.shape[1]):
                given, key = asked[row] * attention[place, m], among[place, m]
                weight = (given @ key) / (given.norm() * key.norm())
                total = total + weight * prompts[place, m]
            made[block] = tuple(total)
        return {"prefixes": made}

    return plain.head(weights, plain.features(x, insert))


def test_is_the_plain_loop():
    def cost(weights, x, y, stage):
        total = plain.task_cost(logits_of(weights, x, stage), y, stage)
        for part in ("prompts", "keys", "attention"):
            for rows in stacked(weights, part, stage).flatten(2):
                total = total + 0.3 * ((rows @ rows.T - torch.eye(len(rows))) ** 2).mean()
        return total

    plain.follow(METHOD, lambda stage: (f"components{stage}.",), cost, logits_of, begin)


def test_length_zero_is_the_frozen_head():
    def cost(weights, x, y, stage):
        return plain.task_cost(plain.head(weights, plain.query(x)), y, stage)

    method = CODAPrompt(length=0, orthogonality=0.0)
    plain.follow(
        method, lambda stage: (), cost,
        lambda weights, x, stage: plain.head(weights, plain.query(x)),
        lambda weights, x, y, stage: begin_empty(weights, method, stage),
    )  # fmt: skip


def begin_empty(weights, method, stage):
    for part in ("keys", "attention"):
        name = f"components{stage}.{part}"
        key = keys.fold(0, "CODAPrompt", part, stage)
        drawn = keys.normal(key, *weights[name].shape).double()
        known = [[weights[f"components{k}.{part}"][b] for k in range(stage)] for b in range(3)]
        weights[name] = torch.stack(
            [make_orthogonal(*pair) for pair in zip(drawn, known, strict=True)]
        )


def test_more_components_than_dimensions_have_unit_length():
    found = make_orthogonal(torch.randn(5, 3, dtype=torch.double), [])
    assert torch.allclose(found.norm(dim=1), torch.ones(5, dtype=torch.double))
    assert torch.allclose(found[:3] @ found[:3].T, torch.eye(3, dtype=torch.double), atol=1e-12)


def test_older_components_stand_still():
    first = small.after(METHOD, 0, plain.WHOLE, on=plain.ON, model=plain.ToyTransformer)
    last = small.after(METHOD, 2, plain.WHOLE, on=plain.ON, model=plain.ToyTransformer)
    for name, value in first.params.items():
        if name.startswith("components0."):
            assert torch.equal(value, last.params[name])


def test_bad_options_are_refused():
    with refuses("length"):
        CODAPrompt(length=5)
    with refuses("blocks"):
        CODAPrompt(blocks=())
