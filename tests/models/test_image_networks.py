"""Image models against twins of stock torch layers and published sizes."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

import engram
from engram import joint, keys
from engram.cli.result_display import print_footnotes
from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.experiments import Recipe
from engram.methods import Finetune
from engram.models import CNN, MLP, LeNet, build, forward_context, resnet18_slim, resnet32
from engram.models.alexnet import AlexNet
from engram.models.layers import BatchNorm
from engram.models.resnet import ResNet50
from engram.models.vgg import VGG11Slim
from engram.novelty.detector import layer_width
from tests.refusals import refuses

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return keys.normal(seed, *shape)


def size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def copy_in_order(source: nn.Module, target: nn.Module) -> None:
    mine, theirs = list(source.parameters()), list(target.parameters())
    assert [tuple(v.shape) for v in mine] == [tuple(v.shape) for v in theirs]
    with torch.no_grad():
        for a, b in zip(mine, theirs, strict=True):
            b.copy_(a)


def test_mlp_equals_stock():
    net = MLP((2, 3), hidden=(5, 4)).double()
    twin = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU())
    copy_in_order(net, twin.double())
    x = draw(3, 2, 3)
    assert torch.equal(net(x), twin(x))


def test_mlp_default_is_two_layers_of_256():
    net = build("mlp", sample_shape=(784,), classes=10, seed=0)
    assert size(net) == 784 * 256 + 256 + 256 * 256 + 256 + 2570


def test_mlp_split_moves_no_weight():
    whole, parts = (
        build("mlp", sample_shape=(6,), classes=2, seed=1, hidden=(5, 4, 3), split=split)
        for split in (0, 2)
    )
    x = draw(3, 6).float()
    assert torch.equal(whole(x).logits, parts(x).logits)
    assert torch.equal(whole.root(x), x)
    assert parts.root(x).shape == (3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": ()}, "hidden: expected widths"),
        ({"hidden": "256"}, "hidden: expected widths"),
        ({"hidden": (3, 0)}, "hidden: expected a whole number of at least 1"),
        ({"split": 3}, "split: expected at most the 2 hidden layers, got 3"),
        ({"latent": 0}, "latent: expected a whole number"),
    ],
)
def test_mlp_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        MLP((4,), **options)


def test_lenet_published_sizes():
    net = LeNet((3, 100, 100))
    assert size(net.convolutions[0]) == 1520
    assert size(net.convolutions[4]) == 25050
    assert size(net.hidden) == 12_100_500
    assert net.features == 500


def test_lenet_equals_stock_in_training():
    net = LeNet((2, 18, 20), hidden=9).double()
    twin = nn.Sequential(
        *(nn.Conv2d(2, 20, 5), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.BatchNorm2d(50), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(net.hidden.in_features, 9), nn.BatchNorm1d(9), nn.ReLU()),
    ).double()
    copy_in_order(net, twin)
    x = draw(4, 2, 18, 20)
    torch.testing.assert_close(net(x), twin(x), **CLOSE)
    torch.testing.assert_close(net.norm.var, twin[10].running_var, **CLOSE)


def test_lenet_latents():
    x = draw(3, 1, 16, 16).float()
    squeezed = LeNet((1, 16, 16), latent=200).eval()
    z = squeezed.root(x)
    assert z.shape == (3, 200)
    assert (z > 0).all()
    assert (z < 1).all()
    assert squeezed.body(z).shape == (3, 500)
    at_hidden = LeNet((1, 16, 16), latent="hidden").eval()
    assert torch.equal(at_hidden.root(x), at_hidden(x))
    with refuses("latent", near="hidden"):
        LeNet((1, 16, 16), latent="hiden")


def test_lenet_small_images_need_padding():
    with pytest.raises(
        ValueError, match=r"at least 16 x 16 for lenet .*padding=2, got \(1, 8, 8\)"
    ):
        LeNet((1, 8, 8))
    assert LeNet((1, 8, 8), padding=2)(torch.zeros(2, 1, 8, 8)).shape == (2, 500)


def test_cnn_equals_stock_without_dropout():
    net = CNN((3, 32, 32)).double().eval()
    twin = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding="same"), nn.ReLU(), nn.Conv2d(32, 32, 3, padding="same")),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding="same"), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    ).double()
    copy_in_order(net, twin)
    x = draw(2, 3, 32, 32)
    torch.testing.assert_close(net(x), twin(x), **CLOSE)
    assert net(x).shape == (2, 4096)


def test_cnn_layers_draw_different_masks():
    net = build("cnn", sample_shape=(1, 8, 8), classes=2, seed=0)
    lower, upper = net.backbone.lower[5], net.backbone.upper[5]
    assert (lower.name, upper.name) == ("backbone.lower.5", "backbone.upper.5")
    x = torch.ones(4, 8)
    with forward_context(key=1):
        assert not torch.equal(lower(x), upper(x))


class Twin(nn.Module):
    """A residual block of stock layers."""

    def __init__(self, inputs, outputs, stride, last):
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.b = nn.BatchNorm2d(outputs)
        self.c = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.d = nn.BatchNorm2d(outputs)
        self.e = nn.Sequential()
        if inputs != outputs:
            self.e = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.last = last

    def forward(self, x):
        y = self.d(self.c(self.b(self.a(x)).relu())) + self.e(x)
        return y if self.last else y.relu()


def test_resnet32_equals_stock_in_training():
    net = build("resnet32", sample_shape=(3, 12, 12), classes=2, seed=0).backbone.double()
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for width in (16, 32, 64):
        for block in range(5):
            last = width == 64 and block == 4
            layers.append(Twin(inputs, width, 1 if inputs == width else 2, last))
            inputs = width
    twin = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    copy_in_order(net, twin)
    x = draw(4, 3, 12, 12)
    torch.testing.assert_close(net(x), twin(x), rtol=1e-10, atol=1e-10)
    # half of all normalised values are negative in the last map, before the mean over it
    assert net.upper(net.root(x)).min() < 0, "the last block has no ReLU"


def test_resnet32_has_32_layers():
    net = resnet32((3, 32, 32))
    main = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(main) + 1 == 32  # the head is the last
    # 3x3 convolutions, two shortcuts, two numbers per normalised channel
    blocks = 432 + 10 * 2304 + 4608 + 9 * 9216 + 18432 + 9 * 36864
    norms = 2 * (16 * 11 + 32 * 11 + 64 * 11)
    assert size(net) == blocks + 512 + 2048 + norms


@pytest.mark.parametrize(("nf", "side", "features"), [(20, 32, 160), (40, 56, 320)])
def test_slim_resnet_published_widths(nf, side, features):
    net = resnet18_slim((3, side, side), nf=nf).eval()
    x = draw(2, 3, side, side).float()
    assert net(x).shape == (2, features)
    assert net.upper(net.root(x)).shape[-1] == side // 8
    assert net(x).min() >= 0
    main = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(main) + 1 == 18


def test_slim_resnet_size_with_gems_head():
    """1,109,240 weights: GEM's network for 32 x 32 images and 100 classes."""
    nf = 20
    net = resnet18_slim((3, 32, 32), nf=nf)
    expected = 27 * nf + 2 * nf  # stem
    inputs = nf
    for width in (nf, 2 * nf, 4 * nf, 8 * nf):
        expected += 9 * (inputs * width + 3 * width * width) + 8 * width
        if inputs != width:
            expected += inputs * width + 2 * width
        inputs = width
    assert size(net) == expected
    assert size(nn.Linear(160, 100)) + expected == 1_109_240


