"""What a run directory recorded runs again: recipes, requests, chosen runs, with equal numbers."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import engram as package
from engram.errors import EngramError, RecordError
from engram.streams import SCENARIOS
from tests.cli.conftest import SMALL
from tests.refusals import refuses

OWN = """
import torch
from engram import Probe
from engram.methods import Finetune

class Quiet(Finetune):
    pass

class Net(torch.nn.Module):
    def __init__(self, sample_shape, width=4):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(sample_shape[0], width), torch.nn.ReLU())

    def forward(self, x):
        return self.body(x)
"""
WAYS = {  # to run a stream: arguments of `run`
    "detectors": {"detectors": ["Softmax", "KNN"]},
    "tuned": {
        "detectors": [{"name": "Tuned", "detector": "ODIN"}],
        "outside": {"data": "blobs", "data_options": {"seed": 1}},
    },
    "method": {"method": {"name": "ICaRL", "memory": {"total": 20}}, "average": "macro"},
    "joined": {"method": "LwF+EWC", "evaluate_unseen": True},
    "seeds": {"method": "ER", "seeds": [3, 5], "keep": "parameters"},
    "training": {
        "optimizer": "sgd",
        "lr": 0.1,
        "schedule": "cosine",
        "model": {"name": "mlp", "hidden": [8]},
    },
}


def assert_runs_again(result, **how):
    """Run the recorded recipes of a result, which must give the same ids and numbers."""
    contents = [result.recipes[one] for one in dict.fromkeys(run.recipe for run in result.runs)]
    for content in contents:
        recipe = package.Recipe.of(content)
        assert recipe.id == package.Recipe.of(recipe.plain()).id
        assert recipe.id in {run.recipe for run in result.runs}
    again = package.sweep(contents, pool="serial", **how)
    assert set(again.runs) == set(result.runs)
    for run in result.runs:
        pair = [one.select(recipe=run.recipe, seed=run.seed, order=run.order).full_matrix
                for one in (result, again)]  # fmt: skip
        np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("way", WAYS)
def test_recorded_recipes_run_as_they_are(way):
    stream = package.class_incremental(
        package.load("blobs"), classes_per_task=5, order=[*range(9, -1, -1)], valid=0.2
    )
    result = package.run(stream, epochs=1, together=False, **WAYS[way])
    assert_runs_again(result)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("joint", {}), ("task_incremental", {"classes_per_task": 5}),
        ("class_incremental", {"first": 4, "classes_per_task": 3, "seed": 1, "valid": 0.1}),
        ("permuted", {"tasks": 2}), ("rotated", {"angles": [0, 90]}),
        ("blurry", {"tasks": 2}), ("new_instances", {"tasks": 2}),
        ("hierarchical", {"hierarchy": {"low": ["0", "1"], "high": ["2", "3"]},
                          "tasks": [["low", "high"], ["0", "1", "2", "3"]]}),
    ],
)  # fmt: skip
def test_recorded_recipes_of_scenarios_run_as_they_are(kind, options):
    stream = SCENARIOS[kind](package.load("digits"), **options)
    assert_runs_again(package.run(stream, epochs=1, together=False))


def test_online_balanced_and_cut_streams_run_as_they_are():
    base = {"data": "digits", "classes_per_task": 5}
    for more in ({"online": True}, {"balance": True}, {"search": {"tasks": 1}, "valid": 0.2}):
        result = package.sweep({"stream": {**base, **more}, "method": "ER"}, pool="serial")
        assert_runs_again(result)


def test_own_code_in_files_runs_from_what_was_recorded(engram):
    Path("code").mkdir()
    Path("code/mine.py").write_text(OWN)
    engram("run", *SMALL, "-m", "code/mine.py:Quiet", "--model", "code/mine.py:Net", "-o", "out",
           "-s", "model.width=6")  # fmt: skip
    before = package.read("out")
    (content,) = before.recipes.values()
    assert content["method"]["name"] == "code/mine.py:Quiet"
    sys.modules.pop("mine")
    for path in (*Path("out/recipes").iterdir(), *Path("out/requests").iterdir()):
        engram("run", path, "-o", f"again-{path.stem}")
        again = package.read(f"again-{path.stem}")
        assert again.runs == before.runs
        np.testing.assert_array_equal(again.matrix, before.matrix)
    assert "--trust" in engram("run", "out", code=2).stderr
    assert "1 of 1 run have exactly" in engram("run", "out", "--trust").stderr
    with contextlib.chdir("code"):  # a request names files as seen from where it was made
        engram("run", *Path("../out/requests").iterdir(), "-o", "../third")
    assert package.read("third").runs == before.runs


def test_chosen_runs_of_a_directory_are_repeated(engram):
    engram("run", *SMALL, "-m", "ER", "-m", "LwF", "--seeds", 2, "--no-together", "-o", "out")
    said = engram("run", "out", "--label", "ER", "--seed", 1, "--no-together").stderr
    assert "1 of 1 run have exactly the accuracies in out" in said
    before, again = package.read("out"), package.read("runs/out-rerun")
    assert again.runs == before.select(label="ER", seed=1).runs
    engram("run", "out", "--no-together", "-o", "all")
    assert set(package.read("all").runs) == set(before.runs)
    engram("run", "out", "--label", "ER", "--seed", 7, "-o", "more")
    assert [run.seed for run in package.read("more").runs] == [7]
    assert "--label: unknown name 'ERR'" in engram("run", "out", "--label", "ERR", code=2).stderr


def test_runs_in_several_orders_are_repeated(engram):
    for order in ("[9,8,7,6,5,4,3,2,1,0]", "[0,1,2,3,4,5,6,7,8,9]"):
        engram("run", *SMALL, "-s", f"order={order}", "--no-together", "-o", "out")
    engram("run", *SMALL, "--task-orders", "all", "--class-orders", 2, "-o", "out")
    assert "6 of 6 runs have exactly" in engram("run", "out", "-o", "again").stderr


def test_studies_of_orders_run_from_the_command_line_and_as_recorded(engram):
    done = engram("run", *SMALL, "--task-orders", "all", "--class-orders", 2, "-o", "out")
    study = package.orders(
        package.Recipe.of({"stream": {"data": "blobs", "classes_per_task": 5},
                           "method": "Finetune"}), class_orders=2, out="made",
    )  # fmt: skip
    before = package.read("out")
    assert before.runs == study.result.runs
    np.testing.assert_array_equal(before.matrix, study.result.matrix)
    shown = f"{study.summary()['task_aopd'].iloc[0]:.3f}"
    assert shown in done.stdout
    for path in (*Path("made/recipes").iterdir(), *Path("out/requests").iterdir()):
        engram("run", path, "-o", f"again-{path.stem}")
        assert set(package.read(f"again-{path.stem}").runs) == set(before.runs)
    for file in Path("made").glob("results-*"):
        file.unlink()
    engram("resume", "made")
    assert len(package.read("made")) == 4
    with refuses("--task-orders"):
        package.cli.execution.read_orders("some", None)


def test_searches_and_their_trials_run_again(engram):
    engram("search", *SMALL, "-m", "EWC", "-r", "strength=1,100", "--trials", 2, "-s", "valid=0.2",
           "-o", "out")  # fmt: skip
    before = package.read("out")
    assert len(before) == 2
    engram("run", *Path("out/recipes").iterdir(), "-o", "trials")
    assert set(package.read("trials").runs) == set(before.runs)
    engram("run", *Path("out/requests").iterdir(), "-o", "again")
    assert set(package.read("again").runs) == set(before.runs)
    assert Path("again/chosen.yaml").is_file()


def test_what_has_changed_since_it_was_recorded_is_refused(engram):
    table = "week,a,b,kind\n" + "\n".join(f"{i % 2},{i % 5},{i % 3},{i % 4}" for i in range(80))
    Path("mine.csv").write_text(table)
    engram("run", "-d", "mine.csv", "--label", "kind", "-o", "out")
    (path,) = Path("out/recipes").iterdir()
    engram("run", path, "-o", "again")
    Path("mine.csv").write_text(table.replace("0,0,", "1,0,"))
    assert "the data has changed since it was recorded" in engram("run", path, code=2).stderr
    content = yaml.safe_load(path.read_text())
    content["training"]["epochs"] = 2  # edited, it is another recipe
    Path("edited.yaml").write_text(yaml.safe_dump(content))
    engram("run", "edited.yaml", "-o", "edited")


def test_what_was_made_in_python_is_named():
    stream = package.class_incremental(package.load("blobs"), classes_per_task=5)
    net = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())
    other = package.Data.from_arrays(np.random.default_rng(0).random((40, 16)), [0, 1] * 20)
    made = {
        "its model": package.run(stream, model=net),
        "its stream": package.run(stream[:1]),
        "outside data": package.run(stream, detectors=["Softmax"], outside=other),
    }
    for what, result in made.items():
        (content,) = result.recipes.values()
        with pytest.raises(EngramError, match=what):
            package.Recipe.of(content)
    data = package.Data.from_arrays(np.eye(40, 8), [0, 1, 2, 3] * 10)
    result = package.run(data)
    (content,) = result.recipes.values()
    with pytest.raises(RecordError, match="in memory"):
        package.sweep(content)
    recipe = package.Recipe.of(content)
    assert package.run(recipe.build_stream(data)).runs == result.runs


def test_one_seed_and_a_number_of_seeds(engram):
    engram("run", *SMALL, "--seed", 3, "-o", "one")
    engram("run", *SMALL, "--seeds", 3, "-o", "three")
    assert [run.seed for run in package.read("one").runs] == [3]
    assert [run.seed for run in package.read("three").runs] == [0, 1, 2]
    assert "one of --seed and --seeds" in engram("run", *SMALL, "--seed", 3, "--seeds", 3,
                                                 code=2).stderr  # fmt: skip
    stream = package.class_incremental(package.load("blobs"), classes_per_task=5)
    assert [run.seed for run in package.run(stream, seed=3).runs] == [3]
    with refuses("seed"):
        package.run(stream, seed=3, seeds=2)
