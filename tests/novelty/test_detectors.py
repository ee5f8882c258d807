"""Detectors: worked examples, runs together and alone, online and from records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import engram
from engram import novelty
from engram.checks import check
from engram.checks import detector_rules as rules
from engram.checks.check_report import BrokenRule
from engram.errors import BadArgument, RecordError
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts
from engram.records.novelty_records import compare_sets, split_items
from tests.refusals import refuses

EVERY = (
    novelty.Softmax(), novelty.Energy(), novelty.ODIN(epsilon=0.01), novelty.B1(), novelty.B2(),
    novelty.KNN(k=3, keep=20), novelty.Mahalanobis(), novelty.Mahalanobis(epsilon=0.01),
    novelty.VAE(latent=2, epochs=2, batch_size=16, steps=0),
    novelty.Mahalanobis(epsilon=0.01, layers=("lower.0",)),
)  # fmt: skip


class Linear:
    """A network of one layer without bias."""

    def __init__(self, weight, features=None):
        self.weight = weight
        self.features = features or (lambda x: x)

    def __call__(self, x):
        seen = self.features(x)
        return Output(seen, seen @ self.weight.mT)


class TwoLayers:
    """A map of 8 channels and 2 places, and 8 features."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        one, two = torch.randn(2, 16, 16, generator=generator).double()
        self.one, self.two = one[:4], two[:, :8]

    def first(self, x):
        return (x @ self.one).reshape(-1, 8, 2)

    def __call__(self, x, want=()):
        maps = self.first(x)
        seen = torch.tanh(maps.flatten(1)) @ self.two
        return Output(seen, seen[:, :3], {"net.backbone.lower.0": maps})


class Layered(Facts):
    def width(self, layer):
        return 8


def layered(columns, features):
    return Layered(*facts(columns, features))


def facts(columns, features):
    like = torch.zeros(1, dtype=torch.float64)
    return Facts(columns, features, torch.ones(1, dtype=torch.float64), like, bias=False)


