"""Findings: what a paper says about its results, as comparisons of measures that can fail.

A paper declares findings over cells of its own tables in ``tables/<paper>.yaml``, under `findings`:

.. code-block:: yaml

    findings:
      - finding: penalties are above plain training    # in words
        table: "1"
        where: {dataset: [MNIST, CIFAR-100], setting: multi-head, metric: A(%)}  # a line for each
        above: [[[EWC, PI, RWalk], [Vanilla]]]          # every first one above every second one
        ahead: 10                                       # by more than this much; 0 if left out
      - finding: penalties are alike
        table: "1"
        where: {dataset: MNIST, setting: multi-head, metric: A(%)}
        near: [[[EWC], [PI, RWalk]]]
        within: 3
      - finding: rows are in the printed order
        table: "1"
        where: {dataset: MNIST, setting: multi-head, metric: A(%)}
        order: printed                                  # or a list of rows, the highest first
        pairs: 0.9                                      # share of the pairs that must be in order
      - finding: accuracy falls with every task
        table: "27"
        where: {order: O1, augmentation: [without, with], metric: Acc}
        falls: ["*"]                                    # all rows; over the stages of the table

Kinds are `above`, `below`, `at_least`, `at_most` (with `ahead`, or `within` for how far the wrong
way is still fine), `near` (with `within`), `order` (with `pairs`), `rises` and `falls`. A row is
named by its method, or by another key with ``by: nd_method``; ``*`` stands for every row that the
other side does not name. Where a name is not enough, a mapping gives further keys of the cell:
``{method: PI, params: lambda=0.1}``, ``{method: EWC, metric: F}``, ``{method: GEM, table: "2"}``.

A paper makes its table of findings in its function of figures, under the name ``findings``; what no
cell of a table has is a `Claim`, `OrderClaim` or `TrendClaim` of a function of its own:

.. code-block:: python

    cells = CellFindings("rwalk", preset, DATA["findings"], {"1": make_entries(preset)})
    return (make_findings_figure(DATA["titles"]["findings"], cells, more=own_claims, rows=...),)

**When a finding holds** (`judge_gap`): the difference is taken repetition by repetition,
over those that both sides have. With three of them or more, *yes* and *no* need the whole t
interval on one side of the boundary; otherwise it is *undecided*. With fewer there is no interval,
and the mean decides; the number of repetitions stands beside it. The column `printed_holds` is the
same comparison of the paper's own numbers.

A recorded table keeps `Moments` of a cell, not its repetitions. The same rule holds then, but rows
count as unrelated: the interval of their difference is Welch's (`bound_sum`). It is wider than that
of repetitions which share what makes them hard, so a table can leave open what its runs decide.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from engram.errors import bad, check_choice, unknown
from engram.metrics.statistics import std
from engram.reproduce.cells import CELL_KEYS, Cell, read_cells
from engram.reproduce.measures import constant
from engram.reproduce.paper_table import CellEntry, PaperFigure, run_key
from engram.reproduce.papers.figure_parts import NAN, draw_table, make_frame
from engram.reproduce.verdicts import ENOUGH_REPETITIONS, LEVEL, bound_mean

if TYPE_CHECKING:
    import pandas as pd

    from engram.experiments import Recipe
    from engram.records import Result
    from engram.reproduce.paper_table import Floats
    from engram.reproduce.papers.paper_base import PaperPreset

    Sample: TypeAlias = "Floats | Moments"
    Evidence: TypeAlias = Callable[[Result], Sample]  # a measure, or what a table says of it

YES, NO, UNDECIDED, NOT_RUN = "yes", "no", "undecided", "not run"
FINDING_COLUMNS = (
    "finding", "row", "first", "first_value", "first_std", "relation", "second", "second_value",
    "second_std", "difference", "low", "high", "repetitions", "paper_first", "paper_second",
    "printed_holds", "holds",
)  # fmt: skip


# -- what is known of a number ---------------------------------------------------------------------
@dataclass(frozen=True)
class Moments:
    """What a table keeps of repetitions: mean, standard deviation (NaN if unknown) and number.

    Examples
    --------
    >>> Moments.of(np.array([1.0, 2.0, 3.0, NAN]))
    Moments(mean=2.0, std=1.0, count=3)
    """

    mean: float = NAN
    std: float = NAN
    count: int = 0

    @classmethod
    def of(cls, sample: Sample) -> Moments:
        """Those of repetitions, of which NaN are missing."""
        if isinstance(sample, Moments):
            return sample
        known = sample[~np.isnan(sample)]
        return cls(_mean(known), _spread(known), len(known))

    @classmethod
    def of_interval(cls, mean: float, low: float, high: float, count: int) -> Moments:
        """Those of so many repetitions with this t interval of their mean; bounds may be NaN.

        Examples
        --------
        >>> Moments.of_interval(2.0, *bound_mean(np.array([1.0, 2.0, 3.0])), 3)
        Moments(mean=2.0, std=1.0, count=3)
        """
        if math.isnan(mean):
            return cls()
        if count < ENOUGH_REPETITIONS or math.isnan(high - low):
            return cls(mean, NAN, count)
        from scipy.stats import t  # imported here because it takes a second

        error = (high - low) / 2 / float(t.ppf((1 + LEVEL) / 2, count - 1))
        return cls(mean, round(error * math.sqrt(count), 12), count)


def bound_sum(parts: Sequence[Moments], weights: Sequence[float]) -> tuple[float, float]:
    """Bound a weighted sum of means whose repetitions are unrelated (Welch and Satterthwaite).

    NaN where one has fewer than three repetitions or an unknown deviation.

    Examples
    --------
    >>> first, second = Moments(5.0, 1.0, 3), Moments(2.0, 1.0, 3)
    >>> low, high = bound_sum([first, second], [1, -1])  # 4 degrees of freedom
    >>> round(low, 3), round(high, 3)
    (0.733, 5.267)
    """
    if any(one.count < ENOUGH_REPETITIONS or math.isnan(one.std) for one in parts):
        return NAN, NAN
    centre = sum(w * one.mean for w, one in zip(weights, parts, strict=True))
    errors = [(w * one.std) ** 2 / one.count for w, one in zip(weights, parts, strict=True)]
    whole = sum(errors)
    if not whole:
        return centre, centre
    from scipy.stats import t  # imported here because it takes a second

    freedom = whole**2 / sum(e**2 / (p.count - 1) for e, p in zip(errors, parts, strict=True))
    reach = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(whole)
    return centre - reach, centre + reach


def derive(function: Callable[..., Floats], *measures: Evidence) -> Evidence:
    """Make a number of several, repetition by repetition; of moments the mean alone is known.

    Examples
    --------
    >>> gap = derive(np.subtract, lambda result: Moments(5.0, 1.0, 3), constant(2.0))
    >>> gap(None)
    Moments(mean=3.0, std=nan, count=3)
    """

    def measure(result: Result) -> Sample:
        samples = [one(result) for one in measures]
        counts = [one.count for one in samples if isinstance(one, Moments)]
        if not counts:
            return function(*samples)
        means = (np.array([Moments.of(one).mean]) for one in samples)
        return Moments(float(function(*means)[0]), NAN, min(counts))

    return measure


@dataclass(frozen=True)
class Gap:
    """A difference, the interval of its mean (NaN for none), and over how many repetitions."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, differences: Floats) -> Gap:
        """That of repetitions."""
        return cls(_mean(differences), *bound_mean(differences), len(differences))


