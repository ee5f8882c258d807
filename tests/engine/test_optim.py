from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.engine.optim import Optimizer
from engram.engine.training import Training

MAKERS = {
    "sgd": lambda p, lr, d, m: torch.optim.SGD(p, lr=lr, weight_decay=d, momentum=m),
    "adam": lambda p, lr, d, m: torch.optim.Adam(p, lr=lr, weight_decay=d),
    "adamw": lambda p, lr, d, m: torch.optim.AdamW(p, lr=lr, weight_decay=d),
}
RATES = (0.1, 0.01, 0.03)
STEPS = 12


def gradients(runs: int, size: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(STEPS, runs, size, generator=generator, dtype=torch.float64)


def by_torch(
    kind: str, start: Tensor, grads: Tensor, lr: float, decay: float, mom: float
) -> Tensor:
    weight = start.clone().requires_grad_(True)
    optimizer = MAKERS[kind]([weight], lr, decay, mom)
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", MAKERS)
class TestEqualToTorch:
    def make(self, kind: str, decay: float, momentum: float) -> Optimizer:
        return Optimizer.from_training(
            Training(optimizer=kind, weight_decay=decay, momentum=momentum)
        )

    def test_rates_per_run(self, kind, decay, momentum):
        grads, ours = gradients(3), self.make(kind, decay, momentum)
        vector = torch.linspace(-1, 1, 21, dtype=torch.float64).view(3, 7)
        start, opt = vector.clone(), ours.fresh(vector)
        for grad in grads:
            ours.update_(vector, grad.clone(), opt, torch.tensor(RATES, dtype=torch.float64))
        for run, lr in enumerate(RATES):
            theirs = by_torch(kind, start[run], grads[:, run], lr, decay, momentum)
            assert torch.allclose(vector[run], theirs, rtol=0, atol=1e-12)
        assert opt["t"].tolist() == [STEPS] * 3

    def test_one_kernel_for_all_runs(self, kind, decay, momentum):
        grads, ours = gradients(3), self.make(kind, decay, momentum)
        vector = torch.linspace(-1, 1, 21, dtype=torch.float64).view(3, 7)
        start, opt = vector.clone(), ours.fresh(vector)
        second, count = [opt["v"]] if "v" in opt else [], torch.zeros(())
        for grad in grads:
            ours.fused_([vector], [grad.clone()], [opt["m"]], second, count, 0.02)
        for run in range(3):
            theirs = by_torch(kind, start[run], grads[:, run], 0.02, decay, momentum)
            assert torch.allclose(vector[run], theirs, rtol=0, atol=1e-12)
        assert count.item() == STEPS

    def test_several_tensors_share_one_counter(self, kind, decay, momentum):
        grads, ours = gradients(1)[:, 0], self.make(kind, decay, momentum)
        vector = torch.linspace(-1, 1, 7, dtype=torch.float64)
        start, opt = vector.clone(), ours.fresh(vector)
        cut = [2, 4, 1]
        second = list(opt["v"].split(cut)) if "v" in opt else []
        for grad in grads:
            ours.fused_(
                list(vector.split(cut)), list(grad.clone().split(cut)), list(opt["m"].split(cut)),
                second, opt["t"], 0.02,
            )  # fmt: skip
        theirs = by_torch(kind, start, grads, 0.02, decay, momentum)
        assert torch.allclose(vector, theirs, rtol=0, atol=1e-12)
        assert opt["t"].item() == STEPS


def test_step_counts_per_run():
    """A run that began later has its own bias correction."""
    ours = Optimizer.from_training(Training(optimizer="adam"))
    grads = gradients(2)
    vector = torch.zeros(2, 7, dtype=torch.float64)
    opt = ours.fresh(vector)
    late = by_torch("adam", torch.zeros(7, dtype=torch.float64), grads[4:, 1], 0.1, 0.0, 0.0)
    for step, grad in enumerate(grads):
        kept = {k: v.clone() for k, v in opt.items()}, vector.clone()
        ours.update_(vector, grad.clone(), opt, torch.full((2,), 0.1, dtype=torch.float64))
        if step < 4:
            vector[1] = kept[1][1]
            for name in opt:
                opt[name][1] = kept[0][name][1]
    assert torch.allclose(vector[1], late, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("decay", "reset", "moves"), [(0, True, False), (0.1, True, True), (0, False, True)]
)
def test_what_can_move_without_a_gradient(decay, reset, moves):
    assert (
        Optimizer.from_training(Training(weight_decay=float(decay))).moves_without_gradient(reset)
        is moves
    )
