from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.methods import ER, Finetune
from engram.models import build

RNG = np.random.default_rng(0)
Y = np.arange(80) % 4
X = (255 * RNG.random((80, 1, 6, 6)) * (0.2 + 0.2 * Y[:, None, None, None])).astype(np.uint8)
DATA = engram.Data.from_arrays(X, Y, mean=(0.4,), std=(0.2,))
STREAM = engram.class_incremental(DATA)


class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6))
        self.layers = nn.Sequential(*layers, nn.Dropout(0.5))

    def forward(self, x):
        Net.calls += len(x)
        return self.layers(x)


OWN = Net()
FROZEN = {"name": OWN, "freeze": True}


def test_only_the_head_is_part_of_the_network():
    net = build(FROZEN, sample_shape=(1, 6, 6), classes=4, seed=3)
    assert [name for name, _ in net.named_parameters()] == ["head.weight", "head.bias"]
    usual = build(OWN, sample_shape=(1, 6, 6), classes=4, seed=3).eval()
    x = torch.rand(5, 1, 6, 6)
    assert torch.equal(net.head.weight, usual.head.weight)
    assert torch.equal(net(net.frozen(x)).logits, usual(x).logits)


@pytest.mark.parametrize("together", [False, True])
def test_equal_to_learning_from_features_that_were_kept(together):
    pixels = (torch.from_numpy(X) / 255 - 0.4) / 0.2
    with torch.no_grad():
        features = OWN.eval()(pixels)
    OWN.train()
    by_hand = engram.class_incremental(engram.Data.from_arrays(features, Y))
    options = {"method": [Finetune(), ER(memory=engram.Memory(total=8))], "seeds": 2, "epochs": 3,
               "together": together, "lr": 0.05}  # fmt: skip
    with pytest.warns(UserWarning, match="all 2 seeds begin with the weights"):
        found = engram.run(STREAM, model=FROZEN, **options)
    head = {"name": nn.Identity(), "ends": "features"}
    with pytest.warns(UserWarning, match="all 2 seeds begin with the weights"):
        wanted = engram.run(by_hand, model=head, **options)
    assert np.array_equal(found.matrix, wanted.matrix, equal_nan=True)


def test_every_row_is_encoded_once_for_all_runs_and_tasks():
    runs = [Run(stream=STREAM, method=Finetune(), model=FROZEN, seed=seed) for seed in range(3)]
    Net.calls = 0
    engine = Engine(runs, device="cpu", together=True)
    assert engine.groups() == [[0, 1, 2]]
    once = Net.calls
    assert len(DATA) <= once < 2 * len(DATA), "the table, and the few rows of three dry runs"
    assert len(list(engine.stages())) == 6
    assert Net.calls == once


def test_weights_that_are_drawn_follow_the_seed():
    model = {"name": "lenet", "freeze": True}
    one, two = (build(model, sample_shape=(1, 16, 16), classes=2, seed=s).frozen for s in (0, 1))
    assert one.digest != two.digest
    again = build(model, sample_shape=(1, 16, 16), classes=2, seed=0).frozen
    assert one.digest == again.digest


def test_a_model_in_hand_takes_raw_inputs(tmp_path):
    result = engram.run(STREAM, method="ER", model={"name": Net, "freeze": True}, epochs=10,
                        out=tmp_path / "out")  # fmt: skip
    learner = result.model(model={"name": Net, "freeze": True})
    right = np.mean(learner.predict(X[DATA.test.numpy()]) == Y[DATA.test.numpy()])
    assert right == pytest.approx(result.metric("average_accuracy")[0])
    learner.learn(X[:16], Y[:16] + 4)
    assert set(learner.classes_) == set(range(8))


def test_refusals():
    rotated = engram.rotated(DATA, angles=[0, 90])
    with pytest.raises(ValueError, match=r"model\.freeze: expected false where inputs differ"):
        engram.run(rotated, model={"name": Net, "freeze": True})
    with pytest.raises(ValueError, match="augment: expected no augmentation"):
        engram.run(STREAM, model={"name": Net, "freeze": True}, augment=["flip"])
    with pytest.raises(ValueError, match=r"expected true, false or a mapping of its options"):
        engram.run(STREAM, model={"name": "lenet", "freeze": "yes"})
    plain = engram.Recipe.of({"stream": "digits", "method": "ER", "model": {"name": "cnn"}})
    said = plain.change(model={"name": "cnn", "freeze": False})
    assert engram.Recipe.of(said.plain()).model == plain.model
