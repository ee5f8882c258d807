"""Names of all options that data can be loaded with."""

from __future__ import annotations

import inspect
from functools import cache

from engram.data.catalogue import load
from engram.data.formats import FORMS
from engram.data.known import KNOWN


@cache
def data_options() -> frozenset[str]:
    """What some data set or form of files may be told when it is loaded.

    Examples
    --------
    >>> {"standardize", "resize", "missing", "repair", "noise"} <= data_options()
    True
    """
    readers = [load, *FORMS, *(one.make for one in KNOWN.values() if one.make)]
    return frozenset(
        one.name for reader in readers for one in inspect.signature(reader).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in ("name", "root")
    )  # fmt: skip
