"""One method in one way: killed, gone on with, and compared with an undisturbed run."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engram
from benchmarks.kills.compare import differences
from benchmarks.kills.journal import STEP, events
from benchmarks.kills.lives import Death, Lives, Order
from benchmarks.kills.watch import stages_written
from benchmarks.kills.work import Work

__all__ = ["Trial", "differences", "orders", "trial"]

ROUNDS = 4  # for every kill, at most
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


@dataclass
class Trial:
    """What became of a method's runs."""

    work: Work
    steps: int = 0  # of the undisturbed process
    deaths: list[Death] = field(default_factory=list)
    rounds: int = 0  # times that runs were killed, resumed to their end and compared
    differences: list[str] = field(default_factory=list)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """Lines of the table, one for each kill."""
        said = "; ".join(self.differences[:3])
        return [
            {"method": self.work.method, "way": self.work.way, "seed": seed} | one.row()
            | {"equal": not self.differences, "said": said}
            for one in self.deaths
        ]  # fmt: skip


def orders(work: Work, kills: int, turn: int) -> list[Order]:
    """Whom to kill, how, and whether in the middle of a write; methods take turns."""
    victims, found = work.how.victims, []
    for place in range(kills):
        victim, sent = victims[place % len(victims)], SIGNALS[(turn + place // 2) % 2]
        # of a lone process every second, of workers every third: drivers write next to nothing
        writing = place % 2 == 1 if len(victims) == 1 else victim == "worker" and turn % 3 == place
        found.append(Order(victim, signal.SIGKILL if writing else sent, writing))
    return found


def trial(work: Work, planned: Sequence[Order], chance: random.Random, folder: Path,
          cluster: Any = None) -> Trial:  # fmt: skip
    """Kill as ordered, up to three in a row before the work may be finished, until each fell.

    An undisturbed run is made once in a `folder`, for all ways that share it.
    """
    found = Trial(work)
    whole = Lives(
        work, folder / f"whole-{work.how.reference or work.how.pool}-{work.how.seeds}", chance
    )
    if not whole.out.exists():
        whole.finish(pool=work.how.reference)
    seen = events(whole.journal(0))
    found.steps = sum(one.kind == STEP for one in seen)
    expected, left = engram.read(whole.out), list(planned)
    while left:
        if found.rounds >= ROUNDS * len(planned):
            raise RuntimeError("children finish before they can be killed: give them more epochs")
        out = folder / f"{work.way}-{found.rounds}"
        lives = Lives(work, out, chance, whole.come(seen), cluster)
        deaths = lives.end_by(left[:3])
        left = left[len(deaths) :]
        lives.finish()
        found.rounds += 1
        found.deaths += deaths
        found.differences += _wrong(lives, expected, found.steps)
        shutil.rmtree(lives.out)
    return found


def _wrong(lives: Lives, expected: engram.Result, steps: int) -> list[str]:
    """What is not as if nothing had been; nothing may be."""
    out = lives.out
    wrong = differences(engram.read(out), expected)
    written = stages_written(out)
    wrong += [f"{one} recorded {n} times" for one, n in written.items() if n > 1]
    wrong += [f"left behind: {path.name}" for path in out.rglob(".*.tmp-*")]
    if lives.alone:  # whose steps are all seen
        taken = sum(one.kind == STEP for one in lives.seen())
        lost = sum(one.steps_lost for one in lives.deaths)
        # fewer are taken again where it died between saving its place and saying so
        if not steps <= taken <= steps + lost:
            wrong.append(f"{taken} steps in all with {lost} lost, {steps} undisturbed")
    return wrong
