"""What a worker of the ray pool does: train a group of runs, send messages and files to the
driver.
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
from collections.abc import Mapping, Sequence
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
from engram.io import TensorFile, make_folder, read_bytes, write_bytes, write_json
from engram.records import Rows, RunDirectory, run_id
from engram.records.locks import Claims
from engram.records.predictions import write_predictions
from engram.records.run_directory import new_part
from engram.records.table_parts import read_parts, write_part

PROGRESS_SECONDS = 0.5  # seconds between the steps that are told
LOCK_WAIT_SECONDS = 30.0  # seconds for a dead worker's locks to go with it


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What all workers need to know besides their runs."""

    token: str  # of this sweep
    out: str | None  # run directory, where it is shared
    device: str
    data: str | None
    compile: bool
    deterministic: bool
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
    contents: tuple[dict[str, Any], ...]  # recipes
    keys: tuple[PlanKey, ...]  # of their runs
    threads: int
    shared: bool  # whether workers write into the run directory themselves
    files: list[Any] | None = None  # else what that knows of these runs, by reference


class WorkStopped(Exception):
    """There is nothing to go on with here; `kind` and `words` are for whoever asked."""

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(kind, words)
        self.kind, self.words = kind, words


_PLANNERS: dict[str, RecipePlanner] = {}  # by sweep: data is read once by a worker


def marker_name(token: str) -> str:
    """The name of the file by which workers know a directory as the one that is meant."""
    return f".ray-{token}"


def measure_runs(job: RayJob, order: WorkOrder) -> MemoryNeed:
    """A task: how much memory runs of a group take."""
    _enter_environment(job, order.threads)
    return measure_memory([plan.run for plan in _make_order_plans(job, order)], job.device)


class MailSender:
    """Letters of one attempt; where the answer is to end, or nobody listens, the worker is told."""

    def __init__(self, mailbox: Any, attempt: int) -> None:
        self.mailbox, self.attempt = mailbox, attempt
        self.stopped = False

    def send(self, words: tuple[Any, ...]) -> None:
        """Tell, and wait until it has arrived: letters come in their order."""
        import ray

        try:
            stop = ray.get(self.mailbox.tell.remote(self.attempt, words))
        except ray.exceptions.RayActorError:  # the driver is gone
            stop = True
        if stop and not self.stopped:
            self.stopped = True
            signal.raise_signal(signal.SIGTERM)  # what is going on is saved, as at any such signal

    def seconds_left(self) -> float | None:
        """Until nothing further is begun."""
        import ray

        left: float | None = ray.get(self.mailbox.seconds_left.remote())
        return left


def train_group(job: RayJob, order: WorkOrder, mailbox: Any) -> tuple[str, str]:
    """A task: train a group. Returns how it ended, and words for what went wrong."""
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
    """Be where the driver is, as far as this machine has such a place."""
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
    """The plans of a group, in its order; they must be what the driver planned."""
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
    """Trains the runs of one order, in the run directory or in one of its own."""

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
        """The run directory, if this machine sees it."""
        folder = Path(str(self.job.out))
        if not (folder / marker_name(self.job.token)).is_file():
            raise WorkStopped("absent")
        if self.order.tries > 1:
            self._wait_for_locks(folder)
        return folder

    def _wait_for_locks(self, folder: Path) -> None:
        """Those of a worker that died go with it, but a moment later than the news of its death."""
        claims, until = Claims(folder), time.monotonic() + LOCK_WAIT_SECONDS
        names = [run_id(*key) for key in self.order.keys]
        while not all(claims.free(name) for name in names) and time.monotonic() < until:
            time.sleep(0.2)
        claims.close()

    def _train_in(self, folder: Path, deadline: float | None, callback: EventSender) -> None:
        job = self.job
        execute(
            _make_order_plans(job, self.order), out=folder, device=job.device, compile=job.compile,
            deterministic=job.deterministic, checkpoint_every=job.checkpoint_every,
            callback=callback, deadline=deadline,
        )  # fmt: skip


class _FileSender(EventSender):
    """Sends files before it tells of what they hold."""

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


# Letters from workers all over a cluster to whoever started them; an actor of Ray.
#
# It imports nothing of the package, so that it begins at once.


MAIL_WAIT_SECONDS = 2.0  # seconds for which a reader waits for letters that do not come


