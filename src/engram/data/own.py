"""Data that a user's own function makes, named ``module:function``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pandas as pd

from engram.data.core import Data
from engram.errors import bad, unknown
from engram.own_code import own_object


def is_own(name: str) -> bool:
    """Whether a name is one of a user's code; a path that exists is not.

    Examples
    --------
    >>> is_own("mine.py:make_data"), is_own("digits")
    (True, False)
    """
    return ":" in name and not Path(name).exists()


def load_own(name: str, **options: Any) -> Data:
    """What ``module:name`` is or returns, as Data.

    It may be Data, a torch dataset, a table (pandas.DataFrame), a pair ``(x, y)``, or a function or
    class that gives one of these. Options that it has go to it, the others to `Data.from_arrays`,
    `Data.from_torch` or `Data.from_frame` (``label``, ``missing``, ...).
    """
    found = own_object(name, what="data")
    made = not isinstance(found, type) and not inspect.isroutine(found)
    if not made:
        known = inspect.signature(found).parameters
        own = {key: options.pop(key) for key in list(options) if key in known}
        try:
            inspect.signature(found).bind(**own)
        except TypeError as error:
            expected = "a function or class that needs no arguments, or takes them as options"
            raise bad(name, expected, str(error)) from None
        found = found(**own)
    title = name.partition(":")[2]
    if isinstance(found, Data):
        for option in options:
            raise unknown(f"option of {name}", option, ["(none)"])
        return found
    if isinstance(found, pd.DataFrame):
        return Data.from_frame(found, **{"name": title, **options})
    if isinstance(found, tuple) and len(found) == 2:
        return Data.from_arrays(*found, **{"name": title, **options})
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        return Data.from_torch(found, **{"name": title, **options})
    expected = "Data, a torch dataset with len() and [i], a table, or a pair (x, y)"
    raise bad(name, expected, type(found).__name__)
