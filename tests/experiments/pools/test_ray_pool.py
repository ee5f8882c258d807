"""A sweep on two nodes: the same numbers, each once, whatever becomes of a node."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import engram
from benchmarks.kills.compare import differences
from benchmarks.sweeps.nodes import stages_written
from benchmarks.sweeps.two_nodes import TwoNodes, two_nodes
from engram.experiments import Plan
from engram.experiments.pools.ray_pool import connect_ray
from tests.experiments.pools.test_pools import Notes

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: engram-cl[ray]"
)

SMALL = {"name": "mlp", "hidden": [12]}
BASE = {
    "stream": {"data": "blobs", "classes_per_task": 4}, "training": {"epochs": 2},
    "keep": "parameters",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    with two_nodes() as found, connect_ray(found.address):  # workers begin once for all sweeps
        yield found


class Watching(Notes):
    """Kills a node as soon as both train; nodes train one run at a time."""

    def __init__(self, cluster: TwoNodes) -> None:
        super().__init__()
        self.cluster = cluster
        self.going: set[tuple[str, int, str]] = set()
        self.killed = False

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        super().step(plans, stage, done, total)
        self.going |= {plan.key for plan in plans}
        if not self.killed and len(self.going) == 2:
            self.killed = True
            self.cluster.kill_one()

    def stage(self, plan: Plan, stage: int, rows: object) -> None:
        super().stage(plan, stage, rows)
        if stage == 2:  # the last
            self.going.discard(plan.key)


class Impatient(Notes):
    """Presses Ctrl-C at some stage."""

    def stage(self, plan: Plan, stage: int, rows: object) -> None:
        super().stage(plan, stage, rows)
        if len(self.stages) == 2:
            raise KeyboardInterrupt


def test_whoever_has_no_token_is_told_so(cluster: TwoNodes) -> None:
    code = (
        "from engram.experiments.pools.ray_pool import connect_ray\n"
        f"with connect_ray({cluster.address!r}): pass"
    )  # fmt: skip
    environ = {**os.environ, "RAY_AUTH_TOKEN": "0" * 32}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "asks for a token, and none is sent from here, or another one" in done.stderr


def test_without_a_shared_directory_files_travel_and_go_on_after_ctrl_c(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    recipes = [BASE | {"method": name, "model": SMALL, "seeds": 2} for name in ("ER", "EWC")]
    recipes.append(BASE | {"method": "SI"})
    expected = engram.sweep(recipes, pool="auto", out=tmp_path / "expected", device="cpu")
    handle = os.open(tmp_path, os.O_RDONLY)  # a path that no other process can see
    out = Path(f"/proc/self/fd/{handle}/out")
    options = {"pool": "ray", "address": cluster.address, "out": out, "device": "cpu"}
    told = Impatient()
    with pytest.raises(KeyboardInterrupt):
        engram.sweep(recipes, callback=told, **options)
    begun = engram.read(out)
    assert 0 < len(begun.predictions) < len(expected.predictions)
    told = Notes()
    result = engram.sweep(recipes, callback=told, **options)
    assert told.notes == []
    assert not differences(result, expected)
    assert set(stages_written(out).values()) == {1}
    in_memory = engram.sweep(recipes[2:], **{**options, "out": None})
    np.testing.assert_array_equal(in_memory.matrix, expected.select(label="SI").matrix)
    for key in in_memory.predictions:
        kept, other = (one.predictions.get(*key) for one in (in_memory, expected))
        np.testing.assert_array_equal(kept.parameters, other.parameters)
    assert in_memory.model().predict(engram.load("blobs").x[:3]) is not None
    os.close(handle)


def test_a_node_dies_and_every_run_ends_once_with_the_numbers_of_serial(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    # of six shapes, so six groups; the two long ones come first, one for each node
    sizes = [{"name": "mlp", "hidden": [8 + size]} for size in range(3)]
    recipes = [BASE | {"method": m, "model": one} for m in ("ER", "LwF") for one in sizes]
    recipes[:2] = [one | {"training": {"epochs": 100}} for one in recipes[:2]]
    expected = engram.sweep(recipes, pool="serial", out=tmp_path / "serial", device="cpu")
    out, told = tmp_path / "out", Watching(cluster)
    options = {"pool": "ray", "address": cluster.address, "out": out, "device": "cpu"}
    late = engram.sweep(recipes, deadline=time.monotonic() - 1, **options)
    assert len(late) == 0
    result = engram.sweep(recipes, callback=told, **options)
    assert not differences(result, expected)
    np.testing.assert_array_equal(result.matrix, expected.matrix)
    assert set(stages_written(out).values()) == {1}
    assert len(stages_written(out)) == sum(len(one) for one in [result.runs]) * 3
    assert told.killed
    assert any("another one continues it" in note for note in told.notes)
    assert told.begun == [(6, 0)]
    assert told.steps
    again = Notes()
    engram.sweep(recipes, callback=again, **options)
    assert again.begun == [(6, 6)]
    assert not again.stages
