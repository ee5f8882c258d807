"""Two processes of one job, forked from the test: what ``torchrun`` would start."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from typing import Any

WORLD = 2
PATIENCE = 100  # seconds


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rank(number: int, port: int, work: Callable[..., Any], args: Any, pipe: Any) -> None:
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(WORLD), TORCHELASTIC_RUN_ID="test",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(WORLD),
    )  # fmt: skip
    try:
        found: Any = work(*args)
    except BaseException:  # told to the test
        found = RuntimeError(traceback.format_exc())
    pipe.send_bytes(pickle.dumps(found))  # not by handles of memory that dies with the rank
    pipe.close()


def on_ranks(work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work` gives on each rank; an error of a rank comes back as a RuntimeError.

    A rank that is gone without a word gives None.
    """
    context, port = multiprocessing.get_context("fork"), free_port()
    found, started = [], []
    for number in range(WORLD):
        ours, theirs = context.Pipe(duplex=False)
        one = context.Process(target=_rank, args=(number, port, work, args, theirs), daemon=True)
        one.start()
        theirs.close()
        started.append((one, ours))
    for one, ours in started:
        try:
            there = ours.poll(PATIENCE)
            found.append(pickle.loads(ours.recv_bytes()) if there else RuntimeError("too late"))
        except EOFError:
            found.append(None)
        one.join(5)
        if one.is_alive():
            one.kill()
    return found