def compare(first: Sample, second: Sample) -> tuple[Moments, Moments, Gap]:
    """Subtract the second from the first; both are those of the repetitions that were compared.

    Where no repetition has both, nothing is compared. Beside moments a single value is a given
    number, such as a printed one.

    Examples
    --------
    >>> compare(Moments(5.0, 1.0, 3), Moments(2.0, 1.0, 3))[2].mean
    3.0
    >>> compare(Moments(5.0, 1.0, 2), np.array([4.0]))[2]
    Gap(mean=1.0, low=nan, high=nan, count=2)
    """
    if isinstance(first, Moments) or isinstance(second, Moments):
        one, two = _take_moments(first, second), _take_moments(second, first)
        count = min(one.count, two.count)
        bounds = bound_sum([one, two], [1, -1])
        return one, two, Gap(one.mean - two.mean, *bounds, count)
    a, b = np.broadcast_arrays(first, second)
    shared = ~(np.isnan(a) | np.isnan(b))
    count = int(shared.sum())
    if count:
        a, b = a[shared], b[shared]
    return Moments.of(a), Moments.of(b), Gap.of(a - b if count else np.empty(0))


def _take_moments(sample: Sample, other: Sample) -> Moments:
    if isinstance(sample, Moments) or len(sample) != 1 or not isinstance(other, Moments):
        return Moments.of(sample)
    value = float(sample[0])
    return Moments() if math.isnan(value) else Moments(value, 0.0, other.count)


