"""Statistics of the features (inputs of the last layer) of test items, and some whole vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engram.errors import check_int
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.novelty_records import PLACES, SAMPLE, STATISTICS


@dataclass(frozen=True)
class Features(Probe):
    """Store the norm, mean and standard deviation of each test item's features, [n] each.

    Reports plot them for inside, forgotten and outside items, and a map (t-SNE) of `sample`. It
    shares its forward pass over the test items with detectors.

    Parameters
    ----------
    items
        How many test items, evenly spread, are stored whole ([items, F] in half precision, with
        their `places`); 0 for none.

    Examples
    --------
    >>> Features(items=-1)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: items: expected a whole number of at least 0, got -1
    """

    needs: ClassVar[tuple[str, ...]] = ("networks", "unseen")

    items: int = 500

    def __post_init__(self) -> None:
        check_int("items", self.items)

    def after_stage(self, view: StageView) -> Mapping[str, Any]:
        features = view.outputs.features.float()  # [R, n, F]
        for name, value in zip(STATISTICS, _compute_statistics(features), strict=True):
            view.store(name, value)
        n = features.shape[1]
        if self.items:
            places = torch.linspace(0, n - 1, min(self.items, n)).round().long().to(view.device)
            view.store(PLACES, places.expand(len(view), -1).to(torch.int32))
            view.store(SAMPLE, features[:, places].half())
        return {}


def _compute_statistics(features: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return features.norm(dim=-1), features.mean(-1), features.std(-1, correction=0)
