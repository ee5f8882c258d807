"""A detector and a measurement as a user writes them: in a file outside the package."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import engram


@dataclass(frozen=True)
class Entropy(engram.Probe):
    """Entropy of the predictions about items of tasks that were learnt, by task as well."""

    temperature: float = 1.0

    def after_stage(self, view):
        scores = view.scores.masked_fill(~view.open[:, None], -torch.inf) / self.temperature
        likely = scores.softmax(-1)
        entropy = -(likely * likely.clamp(min=1e-30).log()).sum(-1)  # [R, n]
        rows = view.rows()
        rows.add("mean", (entropy * view.seen).sum(1) / view.seen.sum(1))
        for task in range(view.stage + 1):
            own = view.task == task
            rows.add("of_task", (entropy * own).sum(1) / own.sum(1), task=task)
        return rows


@dataclass(frozen=True)
class ClassDistance(engram.Probe):
    """How well the distance to the nearest class mean tells unknown classes from known ones.

    Means are fitted on training rows, stage by stage, and never renewed: the state carries them.
    """

    needs = ("features", "unseen")
    size: int = 16

    def after_stage(self, view):
        runs, columns = len(view), view.scores.shape[-1]
        width = view.features.shape[-1]
        sums = view.features.new_zeros(runs, columns, width)
        counts = view.features.new_zeros(runs, columns)
        for batch in view.batches(size=self.size):
            seen = view.map(lambda net, batch: net(batch.x).features, batch)  # [R, B, F]
            weight = batch.w[..., None] * torch.nn.functional.one_hot(batch.target, columns)
            sums += weight.mT.to(seen) @ seen
            counts += weight.sum(1).to(counts)
        old = view.state.get("means", torch.zeros_like(sums))
        known = view.state.get("known", torch.zeros_like(counts, dtype=torch.bool))
        fresh = sums / counts.clamp(min=1)[..., None]
        means = torch.where(known[..., None], old, fresh)
        known = known | (counts > 0)
        view.keep({"means": means, "known": known})
        far = torch.cdist(view.features, means).masked_fill(~known[:, None], torch.inf)
        distance = far.amin(-1)  # [R, n]
        return {"auroc": auroc(distance, ~view.seen), "known": known.sum(1)}


def auroc(score, positive):
    """[R] chance that an unknown item scores higher than a known one; NaN after the last task."""
    wins = (score[:, :, None] > score[:, None, :]).double()
    ties = (score[:, :, None] == score[:, None, :]).double()
    pairs = (positive[:, :, None] & ~positive[:, None, :]).double()
    return ((wins + ties / 2) * pairs).sum((1, 2)) / pairs.sum((1, 2))


@dataclass(frozen=True)
class Silent(engram.Probe):
    """Counts the stages it has seen, and says so after the second."""

    def after_stage(self, view):
        count = view.state.get("count", torch.zeros(len(view))) + 1
        view.keep({"count": count})
        return {"stages": count} if view.stage == 1 else {}