# -- when a finding holds --------------------------------------------------------------------------
class Judgement(NamedTuple):
    """Whether a difference is where it should be, and the interval by which that was decided."""

    holds: str
    low: float
    high: float


def judge_gap(
    gap: Gap, *, least: float = 0.0, most: float = math.inf, ties: bool = False
) -> Judgement:
    """Judge whether the mean difference lies between two bounds, one of which may be infinite.

    Yes if the whole interval does, no if none of it does, else undecided. Without an interval, for
    want of repetitions, the mean decides. With `ties` the bounds themselves belong to it.

    Examples
    --------
    >>> judge_gap(Gap.of(np.array([2.0, 2.1, 1.9]))).holds
    'yes'
    >>> judge_gap(Gap.of(np.array([2.0, -0.5, 1.0]))).holds
    'undecided'
    >>> judge_gap(Gap.of(np.array([2.0, -0.5]))).holds, judge_gap(Gap.of(np.array([]))).holds
    ('yes', 'not run')
    >>> near = judge_gap(Gap.of(np.array([0.2, 0.1, 0.3])), least=-1, most=1, ties=True)
    >>> near.holds, round(near.low, 2), round(near.high, 2)
    ('yes', -0.05, 0.45)
    """
    if not gap.count:
        return Judgement(NOT_RUN, NAN, NAN)
    low, high = gap.low, gap.high
    a, b = (gap.mean,) * 2 if math.isnan(low) else (low, high)
    if (least <= a and b <= most) if ties else (least < a and b < most):
        return Judgement(YES, low, high)
    outside = (b < least or a > most) if ties else (b <= least or a >= most)
    return Judgement(NO if outside else UNDECIDED, low, high)


# -- claims ----------------------------------------------------------------------------------------
class TriedClaim(Protocol):
    """What can be tried on results: a line with `FINDING_COLUMNS`."""

    def tried(self, result: Any) -> dict[str, Any]: ...


RELATIONS = ("above", "below", "near")


