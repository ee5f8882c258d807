"""Data and streams for tuning hyper-parameters: validation rows take the place of test rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_choice, check_float, check_int
from engram.streams.row_numbers import count_fraction, hold_out
from engram.streams.stream import Stream, with_origin

SEARCH_ON = ("valid", "test")


def make_tuning_data(
    data: Data, *, share: float = 0.0, by: str | None = None, seed: int = 0
) -> Data:
    """Return the data with validation rows in place of its test rows.

    Parameters
    ----------
    share
        Share of the training rows of each class that become test rows. 0: the data's own
        validation rows.
    by
        An attribute such as ``subject``: that share of its values is held out, with all rows.
    seed
        Seed of the draw.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1] * 20)
    >>> data
    Data('data': 32 train, 8 test rows of (1,), 2 classes)
    >>> tuning = make_tuning_data(data, share=0.25)
    >>> tuning, {*tuning.test.tolist()} <= {*data.train.tolist()}
    (Data('data': 24 train, 8 test rows of (1,), 2 classes), True)
    """
    check_float("share", share, 0.0, 1.0)
    check_int("seed", seed)
    if share == 0:
        if by is not None:
            raise bad("share", f"a fraction of the values of {by!r}", share)
        if not len(data.valid):
            raise bad(
                "share", f"a fraction to hold out: {data.name!r} has no validation rows", share
            )
        return replace(data, test=data.valid, valid=data.valid[:0])
    if by is None:
        kept, held = hold_out(data, data.train, share, seed)
    else:
        kept, held = _split_by_attribute(data, share, by, seed)
    if not len(kept) or not len(held):
        raise bad("share", "one that leaves rows on both sides", share)
    return replace(data, train=kept, test=held)


def make_search_stream(stream: Stream, *, tasks: int = 3, on: str = "valid") -> Stream:
    """Return the first tasks of a stream, scored on validation rows instead of test rows.

    Parameters
    ----------
    tasks
        Number of tasks.
    on
        ``valid``: post-task validation rows if the tasks have any, in-task ones otherwise.
        ``test``: test rows; results of hyper-parameters chosen on them are biased.

    Examples
    --------
    >>> from engram.streams.incremental_streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(80)], [0, 1, 2, 3, 4, 5, 6, 7] * 10)
    >>> short = make_search_stream(class_incremental(data, valid=0.25), tasks=2)
    >>> short, short.judged_on, bool(torch.isin(short[0].test, data.test).any())
    (Stream('class_incremental': 2 tasks, 4 classes, single head), 'valid', False)
    """
    if not isinstance(stream, Stream):
        raise bad("stream", "a Stream", type(stream).__name__)
    if stream.judged_on != "test":
        raise bad("stream", "one that is evaluated on its test rows", f"on {stream.judged_on} rows")
    check_choice("on", on, SEARCH_ON)
    if check_int("tasks", tasks, 1) > len(stream):
        raise bad("tasks", f"at most {len(stream)}, the number of tasks of the stream", tasks)
    first = stream[:tasks]
    if on == "valid":
        first = _use_validation_rows(first)
    if stream.origin is None:
        return first
    return with_origin(first, stream.origin.change(search={"tasks": tasks, "on": on}))


def _use_validation_rows(stream: Stream) -> Stream:
    """Return the stream with validation rows in place of its test rows."""
    for kind in ("post_valid", "valid"):
        rows = [getattr(task, kind) for task in stream]
        if all(map(len, rows)):
            pairs = zip(stream, rows, strict=True)
            judged = [replace(task, test=own, post_valid=own[:0]) for task, own in pairs]
            return replace(stream, tasks=tuple(judged), judged_on=kind)
    expected = "validation rows in each of these tasks, as with valid=0.1 (--set valid=0.1)"
    raise bad("stream", f"{expected}; on='test' (--select-on test) selects on test rows", "none")


def _split_by_attribute(
    data: Data, share: float, by: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split training rows into (kept, held out) by values of an attribute."""
    check_choice("by", by, list(data.attributes))
    value = data.attributes[by][data.train]
    values = value.unique()
    drawn = keys.permutation(keys.fold(seed, "tuning"), len(values), len(values))
    held = torch.isin(value, values[drawn[: count_fraction(share, len(values))]])
    return data.train[~held], data.train[held]
