"""Skeleton sequences as data: repaired, normalised, resampled, split."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.core import Data
from engram.data.skeleton_frames import normalise, pad, resample
from engram.data.skeleton_repair import mend
from engram.data.skeleton_sequences import Sequences
from engram.data.skeleton_split import split_as_stored, split_within_classes
from engram.errors import bad, choose

SPLITS = ("cil", "tuning", "official")
HELD = ("drawn", "stored")


def build(
    sequences: Sequences,
    *,
    name: str,
    frames: int | None,
    padded: bool = False,
    longest: int | None = None,
    normalised: bool = True,
    repair: str = "interpolate",
    split: str = "cil",
    held: str = "drawn",
    seed: int = 0,
    notes: tuple[str, ...] = (),
) -> Data:
    """Data [N, C, T, V] of float32 from raw sequences.

    Parameters
    ----------
    frames
        Frames to resample to; None if all sequences have one length already.
    padded
        Bring sequences to `frames` by zeros behind the end instead.
    longest
        Sequences of more frames are damaged: they are cut.
    normalised
        Apply `normalise` to each sequence.
    repair
        What happens to damaged sequences, see `mend`.
    split
        ``cil``: 8:1:1 within each class; ``tuning``: the same, with the validation rows to test on
        and the test rows left out; ``official``: the source's.
    held
        Which rows of a class are held out by the first two: ``drawn`` ones (`split_within_classes`)
        or the last ``stored``, with the source's test part behind the rest (`split_as_stored`).
    """
    choose("split", split, SPLITS)
    choose("held", held, HELD)
    if held == "stored" and split == "official":
        raise bad("held", "'drawn', the official split holds out no share of a class", held)
    sequences, told = mend(sequences, repair, longest)
    fit = pad if padded else resample
    x = np.stack([
        fit(normalise(one) if normalised else one, frames or len(one))
        .transpose(2, 0, 1).astype(np.float32)
        for one in sequences.joints
    ])  # [N, C, T, V]  # fmt: skip
    label = torch.from_numpy(np.asarray(sequences.label, np.int64))
    facts = {key: value.astype(np.int64) for key, value in sequences.attributes.items()}
    rows: dict[str, Any]
    if split in ("cil", "tuning"):
        rows = (
            split_as_stored(label, _official_test(sequences), seed)
            if held == "stored"
            else split_within_classes(label, seed)
        )
        if split == "tuning":
            rows["test"] = rows.pop("valid")
    elif sequences.official_test is None:
        raise bad("split", "'cil', the source has no test part", split)
    else:
        test = torch.from_numpy(sequences.official_test)
        rows = {"train": (~test).nonzero()[:, 0], "test": test.nonzero()[:, 0]}
    return Data(
        x=torch.from_numpy(x), y=label[:, None], classes=sequences.classes, name=name,
        attributes={key: torch.from_numpy(value) for key, value in facts.items()},
        notes=notes + told, **rows,
    )  # fmt: skip


def _official_test(sequences: Sequences) -> Tensor:
    if sequences.official_test is None:
        source = "the source does not tell its test part (NW-UCLA: no view)"
        raise bad("held", f"'drawn', {source}", "stored")
    return torch.from_numpy(sequences.official_test)
