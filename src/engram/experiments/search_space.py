"""`Range`, the values a search chooses from, and proposals: spread over ranges, then by Optuna."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from engram import keys
from engram.errors import bad
from engram.io import parse_value, parse_yaml

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::\w+)*)")
RANGE_FORMS = "LOW..HIGH, LOW..HIGH:log, LOW..HIGH:int, or comma-separated values"
DIGITS = 4  # significant digits of values


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`, or some `choices`.

    Parameters
    ----------
    key
        The value to vary, as ``--set`` names it: lr, EWC.strength, memory.total.
    log
        Whether the scale is logarithmic.
    whole
        Whether only whole numbers are allowed.

    Examples
    --------
    >>> Range.parse("lr", "1e-4..1e-1:log").at(0.5), Range.parse("optimizer", "sgd,adam").at(0.9)
    (0.003162, 'adam')
    >>> str(Range.parse("memory.total", "50..500:int"))
    'memory.total=50..500:int'
    """

    key: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, key: str, given: Any, argument: str = "ranges") -> Range:
        """Parse a range from text in one of `RANGE_FORMS`, or from a list of choices."""
        where = f"{argument} {key}"
        if isinstance(given, Range):
            return replace(given, key=key)
        if isinstance(given, (list, tuple)):
            return cls(key=key, choices=_check_choices(where, given))
        text = str(given).strip()
        if found := _RANGE.fullmatch(text):
            first, last, marks = found.groups()
            return cls._between(key, where, (first, last), marks)
        if not isinstance(given, str) or ".." in text or "," not in text:
            raise bad(where, RANGE_FORMS, given)
        return cls(key=key, choices=_check_choices(where, parse_yaml(where, f"[{text}]")))

    @classmethod
    def _between(cls, key: str, where: str, ends: tuple[str, str], marks: str) -> Range:
        text = "..".join(ends) + marks
        words = marks.split(":")[1:]
        if unknown := [word for word in words if word not in ("log", "int")]:
            raise bad(where, "log or int after the colon", unknown[0])
        low, high = (float(parse_value(where, end)) for end in ends)
        log, whole = "log" in words, "int" in words
        if not low < high or not math.isfinite(high):
            raise bad(where, "a low end below the high end", text)
        if log and low <= 0:
            raise bad(where, "a low end above 0 on a logarithmic scale", text)
        if whole and (low % 1 or high % 1):
            raise bad(where, "whole ends of a range of whole numbers", text)
        return cls(key=key, low=low, high=high, log=log, whole=whole)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: both ends, or every choice."""
        return self.choices or (self.at(0.0), self.at(1.0))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rsplit(".", 1)[-1]

    def at(self, share: float) -> Any:
        """Return the value at a fraction of the range."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        value = low + share * (high - low)
        return self.round_value(math.exp(value) if self.log else value)

    def round_value(self, value: Any) -> Any:
        """Round a value to few digits within the range."""
        if self.choices:
            return value
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def distribution(self) -> Any:
        """Convert to an Optuna distribution; choices become indices, as they may be lists."""
        from optuna import distributions as of

        if self.choices:
            return of.CategoricalDistribution(tuple(range(len(self.choices))))
        if self.whole:
            return of.IntDistribution(int(self.low), int(self.high), log=self.log)
        return of.FloatDistribution(self.low, self.high, log=self.log)

    def plain(self) -> str | list[Any]:
        """Return the range as text or list, the inverse of `parse`."""
        if self.choices:
            return list(self.choices)
        marks = [name for name, on in (("log", self.log), ("int", self.whole)) if on]
        return ":".join([f"{self.low:.12g}..{self.high:.12g}", *marks])

    def __str__(self) -> str:
        shown = self.plain()
        return f"{self.key}={','.join(map(str, shown)) if isinstance(shown, list) else shown}"


