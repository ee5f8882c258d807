"""Methods side by side: intervals of means, and pairs of runs, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from engram.errors import BadArgument
from engram.metrics import holm, t_interval
from engram.records import Result, Rows, combine
from engram.records.method_comparison import compare_blocks
from tests.refusals import refuses

ACCURACY = {"ER": [0.90, 0.86, 0.91], "EWC": [0.52, 0.60, 0.55], "LwF": [0.53, 0.58, 0.57]}


def result_of(accuracy=None, *, streams=None, seeds=None) -> Result:
    rows, recipes = Rows(), {}
    for label, values in (accuracy or ACCURACY).items():
        recipes[label] = {"stream": {"head": "single", "data": (streams or {}).get(label, "a")}}
        for place, value in enumerate(values):
            seed = (seeds or {}).get(label, range(9))[place]
            rows.bind(recipe=label, label=label, seed=seed)
            rows.add("accuracy", value, stage=0, task=0, head="single")
    return Result(rows.frame(), recipes=recipes)


def test_means_and_pairs_are_those_of_scipy():
    found = result_of().compare(level=0.9)
    assert found.methods.index.tolist() == ["ER", "LwF", "EWC"]  # highest first
    for label, values in ACCURACY.items():
        line = found.methods.loc[label]
        span = stats.t.interval(0.9, 2, np.mean(values), stats.sem(values))
        np.testing.assert_allclose(
            [line["mean"], line["low"], line["high"]], [np.mean(values), *span]
        )
        assert line["runs"] == 3
    for (a, b), line in found.pairs.iterrows():
        test = stats.ttest_rel(ACCURACY[a], ACCURACY[b])
        np.testing.assert_allclose(line["p"], test.pvalue)
        np.testing.assert_allclose([line["low"], line["high"]], test.confidence_interval(0.9))
    assert len(found.pairs) == 3
    np.testing.assert_allclose(found.pairs["p_holm"], holm(found.pairs["p"]))
    assert "90% t intervals" in str(found)
    assert "3 comparisons" in str(found)


def test_runs_are_paired_by_seed_whatever_their_order():
    accuracy = {"A": [0.9, 0.8, 0.7], "B": [0.5, 0.4, 0.2]}
    turned = {"A": [0.9, 0.8, 0.7], "B": [0.2, 0.4, 0.5]}
    first = result_of(accuracy).compare().pairs
    second = result_of(turned, seeds={"A": [0, 1, 2], "B": [2, 1, 0]}).compare().pairs
    np.testing.assert_allclose(first.to_numpy(float), second.to_numpy(float))


def test_what_shares_no_run_has_no_difference():
    apart = {"ER": [0, 1, 2], "EWC": [5, 6, 7], "LwF": [0, 1, 9]}
    pairs = result_of(seeds=apart).compare().pairs
    assert pairs.loc[("ER", "EWC"), "runs"] == 0
    assert np.isnan(pairs.loc[("ER", "EWC"), "p"])
    assert pairs.loc[("ER", "LwF"), "runs"] == 2
    known = pairs["p_holm"].notna()  # the correction counts what was tested
    np.testing.assert_allclose(pairs["p_holm"][known], holm(pairs["p"][known]))


def test_a_further_stream_changes_no_p_value():
    alone = result_of(streams=dict.fromkeys(ACCURACY, "a"))
    names = {name: f"{name}2" for name in ACCURACY}
    other = result_of(
        {names[k]: [1 - v for v in values] for k, values in ACCURACY.items()},
        streams=dict.fromkeys(names.values(), "b"),
    )
    both = combine([alone, other]).compare()
    assert both.pairs.index.names == ["stream", "method", "against"]
    assert both.pairs.loc["a"].equals(alone.compare().pairs)
    assert both.pairs.loc["b"].equals(other.compare().pairs)
    assert both.methods.loc["a"].equals(alone.compare().methods)
    assert "3 comparisons on a, 3 comparisons on b" in both.note


def test_runs_without_a_number_and_single_runs():
    found = result_of({"A": [0.9, np.nan, 0.8], "B": [0.5, 0.4, 0.3], "C": [np.nan]}).compare()
    assert found.methods["runs"].to_dict() == {"A": 2, "B": 3, "C": 0}
    assert found.pairs.loc[("A", "B"), "runs"] == 2
    one = result_of({"A": [0.9], "B": [0.5]}).compare()
    assert "at least 3 seeds" in one.note
    assert one.methods["low"].isna().all()
    assert "nan" not in str(one).lower()
    alone = result_of({"A": [0.9, 0.8]}).compare()
    assert not len(alone.pairs)
    assert "comparison" not in str(alone)


def test_other_metrics_and_wrong_arguments():
    with refuses("metric", near="average_accuracy"):
        result_of().compare("accuracy")
    with refuses("level"):
        result_of().compare(level=1.5)
    assert result_of().compare("learning_accuracy").metric == "learning_accuracy"


def test_intervals_hold_the_mean_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    held = [low <= 0 <= high for low, high, _ in map(t_interval, draws)]
    assert abs(np.mean(held) - 0.95) < 0.015
    assert np.isnan(t_interval([0.5]).low)
    with pytest.raises(BadArgument, match="no NaN"):
        t_interval([0.5, np.nan])


def test_several_values_of_a_block_count_once():
    found = compare_blocks(
        "x", ["A", "A", "B", "A", "B"], [0, 0, 0, 1, 1], [0.8, 0.9, 0.5, 0.7, 0.5]
    )
    assert found.pairs["runs"].tolist() == [2]
    np.testing.assert_allclose(found.pairs["difference"], [(0.35 + 0.2) / 2])
