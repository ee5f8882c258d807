from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.data import Data
from engram.errors import BadArgument
from engram.streams import for_tuning


def made(valid=None):
    rows = torch.arange(60.0)[:, None]
    data = Data.from_arrays(rows, [0, 1, 2] * 20, valid=valid)
    return replace(data, attributes={"who": torch.arange(len(data)) // 6})


def test_test_rows_are_out_of_reach():
    data = made()
    tuning = for_tuning(data, share=0.25, seed=1)
    seen = {*tuning.train.tolist(), *tuning.test.tolist()}
    assert seen == {*data.train.tolist()}
    assert not seen & {*data.test.tolist()}
    counts = data.labels[tuning.test].bincount()
    assert counts.tolist() == [int(n * 0.25) for n in data.labels[data.train].bincount().tolist()]
    assert tuning.test.tolist() == for_tuning(data, share=0.25, seed=1).test.tolist()
    assert tuning.test.tolist() != for_tuning(data, share=0.25, seed=2).test.tolist()
    assert tuning.fingerprint() != data.fingerprint()  # so that runs are told apart


def test_nobody_is_on_both_sides():
    data = made()
    tuning = for_tuning(data, share=0.4, by="who")
    who = data.attributes["who"]
    trained, tested = ({*who[rows].tolist()} for rows in (tuning.train, tuning.test))
    assert not trained & tested
    assert len(tested) == 4


def test_own_validation_rows_come_first():
    data = made(valid=(torch.zeros(3, 1), [0, 1, 2]))
    tuning = for_tuning(data)
    assert tuning.test.tolist() == data.valid.tolist()
    assert not len(tuning.valid)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "no validation rows"),
        ({"by": "who"}, "a share of the values of 'who'"),
        ({"share": 0.2, "by": "whom"}, "did you mean 'who'"),
        ({"share": 1.0}, "rows on both sides"),
        ({"share": 0.01}, "rows on both sides"),
        ({"share": -1}, "share"),
    ],
)
def test_bad_values_are_refused(options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        for_tuning(made(), **options)
