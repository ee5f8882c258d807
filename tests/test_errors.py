"""Complaints: which name is offered instead of one that does not exist."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import engram
from engram import errors
from engram.cli.component_help import list_entries
from engram.engine.training import PRECISIONS, SCHEDULES
from engram.errors import SYNONYMS, BadArgument, edit_distance, suggest_name, unknown
from engram.experiments.pools import POOLS
from engram.learner.feed import AUGMENTATIONS
from engram.learner.objectives import OBJECTIVES
from engram.learner.parameter_layout import OPTIMIZERS
from engram.plugins import load_user_object

FIELDS = [
    "batch_size", "classes_per_task", "epochs", "head", "hidden", "label", "labels", "last",
    "latent", "loss", "lr", "memory", "milestones", "mix", "momentum", "optimizer", "order",
    "patience", "reduce", "schedule", "seed", "seeds", "strength", "total", "weight_decay",
]  # fmt: skip
VALUES = {
    *SCHEDULES, *PRECISIONS, *OPTIMIZERS, *OBJECTIVES, *AUGMENTATIONS,
    "cuda", "model", "method", "data", "auroc",
}  # fmt: skip
METHODS = ["AGEM", "DERpp", "ER", "EWC", "EWCpp", "Finetune", "GEM", "ICaRL", "Joint", "LwF", "SI"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("strenght", "strength"),
        ("stregth", "strength"),
        ("Strength", "strength"),
        ("epoch", "epochs"),
        ("batchsize", "batch_size"),
        ("batch-size", "batch_size"),
        ("batch", "batch_size"),
        ("wieght_decay", "weight_decay"),
        ("optimiser", "optimizer"),
        ("optim", "optimizer"),
        ("hiden", "hidden"),
        ("mommentum", "momentum"),
        ("memroy", "memory"),
        ("latnet", "latent"),
        ("lables", "labels"),
        ("mx", "mix"),
        ("classes_per_tasks", "classes_per_task"),
    ],
)
def test_a_slip_of_the_pen_is_understood(written, meant):
    assert suggest_name(written, FIELDS) == meant
    assert f"did you mean '{meant}'?" in str(unknown("--set", written, FIELDS))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ewc", "EWC"),
        ("EWK", "EWC"),
        ("fine-tune", "Finetune"),
        ("iCarl", "ICaRL"),
        ("DER", "DERpp"),
    ],
)
def test_names_of_methods(written, meant):
    assert suggest_name(written, METHODS) == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"loss": "cross_entropy"}, "ce"),
        ({"loss": "nn.CrossEntropyLoss"}, "ce"),
        ({"loss": torch.nn.CrossEntropyLoss()}, "ce"),
        ({"loss": torch.nn.functional.nll_loss}, "ce"),
        ({"loss": "BCEWithLogitsLoss"}, "bce"),
        ({"optimizer": "AdamW"}, "adamw"),
        ({"optimizer": torch.optim.SGD}, "sgd"),
        ({"schedule": "ReduceLROnPlateau"}, "plateau"),
        ({"precision": torch.float64}, "float64"),
        ({"device": "gpu"}, "cuda"),
        ({"method": "DER++"}, "DERpp"),
        ({"learning_rate": 0.1}, "lr"),
        ({"random_state": 0}, "seeds"),
    ],
)
def test_words_of_pytorch_and_of_papers_are_understood(given, meant):
    with pytest.raises(BadArgument, match=f"did you mean '{meant}'\\?"):
        engram.run(engram.load("blobs"), **given)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"method": ["ER", "EWC"], "strength": 3.0}, "method={'name': 'EWC', 'strength': ...}"),
        ({"hidden": [8]}, "model={'name': 'mlp', 'hidden': ...}"),
        ({"classes_per_task": 5}, "engram.class_incremental(data, classes_per_task=...)"),
    ],
)
def test_options_that_have_another_place_are_told_which(given, place):
    with pytest.raises(BadArgument, match=re.escape(f"is given as {place}")):
        engram.run(engram.load("blobs"), **given)


@pytest.mark.parametrize("make", [engram.run, engram.class_incremental, engram.rotated])
def test_names_and_arrays_are_no_data(make):
    for given in ("digits", [[1.0]]):
        with pytest.raises(BadArgument, match=r"such as engram\.(load|Data\.from_arrays)\("):
            make(given)


@pytest.mark.parametrize("given", [{"loss": "mse_loss"}, {"optimizer": torch.optim.RMSprop}])
def test_what_is_not_there_has_no_other_name(given):
    with pytest.raises(BadArgument) as said:
        engram.run(engram.load("blobs"), **given)
    assert "did you mean" not in str(said.value)


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: engram.methods.EWC(ewc_lambda=1.0), "strength"),
        (lambda: engram.methods.ER(mem_size=200), "memory"),
        (lambda: engram.Memory(size=200), "total"),
    ],
)
def test_constructors_offer_the_name_that_was_meant(make, meant):
    with pytest.raises(BadArgument, match=f"did you mean '{meant}'"):
        make()
    with pytest.raises(TypeError):  # as Python itself has it
        make()


def test_other_words_are_letters_of_names_that_exist():
    kinds = ("methods", "models", "metrics", "training")
    known = {name for kind in kinds for name in list_entries(kind)} | {*POOLS, *FIELDS, *VALUES}
    assert set(SYNONYMS) <= known
    words = [word for line in SYNONYMS.values() for word in line.split()]
    assert all(suggest_name(word, SYNONYMS) for word in words)


@pytest.mark.parametrize(
    "written", ["tau", "width", "x", "", "rate", "temperature", "depth", "mse_loss", "focal"]
)
def test_nothing_is_offered_where_nothing_is_near(written):
    assert suggest_name(written, FIELDS) is None
    assert "did you mean" not in str(unknown("--set", written, FIELDS))


def test_a_word_of_similar_letters_is_not_near():
    without = [one for one in FIELDS if one != "strength"]
    assert suggest_name("strenght", without) is None
    assert suggest_name("stregth", [*without, "length"]) is None
    assert suggest_name("ER", ["SI", "EWC"]) is None


def test_slips_are_counted():
    pairs = [("", "abc"), ("abc", "abc"), ("abc", "acb"), ("abc", "xabc"), ("kitten", "sitting")]
    assert [edit_distance(a, b) for a, b in pairs] == [3, 0, 1, 1, 3]
    assert [edit_distance(b, a) for a, b in pairs] == [3, 0, 1, 1, 3]


def test_the_declaration_that_had_the_name_of_a_method_is_named():
    with pytest.raises(AttributeError, match=r"engram\.ReplaySpec is what replay\(\) returns"):
        _ = engram.Replay


@pytest.mark.parametrize("name", ["json.py:Quiet", "json:dumps", "engram.probes:Features"])
def test_errors_of_the_library_and_of_pythons_own_are_nobodys_own(name, monkeypatch):
    monkeypatch.setattr("engram.plugins.USER_MODULES", known := set())
    with contextlib.suppress(BadArgument):
        load_user_object(name)
    assert not known


@pytest.mark.parametrize(
    ("check", "values", "said"),
    [
        (errors.check_int, (0, 1), "k: expected a whole number of at least 1, got 0"),
        (errors.check_int, (2.0,), "k: expected a whole number of at least 0, got 2.0"),
        (errors.check_int, (True,), "k: expected a whole number of at least 0, got True"),
        (errors.check_int, (3, 1, 2), "k: expected a whole number of at most 2, got 3"),
        (errors.check_float, (-1,), "k: expected a number of at least 0, got -1"),
        (errors.check_float, (1.5, 0, 1), "k: expected a number in [0, 1], got 1.5"),
        (errors.check_float, (0.0, 0, 1, True), "k: expected a number in (0, 1], got 0.0"),
        (errors.check_float, ("1",), "k: expected a number of at least 0, got '1'"),
        (errors.check_float, (float("inf"),), "k: expected a finite number, got inf"),
        (errors.check_bool, ("no",), "k: expected True or False, got 'no'"),
        (errors.check_choice, ("ab", ["abc", "d"]),
         "k: unknown name 'ab', did you mean 'abc'? Valid: abc, d"),
        (errors.check_choice, ("xyz", ["b", "a"]), "k: unknown name 'xyz'. Valid: a, b"),
    ],
)  # fmt: skip
def test_the_checks_of_arguments_say_what_they_expected(check, values, said):
    """Asserted here alone; other tests ask which argument is meant (`tests.refusals`)."""
    with pytest.raises(BadArgument) as caught:
        check("k", *values)
    assert str(caught.value) == said
    assert caught.value.argument == "k"


def test_an_error_without_an_argument_names_none():
    assert BadArgument("expected something else").argument == ""
