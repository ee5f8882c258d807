"""Findings: when they hold, and how they are declared over cells of tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from engram.errors import BadArgument
from engram.reproduce import find_table, plan
from engram.reproduce.measures import constant
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.papers.findings import (
    CellFindings,
    Claim,
    Gap,
    Moments,
    OrderClaim,
    TrendClaim,
    count_findings,
    judge_gap,
    make_findings_figure,
    tabulate_claims,
)
from engram.reproduce.papers.rwalk_paper import PAPER

NAN = float("nan")
EVERY = {"dataset": "MNIST", "setting": "multi-head", "metric": "A(%)"}


def say(first, second, **options):
    pair = (("a", constant(*first)), ("b", constant(*second)))
    return Claim("", "", *pair, **options).tried(None)


@pytest.mark.parametrize(
    ("first", "second", "options", "holds"),
    [
        ([3, 3.1, 2.9], [1, 1, 1], {}, "yes"),
        ([1, 1, 1], [3, 3.1, 2.9], {}, "no"),
        ([3, 0.5, 1], [1, 1, 1], {}, "undecided"),
        ([3, 0.5], [1, 1], {}, "yes"),  # two repetitions have no interval
        ([1, 1, 1], [1, 1, 1], {}, "no"),
        ([1, 1, 1], [1, 1, 1], {"ties": True}, "yes"),
        ([3, 3.1, 2.9], [1, 1, 1], {"slack": -2.5}, "no"),  # not ahead by 2.5
        ([3, 3.1, 2.9], [1, 1, 1], {"slack": -2.0}, "undecided"),
        ([1, 1.1, 0.9], [2, 2, 2], {"slack": 1.5}, "yes"),
        ([1, 1.1, 0.9], [2, 2, 2], {"relation": "below"}, "yes"),
        ([1, 1.1, 0.9], [2, 2, 2], {"relation": "below", "slack": -1.5}, "no"),
        ([1, 1.1, 0.9], [1, 1, 1], {"relation": "near", "slack": 0.5}, "yes"),
        ([1, 1.1, 0.9], [1, 1, 1], {"relation": "near", "slack": 0.1}, "undecided"),
        ([2, 2.1, 1.9], [1, 1, 1], {"relation": "near", "slack": 0.5}, "no"),
        ([1, NAN], [NAN, 2], {}, "not run"),
    ],
)
def test_an_interval_over_the_boundary_decides_nothing(first, second, options, holds):
    assert say(first, second, **options)["holds"] == holds


def test_differences_are_taken_repetition_by_repetition():
    """Seeds that are hard for both rows do not hide what one has over the other."""
    one = say([1.1, 5.2, 9.15, 4.0], [1, 5, 9, NAN])
    assert one["holds"] == "yes"
    assert one["repetitions"] == 3
    assert one["difference"] == pytest.approx(0.15)
    assert one["first_std"] == pytest.approx(np.std([1.1, 5.2, 9.15], ddof=1))
    low, high = judge_gap(Gap.of(np.array([0.1, 0.2, 0.15])))[1:]
    assert (one["low"], one["high"]) == pytest.approx((low, high))


def test_the_paper_is_held_to_its_own_words():
    assert say([1], [2], paper=(3, 2))["printed_holds"] == "yes"
    assert say([1], [2], paper=(2, 3))["printed_holds"] == "no"
    assert say([1], [2])["printed_holds"] == ""


def test_pairs_of_an_order_are_counted_and_may_stay_open():
    sure = [(k, constant(v - 0.1, v, v + 0.1), v) for k, v in (("a", 9.0), ("b", 5.0))]
    wide = ("c", constant(0, 5, 10), 1.0)
    absent = ("d", constant(NAN), 0.5)
    found = OrderClaim("", "", [*sure, wide]).tried(None)
    assert (found["low"], found["high"], found["holds"]) == (1, 3, "undecided")
    assert OrderClaim("", "", [*sure, wide], share=0.3).tried(None)["holds"] == "yes"
    assert OrderClaim("", "", sure[::-1]).tried(None)["holds"] == "no"
    assert OrderClaim("", "", [*sure, absent]).tried(None)["holds"] == "undecided"
    assert OrderClaim("", "", [absent, absent]).tried(None)["holds"] == "not run"
    tied = [("a", constant(1.0), 2.0), ("b", constant(2.0), 2.0), ("c", constant(0.0), 1.0)]
    assert OrderClaim("", "", tied, printed=True).tried(None)["second_value"] == 2


def test_a_trend_is_a_line_through_the_stages_that_were_reached():
    def stages(*values):
        return [(f"stage {k}", constant(*v), NAN) for k, v in enumerate(values)]

    down = TrendClaim("", "", "x", stages([3, 4, 5], [2.5, 3, 4.1], [1, 2, 3], [NAN] * 3))
    found = down.tried(None)
    assert found["holds"] == "no"
    assert replace(down, falls=True).tried(None)["holds"] == "yes"
    assert (found["first_value"], found["second_value"]) == (4, 2)
    assert found["second"] == "x, stage 2"
    slopes = [np.polyfit([0, 1, 2], y, 1)[0] * 2 for y in ([3, 2.5, 1], [4, 3, 2], [5, 4.1, 3])]
    assert found["difference"] == pytest.approx(np.mean(slopes))
    assert TrendClaim("", "", "x", stages([NAN], [NAN])).tried(None)["holds"] == "not run"


# -- from recorded moments -------------------------------------------------------------------------
def record(values):
    known = Moments.of(np.array(values, float))
    return lambda result: known


def test_unrelated_rows_have_the_interval_of_welch():
    first, second = [3.0, 3.4, 2.1, 4.0], [1.0, 2.5, 1.9]
    found = Claim("", "", ("a", record(first)), ("b", record(second))).tried(None)
    wanted = ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((wanted.low, wanted.high))
    assert (found["holds"], found["repetitions"]) == ("undecided", 3)
    assert found["first_std"] == pytest.approx(np.std(first, ddof=1))


@pytest.mark.parametrize(
    ("first", "second", "holds", "count"),
    [
        ([3, 3.1, 2.9], [1, 1.1, 0.9], "yes", 3),
        ([1, 1.1, 0.9], [3, 3.1, 2.9], "no", 3),
        ([3, 0.5, 1], [1], "yes", 1),  # one repetition has no deviation: the means decide
        ([3, 0.5], [1, 1.2, 1.4], "yes", 2),
        ([], [1, 1.2, 1.4], "not run", 0),
    ],
)
def test_moments_decide_as_repetitions_do(first, second, holds, count):
    found = Claim("", "", ("a", record(first)), ("b", record(second))).tried(None)
    assert (found["holds"], found["repetitions"]) == (holds, count)


def test_a_given_number_beside_moments_has_no_spread():
    own = [3.0, 3.4, 2.1, 4.0]
    against = Claim("", "", ("a", record(own)), ("limit", constant(2.0))).tried(None)
    whole = Claim("", "", ("a", constant(*own)), ("limit", constant(2.0))).tried(None)
    assert (against["holds"], against["repetitions"]) == (whole["holds"], 4)
    bounds = ("low", "high")
    assert [against[k] for k in bounds] == pytest.approx([whole[k] for k in bounds])


def test_a_trend_of_moments_is_that_of_the_means():
    values = [[3, 4, 5], [2.5, 3, 4.1], [1, 2, 3]]
    stages = [(f"stage {k}", record(v), NAN) for k, v in enumerate(values)]
    given = [(name, constant(*v), NAN) for (name, _, _), v in zip(stages, values, strict=True)]
    absent = ("stage 3", record([]), NAN)
    found = TrendClaim("", "", "x", [*stages, absent], falls=True).tried(None)
    runs = TrendClaim("", "", "x", given, falls=True).tried(None)
    for name in ("difference", "first_value", "second_value", "first_std", "repetitions"):
        assert found[name] == pytest.approx(runs[name])
    assert found["second"] == "x, stage 2"
    # the first stage against the last: repetitions that share a level are narrower
    wanted = ttest_ind(values[2], values[0], equal_var=False).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((wanted.low, wanted.high))
    assert (runs["high"], runs["holds"], found["holds"]) == (-2.0, "yes", "undecided")
    assert TrendClaim("", "", "x", [absent, absent]).tried(None)["holds"] == "not run"


def test_pairs_of_moments_are_counted():
    rows = [("a", record([9, 9.1, 8.9]), NAN), ("b", record([5, 5.1, 4.9]), NAN),
            ("c", record([4, 5, 6]), NAN)]  # fmt: skip
    found = OrderClaim("", "", rows).tried(None)
    assert (found["low"], found["high"], found["holds"]) == (2, 3, "undecided")


# -- over cells ------------------------------------------------------------------------------------
def declared(*statements, preset=PAPER):
    """Findings of RWalk, ours being the printed number but for RWalk's, which is 1."""

    def entry(cell):
        ours = 1.0 if cell["method"] == "RWalk" else cell.value
        return CellEntry(measure=constant(ours))

    found = CellFindings("rwalk", preset, statements, dict.fromkeys(("1", "3"), entry))
    return tabulate_claims([0], found.claims)


