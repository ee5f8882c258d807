"""Detectors beside their papers' formulas, written out in numpy; tests/novelty/test_pytorch_ood.py
has the same beside a package.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from engram import novelty
from engram.checks import check
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts
from tests.novelty.test_detectors import Rows, train
from tests.refusals import refuses

CLASSES, WIDTH, ROWS = 3, 8, 60
RNG = np.random.default_rng(0)
LABELS = np.arange(ROWS) % CLASSES
KNOWN = np.maximum(RNG.normal(size=(ROWS, WIDTH)) + LABELS[:, None], 0)  # as after ReLU
ASKED = np.maximum(2 * RNG.normal(size=(20, WIDTH)) + 0.5, 0)
WEIGHT, BIAS = RNG.normal(size=(CLASSES, WIDTH)) + [[-0.4], [0.1], [0.6]], np.array([6.0, 3.0, 0.0])
BOTH, EVERY = [0, 1], [0, 1, 2]  # columns of a head


def net(features, columns):
    return features @ WEIGHT[columns].T + BIAS[columns]


def energy(logits):
    return logsumexp(logits, axis=1)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def of(columns):
    """Rows of some classes."""
    return KNOWN[np.isin(LABELS, columns)]


def max_logit(columns):
    return net(ASKED, columns).max(1)


def gen(columns):
    p = np.sort(softmax(net(ASKED, columns), axis=1), 1)[:, ::-1][:, :2].clip(1e-7, 1 - 1e-7)
    return -(p**0.5 * (1 - p) ** 0.5).mean(1)


def grad_norm(columns):
    away = softmax(net(ASKED, columns) / 2, axis=1) - 1 / len(columns)
    return np.abs(away[:, :, None] * ASKED[:, None] / 2).sum((1, 2))


def react(columns):
    return energy(net(np.minimum(ASKED, np.quantile(KNOWN, 0.8)), columns))


def ash(columns, variant):
    found = []
    for row in ASKED:
        stay = np.argsort(row)[::-1][:3]  # 3 of 8 with a share of 0.65
        shaped = np.zeros(WIDTH)
        shaped[stay] = row[stay]
        if variant == "s":
            shaped *= np.exp(row.sum() / shaped.sum())
        if variant == "b":
            shaped[stay] = row.sum() / 3
        found.append(shaped)
    return energy(net(np.array(found), columns))


def dice(columns):
    gives = KNOWN.mean(0) * WEIGHT[columns]
    sparse = np.where(gives > np.quantile(gives, 0.6), WEIGHT[columns], 0)
    return energy(ASKED @ sparse.T + BIAS[columns])


def she(columns):
    right = net(KNOWN, EVERY).argmax(1) == LABELS
    means = np.stack([KNOWN[right & (c == LABELS)].mean(0) for c in EVERY])
    return (ASKED * means[net(ASKED, columns).argmax(1)]).sum(1)


def kl_matching(columns):
    p, q = (softmax(net(x, c), axis=1) for x, c in ((KNOWN, EVERY), (ASKED, columns)))
    typical = [p[p.argmax(1) == c].mean(0)[columns] for c in columns if (p.argmax(1) == c).any()]
    return -np.min([(q * np.log(q / one)).sum(1) for one in typical], 0)


def nnguide(columns):
    rows = KNOWN[np.isin(LABELS, columns)]
    like = unit(ASKED) @ (unit(rows) * energy(net(rows, EVERY))[:, None]).T
    return np.sort(like, 1)[:, -4:].mean(1) * energy(net(ASKED, columns))


def fdbd(columns):
    logits, weight = net(ASKED, columns), WEIGHT[columns]
    found = []
    for row, own in zip(ASKED, logits, strict=True):
        best = own.argmax()
        away = [(own[best] - own[c]) / np.linalg.norm(weight[best] - weight[c])
                for c in range(len(columns)) if c != best]  # fmt: skip
        found.append(np.mean(away) / np.linalg.norm(row - KNOWN.mean(0)))
    return np.array(found)


def squared(rows, mean, covariance):
    return np.einsum("if,fg,ig->i", rows - mean, np.linalg.inv(covariance), rows - mean)


def rmd(columns):
    within = np.mean([np.cov(KNOWN[c == LABELS].T, bias=True) for c in EVERY], 0)
    own = [squared(ASKED, KNOWN[c == LABELS].mean(0), within) for c in EVERY]
    return squared(ASKED, KNOWN.mean(0), np.cov(KNOWN.T, bias=True)) - np.min(own, 0)


def vim(columns):
    origin = -np.linalg.pinv(WEIGHT[columns]) @ BIAS[columns]
    rows = of(columns) - origin
    outside = np.linalg.svd(rows)[2][4:]
    far = np.linalg.norm(rows @ outside.T, axis=1)
    scale = net(of(columns), columns).max(1).mean() / far.mean()
    return energy(net(ASKED, columns)) - scale * np.linalg.norm(
        (ASKED - origin) @ outside.T, axis=1
    )


CASES = {
    "max_logit": (novelty.MaxLogit(), max_logit),
    "gen": (novelty.GEN(gamma=0.5, largest=2), gen),
    "grad_norm": (novelty.GradNorm(temperature=2.0), grad_norm),
    "react": (novelty.ReAct(share=0.8), react),
    **{f"ash {v}": (novelty.ASH(variant=v), lambda c, v=v: ash(c, v)) for v in "sbp"},
    "dice": (novelty.DICE(share=0.6), dice),
    "she": (novelty.SHE(), she),
    "kl_matching": (novelty.KLMatching(), kl_matching),
    "nnguide": (novelty.NNGuide(k=4), nnguide),
    "fdbd": (novelty.FDBD(), fdbd),
    "rmd": (novelty.RMD(), rmd),
    "vim": (novelty.ViM(dimensions=4), vim),
}


def tensor(array):
    return torch.from_numpy(np.array(array)).double()


def fitted(detector, rows=KNOWN, labels=LABELS, weight=WEIGHT, bias=BIAS):
    """The state after some training rows, in two batches with padding."""
    like = tensor([0.0])
    state = detector.begin(detector.start(Facts(CLASSES, WIDTH, like + 1, like, True)), 0)
    for start in range(0, len(rows), 32):
        part = slice(start, start + 32)
        x, y = tensor([*rows[part], np.full(WIDTH, 9.0)]), [*labels[part], 0]
        w = torch.ones(len(y)).double()
        w[-1] = 0
        seen = torch.ones(len(y), CLASSES, dtype=torch.bool)
        batch = Rows(x, torch.tensor(y), w, seen, torch.tensor(0))
        output = Output(x, x @ tensor(weight).mT + tensor(bias))
        state = detector.learn(output, batch, state)
    return detector.finish(state)


def rate(detector, state, columns, asked=ASKED, weight=WEIGHT, bias=BIAS):
    layer = novelty.LastLayer(tensor(weight), tensor(bias))
    head, x = torch.isin(torch.arange(CLASSES), torch.tensor(columns)), tensor(asked)
    output = Output(x, layer.logits(x))
    if isinstance(detector, novelty.LastLayerDetector):
        return detector.rate_features(output, layer, head, state)
    return detector.familiarity(output, layer.weight, head, state)


@pytest.mark.parametrize("columns", [BOTH, EVERY], ids=["a head of two", "all"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_the_paper(name, columns):
    detector, formula = CASES[name]
    found = rate(detector, fitted(detector), columns)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), formula(columns), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_numbers_without_any_rows(name):
    detector = CASES[name][0]
    assert torch.isfinite(rate(detector, fitted(detector, KNOWN[:0], LABELS[:0]), EVERY)).all()


def test_rows_within_the_space_have_no_virtual_logit():
    detector = novelty.ViM(dimensions=4)
    found = rate(detector, fitted(detector, KNOWN[:3], LABELS[:3]), EVERY)
    np.testing.assert_allclose(found.numpy(), energy(net(ASKED, EVERY)), rtol=1e-9)


def test_how_many_dimensions():
    assert [novelty.ViM()._dimensions(n) for n in (64, 768, 2048)] == [32, 512, 1000]
    assert novelty.ViM(dimensions=5)._dimensions(64) == 5


FITTED = (
    novelty.KLMatching(refit="memory"), novelty.ReAct(), novelty.DICE(), novelty.SHE(),
    novelty.RMD(), novelty.NNGuide(k=3, refit="memory"), novelty.ViM(), novelty.FDBD(),
)  # fmt: skip
BARE = (novelty.MaxLogit(), novelty.GEN(), novelty.GradNorm(), novelty.ASH())


@pytest.mark.parametrize("head", ["multi", "single"])
def test_runs_together_and_alone(head):
    together, alone = (
        train(*FITTED, *BARE, head=head, together=t, method="ER", model="mlp")
        for t in (True, False)
    )
    for detector in (*FITTED, *BARE):
        for stage in (0, 2):
            one, two = (
                result.arrays(detector.name, 1, stage=stage)["familiarity"]
                for result in (together, alone)
            )
            assert np.isfinite(one).any(), detector
            assert np.allclose(one, two, atol=1e-3, rtol=1e-3, equal_nan=True), detector


def test_last_layers_that_are_not_linear_are_refused():
    cosine = {"name": "mlp", "hidden": [8], "head": "cosine"}
    for detector in (novelty.ViM(), novelty.GradNorm()):
        with refuses("model"):
            train(detector, model=cosine)
        with refuses("method"):
            train(detector, method="ICaRL", head="single")
    with refuses("dimensions"):
        train(novelty.ViM(dimensions=8))
    with refuses("k"):
        novelty.NNGuide(k=10, per_class=5)


@pytest.mark.parametrize(
    "other", [novelty.Wrapped("ViM", d=4), novelty.Wrapped("GEN")], ids=lambda one: one.name
)
def test_names_differ_from_those_of_wrapped_ones(other):
    names = [one(**({} if one is not novelty.Wrapped else {"detector": "KNN"})).name
             for one in novelty.detectors().values()]  # fmt: skip
    assert len({*names, other.name}) == len(names) + 1


def test_the_contract_where_rows_are_fitted_again():
    report = check(novelty.ViM(refit="memory"))
    assert report.ok, str(report)
