"""Verdicts: does our number agree with the paper's?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engram.metrics.statistics import std
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import (
    DOUBTFUL_CELL,
    DOUBTFUL_ORDER,
    NO_COMPARISON,
    OTHER_DATA,
    WHOLE_TABLE,
    CellEntry,
    Floats,
)

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"
NOT_COMPARABLE, NOT_RUN = "not comparable", "not run"
ILLEGIBLE = "printed value not legible"
WIDE_INTERVAL = "wide interval"  # our repetitions vary too much to tell
LEVEL = 0.95
ENOUGH_REPETITIONS = 3  # repetitions needed for an interval
EQUIVALENCE_LEVEL = 0.9  # of an interval that stands for two one-sided tests at 5 percent


@dataclass(frozen=True)
class ReproductionLine:
    """One cell with the paper's number and ours.

    `low` and `high` bound the mean over repetitions (t interval). They are NaN for fewer than
    `ENOUGH_REPETITIONS`, since the interval of two repetitions contains nearly anything.
    """

    cell: Cell
    values: Floats  # [repetitions] without NaN
    low: float
    high: float
    verdict: str
    reason: str
    settings: str = ""  # changes of the preset
    data: str = ""  # the data set that replaces the paper's; "" for none

    @property
    def name(self) -> str:
        """Row and column as text, with the data on which the number was made.

        Examples
        --------
        >>> cell = Cell("rwalk", "1", {"dataset": "MNIST", "method": "EWC"}, 0.08)
        >>> ReproductionLine(
        ...     cell, np.empty(0), 0.0, 0.0, NOT_COMPARABLE, OTHER_DATA, data="digits"
        ... ).name
        'digits EWC'
        """
        return self.cell.name_on(self.data)

    @property
    def ours(self) -> float:
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation over repetitions, with the paper's `Cell.ddof`."""
        return float(std(self.values, ddof=self.cell.ddof))

    @property
    def difference(self) -> float:
        return self.ours - self.cell.value


def t_interval(values: Floats, *, level: float = LEVEL) -> tuple[float, float]:
    """Compute the t interval of a mean; NaN for fewer than two values.

    With the handful of seeds of a reproduction a bootstrap interval would be far too narrow.

    Examples
    --------
    >>> low, high = t_interval(np.array([1.0, 2.0, 3.0]))
    >>> round(low, 4), round(high, 4)
    (-0.4841, 4.4841)
    """
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.stats import t  # imported here because it takes a second

    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    reach = float(t.ppf((1 + level) / 2, len(values) - 1)) * error
    return float(values.mean()) - reach, float(values.mean()) + reach


def bound_mean(values: Floats) -> tuple[float, float]:
    """Return the t interval of a mean; NaN for fewer than `ENOUGH_REPETITIONS` values.

    Examples
    --------
    >>> bound_mean(np.array([1.0, 2.0]))
    (nan, nan)
    """
    return t_interval(values) if len(values) >= ENOUGH_REPETITIONS else (math.nan, math.nan)


def allowed_difference(cell: Cell, tolerance: float, values: Floats | None = None) -> float:
    """Return the largest difference that is not one: tolerance, half the interval, paper's spread.

    Without values, the interval is left out: what lies between is undecided.
    """
    low, high = (math.nan, math.nan) if values is None else bound_mean(values)
    candidates = (tolerance, (high - low) / 2, cell.std)
    # in binary, 99.3 - 96.3 is slightly above 3
    return max(c for c in candidates if not math.isnan(c)) + 1e-9


def bound_difference(
    first: Floats, second: Floats, *, level: float = EQUIVALENCE_LEVEL
) -> tuple[float, float]:
    """Bound the difference of two means by Welch's t interval.

    Two one-sided tests at 5 percent find two means equal within a margin exactly if the interval
    at 90 percent lies within it (Schuirmann 1987).

    Examples
    --------
    >>> low, high = bound_difference(np.array([81.0, 82.0, 83.0]), np.array([81.0, 81.5, 82.0]))
    >>> round(low, 2), round(high, 2)
    (-1.03, 2.03)
    """
    from scipy.stats import t  # imported here because it takes a second

    shares = [float(one.var(ddof=1)) / len(one) for one in (first, second)]
    error = math.sqrt(sum(shares))
    gap = float(first.mean() - second.mean())
    if error == 0:
        return gap, gap
    pairs = zip(shares, (first, second), strict=True)
    freedom = sum(shares) ** 2 / sum(share**2 / (len(one) - 1) for share, one in pairs)
    reach = float(t.ppf((1 + level) / 2, freedom)) * error
    return gap - reach, gap + reach