def _check_choices(where: str, values: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        found += [] if value in found else [value]
    if len(found) < 2:
        raise bad(where, f"{RANGE_FORMS}; at least two of them", list(values))
    return tuple(found)


def read_ranges(given: Any, argument: str = "ranges") -> tuple[Range, ...]:
    """Read ranges from a mapping of keys, or from texts ``key=RANGE``.

    Examples
    --------
    >>> [str(one) for one in read_ranges({"lr": "0.01..1:log"})]
    ['lr=0.01..1:log']
    >>> [str(one) for one in read_ranges(["strength=1..1e5:log"], "--set-range")]
    ['strength=1..100000:log']
    """
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        pairs = [(str(key), value) for key, value in given.items()]
    elif isinstance(given, (list, tuple)) and all(isinstance(one, str) for one in given):
        parted = [one.partition("=") for one in given]
        for text, (key, equals, _) in zip(given, parted, strict=True):
            if not key or not equals:
                raise bad(argument, "key=RANGE, such as lr=1e-4..1e-1:log", text)
        pairs = [(key, value) for key, _, value in parted]
    else:
        raise bad(argument, "a mapping such as {'lr': '1e-4..1e-1:log'}", given)
    if not pairs:
        raise bad(argument, "at least one range, such as lr=1e-4..1e-1:log", "none")
    names = [key for key, _ in pairs]
    if twice := [key for key in names if names.count(key) > 1]:
        raise bad(argument, "every key once", twice[0])
    return tuple(Range.parse(key, value, argument) for key, value in pairs)


# Proposals: evenly spread values at first, then values suggested by Optuna.


SAMPLERS = ("tpe", "random")
MOST_PARALLEL_TRIALS = 32  # trials proposed at once, which cannot learn from each other
Values = dict[str, Any]


def batch_size(trials: int, batch: int = 0) -> int:
    """Return the number of trials proposed at once: all if they are few, else equal parts.

    Examples
    --------
    >>> batch_size(30), batch_size(33), batch_size(100), batch_size(30, 10)
    (30, 17, 25, 10)
    """
    if batch:
        return batch
    rounds = -(-trials // MOST_PARALLEL_TRIALS)
    return -(-trials // max(1, rounds))


def spread_values(ranges: Sequence[Range], count: int, seed: int) -> list[Values]:
    """Spread values over all ranges, each cut into as many steps as there are trials.

    One range is traversed from end to end; several are combined at random, each value once (a
    Latin square). Repeated combinations are left out.

    Examples
    --------
    >>> spread_values([Range.parse("lr", "1e-3..1:log")], 4, seed=0)
    [{'lr': 0.001}, {'lr': 0.01}, {'lr': 0.1}, {'lr': 1.0}]
    """
    columns = []
    for number, one in enumerate(ranges):
        order = range(count) if not number else \
            keys.permutation(keys.fold(seed, "search", number), count, count).tolist()  # fmt: skip
        if one.choices or count == 1:
            columns.append([one.at((place + 0.5) / count) for place in order])
        else:
            columns.append([one.at(place / (count - 1)) for place in order])
    named = [one.key for one in ranges]
    return _select_untried(
        [dict(zip(named, row, strict=True)) for row in zip(*columns, strict=True)], []
    )


def suggest(
    ranges: Sequence[Range], told: Sequence[tuple[Values, float | None]], count: int, *,
    seed: int, sampler: str,
) -> list[Values]:  # fmt: skip
    """Suggest further values by Optuna from the outcomes of earlier ones, higher being better.

    None stands for trials that diverged. Suggestions are deterministic, so that an interrupted
    search continues as if uninterrupted. Fewer than `count` if all values were tried.
    """
    import optuna

    with _silence_optuna():
        number = int(keys.fold(seed, "suggest", len(told))) % 2**32
        several = len(ranges) > 1
        chosen: Any = optuna.samplers.RandomSampler(seed=number)
        if sampler == "tpe":
            chosen = optuna.samplers.TPESampler(
                seed=number, n_startup_trials=1, multivariate=several, constant_liar=True
            )
        study = optuna.create_study(direction="maximize", sampler=chosen)
        kinds = {one.key: one.distribution() for one in ranges}
        known = [value for _, value in told if value is not None]
        worst = min(known, default=0.0)
        for values, value in told:
            numbers = {one.key: _value_to_number(one, values[one.key]) for one in ranges}
            study.add_trial(
                optuna.trial.create_trial(
                    params=numbers, distributions=kinds, value=worst if value is None else value
                )
            )
        found: list[Values] = []
        tried = [values for values, _ in told]
        for _ in range(10 * count):  # some may be repetitions
            asked = study.ask(kinds)
            values = {one.key: _number_to_value(one, asked.params[one.key]) for one in ranges}
            found += _select_untried([values], [*tried, *found])
            if len(found) == count:
                break
    return found


def has_optuna() -> bool:
    """Return whether Optuna is installed."""
    return find_spec("optuna") is not None


def require_optuna() -> None:
    """Raise if Optuna is needed and not installed, before anything is trained."""
    if not has_optuna():
        expected = (
            f"at most {MOST_PARALLEL_TRIALS} at once, or Optuna: pip install 'engram-cl[search]'"
        )
        raise bad("trials", expected, "more, and Optuna is not installed")


def _value_to_number(one: Range, value: Any) -> Any:
    return one.choices.index(value) if one.choices else value


def _number_to_value(one: Range, number: Any) -> Any:
    return one.choices[number] if one.choices else one.round_value(number)


def _select_untried(found: Sequence[Values], tried: Sequence[Mapping[str, Any]]) -> list[Values]:
    """Select the values that were not tried, each once."""
    kept: list[Values] = []
    for values in found:
        if values not in tried and values not in kept:
            kept.append(values)
    return kept


@contextlib.contextmanager
def _silence_optuna() -> Iterator[None]:
    """Return a context without Optuna's reports of every trial."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
