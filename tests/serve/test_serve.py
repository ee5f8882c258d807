"""A service answers while it learns, cuts off who asks wrongly, and outlives what goes wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from unittest.mock import ANY

import numpy as np
import pytest
from typer.testing import CliRunner

from engram import Learner
from engram.cli import app as shell
from tests.deploy.conftest import FAST, MODEL, world

MISSING = [
    name
    for name in ("fastapi", "uvicorn", "prometheus_client")
    if importlib.util.find_spec(name) is None
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason="the extra serve is not installed")
if not MISSING:
    from engram.serve.app import LearnRequest
    from engram.serve.request_limits import RequestLimits
    from engram.serve.training_process import LearningOutcome
    from engram.serve.training_worker import learn_task
    from tests.serve.client import ask, serving, until
    from tests.serve.malformed_requests import requests

X, Y, TEST = world(6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    learner = Learner("ER", MODEL, **FAST).learn(X[:48], Y[:48])
    return learner.save(tmp_path_factory.mktemp("models") / "model.engram")


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copy(saved, tmp_path / "model.engram")


@pytest.fixture(scope="module")
def running(saved, tmp_path_factory):
    """A service that these tests share: small requests, little patience, a token."""
    path = shutil.copy(saved, tmp_path_factory.mktemp("served") / "model.engram")
    limits = RequestLimits(max_request_bytes=20_000, read_seconds=0.5)
    with serving(path, tokens=[("admin", "secret")], limits=limits) as (port, service):
        yield port, service


def asked(running, path, body=None, **options):
    return ask(running[0], path, body, token="secret", **options)


def test_questions_and_answers(running):
    rows = TEST[:5].tolist()
    learner = running[1].first.learner
    status, said = asked(running, "/predict", {"x": rows, "probabilities": True})
    assert status == 200
    assert said["labels"] == learner.predict(TEST[:5]).tolist()
    assert np.allclose(said["probabilities"], learner.predict_proba(TEST[:5]))
    assert said["classes"] == [0, 1, 2, 3]
    status, said = asked(running, "/novelty", {"x": rows, "detector": "Softmax"})
    assert said["novelty"] == learner.novelty(TEST[:5], detector="Softmax").tolist()
    status, said = asked(running, "/health")
    assert (status, said["tasks"], said["input_shape"]) == (200, 1, [8])
    status, said = asked(running, "/metrics")
    assert 'engram_requests_total{model="model",path="/predict",status="200"} 1' in said
    for page, word in (("/", "A model in hand"), ("/docs", "The interface")):
        assert word in ask(running[0], page)[1]
    api = ask(running[0], "/openapi.json")[1]
    assert {"/predict", "/novelty", "/learn", "/jobs/{number}", "/health"} <= set(api["paths"])


def test_alarms_beside_scores(tmp_path):
    learner = Learner("ER", MODEL, calibration=5, **FAST).learn(X[:48], Y[:48])
    path = learner.save(tmp_path / "alarms.engram")
    found = learner.alarm(TEST, 0.2)
    body = {"x": TEST.tolist()}
    with serving(path) as (port, _):
        said = ask(port, "/novelty", body)[1]
        assert said["novelty"] == found.novelty.tolist()
        assert said["rate"] == 0.05
        assert said["p_value"] == found.p_value.tolist()
        assert ask(port, "/novelty", {**body, "task": 0})[1]["alarm"] is None
        said = ask(port, "/novelty", {**body, "rate": 0.2})[1]
        assert (said["alarm"], said["p_value"]) == (found.alarm.tolist(), found.p_value.tolist())
        assert ask(port, "/novelty", {**body, "rate": 0.01})[0] == 422
        assert ask(port, "/novelty", {**body, "rate": 0.2, "task": 0})[0] == 422
    np.save(tmp_path / "new.npy", TEST)
    asked = ["predict", str(path), "--data", str(tmp_path / "new.npy"), "--rate", "0.2"]
    lines = CliRunner().invoke(shell, asked).stdout.splitlines()
    assert lines[0] == "input,label,probability,novelty,p_value,alarm"
    assert [one.endswith(",True") for one in lines[1:]] == found.alarm.tolist()


def test_rows_with_several_labels(tmp_path):
    pairs = [[f"even {y // 2}", f"all {y % 2}"] for y in Y.tolist()]
    learner = Learner("ER", MODEL, **FAST).learn(X[:48], pairs[:48])
    with serving(learner.save(tmp_path / "sets.engram")) as (port, service):
        service._processes[0].learn = lambda **order: learn_task(**order)  # in this process
        said = ask(port, "/predict", {"x": TEST[:5].tolist()})[1]
        assert said["labels"] == learner.predict(TEST[:5])
        assert ask(port, "/health")[1]["label_sets"]
        wrong = {"x": X[48:60].tolist(), "y": Y[48:60].tolist()}
        assert ask(port, "/learn", wrong)[0] == 422  # numbers, but names were learnt
        status, job = ask(port, "/learn", {**wrong, "y": pairs[48:60]})
        assert status == 202
        until(lambda: ask(port, f"/jobs/{job['job']}")[1]["state"] == "learnt")
        learner.learn(X[48:60], pairs[48:60])
        assert ask(port, "/predict", {"x": TEST.tolist()})[1]["labels"] == learner.predict(TEST)


def test_counts_of_many_threads_add_up():
    from engram.serve.service_metrics import ServiceMetrics

    metrics, other = ServiceMetrics(), ServiceMetrics()
    threads = [
        threading.Thread(
            target=lambda: [metrics.request("/a", "m", 200, 0.002) for _ in range(500)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = metrics.text({}).splitlines()
    assert 'engram_requests_total{model="m",path="/a",status="200"} 2000.0' in lines
    assert 'engram_request_seconds_bucket{le="0.0025",model="m",path="/a"} 2000.0' in lines
    assert 'engram_request_seconds_bucket{le="0.001",model="m",path="/a"} 0.0' in lines
    assert "/a" not in other.text({})  # each service has a registry of its own


def test_who_may_not_ask(running):
    body = {"x": TEST[:1].tolist()}
    assert ask(running[0], "/predict", body)[0] == 401
    assert ask(running[0], "/predict", body, token="secre")[0] == 401
    for path in ("/health", "/metrics", "/jobs/1"):  # the names of classes are not for all
        assert ask(running[0], path) == (401, {"error": ANY})
    assert ask(running[0], "/live") == (200, {"status": "live"})
    assert ask(running[0], "/ready") == (200, {"status": "ready"})
    assert asked(running, "/health", headers={"host": "evil.example"})[0] == 421
    # a name of a module would be code to run
    assert asked(running, "/novelty", {**body, "detector": "os:system"})[0] == 422


def test_pages_cannot_be_framed(running):
    for path in ("/", "/docs"):
        with urllib.request.urlopen(f"http://127.0.0.1:{running[0]}{path}", timeout=30) as page:
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            assert page.headers["x-frame-options"] == "DENY"
            assert page.headers["x-content-type-options"] == "nosniff"


def test_wrong_labels_are_named_in_plain_words(running):
    x = TEST[:2].tolist()
    expected = (
        "y: expected a label for each row (a name of at most 200 characters, a whole number, "
    )
    expected += "true or false), or a list of them, got "
    wrong = {
        "1.5 in row 1": [0, 1.5], "None in row 0": [None, 1], "[] in row 1": [[0], []],
        "{'a': 1} in row 0": [{"a": 1}, 1], "[0, [1]] in row 1": [[0], [0, [1]]],
        "'\\ud800' in row 0": ["\ud800", "a"], f"{'a' * 300!r:.60} in row 0": ["a" * 300, "b"],
    }  # fmt: skip
    for got, y in wrong.items():
        status, said = asked(running, "/learn", {"x": x, "y": y})
        assert (status, said["error"]) == (422, expected + got)
    for got, y in {"'a'": "a", "5": 5, "no rows": []}.items():
        status, said = asked(running, "/learn", {"x": x, "y": y})
        assert (status, said["error"]) == (422, f"y: expected a list of labels, got {got}")
    wrong = {"z\0": "NUL", True: "one type", "a": "one type"}
    for other, words in wrong.items():
        y = ["z", other] if isinstance(other, str) and "\0" in other else [1, other]
        status, said = asked(running, "/learn", {"x": x, "y": y})
        assert status == 422
        assert words in said["error"]


def test_whole_numbers_of_json_stay_numbers():
    read = LearnRequest.model_validate({"x": [[0]], "y": [1.0, True, 2, "a", [3.0, "b"]]}).y
    assert [type(one) for one in read] == [int, bool, int, str, list]
    assert read == [1, True, 2, "a", [3, "b"]]


def test_malformed_requests_get_clean_answers(running):
    api = ask(running[0], "/openapi.json")[1]
    rows = TEST[:2].tolist()
    good = {"/predict": {"x": rows}, "/novelty": {"x": rows}, "/learn": {"x": rows, "y": [0, 1]}}
    waiting = len(running[1].first.jobs)
    for method, path, headers, body in requests(api, good, 150):
        status, said = asked(running, path, raw=body, method=method, headers=headers)
        assert 400 <= status < 500, (method, path, body, said)
        assert list(said) == ["error"]
    assert len(running[1].first.jobs) == waiting
    assert asked(running, "/predict", {"x": rows})[0] == 200


def test_large_and_slow_clients_are_cut_off(running):
    status, said = asked(running, "/predict", raw=b"[" * 30_000)
    assert status == 413
    assert "20000 bytes" in said["error"]
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", running[0]), timeout=10) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\n")
        slow.settimeout(8)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(100) == b""  # closed without a word: the headers never came
    with socket.create_connection(("127.0.0.1", running[0]), timeout=10) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n"
                     b"authorization: Bearer secret\r\n\r\n{")  # fmt: skip
        assert b"408" in slow.recv(100)
    assert time.monotonic() - began < 9  # the usual limit is 10
    assert asked(running, "/predict", {"x": TEST[:1].tolist()})[0] == 200


def test_crashes_restarts_and_clients_that_never_notice(model, monkeypatch):
    """Learning dies; a task is accepted and the service ends; the next one learns it meanwhile."""
    told, over, answers = {"x": X[48:60].tolist(), "y": Y[48:60].tolist()}, threading.Event(), set()
    every = {"x": TEST.tolist(), "probabilities": True}

    def client(port):
        while not over.wait(0.02):
            status, said = ask(port, "/predict", {"x": TEST[:2].tolist()})
            answers.add((status, said.get("tasks")))

    with serving(model) as (port, service):
        before = ask(port, "/predict", every)[1]
        dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        real = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real(dies, **options))
        assert ask(port, "/learn", told)[0] == 202
        until(lambda: ask(port, "/jobs/1")[1]["state"] == "failed")
        monkeypatch.undo()
        assert "signal 9" in ask(port, "/jobs/1")[1]["error"]
        assert ask(port, "/predict", every)[1] == before
        service.first.learn_next = lambda job, process: (
            setattr(job, "state", "learning"),
            until(lambda: service._over),  # as long as it likes
            LearningOutcome("stopped"),
        )[-1]
        status, job = ask(port, "/learn", told)
        assert (status, job["job"]) == (202, 2)
        assert job["state"] in ("queued", "learning")  # it may have begun by now
        until(lambda: ask(port, "/health")[1]["learning"])
    with serving(model) as (port, service):
        clients = [threading.Thread(target=client, args=(port,)) for _ in range(3)]
        for one in clients:
            one.start()
        until(lambda: ask(port, "/jobs/2")[1]["state"] == "learnt")
        until(lambda: (200, 2) in answers)
        over.set()
        for one in clients:
            one.join()
        said = ask(port, "/predict", every)[1]
        assert "served by another process" in second_service(model)
    assert answers == {(200, 1), (200, 2)}
    direct = Learner("ER", MODEL, **FAST).learn(X[:48], Y[:48]).learn(X[48:60], Y[48:60])
    assert said["probabilities"] == direct.predict_proba(TEST).tolist()  # as if nothing had been
    with serving(model) as (port, _):
        assert ask(port, "/predict", every)[1] == said
        assert ask(port, "/health")[1]["queued"] == 0


def second_service(model):
    """What another process says that wants to serve the same file."""
    code = (
        "from pathlib import Path; from engram.records.locks import Claims;"
        f"assert Claims(Path({str(model) + '.queue'!r})).take('serve'), 'served by another process'"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr


def test_the_command_refuses_what_cannot_work(saved, tmp_path):
    def said(*arguments):
        found = CliRunner().invoke(shell, ["serve", *map(str, arguments)])
        assert found.exit_code == 2
        return found.output

    assert "a token" in said(saved, "--host", "0.0.0.0")
    assert "--port: expected a port from 0 to 65535" in said(saved, "--port", 99_999_999)
    assert "--to: expected no value with a model file" in said(saved, "--to", tmp_path / "x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: cannot be listened on" in said(saved, "--port", port)
    assert "--to model.engram" in said(tmp_path)
    assert "a model file" in said(tmp_path / "none.engram")
    (tmp_path / "text.engram").write_text("no")
    assert "model file" in said(tmp_path / "text.engram")


def test_the_page_in_a_browser(running):
    from tests.report import chromium

    if chromium.find() is None:
        pytest.skip("no Chromium is on the PATH")
    with chromium.launch() as browser:
        browser.call("Page.navigate", url=f"http://127.0.0.1:{running[0]}/")
        state = "(document.getElementById('health') || {}).textContent"
        until(lambda: "a token is required" in (browser.evaluate(state) or ""))
        row = json.dumps(TEST[0].tolist())
        browser.evaluate(f"document.getElementById('x').value = {row!r};"
                         "document.getElementById('predict').click()")  # fmt: skip
        read = "document.getElementById('said').textContent"
        until(lambda: "a token is required" in browser.evaluate(read))
        browser.evaluate("const given = document.getElementById('token'); given.value = 'secret';"
                         "given.dispatchEvent(new Event('change'))")  # fmt: skip
        until(lambda: "1 task, 4 classes" in browser.evaluate(state))
        browser.evaluate("document.getElementById('predict').click()")  # fmt: skip
        until(lambda: browser.evaluate(read) == "after 1 task")
        label = browser.evaluate("document.querySelector('#table td:nth-child(2)').textContent")
        assert label == str(running[1].first.learner.predict(TEST[:1])[0])
        errors = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
        assert not errors
        browser.call("Page.navigate", url=f"http://127.0.0.1:{running[0]}/docs")
        until(
            lambda: "POST /predict" in browser.evaluate("(document.body || {}).textContent || ''")
        )
