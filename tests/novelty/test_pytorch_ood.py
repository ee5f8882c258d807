"""Detectors against those of pytorch-ood, and its detectors in ours; skipped where it is not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import engram
from engram import novelty
from engram.checks import check
from engram.errors import BadArgument, EngramError
from engram.learner.tensor_tree import tree_map
from engram.models.forward_pass import Output
from engram.novelty import mahalanobis
from tests.novelty import test_formulas as formulas
from tests.novelty.test_detectors import Linear, Rows, facts, scores, train
from tests.novelty.test_formulas import ASKED, BIAS, KNOWN, LABELS, WEIGHT

CLASSES, WIDTH = 3, 6
EVERY = torch.ones(CLASSES, dtype=torch.bool)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % CLASSES
    x = torch.randn(60, WIDTH, generator=generator).double() + y[:, None]
    asked = 3 * torch.randn(20, WIDTH, generator=generator).double()
    weight = torch.randn(CLASSES, WIDTH, generator=generator).double()
    return x, y, asked, weight


def fitted(detector, x, y):
    state = detector.begin(detector.start(facts(CLASSES, WIDTH)), 0)
    batch = Rows(x, y, torch.ones(len(x)).double(), now=torch.tensor(0))
    net = Linear(torch.zeros(CLASSES, WIDTH).double())
    return detector.finish(detector.fit(net, batch, state))


def near(ours, theirs):
    assert ours.dtype == torch.float64
    assert torch.allclose(ours, -torch.as_tensor(theirs).double(), atol=1e-6, rtol=0)


class TestParity:
    def test_softmax_and_energy(self, ood, rows):
        *_, asked, weight = rows
        output = Output(asked, asked @ weight.mT)
        ours = novelty.Softmax().familiarity(output, weight, EVERY, {})
        near(ours, ood.MaxSoftmax(None).predict_logits(output.logits))
        for t in (1.0, 3.0):
            ours = novelty.Energy(temperature=t).familiarity(output, weight, EVERY, {})
            near(ours, ood.EnergyBased(None, t=t).predict_logits(output.logits))

    def test_odin(self, ood, rows):
        *_, asked, weight = rows
        layer = torch.nn.Linear(WIDTH, CLASSES, bias=False).double()
        layer.weight.data = weight
        for t, epsilon in ((2.0, 0.1), (1000.0, 0.0014)):
            theirs = ood.ODIN(layer, eps=epsilon, temperature=t).predict(asked)
            detector = novelty.ODIN(temperature=t, epsilon=epsilon)
            near(detector.score(Linear(weight), asked, EVERY, {"std": torch.ones(1).double()}),
                 theirs)  # fmt: skip

    def test_odin_moves_where_there_is_no_slope(self, ood):
        """Their sign of 0 is 0, ours 1: an input that does not matter moves, changing nothing."""
        weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
        layer = torch.nn.Linear(2, 2, bias=False).double()
        layer.weight.data = weight
        x = torch.tensor([[0.5, 0.2]]).double()
        theirs = ood.ODIN(layer, eps=0.1, temperature=2.0).predict(x)
        ours = novelty.ODIN(temperature=2.0, epsilon=0.1)
        seen, std = EVERY[:2], {"std": torch.ones(1).double()}
        near(ours.score(Linear(weight), x, seen, std), theirs)

    def test_mahalanobis(self, ood, rows):
        """Their covariance has a ridge and is not divided by the rows: once taken into account."""
        x, y, asked, _ = rows
        torch.set_default_dtype(torch.float64)
        try:
            theirs = ood.Mahalanobis(None).fit_features(x, y)
            wanted = theirs.predict_features(asked)
        finally:
            torch.set_default_dtype(torch.float32)
        state = fitted(novelty.Mahalanobis(right=False), x, y)
        ridged = state["covariance"] * len(x) + 1e-6 * torch.eye(WIDTH).double()
        state = {**state, "precision": mahalanobis.invert_covariance(ridged)}
        near(mahalanobis.nearest_distance(asked, state), wanted)

    def test_knn(self, ood, rows):
        x, y, asked, weight = rows
        state = fitted(novelty.KNN(k=4, keep=60), x, y)
        ours = novelty.KNN(k=4, keep=60).familiarity(Output(asked, asked), weight, EVERY, state)
        near(ours, ood.KNN(None, k=4).fit_features(x, y).predict_features(asked))


@pytest.mark.parametrize("name", formulas.CASES)
def test_further_detectors(ood, name):
    """Rows, last layer and options of tests/novelty/test_formulas.py, where all classes compete."""
    x, y, asked = (torch.from_numpy(one) for one in (KNOWN, LABELS, ASKED))
    layer = torch.nn.Linear(*WEIGHT.shape[::-1]).double()
    layer.weight.data, layer.bias.data = (torch.from_numpy(one) for one in (WEIGHT, BIAS))
    layer.requires_grad_(False)
    detector, _ = formulas.CASES[name]
    maps = asked[:, :, None, None]
    head = {"backbone": None, "head": lambda maps: layer(maps[:, :, 0, 0])}

    def ask():
        of = {"w": layer.weight, "b": layer.bias}
        if name == "max_logit":
            return ood.MaxLogit(None).predict_logits(layer(asked))
        if name == "gen":
            return ood.GEN(None, gamma=0.5, M=2).predict_logits(layer(asked))
        if name == "grad_norm":
            only = {"param_filter": lambda one: one == "weight", "temperature": 2.0}
            return ood.GradNorm(layer, **only).to("cpu").predict(asked)
        if name == "react":
            one = ood.ReAct(**head, percentile=0.8).fit_feature_maps(x[:, :, None, None], y)
            return one.predict_feature_maps(maps)
        if name.startswith("ash"):
            one = ood.ASH(**head, variant=name.replace(" ", "-"), percentile=0.65)
            return one.predict_feature_maps(maps)
        if name == "kl_matching":
            return ood.KLMatching(None).fit_logits(layer(x), y).predict_logits(layer(asked))
        one = {
            "dice": lambda: ood.DICE(None, **of, p=0.6), "she": lambda: ood.SHE(None, layer),
            "nnguide": lambda: ood.NNGuide(None, layer, k=4),
            "fdbd": lambda: ood.fDBD(None, layer), "rmd": lambda: ood.RMD(None),
            "vim": lambda: ood.ViM(None, d=4, **of),
        }[name]()  # fmt: skip
        return one.fit_features(x, y).predict_features(asked)

    torch.set_default_dtype(torch.float64)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # they round to single
            patch.setattr(torch, "eye", lambda n, **_: torch.zeros(n, n))  # a ridge of covariances
            theirs = -torch.as_tensor(ask())
    finally:
        torch.set_default_dtype(torch.float32)
    ours = formulas.rate(detector, formulas.fitted(detector), formulas.EVERY)
    theirs = len(x) * theirs if name == "rmd" else theirs  # covariances are not divided by rows
    assert torch.allclose(ours, theirs, atol=1e-9, rtol=1e-9)


NAMES = ("EnergyBased", "KLMatching", "Mahalanobis", "RMD", "KNN", "SHE", "ViM", "GEN", "DICE")
OPTIONS = {"KNN": {"k": 3}, "ViM": {"d": 2}, "DICE": {"p": 0.5}}


@pytest.mark.parametrize("name", NAMES)
def test_wrapped_is_the_package(ood, name, rows):
    """As if its fit and predict had been called with all rows of a task."""
    x, _, asked, weight = rows
    y = (x @ weight.mT).argmax(1)  # all right, as SHE wants it
    detector = novelty.Wrapped(name, keep=60, **OPTIONS.get(name, {}))
    state = tree_map(torch.Tensor.float, fitted(detector, x, y))
    x, asked, weight = x.float(), asked.float(), weight.float()
    state["rows"]["logits"] = state["rows"]["features"] @ weight.mT
    net = Linear(weight)
    net.params = SimpleNamespace(head={"weight": weight})
    ours = detector._of(net, Output(asked, asked @ weight.mT), EVERY, state)
    theirs = detector._made(weight, torch.zeros(CLASSES))
    if hasattr(theirs, "predict_logits"):
        theirs.fit_logits(x @ weight.mT, y)
        wanted = theirs.predict_logits(asked @ weight.mT)
    else:
        wanted = theirs.fit_features(x, y).predict_features(asked)
    assert torch.allclose(ours, -torch.as_tensor(wanted).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["multi", "single"])
def test_wrapped_in_runs(ood, head):
    several = [novelty.Wrapped("ViM", d=4), novelty.Wrapped("EnergyBased"),
               novelty.Wrapped("Mahalanobis", keep=10)]  # fmt: skip
    usual = novelty.Energy()
    result = train(*several, usual, head=head)
    for stage in range(3):
        one, two = (scores(result, d, 1, stage) for d in (several[1], usual))
        assert np.allclose(one, two, atol=1e-5, equal_nan=True)
        assert np.isfinite(scores(result, several[0], 1, stage)).any()
    alone = train(*several, head=head, together=False)
    for detector in several:
        one, two = (scores(r, detector, 1, 2) for r in (result, alone))
        assert np.allclose(one, two, atol=1e-3, rtol=1e-3, equal_nan=True)


def test_wrapped_keeps_the_contract(ood):
    report = check(novelty.Wrapped("MaxLogit"))
    assert report.ok, str(report)


def test_refused(ood):
    stream = engram.task_incremental(engram.load("blobs"), classes_per_task=2)
    for detector, said in (
        (novelty.Wrapped("Vim"), "did you mean 'ViM'"),
        (novelty.Wrapped("ODIN"), "reads logits or features"),
        (novelty.Wrapped("ViM", e=3), "unknown name 'e'"),
        (novelty.Wrapped("ViM"), "options of ViM"),
    ):
        with pytest.raises(BadArgument, match=said):
            engram.run(stream, detectors=[detector])


def test_what_the_package_cannot_do_is_told_by_name(ood, monkeypatch):
    def refuse(*args):
        raise ValueError("No correct predictions for class 0")

    monkeypatch.setattr(ood.SHE, "fit_features", refuse)
    with pytest.raises(EngramError, match=r"she: pytorch-ood cannot go on \(No correct"):
        train(novelty.Wrapped("SHE"), seeds=1)


def test_recipes_know_it_without_the_package():
    spec = {"name": "Wrapped", "detector": "ViM", "options": {"d": 8}}
    plain = {"stream": {"data": "blobs"}, "method": "Finetune", "detectors": [spec]}
    (detector,) = engram.Recipe.of(plain).probes
    assert detector == novelty.Wrapped("ViM", d=8)
    assert engram.Recipe.of(engram.Recipe.of(plain).plain()).probes == (detector,)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pytorch_ood", None)
    stream = engram.task_incremental(engram.load("blobs"), classes_per_task=2)
    with pytest.raises(BadArgument, match=r"engram-cl\[ood\]"):
        engram.run(stream, detectors=[novelty.Wrapped("ViM", d=4)])
