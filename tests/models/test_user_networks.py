from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.experiments.recipe_sections import check_model_section
from engram.models import Cosine, build
from engram.models.build import model_options
from tests.refusals import refuses

SMALL = {"sample_shape": (6,), "classes": 3, "seed": 0}
DATA = engram.load("blobs", classes=4, per_class=15)


class Features(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.LazyLinear(width)

    def forward(self, x):
        return self.layer(x).relu()


class Whole(nn.Module):
    def __init__(self, num_classes=10, bias=True):
        super().__init__()
        self.body, self.fc = nn.LazyLinear(8), nn.Linear(8, num_classes, bias=bias)

    def forward(self, x):
        return self.fc(self.body(x).relu())


def test_a_class_stands_on_its_own_or_asks_for_shape_and_classes():
    class Shaped(Features):
        def __init__(self, width, *, input_shape):
            super().__init__(width + input_shape[0])

    assert build(Features, **SMALL).features == 8
    assert build({"name": Features, "width": 5}, **SMALL).features == 5
    assert build({"name": Shaped, "width": 5}, **SMALL).features == 11
    assert build(lambda: Features(3), **SMALL).features == 3
    assert build(lambda shape=None: Features(shape[0]), **SMALL).features == 6
    one, two = (build(Features, **{**SMALL, "seed": seed}).backbone.layer.weight for seed in (0, 1))
    assert not torch.equal(one, two)


def test_a_classifier_is_recognised_and_keeps_one_head():
    with pytest.warns(UserWarning, match=r"its last layer fc \(Linear 8 -> 3\) becomes the head"):
        net = build(Whole, **SMALL)
    assert net.features == 8
    assert [name for name, _ in net.named_parameters()] == [
        "backbone.body.weight", "backbone.body.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    drawn = build({"name": Features}, **SMALL).head
    assert torch.equal(net.head.weight, drawn.weight), "a head as any other"
    own = {"name": Whole(3, bias=False), "ends": "classes"}
    assert build(own, **SMALL).class_rows == ("head.weight",)
    assert isinstance(build(own, **SMALL, head="cosine").head, Cosine)


def test_whatever_the_size_of_the_last_layer():
    with pytest.warns(UserWarning, match=r"fc \(Linear 8 -> 5\) becomes the head"):
        assert build(Whole(5), **SMALL).features == 8
    assert build({"name": Whole(5), "ends": "features"}, **SMALL).features == 5
    assert build({"name": Whole(5), "ends": "classes"}, **SMALL).features == 8


def test_a_head_grows_with_the_classes():
    y = np.arange(40) % 4
    x = np.random.default_rng(0).normal(size=(40, 6)) + np.eye(4, 6)[y] * 5
    learner = engram.Learner("ER", {"name": Whole(4), "ends": "classes"}, capacity=4, epochs=20)
    for first in (0, 4):  # eight classes in the end
        learner.learn(x, y + first)
    assert set(learner.predict(x)) <= set(range(8))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), "leave out the softmax"),
        (nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)), "leave out the softmax"),
        ({"name": Features, "ends": "classes"}, r"last layer is a torch\.nn\.Linear"),
        ({"name": Features, "ends": "class"}, "model.ends: unknown name 'class', did you mean"),
        (lambda num_classes: Features(num_classes + 1), r"last layer is a torch\.nn\.Linear"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ValueError, match=message):
        build(spec, **SMALL)


def test_a_constructor_that_wants_no_shape_says_how():
    class Wide(nn.Module):
        def __init__(self, inputs):
            super().__init__()
            self.layer = nn.Linear(inputs, 4)

        def forward(self, x):
            return self.layer(x).relu()

    with pytest.raises(ValueError, match=r"Wide to take the shape.*'width': 5.*--set model\.width"):
        build(Wide, **SMALL)
    assert model_options(Wide)[0] == "inputs"  # who gives it needs no shape
    assert build({"name": Wide, "inputs": 6}, **SMALL).backbone.layer.in_features == 6
    with pytest.raises(ValueError, match=r"option of model .*unknown name 'wdth', did you mean"):
        check_model_section({"name": Features, "wdth": 3})