class TestWorkedExamples:
    @pytest.mark.parametrize(
        ("temperature", "epsilon", "wanted"),
        [(2.0, 0.1, 0.549834), (2.0, 0.0, 0.512497), (1000.0, 0.01, 0.50003250)],
    )
    def test_odin(self, temperature, epsilon, wanted):
        net = Linear(torch.tensor([[1.0, -1.0], [0.0, 1.0]], dtype=torch.float64))
        x, seen = torch.tensor([[0.5, 0.2]], dtype=torch.float64), torch.ones(2, dtype=torch.bool)
        odin = novelty.ODIN(temperature=temperature, epsilon=epsilon)
        found = odin.score(net, x, seen, odin.start(facts(2, 2)))
        assert found.item() == pytest.approx(wanted, abs=1e-6 if temperature < 100 else 1e-8)

    def test_odin_divides_its_step_by_the_deviation(self):
        net = Linear(torch.tensor([[1.0, -1.0], [0.0, 1.0]], dtype=torch.float64))
        x, seen = torch.tensor([[0.5, 0.2]], dtype=torch.float64), torch.ones(2, dtype=torch.bool)
        state = {"std": torch.tensor([0.5], dtype=torch.float64)}
        halved = novelty.ODIN(temperature=2.0, epsilon=0.05).score(net, x, seen, state)
        assert halved.item() == pytest.approx(0.549834, abs=1e-6)

    @pytest.mark.parametrize(("own", "which"), [("predicted", 2), ("nearest", 1)])
    def test_b2_where_the_predicted_class_is_not_the_nearest(self, own, which):
        rows = torch.tensor([[0.0, 1.0], [1.0, 1.0], [4.0, -1.0]], dtype=torch.float64)
        features, seen = torch.tensor([[3.0, 4.0]]).double(), torch.ones(3, dtype=torch.bool)
        likely = torch.tensor([4.0, 7.0, 8.0]).double().softmax(0)  # cosines .8, .99, .39
        moved = features[0] - (likely @ rows - rows[0])
        after = (rows @ moved) / rows.norm(dim=1) / moved.norm()
        b1 = novelty.B1().familiarity(Output(features, features @ rows.mT), rows, seen, {})
        b2 = novelty.B2(own=own).familiarity(Output(features, features @ rows.mT), rows, seen, {})
        assert (b2 - b1).item() == pytest.approx((after[which] - after[0]).item(), abs=1e-12)

    def test_b2_as_released(self):
        """Cosine logits, own class by cosine, mean over neighbours that the head has."""
        rows = torch.tensor([[0.0, 1.0], [1.0, 1.0], [4.0, -1.0], [1.0, 0.0]]).double()
        features, seen = (
            torch.tensor([[3.0, 4.0]]).double(),
            torch.tensor([True, True, True, False]),
        )
        x = features[0] / features.norm()
        near = rows / rows.norm(dim=1, keepdim=True)
        likely, margins = (near[:3] @ x).softmax(0), []
        for other in (0, 2):  # the nearest is row 1; row 3 is not seen
            slope = likely @ near[:3] - near[other]
            moved = features[0] - 5.0 * (slope - (slope @ x) * x) / features.norm()
            margins.append((near[1] - near[other]) @ moved / moved.norm())
        output = Output(features, features @ rows.mT)
        b1 = novelty.B1().familiarity(output, rows, seen, {})
        made = novelty.B2(logits="cosine", own="nearest", step=5.0, neighbours=3)
        b2 = made.familiarity(output, rows, seen, {})
        assert (b2 - b1).item() == pytest.approx(sum(margins).item() / 2, abs=1e-12)

    def test_mahalanobis_stage_by_stage(self):
        detector, net = novelty.Mahalanobis(right=False), Linear(torch.zeros(3, 2).double())
        state = detector.start(facts(3, 2))
        state = self.stage(detector, net, state, [[0, 0], [2, 0], [4, 4], [4, 6]], [0, 0, 1, 1])
        assert state["means"][:2].tolist() == [[1, 0], [4, 5]]
        assert torch.allclose(state["covariance"], 0.5 * torch.eye(2).double())
        query = torch.tensor([[1.0, 1.0]]).double()
        assert detector.score(net, query, None, state).item() == pytest.approx(-1.0)
        state = self.stage(detector, net, state, [[10, 0], [12, 2]], [2, 2])
        third = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double() / 3
        assert torch.allclose(state["covariance"], third)
        assert detector.score(net, query, None, state).item() == pytest.approx(-1.0)

    def stage(self, detector, net, state, rows, labels):
        batch = fake_batch(torch.tensor(rows).double(), torch.tensor(labels))
        return detector.finish(detector.fit(net, batch, detector.begin(state, 0)))

    def test_the_running_covariance_is_that_of_stored_residuals(self):
        generator = torch.Generator().manual_seed(0)
        detector, net = novelty.Mahalanobis(right=False), Linear(torch.zeros(6, 4).double())
        state, residuals = detector.start(facts(6, 4)), []
        for stage in range(3):
            labels = torch.arange(40) % 2 + 2 * stage
            rows = torch.randn(40, 4, generator=generator).double() + 3 * labels[:, None]
            state = self.stage(detector, net, state, rows.tolist(), labels.tolist())
            for c in labels.unique():
                own = rows[labels == c]
                residuals.append(own - own.mean(0))
        whole = torch.cat(residuals)
        assert torch.allclose(state["covariance"], whole.mT @ whole / len(whole), atol=1e-12)

    def test_layers_are_scored_apart_and_combined(self):
        """Every layer is as the same detector on that layer alone."""
        net, generator = TwoLayers(), torch.Generator().manual_seed(0)
        x, y = torch.randn(30, 4, generator=generator).double(), torch.arange(30) % 3
        both = novelty.Mahalanobis(epsilon=0.05, layers=("lower.0",), right=False)
        state = self.stage(both, net, both.start(layered(3, 8)), x.tolist(), y.tolist())
        alone = novelty.Mahalanobis(epsilon=0.05, right=False)
        parts = []
        for features in (lambda x: net.first(x).mean(-1), lambda x: net(x).features):
            other = Linear(torch.zeros(3, 8).double(), features)
            own = self.stage(alone, other, alone.start(facts(3, 8)), x.tolist(), y.tolist())
            parts.append(alone.score(other, x, None, own))
        assert torch.allclose(both.score(net, x, None, state), (parts[0] + parts[1]) / 16)
        logistic = novelty.Mahalanobis(
            epsilon=0.05, layers=("lower.0",), right=False, weights=(0.5, -0.2), bias=0.1
        )
        wanted = torch.sigmoid(0.5 * parts[0] - 0.2 * parts[1] + 0.1)
        assert torch.allclose(logistic.score(net, x, None, state), wanted)

    def test_old_means_are_not_renewed(self):
        detector, net = novelty.Mahalanobis(right=False), Linear(torch.zeros(2, 2).double())
        state = detector.start(facts(2, 2))
        state = self.stage(detector, net, state, [[0, 0], [2, 0]], [0, 0])
        state = self.stage(detector, net, state, [[9, 9], [9, 7], [4, 4]], [0, 0, 1])
        assert state["means"].tolist() == [[1, 0], [4, 4]]


