"""Predictions recorded for a monitor: ids, labels that come later, learnings, metrics."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from engram import Client, Learner, Monitor
from engram.errors import EngramError
from engram.io import DiskError
from engram.serve.client import ServiceError
from engram.serve.service import Service
from engram.serve.training_worker import learn_task
from tests.deploy.conftest import FAST, MODEL
from tests.deploy.test_model_store import begun, made, week  # noqa: F401 - fixtures
from tests.refusals import refuses
from tests.serve.client import ask, serving, until


@pytest.fixture
def models(made, tmp_path):  # noqa: F811
    shutil.copy(made / "versions" / "000001.engram", tmp_path / "file.engram")
    return {"store": shutil.copytree(made, tmp_path / "store"), "file": tmp_path / "file.engram"}


def test_late_labels_find_their_predictions(models, monkeypatch):
    monkeypatch.setattr("engram.serve.served_model.MONITOR_SECONDS", 0.0)
    with serving(models, tokens=[("predict", "looks"), ("admin", "rules")], record=True) as found:
        port, service = found
        service._processes[0].learn = lambda **order: learn_task(**order)  # in this process
        (x, y), address = week(5, rows=5), f"http://127.0.0.1:{port}"
        for name, learnt in (("store", 2), ("file", 2)):
            asked = Client(address, token="rules", model=name, retries=0)
            seen = asked.observe(x, [f"{name} {k}" for k in range(len(x))])
            right = np.mean([label == truth for (_, label), truth in zip(seen, y)])
            assert asked.labels([one for one, _ in seen], y) == len(x)
            asked.wait(asked.learn(*week(1)))
            assert asked.observe(x[:2])[0][0] not in ("", seen[0][0])  # ids of the service's own
            assert asked.predict(x) == asked.predict(x.tolist())
            monitor = Monitor.of(models[name])
            assert monitor.observations()["model"].unique().tolist() == [1, learnt]
            told = monitor.numbers()
            assert (told["labelled_rows"], told["accuracy"]) == (len(x), right)
            assert told["rows"] == 3 * len(x) + 2
            assert told["learnings"] >= 1
            text = ask(port, "/metrics", token="looks")[1]
            assert f'engram_monitor_accuracy{{model="{name}"}} {right}' in text
            assert f'engram_monitor_learnings{{model="{name}"}} {told["learnings"]}' in text
        assert ask(port, "/labels", {"ids": ["a"], "y": [1]}, token="looks")[0] == 403
        for wrong in ({"ids": ["a"], "y": [1, 2]}, {"ids": [], "y": []}, {"ids": [1], "y": [1]},
                      {"ids": ["a" * 201], "y": [1]}, {"ids": ["a"], "y": [[1]]}):  # fmt: skip
            assert ask(port, "/labels", wrong, token="rules")[0] == 422
        body = {"x": x[:2].tolist(), "ids": ["one"]}
        assert ask(port, "/predict", body, token="looks")[0] == 422


def test_an_answer_does_not_depend_on_the_disk(models, monkeypatch, caplog):
    with serving({"file": models["file"]}, record=True) as (port, service):
        service._processes[0].learn = lambda **order: learn_task(**order)
        asked, x = Client(f"http://127.0.0.1:{port}", retries=0), week(5, rows=2)[0]

        def full(*given, **options):
            raise DiskError(OSError(28, "No space left on device"), models["file"])

        for verb in ("predict", "record_learning"):
            monkeypatch.setattr(service.first.monitor, verb, full)
        assert asked.predict(x) == service.first.learner.predict(x).tolist()
        with pytest.raises(EngramError, match="nothing was recorded"):
            asked.observe(x)
        assert asked.wait(asked.learn(*week(1))).state == "learnt"
        until(lambda: "a learning is not recorded" in caplog.text)
        assert "predictions are not recorded" in caplog.text


def test_what_is_not_recorded_is_said(models, tmp_path):
    with serving({"file": models["file"]}) as (port, service):
        asked = Client(f"http://127.0.0.1:{port}", retries=0)
        for ask_for in (
            lambda: asked.labels(["a"], [1]),
            lambda: asked.observe([[0] * 8], ["a"]),
        ):
            with pytest.raises(ServiceError, match="--record"):
                ask_for()
        assert service.first.numbers == {}
        assert "engram_monitor" not in ask(port, "/metrics")[1]
    learner = Learner("ER", MODEL, **FAST).learn(week()[0][:40], [["a", "b"], ["c"]] * 20)
    with refuses("--record"):
        Service(learner.save(tmp_path / "sets.engram"), device="cpu", record=True)
    assert math.isnan(Monitor(tmp_path / "none").numbers()["accuracy"])
