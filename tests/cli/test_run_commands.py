"""engram run, sweep and resume: what is asked, what is trained, what is kept."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import engram as package
from engram.cli import console, execution
from engram.data.packed import write_packed
from engram.errors import BadArgument
from engram.experiments.overrides import set_values
from tests.cli.conftest import SMALL
from tests.refusals import refuses


def stages_of(folder):
    return sum(map(len, package.records.RunDirectory(folder).finished_runs().values()))


def test_run_compares_methods_and_keeps_everything(engram):
    done = engram("run", *SMALL, "-m", "Finetune", "-m", "ER", "--seeds", 2, "-o", "out")
    kept = package.read("out")
    assert kept.labels == ["Finetune", "ER"]
    assert len(kept) == 4
    for label in kept.labels:
        shown = next(line for line in done.stdout.splitlines() if line.startswith(label))
        mean = kept.summary().loc[label, "average_accuracy"]
        assert f"{mean:.3f} ± " in shown
    assert "Results:  out" in done.stderr
    assert "engram report out -o report.html" in done.stderr


def test_the_same_question_is_not_trained_twice(engram):
    first = engram("run", *SMALL, "--seeds", 2)
    assert "already finished" not in first.stderr
    again = engram("run", *SMALL, "--seeds", 3)
    assert "already finished: 2 of 3 runs" in again.stderr
    assert len(list(Path("runs").iterdir())) == 1


def test_set_reaches_training_method_model_and_stream(engram):
    engram(
        "run", *SMALL, "-m", "Finetune", "-m", "ER", "-o", "out", "-s", "epochs=2",
        "-s", "ER.memory.total=40", "-s", "model.hidden=[8]", "-s", "stream.seed=3",
    )  # fmt: skip
    result = package.read("out")
    by_method = {one["method"]["name"]: one for one in result.recipes.values()}
    assert by_method["ER"]["method"]["memory"]["total"] == 40
    assert by_method["Finetune"]["training"]["epochs"] == 2
    assert by_method["Finetune"]["model"] == {"name": "mlp", "hidden": [8]}
    assert by_method["Finetune"]["stream"]["seed"] == 3
    assert result.cost()["memory_items"].max() == 40


def test_skeletons_need_no_edges_and_a_bare_name_sets_them(engram):
    few = (
        "-s",
        "stream.data_options={per_class: 10, frames: 4}",
        "-s",
        "epochs=1",
        "-s",
        "width=4",
    )
    for more in ((), ("-s", "edges=ucla")):
        engram("run", "--data", "skeletons", "--model", "gcn", *few, *more, "-o", f"out{len(more)}")
    plain, named = package.read("out0"), package.read("out2")
    (recipe,) = named.recipes.values()
    assert recipe["model"] == {"name": "gcn", "width": 4, "edges": "ucla"}
    np.testing.assert_array_equal(plain.matrix, named.matrix)
    done = engram("run", "--data", "skeletons", "--model", "gcn", *few, "-s", "edgs=ucla", code=2)
    assert "did you mean 'edges'" in done.stderr


def test_a_bare_name_concerns_the_methods_that_know_it():
    recipes = execution.make_contents(data="blobs", methods=["Finetune", "EWC"])
    set_values(recipes, "strength=7")
    assert [one["method"].get("strength") for one in recipes] == [None, 7]
    with refuses("--set", near="strength"):
        set_values(recipes, "strenght=7")


def test_a_dotted_name_concerns_the_methods_that_know_it():
    recipes = execution.make_contents(data="blobs", methods=["Finetune", "ER"])
    set_values(recipes, "memory.total=40")
    assert recipes[0]["method"] == {"name": "Finetune"}
    assert execution.build_recipes(recipes)[1].method.memory.total == 40
    with refuses("--set", near="memory"):
        set_values(recipes, "memry.total=40")


def test_options_of_a_stream_have_fields_themselves():
    (recipe,) = execution.make_contents(data="blobs", methods=["ER"])
    set_values([recipe], "balance.degrees=10")
    set_values([recipe], "data_options.classes=6")
    assert recipe["stream"] == {
        "data": "blobs", "balance": {"degrees": 10}, "data_options": {"classes": 6},
    }  # fmt: skip
    with refuses("stream.balance", near="degrees"):
        set_values([recipe], "balance.degres=10") or execution.build_recipes([recipe])
    with refuses("--set", near="balance"):
        set_values([recipe], "balanse.degrees=10")


def test_parts_of_a_memory_change_one_by_one():
    recipes = execution.make_contents(data="blobs", methods=["ER"])
    set_values(recipes, "memory.policy=herding")
    set_values(recipes, "memory.per_class=4")
    memory = execution.build_recipes(recipes)[0].method.memory
    assert (memory.policy, memory.per_class, memory.total) == ("herding", 4, None)


def test_options_of_detectors_and_of_the_outside_set():
    made = {"data": "blobs", "methods": ["ER"], "detectors": ["KNN", "Softmax"]}
    (recipe,) = execution.make_contents(**made, outside="digits")
    for assignment in ("KNN.k=2", "outside.limit=9", "outside.data_options.seed=1"):
        set_values([recipe], assignment)
    assert recipe["detectors"] == [{"name": "KNN", "k": 2}, "Softmax"]
    assert recipe["outside"] == {"data": "digits", "limit": 9, "data_options": {"seed": 1}}
    with refuses("--set", near="Softmax"):
        set_values([recipe], "Sofmax.k=2")
    set_values([recipe], "detectors=5")  # refused when the recipe is built
    with pytest.raises(BadArgument, match="unknown name 'Softmax'"):
        set_values([recipe], "Softmax.k=2")
    with refuses("--grid", near="memory"):
        execution.expand_grid([recipe], ["memry.total=1,2"])


def test_parts_of_a_joined_method_are_set_by_name():
    recipes = execution.make_contents(data="blobs", methods=["LwF+EWC"])
    set_values(recipes, "EWC.strength=7")
    assert execution.build_recipes(recipes)[0].method.parts[1].strength == 7


def test_recipe_file_and_options(engram):
    content = {
        "stream": {"data": "blobs", "classes_per_task": 5}, "method": "ER", "label": "mine",
    }  # fmt: skip
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("run", "r.yaml", "-o", "a")
    engram("run", "r.yaml", "-m", "Finetune", "--model", "mlp", "--keep", "counts", "-o", "b")
    assert package.read("a").labels == ["mine"]
    assert package.read("b").labels == ["Finetune"]  # the file's label spoke of ER
    assert len(package.read("a").predictions) == 2
    assert not len(package.read("b").predictions)


def test_own_method_from_a_file(engram):
    Path("own").mkdir()
    Path("own/quiet.py").write_text(
        "from dataclasses import dataclass\nfrom engram.methods.method import Method\n"
        "@dataclass(frozen=True)\nclass Quiet(Method):\n    size: int = 3\n"
    )
    for missing in ("own/quite.py:Quiet", "json.py:Quiet"):  # there is a module json
        said = engram("run", *SMALL, "-m", missing, code=2).stderr
        assert f"expected an existing file in '{missing}'" in said
    own = ("run", *SMALL, "-m", "own/quiet.py:Quiet", "-o", "out", "-s")
    said = engram("run", *SMALL, "-m", "own/quiet.py", code=2).stderr
    assert "method: expected own/quiet.py:NAME with a name defined there (Quiet)" in said
    said = engram("run", *SMALL, "-m", "own/quiet.py:Loud", code=2).stderr
    assert said.strip().endswith("Valid: Quiet")  # not what it imports
    assert "did you mean 'size'" in engram(*own, "Quiet.siz=4", code=2).stderr
    engram(*own, "Quiet.size=4")
    engram(*own, "size=4")
    engram(*own, "own/quiet.py:Quiet.size=5")
    assert package.read("out").labels == ["Quiet (size 4)", "Quiet (size 5)"]


def interrupt_after(monkeypatch, stages):
    """A real Ctrl-C once so many stages are recorded."""
    count = iter(range(1, 100))
    usual = execution.ProgressMeter.stage

    def stage(self, *args):
        usual(self, *args)
        if next(count) == stages:
            # a test started in the background would inherit that Ctrl-C is ignored
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.signal(signal.SIGINT, before)

    monkeypatch.setattr(execution.ProgressMeter, "stage", stage)


def test_interrupted_run_goes_on(engram, monkeypatch):
    command = ("run", *SMALL, "-m", "ER", "--seeds", 2, "--no-together", "-o")
    engram(*command, "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        stopped = engram(*command, "part", code=130)
    assert "1 of 2 runs complete, 1 in part (3 stages in all)" in stopped.stderr
    assert "engram resume part" in stopped.stderr
    assert stages_of("part") == 3
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    resumed = engram("resume", "../part")
    assert "already finished: 1 of 2 runs" in resumed.stderr
    monkeypatch.chdir("..")
    whole, part = package.read("whole"), package.read("part")
    np.testing.assert_array_equal(part.full_matrix, whole.full_matrix)


@pytest.fixture(params=["SIGTERM", "SIGHUP"])
def ending(request):
    """A signal that is heard, whoever started the tests (under nohup SIGHUP is ignored)."""
    number = getattr(signal, request.param)
    before = signal.signal(number, signal.SIG_DFL)
    yield number
    signal.signal(number, before)


def test_signals_that_end_are_said_and_leave_a_checkpoint(engram, monkeypatch, ending):
    number, name, usual = ending, signal.Signals(ending).name, execution.ProgressMeter.step

    def step(self, plans, stage, done, total):
        usual(self, plans, stage, done, total)
        if stage == 1:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(execution.ProgressMeter, "step", step)
        done = engram("run", *SMALL, "-s", "epochs=30", "-o", "out", code=128 + number)
    assert f"Ended by {name}. Kept in out: 0 of 1 run complete, 1 in part (1" in done.stderr
    assert "stage in all, and the steps since)" in " ".join(done.stderr.split())
    assert len(list(Path("out/checkpoint/steps").glob("*.safetensors"))) == 1
    monkeypatch.setattr("engram.cli.execution.Work", lambda **_: signal.raise_signal(number))
    done = engram("run", *SMALL, "-o", "early", code=128 + number)  # before anything trains
    assert f"engram: Ended by {name}" in done.stderr


def test_resume_knows_all_requests(engram, tmp_path):
    engram("run", *SMALL, "-m", "Finetune", "-o", "out")
    engram("run", *SMALL, "-m", "ER", "-o", "out")
    for file in tmp_path.glob("out/results-*"):
        file.unlink()
    engram("resume", "out")
    assert sorted(package.read("out").labels) == ["ER", "Finetune"]


def test_resume_of_what_python_wrote(engram):
    recipe = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "Finetune"}
    package.sweep([recipe], out="swept")
    assert "already finished: 1 of 1 run" in engram("resume", "swept").stderr
    stream = package.class_incremental(package.load("blobs"), classes_per_task=5)
    package.run(stream, out="made")
    assert "already finished: 1 of 1 run" in engram("resume", "made").stderr
    for place, model in enumerate(({"name": "mlp", "hidden": [8]}, {"name": "mlp"})):
        package.run(stream, model=model, out=f"mapped{place}")
        assert "already finished: 1 of 1 run" in engram("resume", f"mapped{place}").stderr
    assert "existing run directory" in engram("resume", "nowhere", code=2).stderr
    Path("empty").mkdir()
    assert "contains no recipes" in engram("resume", "empty", code=2).stderr


def named():
    return package.class_incremental(package.load("blobs"), classes_per_task=5)


def from_arrays(name="mine"):
    x, y = np.eye(40, 8, dtype="float32"), [0, 1, 2, 3] * 10
    return package.Data.from_arrays(x, y, name=name)


def test_resume_says_what_only_python_can_go_on_with(engram):
    stream = package.class_incremental(from_arrays())
    package.run(stream, out="memory")
    package.run(named()[:1], out="sliced")
    layers = (torch.nn.Linear(16, 8), torch.nn.ReLU())
    package.run(named(), model=lambda shape: torch.nn.Sequential(*layers), out="own")
    package.run(named(), model={"name": lambda shape: torch.nn.Sequential(*layers)}, out="named")
    for out, why in {
        "memory": "its data ('mine') were in memory", "own": "was built in Python",
        "named": "was built in Python", "sliced": "its stream was built in Python",
    }.items():  # fmt: skip
        said = engram("resume", out, code=2).stderr
        assert why in said
        assert f"make the same call again with out='{out}'" in said


def test_resume_goes_on_with_what_python_began(engram, tmp_path):
    write_packed(from_arrays(), Path("mine.npz"))
    rest = {"method": "ER", "seeds": 2, "together": False}
    orders = [(0, 1, 2, 3), (3, 2, 1, 0)]
    for order in orders:
        stream = package.class_incremental(package.load("mine.npz"), order=order)
        package.run(stream, out="part", **rest)
    whole = package.read("part")
    for file in sorted(tmp_path.glob("part/results-*"))[1::2]:
        file.unlink()
    Path("elsewhere").mkdir()
    with contextlib.chdir("elsewhere"):
        engram("resume", "../part")
    again = package.read("part")
    assert sorted(again.runs) == sorted(whole.runs)
    for run in whole.runs:
        pair = [one.select(seed=run.seed, order=run.order).matrix for one in (whole, again)]
        np.testing.assert_array_equal(*pair)


def test_reading_runs_no_code_and_going_on_needs_a_word(engram, tmp_path):
    Path("foreign.py").write_text(
        "from pathlib import Path\nfrom engram.methods import Finetune\n"
        "Path('imported').touch()\nclass Quiet(Finetune):\n    pass\n"
    )
    engram("run", *SMALL, "-m", "foreign:Quiet", "-o", "out")
    package.run(named(), method=sys.modules["foreign"].Quiet(), out="made")
    for file in tmp_path.glob("*/results-*"):
        file.unlink()
    for out in ("out", "made"):
        Path("imported").unlink()
        del sys.modules["foreign"]
        assert "method.name" in engram("diff", out, "rwalk/1").stdout
        said = engram("resume", out, code=2).stderr
        assert "foreign:Quiet: the directory refers to code outside Engram" in said
        assert said.strip().endswith(f"engram resume {out} --trust")
        said = engram("novelty", out, "--detectors", "Softmax", code=2).stderr
        assert f"allow it to run: engram novelty {out} --detectors Softmax --trust" in said
        assert not Path("imported").exists()
        engram("resume", out, "--trust")
        assert Path("imported").exists()
        assert package.read(out).labels == ["Quiet"]


def test_one_request_that_is_refused_does_not_stop_the_others(engram, tmp_path):
    write_packed(from_arrays(), Path("mine.npz"))
    engram("run", "--data", "mine.npz", "-o", "out")
    engram("run", *SMALL, "-o", "out")
    Path("out/requests/0broken.yaml").write_text("recipes: [")
    Path("mine.npz").unlink()
    for file in tmp_path.glob("out/results-*"):
        file.unlink()
    said = engram("resume", "out", code=2).stderr
    assert "mine.npz" in said
    assert "0broken.yaml: expected YAML" in said
    assert "2 of 3 requests in out could not be continued" in said
    assert stages_of("out") == 2


def test_a_damaged_checkpoint_is_named_and_the_rest_goes_on(engram, monkeypatch):
    command = ("run", *SMALL, "-m", "ER", "--seeds", 2, "--no-together", "-s", "epochs=2", "-o")
    engram(*command, "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        engram(*command, "part", code=130)
    (path,) = Path("part").glob("checkpoint/*/stage-0000.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = engram("resume", "part").stderr
    assert f"note: {path.absolute()}: is damaged" in said
    whole, part = package.read("whole"), package.read("part")
    np.testing.assert_array_equal(part.full_matrix, whole.full_matrix)


def test_resume_refuses_an_experiment_that_has_changed(engram):
    write_packed(from_arrays(), Path("mine.npz"))
    command = ("run", "--data", "mine.npz", "-o", "out")
    engram(*command)
    other = package.Data.from_arrays(np.ones((40, 8), "float32"), [0, 1, 2, 3] * 10)
    write_packed(other, Path("mine.npz"))
    assert "mine.npz') has changed since" in engram("resume", "out", code=2).stderr
    assert stages_of("out") == 2
    done = engram(*command)
    assert "note: Finetune: the data" in done.stderr
    assert len(package.read("out").summary()) == 2


def test_one_identity_for_every_way_to_ask(engram):
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "ER"}
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("run", *SMALL, "-m", "ER", "-o", "out")
    assert "already finished: 1 of 1" in engram("run", "r.yaml", "-o", "out").stderr
    stream = package.class_incremental(package.load("blobs"), classes_per_task=5)
    runs = {
        *package.read("out").runs, *package.run(stream, method="ER").runs,
        *package.sweep([content]).runs,
    }  # fmt: skip
    assert len(runs) == 1


def test_again_runs_anew(engram, tmp_path):
    engram("run", *SMALL, "-o", "out")
    assert "already finished" not in engram("run", *SMALL, "-o", "out", "--rerun").stderr
    assert len(list(tmp_path.glob("out/superseded-*.json"))) == 1
    assert "already finished: 1 of 1" in engram("resume", "out").stderr
    Path("r.yaml").write_text(yaml.safe_dump({"stream": "blobs", "method": "Finetune"}))
    engram("sweep", "r.yaml", "-o", "swept")
    assert "already finished" not in engram("sweep", "r.yaml", "-o", "swept", "--rerun").stderr
    assert len(package.read("swept")) == 1


def test_sweep_over_a_grid(engram):
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "Finetune"}
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("sweep", "r.yaml", "-g", "lr=0.1,0.001", "-g", "method=Finetune,ER", "-o", "out")
    result = package.read("out")
    assert sorted(result.labels) == [
        "ER (lr 0.001)", "ER (lr 0.1)", "Finetune (lr 0.001)", "Finetune (lr 0.1)",
    ]  # fmt: skip
    assert "key=value,value" in engram("sweep", "r.yaml", "-g", "lr", code=2).stderr
    assert "did you mean 'serial'" in engram("sweep", "r.yaml", "--pool", "serail", code=2).stderr


def test_a_grid_without_a_file(engram):
    engram("sweep", "-d", "blobs", "-m", "EWC", "-s", "classes_per_task=5", "-g",
           "strength=1,5000", "-o", "out")  # fmt: skip
    assert sorted(package.read("out").labels) == ["EWC (strength 1)", "EWC (strength 5000)"]
    said = engram("sweep", "-g", "lr=0.1", code=2).stderr
    assert "engram sweep: expected a RECIPE.yaml, or --data with a name or path" in said


def test_values_of_a_grid_have_names_even_if_they_are_defaults(engram):
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "ER"}
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("sweep", "r.yaml", "-g", "memory.total=500,20", "-g", "lr=0.01,0.1", "-o", "out")
    assert sorted(package.read("out").labels) == [
        "ER (memory 20, lr 0.01)",
        "ER (memory 20, lr 0.1)",
        "ER (memory 500, lr 0.01)",
        "ER (memory 500, lr 0.1)",
    ]


def test_orders_are_swept_and_resumed(engram, tmp_path):
    order = ",".join(["[9,8,7,6,5,4,3,2,1,0]", "[0,1,2,3,4,5,6,7,8,9]"])
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "Finetune"}
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("sweep", "r.yaml", "-g", f"order={order}", "-o", "out")
    assert len(package.read("out")) == 2
    for file in tmp_path.glob("out/results-*"):
        file.unlink()
    engram("resume", "out")
    assert len(package.read("out")) == 2


def test_diverged_runs_are_said(engram):
    done = engram("run", *SMALL, "-s", "lr=1e30", "-s", "optimizer=sgd", "-o", "out", code=1)
    assert "1 diverged" in done.stdout
    assert "error: Finetune" in done.stderr


def test_the_exit_code_says_that_all_runs_diverged(engram):
    wild = (*SMALL, "-s", "lr=1e10", "-m", "Finetune", "-m", "ER", "--seeds", "2")
    done = engram("run", *wild, "-o", "out", code=1)
    assert "engram: all 4 runs diverged; try a smaller learning rate" in done.stderr.splitlines()
    assert len(package.read("out").diverged) == 4
    engram("resume", "out", code=1)
    engram("run", *SMALL, "-o", "out")  # this call's run is sound


def test_one_sound_run_is_enough_for_success(engram):
    Path("r.yaml").write_text(yaml.safe_dump({"stream": {"data": "blobs"}, "method": "Finetune"}))
    done = engram("sweep", "r.yaml", "-g", "lr=1e10,1e-3", "-o", "out")
    assert len(package.read("out").diverged) == 1
    assert "engram: " not in done.stderr


def test_a_negative_number_of_workers_is_refused_not_taken_for_none(engram, tmp_path):
    (tmp_path / "r.yaml").write_text("{stream: {data: blobs}, method: Finetune}")
    done = engram("sweep", "r.yaml", "--pool", "processes", "--workers", -1, code=2)
    assert "--workers: expected a whole number of at least 0, got -1" in done.stderr
    with refuses("workers"):
        package.sweep([{"stream": {"data": "blobs"}, "method": "Finetune"}], workers=-1)


def test_request_of_another_form_is_refused(tmp_path):
    folder = tmp_path / console.FOLDER
    folder.mkdir()
    (folder / "a.yaml").write_text("recipes: []\nwhat: 1\n")
    with pytest.raises(package.RecordError, match="not a request"):
        console.read_requests(tmp_path)


@pytest.mark.parametrize("text", ["", "a", "1,b", "-1", "1.5"])
def test_bad_seeds(text):
    with refuses("--seeds"):
        execution.parse_seeds(text)


def test_processes_meet_in_one_directory(engram):
    content = {"stream": {"data": "blobs", "classes_per_task": 5}, "method": "own:Quiet"}
    Path("own.py").write_text(
        "from dataclasses import dataclass\nfrom engram.methods.method import Method\n"
        "@dataclass(frozen=True)\nclass Quiet(Method):\n    size: int = 3\n"
    )
    Path("r.yaml").write_text(yaml.safe_dump(content))
    engram("sweep", "r.yaml", "-g", "size=1,2", "--pool", "processes", "--workers", 1, "-o", "out")
    assert sorted(package.read("out").labels) == ["Quiet (size 1)", "Quiet (size 2)"]


@pytest.mark.parametrize("command", [["run", "r.yaml"], ["sweep", "r.yaml", "--pool", "processes"]])
def test_a_budget_stops_and_resume_goes_on(engram, tmp_path, command):
    (tmp_path / "r.yaml").write_text("{stream: blobs, method: Finetune, training: {epochs: 1}}")
    stopped = engram(*command, "--budget", "0s", "-o", "out").stderr
    assert "The time budget is used up. Kept in out: 0 of 1 run complete" in stopped
    assert "engram resume out" in stopped
    assert "budget" not in engram("resume", "out", "--budget", "10m").stderr
    assert len(package.read(tmp_path / "out")) == 1
    complaint = engram(*command, "--budget", "ten", "-o", "new", code=2).stderr
    assert "budget: expected a duration" in complaint
    assert not (tmp_path / "new").exists()


def test_a_table_from_the_command_line(engram, tmp_path):
    rows = [
        f"{i % 4 + i / 100},{'' if i == 3 else i % 3},{'xy'[i % 2]},{'abcd'[i % 4]}"
        for i in range(40)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["size,hue,coat,kind", *rows]))
    assert "--label NAME" in engram("run", "--data", "t.csv", code=2).stderr
    asked = ("run", "--data", "t.csv", "--label", "kind")
    assert "hue 1 of 40 rows" in engram(*asked, code=2).stderr
    engram(*asked, "-s", "missing=mean", "-s", "standardize=true", "--out", "out")
    (recipe,) = (one["stream"] for one in package.read("out").recipes.values())
    assert recipe["data_options"] == {"label": "kind", "missing": "mean", "standardize": True}
    shown = engram("data", "inspect", "t.csv", "--label", "kind", "-s", "missing=0").stdout
    assert "t: rows of (4,)" in shown
    new = ["coat,hue,id,size", "y,2,7,1.0", "x,,8,0.5"]  # in another order, with a gap
    (tmp_path / "new.csv").write_text("\n".join(new))
    assert engram("predict", "out", "--data", "new.csv").stdout.count("\n") == 3


OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def rows(size=40):
    return TensorDataset(torch.arange(3 * size).reshape(size, 3) / 100, torch.arange(size) % 4)


class Net(nn.Sequential):
    def __init__(self, width=8, num_classes=2):
        super().__init__(nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, num_classes))
"""


