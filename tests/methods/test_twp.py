from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from engram.data.dataset import Data
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.memory import Memory
from engram.methods.finetune import Finetune
from engram.methods.quadratic_penalty import quadratic_penalty
from engram.methods.twp import TWP, attention, attention_norm, find_graph_layers
from engram.streams import Stream, class_incremental
from tests.methods import small

EDGES = torch.tensor([[0, 1], [1, 0]])
GCN = {"name": "gcn", "edges": [(1, 2), (2, 3)], "width": 4, "hidden": 6}
ONCE = Training(
    precision="float64", optimizer="sgd", lr=0.005, momentum=0.0, batch_size=0, epochs=3,
    loss="balanced",
)  # fmt: skip


def skeletons() -> Data:
    rng = np.random.default_rng(0)
    sizes = (9, 5, 8, 6)
    y = np.repeat(np.arange(4), sizes)
    x = (rng.standard_normal((4, 2, 3, 3))[y] + rng.standard_normal((len(y), 2, 3, 3))).astype("f4")
    return Data.from_arrays(x, y, test=(x, y))


DATA = skeletons()


def stream(seed: int | None = None) -> Stream:
    return class_incremental(DATA, classes_per_task=2, seed=seed)


def after(method: Any, stage: int = -1, training: Training = ONCE) -> RunLearner:
    return small.after(method, stage, training, on=stream(), model=GCN)


class TestGoldens:
    def derivative(self, norm: str, softmax: bool = False) -> tuple[float, float]:
        weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        z = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64) * weight
        value = attention_norm(attention(z, EDGES, softmax), torch.ones(1).double(), norm)
        (slope,) = torch.autograd.grad(value, weight)
        return float(value.detach()), float(slope)

    def test_attention_of_two_nodes(self) -> None:  # [T-W1]
        z = torch.tensor([[[0.5], [1.0]]])
        assert torch.allclose(attention(z, EDGES), torch.tensor([[0.380797, 0.462117]]), atol=1e-5)
        assert self.derivative("l2") == pytest.approx((0.598798, 2.071607), abs=1e-5)
        assert self.derivative("l2_squared") == pytest.approx((0.358559, 2.480947), abs=1e-5)

    def test_softmax_over_one_incoming_edge_is_constant(self) -> None:  # [T-W1]
        z = torch.tensor([[[0.5], [1.0]]])
        assert attention(z, EDGES, softmax=True).tolist() == [[1, 1]]
        assert self.derivative("l2", softmax=True)[1] == 0

    def test_softmax_sums_to_one_at_every_target(self) -> None:
        z = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
        edges = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 1, 1, 2]])
        shares = attention(z, edges, softmax=True)
        assert torch.allclose(shares[:, [0, 2, 3]].sum(-1), torch.ones(3))
        assert torch.allclose(shares[:, [1, 4]], torch.ones(3, 2))

    def test_softmax_of_a_target_does_not_depend_on_the_height_of_others(self) -> None:
        edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        z = torch.tensor([200.0, 200.0, 1.0, 1.0])[None, :, None]
        assert attention(z, edges, softmax=True).tolist() == [[1, 1, 1, 1]]

    def test_softmax_and_its_slope_over_wide_spreads(self) -> None:
        edges = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 0, 3, 4, 3, 2]])
        heights = torch.tensor([400.0, 300.0, 1.0, -2.0, 0.5], dtype=torch.float64)
        z = heights[None, :, None].clone().requires_grad_()

        def by_target(z: Tensor) -> Tensor:
            e = torch.nn.functional.leaky_relu(attention(z, edges), 0.2)[0]
            shares = torch.zeros_like(e)
            for node in range(5):
                here = edges[1] == node
                if here.any():
                    shares[here] = torch.softmax(e[here], -1)
            return shares

        expected, found = by_target(z), attention(z, edges, softmax=True)[0]
        assert torch.allclose(found, expected, atol=1e-12)
        assert 0.01 < expected[2] < 0.99  # a target of two edges, hundreds below the highest
        weights = torch.arange(1.0, 7.0, dtype=torch.float64)
        (slope,) = torch.autograd.grad((expected * weights).sum(), z)
        (own,) = torch.autograd.grad((found * weights).sum(), z)
        assert slope.abs().sum() > 0.01
        assert torch.allclose(own, slope, atol=1e-12)

    def test_softmax_mapped_over_runs_and_traced(self) -> None:
        edges = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 1, 1, 2]])
        z = 30 * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))

        def slopes(z: Tensor) -> Tensor:
            return torch.func.grad(lambda one: attention(one, edges, True).square().sum())(z)

        mapped = torch.func.vmap(slopes)
        apart = torch.stack([slopes(one) for one in z])
        assert torch.isfinite(apart).all()
        assert torch.allclose(mapped(z), apart, atol=1e-6)
        assert torch.allclose(make_fx(mapped)(z)(z), apart, atol=1e-6)

    def test_penalty(self) -> None:  # [T-W2]
        importance = torch.tensor([100 * 0.04 + 10000 * 0.01])
        found = quadratic_penalty(torch.tensor([0.1]), torch.zeros(1), importance, TWP().factor())
        assert found.item() == pytest.approx(1.04)


