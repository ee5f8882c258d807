"""Ranking of methods over data sets: means, ranks, and which methods differ (Demšar, 2006)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, check_choice, check_float, plural
from engram.html_repr import escape, html_table, join_blocks
from engram.records.method_comparison import format_p, metric_name
from engram.records.prediction_scoring import average_name
from engram.records.run_metrics import LOWER_IS_BETTER

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

TESTS = ("nemenyi", "wilcoxon")
LEAST_STREAMS = 5  # of fewer blocks the test's distribution under equality is too far from chi2
ASSUMPTIONS = (
    "A block is a stream, its value the mean over runs. The tests assume that streams are "
    "independent of each other and drawn from those the claim is about; runs over seeds do not "
    "count as blocks"
)


@dataclass(frozen=True)
class MethodRanking:
    """Ranks of methods over several streams, as returned by `Result.ranks`.

    Parameters
    ----------
    metric, level, test
        What was compared, the level of significance, and the test of pairs.
    means
        [method, stream] mean over runs, best mean rank first.
    ranks
        [method, stream] rank, 1 the best; ties share their mean rank.
    table
        By method: mean over streams, mean rank, streams on which it is the best.
    friedman
        p value of Friedman's test that all methods are equal; NaN if `refused`.
    critical_difference
        Mean ranks that differ by more are significantly different (Nemenyi); NaN if `refused`.
    pairs
        By (method, method), the better first: difference of mean ranks, p value of Wilcoxon's
        signed-rank test, the same corrected for all pairs (Holm), and whether they differ.
    groups
        Methods that cannot be told apart, best first.
    refused
        Why there are no tests; "" if there are.
    left_out
        Methods without numbers on every stream, which are not ranked.
    """

    metric: str
    level: float
    test: str
    means: pd.DataFrame
    ranks: pd.DataFrame
    table: pd.DataFrame
    friedman: float
    critical_difference: float
    pairs: pd.DataFrame
    groups: tuple[tuple[str, ...], ...]
    refused: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Say how to read the table, and what the tests assume."""
        words = [f"{self.metric}: mean over runs on {plural(len(self.means.columns), 'stream')}, "
                 "rank 1 is best"]  # fmt: skip
        if self.refused:
            words.append(f"No test: {self.refused}")
        else:
            words.append(f"Friedman test p {format_p(self.friedman)}")
            if self.test == "nemenyi":
                words.append(
                    "Mean ranks that differ by more than "
                    f"{self.critical_difference:.3f} are significantly different (Nemenyi, "
                    f"{self.level:.2f})"
                )
            else:
                words.append(f"Pairs by Wilcoxon's signed-rank test, Holm's correction for "
                             f"{plural(len(self.pairs), 'pair')}, {self.level:.2f}")  # fmt: skip
            words.append(ASSUMPTIONS)
        if self.left_out:
            absent = ", ".join(self.left_out)
            words.append(f"Left out, since not on every stream: {absent}")
        return ". ".join(words)

    def frame(self) -> pd.DataFrame:
        """Return one table: means on each stream, mean, mean rank, wins and group letters."""
        return self.means.join(self.table)

    def plot(self) -> Any:
        """Draw the critical-difference diagram (plotly); raises if the tests were refused.

        Bars join methods that cannot be told apart.
        """
        if self.refused:
            raise bad("plot", f"enough streams for a test ({self.refused})", None)
        # imported here because reports build on records, which need no plotly
        return import_module("engram.report.rank_figures").draw_ranking(self)

    def __str__(self) -> str:
        text = self.frame().to_string(float_format="{:.3f}".format, na_rep="-")
        return f"{self.note}\n{text}"

    def _repr_html_(self) -> str:
        table = self.frame()
        rows = [
            [name, *(f"{v:.3f}" if isinstance(v, float) else v for v in row)]
            for name, row in zip(table.index, table.itertuples(index=False), strict=True)
        ]
        return join_blocks(
            html_table(["method", *table.columns], rows), f"<p>{escape(self.note)}</p>"
        )


