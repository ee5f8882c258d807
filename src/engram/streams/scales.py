"""Features of a stream on scales that networks do not learn from."""

from __future__ import annotations

from engram.data.findings import wild_scales
from engram.streams.core import Stream


def scales_in_words(stream: Stream) -> str:
    """What to say of the scales of the first task's features; nothing where all is well.

    Examples
    --------
    >>> from engram.data.core import Data
    >>> from engram.streams import class_incremental
    >>> x = [[i, 1e5 * i] for i in range(20)]
    >>> scales_in_words(class_incremental(Data.from_arrays(x, [0, 1] * 10)))
    'features with extreme scales: 1 (root mean square 1...e+06); standardize=True, on the ...
    """
    known = stream.data.__dict__.setdefault("_scales", {})
    rows = stream.tasks[0].train
    key = rows.cpu().numpy().tobytes()
    if key not in known:
        known[key] = wild_scales(stream.data, rows)
    found: str = known[key]
    return found