def by_hand(learner: RunLearner, batch: Any) -> tuple[Tensor, Tensor]:
    """Gradients of the task loss and of ||e||, from the weights themselves."""
    vector = learner.vector.clone().requires_grad_(True)
    net = FunctionalNet(learner.networks, vector, learner.buffers, training=False)
    (loss,) = torch.autograd.grad(net.task(batch), vector)
    weight = learner.layout(vector)["net.backbone.layers.0.linear.weight"]  # [D, C * T]
    nodes = batch.x.permute(0, 3, 1, 2).flatten(2)  # [B, V, C * T]
    z = nodes @ weight.T
    e = [(z[:, i] * torch.tanh(z[:, j])).sum(-1) for i, j in ((0, 1), (1, 2), (1, 0), (2, 1))]
    (top,) = torch.autograd.grad(torch.stack(e).norm(), vector)
    return loss, top


class TestImportance:
    @pytest.mark.parametrize("accumulate", [False, True])
    def test_by_hand(self, accumulate: bool) -> None:
        method = TWP(strength=3.0, top=0.5, accumulate=accumulate)
        learner = after(method, 0)
        loss, top = by_hand(learner, learner.batch())
        second = (top + loss if accumulate else top).square()
        expected = 3.0 * loss.square() + 0.5 * second
        assert torch.allclose(learner.state["importance"], expected, atol=1e-13)
        assert bool(top.any())
        assert bool(loss.any())

    def test_variants_differ(self) -> None:
        found = [
            after(TWP(strength=0.1, top=0.1, **options), 0).state["importance"]
            for options in (
                {}, {"top_norm": "l2_squared"}, {"layers": "all"}, {"edge_softmax": True},
                {"base": "mas"},
            )
        ]  # fmt: skip
        for i, one in enumerate(found):
            for other in found[:i]:
                assert not torch.allclose(one, other)

    def test_all_layers_are_read(self) -> None:
        learner = after(TWP(strength=0.0, top=1.0, layers="all"), 0)
        assert find_graph_layers(learner.networks, "all")[0][1] == "net.backbone.layers.1.linear"
        views = learner.layout(learner.state["importance"])
        assert bool(views["net.backbone.layers.1.linear.weight"].any())
        first = after(TWP(strength=0.0, top=1.0), 0)
        views = first.layout(first.state["importance"])
        assert not views["net.backbone.layers.1.linear.weight"].any()

    def test_batch_statistics_stay(self) -> None:
        learner = after(Finetune(), 0)
        before = learner.snapshot()["buffers"]
        TWP(strength=1.0, top=1.0).finish(learner, learner.task)
        assert before
        assert all(torch.equal(value, learner.buffers[name]) for name, value in before.items())


