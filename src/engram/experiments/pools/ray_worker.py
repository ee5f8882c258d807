"""A worker of the ray pool: trains a group of runs, and sends messages (`Mailbox`) and files to
the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from engram import __version__
from engram.engine import checkpoints as checkpoint
from engram.errors import EngramError, RecordError, describe_user_error, is_out_of_memory
from engram.experiments import Plan, Recipe, execute
from engram.experiments.plan import RecipePlanner
from engram.experiments.pools.memory_use import MemoryNeed, measure_memory
from engram.experiments.pools.pool import PlanKey
from engram.experiments.pools.worker_messages import EventSender
from engram.io import TensorFile, make_folder, read_bytes, write_bytes
from engram.records import Rows, RunDirectory, run_id
from engram.records.journal import (
    JOURNAL_SUFFIX,
    RESULTS_PREFIX,
    copy_to_journal,
    list_journals,
)
from engram.records.locks import Claims
from engram.records.table_parts import read_parts

PROGRESS_SECONDS = 0.5  # seconds between progress messages
LOCK_WAIT_SECONDS = 30.0  # seconds to wait for a dead worker's locks to disappear


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """Settings of all workers besides their runs."""

    token: str  # of this sweep
    out: str | None  # run directory, where it is shared
    device: str
    data: str | None
    compile: bool
    deterministic: bool
    exact: bool
    checkpoint_every: float | str
    folder: str
    path: tuple[str, ...]
    environ: dict[str, str]
    version: str = __version__


@dataclass(frozen=True, kw_only=True)
class WorkOrder:
    """One group for one worker."""

    attempt: int
    tries: int
    contents: tuple[dict[str, Any], ...]  # recipes as plain values
    keys: tuple[PlanKey, ...]  # the runs to train
    threads: int
    shared: bool  # whether workers write into the run directory themselves
    files: list[Any] | None = None  # otherwise its files about these runs, by reference


class WorkStopped(Exception):
    """Raised to end a task early; `kind` and `words` are returned to the driver."""

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(kind, words)
        self.kind, self.words = kind, words


_PLANNERS: dict[str, RecipePlanner] = {}  # token of a sweep: planner, which caches data


def marker_name(token: str) -> str:
    """Return the name of the marker file by which workers recognise the run directory."""
    return f".ray-{token}"


def measure_runs(job: RayJob, order: WorkOrder) -> MemoryNeed:
    """Task: measure the memory that runs of a group need."""
    _enter_environment(job, order.threads)
    return measure_memory([plan.run for plan in _make_order_plans(job, order)], job.device)


class MailSender:
    """Sends messages of one attempt; ends the worker on request or if the mailbox is gone."""

    def __init__(self, mailbox: Any, attempt: int) -> None:
        self.mailbox, self.attempt = mailbox, attempt
        self.stopped = False

    def send(self, words: tuple[Any, ...]) -> None:
        """Send a message and wait until it has arrived, which keeps the order."""
        import ray

        try:
            stop = ray.get(self.mailbox.tell.remote(self.attempt, words))
        except ray.exceptions.RayActorError:  # the driver is gone
            stop = True
        if stop and not self.stopped:
            self.stopped = True
            signal.raise_signal(signal.SIGTERM)  # saves the runs, as any such signal does

    def seconds_left(self) -> float | None:
        """Until nothing further is begun."""
        import ray

        left: float | None = ray.get(self.mailbox.seconds_left.remote())
        return left


def train_group(job: RayJob, order: WorkOrder, mailbox: Any) -> tuple[str, str]:
    """Task: train a group; returns how it ended, and a message."""
    import ray

    post = MailSender(mailbox, order.attempt)
    try:
        post.send(("begun", ray.util.get_node_ip_address()))
        _enter_environment(job, order.threads)
        left = post.seconds_left()
        if left is not None and left <= 0:
            return "done", ""
        _OrderTrainer(job, order, post.send).train(
            None if left is None else time.monotonic() + left
        )
    except WorkStopped as found:
        return found.kind, found.words
    except (KeyboardInterrupt, SystemExit):  # told to end: by us, or by a node that goes
        return "ended", ""
    except Exception as error:
        if is_out_of_memory(error):
            return "memory", f"{type(error).__name__}: {error}".splitlines()[0]
        return "failed", describe_user_error(error) or f"{type(error).__name__}: {error}"
    return "done", ""


def _enter_environment(job: RayJob, threads: int) -> None:
    """Set working directory and environment as on the driver, as far as they exist here."""
    if job.version != __version__:
        here = f"Engram {__version__} is installed on this node, the driver has {job.version}"
        raise WorkStopped("fatal", here)
    torch.set_num_threads(threads)
    sys.path += [one for one in job.path if one not in sys.path and os.path.isdir(one)]
    if os.path.isdir(job.folder):
        os.chdir(job.folder)
    for name, value in job.environ.items():
        os.environ.setdefault(name, value)


def _make_order_plans(job: RayJob, order: WorkOrder) -> list[Plan]:
    """Make the plans of a group; raises if they differ from the driver's."""
    if job.token not in _PLANNERS:
        _PLANNERS.clear()
        _PLANNERS[job.token] = RecipePlanner(job.data)
    planner = _PLANNERS[job.token]
    made = [plan for one in order.contents for plan in planner.plan(Recipe.of(one))]
    found = {plan.key: plan for plan in made}
    lost = [key for key in order.keys if key not in found]
    if lost:
        raise EngramError(
            "data or source differ between this node and the driver's: recipe "
            f"{lost[0][0]} is {', '.join(sorted({one.recipe for one in made}))} here"
        )
    return [found[key] for key in order.keys]


