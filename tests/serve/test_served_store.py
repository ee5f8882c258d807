"""A store of versions behind the service: gate, roll-back, and tasks that are learnt once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from engram import Client, ModelStore
from engram.errors import EngramError
from engram.io import save_tensors
from engram.serve.client import ServiceError
from engram.serve.job_queue import JobQueue
from engram.serve.served_model import ServedStore
from engram.serve.service_metrics import ServiceMetrics
from engram.serve.training_worker import learn_task
from tests.deploy.test_model_store import begun, made, week  # noqa: F401 - fixtures
from tests.serve.client import ask, serving, until


@pytest.fixture
def folder(made, tmp_path):  # noqa: F811
    return shutil.copytree(made, tmp_path / "store")


def shuffled(seed):
    x, y = week(seed)
    return x, np.random.default_rng(seed).permutation(y)


def test_a_gate_decides_and_versions_come_back(folder, tmp_path):
    shutil.copy(folder / "versions" / "000001.engram", tmp_path / "file.engram")
    models = {"store": folder, "file": tmp_path / "file.engram"}
    with serving(models, tokens=[("learn", "sends"), ("admin", "rules")]) as (port, service):
        service._processes[0].learn = lambda **order: learn_task(**order)  # in this process
        asked = Client(f"http://127.0.0.1:{port}", token="rules", retries=0)
        first, (x, _) = asked.predict(week(9)[0]), week(9)
        assert asked.wait(asked.learn(*week(1))).version == 2
        assert (asked.health()["version"], asked.health()["tasks"]) == (2, 2)
        job = asked.learn(*shuffled(2))
        with pytest.raises(EngramError, match="is refused: labels: "):
            asked.wait(job)
        assert asked.job(job.job).version == 3
        assert len(service.first.jobs) == 0
        assert asked.models()["store"]["version"] == 2
        found = asked.versions()
        assert [(one["number"], one["state"]) for one in found] == [
            (1, "kept"), (2, "current"), (3, "refused")
        ]  # fmt: skip
        assert found[2]["reason"].startswith("labels: ")
        assert [one["number"] for one in asked.versions(last=1)] == [3]
        for path in ("/rollback", "/models/store/rollback", "/accept"):
            assert ask(port, path, {"version": 1}, token="sends")[0] == 403
        assert asked.rollback(1)["state"] == "current"
        assert asked.predict(x) == first
        text = ask(port, "/metrics", token="rules")[1]
        assert 'engram_version{model="store"} 1.0' in text
        assert 'engram_jobs_total{end="refused",model="store"} 1.0' in text
        assert 'engram_version{model="file"}' not in text
        for wrong in (0, 99, True, "1"):
            with pytest.raises(ServiceError, match="version"):
                asked.rollback(wrong)
        with pytest.raises(ServiceError, match="learn its refused_rows again"):
            asked.accept(3)
        x, y = week(3)
        asked.learn(x, np.where(y == 2, 7, y))  # a class under a new name: refused after training
        until(lambda: asked.versions()[-1]["number"] == 4)
        assert (asked.versions()[-1]["state"], asked.accept(4)["state"]) == ("refused", "current")
        ModelStore(folder, device="cpu").rollback(2)  # by another process
        until(lambda: asked.health()["version"] == 2)
        named = Client(f"http://127.0.0.1:{port}", token="rules", model="file")
        for verb in (named.versions, lambda: named.rollback(1)):
            with pytest.raises(ServiceError, match="has no versions") as caught:
                verb()
            assert caught.value.status == 404


def test_a_roll_back_comes_between_two_tasks(folder, monkeypatch):
    monkeypatch.setattr("engram.serve.service.CHANGE_SECONDS", 0.05)
    with serving(folder) as (port, service):
        free, begun = threading.Event(), threading.Event()

        def slow(**order):
            begun.set()
            free.wait(20)
            return learn_task(**order)

        service._processes[0].learn = slow
        asked, found = Client(f"http://127.0.0.1:{port}", retries=0), {}
        jobs = [asked.learn(*week(seed)) for seed in (1, 2)]
        assert begun.wait(20)
        status = ask(port, "/rollback", {"version": 1}, answer_headers=found)[0]
        assert (status, found["retry-after"]) == (503, "5")
        monkeypatch.setattr("engram.serve.service.CHANGE_SECONDS", 20)
        changed = threading.Thread(target=asked.rollback, args=(1,))
        changed.start()
        until(lambda: service._wanted)
        free.set()
        changed.join()
        assert asked.wait(jobs[1]).version == 3
        assert [one["parent"] for one in asked.versions()] == [0, 1, 1]


@pytest.mark.parametrize("rows", [week(1), shuffled(1)], ids=["accepted", "refused"])
def test_a_task_that_was_decided_before_a_crash_is_not_learnt_again(folder, tmp_path, rows):
    jobs = JobQueue(tmp_path / "store.queue", learnt=0)
    (x, y), order = rows, {"store": str(folder), "device": "cpu", "trust": False}
    tensor = ModelStore(folder, device="cpu").learner.prepare_task(x, y).x
    task = jobs.path(jobs.add(tensor, y.tolist()).number)
    made = learn_task(str(task), 1, **order)  # noqa: F811
    assert learn_task(str(task), 1, **order) == made  # the answer did not arrive
    assert ModelStore(folder, device="cpu").numbers == [1, 2]
    assert task.exists()
    served = ServedStore("a", folder, metrics=ServiceMetrics(), device="cpu")  # after the crash
    assert (len(served.jobs), task.exists()) == (0, False)
    assert served.enqueue(x, y.tolist()).number == 2
    served.close()


def test_a_task_waits_while_another_process_writes(folder, tmp_path, monkeypatch):
    store, task, waits = ModelStore(folder, device="cpu"), tmp_path / "task", []
    x, y = week(1)
    facts = {"facts": json.dumps({"y": y.tolist()})}
    save_tensors(task, {"x": store.learner.prepare_task(x, y).x}, facts)
    assert store._claims.take("writer")

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            store._claims.release("writer")

    monkeypatch.setattr("engram.serve.training_worker.time.sleep", wait)
    found = learn_task(str(task), 1, store=str(folder), device="cpu", trust=False)
    assert (found.version, found.error, len(waits)) == (2, "", 3)


def test_the_training_process_ends_with_its_service():
    command = [sys.executable, "-m", "engram.serve.training_worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(
        b'{"task": "/", "number": 1, "model": "nowhere", "out": "", "trust": false}\n'
    )
    process.stdin.close()  # in the midst of a task
    assert process.wait(timeout=60) == 0
    process.stdout.close()
