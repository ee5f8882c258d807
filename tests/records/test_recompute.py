"""Numbers computed anew from stored scores are those recorded while training, for every method."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest
import torch

import engram
from engram import keys, methods
from engram.methods.method import FROZEN_TRANSFORMER
from engram.records import COLUMNS

KEY = [name for name in COLUMNS if name not in ("value", "recipe", "label")]
MADE_FROM_SCORES = ("accuracy", "class_accuracy", "predicted")


@cache
def uneven():
    """Overlapping classes of different sizes: micro and macro averages differ."""
    sizes = [10, 40, 50, 15, 20, 60]
    y = torch.repeat_interleave(torch.arange(6), torch.tensor(sizes))
    noise = keys.normal(keys.fold(0, "uneven"), len(y), 4).float()
    x = noise + 1.5 * torch.nn.functional.one_hot(y % 4, 4)
    return engram.class_incremental(engram.Data.from_arrays(x, y, name="uneven"))


@cache
def given():
    """The same with the task of a row given."""
    return engram.task_incremental(uneven().data)


def needs_task(name):
    return getattr(methods, name).task_identity == "required"


@cache
def skeletons():
    data = engram.load("skeletons", per_class=20, frames=8)
    return engram.class_incremental(data, classes_per_task=5)


def train(name, out, average):
    own = {"Join": methods.Join(methods.ER(), methods.EWC())}
    own |= {kind.__name__: kind(root_iterations=20) for kind in (methods.LGR, methods.LatentReplay)}
    own["SCR"] = methods.SCR(views=())  # the samples are no images
    graph = name == "TWP"
    model = {"name": "mlp", "hidden": [8]}
    if graph:
        model = {"name": "gcn", "edges": "ucla", "width": 4, "hidden": 8}
    if getattr(methods, name).needed_model == FROZEN_TRANSFORMER:
        model = {"name": "engram.checks.toy_runs:ToyTransformer"}
    return engram.run(
        skeletons() if graph else given() if needs_task(name) else uneven(),
        method=own.get(name, name), out=out, average=average, model=model, epochs=1, device="cpu",
    )  # fmt: skip


def numbers(result):
    """What scores decide, by everything but the recipe, whose id depends on the average."""
    frame = result.frame()
    rows = frame[frame["metric"].isin(MADE_FROM_SCORES) & (frame["step"] == -1)]
    plain = rows.astype(dict.fromkeys(("order", "head", "metric"), str))
    return plain.set_index(KEY)["value"].sort_index()


def equal(found, expected):
    pd.testing.assert_series_equal(numbers(found), numbers(expected), check_exact=True)


@pytest.mark.parametrize("name", methods.__all__)
def test_recomputed_is_recorded(tmp_path, name):
    for average in ("micro", "macro"):
        train(name, tmp_path / average, average)
    micro, macro = (engram.read(tmp_path / average) for average in ("micro", "macro"))
    (run,) = micro.runs
    stages = micro.tasks[0]
    assert all(micro.predictions.get(*run, k).scores is not None for k in range(stages))
    kinds = numbers(micro).index.to_frame()[["head", "metric"]].drop_duplicates()
    heads = ("multi",) if needs_task(name) else ("single", "multi")
    assert len(kinds) == len(heads) * len(MADE_FROM_SCORES)
    equal(micro.recompute(), micro)
    equal(micro.recompute(average="macro"), macro)
    equal(macro.recompute(average="macro"), macro)
    equal(macro.recompute(average="micro"), micro)
    for head in heads:
        again = micro.recompute().view(head=head)
        for metric in ("average_accuracy", "forgetting"):
            assert again.metric(metric).tolist() == micro.view(head=head).metric(metric).tolist()


def test_the_averages_differ_on_this_stream(tmp_path):
    result = train("Finetune", tmp_path, "micro")
    for head in ("single", "multi"):
        micro = result.view(head=head).matrix
        macro = result.recompute(average="macro").view(head=head).matrix
        assert (micro != macro)[0, -1].any()


def test_other_scores_give_other_numbers(tmp_path, monkeypatch):
    # The comparison above is worth nothing if it cannot tell scores apart.
    from engram.records.predictions import Prediction

    result = train("ER", tmp_path, "micro")
    said = Prediction.predicted
    monkeypatch.setattr(Prediction, "predicted", lambda *a, **k: said(*a, **k)[::-1].copy())
    with pytest.raises(AssertionError):
        equal(result.recompute(), result)
