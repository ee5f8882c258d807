"""The pool ``processes``: groups of runs in worker processes, which write to one run directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

from engram.engine.backend import resolve_device
from engram.engine.trainers.compiled import check_compiler
from engram.errors import bad, describe_user_error
from engram.experiments import Callback, Recipe, execute
from engram.experiments.changed_recipes import merge_equal_plans
from engram.experiments.plain_values import parse_duration
from engram.experiments.plan import RecipePlanner
from engram.experiments.pools.planner import (
    Attempt,
    RetryQueue,
    WorkerGroup,
    divide_groups,
    group_plans,
    select_unfinished,
)
from engram.experiments.pools.pool import PlanKey, Work, contents_by_run, unique_recipes
from engram.experiments.pools.worker_messages import EventReceiver, EventSender
from engram.experiments.recorder import Recorder
from engram.process import exit_now, handle_end_signals
from engram.records import Result, RunDirectory

PROGRESS_SECONDS = 0.1  # seconds between progress messages of a worker
GRACE_SECONDS = 120.0  # seconds in which a worker may save its runs before it is killed
# Modules that a worker needs, imported once for all workers.
IMPORTS = [
    "engram.experiments.pools.process_pool",
    "pandas",
    "pyarrow.parquet",
    "safetensors.torch",
    "torch._dynamo",
]


@dataclass(frozen=True, kw_only=True)
class ProcessJob:
    """Settings of workers besides the recipes; they can be pickled."""

    out: str
    device: str
    data: str | None
    compile: bool
    deterministic: bool
    exact: bool
    checkpoint_every: float | str
    until: float | None  # deadline in ``time.time``, which processes share
    threads: int
    environ: dict[str, str]  # current environment; the process that forks may be older


def train(work: Work) -> Result:
    """Train in worker processes, which needs a run directory; see `Pool`."""
    if work.out is None:
        raise bad("out", "a run directory, through which the processes exchange results", work.out)
    parse_duration(work.checkpoint_every, "checkpoint_every")  # raises here, not in every process
    device = resolve_device(work.device)
    if work.compile:
        check_compiler(device)
    recorder = Recorder(
        merge_equal_plans(work.plans),
        work.out,
        device=device,
        callback=work.callback,
        rerun=work.rerun,
    )
    late = work.deadline is not None and time.monotonic() >= work.deadline
    if recorder.open and not late and recorder.folder is not None:
        context = worker_context(str(device))
        recorder.folder.tidy()
        recorder.folder.list_recipes(plan.recipe for plan in recorder.plans)
        cores = os.cpu_count() or 1
        groups = group_plans(
            recorder.plans, device=device.type, compile=work.compile, exact=work.exact
        )
        groups = select_unfinished(divide_groups(groups, work.workers or cores), recorder.open)
        count = min(work.workers or cores, len(groups))
        until = None if work.deadline is None else time.time() + work.deadline - time.monotonic()
        job = ProcessJob(
            out=str(work.out), device=str(work.device), data=work.data, compile=work.compile,
            deterministic=work.deterministic, exact=work.exact,
            checkpoint_every=work.checkpoint_every,
            until=until, threads=max(1, cores // count), environ=dict(os.environ),
        )  # fmt: skip
        team = WorkerTeam(groups, contents_by_run(work, recorder), job, recorder, context)
        _train_groups(team, count)
        recorder.folder.tidy()  # remove files of workers that were killed
        recorder.report_skipped_runs()
    return recorder.result()


def _train_groups(team: WorkerTeam, count: int) -> None:
    """Train every group in one of `count` processes; raises after all have been tried."""
    try:
        with handle_end_signals(exit_now):  # as Ctrl-C does, so that the workers end too
            team.work(count)
    finally:
        team.dismiss()
    team.retries.raise_failures()


def worker_context(device: str) -> Any:
    """Return the multiprocessing context: on the CPU, forks of a process with all imports done.

    A fork takes a tenth of a second, the imports two seconds. CUDA needs spawned processes.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if not forks or resolve_device(device).type != "cpu":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    forkserver.ensure_running()  # imports while this process plans
    return context


