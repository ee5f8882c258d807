"""Names of all options that data can be loaded with."""

from __future__ import annotations

import inspect
from functools import cache

from engram.data.catalogue import load
from engram.data.formats import FORMS
from engram.data.known import KNOWN


@cache
def data_options(name: str) -> frozenset[str]:
    """What a set that is made on the spot, or else some form of files, may be told when loaded.

    Examples
    --------
    >>> {"standardize", "noise"} <= data_options("faces"), "noise" in data_options("blobs")
    (True, False)
    >>> {"missing", "repair", "header"} <= data_options("mine.csv")
    True
    """
    known = KNOWN.get(name)
    readers = FORMS if known is None or known.make is None else (known.make,)
    return frozenset(
        one.name for reader in (load, *readers)
        for one in inspect.signature(reader).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in ("name", "root")
    )  # fmt: skip
