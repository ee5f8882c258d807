"""Durations as people write them."""

from __future__ import annotations

import re

from engram.errors import bad

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"(\d+(?:\.\d+)?)\s*([smhd])"


def seconds(duration: str | float, argument: str = "budget") -> float:
    """Seconds in a duration such as 90s, 10m, 1h30m; a bare number counts seconds.

    Examples
    --------
    >>> seconds("10m"), seconds("1h30m"), seconds("45")
    (600.0, 5400.0, 45.0)
    >>> seconds("ten minutes")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: budget: expected a duration such as 90s, 10m or 1h30m, ...
    """
    expected = "a duration such as 90s, 10m or 1h30m, or a number of seconds"
    if isinstance(duration, bool) or not isinstance(duration, (str, int, float)):
        raise bad(argument, expected, duration)
    line = str(duration).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", line):
        return float(line)
    if not re.fullmatch(rf"({_PART}\s*)+", line):
        raise bad(argument, expected, duration)
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, line))


def words(amount: float) -> str:
    """A duration in words.

    Examples
    --------
    >>> words(7.26), words(131), words(7300), words(200_000)
    ('7.3 s', '2 min 11 s', '2 h 1 min', '55 h 33 min')
    """
    if amount < 60:
        return f"{amount:.1f} s"
    if amount < 3600:
        return f"{int(amount) // 60} min {int(amount) % 60} s"
    return f"{int(amount) // 3600} h {int(amount) % 3600 // 60} min"
