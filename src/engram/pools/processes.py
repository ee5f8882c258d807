"""Recipes spread over processes, which write into one run directory."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engram.engine.backend import device_of
from engram.engine.trainers.tracing import need_compiler
from engram.errors import EngramError, bad, in_own_code
from engram.pools.base import Work
from engram.recipes import Callback, Plan, Recipe, execute, plans_of
from engram.recipes.changes import distinct
from engram.recipes.duration import seconds
from engram.recipes.recorder import Recorder
from engram.records import Result, Rows

QUIET = 0.5  # seconds without news after which it is asked whether everybody is alive
STEP_EVERY = 0.1  # seconds between the steps of one worker that are passed on


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
    if recipes and recorder.folder is not None:
        recorder.folder.list_recipes(plan.recipe for plan in recorder.plans)
        cores = os.cpu_count() or 1
        count = min(work.workers or cores, len(recipes))
        until = None if work.deadline is None else time.time() + work.deadline - time.monotonic()
        job = Job(
            out=str(work.out), device=str(work.device), data=work.data, compile=work.compile,
            deterministic=work.deterministic, checkpoint_every=work.checkpoint_every,
            until=until, threads=max(1, cores // count),
        )  # fmt: skip
        _spread(recipes, job, count, recorder)
    return recorder.result()


def _spread(recipes: Sequence[dict[str, Any]], job: Job, count: int, recorder: Recorder) -> None:
    """Run every recipe in one of `count` processes; complains when all have been tried."""
    context = multiprocessing.get_context("spawn")
    jobs, news = context.Queue(), context.Queue()
    for content in [*recipes, *[None] * count]:
        jobs.put(content)
    workers = [context.Process(target=_worker, args=(jobs, news, job)) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        with _ended_as_interrupted():
            failures = _listen(news, len(recipes), workers, recorder)
    finally:
        for worker in workers:  # they save what is going on
            worker.terminate()
        for worker in workers:
            worker.join()
    if failures:
        raise EngramError("; ".join(failures))


@contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """SIGTERM interrupts this process as Ctrl-C does, so that it ends its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(news: Any, left: int, workers: Sequence[Any], recorder: Recorder) -> list[str]:
    """Pass on what workers tell until every recipe is through; what went wrong, in words."""
    plans = {plan.key: plan for plan in recorder.plans}
    failures = []
    while left:
        try:
            kind, *told = news.get(timeout=QUIET)
        except queue.Empty:
            ended = [w.exitcode for w in workers if w.exitcode not in (None, 0)]
            if ended:  # killed: nobody will tell how its recipe went
                lost = f"a worker process ended early (exit code {ended[0]}); what it had recorded"
                raise EngramError(f"{lost} is kept, the same call continues") from None
            continue
        if kind == "end":
            left -= 1
            failures += told
        elif kind == "step":
            keys, *where = told
            here = [plans[key] for key in keys if key in plans]
            recorder.callback.step(here, *where) if here else None
        elif (plan := plans.get(told[0])) is not None:
            recorder.callback.stage(plan, *told[1:])
    return failures


class _Telling(Callback):
    """Passes on what happens in a worker; notes were made before it started."""

    def __init__(self, news: Any) -> None:
        self.news = news
        self._spoke = 0.0

    def note(self, text: str) -> None:
        """Said by the process that started this one."""

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if time.monotonic() - self._spoke >= STEP_EVERY:
            self._spoke = time.monotonic()
            self.news.put(("step", [plan.key for plan in plans], stage, done, total))

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.news.put(("stage", plan.key, stage, rows))


def _worker(jobs: Any, news: Any, job: Job) -> None:
    """Run recipes until there are no more."""
    import torch

    torch.set_num_threads(job.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it answers, with SIGTERM
    deadline = None if job.until is None else time.monotonic() + job.until - time.time()
    callback = _Telling(news)
    try:
        while (content := jobs.get()) is not None:
            if deadline is None or time.monotonic() < deadline:
                news.put(("end", *_failure(content, job, callback, deadline)))
            else:
                news.put(("end",))
    except KeyboardInterrupt:  # told to end; nobody listens any more
        news.cancel_join_thread()


def _failure(
    content: dict[str, Any], job: Job, callback: Callback, deadline: float | None
) -> list[str]:
    """Run one recipe; what went wrong, in words."""
    try:
        execute(
            plans_of([Recipe.of(content)], job.data), out=job.out, device=job.device,
            compile=job.compile, deterministic=job.deterministic,
            checkpoint_every=job.checkpoint_every, callback=callback, deadline=deadline,
        )  # fmt: skip
    except Exception as error:
        words = in_own_code(error) or f"{type(error).__name__}: {error}"
        return [f"{content['label']}: {words}"]
    return []
