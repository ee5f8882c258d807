from __future__ import annotations

import copy
from operator import attrgetter

import pytest
import torch
from torch import nn

from engram.checks.toy_runs import MODELS, SAMPLE, largest_gap, trees_equal
from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.bound_module import BoundNet
from engram.learner.networks import FunctionalNet
from engram.learner.parameter_layout import Layout, Networks
from engram.models import build
from tests.refusals import refuses


def networks(model: str = "normed", seed: int = 0) -> Networks:
    net = build(MODELS[model], sample_shape=SAMPLE, classes=4, seed=seed)
    return Networks({"net": net}).to(torch.device("cpu"), torch.float64)


def with_generator() -> Networks:
    net = build(MODELS["normed"], sample_shape=SAMPLE, classes=4, seed=0)
    own = {"net": net, "generator": nn.Linear(5, 2)}
    return Networks(own).to(torch.device("cpu"), torch.float64)


X = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, *SAMPLE)
ONES = torch.ones(5, dtype=torch.float64)


class TestViews:
    """`net.views`: rows beside changed copies of themselves."""

    def batch(self, rows: int = 4) -> Batch:
        number = torch.arange(rows)
        x = torch.rand(4, 3, 8, 8, dtype=torch.float64, generator=torch.manual_seed(1))[:rows]
        return Batch(
            x=x, y=number[:, None], w=torch.ones(rows), stage=number, old=number * 0,
            open=torch.ones(rows, 4) > 0, slot=number, opened=torch.zeros(4), now=torch.tensor(0),
            key=torch.tensor(11), values={"logits": number.double()},
        )  # fmt: skip

    def net(self) -> FunctionalNet:
        shared = networks()
        return FunctionalNet(shared, *shared.initial())

    @pytest.mark.parametrize("original", [True, False])
    def test_each_row_stands_beside_its_views(self, original):
        given = self.batch()
        found = self.net().views(given, 3, ("flip", "resized_crop"), original=original)
        assert found.target.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert found.values["logits"].tolist() == found.target.tolist()
        parts = found.x.unflatten(0, (4, 3))
        assert torch.equal(parts[:, 0], given.x) == original
        pairs = [parts[:, i] - parts[:, j] for i, j in ((0, 1), (0, 2), (1, 2))]
        assert all(bool((gap.abs().amax((1, 2, 3)) > 0).all()) for gap in pairs)

    def test_views_do_not_depend_on_the_rows_beside(self):
        changes = ("resized_crop", "flip")
        whole = self.net().views(self.batch(), 3, changes)
        assert torch.equal(self.net().views(self.batch(2), 3, changes).x, whole.x[:6])

    def test_flips_mirror(self):
        given = self.batch()
        turned = self.net().views(given, 2, ("flip",)).x[1::2]
        kept = [torch.equal(a, b) for a, b in zip(turned, given.x, strict=True)]
        mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(turned, given.x, strict=True)]
        assert kept == [not one for one in mirrored]

    @pytest.mark.parametrize(
        ("options", "argument"),
        [({"changes": ("turn",)}, "changes"), ({"count": 0}, "count"), ({}, "batch")],
    )
    def test_bad_views(self, options, argument):
        given = self.batch() if options else self.batch()._replace(x=torch.zeros(4, 3))
        with refuses(argument):
            self.net().views(given, **options)


