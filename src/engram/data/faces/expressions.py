"""The eight facial expressions, whatever a data set calls them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engram.data.conversion import Array
from engram.errors import bad

# In the order of CK+, which sets without contempt keep.
EXPRESSIONS = (
    "Neutral", "Anger", "Contempt", "Disgust", "Fearful", "Happiness", "Sadness", "Surprised",
)  # fmt: skip
# Sets of faces: all of them can be had as colour images of one size with these names.
FACE_SETS = ("ck_plus", "raf_db", "affectnet", "fer2013", "icv_mefed", "baum1")

_WORDS = {
    "Neutral": ("neutral", "neutrality", "ne"),
    "Anger": ("anger", "angry", "an"),
    "Contempt": ("contempt", "contemptuous", "co"),
    "Disgust": ("disgust", "disgusted", "di"),
    "Fearful": ("fearful", "fear", "afraid", "fe"),
    "Happiness": ("happiness", "happy", "joy", "ha"),
    "Sadness": ("sadness", "sad", "sa"),
    "Surprised": ("surprised", "surprise", "su"),
}
_BY_WORD = {word: name for name, words in _WORDS.items() for word in words}


def find_expression(word: str) -> str | None:
    """The expression that a word means, None for a word that means none of the eight.

    Examples
    --------
    >>> find_expression("Happy"), find_expression("FEAR "), find_expression("boredom")
    ('Happiness', 'Fearful', None)
    """
    return _BY_WORD.get(word.strip().lower())


def expression_ids(where: str, names: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """The expressions among class names, in their common order, and the new id of each old class.

    Examples
    --------
    >>> classes, ids = expression_ids("classes", ["sad", "angry", "neutral"])
    >>> classes, ids.tolist()
    (('Neutral', 'Anger', 'Sadness'), [2, 1, 0])
    """
    meant = [find_expression(name) for name in names]
    strange = [name for name, one in zip(names, meant, strict=True) if one is None]
    if strange:
        raise bad(where, f"names of expressions ({', '.join(EXPRESSIONS)})", strange)
    if len(set(meant)) < len(meant):
        raise bad(where, "one class for each expression", list(names))
    classes = tuple(one for one in EXPRESSIONS if one in meant)
    place = torch.tensor([classes.index(str(one)) for one in meant])
    return classes, place.numpy()