class _OrderTrainer:
    """Trains the runs of one work order, in the run directory or in a temporary one."""

    def __init__(self, job: RayJob, order: WorkOrder, send: Any) -> None:
        self.job, self.order, self.send = job, order, send

    def train(self, deadline: float | None) -> None:
        if self.order.shared:
            self._train_in(self._shared(), deadline, EventSender(self.send, PROGRESS_SECONDS))
            return
        own = Path(tempfile.mkdtemp(prefix="engram-"))
        try:
            unpack_files(own, self._files())
            outbox = Outbox(own)
            (own / "recipes").mkdir(exist_ok=True)
            try:
                self._train_in(own, deadline, _FileSender(self.send, outbox))
            finally:
                self._ship(outbox)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _ship(self, outbox: Outbox) -> None:
        files, gone = outbox.collect_changes()
        if files or gone:
            self.send(("files", files, gone))

    def _files(self) -> Files:
        import ray

        return dict(ray.get(self.order.files[0])) if self.order.files else {}

    def _shared(self) -> Path:
        """Return the run directory; raises if this machine does not see it."""
        folder = Path(str(self.job.out))
        if not (folder / marker_name(self.job.token)).is_file():
            raise WorkStopped("absent")
        if self.order.tries > 1:
            self._wait_for_locks(folder)
        return folder

    def _wait_for_locks(self, folder: Path) -> None:
        """Wait for the locks of a dead worker, which disappear a moment after its death."""
        claims, until = Claims(folder), time.monotonic() + LOCK_WAIT_SECONDS
        names = [run_id(*key) for key in self.order.keys]
        while not all(claims.free(name) for name in names) and time.monotonic() < until:
            time.sleep(0.2)
        claims.close()

    def _train_in(self, folder: Path, deadline: float | None, callback: EventSender) -> None:
        job = self.job
        execute(
            _make_order_plans(job, self.order), out=folder, device=job.device, compile=job.compile,
            deterministic=job.deterministic, exact=job.exact, pool="ray",
            checkpoint_every=job.checkpoint_every,
            callback=callback, deadline=deadline,
        )  # fmt: skip


class _FileSender(EventSender):
    """Sends files before the events that refer to them."""

    def __init__(self, send: Any, outbox: Outbox) -> None:
        super().__init__(send, PROGRESS_SECONDS)
        self.outbox = outbox
        self._looked = time.monotonic()

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if time.monotonic() - self._looked >= self.every:  # a checkpoint inside a task
            self._looked = time.monotonic()
            self._ship()
        super().step(plans, stage, done, total)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self._ship()
        super().stage(plan, stage, rows)

    def _ship(self) -> None:
        files, gone = self.outbox.collect_changes()
        if files or gone:
            self.send(("files", files, gone))


# Messages from workers to the driver, kept by an actor of Ray.


MAIL_WAIT_SECONDS = 2.0  # seconds for which a reader waits for messages


class Mailbox:
    """Keeps messages in their order until they are read; tells workers when to end.

    Parameters
    ----------
    left
        Seconds until nothing further is begun; None: no end. They are counted here, because the
        clocks of machines differ.
    """

    def __init__(self, left: float | None = None) -> None:
        self._until = None if left is None else time.monotonic() + left
        self._messages: list[tuple[int, tuple[Any, ...]]] = []
        self._awake = asyncio.Event()
        self._stop = False

    async def tell(self, attempt: int, words: tuple[Any, ...]) -> bool:
        """Take a message of an attempt; returns whether the worker is to end."""
        self._messages.append((attempt, words))
        self._awake.set()
        return self._stop

    async def read(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Return the messages since the last call; waits a while for the first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), MAIL_WAIT_SECONDS)
        self._awake.clear()
        found, self._messages = self._messages, []
        return found

    async def wake(self) -> None:
        """Let a waiting reader return."""
        self._awake.set()

    async def seconds_left(self) -> float | None:
        """Seconds until nothing further is begun."""
        return None if self._until is None else self._until - time.monotonic()

    async def stop(self) -> None:
        """Tell every worker to save its runs and end."""
        self._stop = True


