"""Multiples of the learning rate by the beginnings of parameters' names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import engram
from engram.learner.feed import Feed
from tests.refusals import refuses

DATA = engram.load("blobs")
MODEL = {"name": "mlp", "hidden": [6]}
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "weight_decay": 0.01},
    "nesterov": {"optimizer": "sgd", "nesterov": True},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
}
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
RATES = {"net.backbone": 0.1, "net.head.bias": 0.0}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("together", [False, True])
def test_equals_parameter_groups_of_torch(name, together):
    ended = {}

    class Look(engram.Method):
        def loss(self, net, batch, state):
            return {"task": net.task(batch)}

        def finish(self, learner, task):
            ended[learner.seed] = {k: v.detach().clone() for k, v in learner.net().params.items()}
            ended["rows"] = task.train

    options = OPTIMIZERS[name]
    engram.run(
        engram.joint(DATA), method=Look(), model=MODEL, precision="float64", iterations=4,
        batch_size=0, lr=0.05, lr_of=RATES, seeds=2, together=together, device="cpu", **options,
    )  # fmt: skip
    for seed in range(2):
        built = engram.models.build(
            MODEL, sample_shape=DATA.sample_shape, classes=len(DATA.classes), seed=seed
        ).double()
        groups = [{"params": [one], "lr": 0.05 * rate_of(f"net.{key}")}
                  for key, one in built.named_parameters()]  # fmt: skip
        own = {key: value for key, value in options.items() if key != "optimizer"}
        if options["optimizer"] == "sgd":
            own["momentum"] = 0.9
        optimizer = TORCH[options["optimizer"]](groups, **own)
        feed = Feed(DATA, device=torch.device("cpu"), dtype=torch.float64)
        x, y = feed(ended["rows"]), DATA.y[ended["rows"], 0]
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(built(x).logits, y).backward()
            optimizer.step()
        for key, one in built.named_parameters():
            torch.testing.assert_close(
                ended[seed][f"net.{key}"], one.detach(), rtol=1e-9, atol=1e-9
            )


def rate_of(name: str) -> float:
    return 0.0 if name == "net.head.bias" else 0.1 if name.startswith("net.backbone.") else 1.0


def test_a_rate_of_one_changes_nothing_and_the_id_knows_rates():
    first, same = (engram.run(DATA, model=MODEL, method="ER", lr_of=rates, device="cpu")
                   for rates in ({}, {"net": 1.0}))  # fmt: skip
    assert set(first.recipes) != set(same.recipes)
    torch.testing.assert_close(
        torch.tensor(first.matrix), torch.tensor(same.matrix), equal_nan=True
    )


def test_recipes_hold_rates():
    recipe = engram.Recipe.of(
        {"stream": "blobs", "method": "ER", "training": {"lr_of": {"net.head": 2}}}
    )
    assert recipe.training.lr_of == (("net.head", 2.0),)
    again = engram.Recipe.of({"stream": "blobs", "method": "ER",
                              "training": {"lr_of": [["net.head", 2.0]]}})  # fmt: skip
    assert again.id == recipe.id != engram.Recipe.of({"stream": "blobs", "method": "ER"}).id


def test_bad_rates_are_refused():
    for rates in ([3], ["ab"], {"": 1.0}, {3: 1.0}, [("net", 1.0), ("net", 2.0)]):
        with refuses("lr_of"):
            engram.Training(lr_of=rates)
    with refuses("lr_of net"):
        engram.Training(lr_of={"net": -1.0})
    with refuses("lr_of", near="net.head"):
        engram.run(DATA, model=MODEL, method="ER", lr_of={"net.haed": 1.0})
