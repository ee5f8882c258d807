"""Tuned detectors: chosen once, against the outside set, and then as if chosen by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import engram
from engram import novelty
from engram.cli import app
from engram.errors import BadArgument
from engram.experiments import Callback
from engram.novelty import mahalanobis
from engram.report import from_result
from tests.refusals import refuses

MODEL = {"name": "mlp", "hidden": [8], "head": {"name": "linear", "bias": False}}


@dataclass(frozen=True)
class Axis(novelty.Detector):
    """Minus one of the input's numbers: familiar is what is small there."""

    searched: ClassVar = {"place": (0, 1, 2)}
    place: int = 0

    @property
    def only_scores(self):
        return ("place",)

    def score(self, net, x, columns, state):
        return -x[:, self.place]


def blobs(seed=0, shift=0.0, place=0, rows=20):
    """Six classes; `shift` moves all rows along one axis."""
    data = engram.load("blobs", classes=6, per_class=rows, features=4, spread=0.1, seed=seed)
    x = data.x.clone()
    x[:, place] += shift
    return engram.Data.from_arrays(x, data.y[:, 0])


def train(*detectors, head="multi", valid=0.25, outside=None, data=None, **changes):
    build = engram.task_incremental if head == "multi" else engram.class_incremental
    stream = build(blobs() if data is None else data, classes_per_task=2, valid=valid)
    settings = {"model": MODEL, "device": "cpu", "batch_size": 8, "epochs": 4, "seeds": 2}
    outside = blobs(1, 100.0, 1) if outside is None else outside
    return engram.run(stream, probes=list(detectors), outside=outside, **{**settings, **changes})


def scores(result, detector, run, stage):
    return result.arrays(detector.name, run, stage=stage)["familiarity"]


def chosen(result):
    return result.tuned()["value"].tolist()


def against_the_outside_set() -> None:
    """The axis along which the outside set lies away, not that of the tasks to come."""
    data = blobs()
    data.x[data.labels > 1, 2] += 500.0  # tasks to come: the third axis would tell them
    assert chosen(train(novelty.Tuned(Axis()), data=data)) == [1, 1]


def test_chosen_against_the_outside_set():
    against_the_outside_set()
    assert chosen(train(novelty.Tuned(Axis()), outside=blobs(1, 100.0, 2), seeds=1)) == [2]


def test_tuning_on_tasks_to_come_is_noticed(monkeypatch):
    def peek(self, view, state):
        items = next(x for _, x in view.inputs(512))
        whole = view.map(lambda net, x: self.score(net, x, None, {}), items)
        return whole[:, (view.task > view.stage)[0]]

    monkeypatch.setattr(Axis, "outside_scores", peek)
    with pytest.raises(AssertionError):
        against_the_outside_set()


@pytest.mark.parametrize("head", ["multi", "single"])
def test_afterwards_as_if_chosen_by_hand(head):
    searched = (
        novelty.Tuned(novelty.ODIN(), {"epsilon": (0.0, 0.3)}),
        novelty.Tuned(novelty.KNN(keep=10), {"k": (1, 5)}),
        novelty.Tuned(novelty.VAE(batch_size=8, epochs=1, steps=0), {"latent": (2, 3)}),
    )
    result = train(*searched, head=head)
    table = result.tuned()
    for detector in searched:
        for run in range(2):
            own = table[(table["detector"] == detector.name) & (table["seed"] == run)]
            (value,) = own["value"]
            plain = replace(detector.detector, **{own["option"].item(): value})
            by_hand = train(plain, head=head, seeds=[run])
            for stage in range(3):
                one, two = scores(result, detector, run, stage), scores(by_hand, plain, 0, stage)
                assert np.allclose(one, two, atol=2e-5, rtol=1e-4, equal_nan=True)


