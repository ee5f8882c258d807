"""Some runs of a view apart from the others, and what was found in them put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.learner.tree import tree_map
from engram.probes.view import StageView


class Part(NamedTuple):
    """Runs of a view that were seen apart, and the rows {metric: [R]} that came of it."""

    places: list[int]
    view: StageView
    rows: Mapping[str, Any]


def apart(view: StageView, places: Sequence[int], state: Any) -> StageView:
    """A view of some runs; `state` [R, ...] is that of all."""
    return view.only(places, tree_map(lambda leaf: leaf[list(places)], state))


def joined(view: StageView, parts: Sequence[Part]) -> dict[str, Any]:
    """Into the view what its parts kept, stored and read; the rows of all runs.

    Arrays of unequal length are padded with NaN behind.
    """
    kept: dict[int, Any] = {}
    stored: dict[str, dict[int, np.ndarray]] = {}
    rows = {name: np.full(len(view), np.nan) for part in parts for name in part.rows}
    for part in parts:
        for i, place in enumerate(part.places):
            kept[place] = {} if part.view.kept is None else part.view.kept[i]
            for name, array in part.view.stored.items():
                stored.setdefault(name, {})[place] = array[i]
            for kind, count in part.view.reads.items():
                view.reads[kind][place] += count[i]
        for name, values in part.rows.items():
            rows[name][part.places] = values
    view.kept = [kept[place] for place in range(len(view))]
    for name, arrays in stored.items():
        view.store(name, _padded([arrays[place] for place in range(len(view))]))
    return rows


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    longest = max(one.shape[-1] for one in arrays)
    if all(one.shape[-1] == longest for one in arrays):
        return np.stack(arrays)
    return np.stack([
        np.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, longest - one.shape[-1])],
               constant_values=np.nan)
        for one in arrays
    ])  # fmt: skip
