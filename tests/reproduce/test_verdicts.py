from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from engram.experiments.plain_values import format_duration, parse_duration
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.result_tables import format_line
from engram.reproduce.verdicts import compare_runs, judge_cell, t_interval
from tests.refusals import refuses


def line(value, values, *, std=math.nan, metric="F", doubt="", **entry):
    cell = Cell("p", "1", {"metric": metric}, value, std, doubt)
    return judge_cell(cell, CellEntry(**entry), np.array(values, np.float64))


def test_tolerance_is_inclusive():
    assert line(0.12, [0.15, 0.15]).verdict == "agrees"
    assert line(0.12, [0.151, 0.151]).verdict == "differs"
    assert line(99.3, [96.3], tolerance=3.0, metric="A(%)").verdict == "agrees"
    assert line(99.3, [96.2], tolerance=3.0, metric="A(%)").verdict == "differs"


def test_a_wide_interval_decides_nothing_from_three_runs_on():
    assert line(0.5, [0.2, 0.9, 0.7]).verdict == "undecided"
    assert line(0.5, [0.2, 0.9]).verdict == "differs"
    assert line(0.5, [0.7]).verdict == "differs"


def test_two_runs_have_no_interval():
    two, three = line(50.0, [10.0, 44.0]), line(50.0, [10.0, 44.0, 30.0])
    assert math.isnan(two.low)
    assert math.isnan(two.high)
    assert (three.low, three.high) == pytest.approx(t_interval(three.values))
    assert format_line(two)["interval"] == ""
    assert " .. " in format_line(three)["interval"]


@pytest.mark.parametrize(
    ("paper", "metric", "printed", "ours", "shown", "gap"),
    [
        ("rwalk", "A(%)", 80.3, 63.9162, "63.9", "-16.4"),
        ("cgl", "AOPD", 96.74, 93.819, "93.8", "-2.9"),
        ("cgl", "frac_memories", 0.05, 0.05, "0.05", "+0"),
        ("cgl", "memory_strength", 1e6, 1e4, "10000", "-990000"),
        ("cgl", "n_action_sequences", 1484.0, 1484.0, "1484", "+0"),
        ("rwalk", "F", 0.12, 0.0572951, "0.0573", "-0.0627"),
        ("rwalk", "I", 6.6e-4, -0.00123, "-0.00123", "-0.00189"),
    ],
)
def test_numbers_have_the_digits_they_need(paper, metric, printed, ours, shown, gap):
    made = judge_cell(Cell(paper, "1", {"metric": metric}, printed), CellEntry(), np.array([ours]))
    assert (format_line(made)["ours"], format_line(made)["difference"]) == (shown, gap)


def test_the_papers_spread_widens_it():
    assert line(0.5, [0.6], std=0.11).verdict == "agrees"
    assert line(0.5, [0.6], std=0.05).verdict == "differs"


def test_a_gap_within_our_scatter_is_undecided():
    found = line(0.5, [0.3, 0.4, 0.65])
    assert (found.verdict, found.reason) == ("undecided", "wide interval")
    assert line(0.5, [0.3, 0.4, 0.65], std=0.06).reason == ""  # the paper's own allows it
    assert line(0.5, [0.3, 0.5, 0.7]).reason == ""  # within the tolerance


def test_deviations_divide_as_the_papers_do():
    values = np.array([1.0, 2.0, 4.0])
    for paper, ddof in (("cgl", 0), ("confer", 1)):
        made = judge_cell(Cell(paper, "2", {"metric": "AOPD"}, 2.0), CellEntry(), values)
        assert made.spread == pytest.approx(np.std(values, ddof=ddof))


def test_reasons():
    assert line(0.5, [0.9]).reason == "unexplained"
    assert line(0.5, [0.5]).reason == ""
    known = line(0.5, [0.9, math.nan], reasons=("variant",), doubt="misprint")
    assert known.reason == "variant; doubtful cell; 1 of 2 runs"
    assert line(0.5, [0.9], doubt="order in doubt").reason == "order in doubt"
    both = line(0.5, [0.9], doubt="misprint; order in doubt")
    assert both.reason == "order in doubt; doubtful cell"
    assert (known.verdict, known.ours) == ("differs", 0.9)


def test_what_cannot_be_compared():
    assert line(0.5, [math.nan]).verdict == "not run"
    assert line(0.5, [], missing="no data").reason == "no data"
    assert line(math.nan, [0.5]).verdict == "not comparable"
    other = line(0.5, [0.5], reasons=("other data",))
    assert (other.verdict, other.reason) == ("not comparable", "other data")
    for reason in ("data subset", "fewer orders"):
        for ours in (0.5, 0.9):
            assert line(0.5, [ours], reasons=(reason,)).verdict == "not comparable"


def test_interval_is_students():
    low, high = t_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    reach = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert (low, high) == pytest.approx((3 - reach, 3 + reach), abs=1e-6)
    assert all(map(math.isnan, t_interval(np.array([1.0]))))


def test_durations():
    assert parse_duration(" 1h 30m 5s ") == 5405
    assert parse_duration("0.5m") == 30
    for text in ("", "m", "10 x", "-5s", "1h nope", "nan"):
        with refuses("budget"):
            parse_duration(text)
    assert format_duration(59.96) == "60.0 s"


class TestRunsOfReleasedCode:
    """Two means are equal if the interval of their difference lies within the margin."""

    THEIRS = (84.0, 85.0, 86.0, 85.0, 85.0)

    def judge(self, *ours, margin=1.5):
        cell = Cell("mammoth", "1", {"metric": "A(%)"}, 85.0, repetitions=self.THEIRS)
        return judge_cell(cell, CellEntry(tolerance=margin), np.array(ours))

    def test_equal(self):
        assert self.judge(85.0, 85.5, 84.5, 85.2).verdict == "agrees"

    def test_a_near_mean_that_varies_much_is_undecided(self):
        line = self.judge(80.0, 90.0, 85.0)
        assert (line.verdict, line.reason) == ("undecided", "wide interval")

    def test_different(self):
        line = self.judge(81.0, 81.5, 80.5)
        assert (line.verdict, line.reason) == ("differs", "unexplained")

    def test_two_repetitions_decide_nothing(self):
        assert self.judge(85.0, 85.0).verdict == "undecided"

    def test_it_is_two_one_sided_tests(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            ours, theirs = rng.normal(0, 1, 6), rng.normal(rng.uniform(-2, 2), 2, 8)
            options = {"equal_var": False}
            above = ttest_ind(ours, theirs - 1.5, alternative="greater", **options).pvalue
            below = ttest_ind(ours, theirs + 1.5, alternative="less", **options).pvalue
            found = compare_runs(ours, theirs, 1.5) == "agrees"
            assert found == (max(above, below) <= 0.05)
