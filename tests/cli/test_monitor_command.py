"""`engram predict --record` and `engram monitor`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram import Learner, ModelStore


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = np.float32(4 * np.eye(3)[y] + rng.normal(size=(90, 3)))
    learner = Learner("ER", "mlp", epochs=5, lr=0.02, device="cpu", calibration=10)
    learner.learn(x, y).save(tmp_path / "model.engram")
    np.save(tmp_path / "new.npy", x[:30])
    return learner, y[:30]


def test_predictions_are_recorded_and_labels_come_later(engram, rows, tmp_path):
    _, y = rows
    engram("predict", "model.engram", "--data", "new.npy", "--record", "--out", "said.csv")
    said = pd.read_csv("said.csv")
    assert said["id"].is_unique
    pd.DataFrame({"id": said["id"], "label": y}).to_csv("labels.csv", index=False)
    done = engram("monitor", "model.engram", "--labels", "labels.csv", "--out", "page.html")
    right = float((said["label"] == y).mean())
    assert f"{right:.3f}" in done.stdout
    assert "<title>Monitor of model.engram</title>" in (tmp_path / "page.html").read_text()
    numbers = dict(
        line.split() for line in engram("monitor", "model.engram", "--numbers").stdout.splitlines()
    )
    assert float(numbers["accuracy"]) == pytest.approx(right)
    assert numbers["smallest_drift_p_value"] == "nan"
    rows_of = engram("monitor", "model.engram", "--csv").stdout
    assert rows_of.count("\n") == 31
    pd.DataFrame({"id": ["a"], "label": ["cat"]}).to_csv("labels.csv", index=False)
    assert (
        "whole numbers"
        in engram("monitor", "model.engram", "--labels", "labels.csv", code=2).stderr
    )


def test_a_store_is_predicted_with_and_watched(engram, rows):
    learner, _ = rows
    ModelStore.create("store", learner, gate=None)
    engram("predict", "store", "--data", "new.npy", "--record")
    assert "30 rows" in engram("monitor", "store").stderr
    assert "model" in engram("monitor", "absent", code=2).stderr