def rank_methods_of(
    result: Result,
    metric: str | Callable[..., Any] | None = None,
    *,
    test: str = "nemenyi",
    level: float = 0.05,
    higher_is_better: bool | None = None,
    stage: int | None = None,
    **options: Any,
) -> MethodRanking:
    """Rank methods over streams (data sets), and test which ones differ.

    Every stream counts once, with each method's mean over its runs. The ranks are tested by
    Friedman's test, pairs by Nemenyi's critical difference or by Wilcoxon's signed-rank test with
    Holm's correction. Fewer than five streams are ranked but not tested.

    Parameters
    ----------
    metric
        As in `Result.metric`, with its options; default: the one that sums up a run.
    test
        ``nemenyi`` or ``wilcoxon``.
    level
        Probability of any false difference.
    higher_is_better
        Default: yes, except for forgetting and intransigence.

    Examples
    --------
    >>> from engram.records import Result, Rows
    >>> rows, recipes = Rows(), {}
    >>> for number, name in enumerate("abcdef"):
    ...     for method, score in (("ER", 0.8), ("EWC", 0.6 + number / 100)):
    ...         recipes[method + name] = {"stream": {"data": name}, "method": {"name": method}}
    ...         rows.bind(recipe=method + name, label=method, seed=0)
    ...         rows.add("accuracy", score, stage=0, task=0, head="single")
    >>> ranking = Result(rows.frame(), recipes=recipes).ranks()
    >>> ranking.table["rank"].to_dict(), round(ranking.friedman, 3)
    ({'ER': 1.0, 'EWC': 2.0}, 0.014)
    """
    if metric is None:
        names = list(dict.fromkeys(map(average_name, result.figures))) or ["average_accuracy"]
        if len(names) > 1:
            raise bad("metric", f"one of {', '.join(names)}, since the runs have both", None)
        metric = names[0]
    if higher_is_better is None:
        falls = metric in LOWER_IS_BETTER and options.get("definition") != "cglb"
        higher_is_better = not falls
    values = result.metric(metric, stage=stage, **options)
    return rank_values(
        metric_name(metric), result.run_methods, result.run_streams, values, test=test,
        level=level, higher_is_better=higher_is_better,
    )  # fmt: skip


def rank_values(
    metric: str, methods: Sequence[str], streams: Sequence[str], values: Any, *,
    test: str = "nemenyi", level: float = 0.05, higher_is_better: bool = True,
) -> MethodRanking:  # fmt: skip
    """Rank methods by values of runs, given the method and the stream of each."""
    import pandas as pd

    check_choice("test", test, TESTS)
    check_float("level", level, 0.0, 1.0, open_low=True)
    runs = pd.DataFrame({"method": methods, "stream": streams, "value": np.asarray(values)})
    means = runs.groupby(["method", "stream"], sort=False)["value"].mean().unstack("stream")
    means = means.reindex(index=list(dict.fromkeys(methods)),
                          columns=list(dict.fromkeys(streams)))  # fmt: skip
    whole = means.notna().all(axis=1)
    left_out = tuple(map(str, means.index[~whole]))
    means = means[whole].rename_axis(index="method", columns="stream")
    if len(means) < 2 or len(means.columns) < 2:
        have = f"{plural(len(means), 'method')} on {plural(len(means.columns), 'stream')}"
        lost = f" (not on every stream: {', '.join(left_out)})" if left_out else ""
        raise bad("ranks", "at least two methods with results on each of at least two streams",
                  have + lost)  # fmt: skip
    return _rank_means(metric, means, test, level, higher_is_better, left_out)


