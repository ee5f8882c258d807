"""Names of files in a run directory: parts, runs, orders."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import time

_counter = itertools.count()


def new_part() -> str:
    """A part id: unique over processes and machines, later ids sort after earlier ones."""
    return f"{time.time_ns():019d}-{os.getpid():07d}-{next(_counter):06d}-{secrets.token_hex(3)}"


def run_id(recipe: str, seed: int, order: str = "") -> str:
    """A file name for one run; long orders are shortened to a hash.

    Examples
    --------
    >>> run_id("0a1b2c3d4e5f", 3, "2-0-1")
    '0a1b2c3d4e5f-3-2-0-1'
    """
    return f"{recipe}-{int(seed)}-{order_name(order)}"


def order_name(order: str) -> str:
    """An order as part of a file name."""
    if len(order) <= 80 and re.fullmatch(r"[\w.,+-]*", order):
        return order
    return "h" + hashlib.sha256(order.encode()).hexdigest()[:16]
