"""What is refused, by the name of the argument; how it is said is asserted where it is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engram.errors import BadArgument


@contextmanager
def refuses(argument: str, near: str | None = None) -> Iterator[pytest.ExceptionInfo[BadArgument]]:
    """The block complains of this argument, and offers this name for an unknown one.

    For messages whose wording some other test asserts: those of `engram.errors.check_int` and its
    like, and messages that several tests meet.
    """
    with pytest.raises(BadArgument) as caught:
        yield caught
    assert caught.value.argument == argument
    assert near is None or caught.value.near == near
