"""Processes of a test's own: forks of one that has imported everything and computed nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

# One server for all tests of a process, and for the pools: whoever starts it first decides what is
# imported there. The tests' own modules, too: a child would otherwise import them for itself.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "engram.experiments.pools.process_pool",
        "engram.experiments",
        "engram.records",
        "pandas",
        "pyarrow.parquet",
        "safetensors.torch",
        "torch._dynamo",
        "pytest",
        "tests.test_kills",
        "engram.deploy.model_store",
        "tests.experiments.test_concurrent_processes",
        "tests.experiments.test_step_checkpoints",
    ]
)
LIMIT = 300.0  # seconds


def command_line(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``engram WORDS`` in a process of its own, which begins a second sooner than an interpreter.

    What it writes lies in files beside the folder, which is its working directory.
    """
    files = [folder.parent / f"{folder.name}.{name}" for name in ("stdout", "stderr")]
    child = FORKS.Process(target=_main, args=(folder, files, words, dict(os.environ)))
    child.start()
    child.join(LIMIT)
    said = [file.read_text("utf-8") for file in files]
    assert child.exitcode is not None, said
    return subprocess.CompletedProcess(["engram", *words], child.exitcode, *said)


def _main(folder: Path, files: list[Path], words: tuple[str, ...], environ: dict[str, str]) -> None:
    from engram.cli import main

    speak_into(*files)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv = ["engram", *words]
    main()


def die_at_file(number: int) -> None:
    """Let this process be killed when file `number` is written but does not bear its name yet.

    A block of a journal counts as a file; the process is killed when half of it is written.
    """
    from engram.records import journal

    count, rename, write = 0, os.replace, journal.write_block

    def is_the_one() -> bool:
        nonlocal count
        count += 1
        return count == number

    def replace(source: Any, target: Any) -> None:
        if is_the_one():
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    def write_block(handle: int, content: bytes) -> None:
        if is_the_one():
            write(handle, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(handle, content)

    os.replace, journal.write_block = replace, write_block


def speak_into(out: Path, errors: Path) -> None:
    """Send what this process prints into files."""
    for number, file in enumerate((out, errors), start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