# Transfer of files between machines that share no disk. A worker trains in its own directory, whose
# new files are sent to the run directory; files about interrupted runs are sent to the worker that
# resumes them.


Files = dict[str, tuple[int, bytes]]  # by path in the run directory: from where on, and content
_NOT_SENT = "listed-"  # lists of recipes, which the driver has


class Outbox:
    """Tracks new files in a worker's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent = self._look()

    def collect_changes(self) -> tuple[Files, list[str]]:
        """Return new and changed files since the last call, and the names of removed ones."""
        now = self._look()
        found: Files = {}
        for name, stamp in now.items():
            if self._sent.get(name) != stamp:
                # journals only grow: what was sent before is not sent again
                start = self._sent[name][1] if _is_journal(name) and name in self._sent else 0
                found[name] = start, read_bytes(self.folder / name)[start:]
        gone = [name for name in self._sent if name not in now]
        self._sent = now
        return found, gone

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("[!.]*"):
            if path.is_file() and not path.name.startswith(_NOT_SENT):
                known = path.stat()
                name = path.relative_to(self.folder).as_posix()
                found[name] = known.st_mtime_ns, known.st_size
        return found


def _is_journal(name: str) -> bool:
    return name.startswith(RESULTS_PREFIX) and name.endswith(JOURNAL_SUFFIX)


def unpack_files(folder: Path, files: Files, gone: Sequence[str] = ()) -> None:
    """Write files into a directory; results come last, because they mark a stage as finished."""
    for name in [*files, *gone]:
        _check_path(name)
    for name in sorted(files, key=lambda name: (name.startswith(RESULTS_PREFIX), name)):
        path, (start, content) = folder / name, files[name]
        make_folder(path.parent, inside=folder)
        if _is_journal(name):
            copy_to_journal(path, start, content)
        else:
            write_bytes(path, content)
    for name in gone:
        (folder / name).unlink(missing_ok=True)


def _check_path(name: str) -> None:
    """Raise for a path that leads out of the directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RecordError(f"{name}: is no path inside a run directory")


def pack_files(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """Collect the files a worker needs to resume runs: finished stages, checkpoints, recipes."""
    names = {folder.checkpoint_path(*plan.key).name for plan in plans}
    shelf = folder.path / "checkpoint"
    chosen = [path for name in names for path in sorted((shelf / name).glob("stage-*"))]
    for shared in ("groups", "steps"):
        files = sorted((shelf / shared).glob("[!.]*.safetensors"))
        chosen += [path for path in files if names & _runs_in(path)]
    found = {path.relative_to(folder.path).as_posix(): (0, read_bytes(path)) for path in chosen}
    begun = [plan for plan in plans if folder.finished(*plan.key)]
    return {**found, **_pack_results(folder, begun)} if begun else found


def _runs_in(path: Path) -> set[str]:
    """Return the names of the runs in a checkpoint; empty if it is damaged or gone."""
    try:
        return set(checkpoint.read_facts(TensorFile(path, what="checkpoint", framework="pt")))
    except RecordError:
        return set()


def _pack_results(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """Pack the records of some runs as one part."""
    table = read_parts(folder.result_files()).table
    keys = {plan.key for plan in plans}
    columns = [table.column(name).to_pylist() for name in ("recipe", "seed", "order")]
    own = [place for place, key in enumerate(zip(*columns, strict=True)) if key in keys]
    measured = [plan for plan in plans if plan.probes]
    with tempfile.TemporaryDirectory() as name:
        packed = RunDirectory(name)
        packed.append(
            table.take(np.array(own, np.int64)),
            predictions=_list_predictions(folder, measured) if measured else (),
            probes=_list_probed(folder, measured) if measured else None,
        )
        return {path.name: (0, path.read_bytes()) for path in list_journals(packed.path)}


def _list_probed(folder: RunDirectory, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [
        {"recipe": plan.recipe, "seed": plan.run.seed, "order": plan.order, "stage": stage,
         "probes": list(plan.probes)}
        for plan in plans for stage in sorted(folder.finished(*plan.key))
    ]  # fmt: skip


def _list_predictions(folder: RunDirectory, plans: Sequence[Plan]) -> list[Any]:
    stored = folder.predictions()
    every = [
        stored.get(*plan.key, stage) for plan in plans for stage in folder.finished(*plan.key)
    ]  # fmt: skip
    return [one for one in every if one is not None]