def test_every_kind_is_declared_over_cells():
    common = {"finding": "x", "table": "1", "where": EVERY}
    assert declared({**common, "above": [[["EWC"], ["*"]]]})["second"].tolist() == [
        "Vanilla", "PI", "RWalk",
    ]  # fmt: skip
    near = declared({**common, "near": [[["EWC"], ["PI", "RWalk"]]], "within": 0.5})
    assert near["holds"].tolist() == ["yes", "no"]
    assert near["printed_holds"].tolist() == ["yes", "yes"]
    order = declared({**common, "order": "printed"})
    assert order["holds"].tolist() == ["no"]
    # EWC, PI and RWalk are printed alike, so that three pairs are left
    assert order[["first_value", "second_value", "paper_first"]].values.tolist() == [[2, 3, 3]]
    grown = {**EVERY, "metric": "F", "method": "PI"}
    other = {
        **common,
        "where": grown,
        "by": "params",
        "at_most": [[["lambda=0.1"], ["lambda=0.1"]]],
    }
    assert declared(other)["holds"].tolist() == ["yes"]
    table = declared(
        {**common, "where": {**EVERY, "dataset": ["MNIST", "CIFAR-100"]}, "above": [[["RWalk"],
         [{"method": "Vanilla", "metric": "F"}]]]},
    )  # fmt: skip
    assert table["row"].tolist() == ["MNIST multi-head A(%)", "CIFAR-100 multi-head A(%)"]
    assert count_findings(table).to_dict("records") == [
        {"finding": "x", "comparisons": 2, "yes": 2, "no": 0, "undecided": 0, "not run": 0,
         "printed": "2 of 2"},
    ]  # fmt: skip


