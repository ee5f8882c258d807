"""Methods over data sets: ranks, Friedman's test, critical difference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from engram.errors import BadArgument
from engram.metrics import rank_methods
from engram.records import Result, Rows
from tests.refusals import refuses

STREAMS = [f"set {n}" for n in range(8)]
SKILL = {"A": 0.6, "B": 0.5, "C": 0.2}


def result_of(streams=STREAMS, skill=SKILL, *, lack=()) -> Result:
    rng = np.random.default_rng(3)
    rows, recipes = Rows(), {}
    for stream in streams:
        for method, level in skill.items():
            noise = rng.normal(0, 0.1, 2)
            if (method, stream) in lack:
                continue
            name = f"{method}-{stream}"
            recipes[name] = {"stream": {"data": stream}, "method": {"name": method}}
            for seed in range(2):
                rows.bind(recipe=name, label=method, seed=seed)
                rows.add("accuracy", level + noise[seed], stage=0, task=0, head="single")
    return Result(rows.frame(), recipes=recipes)


def test_ranks_are_those_of_scipy_over_means_of_runs():
    result = result_of()
    found = result.ranks()
    table = result.summary()["average_accuracy"].unstack("stream")
    np.testing.assert_allclose(found.means.loc[table.index, table.columns], table)
    friedman = stats.friedmanchisquare(*table.to_numpy())
    assert found.friedman == pytest.approx(friedman.pvalue)
    ranks = stats.rankdata(-table.to_numpy(), axis=0).mean(axis=1)
    np.testing.assert_allclose(found.table.loc[table.index, "rank"], ranks)
    plain = rank_methods(table.to_numpy().T)
    assert found.critical_difference == pytest.approx(plain.critical_difference)
    gaps = found.pairs["rank_difference"]
    assert (found.pairs["differs"] == (gaps > found.critical_difference)).all()
    assert found.groups == tuple(tuple(table.index[i] for i in clique) for clique in plain.cliques)
    assert "independent" in found.note


def test_wilcoxon_is_corrected_for_all_pairs():
    found = result_of([f"set {n}" for n in range(12)]).ranks(test="wilcoxon")
    means = found.means
    p = [stats.wilcoxon(means.loc[a], means.loc[b]).pvalue for a, b in found.pairs.index]
    np.testing.assert_allclose(found.pairs["wilcoxon_p"], p)
    assert found.pairs["wilcoxon_p_holm"].max() == pytest.approx(max(p))
    assert np.isnan(found.critical_difference)


def test_too_few_data_sets_are_ranked_but_not_tested():
    found = result_of(STREAMS[:3]).ranks()
    assert found.table.index[0] == "A"
    assert np.isnan(found.friedman)
    assert not len(found.pairs)
    assert "takes 5 streams" in found.refused in found.note
    with refuses("plot"):
        found.plot()
    assert "cannot give" in result_of(STREAMS[:6]).ranks(test="wilcoxon").refused
    with refuses("ranks"):
        result_of(STREAMS[:1]).ranks()


def test_a_method_that_lacks_a_data_set_is_left_out_and_named():
    found = result_of(lack={("B", "set 2")}).ranks()
    assert (list(found.table.index), found.left_out) == (["A", "C"], ("B",))
    assert "not on every stream: B" in found.note


def test_less_forgetting_is_better_and_functions_are_metrics():
    result = result_of()
    assert (
        result.ranks(lambda matrix: 1 - matrix[-1, -1], higher_is_better=False).table.index[0]
        == result.ranks().table.index[0]
    )
    with pytest.raises(BadArgument, match="metric: expected a function"):
        result.metric(lambda matrix: matrix)


def test_the_diagram_has_a_line_for_every_method_and_a_bar_for_every_group():
    found = result_of().ranks()
    figure = found.plot()
    named = [note.text for note in figure.layout.annotations]
    assert {text.partition(" (")[0] for text in named} >= set(SKILL)
    bars = [trace for trace in figure.data if trace.line.width == 5]
    assert len(bars) == len(found.groups)
