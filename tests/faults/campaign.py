"""Faults that real processes meet while they train, and what must be left of them.

A child process trains a few recipes and meets one fault; what it leaves behind is gone on with by
the same call, and must end as an undisturbed one does: every number, prediction, parameter and
exemplar to the last bit, every stage once. The whole campaign: ``make faults``.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engram
from benchmarks.kills.compare import differences
from engram.experiments import Callback
from engram.io import DiskError
from engram.records import RunDirectory

LIMIT = 300.0  # seconds for anything a child does; only a fault of ours takes as long
POOLS = {"serial": 1, "together": 8, "processes": 2}  # and seeds
DISK = {"full disk": errno.ENOSPC, "read-only disk": errno.EROFS, "failing disk": errno.EIO}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}
FAULTS = (*SIGNALS, "crash at a file", *DISK, "deleted directory", "two writers",
          "flipped bit", "cut file", "swapped checkpoints", "killed worker")  # fmt: skip
ENDED, FAILED = 3, 4  # exit codes of children

# Children are forked from a process that has imported everything and computed nothing.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.faults.campaign", "pandas", "pyarrow.parquet", "safetensors.torch", "torch._dynamo"]
)


@dataclass
class Trial:
    """One fault of one method in one pool."""

    fault: str
    method: str
    pool: str
    number: int = 0
    met: bool = False  # the fault came before the child had finished
    said: list[str] = field(default_factory=list)  # notes of those who went on
    wrong: list[str] = field(default_factory=list)


def recipes(trial: Trial) -> list[dict[str, Any]]:
    """What the children train: as little as has everything in it."""
    one = {
        "stream": {"data": "blobs", "classes_per_task": 4, "data_options": {"per_class": 30}},
        "model": {"name": "mlp", "hidden": [12]}, "method": trial.method, "keep": "parameters",
        "training": {"epochs": 2, "batch_size": 8}, "seeds": POOLS[trial.pool],
    }  # fmt: skip
    return [one, {**one, "method": "Finetune", "training": {"epochs": 3, "batch_size": 8}}]


class Noting(Callback):
    """Keeps notes; calls a function at the steps and stages of runs."""

    def __init__(self, at: Callable[[str], None] = lambda _: None) -> None:
        self.notes: list[str] = []
        self.at = at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, *_: Any) -> None:
        self.at("step")

    def stage(self, *_: Any) -> None:
        self.at("stage")


def train(trial: Trial, out: Path, callback: Callback | None = None) -> engram.Result:
    """The call that is disturbed, and made again."""
    return engram.sweep(
        recipes(trial), pool=trial.pool, out=out, device="cpu", workers=2,
        checkpoint_every=0.05, callback=callback or Noting(),
    )  # fmt: skip


# -- in the child ----------------------------------------------------------------------------------
def child(trial: Trial, out: Path, moment: int) -> None:
    """Train, and meet the fault at the given moment: a file, or a step."""
    import torch

    torch.set_num_threads(1)
    try:
        train(trial, out, Noting(_disturb(trial, out, moment)))
    except KeyboardInterrupt:
        os._exit(ENDED)
    except (DiskError, engram.EngramError) as error:
        beside(out, "words").write_text(str(error))
        os._exit(FAILED)


def _disturb(trial: Trial, out: Path, moment: int) -> Callable[[str], None]:
    """What the child's callback does; patches what fails below it."""
    fault, count = trial.fault, iter(range(1, 10**9))
    if fault in DISK:
        _at_file(moment, lambda: _fail(DISK[fault]))
    elif fault in ("crash at a file", "flipped bit", "cut file", "swapped checkpoints"):
        _at_file(moment, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def at(what: str) -> None:
        if next(count) != moment:
            return
        if fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault])
        elif fault == "deleted directory":
            out.rename(out.with_name(f"{out.name}-moved"))
        elif fault == "killed worker":
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
            beside(out, "met").touch()  # the sweep goes on: nothing else would tell

    return at


def _fail(code: int) -> None:
    raise OSError(code, os.strerror(code))


