"""Ridge regression on random projections against plain formulas over all rows so far."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram import keys
from engram.checks.toy_runs import EXACT, ORDERS, make_clouds, make_streams
from engram.engine import evaluation
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.methods import RanPAC
from engram.methods.first_session import LabelledFeatures
from engram.methods.ranpac import RIDGES, choose_ridge, hold_out
from engram.streams import class_incremental
from tests.methods.fixed_features import FROZEN, stages
from tests.plain.closed_forms import best_ridge, ridge_regression
from tests.refusals import refuses

WIDTH = 40


def project(z):
    return torch.relu(z @ keys.normal(keys.fold(0, "RanPAC"), z.shape[1], WIDTH))


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_scores_are_those_of_the_formula(ridge, together):
    method, chosen = RanPAC(width=WIDTH, ridge=ridge), set()
    for seen in stages(method, together=together):
        learner = seen.stage.learner
        wide, own = project(seen.z), torch.isin(seen.rows, learner.task.train)
        used = ridge
        if not ridge:
            now = LabelledFeatures(seen.z[own], seen.y[own], seen.rows[own])
            held = hold_out(now, learner.seed)
            _, y = now.labels.unique(return_inverse=True)
            used = best_ridge(project(now.features), y, held)
        assert float(learner.state["ridge"]) == used
        chosen.add(used)
        wanted = ridge_regression(wide, seen.y, project(seen.test), used)
        scores = seen.scores(method)[:, : seen.classes]
        # tiny ridges leave the system ill-conditioned, in the formula too
        assert (scores - wanted).abs().max() < (1e-9 if used >= 1e-4 else 1e-6)
    assert ridge or (len(chosen) > 1 and max(chosen) >= 1e-4)


def test_both_decompositions_choose_alike():
    drawn = keys.normal(3, 60, 30).relu()
    targets = (drawn[:, :3] + 0.3 * keys.normal(4, 60, 3) > 0.4).double()
    for rows in (20, 45):  # fewer and more than the 30 dimensions
        held = torch.arange(60) >= rows
        errors = []
        for ridge in RIDGES:
            eye = torch.eye(30).double()
            z, y = drawn[~held], targets[~held]
            weight = torch.linalg.solve(z.T @ z + ridge * eye, z.T @ y)
            errors.append(float((drawn[held] @ weight - targets[held]).square().sum()))
        best = RIDGES[errors.index(min(errors))]
        assert choose_ridge(drawn[~held], targets[~held], drawn[held], targets[held]) == best


def test_at_a_fixed_ridge_the_order_of_tasks_does_not_matter():
    data, found = make_clouds(), []
    for order in ORDERS:
        stream = class_incremental(data, order=list(order), classes_per_task=2)
        *_, last = stages(RanPAC(width=WIDTH, ridge=1.0), together=False, on=[stream])
        weight = last.stage.learner.state["weight"]
        found.append(weight[stream.position])  # by class
    assert not torch.equal(found[0], found[1])  # other sums, in other orders
    for other in found[1:]:
        assert (other - found[0]).abs().max() < 1e-10 * found[0].abs().max()


def test_held_out_rows_follow_from_row_numbers_alone():
    y, rows = torch.arange(60) % 3, torch.randperm(200)[:60]
    whole = hold_out(LabelledFeatures(torch.zeros(60, 1), y, rows), seed=4)
    assert [int(whole[y == c].sum()) for c in range(3)] == [4, 4, 4]
    some = y != 1
    part = hold_out(LabelledFeatures(torch.zeros(40, 1), y[some], rows[some]), seed=4)
    assert torch.equal(part, whole[some])
    assert not torch.equal(whole, hold_out(LabelledFeatures(torch.zeros(60, 1), y, rows), seed=5))


def test_tasks_of_single_rows_keep_the_ridge():
    stream = class_incremental(make_clouds((2, 2, 2, 2)), classes_per_task=2)
    for seen in stages(RanPAC(width=WIDTH), together=False, on=[stream]):
        assert float(seen.stage.learner.state["ridge"]) == 1.0
        assert torch.isfinite(seen.stage.learner.state["weight"]).all()


def test_runs_share_one_projection_and_sums_have_the_precision_of_the_run():
    streams = make_streams()
    for precision, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        training = replace(EXACT, precision=precision)
        runs = [
            Run(stream=one, method=RanPAC(width=WIDTH), model=FROZEN, training=training)
            for one in streams
        ]
        last = {s.run: s.learner for s in Engine(runs, device="cpu", together=True).stages()}
        learners = list(last.values())
        where = {one.networks.constants["projection.weight"].data_ptr() for one in learners}
        assert len(where) == 1
        for one in learners:
            assert one.state["gram"].dtype == dtype
            size = torch.finfo(dtype).bits // 8
            held = WIDTH * WIDTH + 2 * len(one.opened) * WIDTH + len(one.opened)
            assert one.nbytes()["state"] == size * held + 8
            assert one.nbytes()["networks"] == size * WIDTH * 10


def test_single_precision_leaves_out_ridges_that_it_cannot_hold():
    right = {}
    for precision in ("float32", "float64"):
        run = Run(
            stream=make_streams()[0], method=RanPAC(width=400), model=FROZEN,
            training=replace(EXACT, precision=precision),
        )  # fmt: skip
        *_, last = Engine([run], device="cpu").stages()
        gram = last.learner.state["gram"]
        least = torch.finfo(gram.dtype).eps * float(gram.trace())
        assert float(last.learner.state["ridge"]) >= least
        rows = torch.cat([task.test for task in run.stream.tasks])
        answers = torch.as_tensor(last.scores).argmax(1)
        right[precision] = (answers == run.stream.targets[rows][:, 0]).double().mean()
    assert abs(right["float32"] - right["float64"]) < 0.1
    drawn = keys.normal(3, 20, 30)
    targets = (drawn[:, :3] > 0).double()
    ridges = {choose_ridge(drawn, targets, drawn, targets, least=k) for k in (0.0, 2.0, 1e12)}
    assert ridges == {1e-8, 10.0, 1e9}


def test_large_states_are_not_stacked_all_at_once(monkeypatch):
    whole = [seen.stage.scores for seen in stages(RanPAC(width=WIDTH), together=True)]
    widths, stacked = [], evaluation.stack
    monkeypatch.setattr(evaluation, "STACKED_BYTES", 3 * 8 * WIDTH**2)
    monkeypatch.setattr(
        evaluation, "stack", lambda trees: widths.append(len(trees)) or stacked(trees)
    )
    halved = [seen.stage.scores for seen in stages(RanPAC(width=WIDTH), together=True)]
    assert max(widths) == 2
    for one, other in zip(whole, halved, strict=True):
        assert abs(one - other).max() < 1e-6


@pytest.mark.parametrize("bad", [{"width": 0}, {"ridge": -1.0}, {"projection": -1}])
def test_bad_values(bad):
    (name,) = bad
    with refuses(name):
        RanPAC(**bad)
