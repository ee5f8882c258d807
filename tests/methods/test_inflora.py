"""InfLoRA against a plain loop with singular vectors."""

from __future__ import annotations

import math

import torch

from engram.methods import InfLoRA
from tests.methods import small
from tests.plain import transformers as plain
from tests.refusals import refuses


class Twin:
    """What the method keeps: matrices that are added, bases of kept directions, directions."""

    def __init__(self, rank, threshold, last):
        self.rank, self.threshold, self.last = rank, threshold, last
        self.added = {
            (b, m): torch.zeros(48, 48).double() for b in range(3) for m in ("key", "value")
        }
        self.bases = {b: torch.zeros(48, 0).double() for b in range(3)}
        self.down = {}

    def inputs(self, x):
        """H [W, n] of each block."""
        seen = {b: [] for b in range(3)}
        for one in x:
            with torch.no_grad():
                plain.one_row(one, None, {}, self.added, {}, lambda b, h: seen[b].append(h))
        return {b: torch.cat(parts).T for b, parts in seen.items()}

    def begin(self, weights, x, y, stage):
        for b, h in self.inputs(x).items():
            outside = h - self.bases[b] @ (self.bases[b].T @ h)
            rows = torch.linalg.svd(outside).U[:, : self.rank].T
            rows = torch.stack([one * one[one.abs().argmax()].sign() for one in rows])
            self.down[b] = rows / math.sqrt(3)

    def changes(self, weights):
        return {
            (b, m): matrix + weights["updates.up"][b, ("key", "value").index(m)] @ self.down[b]
            for (b, m), matrix in self.added.items()
        }

    def end(self, weights, x, y, stage):
        self.added = self.changes(weights)
        weights["updates.up"] = torch.zeros_like(weights["updates.up"])
        share = self.threshold + (self.last - self.threshold) * stage / 3
        for b, h in self.inputs(x).items():
            base, total = self.bases[b], h.square().sum()
            outside = h - base @ (base.T @ h)
            u, s, _ = torch.linalg.svd(outside)
            held, count = 1 - s.square().sum() / total, 0
            while held < share:
                held, count = held + s[count].square() / total, count + 1
            self.bases[b] = torch.cat([base, u[:, :count]], 1)

    def logits(self, weights, x, stage=None):
        changes = self.changes(weights)
        return plain.head(weights, plain.features(x, lambda row: {"changes": changes}))

    def cost(self, weights, x, y, stage):
        return plain.task_cost(self.logits(weights, x), y, stage)


def test_is_the_plain_loop():
    twin = Twin(2, 0.8, 0.9)
    method = InfLoRA(rank=2, threshold=0.8, last_threshold=0.9)
    plain.follow(method, lambda stage: ("updates.",), twin.cost, twin.logits, twin.begin, twin.end)
    assert all(0 < base.shape[1] < 48 for base in twin.bases.values())


def test_rank_zero_is_the_frozen_head():
    def cost(weights, x, y, stage):
        return plain.task_cost(plain.head(weights, plain.query(x)), y, stage)

    plain.follow(
        InfLoRA(rank=0), lambda stage: (), cost,
        lambda weights, x, stage: plain.head(weights, plain.query(x)),
    )  # fmt: skip


def test_merging_changes_no_answer():
    """What was trained as a product answers the same after it was added to the weights."""
    before = {}

    class Watched(InfLoRA):
        def finish(self, learner, task):
            x = learner.batch().x
            none = torch.tensor(-1)
            unmerged = self.answer(learner.net(), x, learner.state, none).logits
            super().finish(learner, task)
            merged = self.answer(learner.net(), x, learner.state, none).logits
            before[learner.stage] = float((merged - unmerged).abs().max())
            assert float(learner.state["added"].abs().max()) > 0

    small.after(Watched(rank=3), 1, plain.WHOLE, on=plain.ON, model=plain.ToyTransformer)
    assert len(before) == 2
    assert max(before.values()) < 1e-12


def test_bad_options_are_refused():
    with refuses("threshold"):
        InfLoRA(threshold=1.5)
    with refuses("rank"):
        small.after(InfLoRA(rank=49), model=plain.ToyTransformer)
