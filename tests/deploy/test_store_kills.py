"""A store whose writer dies at any file: what is served is whole, nothing accepted is lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from benchmarks.deploy import store_kills
from benchmarks.deploy.store_kills import describe, look_into, make_store, read_log, run_kills
from engram.deploy.model_store import ModelStore
from tests.forks import FORKS, die_at_file

LIMIT = 120.0  # seconds
# What is written: a model, its record and the pointer; for forgetting the order before these, then
# other models and the pointer; for a refusal the rows, the record and the pointer.
DEATHS = [("learn", 2), ("learn", 3), ("refuse", 3), ("roll back", 1)]
DEATHS += [("forget", n) for n in (1, 2, 4, 5, 6)]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun") / "store"
    store_kills.take_step(make_store(folder), "learn", 0)
    return folder


def die_in(step: str, folder: Path, number: int) -> None:
    import torch

    torch.set_num_threads(1)
    store = ModelStore(folder, device="cpu")
    die_at_file(number)
    store_kills.take_step(store, step, 1)


@pytest.mark.parametrize(("step", "number"), DEATHS)
def test_death_at_a_file(step, number, begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "store")
    known = describe(ModelStore(folder, device="cpu"))
    child = FORKS.Process(target=die_in, args=(step, folder, number))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    found, faults = look_into(folder, known, step)
    assert faults == []
    decided = {"learn": number == 3, "forget": number > 1}.get(step, False)
    assert found["served"] == (3 if decided else 2)
    again = ModelStore(folder, device="cpu")  # and it goes on
    store_kills.take_step(again, "learn", 2)
    assert again.current.state == "current"
    assert again.current.accepted


def test_the_campaign_tells_faults(tmp_path, begun, monkeypatch):
    monkeypatch.setattr(store_kills, "MOST_PHASES", 8)

    def child(*args):
        process = FORKS.Process(target=store_kills.work, args=args)
        process.start()
        return process

    lines = run_kills(tmp_path, 2, 1, child)
    assert lines.faults.tolist() == ["", ""]
    assert {key for line in read_log(tmp_path / "log-1") for key in line} >= {"phase"}
    folder = shutil.copytree(begun, tmp_path / "spoilt")
    known = describe(ModelStore(folder, device="cpu"))
    (folder / "versions/000001.json").unlink()
    _, faults = look_into(folder, known, "learn")
    assert faults == ["lost: versions ['1']"]