@dataclass(frozen=True)
class Claim:
    """The first measure is above or below the second, or near it.

    Examples
    --------
    >>> one = Claim("more is more", "", ("three", constant(3.0)), ("two", constant(2.0)), (9, 8))
    >>> found = one.tried(None)
    >>> found["holds"], found["printed_holds"], found["relation"]
    ('yes', 'yes', 'above')

    Means are those over the repetitions that both have, here the first alone:

    >>> few, all = ("few", constant(0.5, NAN, NAN)), ("all", constant(0.6, 0.1, 0.2))
    >>> found = Claim("few are better", "", few, all).tried(None)
    >>> found["second_value"], found["repetitions"], found["holds"]
    (0.6, 1, 'no')
    """

    finding: str
    row: str
    first: tuple[str, Evidence]
    second: tuple[str, Evidence]
    paper: tuple[float, float] = (NAN, NAN)
    ties: bool = False  # equal values count as well
    slack: float = 0.0  # how far the wrong way is still fine; negative: it must be ahead by as much
    relation: str = "above"

    def __post_init__(self) -> None:
        check_choice("relation", self.relation, RELATIONS)

    def tried(self, result: Any) -> dict[str, Any]:
        """The claim with both numbers and whether it holds.

        Where no repetition has both, nothing is compared, and each number is its own mean.
        """
        one, two, gap = compare(self.first[1](result), self.second[1](result))
        found = self._judge(gap)
        printed = Gap(self.paper[0] - self.paper[1], NAN, NAN, 1)
        said = "" if math.isnan(printed.mean) else self._judge(printed).holds
        return {
            "finding": self.finding, "row": self.row, "first": self.first[0],
            "first_value": one.mean, "first_std": one.std, "relation": self._said,
            "second": self.second[0], "second_value": two.mean, "second_std": two.std,
            "difference": gap.mean, "low": found.low, "high": found.high,
            "repetitions": gap.count, "paper_first": self.paper[0], "paper_second": self.paper[1],
            "printed_holds": said, "holds": found.holds,
        }  # fmt: skip

    @property
    def _said(self) -> str:
        ties = {"above": "at least", "below": "at most"}
        word = ties.get(self.relation, self.relation) if self.ties else self.relation
        if self.relation == "near":
            return f"within {self.slack:g} of"
        if not self.slack:
            return word
        return f"{word}, {'but' if self.slack > 0 else 'by'} {abs(self.slack):g}"

    def _judge(self, gap: Gap) -> Judgement:
        least = -math.inf if self.relation == "below" else -self.slack
        most = math.inf if self.relation == "above" else self.slack
        return judge_gap(gap, least=least, most=most, ties=self.ties or self.relation == "near")


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else NAN


def _spread(values: Floats) -> float:
    return float(std(values, ddof=1)) if len(values) > 1 else NAN


Side = tuple[str, "Evidence", float]  # a row, its measure, and the paper's number


@dataclass(frozen=True)
class OrderClaim:
    """Rows are in this order, the highest first.

    Every pair of rows is a comparison; the line has how many pairs are in this order, and between
    which numbers the comparisons leave it open (`low`, `high`). It holds if a `share` of all pairs
    is.

    Examples
    --------
    >>> rows = [("a", constant(3.0), 0.3), ("b", constant(1.0), 0.2), ("c", constant(2.0), 0.1)]
    >>> found = OrderClaim("a > b > c", "", rows).tried(None)
    >>> found["first_value"], found["second_value"], found["holds"], found["printed_holds"]
    (2, 3, 'no', 'yes')
    >>> OrderClaim("a > b > c", "", rows, share=0.6).tried(None)["holds"]
    'yes'
    """

    finding: str
    row: str
    rows: Sequence[Side]
    share: float = 1.0
    printed: bool = False  # it is the paper's own order, whose ties are no pairs

    def tried(self, result: Any) -> dict[str, Any]:
        known = [(name, _give(measure(result)), paper) for name, measure, paper in self.rows]
        every = [
            Claim("", "", one[:2], two[:2], (one[2], two[2])).tried(None)
            for one, two in combinations(known, 2)
            if not (self.printed and one[2] == two[2])
        ]
        held = [one["holds"] for one in every]
        said = [one["printed_holds"] for one in every]
        sure, wrong = held.count(YES), held.count(NO)
        need = math.ceil(self.share * len(every) - 1e-9)
        holds = (
            NOT_RUN if not sure + wrong + held.count(UNDECIDED)
            else YES if sure >= need else NO if len(every) - wrong < need else UNDECIDED
        )  # fmt: skip
        enough = said.count(YES) >= need
        return {
            "finding": self.finding, "row": self.row, "first": "pairs in this order",
            "first_value": sum(one["difference"] > 0 for one in every), "first_std": NAN,
            "relation": f"at least {need} of" if need < len(every) else "all of",
            "second": "pairs", "second_value": len(every), "second_std": NAN, "difference": NAN,
            "low": sure, "high": len(every) - wrong,
            "repetitions": min((one["repetitions"] for one in every), default=0),
            "paper_first": said.count(YES) if any(said) else NAN,
            "paper_second": len(every) if any(said) else NAN,
            "printed_holds": "" if "" in said else YES if enough else NO, "holds": holds,
        }  # fmt: skip


