"""Options of heads reach the network from a method, a recipe, a call and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

import engram
from engram.checks import form_rules
from engram.checks.check_report import BrokenRule
from engram.cli import app
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.experiments import Recipe
from engram.methods import Finetune
from engram.methods.method import Method
from engram.models.build import build

SCALED = {"name": "cosine", "scale": 10}
SHAPE = {"sample_shape": (4,), "classes": 3, "seed": 0}
STREAM = engram.class_incremental(engram.load("blobs"), classes_per_task=5)


@dataclass(frozen=True)
class Scaled(Method):
    head: ClassVar[Any] = SCALED


@dataclass(frozen=True)
class Cosine(Method):
    head: ClassVar[Any] = "cosine"


def scale_of(method: Method, model: Any) -> float:
    run = Run(stream=STREAM, method=method, model=model)
    return float(Engine([run], device="cpu").learner(run).params["net.head.scale"])


def test_a_method_states_options():
    assert scale_of(Scaled(), "mlp") == 10
    form_rules.check_declarations(Scaled())


def test_a_model_states_a_head():
    assert scale_of(Finetune(), {"name": "mlp", "head": SCALED}) == 10
    assert scale_of(Cosine(), {"name": "mlp", "head": {"name": "cosine", "scale": 7}}) == 7
    assert scale_of(Scaled(), {"name": "mlp", "head": "cosine"}) == 10
    plain = build({"name": "mlp", "head": {"name": "linear", "bias": False}}, **SHAPE)
    assert plain.head.bias is None
    assert torch.equal(plain.head.weight, build("mlp", **SHAPE).head.weight)


def test_a_head_that_the_method_cannot_use():
    with pytest.raises(BadArgument, match=r"model\.head: expected cosine, which the method needs"):
        scale_of(Cosine(), {"name": "mlp", "head": "linear"})


def test_a_recipe_and_a_call():
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "Finetune",
               "training": {"epochs": 1}}  # fmt: skip
    recipe = Recipe.of({**content, "model": {"name": "mlp", "head": SCALED}})
    assert Recipe.of(recipe.plain()).plain() == recipe.plain()
    swept = engram.sweep([recipe], pool="serial")
    called = engram.run(STREAM, model={"name": "mlp", "head": SCALED}, epochs=1)
    usual = engram.run(STREAM, epochs=1)
    assert (swept.matrix[:, -1] == called.matrix[:, -1]).all()
    assert swept.runs[0].recipe == called.runs[0].recipe != usual.runs[0].recipe


@pytest.mark.parametrize(
    "words", [["model.head=cosine"], ["model.head.name=cosine", "model.head.scale=10"]]
)
def test_the_command_line(words, tmp_path):
    said = [word for one in words for word in ("--set", one)]
    out = tmp_path / "out"
    asked = ["run", "--data", "blobs", "--method", "Finetune", *said, "--out", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    (head,) = {str(one["model"]["head"]) for one in engram.read(out).recipes.values()}
    assert "cosine" in head


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("cosin", "unknown name 'cosin'"), ({"scale": 3}, "a mapping with a name"),
        ({"name": "cosine", "scal": 3}, "unknown name 'scal'"),
        ({"name": "cosine", "scale": "big"}, r"head\.scale"), (5, "the name of a head"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_heads(head, message):
    with pytest.raises(BadArgument, match=message):
        build({"name": "mlp", "head": head}, **SHAPE)
    with pytest.raises(BadArgument, match=message):
        Recipe.of({"stream": {"data": "blobs"}, "method": "ER",
                   "model": {"name": "mlp", "head": head}})  # fmt: skip
    kind = type("Mine", (Method,), {"head": head})
    with pytest.raises(BrokenRule, match=message):
        form_rules.check_declarations(kind())
