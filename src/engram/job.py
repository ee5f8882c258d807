"""Whether this process is one of several that ``torchrun`` started, and which."""

from __future__ import annotations

import os


def launched() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    return several and "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes and speaks.

    Examples
    --------
    >>> is_first()
    True
    """
    return not launched() or int(os.environ.get("RANK", 0)) == 0
