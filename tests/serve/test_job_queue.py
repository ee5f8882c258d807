"""The queue of tasks: none that was accepted is lost, and no strange file stops the service."""

from __future__ import annotations

import json
import os
import shutil
import threading

import pytest
import torch

from engram.errors import RecordError
from engram.io import save_tensors
from engram.serve import job_queue as module
from engram.serve.job_queue import JobQueue
from engram.serve.service import Service
from tests.serve.client import ask, serving
from tests.serve.test_serve import TEST, model, saved  # noqa: F401 - fixtures

ROWS = torch.zeros(2, 3)


def test_a_small_task_does_not_overtake_a_large_one_that_is_being_written(tmp_path, monkeypatch):
    jobs, large = JobQueue(tmp_path, learnt=0), torch.zeros(4, 3)
    small, learnt = threading.Thread(target=jobs.add, args=(ROWS, [0, 1])), []

    def slow(path, tensors, facts):
        if len(tensors["x"]) == len(large):
            small.start()
            small.join(timeout=0.3)
            if job := jobs.next():
                learnt.append(job.number)
                jobs.done(job.number)
        save_tensors(path, tensors, facts)

    monkeypatch.setattr(module, "save_tensors", slow)
    jobs.add(large, [0, 1, 0, 1])
    small.join()
    after = JobQueue(tmp_path, learnt=max(learnt, default=0))  # the service dies, and starts again
    assert (len(after) + len(learnt), learnt) == (2, [])


def test_only_the_task_learnt_last_is_dropped_at_the_start(tmp_path):
    jobs = JobQueue(tmp_path, learnt=0)
    for _ in range(3):
        jobs.add(ROWS, [0, 1])
    again = JobQueue(tmp_path, learnt=2)  # killed between learning and removing the file
    assert [len(again), again.next().number, again.get(2)] == [2, 1, None]
    assert not again.path(2).exists()


def _without_labels(path):
    save_tensors(path, {"x": ROWS}, {"facts": "[]"})


def _no_rows(path):
    save_tensors(path, {"x": torch.tensor(1.0)}, {"facts": json.dumps({"y": []})})


DAMAGED = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not tensors at all"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "labels": _without_labels,
    "scalar": _no_rows,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "dangling": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_task_is_set_aside(damage, tmp_path, caplog):
    jobs = JobQueue(tmp_path, learnt=0)
    jobs.add(ROWS, [0, 1])
    jobs.add(ROWS, [0, 1])
    damage(jobs.path(1))
    again = JobQueue(tmp_path, learnt=0)
    assert (len(again), again.next().number) == (1, 2)
    assert again.get(1).state == "failed"
    assert "task-000001.safetensors" in again.get(1).error
    assert "task-000001.safetensors" in caplog.text
    caplog.clear()
    assert not os.path.lexists(jobs.path(1))
    assert os.path.lexists(tmp_path / "task-000001.safetensors.failed")
    assert len(JobQueue(tmp_path, learnt=0)) == 1
    assert not caplog.text  # said once


def test_a_service_starts_beside_strange_files(model, caplog):  # noqa: F811
    folder = model.with_name(model.name + ".queue")
    folder.mkdir()
    names = ("task-x.safetensors", "task-000002.safetensors.bak", "task-.safetensors",
             f"task-{'9' * 30}.safetensors", "task-000007.safetensors")  # fmt: skip
    for name in names:
        (folder / name).write_text("stray")
    (folder / "next-1.engram").mkdir()
    with serving(model) as (port, service):
        assert ask(port, "/predict", {"x": TEST[:1].tolist()})[0] == 200
        assert len(service.first.jobs) == 0
        assert ask(port, "/jobs/7")[1]["state"] == "failed"
    assert all(name in caplog.text for name in names)
    assert all((folder / name).exists() for name in names[:-1])  # not ours: left where they are


def test_a_full_queue_stays_full_under_many_clients(tmp_path):
    jobs, refused = JobQueue(tmp_path, learnt=0, most=3), []

    def add():
        try:
            jobs.add(ROWS, [0, 1])
        except module.QueueFull as problem:
            refused.append(problem)

    clients = [threading.Thread(target=add) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert (len(jobs), len(refused)) == (3, 5)


def test_a_model_is_served_once_by_whatever_path(model, tmp_path):  # noqa: F811
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.engram"
    link.symlink_to(model)
    (tmp_path / "folder").symlink_to(tmp_path)
    service = Service(model, device="cpu")
    try:
        for path in (link, tmp_path / "folder" / model.name):
            with pytest.raises(RecordError, match="served by another process"):
                Service(path, device="cpu")
    finally:
        service.stop()
    service = Service(link, device="cpu")
    service.stop()
    assert service.first.path == model.resolve()
    assert shutil.rmtree(model.with_name(model.name + ".queue")) is None
    assert not link.with_name("link.engram.queue").exists()
