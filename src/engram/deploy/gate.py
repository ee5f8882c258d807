"""`Gate`: whether a learner that has learnt further rows may take the place of the one before.

Two kinds of rules. Before training, the new rows are looked at: their classes, repetitions, labels
and inputs. After training, the candidate is compared with the served learner on calibration
rows, which neither has trained on. Each rule is a function that returns a `Check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import gammaln
from scipy.stats import beta, binomtest, fisher_exact

from engram.data.fingerprint import hash_rows
from engram.deploy.calibration import CalibrationRows
from engram.deploy.new_task import Array, NewTask
from engram.deploy.snapshot import LearnerSnapshot
from engram.engine.portable_state import PortableState
from engram.errors import check_fields, check_float, check_int, plural

SHOWN = 5  # names in a reason
MOST_REPEATED = 0.5  # of the rows of one class
MOST_COLUMNS = 4096  # of inputs, looked at for drift; evenly spaced if there are more


class Check(NamedTuple):
    """What a rule found."""

    rule: str
    passed: bool
    text: str  # with the numbers that decided


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The rules by which a `ModelStore` accepts or refuses what its learner has learnt.

    Parameters
    ----------
    margin
        Fall in accuracy on kept rows, over all classes known before, that is still accepted. The
        bound must be below it: a candidate that falls by more is accepted with a probability of at
        most `level`.
    level
        Error rate of each rule that tests: of accepting too large a fall, of refusing rows for
        their labels or inputs that are like the kept ones.
    agreement
        How much less often the served learner may agree with the labels of new rows of known
        classes than with those of kept rows. A smaller difference passes, however significant.
    drift
        Largest Kolmogorov-Smirnov distance of an input column between new and kept rows of the
        same classes. A smaller one passes, however significant.
    repeats
        Share of new rows that may equal another new row, or one that the learner keeps; half of
        the rows of one class. If a larger share of kept rows equal others, nothing is refused.
    least
        Rows that a new class must have.

    Examples
    --------
    >>> Gate(margin=0.02).margin
    0.02
    """

    margin: float = 0.05
    level: float = 0.05
    agreement: float = 0.2
    drift: float = 0.3
    repeats: float = 0.1
    least: int = 10

    def __new__(cls, *_args: Any, **given: Any) -> Self:
        check_fields(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("margin", "agreement", "drift", "repeats"):
            check_float(name, getattr(self, name), 0.0, 1.0)
        check_float("level", self.level, 0.0, 0.5, open_low=True)
        check_int("least", self.least, 1)

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def check_rows(
        self, served: LearnerSnapshot, stored: PortableState, new: NewTask,
        declared: Sequence[str] = (),
    ) -> list[Check]:  # fmt: skip
        """Apply the rules that need no training."""
        found = [
            check_classes(self, served, new, declared),
            check_repeats(self, stored, new),
        ]
        kept = served.calibration
        if kept is not None:
            found.append(check_labels(self, served, kept, new))
            found.append(check_inputs(self, served, kept, new))
        return found

    def check_candidate(
        self, served: LearnerSnapshot, candidate: LearnerSnapshot, fresh: int
    ) -> tuple[list[Check], dict[str, Any]]:
        """Apply the rules that compare, and return what was measured.

        `fresh` is the number of calibration rows of the candidate, the last ones, that are new.
        """
        kept, own = served.calibration, candidate.calibration
        assert kept is not None and own is not None  # noqa: PT018 - the store has looked
        old = _compare(served, candidate, kept.x, kept.y)
        split = len(own.y) - fresh
        new = _compare(served, candidate, own.x[split:], own.y[split:])
        known = served.seen[: len(candidate.facts["classes"])].nonzero()[:, 0].cpu().numpy()
        checks = [
            check_kept_rows(self, old),
            check_new_rows(self, new),
            check_new_classes(self, new, known),
        ]
        return checks, _measure(self, old, new, candidate.facts["classes"])


# -- bounds ----------------------------------------------------------------------------------------
def share_bounds(count: int, of: int, level: float) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) lower and upper bound of a share, each at `level`.

    Examples
    --------
    >>> share_bounds(0, 100, 0.05), share_bounds(90, 100, 0.05)
    ((0.0, 0.0295), (0.836, 0.945))
    """
    low = 0.0 if count == 0 else float(beta.ppf(level, count, of - count + 1))
    high = 1.0 if count == of else float(beta.ppf(1 - level, count + 1, of - count))
    return low, high


def fall_bound(before: Array, after: Array, level: float) -> float:
    """Return an upper bound of the fall in accuracy, from rows that were right before and after.

    The fall is the share of rows lost minus the share of rows won; each has an exact bound at half
    the level, so that the difference holds for any number of rows and any accuracy.

    Examples
    --------
    >>> right = np.arange(200) < 190
    >>> fall_bound(right, right, 0.05)
    0.0183
    """
    if not len(before):
        return 1.0
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    high = share_bounds(lost, len(before), level / 2)[1]
    return high - share_bounds(won, len(before), level / 2)[0]


# -- rules about new rows --------------------------------------------------------------------------
def check_classes(
    gate: Gate, served: LearnerSnapshot, new: NewTask, declared: Sequence[str]
) -> Check:
    """Every class has a name and rows; a new one has enough rows to be judged."""
    counts = np.bincount(new.y[new.y >= 0].numpy(), minlength=len(new.classes))
    rows = dict(zip(new.classes, counts.tolist(), strict=True))
    known = {name for c, name in enumerate(served.facts["classes"]) if c not in served.closed}
    empty = [name for name in declared if name not in rows]
    blank = [name for name in rows if not name.strip() or name in ("nan", "None", "<NA>")]
    few = [name for name in rows if name not in known and rows[name] < gate.least]
    problems = []
    if empty:
        problems.append(f"no rows of {_some(empty)}")
    if blank:
        problems.append(f"rows of a class without a name ({_some(blank)})")
    if few:
        problems.append(f"fewer than {gate.least} rows of the new class {_some(few)}")
    return Check("classes", not problems, "; ".join(problems) or "every class has rows")


def check_repeats(gate: Gate, stored: PortableState, new: NewTask) -> Check:
    """Few rows equal others of these rows, or rows that the learner keeps."""
    own, kept = hash_rows(new.x.numpy()), _stored_hashes(stored)
    usual = float(_repeated(kept).mean()) if len(kept) else 0.0
    if usual > gate.repeats:
        return Check("repeats", True, f"{usual:.1%} of the rows kept are equal to others, too")
    again = _repeated(own) | np.isin(own, kept)
    share = float(again.mean())
    text = f"{share:.1%} of the rows equal another row, allowed {gate.repeats:.1%}"
    y = new.y[:, 0].numpy()
    shares = {name: float(again[y == c].mean()) for c, name in enumerate(new.classes)}
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] > MOST_REPEATED:
        text = f"{shares[worst]:.1%} of the rows of class {worst!r} equal another row"
    return Check("repeats", share <= gate.repeats and shares[worst] <= MOST_REPEATED, text)


def _repeated(hashes: Array) -> Array:
    """Return which rows [n] equal an earlier one."""
    _, first = np.unique(hashes, return_index=True)
    found = np.ones(len(hashes), bool)
    found[first] = False
    return found


def _stored_hashes(stored: PortableState) -> Array:
    """Hashes of the rows that a learner keeps: of its memory, and calibration rows."""
    names = [name for name in ("rows/x", "calibration/x") if name in stored.tensors]
    rows = [hash_rows(stored.tensors[name].numpy()) for name in names if len(stored.tensors[name])]
    return np.concatenate(rows) if rows else np.empty(0, np.uint64)


def check_labels(gate: Gate, served: LearnerSnapshot, kept: CalibrationRows, new: NewTask) -> Check:
    """The served learner agrees with the labels of known classes about as often as with kept ones.

    Over all of them and for each class (Fisher's exact test, with the level divided by the number
    of comparisons).
    """
    y = _columns(served, new)
    rows = (y >= 0).nonzero()[0]
    if not len(rows):
        return Check("labels", True, "no rows of known classes")
    said = served.scores(new.x[rows]).argmax(1).numpy()
    right, y = said == y[rows], y[rows]
    kept_y = kept.y.numpy()
    kept_right = served.scores(kept.x).argmax(1).numpy() == kept_y
    present, names = np.unique(y), served.facts["classes"]
    groups = {"all known classes": (np.ones(len(y), bool), np.isin(kept_y, present))}
    if len(present) > 1:
        groups |= {f"class {names[c]!r}": (y == c, kept_y == c) for c in present.tolist()}
    told, problem, others = "", "", []
    for name, (mine, theirs) in groups.items():
        share, kept_share = right[mine].mean(), kept_right[theirs].mean()
        words = (
            f"{name}: the served learner agrees with {share:.1%} of "
            f"{plural(int(mine.sum()), 'label')}, and with {kept_share:.1%} of those kept"
        )
        told = told or words
        counts = [[int(one.sum()), int((~one).sum())] for one in (right[mine], kept_right[theirs])]
        chance = float(fisher_exact(counts, alternative="less").pvalue)
        if kept_share - share > gate.agreement and chance <= gate.level / len(groups):
            others += [name] if problem else []
            problem = problem or words
    if others:
        problem += f"; likewise {', '.join(others[:SHOWN])}"
    return Check("labels", not problem, problem or told)


def check_inputs(gate: Gate, served: LearnerSnapshot, kept: CalibrationRows, new: NewTask) -> Check:
    """No column of the inputs has another distribution than in kept rows of the same classes.

    As many rows of each class are compared on both sides, so that new shares of classes are no
    drift.
    """
    if "tokenizer" in new.about:
        return Check("inputs", True, "texts: numbers of tokens are not compared")
    y, kept_y = _columns(served, new), kept.y.numpy()
    mine, theirs = [], []
    for c in np.unique(y[y >= 0]).tolist():
        one, other = (y == c).nonzero()[0], (kept_y == c).nonzero()[0]
        count = min(len(one), len(other))
        mine.append(_spread(one, count))
        theirs.append(_spread(other, count))
    if not mine:
        return Check("inputs", True, "no rows of known classes to compare with")
    a, b = (
        x[np.concatenate(rows)].flatten(1).double().numpy()
        for x, rows in ((new.x, mine), (kept.x, theirs))
    )
    columns = _spread(np.arange(a.shape[1]), MOST_COLUMNS)
    gaps = column_distances(a[:, columns], b[:, columns])
    worst = int(gaps.argmax())
    chance = distance_chance(float(gaps[worst]), len(a))
    name = (new.about["columns"] or {}) and repr(new.about["columns"][columns[worst]])
    text = (
        f"column {name or columns[worst]} differs most: distance {gaps[worst]:.2f} of "
        f"{gate.drift:g} allowed, p = {min(1.0, chance * len(columns)):.2g}"
    )
    passed = gaps[worst] <= gate.drift or chance > gate.level / len(columns)
    return Check("inputs", bool(passed), text)


def column_distances(a: Array, b: Array) -> Array:
    """Compute the Kolmogorov-Smirnov distance of every column of [n, F] and [m, F].

    Examples
    --------
    >>> column_distances(np.array([[0.0, 1], [1, 1]]), np.array([[0.0, 5], [1, 6]])).tolist()
    [0.0, 1.0]
    """
    both = np.concatenate([a, b])
    order = both.argsort(axis=0, kind="stable")
    ordered = np.take_along_axis(both, order, 0)
    steps = np.where(order < len(a), 1 / len(a), -1 / len(b)).cumsum(0)
    steps[:-1][ordered[1:] == ordered[:-1]] = 0.0  # equal values are one step
    found: Array = np.abs(steps).max(0)
    return found


def distance_chance(distance: float, count: int) -> float:
    """Return the chance of such a Kolmogorov-Smirnov distance of two samples of equal size.

    Exact for continuous values (Gnedenko and Korolyuk, 1951), an upper bound for others. scipy has
    it as well, but warns about some sizes and takes an approximation there.

    Examples
    --------
    >>> distance_chance(0.5, 10), distance_chance(0.0, 10)
    (0.1678, 1.0)
    """
    step = round(distance * count)
    if not step:
        return 1.0
    j = np.arange(1, count // step + 1)
    logs = 2 * gammaln(count + 1) - gammaln(count - j * step + 1) - gammaln(count + j * step + 1)
    return float(min(1.0, max(0.0, 2 * ((-1.0) ** (j + 1) * np.exp(logs)).sum())))


# -- rules about the candidate ---------------------------------------------------------------------
class Compared(NamedTuple):
    """Rows that both learners were asked about, [n] each."""

    y: Array  # columns
    before: Array  # whether the served learner is right
    after: Array  # whether the candidate is


def _compare(served: LearnerSnapshot, candidate: LearnerSnapshot, x: Any, y: Any) -> Compared:
    truth = y.numpy()
    if not len(truth):
        return Compared(truth, truth > 0, truth > 0)
    before, after = (one.scores(x).argmax(1).numpy() == truth for one in (served, candidate))
    return Compared(truth, before, after)


def check_kept_rows(gate: Gate, old: Compared) -> Check:
    """The accuracy on kept rows of known classes does not fall by more than the margin."""
    bound = fall_bound(old.before, old.after, gate.level)
    text = (
        f"accuracy on {plural(len(old.y), 'kept row')}: {old.before.mean():.3f} before, "
        f"{old.after.mean():.3f} after; a fall of at most {bound:.3f}, allowed {gate.margin:g}"
    )
    if bound > gate.margin and fall_bound(old.before, old.before, gate.level) > gate.margin:
        text += "; kept rows are too few for this margin"
    return Check("kept rows", bound <= gate.margin, text)


def check_new_rows(gate: Gate, new: Compared) -> Check:
    """The candidate is not worse on held-out new rows than the served learner (sign test)."""
    lost, won = int((new.before & ~new.after).sum()), int((new.after & ~new.before).sum())
    chance = _sign_test(lost, won)
    text = f"on {plural(len(new.y), 'held-out new row')}: {won} won, {lost} lost, p = {chance:.2g}"
    return Check("new rows", chance > gate.level, text)


def check_new_classes(gate: Gate, new: Compared, known: Array) -> Check:
    """New classes are learnt: better than before, and better than by one label for all rows."""
    rows = ~np.isin(new.y, known)
    count = int(rows.sum())
    if not count:
        return Check("new classes", True, "no new classes")
    right = int(new.after[rows].sum())
    lost, won = (
        int((new.before & ~new.after)[rows].sum()),
        int((new.after & ~new.before)[rows].sum()),
    )
    better = _sign_test(won, lost) <= gate.level
    commonest = float(np.unique(new.y[rows], return_counts=True)[1].max() / count)
    guessed = commonest < 1.0 and (
        binomtest(right, count, commonest, alternative="greater").pvalue > gate.level
    )
    text = f"{right} of {plural(count, 'held-out row')} of new classes are recognised"
    if guessed:
        text += f", not more than one label for all would get ({commonest:.0%})"
    return Check("new classes", better and not guessed, text)


def _sign_test(more: int, less: int) -> float:
    """P-value of the exact sign test (McNemar): are there more of the first kind?"""
    if more + less == 0:
        return 1.0
    return float(binomtest(more, more + less, 0.5, alternative="greater").pvalue)


def _measure(gate: Gate, old: Compared, new: Compared, names: Sequence[str]) -> dict[str, Any]:
    """Return the accuracies before and after: of kept rows, new rows, and by class."""

    def pair(one: Compared, rows: Array) -> dict[str, Any]:
        return {
            "rows": int(rows.sum()), "before": float(one.before[rows].mean()),
            "after": float(one.after[rows].mean()),
        }  # fmt: skip

    found: dict[str, Any] = {"classes": {}}
    for name, one in (("kept", old), ("new", new)):
        if len(one.y):
            found[name] = pair(one, np.ones(len(one.y), bool))
    found["kept"]["fall_at_most"] = fall_bound(old.before, old.after, gate.level)
    both = Compared(*(np.concatenate(pieces) for pieces in zip(old, new, strict=True)))
    for c in np.unique(both.y).tolist():
        found["classes"][names[c]] = pair(both, both.y == c)
    return found


def _columns(served: LearnerSnapshot, new: NewTask) -> Array:
    """Return the column [n] of each new row's label, -1 for new classes."""
    place: Mapping[str, int] = {
        name: c for c, name in enumerate(served.facts["classes"]) if c not in served.closed
    }
    columns = np.array([place.get(name, -1) for name in new.classes])
    found: Array = columns[new.y[:, 0].numpy()]
    return found


def _spread(values: Array, count: int) -> Array:
    """Choose some values, evenly spaced."""
    if len(values) <= count:
        return values
    found: Array = values[np.linspace(0, len(values) - 1, count).round().astype(int)]
    return found


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
