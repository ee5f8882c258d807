from __future__ import annotations

import pytest
import torch
from torch import nn

from engram import keys
from engram.models import Classifier, Cosine, Linear, Output, build, models
from tests.refusals import refuses

SMALL = {"sample_shape": (6,), "classes": 3, "seed": 0}


def test_models_have_one_line_each():
    assert next(iter(models())) == "mlp"
    for line in models().values():
        assert line.endswith(".")
        assert "\n" not in line


def test_output_carries_features_and_logits():
    net = build("mlp", **SMALL)
    assert isinstance(net, Classifier)
    output = net(torch.zeros(2, 6))
    assert isinstance(output, Output)
    assert (output.features.shape, output.logits.shape) == ((2, 256), (2, 3))
    assert output.layers == {}
    assert (net.features, net.classes) == (256, 3)


def test_dict_and_options_say_the_same():
    one = build({"name": "mlp", "hidden": [5]}, **SMALL)
    two = build("mlp", hidden=(5,), **SMALL)
    three = build({"name": "mlp", "hidden": [9]}, hidden=(5,), **SMALL)
    assert torch.equal(one.backbone.lower[0].weight, two.backbone.lower[0].weight)
    assert three.features == 5


def test_global_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    build("cnn", sample_shape=(3, 8, 8), classes=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    one = build("mlp", **SMALL)
    torch.manual_seed(78)
    assert torch.equal(one.backbone.lower[0].weight, build("mlp", **SMALL).backbone.lower[0].weight)


def test_more_classes_change_neither_backbone_nor_columns():
    few, many = build("mlp", **SMALL), build("mlp", **{**SMALL, "classes": 30})
    assert torch.equal(few.backbone.upper[0].weight, many.backbone.upper[0].weight)
    assert torch.equal(few.head.weight, many.head.weight[:3])
    drawn = keys.uniform(keys.fold(0, "head", 2), 257)[:256]
    torch.testing.assert_close(few.head.weight[2], ((2 * drawn - 1) / 16).float())


def test_heads():
    assert isinstance(build("mlp", **SMALL).head, Linear)
    cosine = build("mlp", head="cosine", **SMALL)
    assert isinstance(cosine.head, Cosine)
    assert cosine.class_rows == ("head.weight",)
    bare = build("mlp", head={"name": "linear", "bias": False}, **SMALL)
    assert bare.class_rows == ("head.weight",)
    scaled = build("mlp", head={"name": "cosine", "scale": 4}, **SMALL)
    assert scaled.head.scale.item() == 4


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        ("mpl", {}, "model: unknown name 'mpl', did you mean 'mlp'"),
        (
            "mlp",
            {"hiden": (3,)},
            "option of model mlp: unknown name 'hiden', did you mean 'hidden'",
        ),
        ({"hidden": (3,)}, {}, "model: expected a dict with a 'name'"),
        ({"name": ["mlp"]}, {}, "model: unknown name"),
        ("mlp", {"head": "cosin"}, "head: unknown name 'cosin', did you mean 'cosine'"),
        ("mlp", {"head": {"name": "linear", "scale": 1}}, "option of head linear: unknown name"),
        ("cnn", {}, r"expected images \[C, H, W\] for cnn, got \(6,\)"),
        ("cnn", {"sample_shape": (3, 2, 9)}, "at least 4 x 4 for cnn"),
        ("resnet32", {"sample_shape": (9, 9)}, r"images \[C, H, W\] for resnet.*got \(9, 9\)"),
        ("lenet", {"sample_shape": (9, 9)}, r"images \[C, H, W\] for lenet.*got \(9, 9\)"),
        ("gcn", {}, r"skeletons \[C, T, V\] or \[C, T, V, persons\] for gcn, got \(6,\)"),
        ("stgcn", {"sample_shape": (3, 4, 5)}, "edges: expected 'ucla', 'ntu' or"),
        ("gcn", {"sample_shape": (3, 4, 5), "edges": "ucla"}, "samples with 5 joints, got .ucla"),
        ("gcn", {"sample_shape": (3, 4, 5), "edges": [(1, 6)]}, "two different joints in 1..5"),
        ("mlp", {"classes": 0}, "classes: expected a whole number of at least 1, got 0"),
        ("mlp", {"sample_shape": ()}, "sample_shape: expected whole numbers"),
        ("mlp", {"sample_shape": 6}, "sample_shape: expected whole numbers"),
        ("mlp", {"sample_shape": (6, 0)}, "sample_shape: expected whole numbers of at least 1"),
        ("mlp", {"sample_shape": (2.5,)}, "sample_shape: expected whole numbers"),
        ("cnn", {"sample_shape": (3, 8, 8), "dropout": 2}, r"expected a number in \[0, 1\], got 2"),
        (7, {}, "model: expected a name, a dict, a torch.nn.Module, its class or a factory, got 7"),
        (nn.Identity(), {"hidden": 3}, "options: expected none for a module that has"),
        (lambda shape: 3, {}, "factory that returns a torch.nn.Module, got 3"),
        (lambda a, b: nn.Identity(), {}, r"a factory f\(sample_shape\).*argument: 'b'"),
        (nn.Linear, {}, r"a factory f\(sample_shape\).*argument: 'out_features'"),
        (
            lambda shape: nn.Identity(),
            {"wide": 3},
            r"a factory f\(sample_shape, wide=...\).*argument 'wide'",
        ),
        (nn.Linear(5, 2), {}, r"a network for samples of shape \(6,\)"),
        (nn.Unflatten(1, (2, 3)), {}, r"features \[B, F\], got \(2, 2, 3\)"),
    ],
)
def test_clear_errors(spec, change, message):
    with pytest.raises(ValueError, match=message):
        build(spec, **{**SMALL, **change})


class Own(nn.Module):
    def __init__(self, shape, width=5):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.BatchNorm1d(width))

    def forward(self, x):
        return self.features(x)


def test_a_module_is_copied_and_keeps_its_weights():
    own = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
    net = build(own, **SMALL)
    assert net.features == 4
    assert net.backbone.features == 4
    assert torch.equal(net.backbone[0].weight, own[0].weight)
    net.backbone[0].weight.data.zero_()
    assert own[0].weight.abs().sum() > 0
    assert type(own[1]) is nn.BatchNorm1d
    assert own.training
    assert net.training
    x = torch.ones(3, 6)
    assert torch.equal(build(own, **SMALL).eval()(x).features, own.eval()(x))


def test_a_factory_is_seeded_and_may_be_lazy():
    one, two = build(Own, width=7, **SMALL), build(Own, width=7, **SMALL)
    other = build(Own, width=7, **{**SMALL, "seed": 1})
    weights = [net.backbone.features[1].weight for net in (one, two, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert one.features == 7
    assert isinstance(one.backbone.features, nn.Sequential), "a user's own name stays"


def test_a_lazy_module_of_the_user_stays_lazy():
    own = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    build(own, **SMALL)
    assert own[0].has_uninitialized_params()


def test_a_foreign_backbone_may_have_no_root():
    net = build(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), **SMALL)
    assert not net.splits
    for wish in (lambda: net.root(torch.zeros(1, 6)), lambda: net.top(torch.zeros(1, 6))):
        with pytest.raises(ValueError, match=r"root\(x\) and body\(z\) for latents, got 'Seq"):
            wish()
    with refuses("model"):
        _ = net.root_names


def test_double_precision_modules_are_accepted():
    assert build(nn.Sequential(nn.Linear(6, 4), nn.ReLU()).double(), **SMALL).features == 4
