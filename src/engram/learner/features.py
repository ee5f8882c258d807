"""Features of a frozen backbone in place of inputs: one pass over the data, then a table."""

from __future__ import annotations

from dataclasses import replace

import torch

from engram.data.core import Data
from engram.errors import bad
from engram.learner.feed import Feed
from engram.models.frozen import Encoder

ENTRIES_AT_ONCE = 1 << 22  # numbers of inputs that are encoded at once


class FeatureFeed(Feed):
    """Rows in, features out. Training, evaluation and memories all read the same table.

    `given` is the data before that; `data` has its rows, labels and split, and features as inputs.
    """

    def __init__(self, raw: Feed, encoder: Encoder) -> None:
        if raw.view is not None:
            expected = "false where inputs differ from task to task (rotated, permuted, ...)"
            raise bad("model.freeze", expected, True)
        if raw.augment:
            expected = "no augmentation of images, whose features are worked out once"
            raise bad("augment", expected, list(raw.augment))
        self.given, self.encoder = raw.data, encoder
        super().__init__(featured(raw, encoder), device=raw.device, dtype=raw.dtype)

    def like(self, raw: Feed) -> FeatureFeed:
        """The features of other data."""
        return FeatureFeed(raw, self.encoder)


def featured(raw: Feed, encoder: Encoder) -> Data:
    """The data of a feed with features as inputs."""
    rows = torch.arange(len(raw.data))
    size = max(1, ENTRIES_AT_ONCE // max(1, raw.data.sample_bytes))
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    stages = torch.zeros_like(rows)
    found = [encoder(x).float().cpu() for _, x in raw.chunks(rows, stages, parts)]
    return replace(
        raw.data, x=torch.cat(found), mean=(), std=(), crop=None, copies=None, standardize=False,
        fill=False, columns=(),
    )  # fmt: skip
