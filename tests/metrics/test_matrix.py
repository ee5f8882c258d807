"""The accuracy matrix: goldens, one matrix under every definition, loops, properties."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engram import metrics
from engram.metrics import FORGETTING_DEFINITIONS
from tests.refusals import refuses

NAN = float("nan")
THREE = [[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]  # the matrix of T-M2

# One matrix for every definition. Drops from the diagonal are .30 .25 -.05 .20,
# from the best since learnt .35 .35 -.05 .20.
FIVE = np.array(
    [
        [0.90, NAN, NAN, NAN, NAN],
        [0.95, 0.80, NAN, NAN, NAN],
        [0.85, 0.90, 0.70, NAN, NAN],
        [0.80, 0.85, 0.70, 0.85, NAN],
        [0.60, 0.55, 0.75, 0.65, 0.95],
    ]
)
# The same with accuracies before learning; task 2 once reached .80 before, task 4 at most .15.
FIVE_FULL = np.where(
    np.isnan(FIVE),
    np.array(
        [
            [0, 0.10, 0.80, 0.20, 0.05],
            [0, 0, 0.30, 0.10, 0.15],
            [0, 0, 0, 0.25, 0.10],
            [0, 0, 0, 0, 0.12],
            [0, 0, 0, 0, 0],
        ]
    ),
    FIVE,
)
GOLDEN = {
    "max": 0.2125,  # (.35 + .35 - .05 + .20) / 4
    "diagonal": 0.175,  # (.30 + .25 - .05 + .20) / 4
    "all": 0.065,  # (-.05) + (.05 - .10) + (.10 - .05 + 0) + .70 = .65, over 10 pairs
    "mean_T": 0.14,  # .70 / 5
    "avalanche": 0.175,
    "mammoth": 0.225,  # (.35 + .35 + 0 + .20) / 4: the last row may be the best
    "libcontinual": 0.125,  # (.30 + .25 - .05) / 4: task 3 is skipped
    "cglb": -0.175,
    "pyclad": -0.02,  # (.35 + .35 - .05 + .20 + (0 - .95)) / 5: the newest task counts too
}
GOLDEN_FULL = GOLDEN | {
    "first": 0.2375,  # task 2: .80 - .75 instead of -.05, so .95 / 4
    "mammoth": 0.2375,
    "pyclad": 0.03,  # (.95 + (.15 - .95)) / 5
}


def close(value: object, wanted: object) -> None:
    np.testing.assert_allclose(value, wanted, atol=1e-5, rtol=0)


def test_tm0_macro_and_pooled_average() -> None:
    matrix = [[0.5, NAN], [9 / 10, 1 / 90]]
    close(metrics.average_accuracy(matrix), 0.455556)
    close(metrics.average_accuracy(matrix, counts=[10, 90]), 0.10)


def test_tm2_small_matrix() -> None:
    close(metrics.curve(metrics.average_accuracy, THREE), [0.9, 0.875, 0.72])
    close(metrics.per_task_forgetting(THREE)[:2], [0.25, 0.30])
    close(metrics.curve(metrics.forgetting, THREE), [NAN, -0.05, 0.275])
    close(metrics.curve(metrics.forgetting, THREE, definition="diagonal"), [NAN, -0.05, 0.25])
    close(metrics.backward_transfer(THREE), -0.25)
    close(metrics.backward_transfer(THREE, definition="all"), -0.15)
    close(metrics.forgetting(THREE, definition="all"), 0.15)
    close(metrics.forgetting(THREE, definition="mean_T"), 0.166667)
    close(metrics.learning_accuracy(THREE), (0.9 + 0.8 + 0.96) / 3)


def test_tm3_history_of_one_task() -> None:
    matrix = np.full((4, 4), NAN)
    matrix[np.tril_indices(4)] = 0.5
    matrix[:, 0] = [0.7, 0.8, 0.6, 0.5]
    close(metrics.per_task_forgetting(matrix)[0], 0.3)
    close(metrics.per_task_forgetting(matrix, definition="diagonal")[0], 0.2)


def test_tm4_bound_and_line() -> None:
    close(metrics.forgetting_bound(THREE), 0.40)
    close(metrics.forgetting_bound(THREE, line=True), 0.42)


def test_bound_is_reached_when_every_old_task_was_once_perfect() -> None:
    matrix = [[1.0], [0.6, 1.0], [0.4, 0.3, 0.7]]
    close(metrics.forgetting(matrix), metrics.forgetting_bound(matrix))


def test_tm5_intransigence() -> None:
    close(metrics.intransigence(THREE, [0.9, 0.75, 0.97]), 0.01)
    close(metrics.intransigence(THREE, [0.9, 0.75, 0.97], stage=1), -0.05)
    runs = np.array([FIVE, FIVE])
    close(metrics.intransigence(runs, [[1.0] * 5, [0.9] * 5]), [0.05, -0.05])


def test_the_comparison_of_libraries_shows_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (-?[\d.]+) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(GOLDEN) - {"diagonal", "all", "mean_T", "pyclad"}
    for name, shown in rows:
        close(float(shown) / 100, GOLDEN[name])


@pytest.mark.parametrize("definition", sorted(GOLDEN))
def test_every_definition_on_one_matrix(definition: str) -> None:
    close(metrics.forgetting(FIVE, definition=definition), GOLDEN[definition])


@pytest.mark.parametrize("definition", FORGETTING_DEFINITIONS)
def test_every_definition_on_the_full_matrix(definition: str) -> None:
    close(metrics.forgetting(FIVE_FULL, definition=definition), GOLDEN_FULL[definition])


def _loop(a: np.ndarray, k: int, definition: str) -> float:
    """Every definition written out with plain loops over a full matrix."""
    old = range(k)
    diagonal = [a[j][j] - a[k][j] for j in old]
    values = {
        "max": [max(a[i][j] for i in range(j, k)) - a[k][j] for j in old],
        "first": [max(a[i][j] for i in range(k)) - a[k][j] for j in old],
        "mammoth": [max(a[i][j] for i in range(k + 1)) - a[k][j] for j in old],
        "pyclad": [max(a[i][j] for i in range(k)) - a[k][j] for j in range(k + 1)],
        "all": [a[j][j] - a[i][j] for i in range(1, k + 1) for j in range(i)],
        "diagonal": diagonal,
        "avalanche": diagonal,
        "cglb": [-d for d in diagonal],
        "mean_T": [*diagonal, 0.0],
        "libcontinual": [*diagonal[:-1], 0.0],
    }[definition]
    return float(sum(values) / len(values))


@pytest.mark.parametrize("definition", FORGETTING_DEFINITIONS)
def test_definitions_against_loops(definition: str) -> None:
    runs = np.random.default_rng(0).random((3, 2, 6, 6))
    for k in range(1, 6):
        got = metrics.forgetting(runs, definition=definition, stage=k)
        assert got.shape == (3, 2)
        for index in np.ndindex(3, 2):
            assert got[index] == pytest.approx(_loop(runs[index], k, definition))
        truncated = metrics.forgetting(runs[..., : k + 1, :], definition=definition)
        np.testing.assert_array_equal(got, truncated)


def test_forward_transfer() -> None:
    # (.10 + .30 + .25 + .12) / 4
    close(metrics.forward_transfer(FIVE_FULL, 0.0), 0.1925)
    close(metrics.forward_transfer(FIVE_FULL, [0.9, 0.1, 0.1, 0.1, 0.1]), 0.0925)
    close(metrics.forward_transfer(FIVE_FULL, 0.1, stage=1), 0.0)
    with pytest.raises(ValueError, match="full_matrix: expected accuracies right above"):
        metrics.forward_transfer(FIVE, 0.1)
    with refuses("chance"):
        metrics.forward_transfer(FIVE_FULL, [0.1, 0.1])


@pytest.mark.parametrize("definition", FORGETTING_DEFINITIONS)
def test_one_task_has_no_forgetting(definition: str) -> None:
    assert math.isnan(metrics.forgetting([[0.9]], definition=definition))
    assert np.isnan(metrics.forgetting(np.full((3, 1, 1), 0.9), definition=definition)).all()


def test_one_task_elsewhere() -> None:
    assert metrics.average_accuracy([[0.9]]) == metrics.learning_accuracy([[0.9]]) == 0.9
    undefined = [metrics.backward_transfer, metrics.forgetting_bound]
    assert all(math.isnan(metric([[0.9]])) for metric in undefined)
    assert math.isnan(metrics.forward_transfer([[0.9]], 0.1))
    assert np.isnan(metrics.per_task_forgetting([[0.9]])).all()


def test_negative_stage_lists_and_tensors_agree() -> None:
    for stage in range(-5, 5):
        wanted = metrics.forgetting(FIVE, stage=stage % 5)
        np.testing.assert_equal(metrics.forgetting(FIVE.tolist(), stage=stage), wanted)
        tensor = torch.tensor(FIVE, requires_grad=True)
        np.testing.assert_equal(metrics.forgetting(tensor, stage=stage), wanted)


@pytest.mark.parametrize("definition", FORGETTING_DEFINITIONS)
def test_input_is_not_changed(definition: str) -> None:
    matrix = FIVE_FULL.copy()
    matrix[3, 4] = NAN
    before = matrix.copy()
    metrics.forgetting(matrix, definition=definition)
    np.testing.assert_array_equal(matrix, before)


def test_a_diverged_run_stays_visible_and_alone() -> None:
    broken = FIVE.copy()
    broken[2:] = NAN
    both = np.stack([FIVE, broken])
    for definition in GOLDEN:
        good, bad = metrics.forgetting(both, definition=definition)
        close(good, GOLDEN[definition])
        assert math.isnan(bad)
    assert np.isnan(metrics.average_accuracy(both)).tolist() == [False, True]
    full = np.stack([FIVE_FULL, np.full((5, 5), NAN)])
    close(metrics.forgetting(full, definition="first"), [0.2375, NAN])


def test_one_lost_value_is_not_skipped_over() -> None:
    holed = FIVE.copy()
    holed[2, 0] = NAN  # the best of task 0 is no longer known
    assert math.isnan(metrics.forgetting(holed))
    np.testing.assert_array_equal(
        np.isnan(metrics.per_task_forgetting(holed)), [True, False, False, False, True]
    )


def test_first_asks_for_the_full_matrix() -> None:
    with pytest.raises(ValueError, match="full_matrix"):
        metrics.forgetting(FIVE, definition="first")


@pytest.mark.parametrize(
    ("matrix", "options", "match"),
    [
        ([0.5, 0.6], {}, "matrix: expected"),
        (np.zeros((3, 2)), {}, "stages <= tasks"),
        (np.zeros((0, 0)), {}, "stages <= tasks"),
        ([[0.5, 0.4], [0.3]], {}, "matrix: expected"),
        (FIVE, {"stage": 5}, "stage: expected a whole number from -5 to 4"),
        (FIVE, {"stage": 1.0}, "stage"),
        (FIVE, {"definition": "mamoth"}, "did you mean 'mammoth'"),
    ],
)
def test_complaints(matrix: object, options: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        metrics.forgetting(matrix, **options)  # type: ignore[arg-type]


def test_more_complaints() -> None:
    with pytest.raises(ValueError, match="fractions, not percent"):
        metrics.forgetting_bound(FIVE * 100)
    with refuses("reference"):
        metrics.intransigence(FIVE, [0.5, 0.5])
    with refuses("counts"):
        metrics.average_accuracy(FIVE, counts=[1, 2])


_matrices = st.integers(2, 6).flatmap(
    lambda n: hnp.arrays(np.float64, (2, n, n), elements=st.floats(0, 1))
)


@given(_matrices)
def test_bound_is_never_violated(runs: np.ndarray) -> None:
    for k in range(1, runs.shape[-1]):
        forgot = metrics.forgetting(runs, stage=k)
        bound = metrics.forgetting_bound(runs, stage=k)
        assert np.all(forgot <= bound + 1e-9)
        assert np.all(bound <= metrics.forgetting_bound(runs, stage=k, line=True) + 1e-9)


@given(_matrices)
def test_relations_between_definitions(runs: np.ndarray) -> None:
    value = {name: metrics.forgetting(runs, definition=name) for name in FORGETTING_DEFINITIONS}
    triangle = np.where(np.tril(np.ones(runs.shape[-2:])) > 0, runs, NAN)
    tasks = runs.shape[-1]
    assert np.all(value["diagonal"] <= value["max"] + 1e-12)
    assert np.all(value["max"] <= value["first"] + 1e-12)
    assert np.all(value["first"] <= value["mammoth"] + 1e-12)
    assert np.all(value["mammoth"] >= 0)
    assert np.all(np.abs(value["max"]) <= 1)
    close(value["cglb"], -value["avalanche"])
    close(value["mean_T"] * tasks, value["diagonal"] * (tasks - 1))
    np.testing.assert_array_equal(metrics.forgetting(triangle), value["max"])
    close(metrics.backward_transfer(runs), -value["diagonal"])
    close(metrics.backward_transfer(runs, definition="all"), -value["all"])
    close(np.nanmean(metrics.per_task_forgetting(runs), axis=-1), value["max"])


@given(_matrices)
def test_curve_is_the_metric_at_each_stage(runs: np.ndarray) -> None:
    values = metrics.curve(metrics.forgetting, runs, definition="max")
    assert values.shape == runs.shape[:-1]
    for k in range(runs.shape[-1]):
        np.testing.assert_array_equal(values[..., k], metrics.forgetting(runs, stage=k))


def test_average_incremental_accuracy_is_the_mean_of_the_curve():
    matrix = np.random.default_rng(0).random((3, 4, 4))
    expected = metrics.curve(metrics.average_accuracy, matrix)
    np.testing.assert_allclose(metrics.average_incremental_accuracy(matrix), expected.mean(axis=-1))
    np.testing.assert_allclose(
        metrics.average_incremental_accuracy(matrix, stage=1), expected[:, :2].mean(axis=-1)
    )
