"""The first run of a process is not charged for what torch does once."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import engram
from engram.learner import torch_startup

SECONDS = 1000.0  # far more than a stage of the stream below takes


@pytest.fixture
def slow(monkeypatch):
    """A process that has not trained yet, and whose clock says that warming up takes long."""
    torch_startup.warm_up_mapped(torch.device("cpu"))  # really, so that nothing else is slow
    calls = []
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + SECONDS * len(calls))
    monkeypatch.setattr(torch_startup, "time", clock)

    def run(kind):
        def slowly(device):
            calls.append(kind)

        return slowly

    monkeypatch.setattr(torch_startup, "_done", set())
    monkeypatch.setattr(
        torch_startup, "_WARM_UPS", {kind: run(kind) for kind in ("plain", "mapped")}
    )
    return calls


@pytest.mark.parametrize(
    ("method", "together"), [("Finetune", False), ("EWC", False), ("ER", True)]
)
def test_the_first_runs_warm_up_is_not_in_its_seconds(slow, method, together):
    data = engram.load("blobs", classes=4, per_class=20, features=4)
    stream = engram.class_incremental(data, classes_per_task=2)
    spent = torch_startup.warm_up_seconds()
    result = engram.run(stream, method=method, seeds=2, device="cpu", together=together)
    assert slow == {"Finetune": ["plain"], "EWC": ["plain", "mapped"], "ER": ["mapped"]}[method]
    assert torch_startup.warm_up_seconds() - spent >= SECONDS * len(slow)
    frame = result.frame()
    taken = frame[frame["metric"] == "seconds"]["value"]
    assert len(taken) == 4
    assert (taken > 0).all()
    assert taken.max() < SECONDS


def test_warming_up_leaves_nothing_to_import():
    code = """
import sys, torch, engram
from engram.learner import torch_startup
stream = engram.class_incremental(engram.load("blobs", classes=4, per_class=20, features=4))
kinds = dict(model={"name": "mlp", "hidden": [4]}, device="cpu")
engram.run(stream, **kinds)  # the package's own imports
torch_startup.warm_up_mapped(torch.device("cpu"))
before = set(sys.modules)
engram.run(stream, method=["EWC", "MAS"], seeds=2, together=False, **kinds)
engram.run(stream, method=["EWC", "ER"], seeds=2, together=True, **kinds)
print("IMPORTED", len([name for name in set(sys.modules) - before if name.startswith("torch")]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "IMPORTED 0", done.stdout


def test_inside_a_transform_it_is_too_late(monkeypatch):
    """A mapped pass on a device that is not warm goes on; the next plain one warms it."""
    monkeypatch.setattr(torch_startup, "_done", set())

    def one(x):
        torch_startup.warm_up_mapped(torch.device("cpu"))
        return x * 2

    assert torch.func.vmap(one)(torch.ones(2)).tolist() == [2, 2]
    assert torch_startup._done == set()
    torch_startup.warm_up_mapped(torch.device("cpu"))
    assert torch_startup._done == {("mapped", "cpu")}