def test_the_area_is_that_of_the_choice():
    detector = novelty.Tuned(novelty.Mahalanobis(), {"epsilon": (0.0, 0.5)})
    result = train(detector, seeds=1)
    arrays = result.arrays(detector.name, stage=0)
    assert arrays["tuning"].shape == (2,)
    assert result.tuned()["auroc"].item() == arrays["tuning"].max()
    assert "tuning" not in result.arrays(detector.name, stage=1)
    (said,) = from_result(result).tuned
    assert said.startswith(f"{detector.name} (Finetune): epsilon=")


def test_reads_of_the_outside_set_are_those_of_the_first_stage():
    result = train(novelty.Tuned(Axis()), seeds=1)
    stages = result.ledger[0]["stages"]
    assert stages["0"]["outside"] == 3 * 6 * 3  # three values; a fifth of 16 rows per class
    assert not any("outside" in stages[k] for k in ("1", "2"))


def test_interrupted_or_from_records(tmp_path):
    detector = novelty.Tuned(novelty.Mahalanobis(), {"epsilon": (0.0, 0.5)})
    online = train(detector, seeds=1)
    train(seeds=1, out=tmp_path, keep="parameters")
    later = train(detector, seeds=1, out=tmp_path, keep="parameters")
    assert later.runs == online.runs
    for stage in range(3):
        one, two = (scores(r, detector, 0, stage) for r in (online, later))
        assert np.array_equal(one, two, equal_nan=True)
    assert chosen(online) == chosen(later)


def test_killed_and_resumed_bitwise(tmp_path):
    """What was chosen after the first stage, and what was fitted by then, outlive the process."""
    detectors = (
        novelty.Tuned(novelty.ODIN(), {"epsilon": (0.0, 0.3)}),
        novelty.Tuned(novelty.VAE(batch_size=8, epochs=1, steps=0), {"latent": (2, 3)}),
    )

    class Kill(Callback):
        def stage(self, plan, stage, rows):
            if stage == 1:
                raise KeyboardInterrupt

    whole = train(*detectors)
    with pytest.raises(KeyboardInterrupt):
        train(*detectors, out=tmp_path, callback=Kill())
    resumed = train(*detectors, out=tmp_path)
    assert chosen(resumed) == chosen(whole)
    for detector in detectors:
        for run in range(2):
            for stage in range(3):
                one, two = (scores(r, detector, run, stage) for r in (whole, resumed))
                assert np.array_equal(one, two, equal_nan=True)


def test_equal_fits_are_made_once(monkeypatch):
    """40 steps are 14 epochs of 18 rows: one or two of them are too few, and the same."""
    made = []
    fitted = novelty.VAE.fit_stage
    monkeypatch.setattr(novelty.VAE, "fit_stage", lambda *a: made.append(a) or fitted(*a))
    detector = novelty.Tuned(
        novelty.VAE(batch_size=8, steps=40, latent=2), {"epochs": (1, 2), "form": ("inverse",)}
    )
    result = train(detector, seeds=1)
    assert len(made) == 1 + 2  # once to choose, once after every later stage
    areas = result.arrays(detector.name, stage=0)["tuning"]
    assert areas[0] == areas[1]


def test_a_recipe_and_back():
    mapping = {"name": "Tuned", "detector": {"name": "KNN", "keep": 20}, "grid": {"k": [1, 2]}}
    plain = {"stream": {"data": "blobs"}, "method": "Finetune", "detectors": [mapping]}
    (detector,) = engram.Recipe.of(plain).probes
    assert detector == novelty.Tuned(novelty.KNN(keep=20), {"k": (1, 2)})
    again = engram.Recipe.of(engram.Recipe.of(plain).plain())
    assert again.probes == (detector,)