def test_resnet50_published_size():
    """25,557,032 weights with a head of 1000 classes, and 49 convolutions on the main path."""
    net = ResNet50((3, 64, 64)).eval()
    assert size(net) + size(nn.Linear(2048, 1000)) == 25_557_032
    main = [
        m for name, m in net.named_modules() if isinstance(m, nn.Conv2d) and "shortcut" not in name
    ]
    assert len(main) + 1 == 50
    x = draw(2, 3, 64, 64).float()
    with torch.no_grad():
        assert net.upper(net.root(x)).shape == (2, 2048, 2, 2)
        assert net(x).min() < 0  # no ReLU at the end, as cosine heads want it
        assert ResNet50((3, 64, 64), last_relu=True).eval()(x).min() >= 0


def test_slim_vgg_published_size():
    """64 M 128 M 256 256 M 512 512, adaptive 7x7, 500, 500: 17,295,864 weights below the head."""
    net = VGG11Slim((3, 56, 56)).eval()
    assert size(net) == 4_500_864 + 12_544_500 + 250_500
    with torch.no_grad():
        x = draw(2, 3, 56, 56).float()
        assert net.convolutions(x).shape == (2, 512, 7, 7)  # so that no average is needed
        assert isinstance(net.pool, nn.Identity)
        assert torch.equal(net.root(x), net.convolutions(x).flatten(1))
        assert net(x).shape == (2, 500)
    with pytest.raises(BadArgument, match="at least 8 x 8"):
        VGG11Slim((3, 7, 7))


