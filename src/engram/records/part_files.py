"""What several part files hold, found by their headers and read one entry at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, Self, TypeVar

from engram.errors import RecordError
from engram.records.parts import Problem
from engram.records.superseded import Marks

K = TypeVar("K")  # what an entry is known by
V = TypeVar("V")  # the entry
P = TypeVar("P")  # where it lies


class PartFiles(Generic[K, V, P]):
    """Entries of part files and of the memory; where several hold the same one, the last counts.

    A file that cannot be read is a problem, and no error.
    """

    def __init__(
        self, files: Iterable[Path], memory: Mapping[K, V], marks: Marks | None = None
    ) -> None:
        self._files = sorted(files, key=lambda path: path.name)
        self._marks = {path.parent: marks or Marks() for path in self._files}
        self._memory = dict(memory)
        self._index: dict[K, P] | None = None
        self._problems: list[Problem] = []

    @classmethod
    def joined(cls, several: Iterable[Self]) -> Self:
        """Several collections as one; later collections count first."""
        whole = cls()  # type: ignore[call-arg]  # of a subclass, which can do without arguments
        for one in several:
            whole._files += one._files
            whole._memory |= one._memory
            whole._marks |= one._marks
        return whole

    def _held(self, path: Path) -> Mapping[K, P]:
        """The entries of a file that are not superseded, and where they lie."""
        raise NotImplementedError

    def _places(self) -> dict[K, P]:
        if self._index is None:
            self._index = {}
            for path in self._files:
                try:
                    self._index.update(self._held(path))
                except RecordError as problem:
                    reason = str(problem).removeprefix(f"{path}: ")
                    self._problems.append(Problem(str(path), reason))
        return self._index

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Files that could not be read."""
        self._places()
        return tuple(self._problems)

    def __len__(self) -> int:
        return len(self._places().keys() | self._memory.keys())

    def __iter__(self) -> Iterator[K]:
        return iter({**dict.fromkeys(self._places()), **dict.fromkeys(self._memory)})

    def __contains__(self, key: object) -> bool:
        return key in self._memory or key in self._places()