def _give(sample: Sample) -> Evidence:
    return lambda result: sample


@dataclass(frozen=True)
class TrendClaim:
    """A measure rises, or falls, over stages: the line fitted through them does.

    The difference is the change along that line, from the first stage to the last.

    Examples
    --------
    >>> stages = [("stage 1", constant(0.9), NAN), ("stage 2", constant(0.5), NAN)]
    >>> found = TrendClaim("it falls", "", "EWC", stages, falls=True).tried(None)
    >>> found["first"], found["second"], round(found["difference"], 3), found["holds"]
    ('EWC, stage 1', 'EWC, stage 2', -0.4, 'yes')
    """

    finding: str
    row: str
    name: str
    stages: Sequence[Side]
    falls: bool = False

    def tried(self, result: Any) -> dict[str, Any]:
        samples = [one(result) for _, one, _ in self.stages]
        ends, first, last, gap = _follow(samples)
        found = self._judge(gap)
        printed = [np.array([paper]) for _, _, paper in self.stages]
        said = "" if np.isnan(printed).any() else self._judge(_follow_values(printed)[-1]).holds
        return {
            "finding": self.finding, "row": self.row,
            "first": f"{self.name}, {self.stages[ends[0]][0]}", "first_value": first.mean,
            "first_std": first.std, "relation": "falls to" if self.falls else "rises to",
            "second": f"{self.name}, {self.stages[ends[1]][0]}", "second_value": last.mean,
            "second_std": last.std, "difference": gap.mean, "low": found.low,
            "high": found.high, "repetitions": gap.count, "paper_first": self.stages[ends[0]][2],
            "paper_second": self.stages[ends[1]][2], "printed_holds": said, "holds": found.holds,
        }  # fmt: skip

    def _judge(self, gap: Gap) -> Judgement:
        low, high = (-math.inf, 0.0) if self.falls else (0.0, math.inf)
        return judge_gap(gap, least=low, most=high)


Followed = tuple[tuple[int, int], Moments, Moments, Gap]  # ends, what is there, change between


def _follow(samples: Sequence[Sample]) -> Followed:
    """The change over the stages that some repetition has."""
    arrays = [one for one in samples if not isinstance(one, Moments)]
    return _follow_values(arrays) if len(arrays) == len(samples) else _follow_moments(samples)


def _follow_values(samples: Sequence[Floats]) -> Followed:
    values = np.stack(np.broadcast_arrays(*samples), 1)
    there = ~np.isnan(values).all(0)  # a run on other data may have fewer stages
    ends = _find_ends(there)
    known = values[~np.isnan(values[:, there]).any(1)] if there.sum() > 1 else values[:0]
    change: Floats = known[:, there] @ _weigh_stages(int(there.sum()))
    first, last = (Moments.of(known[:, end]) for end in ends)
    return ends, first, last, Gap.of(change)


def _follow_moments(samples: Sequence[Sample]) -> Followed:
    """The change of means; stages count as unrelated, so that the interval is rather too wide."""
    every = [Moments.of(one) for one in samples]
    ends = _find_ends(np.array([bool(one.count) for one in every]))
    parts = [one for one in every if one.count]
    first, last = (every[end] for end in ends)
    if len(parts) < 2:
        return ends, first, last, Gap(NAN, NAN, NAN, 0)
    weights = _weigh_stages(len(parts)).tolist()
    change = sum(w * one.mean for w, one in zip(weights, parts, strict=True))
    count = min(one.count for one in parts)
    return ends, first, last, Gap(change, *bound_sum(parts, weights), count)


def _find_ends(there: np.ndarray[Any, Any]) -> tuple[int, int]:
    places = np.flatnonzero(there)
    return (int(places[0]), int(places[-1])) if len(places) else (0, len(there) - 1)


