"""La-MAML against loops in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from engram.errors import BadArgument
from engram.methods import LaMAML
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods import small
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, rows_of, same_memory

METHOD = LaMAML(rate=0.05, eta=0.5, clip=0.3, memory=MEMORY)


@dataclass
class LaMAMLTwin(ReservoirTwin):
    """Differentiates the loss ahead by weights and learning rates, slopes held constant."""

    steps: int = 3
    rates: dict[torch.nn.Parameter, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:  # the optimiser has no part in it, nor has its weight decay
        self.training = replace(self.training, weight_decay=0.0)

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        used = self.net.in_use(stage + 1)
        with torch.no_grad():
            self.net(self.x(rows), stage + 1)  # running statistics follow the weights themselves
        for p in used:
            self.rates.setdefault(p, torch.full_like(p, METHOD.rate).requires_grad_(True))
        rates = [self.rates[p] for p in used]
        both = torch.cat([rows, rows_of(self.drawn(stage, key, 0)) if self.slots else rows[:0]])
        losses, fast, count = [], list(used), self.steps or len(rows)
        for part in filter(len, (rows[i::count] for i in range(count))):
            slopes = torch.autograd.grad(
                self.cost(fast, used, part, stage), fast, retain_graph=True
            )
            moves = zip(fast, slopes, rates, strict=True)
            fast = [w - s.clamp(-METHOD.clip, METHOD.clip) * a.relu() for w, s, a in moves]
            losses.append(self.cost(fast, used, both, stage))
        found = torch.autograd.grad(torch.stack(losses).mean(), [*used, *rates])
        slopes, ascents = found[: len(used)], found[len(used) :]
        with torch.no_grad():
            for a, s in zip(rates, shortened(ascents), strict=True):
                a -= METHOD.eta * s
            for p, a, s in zip(used, rates, shortened(slopes), strict=True):
                p -= a.relu() * s
        return sum(0 * p.sum() for p in used), torch.zeros(len(rows))

    def cost(self, fast: list[Tensor], used: list[Tensor], rows: Tensor, stage: int) -> Tensor:
        """The loss with other weights, which leaves running statistics alone."""
        names = {id(p): name for name, p in self.net.named_parameters()}
        weights = {names[id(p)]: other for p, other in zip(used, fast, strict=True)}
        weights |= {name: value.clone() for name, value in self.net.named_buffers()}
        logits = functional_call(self.net, weights, (self.x(rows), stage + 1))
        return F.cross_entropy(logits, self.y(rows))


def shortened(parts: tuple[Tensor, ...]) -> list[Tensor]:
    length = torch.cat([part.flatten() for part in parts]).norm()
    return [part * min(1.0, METHOD.clip / float(length)) for part in parts]


@dataclass
class Whole(LaMAMLTwin):
    steps: int = 1


@dataclass
class RowByRow(LaMAMLTwin):
    steps: int = 0


KINDS = [(LaMAMLTwin, 3, "plain"), (Whole, 1, "normed"), (RowByRow, 0, "plain")]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(("kind", "steps", "model"), KINDS)
def test_weights_and_memory_are_those_of_a_plain_loop(kind, steps, model, together):
    count, method = 0, replace(METHOD, steps=steps)
    for twin, stage in beside(method, kind, DECAYED, model=model, together=together):
        assert away(twin, stage.learner) < 1e-10
        assert same_memory(twin, stage.learner)
        count += 1
    assert count == 9


def test_rates_grow_where_steps_help_and_none_is_used_below_zero():
    learner = small.after(LaMAML(rate=0.05, eta=2.0, memory=MEMORY))
    rates = learner.state["rates"]
    assert float(rates.max()) > 0.06
    assert float(rates.min()) < 0.0
    fixed = small.after(LaMAML(rate=0.05, eta=0.0, memory=MEMORY)).state["rates"]
    assert bool((fixed == 0.05).all())


@pytest.mark.parametrize(
    "values",
    [{"rate": 0.0}, {"eta": -1.0}, {"steps": -1}, {"clip": -1.0}, {"size": -1}, {"memory": 5}],
)
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        LaMAML(**values)
