"""One way from a call, a recipe and a command to the engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import engram
from engram.cli.data_command import parse_options
from engram.errors import BadArgument
from engram.experiments import Recipe, build_method, make_plans
from engram.experiments.overrides import set_value, set_values
from engram.experiments.plan import Planner
from engram.experiments.recipe import Experiment
from engram.methods import Finetune
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.papers.rwalk_paper import PAPER
from tests.refusals import refuses

SOURCE = str(Path(engram.__file__).parent)


class Watched(Finetune):
    """Notes through which files of the package its loss was reached."""

    def loss(self, net, batch, state):  # type: ignore[no-untyped-def]
        frame, found = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(SOURCE):
                name = Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()
                found.append((name, frame.f_code.co_name))
            frame = frame.f_back
        # old names of arguments are replaced on the way, for one version
        WAYS.append([one for one in found[::-1] if one[0] != "renamed.py"])
        return super().loss(net, batch, state)


@dataclass(frozen=True)
class Needy(engram.Method):
    """A method with a field that has no default."""

    strength: float


WAYS: list[list[tuple[str, str]]] = []


def test_a_call_reaches_the_engine_in_two_frames():
    WAYS.clear()
    engram.run(engram.load("blobs"), method=Watched(), epochs=1, device="cpu")
    assert WAYS[0][:2] == [
        ("experiments/run_methods.py", "run"),
        ("experiments/run_plans.py", "execute"),
    ]
    assert WAYS[0][2][0].startswith("engine/")


@pytest.mark.parametrize("method", [None, 3, [], [3], Finetune.loss])
def test_what_is_no_method_is_refused(method):
    with pytest.raises(BadArgument, match="method: expected a method, "):
        engram.run(engram.load("blobs"), method=method)


def test_a_class_stands_for_its_defaults():
    assert Experiment.of({"method": Finetune}).method == Finetune()
    with pytest.raises(BadArgument, match="a class whose fields have defaults"):
        Experiment.of({"method": Needy})


def test_pieces_and_recipe_become_the_same_plans():
    recipe = Recipe.of({"stream": {"data": "blobs"}, "method": "ER", "seeds": 2})
    (first, *others) = make_plans([recipe])
    pieces = Experiment.of({"method": "ER", "seeds": 2})
    stream = engram.class_incremental(engram.load("blobs"))
    again = Planner().plans(pieces, stream)
    assert [plan.key for plan in again] == [first.key, *(plan.key for plan in others)]
    assert again[0].content == first.content
    assert again[0].label == first.label == "ER"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epoch": 3}, "training: unknown name 'epoch', did you mean 'epochs'"),
        ({"model": "mpl"}, "unknown name 'mpl', did you mean 'mlp'"),
        ({"seeds": [1, 1]}, "seeds: expected every seed only once"),
        ({"keep": "all"}, "keep"),
        ({"average": "mean"}, "average"),
        ({"label": ["mine"]}, "label: expected a name"),
    ],
)
def test_a_call_and_a_recipe_refuse_with_the_same_words(wrong, words):
    with pytest.raises(BadArgument, match=words) as called:
        engram.run(engram.load("blobs"), **wrong)
    content = {"stream": {"data": "blobs"}, "method": "Finetune"}
    content |= {"training": wrong} if "epoch" in wrong else wrong
    with pytest.raises(BadArgument) as read:
        Recipe.of(content)
    assert str(called.value) == str(read.value)


def test_orders_given_by_name_or_number_are_the_same_run():
    named = {"data": "digits", "order": ["0", "2", "1", 3, 4, 5, 6, 7, 8, 9]}
    numbered = {"data": "digits", "order": [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]}
    made = [Recipe.of({"stream": one, "method": "Finetune"}) for one in (named, numbered)]
    first, second = make_plans(made)
    assert first.key == second.key == (first.recipe, 0, "0-2-1-3-4-5-6-7-8-9")


@pytest.mark.parametrize("text", ["epochs", "=3", ""])
def test_whatever_takes_key_and_value_refuses_with_the_same_words(text):
    content = {"stream": {"data": "blobs"}, "method": {"name": "Finetune"}}
    takers = [
        lambda: set_value(dict(content), text),
        lambda: set_values([dict(content)], text),
        lambda: parse_options([text]),
        lambda: assign_settings(PAPER, [text]),
    ]
    complaints = set()
    for take in takers:
        with pytest.raises(BadArgument) as refused:
            take()
        complaints.add(str(refused.value))
    assert complaints == {f"--set: expected key=value, got {text!r}"}


def test_a_recipe_and_a_command_set_fields_of_fields_alike():
    one = {"stream": {"data": "blobs"}, "method": "ER"}
    two = [{"stream": {"data": "blobs"}, "method": "ER"}]
    set_value(one, "method.memory.per_class=4")
    set_values(two, "memory.per_class=4")
    assert one == two[0]
    assert Recipe.of(one).method.memory.per_class == 4


@pytest.mark.parametrize("key", ["", "method.", "LatentReplay."])
def test_values_that_fit_together_only_when_all_are_set(key):
    # a root from a file needs the file and its checksum; no order of the three is right all along
    recipes = [{"stream": {"data": "faces"}, "method": "LatentReplay"}]
    texts = ["root=external", "memory.total=50", "root_file=w.pt", f"root_sha256='{'a' * 64}'"]
    for text in texts:
        set_values(recipes, key + text)
    made = build_method(recipes[0]["method"])
    assert (made.root, made.root_file, made.root_sha256) == ("external", "w.pt", "a" * 64)
    assert made.memory.total == 50
    with pytest.raises(BadArgument, match="root_file: expected a text where root is"):
        build_method({"name": "LatentReplay", "root": "external"})


@pytest.mark.parametrize(("value", "meant"), [(True, "true"), ("pred", "pred")])
def test_a_word_that_yaml_takes_for_a_truth(value, meant):
    recipe = {"stream": {"data": "blobs"}, "method": {"name": "EWC", "labels": value}}
    assert Recipe.of(recipe).method.labels == meant
    recipe["method"]["labels"] = False
    with refuses("labels"):
        Recipe.of(recipe)
