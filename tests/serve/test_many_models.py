"""Several models behind one service: names, roles, request ids, log lines, back-pressure, turns."""

from __future__ import annotations

import functools
import json
import logging
import shutil
import sys
import threading

import numpy as np
import pandas as pd
import pytest
import torch

from engram import Client, Learner
from engram.errors import BadArgument, EngramError
from engram.serve.access_tokens import read_tokens
from engram.serve.client import ServiceError
from engram.serve.log_lines import JSONLine, LogFacts, TextLine
from engram.serve.request_limits import RequestLimits
from engram.serve.service import Service
from engram.serve.training_process import LearningOutcome
from engram.serve.training_worker import learn_task
from tests.deploy.conftest import FAST, MODEL, world
from tests.refusals import refuses
from tests.serve.client import ask, serving, until

X, Y, TEST = world(6)
ROLES = [("predict", "looks"), ("learn", "sends"), ("admin", "rules")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models of numbers and of pairs of names."""
    folder = tmp_path_factory.mktemp("models")
    Learner("ER", MODEL, **FAST).learn(X[:48], Y[:48]).save(folder / "numbers.engram")
    pairs = [[f"even {y // 2}", f"all {y % 2}"] for y in Y[:48].tolist()]
    Learner("ER", MODEL, **FAST).learn(X[:48], pairs).save(folder / "pairs.engram")
    return {"numbers": folder / "numbers.engram", "pairs": folder / "pairs.engram"}


@pytest.fixture(scope="module")
def both(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    models = {name: shutil.copy(path, folder / path.name) for name, path in files.items()}
    with serving(models, tokens=ROLES) as (port, service):
        for process in service._processes:
            process.learn = lambda **order: learn_task(**order)  # in this process
        yield port, service


def client(both, token="rules", **options):
    return Client(f"http://127.0.0.1:{both[0]}", token=token, **options)


def test_each_model_answers_under_its_name(both):
    plain, pairs = client(both), client(both, model="pairs")
    models = both[1].models
    assert plain.predict(TEST) == models["numbers"].learner.predict(TEST).tolist()
    assert pairs.predict(TEST.tolist()) == models["pairs"].learner.predict(TEST)
    assert client(both, model="numbers").predict(torch.tensor(TEST)) == plain.predict(TEST)
    share = models["numbers"].learner.predict_proba(TEST)
    assert [list(one.values()) for one in plain.predict_proba(TEST)] == share.tolist()
    assert plain.novelty(TEST[:3]) == models["numbers"].learner.novelty(TEST[:3]).tolist()
    assert list(plain.models()) == ["numbers", "pairs"]
    assert [plain.health()["model"], pairs.health()["model"]] == ["numbers", "pairs"]
    with pytest.raises(ServiceError, match="did you mean 'pairs'") as caught:
        client(both, model="pair").predict(TEST)
    assert caught.value.status == 404
    text = ask(both[0], "/metrics", token="looks")[1]
    assert 'engram_classes{model="pairs"} ' in text
    assert 'engram_requests_total{model="pairs",path="/predict",status="200"} ' in text
    assert 'model="pair"' not in text
    assert "process_resident_memory_bytes" in text


def test_models_learn_in_turn_and_tell_the_client(both):
    jobs = [client(both, model=name).learn(X[48:60], y) for name, y in
            (("numbers", Y[48:60]), ("pairs", [["even 9"]] * 12))]  # fmt: skip
    done = [client(both, model=name).wait(job, 60) for name, job in zip(both[1].models, jobs)]
    assert [(job.job, job.state, job.rows, job.over) for job in done] == [
        (1, "learnt", 12, True)
    ] * 2
    assert client(both).health()["tasks"] == 2
    with pytest.raises(ServiceError, match="no such task"):
        client(both).job(9)
    with refuses("address"):
        Client("localhost:8000")


def test_one_with_a_long_queue_does_not_hold_up_the_others(files, tmp_path):
    models = {name: shutil.copy(path, tmp_path / path.name) for name, path in files.items()}
    service, order = Service(models, device="cpu", processes=5), []
    assert len(service._processes) == 2  # not more than models
    service.stop()
    service = Service(models, device="cpu")

    def learnt(model, job, process):
        order.append((model, job.number))
        return LearningOutcome()

    for name, model in service.models.items():
        model.learn_next = functools.partial(learnt, name)
    for _ in range(3):
        service.learn(service.first, X[:4], Y[:4].tolist())
    service.learn(service.find("pairs"), X[:2], [["a"], ["b"]])
    service.start()
    until(lambda: len(order) == 4)
    service.stop()
    assert order == [("numbers", 1), ("pairs", 1), ("numbers", 2), ("numbers", 3)]


def test_a_service_that_cannot_start_lets_go_of_its_models(files, tmp_path):
    path = shutil.copy(files["numbers"], tmp_path / "one.engram")
    with pytest.raises(EngramError, match="two"):
        Service({"one": path, "two": tmp_path / "two.engram"}, device="cpu")
    Service(path, device="cpu").stop()


def test_names_of_models():
    assert list(service_names("a.engram", "b=x/a.engram")) == ["a", "b"]
    assert list(service_names("my model!.engram")) == ["my-model-"]
    for wrong in (["a.engram", "x/a.engram"], ["../=a.engram"], [f"{'a' * 65}=b.engram"]):
        with refuses("MODEL"):
            service_names(*wrong)


def service_names(*given):
    from engram.serve.service import name_models

    return name_models(list(given))


def test_roles(both, tmp_path):
    body = {"x": TEST[:2].tolist()}
    for prefix in ("", "/models/pairs", "/models/numbers"):
        for role, token in ROLES:
            assert ask(both[0], prefix + "/predict", body, token=token)[0] == 200
            status = ask(both[0], prefix + "/learn", body, token=token)[0]
            assert status == (403 if role == "predict" else 422)
        assert "a token of the role learn, not predict" in ask(
            both[0], prefix + "/learn", body, token="looks"
        )[1]["error"]  # fmt: skip
        for token in ("", "look", "LOOKS", "looks\xff"):
            assert ask(both[0], prefix + "/predict", body, token=token)[0] == 401
    assert ask(both[0], "/models")[0] == 401
    path = tmp_path / "tokens"
    for text in (
        "",
        "# nothing\n",
        "predict\n",
        "predict a b\n",
        "guest abc\n",
        "predict a\nlearn a\n",
    ):
        path.write_text(text)
        with pytest.raises(BadArgument, match="--tokens") as caught:
            read_tokens(path)
        assert "abc" not in str(caught.value)
    with refuses("--tokens"):
        read_tokens(tmp_path)


def test_request_ids_and_log_lines(both, caplog):
    caplog.set_level(logging.INFO, "engram.serve")
    sent = {"x-request-id": "week-12/a"}
    body, ids = {"x": TEST[:3].tolist()}, []
    for path, token, headers, given in (
        ("/models/pairs/predict", "looks", sent, body), ("/predict", "bad", sent, body),
        ("/nowhere", "looks", {"x-request-id": "a b\"\\"}, body), ("/ready", "", {}, None),
        ("/predict", "looks", {"x-request-id": "x" * 129}, {"x": []}),
    ):  # fmt: skip
        found = {}
        ask(both[0], path, given, token=token, headers=headers, answer_headers=found)
        ids.append(found["x-request-id"])
        assert (found["x-request-id"] == "week-12/a") == (headers == sent)
        assert len(found["x-request-id"]) in (9, 32)

    def told(event="request"):  # an answer may arrive before its line is written
        found = [one for one in caplog.records if isinstance(one.msg, LogFacts)]
        found = [one for one in found if one.msg["event"] == event and one.msg["id"] in ids]
        return sorted(found, key=lambda one: one.msg.get("status", 0))

    until(lambda: len(told()) == 4)  # nothing of /ready
    facts = [json.loads(JSONLine().format(one)) for one in told()]
    names = ("level", "route", "model", "status", "rows", "role")
    assert [tuple(one.get(name) for name in names) for one in facts] == [
        ("info", "/predict", "pairs", 200, 3, "predict"),
        ("info", "/predict", "numbers", 401, 0, None),
        ("info", "other", None, 404, 0, "predict"),
        ("info", "/predict", "numbers", 422, 0, "predict"),
    ]  # fmt: skip
    assert (facts[0]["event"], facts[0]["id"], facts[0]["ms"] > 0) == ("request", "week-12/a", True)
    text = TextLine().format(told()[0])
    assert " INFO event=request method=POST route=/predict status=200 ms=" in text
    job = ask(both[0], "/learn", {"x": X[:2].tolist(), "y": [0, 1]}, token="sends", headers=sent)[1]
    client(both).wait(job["job"], 60)
    until(lambda: told("job"))
    (line,) = told("job")
    assert (line.msg["id"], line.msg["state"], line.msg["rows"]) == ("week-12/a", "learnt", 2)


def test_a_line_with_a_traceback():
    try:
        raise ValueError("x\ny")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "sad", None, sys.exc_info())
    assert "ValueError" in json.loads(JSONLine().format(record))["traceback"]
    assert "ValueError" in TextLine().format(record)


def test_examples_of_the_description_are_right(both):
    assert '"examples":{"' not in json.dumps(ask(both[0], "/openapi.json")[1])
    api = ask(both[0], "/openapi.json", token="looks")[1]
    tried = []
    for path in ("/predict", "/novelty", "/learn"):
        for prefix in ("", "/models/{name}"):
            content = api["paths"][prefix + path]["post"]["requestBody"]["content"]
            for name, example in content["application/json"]["examples"].items():
                status, said = ask(
                    both[0],
                    (prefix + path).replace("{name}", name),
                    example["value"],
                    token="rules",
                )
                assert status in (200, 202), (path, name, said)
                tried.append((prefix + path, name))
    assert len(tried) == 9
    for name in ("numbers", "pairs"):
        until(lambda name=name: client(both).models()[name]["queued"] == 0)


def test_requests_beyond_the_bound_are_asked_to_come_back(files, tmp_path, monkeypatch):
    path, limits = tmp_path / "one.engram", RequestLimits(max_pending=2, max_pending_bytes=4000)
    shutil.copy(files["numbers"], path)
    with serving(path, limits=limits) as (port, service):
        monkeypatch.setattr("engram.serve.request_limits.RETRY_SECONDS", 0)
        real, free, answers = service.first.predict, threading.Event(), []
        held = []
        service.first.predict = lambda *given: (held.append(1), free.wait(20), real(*given))[2]
        asked = Client(f"http://127.0.0.1:{port}", retries=40)
        threads = [threading.Thread(target=lambda: answers.append(asked.predict(TEST[:1])))
                   for _ in range(2)]  # fmt: skip
        for thread in threads:
            thread.start()
        found, body = {}, {"x": TEST[:1].tolist()}
        until(lambda: len(held) == 2)
        assert ask(port, "/predict", body, answer_headers=found)[0] == 503
        assert found["retry-after"] == "0"
        assert len(found["x-request-id"]) == 32
        assert ask(port, "/live")[0] == ask(port, "/health")[0] == 200
        with pytest.raises(ServiceError, match="try again") as caught:
            Client(f"http://127.0.0.1:{port}", retries=0).predict(TEST[:1])
        assert caught.value.request in str(caught.value)
        late = threading.Thread(target=lambda: answers.append(asked.predict(TEST[:1])))
        late.start()
        free.set()
        for thread in (*threads, late):
            thread.join()
        assert answers == [service.first.learner.predict(TEST[:1]).tolist()] * 3
        status, said = ask(port, "/predict", raw=b" " * 5000)
        assert (status, "try again" in said["error"]) == (503, True)
        assert ask(port, "/predict", body)[0] == 200  # nothing is left of what was refused


class FullQueue:
    """Refuses a number of tasks."""

    def __init__(self, jobs, times):
        self.jobs, self.times = jobs, times

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            from engram.serve.job_queue import QueueFull

            raise QueueFull("full; try again later")


def test_the_client_sends_a_task_again_only_if_it_was_refused(both, monkeypatch):
    monkeypatch.setattr("engram.serve.client.time.sleep", waits := [].append)
    waited = waits.__self__
    first = both[1].first
    monkeypatch.setattr(first.jobs, "check_room", FullQueue(first.jobs, 2))
    asked = client(both, token="sends")
    number = asked.learn(X[:2], Y[:2]).job
    assert len(waited) == 2
    assert min(waited) >= 5  # as long as the service asks
    assert asked.job(number - 1).over  # none in between
    monkeypatch.setattr(first.jobs, "check_room", FullQueue(first.jobs, 99))
    with pytest.raises(ServiceError, match="full"):
        asked.learn(X[:2], Y[:2])
    assert len(waited) == 2 + asked.retries
    sent = []

    def lost(self, method, path, content, request):
        sent.append(path)
        raise ConnectionResetError("lost")

    monkeypatch.setattr(Client, "_send", lost)
    with pytest.raises(ServiceError, match="no answer"):
        asked.learn(X[:2], Y[:2])
    assert len(sent) == 1
    with pytest.raises(ServiceError, match="no answer"):
        asked.predict(X[:2])
    assert len(sent) == 2 + asked.retries


def test_the_client_tells_why_a_task_failed(both, monkeypatch):
    monkeypatch.setattr(both[1].first, "learn_next", lambda *given: LearningOutcome("full"))
    job = client(both).learn(pd.DataFrame(X[:2]).to_numpy(), np.array([0, 1]))
    with pytest.raises(EngramError, match=f"job {job.job} is failed: full"):
        client(both).wait(job)
    monkeypatch.setattr(both[1].first.jobs, "get", lambda number: job)
    monkeypatch.setattr(Client, "job", lambda self, number: job)
    with pytest.raises(EngramError, match="after 0 seconds"):
        client(both).wait(job, 0)
    with refuses("x"):
        client(both).predict([object()])
