"""One method, alone or in lockstep: killed, gone on with, and compared with an undisturbed run."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import engram
from benchmarks.kills import child
from benchmarks.kills.child import RECORDED, STEP, WRITTEN, Work, events

ROUNDS = 5  # for every kill, at most
LIMIT = 600.0  # seconds for anything a child does; only a fault takes as long
SIGNALS = (signal.SIGKILL, signal.SIGTERM)

# Children are forked from a process that has imported everything and computed nothing.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["benchmarks.kills.child", "pandas", "pyarrow.parquet", "safetensors.torch", "torch._dynamo"]
)


@dataclass(frozen=True)
class Death:
    """A process that was ended from outside."""

    sent: signal.Signals
    inside: bool  # a task had been begun, and was not recorded yet
    steps_lost: int
    seconds_lost: float  # of training; evaluation and records of the stage come on top
    allowed: float  # seconds: the interval, and the longest time until somebody asked for it


@dataclass
class Trial:
    """What became of a method's runs."""

    work: Work
    steps: int = 0  # of the undisturbed process
    deaths: list[Death] = field(default_factory=list)
    rounds: int = 0  # times that runs were killed, resumed to their end and compared
    differences: list[str] = field(default_factory=list)


def trial(work: Work, kills: int, chance: random.Random, folder: Path) -> Trial:
    """Kill `kills` processes, two in a row before the third may finish, until each fell."""
    found = Trial(work)
    whole = folder / "whole"
    _wait(_start(work, whole), sent=None)
    seen = events(_journal(whole, 0))
    moments = [at for _, at in seen]
    found.steps = _count(seen, STEP)
    expected = engram.read(whole)
    while len(found.deaths) < kills:
        if found.rounds >= ROUNDS * kills:
            raise RuntimeError("children finish before they can be killed: give them more epochs")
        out = folder / f"round-{found.rounds}"
        signals = [SIGNALS[place % 2] for place in range(len(found.deaths), kills)][:2]
        deaths = _killed(work, out, moments, signals, chance)
        found.deaths += deaths
        found.rounds += 1
        found.differences += differences(engram.read(out), expected)
        taken = sum(_count(events(path), STEP) for path in out.parent.glob(f"{out.name}.*"))
        if taken != found.steps + sum(one.steps_lost for one in deaths):
            found.differences.append(f"{taken} steps in all, {found.steps} undisturbed")
        shutil.rmtree(out)
    return found


def _killed(
    work: Work, out: Path, moments: list[float], signals: list[signal.Signals],
    chance: random.Random,
) -> list[Death]:  # fmt: skip
    """Kill a process for every signal, one after the other, and let the next one finish."""
    deaths: list[Death] = []
    span = moments[-1] - moments[0]
    for number, sent in enumerate(signals):
        process = _start(work, out, number)
        # any moment of the work that is left, from before its first step on
        _sleep_after_start(out, number, process, chance.uniform(0, span / (number + 1)))
        killed = time.monotonic()
        if not _wait(process, sent=sent):
            return deaths  # it had finished
        deaths.append(_death(work, events(_journal(out, number)), killed, sent))
    _wait(_start(work, out, len(deaths)), sent=None)
    return deaths


def _start(work: Work, out: Path, number: int = 0) -> Any:
    process = FORKS.Process(target=child.train, args=(work, str(out), str(_journal(out, number))))
    process.start()
    return process


def _sleep_after_start(out: Path, number: int, process: Any, seconds: float) -> None:
    deadline = time.monotonic() + LIMIT
    while not events(_journal(out, number)):
        if time.monotonic() > deadline:
            raise TimeoutError("a child neither trained nor ended")
        time.sleep(0.005)
    process.join(seconds)  # a sleep, unless it ends before


def _wait(process: Any, *, sent: signal.Signals | None) -> bool:
    """End a process, or let it finish; whether the signal ended it."""
    if sent is not None and process.is_alive():
        os.kill(process.pid, sent)
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError("a child did not end")
    if process.exitcode == 0:
        return False
    if sent is None:
        raise RuntimeError(f"a child failed (exit code {process.exitcode})")
    return True


def _journal(out: Path, number: int) -> Path:
    return out.parent / f"{out.name}.{number}"


def _count(seen: list[tuple[bytes, float]], kind: bytes) -> int:
    return sum(one == kind for one, _ in seen)


def _death(
    work: Work, seen: list[tuple[bytes, float]], killed: float, sent: signal.Signals
) -> Death:
    """What a dead process had done since it last wrote a checkpoint."""
    marks = [place for place, (kind, _) in enumerate(seen) if kind in (WRITTEN, RECORDED)]
    since = seen[marks[-1] if marks else 0 :]
    steps = [at for kind, at in since if kind == STEP]
    # training begins with the first step of a process, not with what it reads before
    first = next((at for kind, at in seen if kind == STEP), killed)
    asked = [first, *(at for kind, at in seen if kind != STEP and at > first), killed]
    stages = [place for place, (kind, _) in enumerate(seen) if kind == RECORDED]
    return Death(
        sent=sent,
        inside=_count(seen[stages[-1] if stages else 0 :], STEP) > 0,
        steps_lost=len(steps),
        seconds_lost=steps[-1] - max(since[0][1], first) if steps else 0.0,
        allowed=work.every + max(after - before for before, after in pairwise(asked)),
    )


# -- comparison ------------------------------------------------------------------------------------
def differences(found: engram.Result, expected: engram.Result) -> list[str]:
    """What is not the same to the last bit: numbers (but times), networks, scores, rows read."""
    said = []
    if found.problems:
        said.append(f"problems: {found.problems}")
    if _values(found) != _values(expected):
        said.append("numbers")
    if _ledger(found) != _ledger(expected):
        said.append("ledger")
    moments = [set(one.predictions) for one in (found, expected)]
    if moments[0] != moments[1] or not moments[1]:
        said.append("stages with predictions")
    for moment in sorted(moments[0] & moments[1]):
        pair = [one.predictions.get(*moment) for one in (found, expected)]
        said += [f"{name} of {moment}" for name in _unequal(*pair)]
    return said


def _values(result: engram.Result) -> list[Any]:
    frame = result.frame()
    frame = frame[frame["metric"] != "seconds"]
    names = [name for name in frame.columns if name != "value"]
    bits = frame["value"].to_numpy(np.float64).view(np.int64)  # NaN is equal to itself here
    return sorted(zip(*(frame[name].astype(str) for name in names), bits, strict=True))


def _ledger(result: engram.Result) -> list[Any]:
    return sorted((run for part in result.ledger for run in part["runs"]), key=str)


def _unequal(one: Any, two: Any) -> list[str]:
    names = ("scores", "exponent", "single", "multi", "parameters", "exemplars")
    bad = [name for name in names if not _same(getattr(one, name), getattr(two, name))]
    kept = [dict(each.buffers or {}) for each in (one, two)]
    if set(kept[0]) != set(kept[1]) or any(not _same(kept[0][k], kept[1][k]) for k in kept[0]):
        bad.append("buffers")
    return bad


def _same(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
