"""EASE against a plain loop over classes and adapters."""

from __future__ import annotations

import torch

from engram.checks.learning_rules import make_domain_stream
from engram.methods import EASE
from tests.methods import small
from tests.plain import transformers as plain
from tests.refusals import refuses


def features_of(weights, x, number, scale=0.5):
    own = {k.removeprefix(f"adapter{number}."): v for k, v in weights.items()
           if k.startswith(f"adapter{number}.")}  # fmt: skip

    def adapter(block):
        def add(h):
            inner = (h @ own["down"][block].T + own["down_bias"][block]).clamp(min=0)
            return (inner @ own["up"][block].T + own["up_bias"][block]) * scale

        return add

    return plain.features(x, lambda row: {"adapters": {b: adapter(b) for b in range(3)}})


class Twin:
    """Prototypes by (class, adapter)."""

    def __init__(self):
        self.known = {}

    def end(self, weights, x, y, stage):
        with torch.no_grad():
            for number in range(stage + 1):
                found = features_of(weights, x, number)
                for c in (2 * stage, 2 * stage + 1):
                    self.known[c, number] = found[y == c].mean(0)
        new = (2 * stage, 2 * stage + 1)
        for c in range(2 * stage):
            own = self.known[c, c // 2]
            near = torch.stack([
                torch.cosine_similarity(own, self.known[n, c // 2], 0) for n in new
            ])  # fmt: skip
            share = near.exp() / near.exp().sum()
            self.known[c, stage] = sum(
                s * self.known[n, stage] for s, n in zip(share, new, strict=True)
            )

    def scores(self, weights, x, stage):
        found = torch.zeros(len(x), 6).double()
        for number in range(stage + 1):
            seen = features_of(weights, x, number)
            for c in range(2 * stage + 2):
                near = torch.cosine_similarity(seen, self.known[c, number][None], 1)
                found[:, c] += near if c // 2 == number else 0.3 * near
        return found


def test_is_the_plain_loop():
    def cost(weights, x, y, stage):
        return plain.task_cost(plain.head(weights, features_of(weights, x, stage)), y, stage)

    twin, method = Twin(), EASE(rank=3, scale=0.5, other=0.3)
    plain.follow(
        method, lambda stage: (f"adapter{stage}.",), cost, twin.scores, end=twin.end
    )  # fmt: skip


def test_known_classes_are_refused():
    with refuses("stream"):
        small.after(EASE(), on=make_domain_stream(), model=plain.ToyTransformer)
