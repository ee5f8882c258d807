"""Directories of very many runs: no work per run that walks over all of them."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram import metrics
from engram.records import Rows, RunDirectory, run_arrays
from engram.records.confusion import _choose_recipes
from engram.records.result import Result
from engram.records.run_directory import read_recipe
from engram.records.summary import describe_excluded_runs, summarise_groups
from engram.records.table_parts import keep_stage_ends, read_part, result_files


def result_of(runs: int) -> Result:
    rows = Rows()
    for seed in range(runs):
        rows.bind(recipe=f"{seed:012x}", label=f"ER {seed}", seed=seed)
        rows.add("accuracy", seed / runs, stage=0, task=0, head="single")
    return Result(rows.frame())


def test_remarks_look_through_the_table_as_often_for_many_runs_as_for_few(monkeypatch):
    looked = []
    plain = run_arrays.end_of_stage_rows
    monkeypatch.setattr(
        run_arrays, "end_of_stage_rows", lambda *given: looked.append(1) or plain(*given)
    )
    counts = []
    for runs in (2, 40):
        result = result_of(runs)
        looked.clear()
        describe_excluded_runs(result)
        result.summary()
        counts.append(len(looked))
    assert counts[0] == counts[1]


def test_groups_are_summed_up_to_the_last_bit():
    rng = np.random.default_rng(0)
    values = rng.random(50)
    values[rng.random(50) < 0.2] = np.nan
    groups = np.array_split(rng.permutation(50), 9)
    found = summarise_groups(values, groups)
    for place, group in enumerate(groups):
        known = values[group][~np.isnan(values[group])]
        assert found.runs[place] == len(known)
        assert found.mean[place] == metrics.mean(known)
        np.testing.assert_array_equal(found.std[place], metrics.std(known))


def test_only_the_metrics_that_are_asked_for_are_read(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    rows.add("accuracy", 0.5, stage=0, task=0, head="single")
    rows.add_array("class_accuracy", [0.4, 0.6], stage=0, task=0, cls=[0, 1], head="single")
    folder.append(rows)
    some = engram.read(folder.path, metrics=lambda name: name == "accuracy")
    assert some.frame()["metric"].tolist() == ["accuracy"]
    assert some.metric("average_accuracy") == engram.read(folder.path).metric("average_accuracy")
    assert len(engram.read(folder.path).frame()) == 3


def test_what_is_finished_needs_one_row_of_a_stage(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    rows.add_array("accuracy", np.full((3, 3), 0.5), stage=[[0], [1], [2]], task=[0, 1, 2])
    rows.add("loss/task", 0.1, stage=3, step=7)  # of a stage that is not finished
    rows.add("diverged", 1.0, stage=2)
    folder.append(rows)
    (path,) = result_files(folder.path)
    kept = read_part(path, keep_stage_ends).to_pylist()
    assert [(row["stage"], row["metric"]) for row in kept] == [
        (0, "accuracy"), (1, "accuracy"), (2, "accuracy"), (2, "diverged"),
    ]  # fmt: skip
    assert folder.finished("0a1b2c3d4e5f", 0) == {0, 1, 2}
    assert folder.diverged("0a1b2c3d4e5f", 0)


@pytest.mark.parametrize(
    "text",
    [
        "stream:\n  data: blobs\nseeds:\n- 0\n- 1\nlabel: ER lr=0.1\n",
        "model:\n  hidden: [8]\n# a remark\nkeep: counts\n",  # parsed as a whole
        "base: &base\n  a: 1\nother: *base\n",
    ],
)
def test_sections_of_recipes_are_those_of_the_whole_text(text, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert read_recipe(path) == engram.io.read_yaml(path)


def test_a_key_that_stands_twice_in_a_recipe_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("label: a\nseeds: [0]\nlabel: b\n")
    with pytest.raises(engram.errors.RecordError, match="'label' twice"):
        read_recipe(path)


def test_recipes_with_the_best_runs_are_chosen(monkeypatch):
    monkeypatch.setattr("engram.records.confusion.MOST_RECIPES", 3)
    result = result_of(10)
    chosen = _choose_recipes(result, [run.recipe for run in result.runs])
    assert chosen == [run.recipe for run in result.runs[-3:]]
