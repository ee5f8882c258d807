"""Comparison of methods: confidence intervals of means, and paired tests of every pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, plural
from engram.html_repr import escape, frame_html, join_blocks
from engram.records.prediction_scoring import average_name

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

MEAN_COLUMNS = ("runs", "mean", "low", "high")
PAIR_COLUMNS = ("runs", "difference", "low", "high", "p", "p_holm")


@dataclass(frozen=True)
class MethodComparison:
    """Comparison of several methods by one metric, as returned by `Result.compare`.

    Parameters
    ----------
    metric, level
        The metric, and the confidence level of the intervals.
    methods
        By label, highest mean first: runs, mean, and the ends of its t interval. By stream and
        label if there are several streams.
    pairs
        By (label, label), the first the one with the higher mean: how many runs they share (same
        seed and order), the mean difference with its t interval, the p value of the paired t test,
        and that value corrected for the number of pairs on the stream (Holm).
    """

    metric: str
    level: float
    methods: pd.DataFrame
    pairs: pd.DataFrame

    @property
    def note(self) -> str:
        """Explain how to read the numbers, in a sentence or two."""
        words = f"{self.metric}: {self.level:.0%} t intervals over runs"
        if len(self.pairs):
            words += (
                "; pairs by seed and order: paired t test, p_holm is corrected for "
                f"{self._describe_counts()}"
            )
        if (self.methods["runs"] < 2).any():
            words += ". A single run has no interval: use at least 3 seeds"
        return words

    def _describe_counts(self) -> str:
        if self.pairs.index.nlevels == 2:
            return plural(len(self.pairs), "comparison")
        counts = self.pairs.groupby(level="stream", sort=False).size()
        told = ", ".join(f"{plural(count, 'comparison')} on {on}" for on, count in counts.items())
        return f"{told}, each stream by itself"

    def __str__(self) -> str:
        tables = [self.methods, format_p_values(self.pairs)] if len(self.pairs) else [self.methods]
        texts = [one.to_string(float_format="{:.3f}".format, na_rep="-") for one in tables]
        return "\n".join([self.note, *texts])

    def _repr_html_(self) -> str:
        tables = [self.methods, format_p_values(self.pairs)] if len(self.pairs) else [self.methods]
        return join_blocks(f"<p>{escape(self.note)}</p>", *map(frame_html, tables))


def format_p_values(pairs: pd.DataFrame) -> pd.DataFrame:
    """Format the p values of pairs as papers print them."""
    return pairs.assign(p=pairs["p"].map(format_p), p_holm=pairs["p_holm"].map(format_p))


def format_p(value: float) -> str:
    """Format a p value as papers print it.

    Examples
    --------
    >>> format_p(0.03456), format_p(0.0000321), format_p(float("nan"))
    ('0.035', '<0.001', '-')
    """
    if np.isnan(value):
        return "-"
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def compare_methods(
    result: Result,
    metric: str | Callable[..., Any] | None = None,
    *,
    level: float = 0.95,
    stage: int | None = None,
    **options: Any,
) -> MethodComparison:
    """Compare methods: each mean with its interval, and a paired test of every pair.

    Streams are compared apart, each with its own correction for the number of pairs: a result on
    further data changes no p value.

    Parameters
    ----------
    metric
        As in `Result.metric`, with its options; default: the one that sums up a run.
    level
        Of the intervals: 0.95 holds the true mean in 95 of 100 such studies.

    Examples
    --------
    >>> import engram
    >>> stream = engram.class_incremental(engram.load("blobs"), classes_per_task=2)
    >>> result = engram.run(stream, method=["Finetune", "ER"], epochs=2, seeds=3, device="cpu")
    >>> found = result.compare()
    >>> found.methods.columns.tolist()
    ['runs', 'mean', 'low', 'high']
    >>> found.pairs.index.tolist(), bool(found.pairs["p_holm"].iloc[0] < 0.05)
    ([('ER', 'Finetune')], True)
    """
    import pandas as pd

    if metric is None:
        names = list(dict.fromkeys(map(average_name, result.figures))) or ["average_accuracy"]
        if len(names) > 1:
            raise bad("metric", f"one of {', '.join(names)}, since the runs have both", None)
        metric = names[0]
    values = result.metric(metric, stage=stage, **options)
    streams, labels = result.run_streams, result.run_labels
    if len(result.streams) > 1:
        labels = result.run_methods
    found = {}
    for stream in result.streams:
        own = [number for number, name in enumerate(streams) if name == stream]
        found[stream] = compare_blocks(
            metric_name(metric), [labels[n] for n in own],
            [(result.runs[n].seed, result.runs[n].order) for n in own], values[own], level=level,
        )  # fmt: skip
    if len(found) == 1:
        return found.popitem()[1]
    methods, pairs = (
        pd.concat({stream: getattr(one, part) for stream, one in found.items()}, names=["stream"])
        for part in ("methods", "pairs")
    )
    return MethodComparison(metric_name(metric), level, methods, pairs)


def metric_name(metric: str | Callable[..., Any]) -> str:
    """Return the name of a metric, of a function its own."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))