class Mailbox:
    """Keeps letters in their order until they are read; tells workers when to end.

    Parameters
    ----------
    left
        Seconds until nothing further is begun; None: no end. They are counted here, because the
        clocks of machines differ.
    """

    def __init__(self, left: float | None = None) -> None:
        self._until = None if left is None else time.monotonic() + left
        self._letters: list[tuple[int, tuple[Any, ...]]] = []
        self._awake = asyncio.Event()
        self._stop = False

    async def tell(self, attempt: int, words: tuple[Any, ...]) -> bool:
        """Take a letter of an attempt; whether it is to end."""
        self._letters.append((attempt, words))
        self._awake.set()
        return self._stop

    async def read(self) -> list[tuple[int, tuple[Any, ...]]]:
        """The letters since the last reading; waits a while for the first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), MAIL_WAIT_SECONDS)
        self._awake.clear()
        found, self._letters = self._letters, []
        return found

    async def wake(self) -> None:
        """Let whoever reads have what is there."""
        self._awake.set()

    async def seconds_left(self) -> float | None:
        """Seconds until nothing further is begun."""
        return None if self._until is None else self._until - time.monotonic()

    async def stop(self) -> None:
        """Let every worker know that it is to save what is going on, and end."""
        self._stop = True


# Files of a run directory that travel between machines which share no disk.
#
# A worker trains in a directory of its own; what appears there travels to the run directory, and
# what a run directory knows of interrupted runs travels to the worker that goes on with them.


Files = dict[str, bytes]  # contents by path, relative to the run directory
_NOT_SENT = "listed-"  # the order of recipes is known where they were asked for


class Outbox:
    """What is new in a worker's directory since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent = self._look()

    def collect_changes(self) -> tuple[Files, list[str]]:
        """Files that are new or have changed, and the names of those that are gone."""
        now = self._look()
        changed = [name for name, stamp in now.items() if self._sent.get(name) != stamp]
        gone = [name for name in self._sent if name not in now]
        self._sent = now
        return {name: read_bytes(self.folder / name) for name in changed}, gone

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("[!.]*"):
            if path.is_file() and not path.name.startswith(_NOT_SENT):
                known = path.stat()
                name = path.relative_to(self.folder).as_posix()
                found[name] = known.st_mtime_ns, known.st_size
        return found


def unpack_files(folder: Path, files: Mapping[str, bytes], gone: Sequence[str] = ()) -> None:
    """Put files into a directory; results come last, because they make a stage a finished one."""
    for name in [*files, *gone]:
        _check_path(name)
    for name in sorted(files, key=lambda name: (name.startswith("results-"), name)):
        path = folder / name
        make_folder(path.parent, inside=folder)
        write_bytes(path, files[name])
    for name in gone:
        (folder / name).unlink(missing_ok=True)


def _check_path(name: str) -> None:
    """Refuse a path that leads out of the directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RecordError(f"{name}: is no path inside a run directory")


def pack_files(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """All that a worker needs to go on with runs: finished stages, checkpoints, their recipes."""
    names = {folder.checkpoint_path(*plan.key).name for plan in plans}
    shelf = folder.path / "checkpoint"
    chosen = [path for name in names for path in sorted((shelf / name).glob("stage-*"))]
    for shared in ("groups", "steps"):
        files = sorted((shelf / shared).glob("[!.]*.safetensors"))
        chosen += [path for path in files if names & _runs_in(path)]
    found = {path.relative_to(folder.path).as_posix(): read_bytes(path) for path in chosen}
    begun = [plan for plan in plans if folder.finished(*plan.key)]
    return {**found, **_pack_results(folder, begun)} if begun else found


def _runs_in(path: Path) -> set[str]:
    """Names of the runs in a checkpoint of many; none where it is damaged or gone."""
    try:
        return set(checkpoint.read_facts(TensorFile(path, what="checkpoint", framework="pt")))
    except RecordError:
        return set()


def _pack_results(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """What is recorded of some runs, as one part."""
    table = read_parts(folder.result_files()).table
    keys = {plan.key for plan in plans}
    columns = [table.column(name).to_pylist() for name in ("recipe", "seed", "order")]
    own = [place for place, key in enumerate(zip(*columns, strict=True)) if key in keys]
    part = new_part()
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        measured = [plan for plan in plans if plan.probes]
        if measured:
            write_json(target / f"probes-{part}.json", {"runs": _list_probed(folder, measured)})
            kept = _list_predictions(folder, measured)
            if kept:
                write_predictions(target / f"predictions-{part}.safetensors", kept)
        write_part(target / f"results-{part}.parquet", table.take(np.array(own, np.int64)))
        return {path.name: path.read_bytes() for path in target.iterdir()}


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