class TestFunctionalNet:
    def test_statistics_come_out(self):
        shared = networks()
        vector, buffers = shared.initial()
        net = FunctionalNet(shared, vector, buffers)
        net(X, ONES)
        assert not torch.equal(
            net.buffers["net.backbone.norm.mean"], buffers["net.backbone.norm.mean"]
        )
        assert trees_equal(buffers, shared.initial()[1])

    def test_the_same_tensor_is_passed_once(self):
        shared = networks()
        net = FunctionalNet(shared, *shared.initial())
        assert net(X, ONES) is net(X, ONES)
        again = net(X.clone(), ONES)
        assert again is not net(X, ONES)

    def test_layers_on_demand(self):
        shared = networks()
        net = FunctionalNet(shared, *shared.initial())
        plain = net(X, ONES)
        path = "net.backbone.first"
        wanted = net(X, ONES, want=(path,))
        weights = shared.layout(shared.initial()[0])
        by_hand = X.flatten(1) @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]
        assert torch.allclose(wanted.layers[path], by_hand)
        assert torch.allclose(wanted.logits, plain.logits)
        assert net(X, ONES) is wanted  # it has all that is asked for

    def test_layers_of_older_weights(self):
        shared = networks()
        vector, buffers = shared.initial()
        path, older = "net.backbone.first", {"vector": 2 * vector, "buffers": buffers}
        net = FunctionalNet(shared, vector, buffers)
        found = net.frozen(older)(X, want=(path,))
        weights = shared.layout(older["vector"])
        by_hand = X.flatten(1) @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]
        assert torch.allclose(found.layers[path], by_hand)
        assert torch.equal(found.logits, net.frozen(older)(X).logits)
        assert torch.allclose(net.detached()(X, want=(path,)).layers[path], by_hand / 2)

    @pytest.mark.parametrize("way", ["plain", "frozen"])
    def test_layers_that_there_are_not(self, way):
        shared = networks()
        vector, buffers = shared.initial()
        net = FunctionalNet(shared, vector, buffers)
        ask = net if way == "plain" else net.frozen({"vector": vector, "buffers": buffers})
        with pytest.raises(
            BadArgument, match=r"want: unknown name .*did you mean 'net\.backbone\."
        ):
            ask(X, want=("net.backbone.frist",))

    def test_frozen_is_in_eval_mode_and_has_no_gradient(self):
        shared = networks()
        vector, buffers = shared.initial()
        net = FunctionalNet(shared, vector.clone().requires_grad_(True), buffers)
        snapshot = {"vector": vector, "buffers": buffers}
        answer = net.frozen(snapshot)(X)
        assert not answer.logits.requires_grad
        assert torch.allclose(net.frozen(snapshot)(X[:1]).logits, answer.logits[:1])
        assert trees_equal(net.buffers, buffers)

    @pytest.mark.parametrize("bound", [False, True])
    def test_parts_and_tensors_are_attributes(self, bound):
        shared = with_generator()
        vector, buffers = shared.initial()
        net = (BoundNet if bound else FunctionalNet)(shared, vector, buffers)
        latent, output = net.root(X), net(X)
        assert torch.allclose(net.top(latent).logits, output.logits)
        assert torch.allclose(net.head(output.features), output.logits)
        weight, bias = net.params.generator.weight, net.params.generator.bias
        assert weight is net.params["generator.weight"]
        assert torch.allclose(net.generator(ONES[None]), ONES[None] @ weight.T + bias)
        assert net.params.head.weight.shape == (4, shared.train.get_submodule("net").features)
        assert torch.equal(
            net.params.backbone["first.weight"], net.params["net.backbone.first.weight"]
        )
        assert net.generator.in_features == 5

    def test_parts_of_older_weights(self):
        shared = with_generator()
        vector, buffers = shared.initial()
        net = FunctionalNet(shared, vector, buffers)
        older = net.frozen({"vector": 2 * vector, "buffers": buffers})
        assert torch.allclose(older.generator(ONES[None]), 2 * net.generator(ONES[None]))
        assert torch.allclose(net.detached().generator(ONES[None]), net.generator(ONES[None]))

    def test_rows_of_weight_0_stay_out_of_statistics(self):
        shared = networks()
        net = FunctionalNet(shared, *shared.initial())
        w = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        assert torch.allclose(net.backbone(X, w=w)[:3], net.backbone(X[:3]))
        assert not torch.allclose(net.backbone(X)[:3], net.backbone(X[:3]))

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("heda", "net has no 'heda'; .* generator, backbone, head"),
            ("at", r"net\.generator\.decode\(z\)"),
            ("generator.weight", r"net\.params\.generator\.weight"),
            ("generator.decode", "'Linear' object has no attribute 'decode'"),
            ("params.generator.wieght", "no tensor is called 'wieght'; .* weight, bias"),
        ],
    )
    def test_attributes_that_there_are_not(self, path, message):
        shared = with_generator()
        net = FunctionalNet(shared, *shared.initial())
        with pytest.raises(AttributeError, match=message):
            attrgetter(path)(net)

    def test_a_copy_has_the_same_parts(self):
        shared = with_generator()
        net = FunctionalNet(shared, *shared.initial())
        assert torch.equal(copy.copy(net).generator(ONES[None]), net.generator(ONES[None]))

    def test_penalties_are_told_apart(self):
        shared = networks("plain")
        vector, buffers = shared.initial()
        weights, penalty = (vector.clone().requires_grad_(True) for _ in range(2))
        net = FunctionalNet(shared, weights, buffers, penalty=penalty)
        assert not net.touched
        loss = net(X, ONES).logits.sum() + net.vector.square().sum()
        assert net.touched
        data, own = torch.autograd.grad(loss, (weights, penalty))
        assert torch.allclose(own, 2 * vector)
        assert not torch.allclose(data, torch.zeros_like(data))

    def test_every_pass_draws_its_own_noise(self):
        shared = networks("dropped")
        net = FunctionalNet(shared, *shared.initial(), key=5)
        first, second = net(X.clone(), ONES).features, net(X.clone(), ONES).features
        assert not torch.equal(first, second)
        again = FunctionalNet(shared, *shared.initial(), key=5)
        assert torch.equal(again(X.clone(), ONES).features, first)


