"""SLCA, and its alignment after other methods, against hand-written loops."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.methods import SLCA, ClassifierAlignment, Finetune, Join, LwF
from tests.engine.plain_loop import OPTIMIZERS, Twin, away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.fixed_features import stages
from tests.refusals import refuses

OPTIONS = {"epochs": 2, "draws": 8, "align_lr": 0.05}


@dataclass
class AlignedTwin(Twin):
    """Finetuning; then the heads are trained on drawn features of all classes."""

    diagonal = False
    gaussians: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @torch.no_grad()
    def features(self, rows: Tensor) -> Tensor:
        h = self.net.trunk(self.x(rows).flatten(1))
        return torch.relu(h if self.net.norm is None else self.net.norm(h))

    def finish(self, stage: int) -> None:
        self.net.eval()
        rows = self.stream.tasks[stage].train
        z, y = self.features(rows), self.y(rows)
        for c in sorted(y.unique().tolist()):
            covariance = torch.cov(z[y == c].T) + 1e-4 * torch.eye(z.shape[1], dtype=z.dtype)
            if self.diagonal:
                covariance = torch.diag(covariance.diagonal())
            self.gaussians.append((z[y == c].mean(0), torch.linalg.cholesky(covariance)))
        if stage:
            self.align(stage)

    def align(self, stage: int) -> None:
        heads = self.net.heads[: stage + 1]
        optimizer = torch.optim.SGD(heads.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(2):
            key = keys.fold(self.seed, "alignment", stage, epoch)
            drawn = [
                mean + keys.normal(keys.fold(key, c), 8, len(mean)) @ factor.T
                for c, (mean, factor) in enumerate(self.gaussians)
            ]
            order = keys.permutation(key, 8 * len(drawn), 8 * len(drawn))
            z, y = torch.cat(drawn)[order], torch.arange(len(drawn)).repeat_interleave(8)[order]
            for place in torch.arange(len(y)).split(8):
                optimizer.zero_grad()
                parts = [head(z[place]) for head in heads]
                norm = torch.stack([part.norm(dim=1) for part in parts]).mean(0)
                logits = torch.cat(parts, 1) / norm[:, None] / 0.1
                F.cross_entropy(logits, y[place]).backward()
                optimizer.step()


class SLCATwin(AlignedTwin):
    """Two learning rates, and classes that compete within their task."""

    def run(self, stage: int) -> None:
        self.net.train()
        used = self.net.in_use(stage + 1)
        head = [p for part in self.net.heads for p in part.parameters()]
        body = [p for p in used if not any(p is one for one in head)]
        head = [p for p in used if any(p is one for one in head)]
        rates = [{"params": body, "lr": 0.3 * self.training.lr}, {"params": head}]
        optimizer = OPTIMIZERS[self.training.optimizer](rates, self.training)
        for rows in self.batches(stage):
            optimizer.zero_grad()
            logits = self.net(self.x(rows), stage + 1)
            before = sum(one.out_features for one in self.net.heads[:stage])
            loss = F.cross_entropy(logits[:, before:], self.y(rows) - before)
            (loss + 0 * logits.sum()).backward()  # decay reaches older heads, too
            optimizer.step()
        self.finish(stage)


def gaps(method, kind, **how):
    found = [away(twin, stage.learner) for twin, stage in beside(method, kind, DECAYED, **how)]
    assert len(found) == 9
    return max(found)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_slca(model, together):
    method = SLCA(backbone_rate=0.3, **OPTIONS)
    assert gaps(method, SLCATwin, model=model, together=together) < 1e-9


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_alignment_after_another_method(together):
    method = Join(Finetune(), ClassifierAlignment(**OPTIONS))
    assert gaps(method, AlignedTwin, model="plain", together=together) < 1e-9


def test_a_diagonal_covariance():
    class Diagonal(AlignedTwin):
        diagonal = True

    method = ClassifierAlignment(covariance="diagonal", **OPTIONS)
    assert gaps(method, Diagonal, model="plain", together=False) < 1e-9


def test_after_distillation_it_moves_the_head_alone():
    stages_of = [
        [{name: value.clone() for name, value in seen.stage.learner.params.items()}
         for seen in itertools.islice(stages(method, together=False, model="mlp"), 2)]
        for method in (LwF(), Join(LwF(), ClassifierAlignment(**OPTIONS)))
    ]  # fmt: skip
    for name, value in stages_of[0][0].items():  # nothing is aligned after the first task
        assert torch.equal(value, stages_of[1][0][name])
    for name, value in stages_of[0][1].items():
        assert torch.equal(value, stages_of[1][1][name]) != name.startswith("net.head.")


@pytest.mark.parametrize(
    "bad", [{"draws": 0}, {"align_lr": 0.0}, {"temperature": -1.0}, {"covariance": "round"},
            {"backbone_rate": 2.0}, {"epochs": -1}],
)  # fmt: skip
def test_bad_values(bad):
    (name,) = bad
    with refuses(name):
        SLCA(**bad)
