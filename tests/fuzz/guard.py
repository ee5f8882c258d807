"""What a reader of foreign bytes may do: return or complain, soon, in little memory, here only."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engram.errors import EngramError

SECONDS = 10.0  # of the processor
MEMORY = 1 << 30  # bytes beyond what the process has
RUNS_CODE = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
             "os.fork", "socket.connect", "ctypes.dlopen"}  # fmt: skip
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
           "os.truncate", "shutil.rmtree", "shutil.move"}  # fmt: skip
_folder: list[str] = []  # where a guarded reader may write; empty while none is at work
_hooked: list[bool] = []


class Broke(BaseException):
    """A reader did what none may; no reader catches it."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _folder:
        return
    if event in RUNS_CODE:
        raise Broke(f"{event} {args}")
    writes = event == "open" and isinstance(args[0], str) and _for_writing(args)
    if writes or event in CHANGES:
        path = os.path.abspath(os.fspath(args[0]))
        if not path.startswith((_folder[0] + os.sep, "/dev/null")):
            raise Broke(f"{event} of {path}, outside {_folder[0]}")


def _for_writing(args: tuple[Any, ...]) -> bool:
    return bool(set("wax+") & set(args[1])) if args[1] else bool(args[2] & 3)


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Limits of time and memory, and ears for code that runs and files that change."""
    if not _hooked:
        sys.addaudithook(_audit)  # for ever, so it must be cheap where nobody is guarded
        _hooked.append(True)

    def late(*_: Any) -> None:
        raise Broke(f"more than {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    _folder.append(str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _folder.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def outcome(read: Callable[[Path], object], scene: Path, file: str, content: bytes) -> str:
    """``read`` or ``refused``; anything else that a reader does is raised.

    It gets a copy of a folder, the scene, in which one file has other content.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "scene"
        shutil.copytree(scene, folder)
        (folder / file).write_bytes(content)
        try:
            with guarded(Path(temporary)):
                read(folder)
        except EngramError:
            return "refused"
        return "read"
