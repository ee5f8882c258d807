"""How often networks are asked: what detectors share, and no more than they need."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import engram
from engram import novelty
from engram.learner.networks import FunctionalNet
from engram.probes.stage_view import StageView

TRAIN, TEST = 80, 10_000
SHARED = (
    novelty.Softmax(), novelty.Energy(), novelty.B1(), novelty.B2(), novelty.KNN(k=5, keep=40),
)  # fmt: skip


class Small(nn.Module):
    """A convolution of four channels."""

    def __init__(self, sample_shape):
        super().__init__()
        self.features = 16
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
        )

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def stream():
    """10,000 test rows of 8x8 in two tasks."""
    y = torch.arange(TRAIN + TEST) % 4
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 60, (len(y), 1, 8, 8), generator=generator, dtype=torch.uint8)
    x[torch.arange(len(y)), 0, 2 * y] += 150
    data = engram.Data.from_arrays(x[:TRAIN], y[:TRAIN], test=(x[TRAIN:], y[TRAIN:]))
    return engram.task_incremental(data, classes_per_task=2)


@pytest.fixture
def asked(monkeypatch):
    """Rows that detectors sent through the network, call by call."""
    rows, inside = [], []
    usual_map, usual_run = StageView.map, FunctionalNet._run

    def mapped(self, *args):
        inside.append(True)
        try:
            return usual_map(self, *args)
        finally:
            inside.pop()

    def counted(self, path, args):
        if inside:
            rows.append(len(args[0]))
        return usual_run(self, path, args)

    monkeypatch.setattr(StageView, "map", mapped)
    monkeypatch.setattr(FunctionalNet, "_run", counted)
    return rows


class Unbiased(engram.methods.Finetune):
    """B1 and B2 want a last layer without bias."""

    head: ClassVar = {"name": "linear", "bias": False}


def train(stream, *detectors):
    probes = list(detectors)
    engram.run(stream, method=Unbiased(), model=Small, probes=probes, epochs=1, device="cpu")


def test_five_share_one_pass(stream, asked):
    train(stream, *SHARED)
    # after each of two stages the test rows once, and KNN the task's training rows
    assert sum(asked) == 2 * TEST + TRAIN


def test_all_stay_below_twice_what_they_need(stream, asked):
    odin, mahalanobis = novelty.ODIN(), novelty.Mahalanobis(epsilon=0.01)
    train(stream, *SHARED, odin, mahalanobis, novelty.VAE(epochs=2, steps=0))
    shared = 2 * TEST + TRAIN
    under_heads = 2 * (TEST + TEST)  # before and after the step: one head, then two of half each
    no_heads = 2 * 2 * TEST + TRAIN  # before and after the step, and the rows that are fitted on
    autoencoder = 2 * TEST + TRAIN
    needed = shared + under_heads + no_heads + autoencoder
    assert needed <= sum(asked) < 1.1 * needed