def _rank_means(
    metric: str, means: pd.DataFrame, test: str, level: float, higher: bool,
    left_out: tuple[str, ...],
) -> MethodRanking:  # fmt: skip
    import pandas as pd

    from engram import metrics
    from engram.metrics.tolerance import merge_ties

    scores = means.to_numpy().T  # [stream, method]
    found = metrics.rank_methods(scores, alpha=level, higher_is_better=higher)
    level_scores = np.stack([merge_ties(row) for row in scores]).T
    ranks = pd.DataFrame(level_scores, means.index, means.columns).rank(ascending=not higher)
    order = np.argsort(found.average_ranks, kind="stable")
    means, ranks = means.iloc[order], ranks.iloc[order]
    average = found.average_ranks[order]
    refused = _why_not(len(means.columns), len(means), level, test)
    pairs = _test_pairs(means, average, higher, level, found.critical_difference, test)
    groups = _group_equal(list(map(str, means.index)), pairs)
    if refused:
        pairs, groups = pairs.iloc[:0], ()
    table = pd.DataFrame(
        {"mean": means.mean(axis=1), "rank": average, "best_on": (ranks == ranks.min()).sum(axis=1)}
    )
    if not refused:
        table["group"] = _group_letters(list(map(str, means.index)), groups)
    return MethodRanking(
        metric, level, test, means, ranks, table,
        np.nan if refused else found.p_value,
        np.nan if refused or test != "nemenyi" else found.critical_difference,
        pairs, groups, refused, left_out,
    )  # fmt: skip


def _why_not(streams: int, methods: int, level: float, test: str) -> str:
    """Say why ranks over so few streams cannot be tested; "" if they can."""
    from scipy.stats import chi2

    if streams < LEAST_STREAMS:
        return f"it takes {LEAST_STREAMS} streams (data sets), these are {streams}"
    if test == "nemenyi":  # the least p value is that of equal ranks on every stream
        least = float(chi2.sf(streams * (methods - 1), methods - 1))
    else:
        least = 2 * 0.5**streams * (methods * (methods - 1) / 2)
    if least >= level:
        tested = plural(methods, "method")
        return f"{streams} streams cannot give {tested} a p value below {level:g} ({test})"
    return ""


def _test_pairs(
    means: pd.DataFrame, average: Any, higher: bool, level: float, critical: float, test: str
) -> pd.DataFrame:
    """Compare every pair of methods, the better first."""
    import pandas as pd

    from engram.metrics import holm, wilcoxon_test

    values, names = means.to_numpy(), list(map(str, means.index))
    both = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    raw = [wilcoxon_test(values[i], values[j]).p_value for i, j in both]
    corrected = holm(raw)
    gap = np.array([average[j] - average[i] for i, j in both])
    differs = gap > critical if test == "nemenyi" else corrected < level
    index = pd.MultiIndex.from_tuples(
        [(names[i], names[j]) for i, j in both], names=["method", "against"]
    )
    return pd.DataFrame(
        {
            "rank_difference": gap,
            "wilcoxon_p": raw,
            "wilcoxon_p_holm": corrected,
            "differs": differs,
        },
        index=index,
    )


def _group_equal(names: list[str], pairs: pd.DataFrame) -> tuple[tuple[str, ...], ...]:
    """Return the largest groups of neighbours of which no two differ."""
    differs = dict(zip(pairs.index.tolist(), pairs["differs"], strict=True))
    found: list[tuple[int, int]] = []
    for start in range(len(names)):
        end = start + 1
        while end < len(names) and not any(
            differs[names[i], names[end]] for i in range(start, end)
        ):
            end += 1
        if end - start > 1 and not any(a <= start and end <= b for a, b in found):
            found.append((start, end))
    return tuple(tuple(names[a:b]) for a, b in found)


def _group_letters(names: list[str], groups: Sequence[Sequence[str]]) -> list[str]:
    """Return letters for each method: two that share one cannot be told apart.

    Examples
    --------
    >>> _group_letters(["ER", "EWC", "SI"], [("ER", "EWC")])
    ['a', 'a', 'b']
    """
    whole = [*map(tuple, groups)]
    whole += [(name,) for name in names if not any(name in group for group in whole)]
    whole.sort(key=lambda group: names.index(group[0]))
    letters = [chr(ord("a") + i) if i < 26 else f"a{i}" for i in range(len(whole))]
    return [
        "".join(letter for letter, group in zip(letters, whole, strict=True) if name in group)
        for name in names
    ]
