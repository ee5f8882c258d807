"""Logs of other libraries: the samples are written by hand in the form of each."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from engram.cli import app
from engram.errors import RecordError
from engram.records import import_log, read
from tests.refusals import refuses

MATRIX = [[0.9], [0.6, 0.8], [0.3, 0.5, 0.7]]
EXPECTED = np.array([[0.9, np.nan, np.nan], [0.6, 0.8, np.nan], [0.3, 0.5, 0.7]])
FORGETTING = {"max": 0.45, "mammoth": 0.45, "avalanche": 0.45}


def mammoth_line(model="er", seed=1, matrix=MATRIX, **further):
    cells = {
        f"accuracy_{j + 1}_task{i + 1}": 100 * value
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
    }
    text = str({"dataset": "seq-mnist", "model": model, "seed": seed, **further, **cells})
    # what Mammoth prints beside plain values
    return text[:-1] + ", 'device': device(type='cpu'), 'forgetting': np.float64(3.5)}\n"


def avalanche_name(task, label=0):
    return f"Top1_Acc_Exp/eval_phase/test_stream/Task{label:03d}/Exp{task:03d}"


def pycil_lines(seed=1993, kinds=("CNN",), matrix=MATRIX):
    lines = [f"seed: {seed}", "model_name: icarl", "dataset: cifar100"]
    for i, row in enumerate(matrix):
        for kind in kinds:
            groups = {f"{10 * j:02d}-{10 * j + 9:02d}": 100 * v for j, v in enumerate(row)}
            lines.append(f"{kind}: {{'total': 50.0, {str(groups)[1:-1]}, 'old': 0, 'new': 9.0}}")
        lines.append(f"CNN top1 curve: {[50.0] * (i + 1)}")
    return [f"2026-01-01 00:00:00,000 [trainer.py] => {line}" for line in lines]


def test_mammoth(tmp_path):
    path = tmp_path / "class-il" / "seq-mnist" / "er" / "logs.pyd"
    path.parent.mkdir(parents=True)
    lines = [mammoth_line(seed=k) for k in (1, 2)]
    path.write_text("".join([*lines, mammoth_line("derpp", alpha=0.1)]))
    result = import_log("mammoth", path)
    assert result.labels == ["er", "derpp"]
    assert [run.seed for run in result.runs] == [1, 2, 1]
    np.testing.assert_allclose(result.matrix, [EXPECTED] * 3)
    assert result.heads == ["single"] * 3
    for name, value in FORGETTING.items():
        assert result.metric("forgetting", definition=name) == pytest.approx([value] * 3)


def test_settings_tell_experiments_of_mammoth_apart(tmp_path):
    path = tmp_path / "task-il" / "logs.pyd"
    path.parent.mkdir()
    lines = [mammoth_line(seed=1, buffer_size=size, conf_host=f"h{size}") for size in (200, 500)]
    path.write_text("".join(lines))
    result = import_log("mammoth", path)
    assert result.labels == ["er buffer_size=200", "er buffer_size=500"]
    assert set(result.heads) == {"multi"}


def test_printed_values_of_mammoth(tmp_path):
    path = tmp_path / "er.txt"
    lines = []
    for row in MATRIX:
        values = [100 * v for v in row]
        line = f"\tRaw accuracy values: Class-IL {values} | Task-IL {[99.0] * len(row)}\n"
        lines += ["Accuracy for task(s)\n", line, "[INFO] " + line]
    path.write_text("".join(lines))
    result = import_log("mammoth", path)
    assert sorted(result.heads) == ["multi", "single"]
    single = result.matrix[result.heads.index("single")]
    np.testing.assert_allclose(single, EXPECTED)


def test_nothing_in_a_log_is_run(tmp_path):
    path, trace = tmp_path / "logs.pyd", tmp_path / "trace"
    bait = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    path.write_text("{'model': 'er', 'x': " + bait + ", 'accuracy_1_task1': 50.0}\n")
    assert import_log("mammoth", path).matrix.tolist() == [[[0.5]]]
    assert not trace.exists()
    path.write_text(bait + "\n{" + bait)
    with pytest.raises(RecordError, match="line 2"):
        import_log("mammoth", path)


@pytest.mark.parametrize("form", ["csv", "text", "metrics", "evaluations"])
def test_avalanche(tmp_path, form):
    cells = [(i, j, v) for i, row in enumerate(MATRIX) for j, v in enumerate(row)]
    path = tmp_path / {"csv": "eval_results.csv", "text": "log.txt"}.get(form, "naive.json")
    if form == "csv":
        first = ["eval_exp,training_exp,eval_accuracy,eval_loss,forgetting", "0,None,0.1,2.3,0"]
        path.write_text("\n".join([*first, *(f"{j},{i},{v:.4f},0.3,0" for i, j, v in cells)]))
    elif form == "text":
        lines = []
        for i, row in enumerate(MATRIX):
            lines.append(f"-- Starting training on experience {i} (Task 0) from train stream --")
            lines.append("\tTop1_Acc_Epoch/train_phase/train_stream/Task000 = 0.9000")
            for j, value in enumerate(row):
                lines.append(f"> Eval on experience {j} (Task 0) from test stream ended.")
                lines.append(f"\t{avalanche_name(j)} = {value:.4f}")
        path.write_text("\n".join(lines))
    elif form == "metrics":  # x is the iteration of training
        series = {}
        for i, j, v in cells:
            steps, values = series.setdefault(avalanche_name(j), [[], []])
            steps.append(100 * (i + 1))
            values.append(v)
        path.write_text(json.dumps({"Loss_Stream/eval_phase/test_stream": [[1], [2]], **series}))
    else:
        found = [{avalanche_name(j): v for j, v in enumerate(row)} for row in MATRIX]
        path.write_text(json.dumps(found))
    result = import_log("avalanche", path)
    np.testing.assert_allclose(result.matrix, [EXPECTED])
    assert result.labels == ["naive" if path.suffix == ".json" else tmp_path.name]
    assert result.metric("forgetting", definition="avalanche") == pytest.approx([0.45])


def test_task_labels_of_avalanche_mean_a_head_per_task(tmp_path):
    path = tmp_path / "naive.json"
    found = [{avalanche_name(j, label=j): 0.5 for j in range(i + 1)} for i in range(2)]
    path.write_text(json.dumps(found))
    assert import_log("avalanche", path).heads == ["multi"]
    assert import_log("avalanche", path, head="single").heads == ["single"]


def test_pycil(tmp_path):
    path = tmp_path / "run.log"
    lines = [*pycil_lines(1993, ("CNN", "NME")), *pycil_lines(1994, ("CNN", "NME"))]
    path.write_text("\n".join(lines))
    result = import_log("pycil", path)
    assert result.labels == ["icarl", "icarl (NME)"]
    assert [run.seed for run in result.runs] == [1993, 1994, 1993, 1994]
    np.testing.assert_allclose(result.matrix, [EXPECTED] * 4)


def test_groups_of_pycil_that_are_no_tasks_are_refused(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(pycil_lines(matrix=[[0.9, 0.8], [0.5, 0.4, 0.3]])))
    with pytest.raises(RecordError, match="not its tasks"):
        import_log("pycil", path)


def test_long_csv(tmp_path):
    path = tmp_path / "all.csv"
    lines = ["label,seed,stage,task,value"]
    for seed in (3, 7):
        for i, row in enumerate(MATRIX):
            lines += [f"ER,{seed},{i + 1},{j + 1},{100 * v}" for j, v in enumerate(row)]
    path.write_text("\n".join(lines))
    result = import_log("csv", path, percent=True)
    assert [run.seed for run in result.runs] == [3, 7]
    np.testing.assert_allclose(result.matrix, [EXPECTED] * 2)
    with pytest.raises(RecordError, match="between 0 and 1"):
        import_log("csv", path)


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        ("csv", "label,seed,stage,task,value\nER,0,1,1,high", "line 2"),
        ("csv", "label,seed,stage,task,value\nER,0,0,1,0.5", "out of range"),
        ("csv", "label,seed,stage,task,value\nER,0,1,1,0.5\nER,0,1,1,0.6", "second value"),
        ("csv", "label,seed,stage,task,value,colour\nER,0,1,1,0.5,red", "colour"),
        ("avalanche", "eval_exp,training_exp,eval_accuracy,eval_loss,forgetting\n0,0,,,", "line 2"),
        ("avalanche", "{nonsense", "not JSON"),
        ("mammoth", "{'model': 'er', 'accmean_task1': 50.0}", "means only"),
        ("mammoth", "{'model': 'er', 'accuracy_1_task1': 150.0}", "0 and 100"),
        ("pycil", "some words", "CNN"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, form, text, words):
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(RecordError, match=words):
        import_log(form, path)


def test_percent_is_for_csv(tmp_path):
    with refuses("percent"):
        import_log("mammoth", tmp_path / "x", percent=True)


def test_command_writes_a_run_directory(tmp_path):
    path, out = tmp_path / "logs.pyd", tmp_path / "theirs"
    path.write_text("".join(mammoth_line(model, k) for model in ("er", "sgd") for k in range(3)))
    run = CliRunner().invoke(app, ["import", "mammoth", str(path), "--out", str(out)])
    assert run.exit_code == 0, run.output
    result = read(out)
    assert result.labels == ["er", "sgd"]
    np.testing.assert_allclose(result.matrix, [EXPECTED] * 6)
    told = CliRunner().invoke(app, ["metrics", str(out), "--compare", "average_accuracy"])
    assert told.exit_code == 0, told.output
    assert "0.45" in told.output
    page = CliRunner().invoke(app, ["report", str(out), "-o", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    again = CliRunner().invoke(app, ["import", "mammoth", str(path), "--out", str(out)])
    assert again.exit_code != 0