class WorkerTeam:
    """Worker processes with a pipe each, so that a worker that dies blocks no other."""

    def __init__(
        self,
        groups: Sequence[WorkerGroup],
        contents: Mapping[PlanKey, dict[str, Any]],
        job: ProcessJob,
        recorder: Recorder,
        context: Any,
    ) -> None:
        self.job, self.contents = job, contents
        self.retries = RetryQueue(groups, recorder.callback.note)
        self._hearing = EventReceiver(recorder.callback, recorder.plans)
        self._busy: dict[Any, tuple[Any, Attempt]] = {}  # pipe: process and its attempt
        self._context = context

    def work(self, count: int) -> None:
        """Keep `count` workers busy until every group is done."""
        self._most = count
        for _ in range(count):
            self._start()
        while self._busy:
            for pipe in wait([*self._busy]):
                self._receive(pipe)

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_worker, args=(theirs, self.job))
        process.start()
        theirs.close()  # so that the pipe closes with the worker
        self._give(ours, process)

    def _give(self, pipe: Any, process: Any) -> None:
        """Send the next group to a worker, or tell it to end."""
        if not self.retries.waiting:
            self._busy.pop(pipe, None)
            with suppress(OSError):  # it may have died after its last message
                pipe.send(None)
            process.join()
            pipe.close()
            return
        attempt = self.retries.waiting.popleft()
        self._busy[pipe] = process, attempt
        keys = [plan.key for plan in attempt.group.plans]
        with suppress(OSError):  # the pipe is closed, which is noticed next
            until = [plan.until for plan in attempt.group.plans]
            pipe.send((unique_recipes(keys, self.contents), keys, until))

    def _receive(self, pipe: Any) -> None:
        """Handle a message of a worker."""
        process, attempt = self._busy[pipe]
        try:
            kind, *told = pipe.recv()
        except (EOFError, OSError):
            self._lost(pipe, process, attempt)
            return
        if kind == "end":
            if told:
                self.retries.handle_failure(attempt, *told)
            self._give(pipe, process)
        else:
            self._hearing.receive(kind, *told)

    def _lost(self, pipe: Any, process: Any, attempt: Attempt) -> None:
        """Handle the death of a worker: another one tries its group, up to a limit."""
        del self._busy[pipe]
        pipe.close()
        process.join()
        how = f"its worker process ended early (exit code {process.exitcode})"
        self.retries.handle_loss(attempt, how)
        while self.retries.waiting and len(self._busy) < self._most:
            self._start()

    def dismiss(self) -> None:
        """End the remaining workers, which save their runs."""
        left = [process for process, _ in self._busy.values()]
        for pipe in self._busy:
            pipe.close()  # a worker must not wait for its messages to be read
        for process in left:
            process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for process in left:
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()


def _worker(pipe: Any, job: ProcessJob) -> None:
    """Train groups until there are no more."""
    import torch

    os.environ.clear()
    os.environ.update(job.environ)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and sends SIGTERM
    deadline = None if job.until is None else time.monotonic() + job.until - time.time()
    desk = _WorkerState(job, deadline)

    def send(words: tuple[Any, ...]) -> None:
        with suppress(OSError):  # the pipe is closed: SIGTERM follows
            pipe.send(words)

    try:
        while (given := pipe.recv()) is not None:
            late = deadline is not None and time.monotonic() >= deadline
            failure = [] if late else desk.failure(given, EventSender(send, PROGRESS_SECONDS))
            pipe.send(("end", *failure))
    except (KeyboardInterrupt, EOFError, OSError):  # told to end, or the pipe is closed
        pass


def _end_with_parent() -> None:
    """Make the worker save its runs and end, as on SIGTERM, if its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _WorkerState:
    """State of a worker between groups: loaded data and the open run directory."""

    def __init__(self, job: ProcessJob, deadline: float | None) -> None:
        self.job, self.deadline = job, deadline
        self.planner = RecipePlanner(job.data)
        self.folder = RunDirectory(job.out)

    def failure(
        self,
        given: tuple[Sequence[dict[str, Any]], Sequence[PlanKey], Sequence[int]],
        callback: Callback,
    ) -> list[str]:
        """Train one group, given its recipes, the keys of its runs and how many stages of each;
        returns the error, if any.
        """
        job, (contents, keys, until) = self.job, given
        try:
            made = [plan for one in contents for plan in self.planner.plan(Recipe.of(one))]
            found = {plan.key: plan for plan in made}
            execute(
                [replace(found[key], until=n) for key, n in zip(keys, until, strict=True)],
                out=self.folder, device=job.device,
                compile=job.compile, deterministic=job.deterministic, exact=job.exact,
                pool="processes",
                checkpoint_every=job.checkpoint_every, callback=callback, deadline=self.deadline,
            )  # fmt: skip
        except Exception as error:
            return [describe_user_error(error) or f"{type(error).__name__}: {error}"]
        return []
