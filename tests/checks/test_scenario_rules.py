"""Scenarios and views of one's own: sound ones pass, each fault is found by the check about it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import engram
from engram.checks import check, scenario_rules
from engram.checks.check_report import check_name, run_check
from engram.checks.scenario_rules import ScenarioCandidate
from engram.cli import app
from engram.errors import BadArgument
from engram.streams import SCENARIOS, Stream, Task, class_incremental

OWN = """
import torch

import engram
from engram import keys
from engram.streams import Stream, Task


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, x, stage):
        far = (self.by * stage).reshape(-1, *[1] * (x.ndim - 1))
        return x + far.to(x)

    def describe(self):
        return {"kind": "own_scenario.py:Shift", "by": self.by}


def shifted(data, *, tasks: int = 3, by: float = 0.5, seed: int = 0):
    classes = tuple(range(data.n_classes))
    parts = []
    for part in (data.train, data.test):
        order = keys.permutation(keys.fold(seed, "rows", len(part)), len(part), len(part))
        parts.append(part[order].chunk(tasks))
    steps = [
        Task(train=train, test=test, new=classes if not k else (), visible=classes)
        for k, (train, test) in enumerate(zip(*parts))
    ]
    return Stream(data=data, tasks=tuple(steps), view=Shift(by), name="shifted")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_scenario.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "own_scenario.py:shifted"


def test_a_scenario_of_ones_own_passes_and_runs_by_name(own, tmp_path):
    shown = CliRunner().invoke(app, ["check", own, "--data", "digits", "--set", "tasks=2"])
    assert shown.exit_code == 0, shown.output
    assert "shifted: all 9 checks passed" in shown.output
    section = {"kind": own, "data": "digits", "tasks": 2, "by": 1.0}
    recipe, other = (
        engram.Recipe.of({"stream": {**section, "by": by}, "method": "Finetune"})
        for by in (1.0, 2.0)
    )
    stream = recipe.build_stream()
    assert (len(stream), stream.origin.kind, stream.view.by) == (2, own, 1.0)
    assert recipe.id != other.id
    ran = ["run", "--data", "digits", "--stream", own, "--set", "tasks=2", "--set", "iterations=2"]
    shown = CliRunner().invoke(app, [*ran, "--method", "Finetune", "--out", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    assert set(engram.read(tmp_path / "runs").frame()["stage"]) == {0, 1}


def test_a_changed_function_changes_the_id(own, tmp_path):
    content = {"stream": {"kind": own, "data": "digits"}, "method": "Finetune"}
    before = engram.Recipe.of(content).id
    (tmp_path / "own_scenario.py").write_text(OWN.replace('"rows"', '"others"'))
    sys.modules.pop("own_scenario")
    assert engram.Recipe.of(content).id != before


def test_wrong_names_and_options_are_refused(own):
    for section, words in (
        ({"kind": "own_scenario.py:moved"}, "moved"),
        ({"kind": "own_scenario.py:Shift"}, r"a function \(data, ...\)"),
        ({"kind": own, "taks": 2}, "did you mean 'tasks'"),
        ({"kind": own, "tasks": "two"}, "stream.tasks"),
    ):
        with pytest.raises(BadArgument, match=words):
            engram.Recipe.of({"stream": {"data": "digits", **section}, "method": "Finetune"})


@pytest.mark.parametrize("name", ["class_incremental", "task_incremental", "blurry"])
def test_scenarios_of_the_package_pass(name):
    report = check(name)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", ["permuted", "rotated"])
def test_views_of_the_package_pass(name):
    options = {"permuted": {"tasks": 3}, "rotated": {"angles": [0, 30]}}[name]
    one = ScenarioCandidate(SCENARIOS[name], options, engram.load("digits"))
    assert run_check(scenario_rules.check_views_are_pure, one).passed


def two_tasks(data, train=None, test=None, view=None):
    whole = class_incremental(data, classes_per_task=[3, 3])
    first, second = whole.tasks
    change = {k: v for k, v in (("train", train), ("test", test)) if v is not None}
    return Stream(data=data, tasks=(first, replace(second, **change)), view=view)


def trains_on_tests(data):
    """Called train and test by the stream, the other way round by the data."""
    return replace(
        stream := two_tasks(data),
        tasks=tuple(replace(t, train=t.test, test=t.train) for t in stream.tasks),
    )


def draws(data):
    order = torch.randperm(6).tolist()
    return class_incremental(data, classes_per_task=3, order=order)


def overlaps(data):
    mine = class_incremental(data, classes_per_task=3).tasks[1]
    return two_tasks(data, test=mine.train[:5])


def writes(data):
    data.x[0] += 1
    return two_tasks(data)


def loses_tests(data):
    return two_tasks(data, test=torch.empty(0, dtype=torch.long))


def loses_a_class(data):
    mine = class_incremental(data, classes_per_task=3).tasks[1]
    return two_tasks(data, train=mine.train[data.y[mine.train, 0] != 4])


def ignores_its_seed(data, *, seed=0):
    return two_tasks(data)


def ignores_its_order(data, *, order=None):
    return two_tasks(data)


class Mixes:
    def __call__(self, x, stage):
        return x - x.mean(0)

    def describe(self):
        return {"kind": "mixes"}


class Decides(Mixes):
    def __call__(self, x, stage):
        return x if int(stage.max()) == 0 else -x


class Unnamed(Mixes):
    def __call__(self, x, stage):
        return -x


def labels_nothing(data):
    first, second = class_incremental(data, classes_per_task=[3, 3]).tasks
    return Stream(
        data=data, tasks=(first, Task(train=second.train, test=second.test, visible=(0,)))
    )


FAULTS = {
    overlaps: ("makes_a_stream", "both a train and a test row"),
    labels_nothing: ("makes_a_stream", "rows with a visible label"),
    draws: ("the_same_again", "uses a global generator"),
    writes: ("data_stay_as_they_are", "writes into the inputs"),
    trains_on_tests: ("test_rows_are_the_datas", "trains on 30 test rows"),
    loses_tests: ("every_task_can_be_judged", "task 1 has no test rows"),
    loses_a_class: ("every_task_can_be_judged", "opens 4, which has no training rows in it"),
    ignores_its_seed: ("the_seed_decides", "four seeds make one stream"),
    ignores_its_order: ("the_order_counts", "changes nothing"),
}


@pytest.mark.parametrize("made", FAULTS, ids=lambda made: made.__name__)
def test_a_fault_is_found(made):
    rule, words = FAULTS[made]
    found = run_check(getattr(scenario_rules, f"check_{rule}"), ScenarioCandidate(made))
    assert not found.passed
    assert words in found.message


@pytest.mark.parametrize(
    ("view", "words"),
    [(Mixes(), "mixes rows"), (Decides(), "mixes rows"), (Unnamed(), "module:Class")],
    ids=["mixes", "decides", "unnamed"],
)
def test_a_faulty_view_is_found(view, words):
    one = ScenarioCandidate(lambda data: two_tasks(data, view=view))
    found = run_check(scenario_rules.check_views_are_pure, one)
    assert not found.passed
    assert words in found.message


def test_the_page_on_the_contract_lists_every_check():
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    for rule in scenario_rules.SCENARIO_CHECKS:
        assert f"| {check_name(rule)} | {rule.__doc__} |" in page
