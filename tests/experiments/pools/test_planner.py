"""Groups by shape and cost, what becomes of those that fail, and files between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import engram
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.errors import BadArgument, EngramError, RecordError
from engram.experiments import Plan, Recipe
from engram.experiments.plan import make_plans
from engram.experiments.pools.memory_use import MemoryNeed, measure_memory
from engram.experiments.pools.planner import (
    MOST_NODES,
    MOST_TRIES,
    Attempt,
    WorkerGroup,
    divide_groups,
    group_plans,
    select_unfinished,
)
from engram.experiments.pools.ray_pool import ClusterResources, Dispatcher, connect_ray
from engram.experiments.pools.ray_worker import Outbox, RayJob, pack_files, unpack_files
from engram.experiments.recorder import Recorder
from engram.records import RunDirectory
from tests.experiments.pools.test_pools import Notes

SMALL, LARGE = ({"name": "mlp", "hidden": sizes} for sizes in ([8], [400, 400]))
BASE = {"stream": {"data": "blobs"}}


def plans(*recipes: dict[str, Any]) -> list[Plan]:
    return make_plans([Recipe.of(BASE | one) for one in recipes])


# -- groups ----------------------------------------------------------------------------------------
def test_groups_share_a_shape_and_those_that_cost_most_come_first() -> None:
    made = plans(
        {"method": "ER", "model": SMALL, "seeds": 4},
        {"method": "LwF", "model": SMALL, "seeds": 2},
        {"method": "ER", "model": LARGE, "seeds": 2},
        {"method": "ER", "model": LARGE, "seeds": 1, "training": {"epochs": 5}},
    )
    found = group_plans(made)
    assert [len(one) for one in found] == [4, 2, 1, 1, 1]
    assert [one.lockstep for one in found] == [True, True, False, False, False]
    spread = divide_groups(found, workers=2)
    costs = [one.cost for one in spread]
    assert costs == sorted(costs, reverse=True)
    assert spread[0].plans[0].run.training.epochs == 5
    assert sorted(p.key for one in spread for p in one.plans) == sorted(p.key for p in made)


def test_groups_in_lockstep_are_divided_by_workers_and_by_memory() -> None:
    (group,) = group_plans(plans({"method": "ER", "model": SMALL, "seeds": 7}))
    assert [len(one) for one in divide_groups([group], workers=1)] == [7]
    assert sorted(len(one) for one in divide_groups([group], workers=3)) == [2, 2, 3]
    assert sorted(len(one) for one in divide_groups([group], workers=1, most=lambda _: 2)) == [
        1, 2, 2, 2,
    ]  # fmt: skip
    assert [len(one) for one in group.halves()] == [3, 4]


def test_a_sweep_that_goes_on_has_the_groups_it_began_with() -> None:
    """Who trains with whom decides the last bits, so it must not depend on what is done."""
    made = plans(
        {"method": "ER", "model": SMALL, "seeds": 4}, {"method": "LwF", "model": SMALL, "seeds": 4}
    )
    whole = divide_groups(group_plans(made), workers=2)
    keys = {tuple(plan.key for plan in one.plans) for one in whole}
    for done in whole:
        left = [plan for plan in made if plan not in done.plans]
        found = select_unfinished(whole, left)
        assert {tuple(plan.key for plan in one.plans) for one in found} < keys
        assert sum(len(one) for one in found) == len(left)
    assert select_unfinished(whole, []) == []
    (one,) = select_unfinished(whole, whole[0].plans[:1])
    assert not one.lockstep


def test_what_cannot_be_built_is_a_group_of_its_own_and_the_first_to_be_tried() -> None:
    wrong = {"method": "ER", "model": {"name": "cnn"}}
    found = divide_groups(group_plans(plans(wrong, {"method": "SI", "model": SMALL})), workers=2)
    assert [one.plans[0].label for one in found] == ["ER", "SI"]


def test_planning_for_gpus_puts_dense_networks_together_whatever_their_size() -> None:
    made = plans({"method": "ER", "model": LARGE, "seeds": 3})
    assert [len(one) for one in group_plans(made, device="cuda")] == [3]


def test_networks_are_built_for_one_seed_only_until_their_runs_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[int] = []
    build = LearnerFactory._build

    def counted(self: LearnerFactory, run: Any) -> Any:
        built.append(run.seed)
        return build(self, run)

    monkeypatch.setattr(LearnerFactory, "_build", counted)
    monkeypatch.setattr("engram.engine.factory.MOST_KEPT_BYTES", 1)  # no room for more than one
    runs = [plan.run for plan in plans({"method": "ER", "model": SMALL, "seeds": 5})]
    engine = Engine(runs, device="cpu")
    assert engine.groups() == [[0, 1, 2, 3, 4]]
    assert built == [0]
    starts = [engine.learner(run).networks.start for run in (runs[1], runs[2], runs[1])]
    assert starts[0] == starts[2] != starts[1]
    assert len(engine._factory._weights) == 1


# -- memory ----------------------------------------------------------------------------------------
def test_memory_is_measured_and_says_how_many_runs_fit() -> None:
    runs = [plan.run for plan in plans({"method": "ER", "model": SMALL, "seeds": 2})]
    found = measure_memory(runs, "cpu")
    assert found.each >= 16 * sum(p.numel() for p in torch.nn.Linear(8, 8).parameters())
    assert found.base > 10 << 20  # a process that has imported torch
    assert found.room > found.bytes_for(2) > found.bytes_for(1)
    assert MemoryNeed(base=100, each=10, room=0).most_runs(1500) == 90
    assert MemoryNeed(base=100, each=10, room=0).most_runs(1) == 1


# -- what becomes of groups ------------------------------------------------------------------------
def dispatcher(tmp_path: Path, device: str = "cpu", **options: Any) -> tuple[Dispatcher, Notes]:
    told = Notes()
    made = plans({"method": "ER", "model": SMALL, "seeds": 4})
    recorder = Recorder(made, tmp_path, device="cpu", callback=told)
    job = RayJob(
        token="t", out=str(tmp_path), device=device, data=None, compile=False, deterministic=False,
        exact=False,
        checkpoint_every="5m", folder="", path=(), environ={},
    )  # fmt: skip
    room = ClusterResources(8, 2.0, ({"CPU": 4.0, "memory": 8e9}, {"CPU": 4.0, "memory": 4e9}))
    need = options.pop("need", None)
    group = WorkerGroup(tuple(made), 4.0, True)
    return Dispatcher([group], job, recorder, room, {}, lambda _: need, **options), told


def waiting(team: Dispatcher) -> list[int]:
    return [len(one.group) for one in team.retries.waiting]


def test_a_group_whose_workers_die_is_tried_again_then_apart_then_given_up(tmp_path: Path) -> None:
    team, told = dispatcher(tmp_path)
    for _ in range(MOST_TRIES):
        team._follow(team.retries.waiting.popleft(), "worker", "")
    assert waiting(team) == [2, 2]
    assert told.notes == [
        "ER (4 runs): its worker process ended early; another one continues it",
        "ER (4 runs): its worker process ended early, again; its runs are retried separately",
    ]
    alone = Attempt(WorkerGroup(team.groups[0].plans[:1]), tries=MOST_TRIES)
    team.retries.waiting.clear()
    team._follow(alone, "worker", "")
    assert waiting(team) == []
    with pytest.raises(
        EngramError, match="ER: its worker process ended early, again; what it recorded"
    ):
        team.retries.raise_failures()


def test_nodes_that_die_are_forgiven_more_often_than_workers(tmp_path: Path) -> None:
    team, _ = dispatcher(tmp_path)
    attempt = team.retries.waiting.popleft()
    for _ in range(MOST_NODES - 1):
        team._follow(attempt, "node", "")
        attempt = team.retries.waiting.popleft()
    assert len(attempt.group) == 4
    team._follow(attempt, "node", "")
    assert waiting(team) == [2, 2]


def test_a_fault_is_narrowed_down_to_the_run_that_has_it(tmp_path: Path) -> None:
    team, _ = dispatcher(tmp_path)
    seen = []
    while team.retries.waiting:
        attempt = team.retries.waiting.popleft()
        seen.append(len(attempt.group))
        at_fault = any(plan.run.seed == 2 for plan in attempt.group.plans)
        team._follow(attempt, "failed" if at_fault else "done", "ValueError: no")
    assert seen == [4, 2, 2, 1, 1]
    assert team.retries.failures == ["ER: ValueError: no"]


def test_a_node_that_does_not_see_the_directory_makes_files_travel(tmp_path: Path) -> None:
    team, _ = dispatcher(tmp_path)
    team._follow(team.retries.waiting.popleft(), "absent", "")
    assert not team.shared
    assert waiting(team) == [4]


def test_resources_are_declared_as_they_were_measured(tmp_path: Path) -> None:
    team, _ = dispatcher(tmp_path, need=MemoryNeed(base=1 << 30, each=1 << 28, room=0))
    (attempt,) = team.retries.waiting
    assert team.resources(attempt) == {"num_cpus": 4, "memory": int(1.5 * (2 << 30))}
    need = MemoryNeed(base=2 << 30, each=1 << 30, room=80 << 30)
    team, _ = dispatcher(tmp_path, "cuda", need=need)
    (attempt,) = team.retries.waiting
    assert team.resources(attempt) == {"num_cpus": 1, "num_gpus": 3 / 16}  # 9 of 64 GiB
    team.retries.waiting.clear()
    single = Attempt(WorkerGroup(attempt.group.plans[:1]))
    team._follow(single, "memory", "out of memory")
    assert team.resources(team.retries.waiting[0]) == {"num_cpus": 1, "num_gpus": 1.0}
    team._follow(team.retries.waiting.popleft(), "memory", "out of memory")
    assert team.retries.failures == ["ER: out of memory"]
    team, _ = dispatcher(tmp_path, "cuda", need=need, workers=2)
    assert team.resources(team.retries.waiting[0]) == {"num_cpus": 1, "num_gpus": 1.0}


# -- files between machines ------------------------------------------------------------------------
def test_what_a_worker_needs_to_go_on_travels_and_news_come_back(tmp_path: Path) -> None:
    recipe = BASE | {"method": "ER", "model": SMALL, "seeds": 2, "keep": "parameters"}
    whole = engram.sweep([recipe], out=tmp_path / "whole", device="cpu")

    class Stop(Notes):
        def stage(self, plan: Plan, stage: int, rows: object) -> None:
            super().stage(plan, stage, rows)
            if len(self.stages) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engram.sweep([recipe], out=tmp_path / "run_here", device="cpu", callback=Stop())
    away = tmp_path / "away"
    away.mkdir()
    unpack_files(away, pack_files(RunDirectory(tmp_path / "run_here"), plans(recipe)))
    outbox, told = Outbox(away), Notes()
    engram.sweep([recipe], out=away, device="cpu", callback=told)
    assert told.begun == [(2, 0)]
    assert {stage for _, stage in told.stages} == {2, 3, 4}
    files, gone = outbox.collect_changes()
    assert not any(name.startswith((".", "listed-")) for name in files)
    assert outbox.collect_changes() == ({}, [])
    unpack_files(tmp_path / "run_here", files, gone)
    found = engram.read(tmp_path / "run_here")
    torch.testing.assert_close(torch.tensor(found.matrix), torch.tensor(whole.matrix), rtol=0,
                               atol=0, equal_nan=True)  # fmt: skip


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", ""])
def test_files_stay_inside_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="is no path inside a run directory"):
        unpack_files(tmp_path, {name: b""})


# -- addresses -------------------------------------------------------------------------------------
def test_addresses_belong_to_ray_and_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadArgument, match="address: expected None, because the pool 'serial'"):
        engram.sweep([BASE], pool="serial", address="auto")
    pytest.importorskip("ray", reason="ray is not installed: pip install engram-cl[ray]")
    for address, words in {
        "ray://there:10001": "address: expected HOST:PORT of a cluster, auto or local; from out",
        "there": "address: expected HOST:PORT of a cluster, auto or local, got 'there'",
        "127.0.0.1:1": "address: no answer from 127.0.0.1:1",
    }.items():
        with pytest.raises(EngramError, match=words), connect_ray(address):
            pass


def test_without_the_package_the_pool_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(EngramError, match=r"pip install 'engram-cl\[ray\]'"):
        engram.sweep([BASE | {"method": "ER"}], pool="ray", out=tmp_path)
