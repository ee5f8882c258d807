"""`open_world`: flag novel rows, have some of them labelled, learn these, and repeat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_float, check_int
from engram.experiments.build_probes import build_detectors
from engram.experiments.run_methods import run
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.tensor_tree import stack
from engram.novelty.detector import ROWS_PER_BATCH, Detector, State, gather_facts
from engram.novelty.softmax import Softmax
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records import Result
from engram.records.long_table import Rows
from engram.records.novelty_records import balanced_p_values
from engram.streams.class_groups import group_sizes, order_classes, split_by_sizes
from engram.streams.row_numbers import find_rows_with, hold_out, partition_rows, shuffle_rows
from engram.streams.stream import Stream, Task

if TYPE_CHECKING:
    import pandas as pd

RANDOM = "random"  # flags set at random, for comparison
_LABELLED_SHARE = 0.5  # share of the rows of the first classes that come with labels


@dataclass(frozen=True)
class OpenWorld:
    """Results of an open-world loop.

    Attributes
    ----------
    table
        One line per round, seed and kind of flags: ``arrived`` rows and how many of them
        (``novel``) are of classes that the learner did not know; ``flagged`` rows,
        ``false_alarms`` among the arrived rows of known classes (a share), ``labels`` spent and
        how many of them on novel rows; classes ``found`` so far, of ``classes`` that arrived so
        far without labels; ``kept``, the accuracy on the first classes, and ``accuracy`` on all
        classes that arrived so far (a class without a label is never right).
    streams, results
        By flags and seed: the stream that labelling made, and the run on it.
    """

    table: pd.DataFrame
    streams: Mapping[tuple[str, int], Stream] = field(repr=False)
    results: Mapping[tuple[str, int], Result] = field(repr=False)

    def summary(self) -> pd.DataFrame:
        """Average over seeds per kind of flags: summed labels, and last values of all else."""
        by = self.table.groupby(["flags", "seed"], sort=False)
        ends = by[["found", "classes", "kept", "accuracy"]].last()
        sums = by[["labels", "novel_labels"]].sum()
        return ends.join(sums).groupby("flags", sort=False).mean()

    def __str__(self) -> str:
        return self.summary().round(3).to_string()


@dataclass(frozen=True)
class _World:
    """Rows that arrive in each round; `pools[0]` comes with labels."""

    data: Data
    pools: list[Tensor]
    groups: list[list[int]]  # classes that appear in each round, the first ones at the start
    valid: float
    seed: int


def open_world(
    data: Data,
    *,
    known: int = 4,
    classes_per_round: int = 2,
    novel_share: float = 1.0,
    budget: int = 40,
    rate: float = 0.1,
    detector: Any = "Softmax",
    method: Any = "ER",
    seeds: int | Sequence[int] = 1,
    valid: float = 0.2,
    order: Sequence[int | str] | None = None,
    **options: Any,
) -> OpenWorld:
    """Let a learner discover new classes: it flags novel rows, has them labelled, and learns.

    At the start, half of the rows of some known classes are labelled. In each round, unlabelled
    rows arrive: some of all classes so far, and some of a few new ones. The detector's threshold is
    set for a given false alarm rate on the rows held out so far, those of new classes included, by
    the present network, as `Learner.alarm` does; every class has the same weight. Of the rows below
    it, the least familiar are labelled, as many as the budget allows, and become the next task. For
    comparison, the same is done with as many rows flagged at random in each round.

    Parameters
    ----------
    known, classes_per_round
        Classes at the start, and new ones in each round.
    novel_share
        Fraction of the rows of new classes that arrive; the smaller, the rarer they are.
    budget
        Labels available per round.
    rate
        False alarm rate: rows with a p-value of at most this are flagged.
    detector, method
        See `engram.run`.
    seeds
        A number of seeds or the seeds themselves. A seed determines classes, arrivals and weights.
    valid
        Fraction of the labelled rows of each class that is held out for thresholds and never
        trained on; rows of earlier tasks stay held out.
    order
        Classes in order of appearance; None: random, determined by the seed.
    options
        Further options of `engram.run`: model, device, outside, epochs, batch_size, ...

    Examples
    --------
    >>> import engram
    >>> data = engram.load("blobs", classes=6)
    >>> world = engram.open_world(data, known=2, budget=10, epochs=5, lr=0.01)
    >>> world.summary().index.tolist(), world.table["labels"].tolist()[0] <= 10
    (['softmax', 'random'], True)
    """
    _check(data, budget, rate, options)
    check_float("valid", valid, 0.0, 1.0, open_low=True)
    check_float("novel_share", novel_share, 0.0, 1.0, open_low=True)
    (asked,) = build_detectors({"detectors": [detector]})
    if asked.outside and options.get("outside") is None:
        expected = f"an outside data set on which to tune {asked.name!r}"
        raise bad("outside", expected, None)
    tables: list[dict[str, Any]] = []
    streams: dict[tuple[str, int], Stream] = {}
    results: dict[tuple[str, int], Result] = {}
    listed = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not listed:
        raise bad("seeds", "at least one", seeds)
    for seed in (check_int("seeds", one) for one in listed):
        groups = _group_classes(data, known, classes_per_round, order, seed)
        world = _World(data, _divide_rows(data, groups, novel_share, seed), groups, valid, seed)
        spent: list[int] = []
        for flags in (asked.name, RANDOM):
            loop = _OpenWorldLoop(world, asked, method, options, budget, rate, flags,
                         spent if flags == RANDOM else None)  # fmt: skip
            spent = spent or [line["labels"] for line in loop.lines]
            tables += loop.lines
            streams[flags, seed], results[flags, seed] = loop.stream, loop.result
    import pandas as pd

    return OpenWorld(pd.DataFrame(tables), streams, results)


def _check(data: Data, budget: int, rate: float, options: Mapping[str, Any]) -> None:
    if not isinstance(data, Data):
        raise bad("data", "data, such as engram.load('digits')", data)
    if data.is_multilabel:
        raise bad("data", "one label per row", f"{data.name!r}, whose rows have several")
    check_int("budget", budget, 1)
    check_float("rate", rate, 0.0, 1.0, open_low=True)
    taken = sorted(set(options) & {"stream", "probes", "detectors", "seeds", "out", "keep"})
    if taken:
        raise bad("options", "no options that the loop sets by itself", taken)


def _group_classes(
    data: Data, known: int, per_round: int, order: Any, seed: int
) -> list[list[int]]:
    """Group classes by the round in which they appear, the known ones first."""
    ids = order_classes(data, order, seed)
    if check_int("known", known, 1) >= len(ids):
        raise bad("known", f"fewer than the {len(ids)} classes", known)
    return split_by_sizes(
        ids, group_sizes(len(ids), check_int("classes_per_round", per_round, 1), known)
    )


def _divide_rows(data: Data, groups: list[list[int]], share: float, seed: int) -> list[Tensor]:
    """Divide rows over rounds, each class evenly from its first round on."""
    pools: list[list[Tensor]] = [[] for _ in groups]
    for first, group in enumerate(groups):
        for one in group:
            rows = shuffle_rows(find_rows_with(data, data.train, [one]), seed, "arrivals")
            if first == 0:
                labelled = max(1, round(_LABELLED_SHARE * len(rows)))
                pools[0].append(rows[:labelled])
                rows = rows[labelled:]
            else:
                rows = rows[: max(1, round(share * len(rows)))]
            start = max(first, 1)
            hands = partition_rows([rows], len(groups) - start, seed) if len(rows) else []
            for k, hand in enumerate(hands, start):
                pools[k].append(hand)
    return [torch.cat(one).sort().values for one in pools]


class _OpenWorldLoop:
    """One learner in an open world."""

    def __init__(
        self, world: _World, detector: Any, method: Any, options: Mapping[str, Any], budget: int,
        rate: float, flags: str, spend: list[int] | None,
    ) -> None:  # fmt: skip
        self.world, self.detector, self.method, self.options = world, detector, method, options
        self.budget, self.rate, self.flags, self.spend = budget, rate, flags, spend
        self.found: list[int] = []  # classes with a label, in order of their first
        self.tasks: list[Task] = []
        self._learn(world.pools[0])
        if 1 / (len(self.tasks[0].valid) + 1) > rate:  # no p-value can be as low as that
            expected = f"at least {math.ceil(1 / rate) - 1} held-out rows for a rate of {rate:g}"
            raise bad("valid", expected, f"{world.valid:g}: {len(self.tasks[0].valid)} rows")
        self.lines = [self._round(k, pool) for k, pool in enumerate(world.pools[1:], 1)]
        self.result = self._run()
        for line in self.lines:
            line |= self._accuracies(line["round"], line.pop("stage"))

    @property
    def stream(self) -> Stream:
        """Build the stream of the rows labelled so far."""
        return Stream(data=self.world.data, tasks=tuple(self.tasks), name="open_world")

    def _round(self, k: int, pool: Tensor) -> dict[str, Any]:
        """Flag rows, label some, add a task of them; returns a line of the table."""
        flagged, chosen = self._flagged(pool, k)
        labels, before = self.world.data.labels.cpu(), torch.tensor(self.found)
        known, spent_well = torch.isin(labels[pool], before), ~torch.isin(labels[chosen], before)
        alarms = torch.isin(pool, flagged)[known].double().mean()  # NaN if no known row arrived
        if len(chosen):
            self._learn(chosen)
        appeared = [c for group in self.world.groups[1 : k + 1] for c in group]
        return {
            "flags": self.flags, "seed": self.world.seed, "round": k, "arrived": len(pool),
            "novel": int((~known).sum()), "flagged": len(flagged), "false_alarms": float(alarms),
            "labels": len(chosen), "novel_labels": int(spent_well.sum()),
            "found": len(set(appeared) & set(self.found)), "classes": len(appeared),
            "stage": len(self.tasks) - 1,
        }  # fmt: skip

    def _flagged(self, pool: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Choose the rows to flag, and those of them to label."""
        if self.spend is not None:
            key = keys.fold(self.world.seed, "random flags", k)
            some = pool[keys.permutation(key, len(pool), len(pool))[: self.spend[k - 1]]]
            return some, some
        held = torch.cat([task.valid for task in self.tasks])
        scout = ArrivalProbe(self.detector, tuple(pool.tolist()), tuple(held.tolist()))
        arrays = self._run(scout).arrays(scout.name)
        scores, of = arrays[ARRIVED], self.world.data.labels[held].cpu().numpy()
        novel = balanced_p_values(scores, arrays[HELD], of) <= self.rate
        order = np.argsort(np.where(np.isnan(scores), -np.inf, scores), kind="stable")
        ranked = order[novel[order]]  # the least familiar first, NaN before all
        flagged = pool[torch.from_numpy(ranked)]
        return flagged, flagged[: self.budget]

    def _learn(self, rows: Tensor) -> None:
        """Add a task of labelled rows."""
        data = self.world.data
        labelled = set(data.labels[rows].tolist())
        shown = [c for group in self.world.groups for c in group if c in labelled]
        new = [c for c in shown if c not in self.found]
        train, held = hold_out(data, rows, self.world.valid, self.world.seed)
        test = find_rows_with(data, data.test, new) if new else rows[:0]
        self.found += new
        self.tasks.append(Task(train=train, valid=held, test=test, new=tuple(new),
                               visible=tuple(shown)))  # fmt: skip

    def _run(self, *probes: ArrivalProbe) -> Result:
        """Train on all tasks so far; earlier tasks give the same results, up to rounding."""
        return run(self.stream, method=self.method, seeds=[self.world.seed], probes=probes,
                   **self.options)  # fmt: skip

    def _accuracies(self, k: int, stage: int) -> dict[str, float]:
        """Compute accuracies after a task, on the first classes and on all up to round k."""
        row = self.result.matrix[0, stage]
        counts = np.array([len(task.test) for task in self.tasks])
        learnt = (np.arange(len(counts)) <= stage) & (counts > 0)
        appeared = [c for group in self.world.groups[: k + 1] for c in group]
        whole_ = len(find_rows_with(self.world.data, self.world.data.test, appeared))
        right = float((row[learnt] * counts[learnt]).sum())
        return {"kept": float(row[0]), "accuracy": right / whole_}


