"""Probes written outside the package: what they measure, and what they must not change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.errors import BadArgument, EngramError, RecordError
from engram.experiments import Recipe, make_plans
from engram.probes import probe
from tests.probes.own_probes import ClassDistance, Entropy, Silent

PROBES = (Entropy(), ClassDistance())
PLACE = ["recipe", "seed", "order", "stage", "step", "task", "cls", "head", "metric"]


def stream():
    data = engram.load("blobs", classes=6, per_class=20)
    return engram.class_incremental(data, classes_per_task=2)


def train(**changes):
    settings = {
        "method": "ER", "model": {"name": "mlp", "hidden": [8]}, "device": "cpu", "seeds": 3,
        "batch_size": 8, "together": True, "probes": PROBES,
    }  # fmt: skip
    return engram.run(stream(), **{**settings, **changes})


def values(result, own=True):
    """Numbers by their place: those of probes, or all others but the seconds."""
    frame = result.frame().astype(dict.fromkeys(("recipe", "order", "head", "metric"), str))
    probed = frame["metric"].str.contains("/") & ~frame["metric"].str.startswith("loss/")
    frame = frame[probed if own else ~probed & (frame["metric"] != "seconds")]
    found = frame.set_index(PLACE)["value"].sort_index()
    assert not found.index.has_duplicates
    return found


def equal(found, wanted, exact=True):
    pd.testing.assert_series_equal(found, wanted, check_exact=exact, rtol=1e-6)


def no_training(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a stage was trained")

    monkeypatch.setattr("engram.engine.engine.train_task", refuse)


def test_a_detector_and_a_metric_in_lockstep_are_those_of_each_alone():
    found = values(train())
    assert set(found.index.get_level_values("metric")) == {
        "entropy/mean", "entropy/of_task", "class_distance/auroc", "class_distance/known",
    }  # fmt: skip
    assert found.xs("class_distance/known", level="metric").tolist() == [2, 4, 6] * 3
    equal(found, values(train(together=False)), exact=False)


def test_the_numbers_are_right():
    result = train(seeds=1, together=False)
    run, items = result.runs[0], result.items(result.runs[0].recipe)
    for stage in range(3):
        scores = result.predictions.get(*run, stage).scores.astype(np.float64)
        assert len(scores) == (items.task <= stage).sum()
        scores = scores[:, items.opening <= stage]
        likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        wanted = -(likely * np.log(likely)).sum(1).mean()
        found = values(result).xs("entropy/mean", level="metric")
        assert found.iloc[stage] == pytest.approx(wanted, rel=1e-4)


@dataclass(frozen=True)
class Count(engram.Probe):
    """How many test items, and whether all of them have scores."""

    def after_stage(self, view):
        scored = ~view.scores.isnan().any(-1)
        return {
            "items": view.scores.new_full((len(view),), view.scores.shape[1]),
            "unseen": (~view.seen).sum(1), "scored": scored.sum(1),
            "predicted": (view.predicted("single") >= 0).sum(1),
        }  # fmt: skip


@dataclass(frozen=True)
class CountAll(Count):
    needs = ("unseen",)


def counts(result, name):
    found = values(result).xs(0, level="seed")
    return [found.xs(f"{name}/{what}", level="metric").tolist()
            for what in ("items", "unseen", "scored", "predicted")]  # fmt: skip


def test_a_probe_sees_tasks_to_come_only_if_it_needs_them():
    """Whatever other probes need, and without a number more in the records."""
    both, one = train(probes=(Count(), CountAll())), train(probes=(Count(),))
    assert (
        counts(both, "count") == counts(one, "count") == [[8, 16, 24], [0] * 3] + [[8, 16, 24]] * 2
    )
    assert counts(both, "count_all") == [[24] * 3, [16, 8, 0], [24] * 3, [24] * 3]
    equal(values(both, own=False), values(one, own=False))
    assert np.isnan(both.full_matrix[:, 0, 1:]).all()
    tests = [[stages[k]["test"] for k in "012"]
             for stages in (result.ledger[0]["stages"] for result in (one, both))]  # fmt: skip
    assert tests == [[8, 16, 24], [24] * 3]


def test_a_probe_added_later_needs_scores_of_tasks_to_come(tmp_path):
    train(out=tmp_path, probes=(), seeds=1)
    with pytest.raises(RecordError, match=r"scores of tasks to come.*evaluate_unseen=True"):
        train(out=tmp_path, probes=(CountAll(),), seeds=1)
    train(out=tmp_path, probes=(), seeds=1, evaluate_unseen=True, rerun=True)
    later = train(out=tmp_path, probes=(Count(), CountAll()), seeds=1)
    live = train(probes=(Count(), CountAll()), seeds=1)
    equal(values(later), values(live))


def test_naming_a_probe_changes_no_id_and_no_other_number():
    with_probes, without = train(), train(probes=())
    assert with_probes.runs == without.runs
    equal(values(with_probes, own=False), values(without, own=False))
    assert len(values(without)) == 0


def test_rows_to_fit_on_are_counted_apart():
    counted, plain = (
        [run["stages"] for run in train(probes=p, evaluate_unseen=True).ledger]
        for p in (PROBES, ())
    )
    assert [stages["1"].pop("probe") for stages in counted] == [32] * 3  # 2 classes of 16 rows
    for stages in counted:
        stages["0"].pop("probe"), stages["2"].pop("probe")
    assert counted == plain


def test_an_added_seed_is_measured_and_the_others_stay(tmp_path):
    first = values(train(out=tmp_path, seeds=2))
    whole = values(train(out=tmp_path, seeds=3))
    equal(whole.reindex(first.index), first)
    equal(whole, values(train()), exact=False)


@pytest.mark.parametrize("together", [True, False])
def test_adding_a_probe_to_a_finished_run_trains_nothing(tmp_path, monkeypatch, together):
    before = values(train(out=tmp_path, probes=(), keep="parameters", together=together), False)
    no_training(monkeypatch)
    added = train(out=tmp_path, keep="parameters", together=together)
    equal(values(added, own=False), before)
    files = sorted(path.name for path in tmp_path.rglob("*.*"))
    equal(values(train(out=tmp_path, keep="parameters", together=together)), values(added))
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == files  # measured once
    monkeypatch.undo()
    equal(values(added), values(train(together=together)))


def test_scores_are_enough_for_a_probe_that_needs_no_networks(tmp_path, monkeypatch):
    train(out=tmp_path, probes=())
    no_training(monkeypatch)
    added = values(train(out=tmp_path, probes=(Entropy(), Silent())))
    monkeypatch.undo()
    equal(added, values(train(probes=(Entropy(), Silent()))))


def test_what_was_not_kept_is_said_before_anything_runs(tmp_path, monkeypatch):
    train(out=tmp_path, probes=())
    no_training(monkeypatch)
    with pytest.raises(RecordError, match=r"class_distance .* parameters of stage 1 .*--rerun"):
        train(out=tmp_path)
    monkeypatch.undo()
    train(out=tmp_path / "counts", probes=(), keep="counts")
    with pytest.raises(RecordError, match=r"entropy .* the scores of stage 1 .* keep=\"scores\""):
        train(out=tmp_path / "counts", probes=(Entropy(),))
    anew = train(out=tmp_path, rerun=True)
    equal(values(anew), values(train()))


def normed(seed):
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


@pytest.mark.filterwarnings("ignore:model. all 2 seeds begin with the weights:UserWarning")
def test_buffers_and_exemplars_are_kept_with_parameters(tmp_path, monkeypatch):
    settings = {"model": normed(0), "keep": "parameters", "seeds": 2}
    result = train(out=tmp_path, probes=(), **settings)
    kept = result.predictions.get(*result.runs[0], 2)
    assert kept.exemplars.shape == (4, 96)
    assert any(name.endswith(".mean") for name in kept.buffers)
    no_training(monkeypatch)
    added = values(train(out=tmp_path, **settings))
    monkeypatch.undo()
    equal(added, values(train(**settings)))


def test_a_probe_added_to_an_interrupted_run_gets_its_state(tmp_path):
    class Stop(engram.experiments.Callback):
        def stage(self, plan, stage, rows):
            if stage == 1:
                raise KeyboardInterrupt

    for together in (True, False):
        out = tmp_path / str(together)
        with pytest.raises(KeyboardInterrupt):
            train(out=out, probes=(), keep="parameters", together=together, callback=Stop())
        whole = values(train(out=out, keep="parameters", together=together))
        equal(whole, values(train(together=together)))


def test_runs_with_an_equal_beginning_keep_their_own_states():
    content = {
        "stream": {"data": "blobs", "data_options": {"classes": 6, "per_class": 20}},
        "method": "ER", "model": {"name": "mlp", "hidden": [8]}, "training": {"batch_size": 8},
        "probes": ["tests.probes.own_probes:Entropy", "tests.probes.own_probes:ClassDistance"],
    }  # fmt: skip
    recipe = Recipe.of(content)
    together = values(engram.orders(recipe, device="cpu").result)
    assert len(set(together.index.get_level_values("order"))) == 6
    alone = [
        values(engram.orders(recipe, task_orders=[order], device="cpu").result)
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0))
    ]
    for one in alone:
        equal(together.reindex(one.index), one, exact=False)


def test_where_memory_runs_out_halves_are_measured(monkeypatch):
    wanted, asked = train(seeds=5), []
    usual = ClassDistance.after_stage

    def scarce(self, view):
        asked.append(len(view))
        found = usual(self, view)  # state and reads of this attempt must not count
        if len(view) > 2:
            raise torch.OutOfMemoryError
        return found

    monkeypatch.setattr(ClassDistance, "after_stage", scarce)
    found = train(seeds=5)
    assert set(asked) == {5, 3, 2, 1}
    equal(values(found), values(wanted), exact=False)
    assert [run["stages"] for run in found.ledger] == [run["stages"] for run in wanted.ledger]


def test_a_diverged_run_is_not_measured():
    result = train(method="Finetune", lr=1e30, seeds=2)
    assert result.diverged
    assert len(values(result)) == 0


@dataclass(frozen=True)
class Company(engram.Probe):
    """How many runs are seen together."""

    def after_stage(self, view):
        sets = view.predicted("single")
        assert sets.shape == view.scores.shape
        return {"runs": torch.full((len(view),), len(view)), "labels": sets.sum((1, 2))}


def test_runs_over_label_sets_are_seen_together():
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(240, 6, generator=draw), torch.rand(240, 6, generator=draw) < 0.4
    y[:, 0] |= ~y.any(1)
    data = engram.Data.from_arrays(x.numpy(), y.long().numpy())
    stream = engram.class_incremental(data, classes_per_task=2)
    settings = {"method": "Finetune", "seeds": 3, "device": "cpu", "probes": [Company()]}
    found = values(engram.run(stream, together=True, **settings))
    assert set(found.xs("company/runs", level="metric")) == {3}
    alone = values(engram.run(stream, together=False, **settings))
    assert set(alone.xs("company/runs", level="metric")) == {1}
    equal(found.xs("company/labels", level="metric"), alone.xs("company/labels", level="metric"))


def test_recipes_name_probes_outside_the_id(tmp_path):
    plain = {"stream": {"data": "blobs"}, "method": "Finetune"}
    named = {"name": "tests.probes.own_probes:Entropy", "temperature": 2}
    recipe = Recipe.of({**plain, "probes": ["tests.probes.own_probes:ClassDistance", named]})
    assert recipe.probes == (ClassDistance(), Entropy(temperature=2.0))
    assert recipe.probes[1].name == "entropy temperature=2"
    assert recipe.id == Recipe.of(plain).id
    assert Recipe.read(recipe.write(tmp_path / "recipe.yaml")).probes == recipe.probes
    assert [len(plan.probes) for plan in make_plans([recipe])] == [2]


def test_probes_in_processes(tmp_path):
    base = {
        "stream": {"data": "blobs", "data_options": {"classes": 4}}, "training": {"epochs": 1},
        "probes": ["tests.probes.own_probes:Entropy"],
    }  # fmt: skip
    recipes = [{**base, "method": name} for name in ("Finetune", "ER")]
    spread = engram.sweep(recipes, pool="processes", workers=1, out=tmp_path, device="cpu")
    equal(values(spread), values(engram.sweep(recipes, device="cpu")), exact=False)


def test_another_version_of_a_probe_measures_anew(tmp_path, monkeypatch):
    def version(factor, metric):
        @dataclass(frozen=True)
        class Largest(engram.Probe):
            def after_stage(self, view):
                return {metric: view.scores.amax((1, 2)) * factor}

        return Largest()

    first = values(train(out=tmp_path, probes=[version(1, "score")]))
    no_training(monkeypatch)
    second = values(train(out=tmp_path, probes=[version(2, "score")]))
    equal(second, first * 2)
    third = values(train(out=tmp_path, probes=[version(3, "value")]))  # under another name
    assert set(third.index.get_level_values("metric")) == {"largest/value"}
    engram.records.RunDirectory(tmp_path).compact()
    equal(values(engram.read(tmp_path)), third)
    equal(values(train(out=tmp_path, probes=[version(1, "score")])), first)


@dataclass(frozen=True)
class Bad(engram.Probe):
    kind: str = ""

    def after_stage(self, view):
        if self.kind == "features":
            return {"a": view.features}
        if self.kind == "map":
            return {"a": view.map(lambda net: net.vector)}
        if self.kind == "number":
            return {"a": 3.0}
        if self.kind == "state":
            view.keep({"a": torch.zeros(7)})
        return None if self.kind == "nothing" else {}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("features", r'declare needs = \("features",\)'),
        ("map", r'declare needs = \("networks",\)'),
        ("number", r"value: expected numbers \[3\]"),
        ("state", r"state: expected dicts and tuples of tensors \[3, ...\]"),
        ("nothing", "Bad.after_stage: expected rows"),
    ],
)
def test_faults_of_a_probe_are_said(kind, words):
    with pytest.raises(EngramError, match=words):
        train(probes=[Bad(kind)])


@pytest.mark.parametrize(
    ("probes", "words"),
    [
        ([Entropy(), Entropy()], "probes with different names"),
        (["tests.probes.own_probes:Entropie"], "unknown name 'Entropie', did you mean 'Entropy'"),
        ([{"name": "tests.probes.own_probes:Entropy", "temprature": 2}], "did you mean 'temperat"),
        (["tests.probes.own_probes:auroc"], "a subclass of Probe"),
        (["Entropy"], "module:Class"),
        ([3], "a Probe, its module:Class"),
        (3, "a list of probes"),
    ],
)
def test_bad_probes_are_refused(probes, words):
    with pytest.raises(BadArgument, match=words):
        train(probes=probes)


def test_names_that_are_taken_are_refused():
    class Loss(probe.Probe):
        pass

    with pytest.raises(BadArgument, match=r"Loss.name: expected .* not loss"):
        train(probes=[Loss()])