def test_alexnet_published_size():
    """61,100,840 weights with a head of 1000 classes."""
    net = AlexNet((3, 224, 224), hidden=8)
    whole = nn.Linear(9216, 8), nn.Linear(8, 8)
    assert [size(layer) for layer in (net.connected[1], net.connected[4])] == [*map(size, whole)]
    published = (9216 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert size(net.convolutions) + published == 61_100_840
    with torch.no_grad():
        assert net.convolutions(torch.zeros(1, 3, 224, 224)).shape == (1, 256, 6, 6)
        assert isinstance(net.pool, nn.Identity)
        for side in (63, 95, 200):  # of other sizes the average leaves as many places
            small = AlexNet((3, side, side), hidden=8).eval()
            assert small(torch.zeros(1, 3, side, side)).shape == (1, 8)
            assert isinstance(small.pool, nn.AdaptiveAvgPool2d)
    with pytest.raises(BadArgument, match="at least 63 x 63"):
        AlexNet((3, 62, 62))


def test_alexnet_begins_with_the_weights_of_a_file(tmp_path):
    options = {"sample_shape": (3, 63, 63), "classes": 2}
    elsewhere = build({"name": "alexnet", "hidden": 8}, seed=5, **options).backbone
    names = {"convolutions": "features", "connected": "classifier"}
    given = {f"{names[k.split('.')[0]]}.{k.split('.', 1)[1]}": v
             for k, v in elsewhere.state_dict().items()}  # fmt: skip
    file = tmp_path / "alexnet.pth"
    torch.save({**given, "classifier.6.weight": torch.zeros(1000, 8)}, file)
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    spec = {"name": "alexnet", "hidden": 8, "weights": str(file), "sha256": right.upper()}
    net = build(spec, seed=0, **options)
    assert all(
        torch.equal(v, net.backbone.state_dict()[k]) for k, v in elsewhere.state_dict().items()
    )
    scratch = build({"name": "alexnet", "hidden": 8}, seed=0, **options)
    assert torch.equal(net.head.weight, scratch.head.weight)  # heads are always new
    assert not torch.equal(net.backbone.connected[1].weight, scratch.backbone.connected[1].weight)
    for wrong, message in (
        ({"sha256": "0" * 64}, rf"sha256: expected {right}"), ({"sha256": "7be5be79"}, "64 hexa"),
        ({"sha256": None}, "sha256: expected the SHA-256 of alexnet.pth"),
        ({"weights": None}, "weights: expected the path"), ({"hidden": 9}, r"shape \(9, 9216\)"),
        ({"weights": str(tmp_path / "no.pth")}, "weights: expected the path of a file"),
    ):  # fmt: skip
        with pytest.raises(BadArgument, match=message):
            build({**spec, **wrong}, seed=0, **options)


@pytest.mark.parametrize(
    ("spec", "shape", "layers"),
    [
        ({"name": "vgg11_slim", "width": 2, "hidden": 8}, (1, 8, 8),
         {"convolutions.11": 16, "convolutions.13": 16, "pool": 16, "connected.2": 8}),
        ({"name": "alexnet", "hidden": 8}, (3, 63, 63),
         {"convolutions.8": 256, "convolutions.10": 256, "pool": 256, "connected.3": 8}),
    ],
    ids=lambda one: one.get("name", "") if isinstance(one, dict) else "",
)  # fmt: skip
def test_layers_that_detectors_read(spec, shape, layers):
    data = Data.from_arrays(
        torch.zeros(8, *shape), [0, 1] * 4, test=(torch.zeros(2, *shape), [0, 1])
    )
    run = Run(stream=joint(data), method=Finetune(), model=spec)
    learner = Engine([run], device="cpu").learner(run)
    assert {name: layer_width(learner, name) for name in layers} == layers
    with refuses("layers", near="pool"):
        layer_width(learner, "pol")


def test_an_experiment_is_the_weights_not_the_place_of_their_file():
    section = {"stream": {"data": "blobs"}, "method": "ER"}
    one, moved, other, scratch = (
        Recipe.of({**section, "model": {"name": "alexnet", **options}}).key
        for options in (
            {"weights": "a.pth", "sha256": "ab" * 32}, {"weights": "b.pth", "sha256": "AB" * 32},
            {"weights": "a.pth", "sha256": "cd" * 32}, {},
        )
    )  # fmt: skip
    assert one == moved
    assert len({one, other, scratch}) == 3


def test_results_say_where_weights_come_from(capsys):
    data = Data.from_arrays(
        torch.zeros(8, 3, 63, 63), [0, 1] * 4, test=(torch.zeros(2, 3, 63, 63), [0, 1])
    )
    result = engram.run(joint(data), model={"name": "alexnet", "hidden": 4}, iterations=1)
    print_footnotes(result)
    said = " ".join(capsys.readouterr().err.split())
    assert "alexnet starts from scratch, without pretrained weights" in said


def test_no_stock_norm_is_left():
    for module in (*resnet32((1, 8, 8)).modules(), *LeNet((1, 16, 16)).modules()):
        assert not isinstance(module, nn.modules.batchnorm._BatchNorm)
    assert any(isinstance(m, BatchNorm) for m in resnet32((1, 8, 8)).modules())
