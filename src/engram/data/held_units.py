"""Which subjects or clips are for testing: whole ones, with the classes in equal shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engram import keys
from engram.errors import bad, number, whole

_DRAWS = 200  # of which the one closest to equal shares is taken
_FEW = 2000  # units above which any draw is close


def held_units(
    units: Sequence[str],
    labels: Sequence[str],
    share: float,
    *,
    seed: int,
    everyone: Sequence[str] = (),
) -> set[str]:
    """A share of the units (subjects, clips) such that every class has about that share in them.

    Parameters
    ----------
    units, labels
        [n] the unit and the label of each row.
    everyone
        Units that count for the share although they may have no rows.

    Examples
    --------
    >>> units = [f"S{i // 4}" for i in range(40)]
    >>> held = held_units(units, ["a", "b"] * 20, 0.3, seed=0)
    >>> len(held), held == held_units(units, ["a", "b"] * 20, 0.3, seed=0)
    (3, True)
    """
    number("test_share", share, 0.0, 1.0)
    names = sorted({*units, *everyone})
    count = round(share * len(names))
    if not 0 < count < len(names):
        raise bad("test_share", f"one that leaves some of {len(names)} on both sides", share)
    place = {unit: i for i, unit in enumerate(names)}
    kinds = sorted(set(labels))
    table = np.zeros((len(names), len(kinds)))
    np.add.at(table, ([place[u] for u in units], [kinds.index(one) for one in labels]), 1)
    key = keys.fold(whole("seed", seed), "held units")
    best: tuple[float, list[int]] | None = None
    for draw in range(_DRAWS if len(names) <= _FEW else 1):
        drawn = keys.order(keys.fold(key, draw), len(names), len(names))[:count].tolist()
        held = table[drawn].sum(0) / np.maximum(table.sum(0), 1)
        distance = float(np.abs(held - share).sum())
        if best is None or distance < best[0]:
            best = distance, drawn
    return {names[i] for i in best[1]} if best else set()
