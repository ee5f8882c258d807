"""Tools are told of stages while runs train; notebooks have a bar."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import engram
from engram.experiments import callbacks
from engram.experiments.callbacks import Callback
from engram.records.experiment_trackers import MissingExtra, folder_name, run_logs
from tests.refusals import refuses

QUICK = {"model": {"name": "mlp", "hidden": [4]}, "device": "cpu"}


class Book:
    """What a tool was told, in order."""

    def __init__(self):
        self.said = []

    def open(self, log):
        self.said.append((log.name, "open", log.settings["method.name"]))
        return SimpleNamespace(
            name=log.name,
            stage=lambda stage, values: self.said.append((log.name, "stage", stage, values)),
            steps=lambda rows: self.said.append((log.name, "steps", rows)),
            close=lambda: self.said.append((log.name, "close")),
        )

    def of(self, name, kind):
        return [one[2:] for one in self.said if one[:2] == (name, kind)]


@pytest.fixture
def book(monkeypatch):
    made = Book()
    monkeypatch.setattr(callbacks, "choose_sink", lambda tool, folder: made.open)
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    return made


@pytest.fixture(scope="module")
def stream():
    data = engram.load("blobs", classes=6, per_class=10, features=4)
    return engram.class_incremental(data, classes_per_task=2)


def test_every_stage_is_told_when_it_is_done(book, stream):
    order = []

    class Watch(Callback):
        def stage(self, plan, stage, rows):
            order.append((plan.run.seed, stage, len(book.said)))

    result = engram.run(stream, method="ER", seeds=2, epochs=2, together=True, log="tensorboard",
                        callback=Watch(), **QUICK)  # fmt: skip
    assert order[0][2] == 0  # the caller's callback comes first, and nothing was said before
    assert order[2][2] > 0  # the first stages of both runs were told before the second came
    for log in run_logs(result):  # the same numbers as an export of the finished runs
        told = book.of(log.name, "stage")
        assert [stage for stage, _ in told] == [0, 1, 2]
        for (_, live), (_, after) in zip(told, log.stages, strict=True):
            assert live == pytest.approx(after)
        assert [row for (rows,) in book.of(log.name, "steps") for row in rows] == log.steps
        assert len(book.of(log.name, "open")) == len(book.of(log.name, "close")) == 1


def test_a_run_that_goes_on_remembers_its_first_stages(book, stream, tmp_path):
    class Stop(Callback):
        def stage(self, plan, stage, rows):
            if stage == 1:
                raise KeyboardInterrupt

    options = {"method": "ER", "out": tmp_path, "log": ["tensorboard"], **QUICK}
    with pytest.raises(KeyboardInterrupt):
        engram.run(stream, callback=Stop(), **options)
    assert [s for s, _ in book.of("ER-seed0", "stage")] == [0]
    assert book.said[-1] == ("ER-seed0", "close")  # whatever happens, nothing stays open
    result = engram.run(stream, **options)
    stage, values = book.of("ER-seed0", "stage")[-1]
    assert stage == 2
    assert values["forgetting"] == pytest.approx(result.metric("forgetting")[0])


def test_a_tool_that_fails_does_not_stop_the_runs(book, stream, monkeypatch):
    monkeypatch.setattr(book, "open", lambda log: 1 / 0)
    monkeypatch.setattr(callbacks, "choose_sink", lambda tool, folder: book.open)
    with pytest.warns(UserWarning, match="failed .division by zero.; the runs continue"):
        result = engram.run(stream, log="tensorboard", **QUICK)
    assert np.isfinite(result.metric("average_accuracy")).all()


def test_tools_are_refused_before_any_work(monkeypatch):
    with refuses("log", near="tensorboard"):
        engram.run(None, log="tensorbord")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"wandb is not installed.*engram-cl\[export\]"):
        engram.run(None, log=["wandb"])


def test_folder_names_are_safe():
    assert folder_name("ER memory=5/x") == "ER memory=5_x"
    assert folder_name("方法") != folder_name("方式")
    assert folder_name("..") == "run"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("tool", "left"),
    [("tensorboard", "tensorboard/ER-seed0/events.*"), ("wandb", "wandb/offline-run-*/*.wandb"),
     ("mlflow", "mlflow.db")],
)  # fmt: skip
def test_real_tools(tool, left, stream, tmp_path, monkeypatch):
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"needs {tool}, of the extra export")
    monkeypatch.setenv("WANDB_SILENT", "true")
    engram.run(stream, method="ER", out=tmp_path, log=tool, **QUICK)
    assert list(tmp_path.glob(left))


def test_a_bar_in_notebooks(stream, monkeypatch):
    shown = []
    monkeypatch.setattr(callbacks, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(callbacks, "make_html_display", lambda: shown.append)
    engram.run(stream, **QUICK)
    assert shown == []  # no notebook, no bar
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    engram.run(stream, seeds=2, label="<b>", together=False, **QUICK)
    assert "starting" in shown[0]
    assert any("&lt;b&gt;: task 3 of 3" in text for text in shown)
    shares = [float(text.split('value="')[1].split('"')[0]) for text in shown[:-1]]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert "2 runs in " in shown[-1]


def test_a_kernel_is_recognised(monkeypatch):
    assert not callbacks.in_notebook()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert callbacks.in_notebook()


def test_a_function_is_a_callback(tmp_path, monkeypatch):
    heard = []
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)

    def follow(plan, stage, rows):
        heard.append((plan.label, stage, "accuracy" in set(rows.frame()["metric"])))

    engram.run(stream, iterations=1, callback=follow)
    assert heard == [("Finetune", 0, True), ("Finetune", 1, True)]
    (tmp_path / "own_callback.py").write_text(
        "heard = []\ndef follow(plan, stage, rows):\n    heard.append(stage)\n"
    )
    monkeypatch.chdir(tmp_path)
    engram.run(stream, iterations=1, callback="own_callback.py:follow")
    import own_callback

    assert own_callback.heard == [0, 1]
    for wrong in (lambda plan: None, 3):
        with refuses("callback"):
            engram.run(stream, iterations=1, callback=wrong)
