"""The environment of a process: signals that ask it to end, and its place in a ``torchrun`` job."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# SIGHUP: the terminal or the connection was closed
END_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # fmt: skip


class Ended(KeyboardInterrupt):
    """The process was asked to end by a signal; unfinished work is saved where possible.

    Examples
    --------
    >>> Ended(signal.SIGTERM).name
    'SIGTERM'
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """The signal's name."""
        return signal.Signals(self.number).name


@contextmanager
def handle_end_signals(act: Callable[[int], None], *, keys: bool = False) -> Iterator[None]:
    """Call `act` with the number of a signal that asks the process to end, inside the context.

    With `keys` this includes Ctrl-C, unless another handler is installed. Ignored signals stay
    ignored (nohup). Only the main thread can handle signals; in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    if keys and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handled.append(signal.SIGINT)
    before = {number: signal.signal(number, lambda which, _: act(which)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_now(number: int) -> None:
    """Raise `Ended`."""
    raise Ended(number)


# -- processes started by ``torchrun`` -------------------------------------------------------------


def is_torchrun() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    return several and "TORCHELASTIC_RUN_ID" in os.environ


def is_main_process() -> bool:
    """Whether this process writes files and prints: it is the only one, or rank 0.

    Examples
    --------
    >>> is_main_process()
    True
    """
    return not is_torchrun() or int(os.environ.get("RANK", 0)) == 0
