"""The pool ``ray``: connect to a cluster, measure memory, and dispatch groups of runs to nodes."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, EngramError, bad, check_choice
from engram.experiments.changed_recipes import merge_equal_plans
from engram.experiments.model_file import UnsavedModel, load_model
from engram.experiments.plain_values import parse_duration
from engram.experiments.pools.memory_use import MemoryNeed
from engram.experiments.pools.planner import (
    Attempt,
    RetryQueue,
    WorkerGroup,
    divide_groups,
    group_plans,
    select_unfinished,
)
from engram.experiments.pools.pool import PlanKey, Work, contents_by_run, unique_recipes
from engram.experiments.pools.ray_worker import (
    Mailbox,
    RayJob,
    WorkOrder,
    marker_name,
    measure_runs,
    pack_files,
    train_group,
    unpack_files,
)
from engram.experiments.pools.worker_messages import EventReceiver
from engram.experiments.recorder import Recorder
from engram.process import exit_now, handle_end_signals
from engram.records import Result, run_id
from engram.records.reading import load_into_memory
from engram.records.run_arrays import RunKey
from engram.records.saved_models import ModelLocation

MEASURING_SECONDS = 120.0  # time limit of all memory measurements


def train(work: Work) -> Result:
    """Train on the cluster at ``work.address``, or one on this machine; see `Pool`."""
    parse_duration(work.checkpoint_every, "checkpoint_every")  # raises here, not in every worker
    check_choice("device", str(work.device).split(":")[0], ("auto", "cpu", "cuda"))
    if work.out is not None:
        return _train_into(work, Path(work.out).absolute())
    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        result = _train_into(work, Path(folder))
        return load_into_memory(result, _load_models(result, work))


def _load_models(result: Result, work: Work) -> dict[RunKey, ModelLocation]:
    """Load the models of runs from their files."""
    found: dict[RunKey, ModelLocation] = {}
    for plan in work.plans:
        key = RunKey(*plan.key)
        path = result.kept_model(key)
        if isinstance(path, Path):
            learnt, made = load_model(path)
            found[key] = UnsavedModel(found=learnt, run=plan.run, made=made)
    return found


def _train_into(work: Work, folder: Path) -> Result:
    """Train into a directory and read it as a result."""
    recorder = Recorder(
        merge_equal_plans(work.plans),
        folder,
        device="cpu",
        callback=work.callback,
        rerun=work.rerun,
    )
    late = work.deadline is not None and time.monotonic() >= work.deadline
    if recorder.open and not late and recorder.folder is not None:
        recorder.prepare()
        try:
            with connect_ray(work.address, work.workers) as room, handle_end_signals(exit_now):
                _train_groups(work, recorder, room)
            recorder.close()
        finally:
            recorder.release()
        recorder.report_skipped_runs()
    return recorder.result()


def _train_groups(work: Work, recorder: Recorder, room: ClusterResources) -> None:
    """Plan, measure and dispatch groups; raises after all have been tried."""
    import ray

    assert recorder.folder is not None
    device = _choose_device(str(work.device), room)
    contents = contents_by_run(work, recorder)
    with _mark_directory(recorder.folder.path) as token:
        job = RayJob(
            token=token, out=None if work.out is None else str(recorder.folder.path), device=device,
            data=work.data, compile=work.compile, deterministic=work.deterministic,
            exact=work.exact, checkpoint_every=work.checkpoint_every, folder=os.getcwd(),
            path=tuple(os.path.abspath(one) for one in sys.path),
            environ={k: v for k, v in os.environ.items() if k.startswith("ENGRAM_")},
        )  # fmt: skip
        places = work.workers or (max(1, int(room.gpus)) if device == "cuda" else room.cpus)
        large = group_plans(recorder.plans, device=device, compile=work.compile, exact=work.exact)
        needs = MemoryNeeds(job, contents, room)
        there = select_unfinished(large, recorder.open)
        needs.measure([one for one in there if one.lockstep or device == "cuda"])
        groups = select_unfinished(divide_groups(large, places, needs.most_runs), recorder.open)
        left = None if work.deadline is None else work.deadline - time.monotonic()
        mailbox = ray.remote(Mailbox).options(num_cpus=0, **_driver_node_options()).remote(left)
        team = Dispatcher(
            groups, job, recorder, room, contents, needs.find_need, workers=work.workers,
            shared=work.out is not None, deadline=work.deadline,
        )  # fmt: skip
        team.work(mailbox)
        ray.kill(mailbox)
    team.retries.raise_failures()


def _choose_device(asked: str, room: ClusterResources) -> str:
    """Choose the device by the nodes, since the driver's machine may have no GPU."""
    if asked.startswith("cuda") and not room.gpus:
        raise bad("device", "cpu or auto, because no node of the cluster has a GPU", asked)
    if asked == "auto":
        return "cuda" if room.gpus else "cpu"
    return asked.split(":")[0]


