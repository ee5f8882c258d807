"""Old names work for one version, and every use of one says the new name."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import engram
from engram import Recipe, ReplaySpec, Training, renamed
from engram.cli import app
from engram.engine.training import Training as TrainingSettings
from engram.errors import BadArgument
from engram.experiments.overrides import set_value
from engram.experiments.pools.pool import Work
from engram.experiments.search import search
from engram.methods.method import REMOVED, Method, Phase, check_arguments
from engram.reproduce import reproduce
from engram.reproduce.papers.cgl_paper import CGLPreset
from engram.reproduce.papers.iirc_paper import IIRCProtocol
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.papers.rwalk_paper import RWalkPreset
from engram.serve.request_limits import RequestLimits

CLASSES = {
    one.__name__: one
    for one in (
        Training,
        Phase,
        Work,
        RequestLimits,
        IIRCProtocol,
        ReplaySpec,
        CGLPreset,
        RWalkPreset,
    )
}
RENAMED = [
    (lambda: Training(first_factor=2.0), Training(first_task_scale=2.0)),
    (lambda: Training(last="wrap"), Training(incomplete_batch="wrap")),
    (
        lambda: Training(schedule="plateau", min_lr=1e-4),
        Training(schedule="plateau", stop_lr=1e-4),
    ),
    (lambda: Training(scope="then"), Training(scope="at_time")),
    (lambda: replace(Training(), last="drop"), Training(incomplete_batch="drop")),
    (lambda: ReplaySpec("apart", 3), ReplaySpec("separate", 3)),
    (lambda: ReplaySpec(kind="apart"), ReplaySpec(kind="separate")),
    (lambda: Phase(fresh=True), Phase(reinitialise=True)),
    (lambda: Phase(moves=("net.head",)), Phase(trainable=("net.head",))),
    (lambda: RequestLimits(most_bytes=5), RequestLimits(max_request_bytes=5)),
    (lambda: CGLPreset(gem_scope="then"), CGLPreset(gem_scope="at_time")),
    (lambda: RWalkPreset(scope_samples="then"), RWalkPreset(scope_samples="at_time")),
    (lambda: Training(lr=0.1).min_lr, 0.0),
    (lambda: Phase(trainable=("net",)).moves, ("net",)),
]


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_old_names_mean_the_new_ones_and_say_so_where_they_are_used(old, new):
    with pytest.warns(renamed.RenamedWarning, match="is now called") as caught:
        found = old()
    assert found == new
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_tables_name_classes_fields_and_values_that_exist():
    assert CLASSES.keys() == renamed.FIELDS.keys() | renamed.VALUES.keys()
    for name, pairs in renamed.FIELDS.items():
        known = {one.name for one in fields(CLASSES[name])}
        assert known.issuperset(pairs.values())
        assert not known & pairs.keys()
    for name, values in renamed.VALUES.items():
        assert values.keys() <= {one.name for one in fields(CLASSES[name])}
    assert not any(hasattr(Method, old) for old in REMOVED)


def test_signatures_and_todays_names_are_as_if_there_were_no_old_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Training(stop_lr=1e-4, schedule="plateau", scope="at_time")
    assert "min_lr" not in inspect.signature(Training).parameters
    assert list(inspect.signature(engram.run).parameters)[:2] == ["stream", "method"]
    with pytest.raises(TypeError, match="min_lrr"):
        Training(min_lrr=1)  # type: ignore[call-arg]


def test_a_class_of_the_same_name_elsewhere_is_left_alone():
    @dataclass(frozen=True)
    class Training:
        last: int = 3

    assert renamed.rename_fields(Training, {"last": 4}) == {"last": 4}
    assert Training is not TrainingSettings


# -- recipes ---------------------------------------------------------------------------------------
OLD = {"last": "wrap", "scope": "then"}
NEW = {"incomplete_batch": "wrap", "scope": "at_time"}


def test_recipes_are_read_with_old_names(tmp_path):
    rest = {"stream": "blobs", "method": "ER"}
    made = Recipe.of({**rest, "training": NEW})
    with pytest.warns(renamed.RenamedWarning) as caught:
        assert Recipe.of({**rest, "training": OLD}).id == made.id
    assert ["last is now" in str(one.message) for one in caught] == [True, False]
    Path(tmp_path / "r.yaml").write_text(yaml.safe_dump({**rest, "training": OLD}))
    with pytest.warns(renamed.RenamedWarning) as caught:
        assert Recipe.read(tmp_path / "r.yaml").plain() == made.plain()
    assert "scope='then' is now called scope='at_time'" in str(caught[1].message)
    with (
        pytest.raises(BadArgument, match="incomplete_batch: expected it once, not by its old"),
        pytest.warns(renamed.RenamedWarning),
    ):
        Recipe.of({**rest, "training": {**NEW, "last": "drop"}})


@pytest.mark.parametrize("key", ["last", "training.last"])
def test_assignments_take_old_names(key):
    content = {"stream": "blobs", "method": "ER", "training": {"incomplete_batch": "drop"}}
    with pytest.warns(renamed.RenamedWarning):
        set_value(content, f"{key}=wrap")
    assert content["training"] == {"incomplete_batch": "wrap"}


def test_assignments_to_papers_take_old_names():
    table = engram.reproduce.find_table("iirc/C.1", embedded=True).preset
    with pytest.warns(renamed.RenamedWarning, match="IIRCProtocol: first_factor"):
        assert assign_settings(table, ["cifar.first_factor=3"]).cifar.first_task_scale == 3


# -- methods ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", REMOVED)
def test_verbs_that_are_gone_say_what_to_write(name):
    old = dataclass(frozen=True)(type("Old", (Method,), {name: 3}))
    with pytest.raises(BadArgument, match=rf"Old\.{name} is not called any more: "):
        check_arguments(old())


# -- functions and the command line ----------------------------------------------------------------
def test_functions_take_their_old_argument(tmp_path):
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    first = engram.run(stream, out=tmp_path)
    with pytest.warns(renamed.RenamedWarning, match="run: again is now called rerun") as caught:
        second = engram.run(stream, out=tmp_path, again=True)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(second.matrix, first.matrix)
    assert len(list(tmp_path.glob("superseded-*"))) == 1
    for function in (engram.sweep, engram.orders, search, reproduce):
        assert "rerun" in inspect.signature(function).parameters
        with (
            pytest.warns(renamed.RenamedWarning, match="again is now called rerun"),
            pytest.raises((BadArgument, TypeError)),
        ):
            function("", again=True, device="none")


def commands():
    return [(name, *pair) for name, pairs in renamed.OPTIONS.items() for pair in pairs.items()]


@pytest.mark.parametrize(("command", "old", "new"), commands())
def test_old_options_mean_the_new_ones_and_say_so(command, old, new):
    said = CliRunner().invoke(app, [command, "--help"]).output
    assert new in said
    assert f"{old} " not in said
    flag = [] if new == "--rerun" else ["none"]
    found = CliRunner().invoke(app, [command, old, *flag, "--not-there"])
    assert f"engram {command}: {old} is now called {new}; the old name" in found.stderr
    assert "No such option: --not-there" in found.stderr


def test_the_command_line_shows_the_warnings_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "-d", "blobs", "-s", "classes_per_task=5", "-s", "last=wrap"]
    found = CliRunner().invoke(app, [*words, "-o", "out"])
    assert found.exit_code == 0, found.output
    assert "warning: Training: last is now called incomplete_batch" in found.stderr
    (recipe,) = tmp_path.glob("out/recipes/*.yaml")
    assert yaml.safe_load(recipe.read_text())["training"]["incomplete_batch"] == "wrap"
