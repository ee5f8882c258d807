"""Expressions as mixtures of facial action units, each of random strength."""

from __future__ import annotations

import torch
from torch import Tensor

from engram import keys
from engram.data.expressions import EXPRESSIONS

# Number in the Facial Action Coding System: what moves.
UNITS = {
    1: "inner brow raiser", 2: "outer brow raiser", 4: "brow lowerer", 5: "upper lid raiser",
    6: "cheek raiser", 7: "lid tightener", 9: "nose wrinkler", 10: "upper lip raiser",
    12: "lip corner puller", 14: "dimpler, one side", 15: "lip corner depressor",
    16: "lower lip depressor", 17: "chin raiser", 20: "lip stretcher", 23: "lip tightener",
    25: "lips part", 26: "jaw drop", 43: "eyes closed",
}  # fmt: skip
_NUMBERS = tuple(UNITS)

# Of each expression: units with their usual strength, and how often they take part.
MIXTURES: dict[str, dict[int, tuple[float, float]]] = {
    "Neutral": {},
    "Anger": {4: (1.0, 1.0), 5: (0.5, 0.6), 7: (0.8, 0.9), 23: (1.0, 0.8), 10: (0.4, 0.3),
              25: (0.6, 0.3), 17: (0.4, 0.4)},
    "Contempt": {14: (1.0, 1.0), 12: (0.15, 0.3), 7: (0.3, 0.3), 2: (0.3, 0.2)},
    "Disgust": {9: (1.0, 0.95), 10: (0.9, 0.9), 4: (0.4, 0.5), 7: (0.5, 0.6), 15: (0.4, 0.4),
                16: (0.5, 0.4), 17: (0.4, 0.4), 25: (0.5, 0.4)},
    "Fearful": {1: (1.0, 1.0), 2: (0.5, 0.7), 4: (0.6, 0.8), 5: (0.9, 0.9), 20: (1.0, 0.9),
                25: (0.8, 0.8), 26: (0.3, 0.5)},
    "Happiness": {12: (1.0, 1.0), 6: (0.8, 0.8), 25: (0.8, 0.6), 26: (0.2, 0.3)},
    "Sadness": {1: (0.9, 0.95), 4: (0.6, 0.7), 15: (1.0, 0.95), 17: (0.6, 0.6), 43: (0.3, 0.4)},
    "Surprised": {1: (1.0, 0.95), 2: (1.0, 0.95), 5: (0.8, 0.9), 26: (1.0, 0.95), 25: (0.5, 0.8)},
}  # fmt: skip


def mix(key: Tensor, label: Tensor, strength: float) -> dict[int, Tensor]:
    """[N] strength of every unit at the apex, for rows with keys [N] and expressions [N].

    A face shows its expression more or less (by a factor that its units share, and one for each),
    some units take part at times only, and every face has a weak unit of no meaning.
    """
    shape = (len(EXPRESSIONS), len(_NUMBERS))
    usual, often = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for row, name in enumerate(EXPRESSIONS):
        for unit, (size, share) in MIXTURES[name].items():
            usual[row, _NUMBERS.index(unit)] = size
            often[row, _NUMBERS.index(unit)] = share
    count = len(_NUMBERS)
    shared = 0.65 + 0.5 * keys.uniform(keys.fold(key, "shared"), 1)  # [N, 1]
    own = 0.7 + 0.5 * keys.uniform(keys.fold(key, "own"), count)  # [N, units]
    taking_part = keys.uniform(keys.fold(key, "part"), count) < often[label]
    drawn = strength * usual[label] * shared * own * taking_part
    stray = keys.below(keys.fold(key, "stray"), count, 1) == torch.arange(count)
    drawn = drawn + stray * 0.3 * keys.uniform(keys.fold(key, "weak"), 1)
    return {unit: drawn[:, column] for column, unit in enumerate(_NUMBERS)}