def _driver_node_options() -> dict[str, Any]:
    """Place the mailbox on the driver's node, so that no other node's loss takes it away."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@contextmanager
def _mark_directory(folder: Path) -> Iterator[str]:
    """Write a marker file, by which workers recognise the directory, and yield its token."""
    token = secrets.token_hex(8)
    path = folder / marker_name(token)
    path.touch()
    try:
        yield token
    finally:
        path.unlink(missing_ok=True)


class MemoryNeeds:
    """Measured memory needs of groups, one measurement per method, model and batch size."""

    def __init__(
        self, job: RayJob, contents: dict[PlanKey, dict[str, Any]], room: ClusterResources
    ) -> None:
        self.job, self.contents, self.room = job, contents, room
        self._found: dict[Any, MemoryNeed] = {}

    def measure(self, groups: Sequence[WorkerGroup]) -> None:
        """Measure each kind of group by training a few steps on some node."""
        import ray

        gpus = {"num_gpus": 1} if self.job.device == "cuda" else {}
        task, asked = ray.remote(measure_runs), {}
        for group in groups:
            if _memory_key(group) not in asked:
                keys = tuple(plan.key for plan in group.plans[:2])
                order = WorkOrder(
                    attempt=0, tries=1, threads=1, shared=False, keys=keys,
                    contents=unique_recipes(keys, self.contents),
                )  # fmt: skip
                asked[_memory_key(group)] = task.options(**gpus).remote(self.job, order)
        ray.wait(
            [*asked.values()], num_returns=len(asked), timeout=MEASURING_SECONDS
        ) if asked else None
        for kind, found in asked.items():
            try:
                self._found[kind] = ray.get(found, timeout=0)
            except ray.exceptions.RayError:  # training it will report the error
                ray.cancel(found)

    def find_need(self, group: WorkerGroup) -> MemoryNeed | None:
        """Return the memory need of a group; None if unknown."""
        return self._found.get(_memory_key(group))

    def most_runs(self, group: WorkerGroup) -> int:
        """Return how many runs of a group a worker has room for."""
        need = self.find_need(group)
        if need is None:
            return len(group)
        cuda = self.job.device == "cuda"
        return need.most_runs(
            MOST_GPU_MEMORY_SHARE * need.room if cuda else self.room.memory_per_cpu
        )


def _memory_key(group: WorkerGroup) -> Any:
    run = group.plans[0].run
    model = repr(run.model) if isinstance(run.model, (str, dict)) else id(run.model)
    return type(run.method), model, run.training.batch_size, id(run.stream.data), group.lockstep


# Connection to a Ray cluster, and its resources.


CONNECT_SECONDS = 5.0  # seconds for an address to answer
INSTALL = "pip install 'engram-cl[ray]'"


@dataclass(frozen=True)
class ClusterResources:
    """Total resources of the nodes of a cluster."""

    cpus: int
    gpus: float
    nodes: tuple[Mapping[str, float], ...]

    @property
    def memory_per_cpu(self) -> float:
        """Bytes of memory per core of the node with the fewest."""
        known = [one for one in self.nodes if one.get("CPU") and one.get("memory")]
        return min((one["memory"] / one["CPU"] for one in known), default=float("inf"))

    @property
    def largest_memory(self) -> float:
        """Bytes of memory of the largest node."""
        return max((one.get("memory", 0.0) for one in self.nodes), default=0.0)

    @property
    def cores_of_a_node(self) -> int:
        """Cores of the smallest node that has any: the most a task may request on all nodes."""
        return int(min((one["CPU"] for one in self.nodes if one.get("CPU", 0) >= 1), default=1))


def import_ray() -> Any:
    """Import ray, or raise with the command to install it."""
    # tasks without a GPU train on the CPU explicitly, so Ray need not hide devices and warn
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as problem:
        raise EngramError(f"pool ray: the package ray is not installed; {INSTALL}") from problem
    return ray


@contextmanager
def connect_ray(address: str | None = None, cores: int = 0) -> Iterator[ClusterResources]:
    """Connect to the cluster at an address, or to one on this machine, within a context.

    The default address is RAY_ADDRESS; without that, a cluster is started
    here with so many `cores` (0: all) and stopped afterwards. An existing connection is used and
    kept. Authentication is Ray's own: a cluster started here makes and requires a token;
    for an existing one, RAY_AUTH_MODE says whether a token is sent, and RAY_AUTH_TOKEN,
    RAY_AUTH_TOKEN_PATH or ``~/.ray/auth_token`` which.
    """
    ray = import_ray()
    named = address or os.environ.get("RAY_ADDRESS") or "local"
    if ray.is_initialized():
        _check_same_cluster(ray, address)
        yield _read_resources(ray)
        return
    before = _signal_handlers()
    _check_address(named)
    _start_ray(ray, named, cores)
    _restore_handlers(before)  # Ray ends the process at SIGTERM; keep the caller's handlers
    try:
        yield _read_resources(ray)
    finally:
        ray.shutdown()
        _restore_handlers(before)


def _start_ray(ray: Any, address: str, cores: int) -> None:
    here: dict[str, Any] = {}
    if address == "local":
        here = {"num_cpus": cores or None, "include_dashboard": False}
    else:  # it answers, so there is no need to wait
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{CONNECT_SECONDS:.0f}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as problem:
        chain = [problem, problem.__cause__, problem.__context__]
        if any("AuthToken" in str(one) or "authentication token" in str(one) for one in chain):
            raise EngramError(
                f"address: the cluster at {address} asks for a token, and none is sent from here, "
                "or another one; set RAY_AUTH_MODE=token, and give the token in RAY_AUTH_TOKEN, in "
                "the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token"
            ) from problem
        words = str(problem).strip().splitlines()
        said = words[0] if words else type(problem).__name__
        raise EngramError(f"address: no connection to {address}: {said}") from problem


def _check_address(address: str) -> None:
    """Raise for a malformed address or one without answer, which Ray would try for minutes."""
    if address in ("local", "auto"):
        return
    if "://" in address:
        expected = "HOST:PORT of a cluster, auto or local; from outside, ray job submit -- engram"
        raise bad("address", expected, address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise bad("address", "HOST:PORT of a cluster, auto or local", address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise EngramError(f"address: no answer from {address} ({problem})") from problem


def _check_same_cluster(ray: Any, address: str | None) -> None:
    """Raise if Ray is already connected to another cluster."""
    there = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", there):
        expected = f"{there}, to which this process is connected already"
        raise bad("address", expected, address)


def _read_resources(ray: Any) -> ClusterResources:
    nodes = tuple(one["Resources"] for one in ray.nodes() if one["Alive"])
    whole = ray.cluster_resources()
    if not whole.get("CPU"):
        raise BadArgument("address: expected a cluster with at least one core for tasks")
    return ClusterResources(int(whole["CPU"]), float(whole.get("GPU", 0.0)), nodes)


def refresh_resources(before: ClusterResources) -> ClusterResources:
    """Read the current resources; those from before if there are none at the moment."""
    import ray

    try:
        return _read_resources(ray)
    except BadArgument:
        return before


def _signal_handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _restore_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


# Dispatching groups of runs to the workers of a cluster.


REFRESH_SECONDS = 2.0  # seconds between updates of the resources: nodes come and go
GRACE_SECONDS = 120.0  # seconds in which workers may save their runs before they are killed
WAITING_NOTE_SECONDS = 60.0  # seconds without a free place before a note is given
GPU_PARTS = 16  # smallest share of a GPU: 1 / 16
MOST_GPU_MEMORY_SHARE = 0.8  # share of a GPU's memory for groups


@dataclass
class Dispatcher:
    """Dispatches groups to workers, receives their messages, and retries lost groups.

    Parameters
    ----------
    groups
        Costliest first.
    contents
        Recipes as plain values, by the keys of their runs.
    needs
        Memory needs of groups, as far as measured.
    workers
        Number of groups at the same time; 0: as many as there is room for.
    """

    groups: Sequence[WorkerGroup]
    job: RayJob
    recorder: Recorder
    room: ClusterResources
    contents: Mapping[PlanKey, dict[str, Any]]
    needs: Callable[[WorkerGroup], MemoryNeed | None]
    workers: int = 0
    shared: bool = True
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.retries = RetryQueue(self.groups, self.recorder.callback.note)
        self._busy: dict[Any, tuple[int, Attempt]] = {}  # task: number and attempt
        self._open: dict[int, Attempt] = {}  # number: attempt whose messages count
        self._numbers = itertools.count(1)
        self._hearing = EventReceiver(self.recorder.callback, self.recorder.plans)
        self._last, self._said = time.monotonic(), False
        self._looked = time.monotonic()
        slots = self.workers or max(self.room.cpus, 1)
        per_group = slots // max(1, min(len(self.groups), slots))
        self.cpus = max(1, min(per_group, self.room.cores_of_a_node))

    # -- the loop --------------------------------------------------------------------------------
    def work(self, mailbox: Any) -> None:
        """Work until every group is done; failures are in `retries`."""
        import ray

        self._mailbox, self._task = mailbox, ray.remote(train_group)
        self._reading = mailbox.read.remote()
        try:
            while self.retries.waiting or self._busy:
                self._round()
        except BaseException:
            self._dismiss()
            raise

    def _round(self) -> None:
        import ray

        window = self._window()
        while self.retries.waiting and len(self._busy) < window and not self._is_late():
            self._hand_out(self.retries.waiting.popleft())
        if self._is_late():
            self.retries.waiting.clear()
            self._cancel_queued()
        if not self._busy:
            return
        ready, _ = ray.wait([self._reading, *self._busy], num_returns=1, timeout=1.0)
        if self._reading in ready:
            self._read()
        for task in [one for one in ready if one in self._busy]:
            self._end(task)
        self._say_waiting()

    def _window(self) -> int:
        """Return how many groups to dispatch at once: as many as there are places now.

        For a waiting task, Ray starts a process without any imports, and ends the one
        that has finished another task.
        """
        if self.workers:
            return self.workers
        if time.monotonic() - self._looked > REFRESH_SECONDS:
            self._looked, self.room = time.monotonic(), refresh_resources(self.room)
        if self.job.device != "cuda" or not self.retries.waiting:
            return max(1, self.room.cpus // self.cpus)
        part = self.resources(self.retries.waiting[0])["num_gpus"]
        return max(1, min(self.room.cpus, int(self.room.gpus / part)))

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _hand_out(self, attempt: Attempt) -> None:
        import ray

        number, plans = next(self._numbers), attempt.group.plans
        files = None
        if not self.shared and self.recorder.folder is not None:
            packed = pack_files(self.recorder.folder, plans)
            files = ray.put(packed) if packed else None
            for plan in plans:  # for the worker, which cannot
                assert self.recorder.claims is not None
                self.recorder.claims.take(run_id(*plan.key))
        keys = tuple(plan.key for plan in plans)
        order = WorkOrder(
            attempt=number, tries=attempt.tries + attempt.nodes - 1, threads=self.cpus,
            contents=unique_recipes(keys, self.contents), keys=keys, shared=self.shared,
            files=None if files is None else [files],
        )  # fmt: skip
        attempt.begun, self._open[number] = False, attempt
        options = self.resources(attempt)
        task = self._task.options(max_retries=0, **options).remote(self.job, order, self._mailbox)
        self._busy[task] = number, attempt

    def resources(self, attempt: Attempt) -> dict[str, float]:
        """Return the resources of a group: cores, and its measured share of a GPU or of memory."""
        need, runs = self.needs(attempt.group), len(attempt.group)
        if self.job.device != "cuda":
            found: dict[str, float] = {"num_cpus": self.cpus}
            if need is not None:
                found["memory"] = int(min(need.bytes_for(runs), self.room.largest_memory))
            return found
        part = (
            1.0
            if need is None or attempt.whole
            else need.bytes_for(runs) / (MOST_GPU_MEMORY_SHARE * need.room)
        )
        if self.workers:
            part = max(part, min(1.0, self.room.gpus / self.workers))
        gpus = min(1.0, math.ceil(part * GPU_PARTS) / GPU_PARTS)
        return {"num_cpus": 1, "num_gpus": gpus}

    # -- messages --------------------------------------------------------------------------------
    def _read(self) -> None:
        import ray

        messages = ray.get(self._reading)
        self._reading = self._mailbox.read.remote()
        for number, words in messages:
            attempt = self._open.get(number)
            if attempt is not None:  # otherwise it was given up and replaced
                self._receive(attempt, *words)

    def _receive(self, attempt: Attempt, kind: str, *told: Any) -> None:
        if kind == "begun":
            attempt.begun, attempt.node = True, told[0]
            self._last = time.monotonic()
        elif kind == "files":
            assert self.recorder.folder is not None
            self.recorder.folder.check_there()
            unpack_files(self.recorder.folder.path, *told)
        else:
            self._hearing.receive(kind, *told)

    # -- ends ------------------------------------------------------------------------------------
    def _end(self, task: Any) -> None:
        """Handle the end of a task: its last messages, then its outcome."""
        import ray

        ray.get(self._mailbox.wake.remote())
        self._read()
        number, attempt = self._busy.pop(task)
        del self._open[number]
        self._last = time.monotonic()
        if not self.shared and self.recorder.claims is not None:
            for plan in attempt.group.plans:
                self.recorder.claims.release(run_id(*plan.key))
        try:
            kind, words = ray.get(task)
        except ray.exceptions.TaskCancelledError:
            return
        except ray.exceptions.OutOfMemoryError:
            kind, words = "memory", "the node ran out of memory"
        except ray.exceptions.RayTaskError as problem:
            said = str(problem.cause or problem).strip().splitlines()[-1]
            raise EngramError(f"a worker of the cluster cannot run Engram: {said}") from problem
        except ray.exceptions.RayError as problem:
            kind = "node" if isinstance(problem, ray.exceptions.NodeDiedError) else "worker"
            words = ""
        self._follow(attempt, kind, words)

    def _follow(self, attempt: Attempt, kind: str, words: str) -> None:
        """Requeue, retry or finish a group, depending on how its attempt ended."""
        retries = self.retries
        if kind == "fatal":
            raise EngramError(f"{attempt.node}: {words}")
        if kind == "absent":  # that node does not see the run directory: transfer files from now on
            self.shared = False
            retries.requeue(attempt)
        elif kind == "worker":
            retries.handle_loss(attempt, "its worker process ended early")
        elif kind in ("node", "ended"):
            retries.handle_loss(
                attempt, f"its node {attempt.node}".rstrip() + " ended early", node=True
            )
        elif (
            kind == "memory"
            and len(attempt.group) == 1
            and self._shares_devices
            and not attempt.whole
        ):
            retries.requeue(replace(attempt, whole=True))
        elif kind != "done":
            retries.handle_failure(attempt, words)

    @property
    def _shares_devices(self) -> bool:
        """Whether groups may share a device."""
        return self.job.device == "cuda"

    # -- stopping --------------------------------------------------------------------------------
    def _say_waiting(self) -> None:
        """Note once that the cluster has no place for the waiting groups."""
        idle = time.monotonic() - self._last > WAITING_NOTE_SECONDS
        if idle and not self._said and not any(one.begun for _, one in self._busy.values()):
            self._said = True
            asked = ", ".join(
                f"{k} {v:g}" for k, v in self.resources(self._first_attempt()).items()
            )
            self.recorder.callback.note(f"no node of the cluster has room for a group ({asked})")

    def _first_attempt(self) -> Attempt:
        return next(attempt for _, attempt in self._busy.values())

    def _cancel_queued(self) -> None:
        import ray

        for task, (_, attempt) in self._busy.items():
            if not attempt.begun:
                ray.cancel(task)

    def _dismiss(self) -> None:
        """Let workers save their runs and end, and read their messages for a while."""
        import ray

        self.retries.waiting.clear()
        until = time.monotonic() + GRACE_SECONDS
        with suppress(ray.exceptions.RayError):  # the cluster itself may be gone
            ray.get(self._mailbox.stop.remote(), timeout=GRACE_SECONDS)
            self._cancel_queued()
            while self._busy and time.monotonic() < until:
                ready, _ = ray.wait([self._reading, *self._busy], num_returns=1, timeout=1.0)
                if self._reading in ready:
                    self._read()
                for task in [one for one in ready if one in self._busy]:
                    ray.get(self._mailbox.wake.remote(), timeout=GRACE_SECONDS)
                    self._read()
                    del self._open[self._busy.pop(task)[0]]
            for task in self._busy:
                ray.cancel(task, force=True)