def test_refused_before_training(monkeypatch):
    monkeypatch.setattr("engram.engine.engine.Engine.stages", None)
    odin = novelty.Tuned(novelty.ODIN())
    with pytest.raises(BadArgument, match=r"stream\.valid.*validation rows to tune 'odin'"):
        train(odin, valid=0.0)
    stream = engram.task_incremental(blobs(), classes_per_task=2, valid=0.25)
    with refuses("outside"):
        engram.run(stream, detectors=[odin])
    with refuses("outside"):
        engram.run(stream, detectors=[{"name": "Mahalanobis", "combine": "logistic"}])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((novelty.Softmax(),), "declares none"),
        ((novelty.ODIN(), {"epsilom": [0]}), "did you mean 'epsilon'"),
        ((novelty.ODIN(), {"epsilon": []}), "a list of values"),
        ((novelty.ODIN(), {"epsilon": [-1.0]}), "epsilon"),
        (("ODIN",), "a detector"),
        ((novelty.Tuned(novelty.ODIN()),), "not tuned yet"),
    ],
)
def test_bad_values(values, said):
    with pytest.raises(BadArgument, match=said):
        novelty.Tuned(*values)


def test_from_the_command_line(tmp_path):
    common = ["--detectors", "Softmax,ODIN", "--tune"]
    run = ["run", "--data", "blobs", "--out", str(tmp_path), "--set", "epochs=1"]
    run += ["--set", "stream.valid=0.2"]
    run += ["--set", "outside={data: blobs, data_options: {seed: 1}}"]
    done = CliRunner().invoke(app, [*run, *common, "--keep", "parameters"])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["novelty", str(tmp_path)]).output
    assert "tuned odin (Finetune): epsilon=" in shown
    more = CliRunner().invoke(
        app, ["novelty", str(tmp_path), "--detectors", "Mahalanobis", "--tune"]
    )
    assert "tuned mahalanobis (Finetune): epsilon=" in more.output, more.output
    refused = CliRunner().invoke(app, [*run, "--detectors", "Softmax", "--tune"])
    assert refused.exit_code == 2


class TestLogistic:
    def test_weights_tell_the_layers_that_matter(self):
        generator = torch.Generator().manual_seed(0)
        inside, outside = torch.randn(2, 60, 2, generator=generator).double()
        outside[:, 1] -= 6.0
        weights, bias = mahalanobis.fit_logistic(inside, outside)
        assert weights[1] > 3 * weights[0].abs()
        right = (inside @ weights + bias > 0).double().mean()
        assert right > 0.95

    def test_it_is_scikit_learns_own(self):
        from sklearn.linear_model import LogisticRegression

        generator = torch.Generator().manual_seed(1)
        inside, outside = torch.randn(2, 40, 3, generator=generator).double()
        weights, bias = mahalanobis.fit_logistic(inside, outside + 0.5)
        x = torch.cat([inside, outside + 0.5]).numpy()
        mean, scale = x.mean(0), x.std(0)
        y = np.arange(80) < 40
        found = [
            LogisticRegression(C=c, max_iter=1000).fit((x - mean) / scale, y)
            for c in mahalanobis.PENALTIES
        ]
        odds = [one.decision_function((x - mean) / scale) for one in found]
        own = x @ weights.numpy() + bias.item()
        assert any(np.allclose(own, one, atol=1e-6) for one in odds)

    @pytest.mark.parametrize("empty", [0, 1])
    def test_without_rows_on_a_side_all_are_alike(self, empty):
        sides = [torch.randn(5, 2).double(), torch.randn(5, 2).double()]
        sides[empty] = sides[empty][:0]
        weights, bias = mahalanobis.fit_logistic(*sides)
        assert not weights.any()
        assert not bias.any()

    def test_fitted_after_every_stage(self):
        detector = novelty.Mahalanobis(layers=("lower.0",), combine="logistic")
        result = train(detector, seeds=2)
        stages = result.ledger[0]["stages"]
        assert [stages[str(k)]["outside"] for k in range(3)] == [6 * 13] * 3
        table = result.novelty()
        assert np.isfinite(table[table["metric"] == "recent_auroc"]["mean"]).all()
        alone = train(detector, seeds=2, together=False)
        for stage in range(3):
            one, two = (scores(r, detector, 1, stage) for r in (result, alone))
            assert np.allclose(one, two, atol=1e-3, rtol=1e-3, equal_nan=True)
