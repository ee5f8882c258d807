"""Shares of a number of rows, counted as the decimal numbers that were written down."""

from __future__ import annotations

from fractions import Fraction


def exact(share: float) -> Fraction:
    """The decimal number that is meant, not its neighbour in binary.

    Examples
    --------
    >>> exact(0.29)
    Fraction(29, 100)
    """
    return Fraction(str(float(share)))


def part_of(share: float | Fraction, rows: int) -> int:
    """How many of `rows` a share is, rounded down.

    Examples
    --------
    >>> part_of(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return int((share if isinstance(share, Fraction) else exact(share)) * rows)