ARRIVED, HELD = "arrived", "held"


@dataclass(frozen=True)
class ArrivalProbe(Probe):
    """Score arrived and held-out rows by a detector after the last task.

    Stores the scores ``arrived`` and ``held``, [n] each, of held-out rows that the network gets
    wrong as well: rows of known classes that arrive are not all classified correctly either.

    Parameters
    ----------
    detector
        The detector, which is fitted after every stage as usual.
    arrived, held
        Numbers of rows.
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)
    detector: Detector = field(default_factory=Softmax)
    arrived: tuple[int, ...] = ()
    held: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The same name for all rows."""
        return "scout"

    @property
    def outside(self) -> bool:
        return self.detector.outside

    def check(self, learner: RunLearner) -> None:
        if learner.stream.labels == "set" or learner.stream.head != "single":
            raise bad("stream", "one label per row and one head for all tasks",
                      (learner.stream.labels, learner.stream.head))  # fmt: skip
        self.detector.check_refit(learner)
        self.detector.refuse(gather_facts(learner))

    def after_stage(self, view: StageView) -> Rows | Mapping[str, Any]:
        rows = self.detector.after_stage(view)
        if view.stage < len(view.streams[0]) - 1:
            return rows
        state = stack(view.kept or [])
        for name, wanted in ((ARRIVED, self.arrived), (HELD, self.held)):
            parts = list(self._scores(view, torch.tensor(wanted, dtype=torch.long), state))
            scores = torch.cat(parts, 1) if parts else view.open[:, :0]
            view.store(name, scores.float())
        return rows

    def _scores(self, view: StageView, rows: Tensor, state: Any) -> Iterator[Tensor]:
        """Iterate over the familiarity of rows, [R, B]."""

        def one_run(net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
            return self.detector.score(net, x, columns, state).float()

        for start in range(0, len(rows), ROWS_PER_BATCH):
            some = rows[start : start + ROWS_PER_BATCH].to(view.device)
            stages = torch.full_like(some, view.stage)
            x = torch.stack([learner.feed(some, stages) for learner in view.learners])
            yield view.map(one_run, x, view.open, state)