def test_seeds_of_an_instance_share_its_weights_and_it_is_said():
    own = Features()
    with pytest.warns(UserWarning, match="all 2 seeds begin with the weights of the network"):
        engram.run(DATA, model=own, seeds=2)
    engram.run(DATA, model=Features, seeds=2)


def test_recurrent_networks_fall_back_to_one_run_at_a_time():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 6, batch_first=True)

        def forward(self, x):
            return self.gru(x)[0][:, -1]

    rng = np.random.default_rng(0)
    data = engram.Data.from_arrays(rng.normal(size=(40, 5, 2)), np.arange(40) % 4)
    with pytest.warns(UserWarning, match=r"one run at a time: torch cannot map gru \(GRU\)"):
        both = engram.run(data, model=Reads, seeds=2, method="EWC")
    alone = engram.run(data, model=Reads, seeds=[1], method="EWC")
    assert np.array_equal(both.matrix[1], alone.matrix[0], equal_nan=True)


def test_module_and_class_by_name_are_the_same_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net_file.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self, width=4):\n"
        "        super().__init__(nn.LazyLinear(width), nn.ReLU())\n"
    )
    from engram.plugins import load_user_object

    named = engram.run(DATA, model="own_net_file.py:Net", out="named")
    net = load_user_object("own_net_file.py:Net")
    given = engram.run(DATA, model=net)
    assert set(named.recipes) == set(given.recipes)
    other = engram.run(DATA, model={"name": "own_net_file.py:Net", "width": 5})
    assert set(named.recipes) != set(other.recipes)
    with refuses("class of own_net_file", near="Net"):
        engram.run(DATA, model="own_net_file.py:Nett")


def stand_in(monkeypatch):
    """A package of timm's name and calls."""
    timm = types.ModuleType("timm")

    def create_model(name, *, pretrained, num_classes, in_chans, width=4):
        assert (pretrained, num_classes) == (False, 0), "no download, no head"
        return nn.Sequential(nn.Conv2d(in_chans, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    timm.create_model = create_model
    timm.is_model = lambda name: name == "tiny"
    timm.list_models = lambda pattern: ["tiny"]
    monkeypatch.setitem(sys.modules, "timm", timm)


IMAGES = {"sample_shape": (3, 8, 8), "classes": 3, "seed": 0}


def test_networks_of_timm(monkeypatch, tmp_path):
    stand_in(monkeypatch)
    net = build("timm/tiny", **IMAGES)
    assert net.features == 4
    with pytest.raises(ValueError, match="a model of timm, such as tiny"):
        build("timm/tinny", **IMAGES)
    with pytest.raises(ValueError, match=r"those of timm\.create_model"):
        build({"name": "timm/tiny", "depth": 3}, **IMAGES)
    kept = {f"{key}": value + 1 for key, value in net.backbone.state_dict().items()}
    file = tmp_path / "tiny.pth"
    torch.save({**kept, "fc.weight": torch.zeros(1)}, file)
    loaded = build({"name": "timm/tiny", "weights": str(file)}, **IMAGES)
    assert torch.equal(loaded.backbone[0].weight, kept["0.weight"])
    with pytest.raises(ValueError, match="SHA-256"):
        build({"name": "timm/tiny", "weights": str(file), "sha256": "0" * 64}, **IMAGES)
    with pytest.raises(ValueError, match=r"0\.weight of shape \(4, 1, 3, 3\)"):
        build({"name": "timm/tiny", "weights": str(file)}, **{**IMAGES, "sample_shape": (1, 8, 8)})


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"pip install 'engram-cl\[vision\]'"):
        build("timm/tiny", **IMAGES)