class TestBoundNet:
    @pytest.mark.parametrize("model", ["plain", "normed"])
    def test_equal_to_the_functional_one(self, model):
        shared = networks(model)
        vector, buffers = shared.initial()
        functional = FunctionalNet(shared, vector, buffers)
        expected = functional(X, ONES)
        bound = BoundNet(shared, vector.clone(), buffers)
        bound.begin(0)
        found = bound(X, ONES)
        assert torch.allclose(found.logits, expected.logits, atol=1e-12)
        for name, value in bound.read_buffers().items():
            assert torch.allclose(value, functional.buffers[name], atol=1e-12)

    def test_the_skeleton_forgets_no_beginning(self):
        """Binding writes a run's weights into the module, not into what runs begin with."""
        shared = networks()
        before = shared.initial()
        vector = before[0].clone()
        bound = BoundNet(shared, vector, before[1])
        bound.begin(0)
        bound(X, ONES)
        vector += 5
        bound.release()
        assert trees_equal(shared.initial(), before)

    def test_weights_are_views(self):
        shared = networks("plain")
        vector = shared.initial()[0]
        bound = BoundNet(shared, vector, {})
        bound.begin(0)
        first = bound(X, ONES).logits
        vector.zero_()
        bound.begin(1)
        assert not torch.equal(bound(X, ONES).logits, first)
        assert not bound(X, ONES).logits.any()


class TestChannelsLast:
    """Another order in memory: the same numbers."""

    def bound(self, channels_last):
        net = build("lenet", sample_shape=(3, 16, 16), classes=4, seed=0, hidden=8)
        shared = Networks({"net": net}).to(torch.device("cpu"), torch.float64)
        vector, buffers = shared.initial()
        return BoundNet(shared, vector, buffers, channels_last=channels_last)

    def test_outputs_gradients_and_statistics(self):
        x = torch.rand(6, 3, 16, 16, dtype=torch.float64)
        found = []
        for channels_last in (False, True):
            net = self.bound(channels_last)
            for key in range(2):  # the second pass reads weights that have moved
                net.begin(key)
                total = net(x.clone()).logits.square().sum()
                grads = net.flatten_gradients(torch.autograd.grad(total, net.parameters))
                net._weights.sub_(net.networks.layout.flatten(grads), alpha=0.01)
            found.append((total.detach(), net._weights, net.read_buffers()))
        assert largest_gap(*found) < 1e-12

    def test_weights_of_convolutions_stand_so(self):
        net = self.bound(True)
        kernel = net.params["net.backbone.convolutions.0.weight"]
        assert kernel.is_contiguous(memory_format=torch.channels_last)
        assert (
            not self.bound(False)
            .params["net.backbone.convolutions.0.weight"]
            .is_contiguous(memory_format=torch.channels_last)
        )

    def test_a_parameter_without_gradient_has_zeros(self):
        net = self.bound(True)
        grads = net.flatten_gradients([None] * len(net.parameters))
        assert [g.shape for g in grads] == [p.shape for p in net.parameters]
        assert not any(bool(g.any()) for g in grads)


class TestLayout:
    def test_there_and_back(self):
        layout = Layout({"a": torch.Size([2, 3]), "b": torch.Size([]), "c": torch.Size([0])})
        vector = torch.arange(7.0)
        views = layout(vector)
        assert {k: tuple(v.shape) for k, v in views.items()} == {"a": (2, 3), "b": (), "c": (0,)}
        assert torch.equal(layout.flatten(views.values()), vector)

    def test_constants_are_not_a_runs_own(self):
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))
                self.register_buffer("fixed", torch.ones(3), persistent=False)
                self.register_buffer("count", torch.zeros(1))

        found = Networks({"net": Constant()})
        assert found.buffer_names == ["net.count"]
        assert not found.eval.training
        assert found.train.training
