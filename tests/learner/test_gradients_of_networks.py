"""Average gradients of many kinds of networks, against autograd sample by sample."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.checks.toy_runs import EXACT, largest_gap, make_clouds
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.learner import gradients
from engram.learner import gradients as outer_module
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.losses import mean
from engram.methods import EWC, MAS, Finetune, Join
from engram.methods.fisher import bernoulli_nll, visible_label_nll
from engram.methods.method import Method
from engram.streams import class_incremental

STREAM = class_incremental(make_clouds((9, 7, 8, 5)))
ORDERS = ([0, 1, 2, 3], [3, 1, 2, 0], [2, 0, 1, 3])
WIDTH = 6


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(WIDTH, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.again(torch.tanh(self.first(x.flatten(1)))))
        return torch.tanh(self.again(h))


class Renamed(Twice):
    """The same layer under two names."""

    def __init__(self, shape: Any) -> None:
        super().__init__(shape)
        self.other = self.again

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.tanh(self.again(self.first(x.flatten(1)))))


class Over(nn.Module):
    """Linear layers on three axes [B, T, d]."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(3, 4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.tanh(self.each(x.flatten(2))).flatten(1)))


class Folded(Over):
    """The same with the second axis folded into the rows."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.each(x.flatten(2).reshape(-1, 3)))
        return torch.relu(self.last(h.reshape(len(x), -1)))


class Unused(nn.Module):
    """A layer that is never called."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.spare = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x.flatten(1)))


class ByHand(nn.Module):
    """Weights of layers without a call of the layer, one of them in two places."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        h = torch.tanh(F.linear(x, self.first.weight, self.first.bias))
        return self.second(h) + h @ self.first.weight


class Mixed(nn.Module):
    """Rows that see each other if they come together."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        return h - 0.5 * h.mean(0)


class Counted(Mixed):
    """A number of rows that enters the arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x.flatten(1))) / (1 + x.shape[0])


class Turned(Mixed):
    """Rows in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x.flatten(1))).flip(0)


class Residual(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x.flatten(1)), inplace=True)
        return h + F.gelu(self.second(h))


class Double(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return slope @ weight, slope.T @ x


class OwnFunction(Mixed):
    """A product that torch does not see as one."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        found: Tensor = torch.tanh(self.first(x)) + Double.apply(x, self.first.weight)
        return found


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x.flatten(1))))


def convolution(shape: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, (1, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4))


def scaled(shape: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Scaled(WIDTH, 4), nn.Softplus(), nn.Dropout(0.3))


class Images(nn.Module):
    """Convolutions and batch norm, then linear layers: one once, one never, one on two rows."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, (2, 1), padding=(1, 0)), nn.BatchNorm2d(4)
        self.wide, self.spare = nn.Linear(4 * 6, 7), nn.Linear(7, 7)
        self.twice = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x))).flatten(1)  # [B, 24]
        h = torch.tanh(self.wide(h))
        both = torch.stack([h, h.cos()], 1)  # [B, 2, 7]
        return torch.relu(self.twice(both)).sum(1)


class Hidden(Images):
    """The wide matrix is used a second time, where torch sees no function."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x))).flatten(1)
        h = torch.tanh(self.wide(h)) + 0.1 * Double.apply(h, self.wide.weight)
        return torch.relu(self.twice(h))


class Swallowing(Images):
    """Catches what is said about its matrix."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x))).flatten(1)
        try:
            h = torch.tanh(h @ self.wide.weight.T)
        except Exception:
            h = h[:, :7]
        return torch.relu(self.twice(h))


def lenet(shape: Any) -> nn.Module:
    from engram.models.lenet import LeNet

    class Small(LeNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (8, 8, 8, 8)))

    return Small((shape[0], shape[1] + 16, shape[2] + 16), hidden=9)


def attention(shape: Any) -> nn.Module:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.MultiheadAttention(3, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(2)
            return self.inside(x, x, x, need_weights=False)[0].flatten(1)  # type: ignore[no-any-return]

    return Attention()


@dataclass(frozen=True, kw_only=True)
class Generates(Method):
    """A further network, which no term of the importance calls."""

    def networks(self, stream: Any) -> dict[str, nn.Module]:
        return {"generator": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, WIDTH))}


def learner(model: Any, method: Method | None = None) -> RunLearner:
    model = {"name": model, "ends": "features"}  # whatever its last layer is
    run = Run(stream=STREAM, method=method or Finetune(), model=model, training=EXACT, seed=3)
    one = Engine([run], device="cpu").learner(run)
    one.open_classes(1)
    return one


