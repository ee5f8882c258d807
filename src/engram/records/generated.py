"""What generators drew, as it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from engram.records.result import Result

PROBE = "generated"


class GeneratedPictures(NamedTuple):
    """What a run's generator drew after a stage."""

    recipe: str
    stage: int
    pictures: np.ndarray[Any, Any] | None  # uint8 [count, C, H, W], where samples are images
    classes: np.ndarray[Any, Any] | None  # [count] what the run's network calls them
    drawn: np.ndarray[Any, Any] | None  # [many] and what it calls many more samples


def generated(result: Result) -> list[GeneratedPictures]:
    """The pictures of the first run of every recipe, stage after stage."""
    first: dict[str, tuple[int, str]] = {}
    stages = sorted(key for key, probe in result.stored if probe == PROBE)
    for recipe, seed, order, _ in stages:
        first.setdefault(recipe, (seed, order))
    found = []
    for key in stages:
        if first[key.recipe] != (key.seed, key.order):
            continue
        arrays = result.stored.get(key, PROBE)
        parts = [arrays.get(name) for name in ("pictures", "classes", "drawn")]
        if any(part is not None for part in parts):
            found.append(GeneratedPictures(key.recipe, key.stage, *parts))
    return found