@dataclass
class Rows:
    """As much of a batch as `fit` reads."""

    x: Any
    target: Any
    w: Any
    open: Any = None
    now: Any = None


def fake_batch(x, labels):
    return Rows(x, labels, torch.ones(len(x), dtype=torch.float64))


class TestSets:
    def test_worked_example(self):
        right_then = np.isin(np.arange(5), [0, 1, 2, 4])
        right_now = np.isin(np.arange(5), [0, 2, 3])
        sets = split_items(right_then, right_now, np.zeros(5, int), stage=1)
        assert sets.inside[0].tolist() == [0, 2, 3]
        assert sets.forgotten[0].tolist() == [1, 4]

    def test_own_stage_decides_what_was_forgotten(self):
        result = train(novelty.Softmax(), seeds=1)
        run, items = result.runs[0], result.items(result.runs[0].recipe)
        said = [result.predictions.get(*run, k).predicted(items, head="multi") for k in range(3)]
        right = [one == items.targets[: len(one), 0] for one in said]
        assert [len(one) for one in right] == [(items.task <= k).sum() for k in range(3)]
        right = [np.pad(one, (0, len(items) - len(one))) for one in right]
        sets = result.sets(0, stage=2)
        for task in range(3):
            own = items.task == task
            assert sets.inside[task].tolist() == np.flatnonzero(own & right[2]).tolist()
            lost = np.flatnonzero(own & right[task] & ~right[2])
            assert sets.forgotten[task].tolist() == lost.tolist()
        assert sets.outside == []
        assert [len(one) for one in result.sets(0, stage=0).outside] == [
            int((items.task == j).sum()) for j in (1, 2)
        ]

    def test_heads(self):
        """In_i under head i, and every item to come under every head, counted each time."""
        sets = split_items(np.ones(7), np.ones(7), [0, 0, 1, 1, 2, 2, 3], stage=1)
        scores = np.array([
            [0.9, 0.6, np.nan, np.nan, 0.5, 0.65, 0.2],
            [np.nan, np.nan, 0.95, 0.7, 0.8, 0.75, 0.6],
        ])  # fmt: skip
        found = compare_sets(scores, sets)
        wanted = {"recent_auroc": 0.75, "previous_auroc": 0.875, "mean_auroc": 0.8125}
        assert {k: found[k] for k in wanted} == wanted
        assert found["combined_auroc"] == pytest.approx(0.770833, abs=1e-6)
        assert np.isnan(found["inside_forgotten_auroc"])  # nothing was forgotten


def train(*detectors, head="multi", out=None, **changes):
    data = engram.load("blobs", classes=6, per_class=30)
    build = engram.task_incremental if head == "multi" else engram.class_incremental
    settings = {
        "method": "Finetune", "device": "cpu", "seeds": 2, "batch_size": 8, "epochs": 2,
        "model": {"name": "mlp", "hidden": [8], "head": {"name": "linear", "bias": False}},
        "probes": list(detectors), "out": out,
    }  # fmt: skip
    return engram.run(build(data, classes_per_task=2), **{**settings, **changes})


def scores(result, detector, run, stage):
    return result.arrays(detector.name, run, stage=stage)["familiarity"]


