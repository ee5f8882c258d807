"""The autoencoder: worked example, training, forgetting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram import novelty
from engram.errors import BadArgument
from engram.metrics.detection import auroc
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts
from engram.novelty.vae import (
    ConvolutionalAutoencoder,
    DenseAutoencoder,
    adam_step,
    initial_weights,
    kl_divergence,
    make_autoencoder,
    mean_and_deviation,
)
from tests.novelty.test_detectors import Rows, scores, train

FACTS = Facts(2, 3, torch.ones(1), torch.zeros(1, dtype=torch.float64), False, (1, 8, 8), 4)


def batch_of(x: torch.Tensor, w: torch.Tensor | None = None) -> Rows:
    weights = torch.ones(len(x)).to(x) if w is None else w
    return Rows(x, None, weights, now=torch.tensor(0))


def test_divergence_is_torchs_own():
    mean, variance = torch.randn(5, 3).double(), torch.rand(5, 3).double() + 0.1
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mean, variance.sqrt()), normal(0.0, 1.0))
    assert torch.allclose(kl_divergence(mean, variance), wanted.sum(1))


def test_adam_is_torchs_own():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    usual = torch.optim.Adam([weight], lr=0.1)
    state = {k: {"w": torch.zeros(3).double()} for k in ("first", "second")}
    state |= {"weights": {"w": weight.detach().clone()}, "steps": torch.tensor(0)}
    for step in range(4):
        weight.grad = torch.tensor([1.0, -0.3, float(step)], dtype=torch.float64)
        state = adam_step(state, {"w": weight.grad.clone()}, 0.1, torch.tensor(True))
        same = adam_step(state, {"w": weight.grad + 9}, 0.1, torch.tensor(False))
        usual.step()
        assert torch.allclose(state["weights"]["w"], weight.detach(), atol=1e-12)
        assert torch.equal(same["weights"]["w"], state["weights"]["w"])
        assert same["steps"] == step + 1


@pytest.mark.parametrize(
    "shape, kind", [((1, 8, 16), ConvolutionalAutoencoder), ((2, 5, 5), DenseAutoencoder)]
)
def test_inputs_come_back_in_their_shape(shape, kind):
    made = make_autoencoder(shape, 4)
    assert isinstance(made, kind)
    error, far = made(torch.zeros(3, *shape))
    assert error.shape == far.shape == (3,)
    same = [initial_weights(shape, 4, key) for key in (7, 7, 8)]
    assert all(torch.equal(same[0][k], same[1][k]) for k in same[0])
    assert any(not torch.equal(same[0][k], same[2][k]) for k in same[0])


@pytest.mark.parametrize(("of", "steps"), [("features", 30), ("inputs", 6)])
def test_padding_changes_nothing_and_rows_are_learnt(of, steps):
    detector = novelty.VAE(of=of, latent=4, lr=0.01)
    state = detector.begin(detector.start(FACTS), 0)
    shape = (3,) if of == "features" else (1, 8, 8)
    x = 2 + torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()
    padded = batch_of(torch.cat([x, x[:2] * 100]), torch.tensor([1.0] * 6 + [0, 0]).double())
    one, two = (detector.fit(None, rows, state) for rows in (batch_of(x), padded))
    assert all(torch.allclose(one["weights"][k], two["weights"][k]) for k in one["weights"])

    def known(state):
        return detector._ask(state["weights"], x, None)[0].sum()

    before = known(state)
    for _ in range(steps):
        state = detector.fit(None, batch_of(x), state)
    assert known(state) < before / 2


def test_forms_rank_alike_and_a_draw_is_the_same_every_time():
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(1)).double()
    net = lambda x: Output(x, x)  # noqa: E731
    found = []
    for options in ({}, {"form": "neg_elbo"}, {"z": "sample"}, {"z": "sample"}):
        detector = novelty.VAE(latent=2, **options)
        found.append(detector.score(net, x, None, detector.start(FACTS)))
    assert torch.equal(found[0].argsort(), found[1].argsort())
    assert torch.equal(found[2], found[3])
    assert not torch.allclose(found[0], found[2])


def test_it_learns_the_task_and_forgets_on_its_own():
    detector = novelty.VAE(of="inputs", latent=2, epochs=40, batch_size=16, lr=0.01, steps=0)
    result = train(detector, head="single", seeds=1)
    first = result.items(result.runs[0].recipe).task == 0
    after = [scores(result, detector, 0, stage)[0] for stage in range(3)]
    later = result.items(result.runs[0].recipe).task == 2
    assert np.median(after[0][first]) > 2 * np.median(after[0][later])
    assert np.median(after[2][later]) > 2 * np.median(after[0][later])
    assert np.median(after[2][first]) < np.median(after[0][first])


@pytest.mark.parametrize("scaled", [True, False])
def test_features_that_vary_little_are_known_in_units_of_their_own(scaled):
    """In large units z stays unused, and short features, as novel ones are, look familiar."""
    generator = torch.Generator().manual_seed(0)
    code, around, novel = torch.randn(3, 128, 12, generator=generator)
    known = 0.5 + 0.3 * code[:, :2] @ code[:2] / 3 + 0.02 * around
    foreign = 0.5 + 0.09 * novel
    detector = novelty.VAE(lr=0.01)
    state = detector.begin(detector.start(FACTS._replace(features=12, like=known)), 0)
    if scaled:
        centre, unit = mean_and_deviation(known, torch.ones(128))
        state = {**state, "centre": centre, "unit": unit}
    for _ in range(200):
        state = detector.fit(None, batch_of(known), state)
    net = lambda x: Output(x, x)  # noqa: E731
    inside, outside = (detector.score(net, x, None, state) for x in (known, foreign))
    area = auroc(inside.numpy(), outside.numpy())
    assert area > 0.7 if scaled else area < 0.4, area


def test_tasks_of_few_rows_are_seen_more_often():
    seen = []

    class Spy(novelty.VAE):
        def fit(self, net, batch, state):
            seen.append(int((batch.w > 0).sum()))
            return super().fit(net, batch, state)

    train(Spy(latent=2, epochs=1, batch_size=32, steps=7), seeds=1)
    assert seen == [32, 16] * 4 * 3  # 48 rows are two steps, three tasks


def test_the_best_epoch_by_validation_rows():
    how = {"latent": 2, "batch_size": 32, "steps": 0, "lr": 0.3}  # so large that it goes astray
    lasts = [novelty.VAE(epochs=k, form="neg_elbo", **how) for k in (1, 2, 3, 4)]
    best = novelty.VAE(epochs=4, form="neg_elbo", best=True, **how)
    stream = engram.task_incremental(engram.load("blobs", classes=4, per_class=30), valid=0.25)
    result = engram.run(stream, detectors=[*lasts, best], seeds=2, epochs=4, device="cpu")
    for run in range(2):
        found = [result.arrays(one.name, run, stage=0) for one in (*lasts, best)]
        held = [own["calibration"] for own in found]
        assert len({float(np.nansum(own)) for own in held[:4]}) == 4
        place = next(k for k in range(4) if np.array_equal(held[k], held[4], equal_nan=True))
        assert np.array_equal(found[place]["familiarity"], found[4]["familiarity"], equal_nan=True)
        if not np.isnan(held[0]).any():  # all of them are right: the loss is that of all rows
            assert place == int(np.argmax([own.sum() for own in held[:4]]))
    with pytest.raises(BadArgument, match=r"stream\.valid: expected validation rows in task 1"):
        train(best, seeds=1)


@pytest.mark.parametrize("values", [{"of": "feature"}, {"latent": 0}, {"lr": 0.0}, {"z": "x"}])
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        novelty.VAE(**values)