def _weigh_stages(count: int) -> Floats:
    """Weights of stages in the change along the line fitted by least squares.

    Examples
    --------
    >>> (np.array([[1.0, 2.0, 3.0], [3.0, 3.0, 3.0]]) @ _weigh_stages(3)).tolist()
    [2.0, 0.0]
    """
    place: Floats = np.arange(count, dtype=np.float64) - (count - 1) / 2
    squares = float((place**2).sum()) or 1.0
    return place * ((count - 1) / squares)


def tabulate_claims(result: Result, claims: Iterable[TriedClaim]) -> pd.DataFrame:
    """One line per claim, with both numbers and whether it holds; none while nothing has run."""
    tried = [claim.tried(result) for claim in claims] if len(result) else []
    return make_frame(tried, FINDING_COLUMNS)


def count_findings(table: pd.DataFrame) -> pd.DataFrame:
    """How many comparisons of each finding hold, by the paper's numbers as well.

    Examples
    --------
    >>> pair = (("a", constant(2.0)), ("b", constant(1.0)))
    >>> held = [Claim("a above b", row, *pair, (1, 2)).tried(None) for row in "xy"]
    >>> count_findings(make_frame(held, FINDING_COLUMNS)).to_dict("records")[0]["yes"]
    2
    """
    words = (YES, NO, UNDECIDED, NOT_RUN)
    records = []
    for finding, rows in table.groupby("finding", sort=False):
        said = rows["printed_holds"].isin([YES, NO])
        printed = f"{(rows['printed_holds'] == YES).sum()} of {said.sum()}" if said.any() else ""
        counts = {word: int((rows["holds"] == word).sum()) for word in words}
        records.append({"finding": finding, "comparisons": len(rows), **counts, "printed": printed})
    return make_frame(records, ("finding", "comparisons", *words, "printed"))


# -- findings over cells ---------------------------------------------------------------------------
PAIRS = {  # key of a finding to relation and ties
    "above": ("above", False), "below": ("below", False), "at_least": ("above", True),
    "at_most": ("below", True), "near": ("near", True),
}  # fmt: skip
KINDS_OF_FINDING = (*PAIRS, "order", "rises", "falls")
FURTHER_KEYS = ("finding", "table", "where", "by", "ahead", "within", "pairs")
RowName = str | Mapping[str, str]


