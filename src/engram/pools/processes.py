"""Recipes spread over processes, which write into one run directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from engram.ending import end, on_ending
from engram.engine.backend import device_of
from engram.engine.trainers.tracing import need_compiler
from engram.errors import EngramError, bad, in_own_code
from engram.pools.base import Work
from engram.recipes import Callback, Plan, Recipe, execute
from engram.recipes.changes import distinct
from engram.recipes.duration import seconds
from engram.recipes.plan import RecipePlanner
from engram.recipes.recorder import Recorder
from engram.records import Result, Rows

STEP_EVERY = 0.1  # seconds between the steps of one worker that are passed on
TRIES = 2  # workers that may die of a recipe before it is given up
GRACE = 120.0  # seconds in which a worker that is told to end may save what is going on
# What a worker needs, imported once for all of them.
IMPORTS = [
    "engram.pools.processes",
    "pandas",
    "pyarrow.parquet",
    "safetensors.torch",
    "torch._dynamo",
]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs to know besides the recipe; all of it can be sent."""

    out: str
    device: str
    data: str | None
    compile: bool
    deterministic: bool
    checkpoint_every: float | str
    until: float | None  # by the clock on the wall, which processes share
    threads: int
    environ: dict[str, str]  # as it is now: a process that forks workers may be older