@pytest.mark.parametrize("head", ["multi", "single"])
def test_together_is_alone(head):
    together, alone = (train(*EVERY, head=head, together=t) for t in (True, False))
    for detector in EVERY:
        for run in range(2):
            for stage in range(3):
                one, two = (scores(r, detector, run, stage) for r in (together, alone))
                assert one.dtype == np.float32
                assert one.shape[0] == (stage + 1 if head == "multi" else 1)
                assert np.allclose(one, two, atol=2e-5, rtol=1e-4, equal_nan=True), detector


class Normed(torch.nn.Module):
    """A backbone whose statistics must be recorded with its weights."""

    def __init__(self, sample_shape):
        super().__init__()
        self.lower = torch.nn.Sequential(torch.nn.Linear(sample_shape[0], 8))
        self.norm, self.features = torch.nn.BatchNorm1d(8), 8

    def forward(self, x):
        return torch.relu(self.norm(self.lower(x)))


def test_from_records_is_while_training(tmp_path):
    common = {"seeds": 1, "model": {"name": Normed, "head": {"name": "linear", "bias": False}}}
    online = train(*EVERY, **common)
    train(out=tmp_path, keep="parameters", **common)
    offline = train(*EVERY, out=tmp_path, keep="parameters", **common)
    for detector in EVERY:
        for stage in range(3):
            one, two = (scores(r, detector, 0, stage) for r in (online, offline))
            assert np.array_equal(one, two, equal_nan=True), detector
    found = offline.novelty()
    assert set(found["detector"]) == {one.name for one in EVERY}
    assert set(found["label"]) == {"Finetune"}


@dataclass(frozen=True)
class Arithmetic(engram.Probe):
    """How CUDA would compute while a stage is measured."""

    needs = ("networks",)

    def after_stage(self, view):
        cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        return {"convolutions": np.full(len(view), cudnn), "products": np.full(len(view), matmul)}


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_measured_as_exactly_as_evaluated(tmp_path, precision):
    """Torch by itself would round in convolutions; products are never rounded."""
    before, given = torch.backends.cudnn.allow_tf32, {"precision": precision, "seeds": 1}
    train(out=tmp_path, keep="parameters", **given)
    later = train(Arithmetic(), out=tmp_path, **given)  # from records
    for result in (train(Arithmetic(), **given), later):
        found = result.frame().groupby("metric")["value"].unique()
        assert found["arithmetic/convolutions"].tolist() == [float(precision == "tf32")]
        assert found["arithmetic/products"].tolist() == [0.0]
    assert torch.backends.cudnn.allow_tf32 == before


def test_a_detector_is_better_than_chance_on_separate_clouds():
    table = train(*EVERY, method="Joint", epochs=10).novelty()
    first = table[(table["stage"] == 1) & (table["metric"] == "mean_auroc")]
    found = dict(zip(first["detector"], first["mean"], strict=True))
    assert found["mahalanobis"] > 0.8
    assert found["knn k=3 keep=20"] > 0.8


