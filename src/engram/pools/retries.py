"""What becomes of groups of runs that were lost or failed, whoever trained them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engram.errors import EngramError
from engram.pools.planner import Group

TRIES = 2  # workers that may die of a group before it is divided, or given up
NODES = 8  # nodes that may: they seldom die of what they train
TOLD = 5  # failures that are said one by one


@dataclass
class Attempt:
    """A group that is with a worker, or waits for one."""

    group: Group
    tries: int = 1
    nodes: int = 1  # tries that nodes took with them count apart
    whole: bool = False  # a GPU of its own
    begun: bool = False
    node: str = ""


class Retries:
    """Groups that wait to be trained; those that were lost come again, in parts if need be."""

    def __init__(self, groups: Sequence[Group], note: Callable[[str], None]) -> None:
        self.waiting = deque(Attempt(group) for group in groups)
        self.failures: list[str] = []
        self._note = note

    def again(self, attempt: Attempt) -> None:
        """As it was, and next."""
        self.waiting.appendleft(attempt)

    def failed(self, attempt: Attempt, words: str) -> None:
        """Something went wrong in a group: one run may be at fault, so its parts are tried."""
        if len(attempt.group) > 1:
            self._apart(attempt)
        else:
            self.failures.append(f"{attempt.group.words}: {words}")

    def lost(self, attempt: Attempt, how: str, *, node: bool = False) -> None:
        """A worker or its node has died: another one tries, unless that is what kills them."""
        group, words = attempt.group, f"{attempt.group.words}: {how}"
        tries, nodes = attempt.tries + (not node), attempt.nodes + node
        if tries <= TRIES and nodes <= NODES:
            self._note(f"{words}; another one continues it")
            self.again(replace(attempt, tries=tries, nodes=nodes, begun=False, node=""))
        elif len(group) > 1:
            self._note(f"{words}{_repeated()}; its runs are retried separately")
            self._apart(attempt)
        else:
            kept = "what it recorded is kept; repeat the call to continue"
            self.failures.append(f"{words}{_repeated()}; {kept}")

    def _apart(self, attempt: Attempt) -> None:
        self.waiting.extendleft(Attempt(half) for half in reversed(attempt.group.halves()))

    def complain(self) -> None:
        """Raise what went wrong, if anything did."""
        if not self.failures:
            return
        said = self.failures[:TOLD]
        more = len(self.failures) - len(said)
        raise EngramError("; ".join([*said, *([f"and {more} more"] if more else [])]))


def _repeated() -> str:
    return ", again" if TRIES > 1 else ""