def test_stages_of_a_row_are_those_of_its_table():
    from engram.reproduce.papers.confer_paper import PAPER as CONFER

    where = {"dataset": "FER-2013", "order": "O1", "augmentation": "without", "metric": "Acc"}
    found = CellFindings(
        "confer", CONFER, [{"finding": "x", "table": "27", "where": where, "falls": ["LB", "UB"]}],
        {"27": lambda cell: CellEntry(measure=constant(cell.value))},
    )  # fmt: skip
    table = tabulate_claims([0], found.claims)
    assert table["first"].str.endswith("stage 1").all()
    assert table["holds"].tolist() == table["printed_holds"].tolist()


def test_data_that_the_preset_leaves_out_is_left_out():
    both = {**EVERY, "dataset": ["MNIST", "CIFAR-100"]}
    one = {"finding": "x", "table": "1", "where": both, "above": [[["EWC"], ["Vanilla"]]]}
    assert len(declared(one, preset=replace(PAPER, cifar=None))) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"abve": 1}, "'abve', did you mean 'above'"),
        ({"above": [[["EWK"], ["PI"]]]}, "one cell of table 1 with .*method=EWK, got '0 of them'"),
        ({"where": {**EVERY, "metrc": "F"}}, "'metrc', did you mean 'metric'"),
        ({"table": "7"}, "unknown name '7'"),
        ({"falls": ["EWC"]}, "one of above"),
    ],
)
def test_a_finding_that_fits_no_cell_is_refused(change, complaint):
    one = {"finding": "x", "table": "1", "where": EVERY, "above": [[["EWC"], ["PI"]]]}
    with pytest.raises(BadArgument, match=complaint):
        declared({**one, **change})


def test_rows_without_data_are_left_out_of_a_partial_figure():
    """Findings over two sets are tried on the one that is there."""
    table = find_table("rwalk/1", embedded=True)
    recipe = table.entry(table.cells[0]).recipes[0]
    absent = recipe.change(stream={**recipe.stream, "data": "eight_task"})
    recipes = [
        recipe,
        absent,
    ]
    rows = [(recipe, {"method": str(k)}) for k, recipe in enumerate(recipes)]
    figure = make_findings_figure("x", more=lambda result: (), rows=rows)
    made = plan(replace(table, cells=(), figures=(figure,)), measure=False)
    assert [len(one.recipes) for one in made.figures] == [1]
    assert any(note.startswith("findings: rows are left out: ") for note in made.notes)
    assert {run.recipe for run in made.runs} == set(made.ids.values()) != set()