class TestRun:
    def test_without_strengths_it_is_finetuning(self) -> None:
        assert small.is_finetuning(TWP(strength=0, top=0), model=GCN, on=stream())
        assert not small.is_finetuning(TWP(strength=0, top=0.01), model=GCN, on=stream())

    def test_penalty_is_zero_right_after_a_task(self) -> None:
        method = TWP(strength=2.0, top=0.1)
        learner = after(method, 0)
        value, slope = small.penalty_of(method, learner, learner.vector)
        assert value == 0
        assert not slope.any()
        assert small.penalty_of(method, learner, small.moved(learner))[0] > 0

    @pytest.mark.parametrize(
        "options",
        [
            {}, {"beta": "double_backward"}, {"memory": Memory(per_class=2)}, {"steps": "twice"},
            {"steps": "cglb", "accumulate": True, "batch_statistics": True},
        ],
    )  # fmt: skip
    def test_lockstep_is_the_loop(self, options: dict[str, Any]) -> None:
        methods = [TWP(strength=0.5, top=t, **options) for t in (0.01, 0.01, 0.05)]
        streams = [stream(seed) for seed in range(3)]
        assert small.gap(methods, ONCE, model=GCN, streams=streams) < 1e-10

    def test_double_backward_shrinks_the_gradient(self) -> None:
        quiet = TWP(strength=1.0, top=0.0, beta="double_backward", beta_strength=0.5)
        loud = TWP(strength=1.0, top=0.0)
        found = {}
        for method in (quiet, loud):
            learner = after(method, 0)
            found[method.beta] = by_hand(learner, learner.batch())[0].norm()
        assert found["double_backward"] < 0.98 * found["off"]

    def test_other_models_are_refused_before_training(self) -> None:
        with pytest.raises(BadArgument, match=r"model: expected a graph network.*got 'MLP'"):
            small.after(TWP(), 0)


STGCN = {"name": "stgcn", "edges": [(1, 2), (2, 3)], "width": 2, "tk": 3}


class TestFramesApart:
    """ST-GCN keeps frames apart: every frame has an attention along every bone."""

    def after(self, method: Any, stage: int = -1) -> RunLearner:
        return small.after(method, stage, ONCE, on=stream(), model=STGCN)

    def test_by_hand(self) -> None:
        learner = self.after(TWP(strength=0.0, top=0.5), 0)
        batch = learner.batch()
        vector = learner.vector.clone().requires_grad_(True)
        weights = learner.layout(vector)
        norm = {name.rsplit(".", 1)[1]: value for name, value in learner.buffers.items()
                if ".data_norm." in name}  # fmt: skip
        x = batch.x.permute(0, 2, 3, 1)  # [B, T, V, C]
        flat = x.flatten(2)
        scale = weights["net.backbone.data_norm.weight"] / (norm["var"] + 1e-5).sqrt()
        flat = (flat - norm["mean"]) * scale + weights["net.backbone.data_norm.bias"]
        z = flat.reshape(x.shape) @ weights["net.backbone.blocks.0.spatial.weight"].flatten(1).T
        pairs = ((0, 1), (1, 2), (1, 0), (2, 1))
        e = torch.stack([(z[:, :, i] * torch.tanh(z[:, :, j])).sum(-1) for i, j in pairs])
        assert e.shape == (4, len(batch.x), 3)
        (top,) = torch.autograd.grad(e.norm(), vector)
        assert bool(top.any())
        assert torch.allclose(learner.state["importance"], 0.5 * top.square(), atol=1e-12)

    def test_a_network_nobody_listens_to_is_the_same(self) -> None:
        learner = self.after(Finetune(), 0)
        batch = learner.batch()
        net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
        paths, _ = find_graph_layers(learner.networks, "all")
        assert paths == ("net.backbone.blocks.0.mapped", "net.backbone.blocks.1.mapped")
        heard = net(batch.x, batch.w, want=paths)
        assert heard.layers[paths[1]].shape == (len(batch.x), 3, 3, 6)
        assert torch.equal(heard.logits, net(batch.x, batch.w).logits)

    def test_lockstep_is_the_loop(self) -> None:
        methods = [TWP(strength=0.5, top=t, edge_softmax=True) for t in (0.01, 0.05)]
        streams = [stream(seed) for seed in range(2)]
        assert small.gap(methods, ONCE, model=STGCN, streams=streams) < 1e-10


