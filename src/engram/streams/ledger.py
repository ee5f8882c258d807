"""A ledger of what a run has read."""

from __future__ import annotations

from engram.errors import choose, whole

KINDS = (
    "train", "valid", "memory", "past", "probe", "prologue", "outside", "held_out", "test",
)  # fmt: skip
SCORED = ("held_out", "test")  # read after training, to judge it


class Ledger:
    """How many rows were read, by stage and kind.

    Kinds: ``train`` and ``valid`` rows of the current task, ``memory`` rows that were kept,
    ``past`` rows of earlier tasks that were not kept (only methods that declare it), ``probe`` rows
    on which measurements were fitted after a stage (see `engram.Probe`), ``prologue`` rows set
    aside from all tasks, from which a root learnt before the first, ``outside`` rows of another
    data set, by which detectors were tuned, ``held_out`` validation rows and ``test`` rows that
    were scored: of all tasks after every stage, and wherever a curve was taken.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.record(0, "train", 64)
    >>> ledger.record(1, "memory", 10)
    >>> ledger.to_dict()
    {'0': {'train': 64}, '1': {'memory': 10}}
    >>> ledger.total("memory")
    10
    """

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, int]] = {}

    def record(self, stage: int, kind: str, count: int) -> None:
        """Add `count` rows read."""
        choose("kind", kind, KINDS)
        if whole("count", count) > 0:
            kinds = self._counts.setdefault(whole("stage", stage), {})
            kinds[kind] = kinds.get(kind, 0) + count

    def count(self, stage: int, kind: str) -> int:
        """Rows of a kind read in a stage."""
        return self._counts.get(stage, {}).get(choose("kind", kind, KINDS), 0)

    def total(self, kind: str) -> int:
        """Rows of a kind read in all stages."""
        return sum(self.count(stage, kind) for stage in self._counts)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Counts by stage and kind, as values that JSON can hold."""
        return {
            str(stage): {kind: kinds[kind] for kind in KINDS if kind in kinds}
            for stage, kinds in sorted(self._counts.items())
        }

    @classmethod
    def from_dict(cls, plain: dict[str, dict[str, int]]) -> Ledger:
        """The ledger that wrote `plain`."""
        ledger = cls()
        for stage, kinds in plain.items():
            for kind, count in kinds.items():
                ledger.record(int(stage), kind, count)
        return ledger

    def become(self, plain: dict[str, dict[str, int]]) -> None:
        """Hold the counts of `to_dict`, and no others."""
        self._counts = Ledger.from_dict(plain)._counts

    def copy(self) -> Ledger:
        """A ledger with the same counts, which goes on by itself."""
        twin = Ledger()
        twin._counts = {stage: dict(kinds) for stage, kinds in self._counts.items()}
        return twin

    def __repr__(self) -> str:
        shown = [kind for kind in KINDS if kind in KINDS[:4] or self.total(kind)]
        return f"Ledger({', '.join(f'{kind} {self.total(kind)}' for kind in shown)})"