@pytest.mark.filterwarnings("default")  # what is said of the head
def test_own_network_and_own_data_from_the_command_line(engram, tmp_path):
    (tmp_path / "own_things.py").write_text(OWN)
    asked = ("--data", "own_things.py:rows", "--model", "own_things.py:Net", "--out", "out")
    found = engram("run", *asked, "-s", "model.width=5", "-s", "size=60", "-s", "standardize=true")
    assert "last layer 2 (Linear 5 -> 4) becomes the head" in found.stderr
    assert "Data('rows': 48 train" in found.stderr
    (recipe,) = package.read("out").recipes.values()
    assert recipe["model"] == {"name": "own_things.py:Net", "width": 5}
    assert recipe["stream"]["data"] == "own_things.py:rows"
    engram("metrics", "out")
    shutil.rmtree("out/checkpoints", ignore_errors=True)
    assert "--trust" in engram("resume", "out", code=2).stderr
    engram("resume", "out", "--trust")
    wrong = engram("run", *asked, "-s", "model.widht=5", code=2).stderr
    assert "unknown name 'widht', did you mean 'width'" in wrong
    wrong = engram("run", *asked[:3], "own_things.py:Nett", code=2).stderr
    assert "did you mean 'Net'" in wrong


def test_a_value_that_only_some_methods_have_is_set_in_those(engram):
    engram("run", *SMALL, "-m", "ER", "-m", "EWC", "-s", "memory.total=20", "-o", "out")
    made = {one["method"]["name"]: one["method"] for one in package.read("out").recipes.values()}
    assert made["ER"]["memory"]["total"] == 20
    assert made["EWC"]["memory"] is None
    said = engram("run", *SMALL, "-m", "EWC", "-s", "memory.total=20", code=2).stderr
    assert "--set: expected a field of EWC that has fields itself" in said


def test_domains_of_a_table_and_a_limit_of_its_rows(engram):
    rows = [f"{i // 60},{i % 5},{i % 7},{i % 3}" for i in range(180)]
    Path("mine.csv").write_text("\n".join(["week,a,b,kind", *rows]))
    engram("run", "-d", "mine.csv", "--label", "kind", "--stream", "domain_incremental",
           "-s", "by=week", "-o", "out")  # fmt: skip
    (content,) = package.read("out").recipes.values()
    assert content["stream"]["data_options"]["attributes"] == ["week"]
    assert package.read("out").tasks.tolist() == [3]
    engram("run", "out", "-o", "again")
    assert package.read("again").runs == package.read("out").runs
    engram("run", *SMALL, "--limit", 100, "-o", "few")
    items = package.read("few").items(package.read("few").runs[0].recipe, "")
    assert len(items.rows) == 100
