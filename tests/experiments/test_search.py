from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import engram
from engram.errors import BadArgument
from engram.experiments import Callback
from engram.experiments.search_space import Range, spread_values, suggest
from engram.streams import make_search_stream

RECIPE = {
    "stream": {"data": "blobs", "valid": 0.25},
    "method": "EWC",
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 1, "optimizer": "sgd"},
}
SPACE = {"strength": "1..1e4:log", "lr": "1e-3..0.3:log"}
HOW = {"trials": 5, "batch": 3, "tasks": 2, "device": "cpu"}


class Watching(Callback):
    """Notes who trains beside whom, and which runs train at all."""

    def __init__(self, stop_after=None):
        self.groups, self.stages, self.stop_after = [], [], stop_after

    def begin(self, plans, done):
        self.groups.append(0)

    def step(self, plans, stage, done, total):
        self.groups[-1] = max(self.groups[-1], len(plans))

    def stage(self, plan, stage, rows):
        self.stages.append((plan.label, stage))
        if len(self.stages) == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out, watch = tmp_path_factory.mktemp("search"), Watching()
    return engram.search(RECIPE, SPACE, out=out, callback=watch, **HOW), watch, out


def test_trials_of_a_batch_train_in_lockstep(searched):
    found, watch, _ = searched
    assert watch.groups == [3, 2]
    assert [one.batch for one in found.trials] == [0, 0, 0, 1, 1]
    assert len({one.recipe for one in found.trials}) == 5


def test_test_rows_and_later_tasks_are_untouched(searched):
    found, _, _ = searched
    runs = [one for part in found.result.ledger for one in part["runs"]]
    assert len(runs) == 5
    stream = engram.Recipe.of(RECIPE).build_stream()
    rows = [sum(len(task.valid) for task in stream[: k + 1]) for k in range(2)]
    for run in runs:
        assert set(run["stages"]) == {"0", "1"}
        for stage, counts in run["stages"].items():
            assert counts["held_out"] == rows[int(stage)]
            assert "test" not in counts
    assert found.result.recipes[found.best.recipe]["stream"]["search"] == {
        "tasks": 2,
        "on": "valid",
    }
    assert "no result here is on test rows" in str(found.result)


def test_the_best_on_validation_rows_is_chosen_and_run(searched):
    found, _, _ = searched
    stream = engram.Recipe.of(RECIPE).build_stream()
    by_hand = []
    for one in found.trials:
        options = {"lr": one.values["lr"], **RECIPE["training"], "model": RECIPE["model"]}
        method = engram.methods.EWC(strength=one.values["strength"])
        result = engram.run(
            make_search_stream(stream, tasks=2), method=method, device="cpu", **options
        )
        by_hand.append(float(result.metric("average_accuracy")[0]))
    assert [one.value for one in found.trials] == pytest.approx(by_hand, abs=1e-6)
    place = int(np.argmax(by_hand))
    assert found.chosen == found.trials[place].values
    whole = found.run(device="cpu")
    assert whole.tasks.tolist() == [len(stream)]
    recipe = found.recipe
    assert recipe.method.strength == found.chosen["strength"]
    assert whole.runs[0].recipe == recipe.id
    assert "search" not in recipe.stream


def test_cost_and_table(searched):
    found, _, _ = searched
    steps = found.result.cost()["steps"].sum()
    assert found.cost["runs"] == found.cost["trials"] == 5
    assert found.cost["steps"] == steps > 0
    assert 0 < found.cost["run_seconds"] <= found.cost["seconds"]
    curve = found.curve("lr")
    assert curve["lr"].is_monotonic_increasing
    assert len(curve) == 5


def test_nothing_finished_is_run_twice(searched):
    found, _, out = searched
    watch = Watching()
    again = engram.search(RECIPE, SPACE, out=out, callback=watch, **HOW)
    assert watch.stages == []
    assert [(one.values, one.value) for one in again.trials] == [
        (one.values, one.value) for one in found.trials
    ]
    more = engram.search(RECIPE, SPACE, out=out, callback=watch, **{**HOW, "trials": 6})
    assert [one.values for one in more.trials[:5]] == [one.values for one in found.trials]
    assert {label for label, _ in watch.stages} == {more.trials[5].label}


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(searched, tmp_path):
    found, _, _ = searched
    with pytest.raises(KeyboardInterrupt):  # inside the second batch
        engram.search(RECIPE, SPACE, out=tmp_path, callback=Watching(stop_after=8), **HOW)
    watch = Watching()
    again = engram.search(RECIPE, SPACE, out=tmp_path, callback=watch, **HOW)
    assert [(one.values, one.value) for one in again.trials] == [
        (one.values, one.value) for one in found.trials
    ]
    assert 0 < len(watch.stages) <= 2
    (file,) = (tmp_path / "searches").glob("*.json")
    assert json.loads(file.read_text())["chosen"] == found.chosen


def test_a_search_on_test_rows_says_so(searched):
    found, _, _ = searched
    stream = engram.Recipe.of(RECIPE).build_stream()
    on_test = engram.search(
        stream, {"strength": [1.0, 100.0]}, method="EWC", epochs=1, on="test", trials=2, tasks=2,
        device="cpu",
    )  # fmt: skip
    assert "TEST ROWS" in str(on_test)
    assert "TEST ROWS" not in str(found)
    assert "TEST ROWS" in str(on_test.result)
    assert on_test.result.ledger[0]["stages"]["0"]["test"] > 0
    assert on_test.run(device="cpu").labels[0].endswith("chosen on test rows")
    assert on_test.recipe is None