def compare_runs(ours: Floats, theirs: Floats, margin: float) -> str:
    """Say whether two means are equal within a margin: agrees, differs or undecided.

    Examples
    --------
    >>> theirs = np.array([80.0, 80.5, 81.0])
    >>> compare_runs(theirs + 0.2, theirs, 1.5), compare_runs(theirs + 4, theirs, 1.5)
    ('agrees', 'differs')
    >>> compare_runs(np.array([78.0, 80.0, 84.0]), theirs, 1.5)
    'undecided'
    """
    if min(len(ours), len(theirs)) < ENOUGH_REPETITIONS:
        return UNDECIDED
    low, high = bound_difference(ours, theirs)
    if -margin <= low and high <= margin:
        return AGREES
    return DIFFERS if low > margin or high < -margin else UNDECIDED


def _list_doubts(cell: Cell) -> list[str]:
    """List the doubts about the printed number, without that about its order."""
    found = [one for one in cell.doubt.split("; ") if one]
    order = [DOUBTFUL_ORDER] if DOUBTFUL_ORDER in found else []
    return [*order, *([DOUBTFUL_CELL] if len(found) > len(order) else [])]


def known_reasons(cell: Cell, entry: CellEntry) -> tuple[str, ...]:
    """Return the reasons for a difference that are known before anything runs.

    Examples
    --------
    >>> cell = Cell("rwalk", "1", {"metric": "F"}, math.nan)
    >>> known_reasons(cell, CellEntry(reasons=("variant",)))
    ('printed value not legible', 'variant')
    """
    other = OTHER_DATA in entry.reasons  # nothing to compare then
    illegible = [ILLEGIBLE] if math.isnan(cell.value) and not other else []
    return (*illegible, *entry.reasons, *_list_doubts(cell))


def judge_cell(cell: Cell, entry: CellEntry, values: Floats) -> ReproductionLine:
    """Compare our repetitions with the printed number.

    Examples
    --------
    >>> cell = Cell("rwalk", "1", {"metric": "F"}, 0.12)
    >>> judge_cell(cell, CellEntry(), np.array([0.10, 0.11])).verdict
    'agrees'
    >>> judge_cell(cell, CellEntry(), np.array([0.40, 0.41])).reason
    'unexplained'
    >>> loose = judge_cell(
    ...     cell, CellEntry(), np.array([0.02, 0.05, 0.17])
    ... )  # 0.08, from -0.12 to 0.28
    >>> loose.verdict, loose.reason
    ('undecided', 'wide interval')
    """
    known = values[~np.isnan(values)]
    low, high = bound_mean(known)
    line = (cell, known, low, high)
    if entry.missing:
        return ReproductionLine(*line, NOT_RUN, entry.missing)
    if not len(known):
        return ReproductionLine(*line, NOT_RUN, "no finished run")
    reasons = [*known_reasons(cell, entry)]
    if len(known) < len(values):
        reasons.append(f"{len(known)} of {len(values)} runs")
    if math.isnan(cell.value) or any(one in entry.reasons for one in NO_COMPARISON):
        return ReproductionLine(*line, NOT_COMPARABLE, "; ".join(reasons))
    gap = abs(float(known.mean()) - cell.value)
    if cell.repetitions:
        verdict = compare_runs(known, np.array(cell.repetitions), entry.tolerance)
        if verdict == UNDECIDED:
            reasons.append(WIDE_INTERVAL)
        elif verdict == DIFFERS:
            reasons = reasons or ["unexplained"]
    elif gap <= allowed_difference(cell, entry.tolerance):
        verdict = AGREES
    elif gap <= allowed_difference(cell, entry.tolerance, known):
        verdict = UNDECIDED
        reasons.append(WIDE_INTERVAL)
    else:
        verdict = DIFFERS
        reasons = reasons or [WHOLE_TABLE if entry.general else "unexplained"]
    return ReproductionLine(*line, verdict, "; ".join(reasons))