class TestWide:
    def test_attention_of_the_input_has_no_importance(self) -> None:
        wide = {**GCN, "width": 7}  # the input of a joint has 2 x 3 numbers
        options = {"strength": 0.0, "top": 1.0}
        for width, wanted in ((7, False), (6, False), (4, True)):
            model = {**wide, "width": width}
            one = small.after(TWP(**options, wide="input"), 0, ONCE, on=stream(), model=model)
            assert bool(one.state["importance"].any()) == wanted
        mapped = small.after(TWP(**options), 0, ONCE, on=stream(), model=wide)
        assert bool(mapped.state["importance"].any())

    def test_uncleared_gradients_leave_the_first_importance_twice(self) -> None:
        model = {**GCN, "width": 7}
        method = TWP(strength=3.0, top=0.5, accumulate=True, wide="input")
        learner = small.after(method, 0, ONCE, on=stream(), model=model)
        loss, _ = by_hand(learner, learner.batch())
        assert torch.allclose(learner.state["importance"], 3.5 * loss.square(), atol=1e-12)

    def test_refused_before_training(self) -> None:
        with pytest.raises(BadArgument, match="wide: expected 'map', the first layer"):
            small.after(TWP(wide="input"), 0, on=stream(), model=STGCN)


class TestSteps:
    """Steps as CGLB takes them, against its order of backward passes in plain torch."""

    EVERY: ClassVar[dict[str, Any]] = {
        "strength": 0.5, "top": 0.05, "edge_softmax": True, "accumulate": True,
        "batch_statistics": True,
    }  # fmt: skip

    @staticmethod
    def twin(method: TWP, begins: list[dict[str, Any]], *, clears: bool) -> Tensor:
        """The weights after all tasks, from where the first began and the rows of each."""
        weights = begins[0]["vector"].clone().requires_grad_(True)
        buffers = begins[0]["buffers"]
        optimizer = torch.optim.SGD([weights], lr=ONCE.lr)
        held: list[tuple[Tensor, Tensor]] = []

        def net() -> FunctionalNet:
            return FunctionalNet(begins[0]["networks"], weights, buffers, training=True)

        for task, begin in enumerate(begins):
            optimizer.zero_grad()
            if task:  # the importances of the task before, which leave their gradients behind
                net().task(begins[task - 1]["batch"]).backward()
                first = weights.grad.clone().square()
                method.topology(net(), begins[task - 1]["batch"]).backward()
                second = weights.grad.clone().square()
                importance = method.strength * first + method.top * second
                held.append((importance, weights.detach().clone()))
            for _ in range(int(ONCE.epochs)):
                if clears:
                    optimizer.zero_grad()
                one = net()
                loss = one.task(begin["batch"])
                loss.backward(retain_graph=True)
                for importance, anchor in held:
                    loss = loss + (importance * (weights - anchor).square()).sum()
                loss.backward()
                optimizer.step()
                buffers = {name: value.detach() for name, value in one.buffers.items()}
        return weights.detach()

    @pytest.mark.parametrize("steps", ["twice", "cglb"])
    def test_plain_torch(self, steps: str) -> None:
        begins: list[dict[str, Any]] = []

        class Watched(TWP):
            def start(self, learner: RunLearner, task: Any) -> None:
                super().start(learner, task)
                kept = {"networks": learner.networks, "batch": learner.batch()}
                begins.append(kept | learner.snapshot())

        method = Watched(steps=steps, **self.EVERY)
        found = after(method, -1).vector
        assert len(begins) == 2
        expected = self.twin(method, begins, clears=steps == "twice")
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        other = self.twin(method, begins, clears=steps != "twice")
        assert not torch.allclose(found, other, rtol=0, atol=1e-4)

    def test_only_uncleared_steps_bring_verbs(self) -> None:
        assert not any(TWP(steps="twice").implements(verb) for verb in ("gradient", "step"))
        assert all(TWP(steps="cglb").implements(verb) for verb in ("gradient", "step", "loss"))
        assert "uncleared" not in after(TWP(strength=0.1, top=0.1), 0).state


@pytest.mark.parametrize(
    "options,words",
    [
        ({"steps": "base"}, "steps: unknown name"),
        ({"strength": -1.0}, "strength"),
        ({"top": -1.0}, "top"),
        ({"beta": "on"}, "beta: unknown name"),
        ({"beta_strength": -0.1}, "beta_strength"),
        ({"top_norm": "l1"}, "top_norm"),
        ({"base": "ewc"}, "base"),
        ({"wide": "output"}, "wide: unknown name"),
        ({"wide": "input", "layers": "all"}, "wide: expected 'map' with layers='all'"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        TWP(**options)
