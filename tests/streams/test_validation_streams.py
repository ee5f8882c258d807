from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import engram
from engram.data import Data
from engram.errors import BadArgument
from engram.streams import (
    Stream,
    class_incremental,
    hierarchical,
    make_search_stream,
    make_tuning_data,
)


def made(valid=None):
    rows = torch.arange(60.0)[:, None]
    data = Data.from_arrays(rows, [0, 1, 2] * 20, valid=valid)
    return replace(data, attributes={"who": torch.arange(len(data)) // 6})


def test_test_rows_are_out_of_reach():
    data = made()
    tuning = make_tuning_data(data, share=0.25, seed=1)
    seen = {*tuning.train.tolist(), *tuning.test.tolist()}
    assert seen == {*data.train.tolist()}
    assert not seen & {*data.test.tolist()}
    counts = data.labels[tuning.test].bincount()
    assert counts.tolist() == [int(n * 0.25) for n in data.labels[data.train].bincount().tolist()]
    assert tuning.test.tolist() == make_tuning_data(data, share=0.25, seed=1).test.tolist()
    assert tuning.test.tolist() != make_tuning_data(data, share=0.25, seed=2).test.tolist()
    assert tuning.fingerprint() != data.fingerprint()  # so that runs are told apart


def test_nobody_is_on_both_sides():
    data = made()
    tuning = make_tuning_data(data, share=0.4, by="who")
    who = data.attributes["who"]
    trained, tested = ({*who[rows].tolist()} for rows in (tuning.train, tuning.test))
    assert not trained & tested
    assert len(tested) == 4


def test_own_validation_rows_come_first():
    data = made(valid=(torch.zeros(3, 1), [0, 1, 2]))
    tuning = make_tuning_data(data)
    assert tuning.test.tolist() == data.valid.tolist()
    assert not len(tuning.valid)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "no validation rows"),
        ({"by": "who"}, "a fraction of the values of 'who'"),
        ({"share": 0.2, "by": "whom"}, "did you mean 'who'"),
        ({"share": 1.0}, "rows on both sides"),
        ({"share": 0.01}, "rows on both sides"),
        ({"share": -1}, "share"),
    ],
)
def test_bad_values_are_refused(options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        make_tuning_data(made(), **options)


def separable(noise: bool = False):
    """Eight classes; with `noise`, in all test rows and in all rows of the last four classes."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(8), 20)
    x = (np.eye(8)[y] + 0.6 * rng.standard_normal((160, 8))).astype(np.float32)
    data = Data.from_arrays(x, y)
    if noise:
        x[data.test] = 100
        x[y >= 4] = -100
        data = replace(data, x=torch.from_numpy(x))
    return data


def test_a_search_sees_validation_rows_of_the_first_tasks_alone():
    stream = class_incremental(separable(), valid=0.25)
    short = make_search_stream(stream, tasks=2)
    assert [task.test.tolist() for task in short] == [task.valid.tolist() for task in stream[:2]]
    assert short.judged_on == "valid"
    assert short.held_out == ""
    assert Stream.from_dict(short.data, short.to_dict()) == short
    assert short != stream[:2]
    model = {"name": "mlp", "hidden": [8]}
    options = {"method": ["EWC", "ER"], "epochs": 2, "device": "cpu", "model": model}
    result = engram.run(short, **options)
    for run in result.ledger:
        for stage, counts in run["stages"].items():
            assert counts["held_out"] == 8 * (1 + int(stage))  # two classes a task, 4 rows each
            assert "test" not in counts
    # not a bit depends on what it must not see
    noisy = make_search_stream(class_incremental(separable(noise=True), valid=0.25), tasks=2)
    assert np.array_equal(result.matrix, engram.run(noisy, **options).matrix, equal_nan=True)


def test_the_ledger_counts_what_is_scored():
    stream = class_incremental(separable(), valid=0.25)
    options = {"epochs": 1, "device": "cpu"}
    whole = engram.run(stream, **options)
    assert whole.ledger[0]["stages"]["0"] == {"train": 24, "held_out": 8, "test": 8}
    assert whole.ledger[0]["stages"]["3"] == {"train": 24, "held_out": 32, "test": 32}
    every = engram.run(stream, evaluate_unseen=True, **options)
    assert every.ledger[0]["stages"]["0"] == {"train": 24, "held_out": 8, "test": 32}
    score = whole.metric("valid_score", stage=1)
    on_valid = engram.run(make_search_stream(stream, tasks=2), **options)
    assert score == on_valid.metric("average_accuracy")  # the same rows, the same network
    on_test = engram.run(make_search_stream(stream, tasks=2, on="test"), **options)
    assert on_test.ledger[0]["stages"]["1"] == {"train": 24, "held_out": 16, "test": 16}
    # who puts test rows under another name is found out
    cheat = replace(stream, judged_on="valid")
    assert engram.run(cheat, **options).ledger[0]["stages"]["3"]["test"] == 32


def test_post_task_rows_come_first():
    stream = hierarchical(separable(), hierarchy={"low": [0, 1], "high": [2, 3]}, valid=0.1,
                          post_valid=0.2)  # fmt: skip
    short = make_search_stream(stream, tasks=2)
    assert short.judged_on == "post_valid"
    assert short[1].test.tolist() == stream[1].post_valid.tolist()
    assert short[1].valid.tolist() == stream[1].valid.tolist()
    assert not len(short[1].post_valid)


def test_recipes_name_it_and_know_it_again():
    content = {"stream": {"data": "blobs", "valid": 0.2, "search": {"tasks": 2}}, "method": "ER"}
    recipe = engram.Recipe.of(content)
    stream = recipe.build_stream()
    assert len(stream) == 2
    assert stream.origin.options["search"] == {"tasks": 2, "on": "valid"}
    assert engram.Recipe.of(recipe.plain()).id == recipe.id
    others = ({"tasks": 2, "on": "test"}, {"tasks": 1}, None)
    ids = {recipe.change(stream={**recipe.stream, "search": one}).id for one in others}
    assert len(ids | {recipe.id}) == 4


@pytest.mark.parametrize(
    ("valid", "options", "complaint"),
    [
        (0.0, {}, "validation rows .* valid=0.1 .*--select-on test"),
        (0.2, {"tasks": 5}, "at most 4"),
        (0.2, {"tasks": 0}, "tasks"),
        (0.2, {"on": "tests"}, "did you mean 'test'"),
    ],
)
def test_bad_searches_are_refused(valid, options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        make_search_stream(class_incremental(separable(), valid=valid), **options)