def test_trials_that_diverge_are_not_chosen():
    space = {"lr": [0.01, 1e30]}
    found = engram.search(RECIPE, space, trials=4, tasks=2, device="cpu")
    assert [one.diverged for one in found.trials] == [0, 1]  # there are no more values
    assert found.trials[1].value is None
    assert found.chosen == {"lr": 0.01}
    assert found.complete


def test_ties_are_said(searched):
    found = searched[0]
    first = found.trials[0]

    def valued(*values):
        return replace(
            found, trials=tuple(replace(first, number=i, value=v) for i, v in enumerate(values))
        )

    assert "equally good" not in str(valued(0.5, 0.4))
    assert "all 3 trials are equally good" in str(valued(0.5, 0.5, 0.5))
    assert "2 of 3 trials are equally good; the first one is chosen" in str(valued(0.4, 0.5, 0.5))


def test_forgetting_is_minimised():
    found = engram.search(
        RECIPE, {"epochs": "1..2"}, trials=2, tasks=2, metric="forgetting", device="cpu"
    )
    assert [one.values["epochs"] for one in found.trials] == [1, 2]  # whole: it takes no others
    least = min(found.trials, key=lambda one: one.value)
    assert found.best == least


def test_suggestions_follow_what_was_told():
    ranges = [Range.parse("lr", "1e-4..1:log"), Range.parse("optimizer", "sgd,adam")]
    first = spread_values(ranges, 8, seed=0)
    assert sorted(one["lr"] for one in first)[::7] == [1e-4, 1.0]  # from end to end
    assert [one["optimizer"] for one in first].count("sgd") == 4
    told = [(one, -abs(np.log10(one["lr"] / 0.01))) for one in first]  # best at 0.01
    asked = {"seed": 3, "sampler": "tpe"}
    more = suggest(ranges, told, 8, **asked)
    assert more == suggest(ranges, told, 8, **asked)
    random = suggest(ranges, told, 8, seed=3, sampler="random")
    near = [np.mean([abs(np.log10(one["lr"] / 0.01)) for one in every]) for every in (more, random)]
    assert near[0] < near[1]
    few = [Range.parse("optimizer", "sgd,adam"), Range.parse("epochs", "1..2:int")]
    tried = [({"optimizer": o, "epochs": e}, 0.0) for o in ("sgd", "adam") for e in (1, 2)]
    assert suggest(few, tried[:3], 4, **asked) == [tried[3][0]]
    assert suggest(few, tried, 4, **asked) == []


@pytest.mark.parametrize(
    ("space", "options", "complaint"),
    [
        ({}, {}, "at least one range"),
        ({"strenght": "1..2"}, {}, "did you mean 'strength'"),
        ({"strength": "1..x"}, {}, "LOW..HIGH"),
        ({"strength": "2..1"}, {}, "a low end below"),
        ({"strength": "-1..1"}, {}, "strength"),
        ({"lr": "0..1:log"}, {}, "above 0"),
        ({"lr": "0.1..1:int"}, {}, "whole ends"),
        ({"lr": "0.1..1:exp"}, {}, "log or int"),
        ({"lr": [0.1]}, {}, "at least two"),
        ({"optimizer": "sgd,adamm"}, {}, "did you mean 'adam'"),
        ({"seeds": "1..3"}, {}, "fields of the method"),
        (SPACE, {"on": "tests"}, "did you mean 'test'"),
        (SPACE, {"tasks": 9}, "at most 5"),
        (SPACE, {"trials": 0}, "trials"),
        (SPACE, {"sampler": "grid"}, "sampler"),
        (SPACE, {"epochs": 3}, "no value with a recipe"),
    ],
)
def test_bad_searches_are_refused(space, options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        engram.search(RECIPE, space, **options)


def test_what_cannot_be_searched_is_refused():
    whole = engram.Recipe.of(RECIPE)
    stream = whole.build_stream()
    with pytest.raises(BadArgument, match="validation rows"):
        engram.search({**RECIPE, "stream": "blobs"}, SPACE)
    with pytest.raises(BadArgument, match="no option of the stream"):
        engram.search(stream, {"classes_per_task": "1..2"})
    with pytest.raises(BadArgument, match="a whole stream"):
        engram.search(make_search_stream(stream, tasks=2), {"lr": "0.1..1"})
    with pytest.raises(BadArgument, match="a stream in memory"):
        engram.search(stream, {"lr": "0.1..1"}, pool="processes", out="x")


@pytest.mark.parametrize("form", ["recipe", "stream"])
def test_what_was_chosen_trains_on_all_rows_and_tells_what_the_search_cost(form):
    section = {"data": "blobs", "classes_per_task": 5, "valid": 0.2}
    if form == "recipe":
        found = engram.search(
            {"stream": section, "method": "EWC"}, {"strength": [1, 100]}, trials=2
        )
        assert "valid" not in found.recipe.stream
        assert engram.Recipe.of(found.recipe.plain()).tuning == found.recipe.tuning
    else:
        stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5, valid=0.2)
        found = engram.search(stream, {"strength": [1, 100]}, method="EWC", trials=2)
    result = found.run()
    (content,) = result.recipes.values()
    assert content["tuning"]["runs"] == 2
    assert content["tuning"]["ranges"] == {"strength": [1, 100]}
    read = sum(one["train"] for one in result.ledger[0]["stages"].values())
    assert read == len(engram.load("blobs").train)
    assert "chosen by a search of 2 trials (2 runs, " in str(result)


def test_what_reads_validation_rows_keeps_them():
    content = {
        "stream": {"data": "blobs", "classes_per_task": 5, "valid": 0.2}, "method": "EWC",
        "training": {"epochs": 3, "patience": 1},
    }  # fmt: skip
    found = engram.search(content, {"strength": [1, 100]}, trials=2)
    assert found.recipe.stream["valid"] == 0.2
