"""Which values are tried: evenly spread at first, then where Optuna expects better ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from engram import keys
from engram.errors import bad
from engram.tuning.ranges import Range

SAMPLERS = ("tpe", "random")
LANES = 32  # trials that train side by side; more learn nothing from each other
Values = dict[str, Any]


def batch_size(trials: int, batch: int = 0) -> int:
    """Trials that are asked for at once: all of them if they are few, else equal parts.

    Examples
    --------
    >>> batch_size(30), batch_size(33), batch_size(100), batch_size(30, 10)
    (30, 17, 25, 10)
    """
    if batch:
        return batch
    rounds = -(-trials // LANES)
    return -(-trials // max(1, rounds))


def spread(ranges: Sequence[Range], count: int, seed: int) -> list[Values]:
    """Values over all of the ranges, every one of them cut into as many steps as there are trials.

    One range is walked from end to end; several are combined by chance, each value of each once (a
    Latin square). Repeated combinations are left out.

    Examples
    --------
    >>> spread([Range.of("lr", "1e-3..1:log")], 4, seed=0)
    [{'lr': 0.001}, {'lr': 0.01}, {'lr': 0.1}, {'lr': 1.0}]
    """
    columns = []
    for number, one in enumerate(ranges):
        order = range(count) if not number else \
            keys.order(keys.fold(seed, "search", number), count, count).tolist()  # fmt: skip
        if one.choices or count == 1:
            columns.append([one.at((place + 0.5) / count) for place in order])
        else:
            columns.append([one.at(place / (count - 1)) for place in order])
    named = [one.key for one in ranges]
    return _new([dict(zip(named, row, strict=True)) for row in zip(*columns, strict=True)], [])


def suggest(
    ranges: Sequence[Range], told: Sequence[tuple[Values, float | None]], count: int, *,
    seed: int, sampler: str,
) -> list[Values]:  # fmt: skip
    """Further values, by Optuna, from what came of earlier ones: the larger the better.

    None stands for trials that diverged. The same question has the same answer, so that a search
    that was interrupted goes on as if it had not been. Fewer than `count` where all were tried.
    """
    import optuna

    with _quiet():
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
            numbers = {one.key: _number(one, values[one.key]) for one in ranges}
            study.add_trial(
                optuna.trial.create_trial(
                    params=numbers, distributions=kinds, value=worst if value is None else value
                )
            )
        found: list[Values] = []
        tried = [values for values, _ in told]
        for _ in range(10 * count):  # some may have been tried before
            asked = study.ask(kinds)
            values = {one.key: _value(one, asked.params[one.key]) for one in ranges}
            found += _new([values], [*tried, *found])
            if len(found) == count:
                break
    return found


def has_optuna() -> bool:
    """Whether Optuna is installed."""
    return find_spec("optuna") is not None


def need_optuna() -> None:
    """Complain before anything is trained."""
    if not has_optuna():
        expected = f"at most {LANES} at once, or Optuna: pip install 'engram[search]'"
        raise bad("trials", expected, "more, and Optuna is not installed")


def _number(one: Range, value: Any) -> Any:
    return one.choices.index(value) if one.choices else value


def _value(one: Range, number: Any) -> Any:
    return one.choices[number] if one.choices else one.rounded(number)


def _new(found: Sequence[Values], tried: Sequence[Mapping[str, Any]]) -> list[Values]:
    """Those that were not tried, each once."""
    kept: list[Values] = []
    for values in found:
        if values not in tried and values not in kept:
            kept.append(values)
    return kept


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Optuna without its reports of every trial."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