def _at_file(number: int, act: Callable[[], None]) -> None:
    """Act when file `number` is written but does not bear its name yet; full disks stay full."""
    count, rename = 0, os.replace

    def replace(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count >= number:
            act()
        rename(source, target)

    os.replace = replace  # type: ignore[assignment]


# -- around the child ------------------------------------------------------------------------------
def run(trial: Trial, folder: Path, chance: random.Random, expected: engram.Result) -> Trial:
    """Meet the fault, go on, compare."""
    out = folder / f"{trial.number}"
    moment = chance.randint(1, 30)
    first = start(trial, out, moment)
    second = start(trial, out, 10**9) if trial.fault == "two writers" else None
    code = wait(first)
    trial.met = code != 0 or beside(out, "met").exists() or second is not None
    if code == 1:
        trial.wrong.append("a traceback")
    if second is not None:
        wait(second)
    moved = out.with_name(f"{out.name}-moved")
    if moved.exists():
        if out.exists():
            trial.wrong.append("a deleted directory came back")
        moved.rename(out)
    if trial.fault in DISK and code and "disk" not in words(out):
        trial.wrong.append(f"a disk failed without a word: {words(out)}")
    told = Noting()
    damaged = damage(trial, out, chance)
    result = train(trial, out, told)
    trial.said = told.notes
    trial.wrong += compare(result, expected, out, damaged)
    if damaged is not None and damaged.suffix == ".safetensors" and not told.notes:
        trial.said.append(f"not asked for: {damaged.name}")
    shutil.rmtree(out)
    return trial


def start(trial: Trial, out: Path, moment: int) -> Any:
    process = FORKS.Process(target=child, args=(trial, out, moment))
    process.start()
    return process


def wait(process: Any) -> int:
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError("a child did not end")
    return int(process.exitcode)


def beside(out: Path, what: str) -> Path:
    """A file about a run directory, outside of it."""
    return out.parent / f"{out.name}.{what}"


def words(out: Path) -> str:
    """What a child that failed said."""
    path = beside(out, "words")
    return path.read_text() if path.exists() else ""


def damage(trial: Trial, out: Path, chance: random.Random) -> Path | None:
    """Do to files what disks and people do to them; which one, if any."""
    states = sorted(out.glob("checkpoint/*/stage-*.safetensors"))
    if trial.fault == "swapped checkpoints" and len(states) > 1:
        one, two = chance.sample(states, 2)
        spare = one.with_name("spare")
        for source, target in ((one, spare), (two, one), (spare, two)):
            source.rename(target)
        return one
    steps = out.glob("checkpoint/steps/[!.]*.safetensors")
    files = sorted([*states, *steps, *out.glob("results-*")])
    if trial.fault not in ("flipped bit", "cut file") or not files:
        return None
    path = chance.choice(files)
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    if trial.fault == "cut file":
        content = content[:place]
    else:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return path


def compare(
    result: engram.Result, expected: engram.Result, out: Path, damaged: Path | None
) -> list[str]:
    """What differs from an undisturbed call; nothing may."""
    wrong = differences(result, expected)
    if damaged is not None and damaged.suffix == ".parquet":
        # it stays, and is named; the ledger beside it tells of a stage that was trained again
        named = [one for one in wrong if one.startswith("problems:") and damaged.name in one]
        wrong = [one for one in wrong if one not in (*named, "ledger")]
        wrong += [] if named else [f"{damaged.name} was not named"]
    finished = RunDirectory(out).finished_runs()
    wrong += [f"{run} is not finished" for run in expected.runs if tuple(run) not in finished]
    held = [path for path in out.rglob(".*.tmp-*") if path.is_file()]
    return wrong + [f"left behind: {path.name}" for path in held]


def trials(methods: list[str], kinds: list[str], pools: list[str], count: int) -> Iterator[Trial]:
    """So many of every fault, over methods and pools by turns."""
    number = 0
    for kind in kinds:
        for _ in range(count):
            pool = "processes" if kind == "killed worker" else pools[number % len(pools)]
            if pool == "processes" and kind not in (*SIGNALS, "killed worker", "two writers"):
                pool = "together"  # faults of files are met by the process that writes them
            yield Trial(kind, methods[number % len(methods)], pool, number)
            number += 1


def campaign(
    planned: list[Trial], folder: Path, seed: int, say: Callable[[str], None] = print
) -> list[Trial]:
    """Run all; undisturbed calls are made once."""
    chance, known = random.Random(seed), dict[tuple[str, str], engram.Result]()
    for trial in planned:
        key = trial.method, trial.pool
        if key not in known:
            known[key] = train(trial, folder / "-".join(key))
        began = time.monotonic()
        run(trial, folder, chance, known[key])
        state = "; ".join(trial.wrong) or "equal"
        met = "met" if trial.met else "not met"
        say(f"{trial.number:4d} {trial.fault:20s} {trial.method:14s} {trial.pool:10s} {met:8s}"
            f"{state} ({time.monotonic() - began:.1f} s)")  # fmt: skip
    return planned