def train(work: Work) -> Result:
    """See `engram.pools.base.Pool`; needs a run directory."""
    if work.out is None:
        raise bad("out", "a run directory, because processes meet there", work.out)
    seconds(work.checkpoint_every, "checkpoint_every")  # complains here, not in every process
    if work.compile:
        need_compiler(device_of(work.device))
    recorder = Recorder(
        distinct(work.plans), work.out, device=work.device, callback=work.callback, again=work.again
    )
    unfinished = {plan.key for plan in recorder.open}
    recipes = [
        recipe.plain()
        for recipe, plans in zip(work.recipes, work.by_recipe, strict=True)
        if any(plan.key in unfinished for plan in plans)
    ]
    late = work.deadline is not None and time.monotonic() >= work.deadline
    if recipes and not late and recorder.folder is not None:
        recorder.folder.list_recipes(plan.recipe for plan in recorder.plans)
        cores = os.cpu_count() or 1
        count = min(work.workers or cores, len(recipes))
        until = None if work.deadline is None else time.time() + work.deadline - time.monotonic()
        job = Job(
            out=str(work.out), device=str(work.device), data=work.data, compile=work.compile,
            deterministic=work.deterministic, checkpoint_every=work.checkpoint_every,
            until=until, threads=max(1, cores // count), environ=dict(os.environ),
        )  # fmt: skip
        _spread(recipes, job, count, recorder)
    return recorder.result()


def _spread(recipes: Sequence[dict[str, Any]], job: Job, count: int, recorder: Recorder) -> None:
    """Run every recipe in one of `count` processes; complains when all have been tried."""
    team = Team(recipes, job, recorder)
    try:
        with on_ending(end):  # as Ctrl-C does, so that the workers end, too
            team.work(count)
    finally:
        team.dismiss()
    if team.failures:
        raise EngramError("; ".join(team.failures))


def context_for(device: str) -> Any:
    """How workers begin: on the CPU as forks of a process that has imported all they need.

    That takes a tenth of a second, importing it takes two. CUDA wants a process of its own.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if not forks or device_of(device).type != "cpu":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


class Team:
    """Worker processes, each on a pipe of its own: one that dies leaves no other waiting."""

    def __init__(self, recipes: Sequence[dict[str, Any]], job: Job, recorder: Recorder) -> None:
        self.job, self.callback = job, recorder.callback
        self.plans = {plan.key: plan for plan in recorder.plans}
        self.failures: list[str] = []
        self._waiting = deque((content, 1) for content in recipes)  # with the number of the try
        self._busy: dict[Any, tuple[Any, dict[str, Any], int]] = {}  # by pipe: process, recipe, try
        self._context = context_for(job.device)

    def work(self, count: int) -> None:
        """Keep `count` workers busy until every recipe is through."""
        for _ in range(count):
            self._start()
        while self._busy:
            for pipe in wait([*self._busy]):
                self._hear(pipe)

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_worker, args=(theirs, self.job))
        process.start()
        theirs.close()  # so that the pipe ends with the worker
        self._give(ours, process)

    def _give(self, pipe: Any, process: Any) -> None:
        """The next recipe to a worker, or its leave."""
        if not self._waiting:
            self._busy.pop(pipe, None)
            with suppress(OSError):  # it may have died after its last word
                pipe.send(None)
            process.join()
            pipe.close()
            return
        content, tries = self._waiting.popleft()
        self._busy[pipe] = process, content, tries
        with suppress(OSError):  # then the pipe has ended, which is heard next
            pipe.send(content)

    def _hear(self, pipe: Any) -> None:
        """Pass on what a worker tells."""
        process, content, tries = self._busy[pipe]
        try:
            kind, *told = pipe.recv()
        except (EOFError, OSError):
            self._lost(pipe, process, content, tries)
            return
        if kind == "end":
            self.failures += told
            self._give(pipe, process)
        elif kind == "note":
            self.callback.note(*told)
        elif kind == "step":
            keys, *where = told
            here = [self.plans[key] for key in keys if key in self.plans]
            self.callback.step(here, *where) if here else None
        elif (plan := self.plans.get(told[0])) is not None:
            self.callback.stage(plan, *told[1:])

    def _lost(self, pipe: Any, process: Any, content: dict[str, Any], tries: int) -> None:
        """A worker has died: another one tries its recipe, unless that is what kills them."""
        del self._busy[pipe]
        pipe.close()
        process.join()
        words = f"{content['label']}: its worker process ended early (exit code {process.exitcode})"
        if tries < TRIES:
            self.callback.note(f"{words}; another one goes on with it")
            self._waiting.append((content, tries + 1))
        else:
            kept = "what it had recorded is kept, the same call continues"
            self.failures.append(f"{words}{', again' if tries > 1 else ''}; {kept}")
        if self._waiting:
            self._start()

    def dismiss(self) -> None:
        """End workers that are still there; they save what is going on."""
        left = [process for process, _, _ in self._busy.values()]
        for pipe in self._busy:
            pipe.close()  # nobody listens: a worker that has something to say must not wait
        for process in left:
            process.terminate()
        until = time.monotonic() + GRACE
        for process in left:
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()


class _Telling(Callback):
    """Passes on what happens in a worker."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self._spoke = 0.0
        self._begun = False

    def note(self, text: str) -> None:
        """What is noted before runs begin was said by the process that started this one."""
        if self._begun:
            self._tell("note", text)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self._begun = True

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if time.monotonic() - self._spoke >= STEP_EVERY:
            self._spoke = time.monotonic()
            self._tell("step", [plan.key for plan in plans], stage, done, total)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self._tell("stage", plan.key, stage, rows)

    def _tell(self, *words: Any) -> None:
        with suppress(OSError):  # nobody listens any more: SIGTERM is on its way
            self.pipe.send(words)


def _worker(pipe: Any, job: Job) -> None:
    """Run recipes until there are no more."""
    import torch

    os.environ.clear()
    os.environ.update(job.environ)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it answers, with SIGTERM
    deadline = None if job.until is None else time.monotonic() + job.until - time.time()
    planner = RecipePlanner(job.data)
    try:
        while (content := pipe.recv()) is not None:
            late = deadline is not None and time.monotonic() >= deadline
            failure = [] if late else _failure(content, planner, job, _Telling(pipe), deadline)
            pipe.send(("end", *failure))
    except (KeyboardInterrupt, EOFError, OSError):  # told to end; nobody listens any more
        pass


def _end_with_parent() -> None:
    """A worker whose parent was killed saves what is going on and ends, as at SIGTERM."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _failure(
    content: dict[str, Any], planner: RecipePlanner, job: Job, callback: Callback,
    deadline: float | None,
) -> list[str]:  # fmt: skip
    """Run one recipe; what went wrong, in words."""
    try:
        execute(
            planner.of(Recipe.of(content)), out=job.out, device=job.device,
            compile=job.compile, deterministic=job.deterministic,
            checkpoint_every=job.checkpoint_every, callback=callback, deadline=deadline,
        )  # fmt: skip
    except Exception as error:
        words = in_own_code(error) or f"{type(error).__name__}: {error}"
        return [f"{content['label']}: {words}"]
    return []