def by_loop(one: RunLearner, term: Any, transform: Any) -> Tensor:
    """Plain autograd in eval mode, one sample at a time."""
    total = torch.zeros_like(one.vector)
    for row in one.task.train.split(1):
        vector = one.vector.clone().requires_grad_(True)
        net = FunctionalNet(one.networks, vector, one.buffers, training=False)
        total += transform(torch.autograd.grad(term(net, one.batch(row)), vector)[0])
    return torch.where(one.free, total / len(one.task.train), 0.0)


def tries(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the pass for linear layers was taken, call by call."""
    seen: list[bool] = []
    original = gradients.linear_sums

    def spy(*args: Any) -> Tensor | None:
        found = original(*args)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(gradients, "linear_sums", spy)
    return seen


IRREGULAR = [Twice, Renamed, Over, Folded, ByHand, Mixed, Counted, Turned, OwnFunction, Tied]
LINEAR = [Unused, Residual, scaled]


@pytest.mark.parametrize("transform", [torch.square, torch.abs], ids=["square", "abs"])
@pytest.mark.parametrize("term", [visible_label_nll, bernoulli_nll])
class TestImportanceIsThatOfSingleSamples:
    @pytest.mark.parametrize("model", [*IRREGULAR, convolution, attention])
    @pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention maps slowly
    def test_layers_used_twice_or_otherwise(self, model, term, transform, monkeypatch):
        passes = tries(monkeypatch)
        one = learner(model)
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform)) < 1e-12
        assert not any(passes)

    @pytest.mark.parametrize("model", LINEAR)
    def test_layers_used_once_or_never(self, model, term, transform, monkeypatch):
        passes = tries(monkeypatch)
        one = learner(model)
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform)) < 1e-12
        assert passes
        assert all(passes)

    def test_a_generator_that_is_not_called(self, term, transform, monkeypatch):
        passes = tries(monkeypatch)
        one = learner(Residual, Join(Finetune(), Generates()))
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform)) < 1e-12
        assert not any(v.any() for k, v in one.layout(found).items() if k.startswith("generator"))
        assert all(passes)


def outer(monkeypatch: pytest.MonkeyPatch, large: int = 1) -> list[tuple[str, ...]]:
    """The matrices whose gradients were outer products, call by call; all of them are large."""
    monkeypatch.setattr(outer_module, "LARGE_MATRIX", large)
    seen: list[tuple[str, ...]] = []
    original = gradients.outer_sums

    def spy(*args: Any) -> Tensor:
        seen.append(args[-1].names)
        return original(*args)

    monkeypatch.setattr(gradients, "outer_sums", spy)
    return seen


@pytest.mark.parametrize("transform", [torch.square, torch.abs], ids=["square", "abs"])
class TestLargeMatricesBesideOtherLayers:
    """Outer products where a matrix meets a sample once, its own gradient elsewhere."""

    @pytest.mark.parametrize(
        ("model", "names"),
        [
            (Images, ("net.backbone.wide.weight", "net.backbone.spare.weight", "net.head.weight")),
            (Hidden, None), (Swallowing, None), (convolution, None), (lenet, None),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("chunk", [1, 1 << 26])
    def test_against_autograd(self, model, names, chunk, transform, monkeypatch):
        taken = outer(monkeypatch)
        monkeypatch.setattr(outer_module, "MAX_ENTRIES", chunk)
        one = learner(model)
        for term in (visible_label_nll, bernoulli_nll):
            found = one.average_gradient(term, transform=transform)
            assert largest_gap(found, by_loop(one, term, transform)) < 1e-12
        if names is not None:
            assert {frozenset(each) for each in taken} == {frozenset(names)}
        if model in (Hidden, Swallowing):
            assert not any("net.backbone.wide.weight" in each for each in taken)

    @pytest.mark.parametrize("model", [*IRREGULAR, *LINEAR, attention])
    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    def test_whatever_else_a_network_does(self, model, transform, monkeypatch):
        taken = outer(monkeypatch)
        monkeypatch.setattr(gradients, "is_only_linear", lambda networks: False)
        one = learner(model)
        found = one.average_gradient(visible_label_nll, transform=transform)
        assert largest_gap(found, by_loop(one, visible_label_nll, transform)) < 1e-12
        assert taken  # the head is always used once

    @pytest.mark.parametrize("term", ["decayed", "sharp", "turned", "latent"])
    def test_terms(self, term, transform, monkeypatch):
        outer(monkeypatch)
        one = learner(Images)
        used = globals()[term]
        found = one.average_gradient(used, transform=transform)
        assert largest_gap(found, by_loop(one, used, transform)) < 1e-12

    def test_in_lockstep(self, transform, monkeypatch):
        """The passes of several runs are one mapped pass."""
        method = EWC(strength=0.1) if transform is torch.square else MAS(strength=0.1)
        streams = [class_incremental(make_clouds((9, 7, 8, 5)), order=o) for o in ORDERS]
        runs = [
            Run(stream=stream, method=method, model=Images, training=EXACT, seed=seed)
            for seed, stream in enumerate(streams)
        ]
        ends = []
        for large, together in ((1, True), (1, False), (1 << 60, False)):
            taken = outer(monkeypatch, large)
            engine = Engine(runs, device="cpu", together=together)
            ends.append([one.learner.state for one in engine.stages() if one.stage == 1])
            assert bool(taken) == (large == 1)
        for other in ends[1:]:
            assert all(largest_gap(a, b) < 1e-10 for a, b in zip(ends[0], other, strict=True))


def decayed(net: Any, batch: Any) -> Tensor:
    return visible_label_nll(net, batch) + net.vector.square().sum()


def sharp(net: Any, batch: Any) -> Tensor:
    return visible_label_nll(net, batch) + net.params["net.head.weight"].square().sum()


def turned(net: Any, batch: Any) -> Tensor:
    return mean(
        net(batch.x.flip(0), batch.w).logits.square().sum(-1) * batch.x[:, 0, 0, 0], batch.w
    )


def latent(net: Any, batch: Any) -> Tensor:
    features = net(batch.x, batch.w).features
    return mean(net.head(torch.sin(features)).square().sum(-1), batch.w)


@pytest.mark.parametrize("term", [decayed, sharp, turned, latent])
def test_terms_that_do_more_than_call_the_network(term):
    one = learner(Residual)
    for transform in (torch.square, torch.abs):
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform)) < 1e-12


def test_a_teacher_beside_the_network(monkeypatch):
    passes = tries(monkeypatch)
    one = learner(Residual)
    teacher = one.snapshot()
    teacher["vector"] = teacher["vector"] + 0.1

    def term(net: Any, batch: Any) -> Tensor:
        away = net(batch.x, batch.w).logits - net.frozen(teacher)(batch.x).logits
        return mean(away.square().sum(-1), batch.w)

    found = one.average_gradient(term)
    assert largest_gap(found, by_loop(one, term, torch.square)) < 1e-12
    assert all(passes)


ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Softplus, lambda: nn.Softmax(-1),
    lambda: nn.LayerNorm(5, elementwise_affine=False), nn.Identity, lambda: nn.ReLU(inplace=True),
)  # fmt: skip


@dataclass
class Random:
    """A network drawn at random: layers of equal width in any order, some used again."""

    seed: int

    def __call__(self, shape: Any) -> nn.Module:
        draw = random.Random(self.seed)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(WIDTH, 5, bias=draw.random() < 0.7)
                count = draw.randint(1, 3)
                self.layers = nn.ModuleList(
                    nn.Linear(5, 5, bias=draw.random() < 0.7) for _ in range(count)
                )
                self.way = [draw.randrange(count) for _ in range(draw.randint(0, 3))]
                self.between = nn.ModuleList(draw.choice(ACTIVATIONS)() for _ in self.way)
                self.skips = [draw.random() < 0.3 for _ in self.way]

            def forward(self, x: Tensor) -> Tensor:
                h = self.first(x.flatten(1))
                for step, (place, skip) in enumerate(zip(self.way, self.skips, strict=True)):
                    y = self.between[step](self.layers[place](h))
                    h = h + y if skip else y
                return h

        return Net()


@pytest.mark.parametrize("seed", range(24))
def test_networks_at_random(seed):
    one = learner(Random(seed))
    for term, transform in itertools.product(
        (visible_label_nll, bernoulli_nll), (torch.square, torch.abs)
    ):
        found = one.average_gradient(term, transform=transform)
        assert largest_gap(found, by_loop(one, term, transform)) < 1e-12


def test_random_networks_take_both_ways(monkeypatch):
    passes = tries(monkeypatch)
    for seed in range(24):
        learner(Random(seed)).average_gradient(visible_label_nll)
    assert 4 < sum(passes) < 20


def test_noise_of_a_term_is_that_of_its_group():
    def noisy(net: Any, batch: Any) -> Tensor:
        logits = net(batch.x, batch.w).logits
        shift = keys.normal(batch.key, *logits.shape).to(logits.dtype)
        return mean((logits * shift).sum(-1), batch.w)

    one, other = learner(Residual), learner(Residual)
    whole = one.average_gradient(noisy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engram.learner.learner.EVAL_ROWS", 3)
        assert largest_gap(other.average_gradient(noisy), whole) < 1e-12