def test_refused_before_training(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a stage was trained")

    monkeypatch.setattr("engram.engine.engine.Engine.stages", never)
    with pytest.raises(BadArgument, match="without bias"):
        train(novelty.B1(), model={"name": "mlp", "hidden": [8]})
    with pytest.raises(BadArgument, match="Mahalanobis"):
        train(probes=[], detectors=["Mahalanobi"])
    with pytest.raises(BadArgument, match=r"lower\.0"):
        train(probes=[], detectors=[{"name": "Mahalanobis", "layers": ["lower.1"]}])
    data = engram.load("blobs", classes=4, per_class=10)
    stream = engram.class_incremental(data, classes_per_task=4)
    with pytest.raises(BadArgument, match="two tasks"):
        engram.run(stream, detectors=["Softmax"])


def test_bad_values():
    with refuses("k"):
        novelty.KNN(k=10, keep=5)
    with pytest.raises(RecordError, match="detector"):
        train(seeds=1).novelty()


def test_by_name_and_from_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from engram.cli import app

    def call(*words):
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        return done.output

    common = ["--data", "blobs", "--out", tmp_path, "--set", "epochs=1", "--keep", "parameters"]
    call("run", *common, "--detectors", "Softmax, Energy", "--stream", "task_incremental")
    assert "C.AUC" in call("novelty", tmp_path)
    before = engram.read(tmp_path).runs
    asked = ("--detectors", "KNN", "--set", "KNN.k=2", "--stage", "2")
    lines = [one.split(",") for one in call("novelty", tmp_path, *asked, "--csv").splitlines()[1:]]
    assert {one[1] for one in lines} == {"softmax", "energy", "knn k=2"}
    assert {one[2] for one in lines} == {"2"}
    assert engram.read(tmp_path).runs == before
    for words, said in (
        (["--stage", "99"], "--stage: expected a task"), (["--tune"], "--tune: expected"),
        (["--set", "KNN.k=2"], "--set: expected --detectors"),
        (["--detectors", ","], "comma-separated names"),
        (["--detectors", "KNN", "--set", "KNM.k=2"], "--set: expected an option of"),
        (["--detectors", "KNN", "--set", "KNN.kk=2"], "unknown name 'kk'"),
    ):  # fmt: skip
        refused = CliRunner().invoke(app, ["novelty", str(tmp_path), *words])
        assert refused.exit_code != 0
        assert said in str(refused.exception) + refused.output


def test_recipes_of_one_run_are_measured_by_the_detectors_of_all():
    base = {"stream": {"data": "blobs", "valid": 0.2}, "method": "Finetune"}

    def recipe(*detectors, **more):
        return engram.Recipe.of({**base, "detectors": list(detectors), **more})

    asked = [
        recipe("Softmax", keep="labels"), recipe("Energy", novelty.KNN(k=2), keep="parameters"),
        recipe("Softmax", "KNN", keep="scores"),
    ]  # fmt: skip
    result = engram.sweep(asked, device="cpu")
    assert len(result.runs) == 1
    assert result.predictions.get(*result.runs[0], 0).parameters is not None  # the most of all
    assert set(result.novelty()["detector"]) == {"softmax", "energy", "knn k=2", "knn"}
    sets = [{"data": "blobs", "data_options": {"seed": seed}} for seed in (1, 2)]
    two = [recipe(one, outside=own) for one, own in zip(("Softmax", "Energy"), sets, strict=True)]
    with pytest.raises(BadArgument, match="outside: expected one outside set for the one run"):
        engram.sweep(two, device="cpu")


@pytest.mark.parametrize("name", sorted(novelty.detectors()))
def test_every_detector_keeps_the_contract(name, request):
    if name == "Wrapped":
        request.getfixturevalue("ood")
    report = check(novelty.VAE(epochs=2, latent=4, steps=0) if name == "VAE" else name)
    broken = {one.check for one in report if not one.passed}
    # the length of the features counts, and those of the rows from outside are longer
    assert broken == ({"beats chance"} if name == "GradNorm" else set()), str(report)


@dataclass(frozen=True)
class Centred(novelty.Detector):
    """Looks at the rows beside a row."""

    def score(self, net, x, columns, state):
        norm = net(x).features.norm(dim=1)
        return norm - norm.mean()


@dataclass(frozen=True)
class Divides(novelty.Detector):
    """Has no number for features that are all the same."""

    def score(self, net, x, columns, state):
        seen = net(x).features
        return seen[:, 0] / seen.norm(dim=1)


@dataclass(frozen=True)
class Named(novelty.Detector):
    """Knows the first class by its id."""

    def start(self, facts):
        return {"shift": torch.tensor(float(facts.learner.stream.order[0]))}

    def score(self, net, x, columns, state):
        return net(x).logits.amax(-1) + state["shift"]


@dataclass(frozen=True)
class Peeks(novelty.Detector):
    """Knows the mean of all rows, of test rows and of tasks to come as well."""

    def start(self, facts):
        return {"mean": facts.learner.feed.data.x.mean()}

    def score(self, net, x, columns, state):
        return -(x - state["mean"]).flatten(1).norm(dim=1)


@pytest.mark.parametrize(
    ("detector", "rule"),
    [(Centred(), rules.check_scores_row_by_row),
     (Divides(), rules.check_finite_on_constant_features),
     (Named(), rules.check_class_ids_do_not_matter),
     (Peeks(), rules.check_future_rows_change_no_state)],
)  # fmt: skip
def test_detectors_that_break_a_rule(detector, rule):
    assert rule in rules.DETECTOR_CHECKS
    with pytest.raises(BrokenRule):
        rule(detector)