def compare_blocks(
    metric: str,
    names: list[str],
    blocks: list[Any],
    values: Any,
    *,
    level: float = 0.95,
    most: int | None = None,
) -> MethodComparison:
    """Compare runs given by their names, blocks and values.

    Runs with different names are paired if they share a block; NaN values are left out. With `most`
    only the names of the highest means are paired.

    Examples
    --------
    >>> found = compare_blocks("accuracy", ["A", "A", "B", "B"], [0, 1, 0, 1], [0.9, 0.8, 0.5, 0.5])
    >>> found.methods["mean"].round(2).to_dict(), found.pairs["difference"].round(2).to_dict()
    ({'A': 0.85, 'B': 0.5}, {('A', 'B'): 0.35})
    """
    import pandas as pd

    table = pd.DataFrame({"name": names, "block": blocks, "value": np.asarray(values, np.float64)})
    known = table.dropna(subset=["value"])
    order = list(dict.fromkeys(names))
    means = known.groupby("name")["value"].mean().reindex(order)
    order = list(means.sort_values(ascending=False, kind="stable", na_position="last").index)
    by_name = dict(iter(known.groupby("name", sort=False)))
    nothing = known.iloc[:0]
    rows = [_mean_row(by_name.get(name, nothing)["value"].to_numpy(), level) for name in order]
    methods = pd.DataFrame(
        rows, index=pd.Index(order, name="method"), columns=pd.Index(MEAN_COLUMNS)
    )
    paired = order[:most]
    by_block = {
        name: by_name.get(name, nothing).groupby("block")["value"].mean() for name in paired
    }
    both = list(itertools.combinations(paired, 2))
    found = [_pair_row(by_block[a], by_block[b], level) for a, b in both]
    sides = [[pair[side] for pair in both] for side in (0, 1)]
    index = pd.MultiIndex.from_arrays(sides, names=["method", "against"])
    pairs = pd.DataFrame(found, index=index, columns=pd.Index(PAIR_COLUMNS[:-1]))
    return MethodComparison(metric, level, methods, pairs.assign(p_holm=_correct_known(pairs["p"])))


def _mean_row(values: Any, level: float) -> tuple[int, float, float, float]:
    from engram.metrics import t_interval

    if not len(values):
        return 0, np.nan, np.nan, np.nan
    low, high, mean = t_interval(values, level=level)
    return len(values), mean, low, high


def _pair_row(a: Any, b: Any, level: float) -> tuple[int, float, float, float, float]:
    from engram.metrics import compare

    shared = a.index.intersection(b.index)
    if not len(shared):
        return 0, np.nan, np.nan, np.nan, np.nan
    one = compare(a[shared].to_numpy(), b[shared].to_numpy(), level=level)
    return len(shared), one.difference, one.low, one.high, one.p_value


def _correct_known(p: Any) -> Any:
    """Apply Holm's correction to the p values that are not NaN."""
    from engram.metrics import holm

    result = p.copy()
    if p.notna().any():
        result[p.notna()] = holm(p.dropna().to_numpy())
    return result
