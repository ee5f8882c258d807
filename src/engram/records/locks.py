"""Locks on the runs of a run directory, held by the operating system.

One byte of one file stands for each thing that can be claimed. A lock belongs to the process
and ends with it, however it dies: there is nothing to clean up, and no timeout after which a slow
owner would be mistaken for a dead one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from pathlib import Path
from types import ModuleType

from engram.io import DiskError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # a platform without such locks: every claim succeeds
    fcntl = None

LOCK_FILE = ".claims"
_LOCKED = (errno.EACCES, errno.EAGAIN)


class Claims:
    """Claims of this process in a directory.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> mine, others = Claims(folder), Claims(folder)
    >>> mine.take("a run"), others.take("a run"), others.take("another run")
    (True, False, True)
    >>> mine.close()
    >>> others.take("a run")
    True
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._handle: int | None = None
        self._held: set[str] = set()
        self.possible = fcntl is not None  # some network disks have no locks

    def take(self, name: str) -> bool:
        """Claim a name; return False if another owner has it."""
        if name in self._held or fcntl is None or not self.possible:
            return True
        try:
            self._set(fcntl.F_WRLCK, name)
        except OSError as problem:
            if problem.errno in _LOCKED:
                return False
            self.possible = False
            return True
        self._held.add(name)
        return True

    def release(self, name: str) -> None:
        """Give up the claim on a name."""
        if name in self._held and fcntl is not None:
            self._held.discard(name)
            self._set(fcntl.F_UNLCK, name)

    def free(self, name: str) -> bool:
        """Return whether no other owner has claimed a name."""
        had = name in self._held
        found = self.take(name)
        if found and not had:
            self.release(name)
        return found

    def close(self) -> None:
        """Give up all claims."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._held = None, set()

    def __del__(self) -> None:
        self.close()

    def _set(self, kind: int, name: str) -> None:
        assert fcntl is not None
        if self._handle is None:
            try:
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as problem:
                raise DiskError(problem, self.path) from problem
        start = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
        if hasattr(fcntl, "F_OFD_SETLK"):
            # a lock of the open file, not of the process: owners in one process exclude each other
            wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 1, 0)
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, wanted)
            return
        how = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(self._handle, how, 1, start)
