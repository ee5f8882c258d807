"""What `python -m benchmarks.speed` compares: each entry is two pieces of work of equal content.

To add one, write a function that prepares both and returns them as `Work`, each of which is one
repetition, and add a line to `ENTRIES`. Work takes a few seconds at most: everything is repeated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import engram
from benchmarks.speed import bare
from engram.data import Data
from engram.errors import BadArgument
from engram.streams.stream import Stream

Work = Callable[[], object]
BATCH = 64
DIGITS_EPOCHS = 10  # on the embedded digits, which are few


@dataclass(frozen=True)
class Entry:
    """Two pieces of work whose processor times are compared.

    Parameters
    ----------
    pair
        Prepares the work of Engram, and the work that it is compared with.
    most
        What the ratio of Engram to the other should not exceed; None: no such aim.
    avalanche
        The strategy of Avalanche that does the same (see `benchmarks.speed.beside_avalanche`).
    usual
        Whether it is measured if no entries are named.
    """

    pair: Callable[[], tuple[Work, Work]]
    most: float | None = None
    avalanche: str = ""
    usual: bool = True


@cache
def images() -> Data:
    """MNIST where it is found (ENGRAM_DATA), else the embedded digits."""
    try:
        return engram.load("mnist")
    except BadArgument:
        return engram.load("digits")


@cache
def split_stream() -> Stream:
    """Five tasks of two digits."""
    return engram.class_incremental(images(), classes_per_task=2)


def epochs() -> int:
    """Epochs per task."""
    return 1 if images().name == "mnist" else DIGITS_EPOCHS


def against_loop(method: str) -> tuple[Work, Work]:
    """A run by Engram, and by the hand-written loop of the same method."""
    stream, kind = split_stream(), bare.LOOPS[method]

    def ours() -> engram.Result:
        return engram.run(stream, method=method, epochs=epochs(), batch_size=BATCH, device="cpu")

    def theirs() -> list[float]:
        return kind(stream.data).train(stream, batch=BATCH, epochs=epochs())

    return ours, theirs


def many_tasks(tasks: int = 20, train: int = 4000, test: int = 2000) -> tuple[Work, Work]:
    """Permuted tasks, of which those learnt so far are evaluated after each, against a loop."""
    data = images()
    some = data.train[:train], data.test[:test]
    (x, y), held = ((data.x[rows], data.labels[rows]) for rows in some)
    stream = engram.permuted(engram.Data.from_arrays(x, y, test=held), tasks=tasks)

    def ours() -> engram.Result:
        return engram.run(stream, method="Finetune", batch_size=BATCH, device="cpu")

    def theirs() -> list[float]:
        return bare.Permuted(stream.data).train(stream, batch=BATCH)

    return ours, theirs


def recording() -> tuple[Work, Work]:
    """A small run with a run directory, and without one."""
    stream = engram.class_incremental(engram.load("digits"), classes_per_task=2)

    def run(out: str | None) -> engram.Result:
        return engram.run(stream, method="ER", epochs=1, out=out, device="cpu")

    def ours() -> engram.Result:
        with tempfile.TemporaryDirectory() as folder:
            return run(folder)

    return ours, lambda: run(None)


ENTRIES = {
    "Finetune": Entry(partial(against_loop, "Finetune"), most=1.06, avalanche="Naive"),
    "ER": Entry(partial(against_loop, "ER"), most=1.06, avalanche="Replay"),
    "SI": Entry(partial(against_loop, "SI"), most=1.12, avalanche="SynapticIntelligence"),
    "LwF": Entry(partial(against_loop, "LwF"), most=1.12, avalanche="LwF"),
    "permuted": Entry(many_tasks, most=1.3),
    "out": Entry(recording, most=1.35),
    # the loop takes the gradient of every row by itself, which takes minutes
    "EWC": Entry(partial(against_loop, "EWC"), usual=False),
}