class CellFindings:
    """Findings over cells of a paper's tables, as ``tables/<paper>.yaml`` declares them.

    Examples
    --------
    >>> from engram.reproduce.papers.rwalk_paper import PAPER, TABLES
    >>> one = {
    ...     "finding": "EWC above plain training",
    ...     "table": "1",
    ...     "above": [[["EWC"], ["Vanilla"]]],
    ...     "where": {"dataset": ["MNIST"], "setting": "multi-head", "metric": ["A(%)", "F"]},
    ... }
    >>> found = CellFindings("rwalk", PAPER, [one], {"1": TABLES.tables["1"](PAPER)})
    >>> [(claim.row, claim.paper) for claim in found.claims]
    [('MNIST multi-head A(%)', (99.3, 90.3)), ('MNIST multi-head F', (0.001, 0.12))]
    >>> len(found.recipes)
    2

    Parameters
    ----------
    statements
        The findings, see above. Those that are about data sets that the preset leaves out are
        left out as well.
    tables
        The maker of the entries of each table that they are about.
    recorded
        In place of `tables`: what is known of a cell without runs.
    """

    def __init__(
        self,
        paper: str,
        preset: PaperPreset[Any],
        statements: Sequence[Mapping[str, Any]],
        tables: Mapping[str, Callable[[Cell], CellEntry]],
        *,
        recorded: Callable[[Cell], Evidence] | None = None,
    ) -> None:
        self.paper, self.preset, self.tables, self.recorded = paper, preset, tables, recorded
        self.claims: list[Claim | OrderClaim | TrendClaim] = []
        self.recipes: list[Recipe] = []
        self.rows: list[Mapping[str, str]] = []  # names of the row of each recipe
        self._known: set[tuple[Any, str]] = set()
        self._entries: dict[int, CellEntry] = {}
        for statement in statements:
            self.claims += self._list_claims(statement)

    def _list_claims(
        self, statement: Mapping[str, Any]
    ) -> Iterator[Claim | OrderClaim | TrendClaim]:
        where = f"findings of {self.paper}"
        for key in statement:
            if key not in (*KINDS_OF_FINDING, *FURTHER_KEYS):
                raise unknown(where, key, (*KINDS_OF_FINDING, *FURTHER_KEYS))
        kinds = [key for key in KINDS_OF_FINDING if key in statement]
        if len(kinds) != 1 or not {"finding", "table"} <= set(statement):
            expected = f"finding, table and one of {', '.join(KINDS_OF_FINDING)}"
            raise bad(where, expected, ", ".join(statement))
        kind = kinds[0]
        words, table = statement["finding"], str(statement["table"])
        slack = statement.get("within", -statement.get("ahead", 0.0))
        for place in self._list_places(statement):
            lines = _Lines(self, table, statement.get("by", "method"), place)
            row = self._name_place(place)
            if kind in PAIRS:
                relation, ties = PAIRS[kind]
                for firsts, seconds in statement[kind]:
                    one, two = lines.expand(firsts, seconds), lines.expand(seconds, firsts)
                    for first, second in product(one, two):
                        a, b = lines.side(first), lines.side(second)
                        yield Claim(
                            words, row, a[:2], b[:2], (a[2], b[2]), ties, float(slack), relation
                        )
            elif kind == "order":
                printed = statement[kind] == "printed"
                sides = [lines.side(one) for one in lines.expand(
                    ["*"] if printed else statement[kind], [])]  # fmt: skip
                if printed:
                    sides = sorted(
                        (one for one in sides if not math.isnan(one[2])), key=lambda one: -one[2]
                    )
                yield OrderClaim(words, row, sides, float(statement.get("pairs", 1.0)), printed)
            else:
                for name in lines.expand(statement[kind], []):
                    stages = lines.stages(name)
                    yield TrendClaim(words, row, lines.label(name), stages, kind == "falls")

    def _list_places(self, statement: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        """Every combination of the values of `where`, without data sets that are left out."""
        where = statement.get("where", {})
        for key in where:
            if key not in CELL_KEYS:
                raise unknown(f"findings of {self.paper}: where", key, CELL_KEYS)
        values = [one if isinstance(one, list) else [one] for one in where.values()]
        for chosen in product(*values):
            place = {key: str(one) for key, one in zip(where, chosen, strict=True)}
            if place.get("dataset") not in self.preset.absent:
                yield place

    def _name_place(self, place: Mapping[str, str]) -> str:
        """The place in words, with the data on which it is tried."""
        words = {**place}
        if "dataset" in words:
            words["dataset"] = self.preset.shown(words["dataset"])
        if "stage" in words:
            words["stage"] = f"stage {words['stage']}"
        return " ".join(words.values())

    def find_cells(self, table: str, place: Mapping[str, str]) -> list[Cell]:
        """The cells of a table with these values."""
        every = read_cells(self.paper, table, as_printed=self.preset.as_printed)
        return [
            cell for cell in every
            if cell["dataset"] not in self.preset.absent
            and all(cell[key] == value for key, value in place.items())
        ]  # fmt: skip

    def measure(self, cell: Cell) -> Evidence:
        """The measure of a cell, whose recipes are needed from now on, or what is recorded."""
        if self.recorded is not None:
            return self.recorded(cell)
        if cell.table not in self.tables:
            raise unknown(f"findings of {self.paper}: table", cell.table, self.tables)
        if id(cell) not in self._entries:  # cells are cached, so their ids stay
            self._entries[id(cell)] = self.tables[cell.table](cell)
        entry = self._entries[id(cell)]
        names = {k: v for k, v in cell.key.items() if k not in ("stage", "metric")}
        for one in entry.recipes:
            known = (run_key(one), repr(names))
            if known not in self._known:
                self._known.add(known)
                self.recipes.append(one)
                self.rows.append(names)
        return constant(NAN) if entry.missing or entry.measure is None else entry.measure


@dataclass(frozen=True)
class _Lines:
    """The rows of a table at one place, by the names with which a finding calls them."""

    owner: CellFindings
    table: str
    by: str
    place: Mapping[str, str]

    def _keys(self, name: RowName) -> dict[str, str]:
        more = {self.by: name} if isinstance(name, str) else name
        return {**self.place, **{key: str(value) for key, value in more.items()}}

    def label(self, name: RowName) -> str:
        return name if isinstance(name, str) else ", ".join(map(str, name.values()))

    def _find(self, name: RowName) -> list[Cell]:
        keys = self._keys(name)
        return self.owner.find_cells(keys.pop("table", self.table), keys)

    def expand(self, names: Sequence[RowName], others: Sequence[RowName]) -> list[RowName]:
        """The names, with patterns replaced by the rows they fit that `others` does not name."""
        found: list[RowName] = []
        for name in names:
            if not isinstance(name, str) or "*" not in name:
                found.append(name)
                continue
            there = dict.fromkeys(
                cell[self.by] for cell in self.owner.find_cells(self.table, self.place)
            )
            pattern = name.replace("[", "[[]")  # names such as "A[5]" contain brackets
            found += [
                one for one in there if one not in others and fnmatch.fnmatchcase(one, pattern)
            ]
        return found

    def side(self, name: RowName) -> Side:
        """The one cell of a row."""
        cells = self._find(name)
        if len(cells) != 1:
            keys = ", ".join(f"{key}={value}" for key, value in self._keys(name).items())
            where = f"findings of {self.owner.paper}"
            raise bad(where, f"one cell of table {self.table} with {keys}", f"{len(cells)} of them")
        return self.label(name), self.owner.measure(cells[0]), cells[0].value

    def stages(self, name: RowName) -> list[Side]:
        """The cells of a row by stage, of which there are two or more."""
        cells = sorted(self._find(name), key=lambda cell: int(cell["stage"] or 0))
        if len(cells) < 2 or len({cell["stage"] for cell in cells}) < len(cells):
            keys = ", ".join(f"{key}={value}" for key, value in self._keys(name).items())
            where = f"findings of {self.owner.paper}"
            raise bad(where, f"one cell for each of several stages with {keys}",
                      f"{len(cells)} of them")  # fmt: skip
        return [(f"stage {cell['stage']}", self.owner.measure(cell), cell.value) for cell in cells]


def make_findings_figure(
    title: str,
    cells: CellFindings | None = None,
    *,
    more: Callable[[Result], Iterable[TriedClaim]] | None = None,
    rows: Sequence[tuple[Recipe, Mapping[str, str]]] = (),
) -> PaperFigure:
    """The table of a paper's findings: those over cells, and `more` that need functions.

    Parameters
    ----------
    more
        From the results to further claims.
    rows
        Recipes that these need, each with the names by which it is chosen.

    Examples
    --------
    >>> pair = (("three", constant(3.0)), ("two", constant(2.0)))
    >>> figure = make_findings_figure("Findings", more=lambda result: [Claim("more", "", *pair)])
    >>> figure.name, figure.data([0])["holds"].tolist()
    ('findings', ['yes'])
    """
    recipes = [*(cells.recipes if cells else ()), *(one for one, _ in rows)]
    names = [*(cells.rows if cells else ()), *(named for _, named in rows)]

    def data(result: Result) -> pd.DataFrame:
        claims = [*(cells.claims if cells else ()), *(more(result) if more else ())]
        return tabulate_claims(result, claims)

    return PaperFigure(
        name="findings", title=title, recipes=tuple(recipes), rows=tuple(names), data=data,
        draw=draw_table, partial=True,
    )  # fmt: skip
