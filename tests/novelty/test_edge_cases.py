"""What is refused before training, and what is defined though nothing much is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import engram
from engram import novelty
from engram.cli import app
from engram.errors import BadArgument, RecordError
from engram.novelty import mahalanobis
from engram.records.novelty_records import compare_sets, split_items
from tests.novelty.test_detectors import Linear, facts, fake_batch, scores, train


@pytest.fixture
def untrained(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a stage was trained")

    monkeypatch.setattr("engram.engine.engine.Engine.stages", never)


class TestRefused:
    @pytest.mark.parametrize("name", ["B1", "B2"])
    def test_a_head_with_bias(self, name, untrained):
        with pytest.raises(BadArgument, match=f"without bias.*{name}"):
            train(probes=[], detectors=[name], model="mlp")

    def test_a_head_with_bias_of_finished_runs(self, tmp_path):
        plain = {"seeds": 1, "out": tmp_path, "keep": "parameters", "model": "mlp", "epochs": 1}
        train(**plain)
        with pytest.raises(BadArgument, match="without bias"):
            train(novelty.B2(), **plain)

    def test_more_neighbours_than_classes(self, untrained):
        with pytest.raises(BadArgument, match=r"rank \+ neighbours - 1: expected at most \d+, "):
            train(novelty.B2(neighbours=99))

    def test_more_neighbours_than_rows(self, untrained):
        with pytest.raises(BadArgument, match="k: expected at most 48"):
            train(novelty.KNN(k=49))

    def test_sets_of_labels(self, untrained):
        x = torch.rand(40, 4)
        data = engram.Data.from_arrays(x, [[0, 1], [1, 2], [2, 3], [3, 0]] * 10)
        with pytest.raises(BadArgument, match="one label per row for Softmax"):
            engram.run(engram.class_incremental(data, classes_per_task=2), detectors=["Softmax"])

    def test_scores_that_are_not_one_for_each_row(self):
        class Wide(novelty.Detector):
            def score(self, net, x, columns, state):
                return net(x).logits

        with pytest.raises(BadArgument, match=r"score of Wide: expected one number for each row"):
            train(Wide(), seeds=1)

        class Number(novelty.Detector):
            def score(self, net, x, columns, state):
                return 1

        with pytest.raises(BadArgument, match=r"Number\.score: expected tensors in return, got 1"):
            train(Number(), seeds=1)

    def test_detectors_without_a_score(self, untrained):
        class Empty(novelty.Detector):
            pass

        class Silent(novelty.OutputDetector):
            pass

        for one, verb in ((Empty(), "score"), (Silent(), "familiarity")):
            with pytest.raises(BadArgument, match=rf"{verb}: expected a method that the detector"):
                train(one)

    def test_names(self, untrained):
        with pytest.raises(BadArgument, match="did you mean 'Energy'"):
            train(probes=[], detectors=["Enrgy"])
        with pytest.raises(BadArgument, match=r"did you mean 'lower\.0'"):
            train(novelty.Mahalanobis(layers=("lowr.0",)))

    def test_runs_that_keep_no_items(self, untrained):
        with pytest.raises(engram.BadArgument, match="keep: expected labels, scores or"):
            engram.run(engram.load("blobs"), detectors=["Softmax"], keep="counts", device="cpu")

    def test_finished_runs_whose_parameters_were_not_kept(self, tmp_path):
        train(seeds=1, epochs=1, out=tmp_path)
        with pytest.raises(RecordError, match='keep="parameters"'):
            train(novelty.Energy(), seeds=1, epochs=1, out=tmp_path)
        words = ["run", "--data", "blobs", "--set", "epochs=1", "--out", str(tmp_path / "cli")]
        assert CliRunner().invoke(app, words).exit_code == 0
        asked = ["novelty", str(tmp_path / "cli"), "--detectors", "Energy"]
        refused = CliRunner().invoke(app, asked)
        assert refused.exit_code == 2
        assert "--keep parameters" in refused.output


class TestDefined:
    def stage(self, rows, labels, columns=3, **options):
        rows = torch.tensor(rows).double()
        width = rows.shape[1]
        detector = novelty.Mahalanobis(right=False, **options)
        net = Linear(torch.zeros(columns, width).double())
        state = detector.start(facts(columns, width))
        state = detector.fit(net, fake_batch(rows, torch.tensor(labels)), state)
        return detector, net, detector.finish(state)

    def test_classes_of_one_row(self):
        detector, net, state = self.stage([[0.0, 0.0], [3.0, 4.0]], [0, 1])
        found = detector.score(net, torch.tensor([[0.0, 0.0], [9.0, 9.0]]).double(), None, state)
        assert found.tolist() == [0.0, 0.0]  # nothing is known of how rows vary
        more = self.stage([[0.0, 0.0], [2.0, 2.0], [5.0, 0.0]], [0, 0, 1])
        found = more[0].score(net, torch.tensor([[5.0, 0.0], [9.0, 9.0]]).double(), None, more[2])
        assert found[0] == 0
        assert found[1] < -1

    def test_a_covariance_that_is_nearly_singular(self):
        """A unit that hardly ever fires must not decide."""
        rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
        rows[:, 2] *= 1e-9
        asked = torch.tensor([[0.0, 0.0, 1.0], [9.0, 9.0, 0.0]]).double()
        detector, net, state = self.stage(rows.tolist(), [0] * 50)
        near, far = detector.score(net, asked, None, state)
        assert -1 < near <= 0
        assert -200 < far < -20
        detector, net, state = self.stage(rows.tolist(), [0] * 50, shrink=1e-6)
        assert detector.score(net, asked, None, state)[0] < -1e4

    def test_fewer_rows_than_dimensions(self):
        rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).double()
        detector, net, state = self.stage(rows.tolist(), [0] * 4)
        found = detector.score(net, rows, None, state)
        assert torch.allclose(found, torch.full_like(found, -1.5))  # rank 3, half of it
        assert torch.isfinite(mahalanobis.invert_covariance(torch.zeros(3, 3))).all()

    def test_scores_that_are_equal_or_no_numbers(self):
        sets = split_items([1, 1, 1, 0], [1, 1, 0, 0], task=[0, 0, 0, 1], stage=0)
        assert compare_sets(np.zeros((1, 4)), sets)["combined_auroc"] == 0.5
        odd = compare_sets(np.array([[np.nan, 1.0, 1.0, 0.0]]), sets)
        assert odd["combined_auroc"] == 0.5  # one of two inside items is less familiar than novel
        assert compare_sets(np.full((1, 4), np.nan), sets)["combined_auroc"] == 0.5

    def test_empty_sets(self):
        sets = split_items([0, 0, 1, 0], [0, 0, 1, 0], task=[0, 0, 1, 2], stage=1)
        found = compare_sets(np.arange(8.0).reshape(2, 4), sets)
        assert np.isnan(found["previous_auroc"])  # nothing of the first task is inside
        assert np.isfinite(found["recent_auroc"])
        assert np.isnan(found["inside_forgotten_auroc"])
        assert np.isnan(found["forgotten_outside_detection_error"])

    def test_a_class_incremental_run_that_forgets_all(self):
        result = train(novelty.Softmax(), head="single", seeds=1, epochs=20)
        assert not len(result.sets(0, stage=1).inside[0])
        table = result.novelty().set_index(["stage", "metric"])["mean"]
        assert np.isnan(table[1, "previous_auroc"])
        assert np.isfinite(table[1, "recent_auroc"])

    def test_which_run_and_stage(self):
        result = train(novelty.Softmax, seeds=1)  # the class will do
        assert result.sets(np.int64(-1), np.int64(1)).stage == 1
        for run, stage in ((3, 0), (("a", 0, ""), 0), (0, 1.0), (0, 9), (None, 0)):
            with pytest.raises(BadArgument, match=r"(run|stage): expected a number"):
                result.sets(run, stage)

    def test_runs_that_diverge(self):
        usual = {"optimizer": "sgd", "seeds": 1, "epochs": 3}
        lost = train(novelty.Softmax(), novelty.KNN(k=2), lr=1e30, **usual)
        assert lost.diverged
        with pytest.raises(RecordError, match="no detector has scored these runs: 1 of 1 diverged"):
            lost.novelty()
        fine = train(novelty.Softmax(), lr=0.01, **usual)
        assert np.isfinite(scores(fine, novelty.Softmax(), 0, 2)).any()
