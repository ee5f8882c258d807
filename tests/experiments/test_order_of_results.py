"""Runs of a Result come in the order in which they were asked for, whoever trained first."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import engram
from engram.methods import ER, Finetune, LwF

KEY = ["recipe", "label", "seed", "order", "stage"]
ASKED = ["ER", "Finetune", "LwF (strength 1)", "LwF (strength 2)"]


def asked() -> list[engram.Method]:
    """The first trains with the last two where lockstep is allowed; the second does with nobody."""
    return [ER(), Finetune(), LwF(), LwF(strength=2.0)]


def run(out: Path | None = None, **options: object) -> engram.Result:
    stream = engram.class_incremental(engram.load("blobs"))
    return engram.run(
        stream, method=asked(), seeds=2, epochs=1, device="cpu", out=out, **options
    )  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kept", ["memory", "directory"])
def test_runs_come_as_asked_whatever_group_trained_first(
    tmp_path: Path, together: bool, kept: str
) -> None:
    result = run(tmp_path if kept == "directory" else None, together=together)
    assert result.labels == ASKED
    assert [run.seed for run in result.runs] == [0, 1] * 4
    rows = result.frame().astype({"label": str})
    assert rows["label"].drop_duplicates().tolist() == ASKED
    assert list(result.recipes) == list(dict.fromkeys(run.recipe for run in result.runs))
    if kept == "directory":
        assert engram.read(tmp_path).labels == ASKED


def test_tables_are_equal_together_alone_and_from_a_directory(tmp_path: Path) -> None:
    tables = [
        run(together=True).frame(),
        run(together=False).frame(),
        run(tmp_path, together=True).frame(),
    ]
    first, *others = [_moments(table) for table in tables]
    for other in others:
        pd.testing.assert_frame_equal(first, other)


def _moments(frame: pd.DataFrame) -> pd.DataFrame:
    """Each run's stages, in the order of the table."""
    return frame[KEY].astype(dict.fromkeys(KEY, str)).drop_duplicates().reset_index(drop=True)


def test_another_question_of_a_directory_gets_its_own_order(tmp_path: Path) -> None:
    stream = engram.class_incremental(engram.load("blobs"))
    first = {"epochs": 1, "device": "cpu", "out": tmp_path}
    engram.run(stream, method=["Finetune", "ER"], seeds=2, **first)
    assert engram.run(stream, method=["LwF", "ER"], **first).labels == ["LwF", "ER"]
    assert engram.read(tmp_path).labels == ["Finetune", "ER", "LwF"]  # as they were first asked for


def test_only_the_runs_that_were_asked_for_are_returned(tmp_path: Path) -> None:
    base = {"stream": {"data": "blobs"}, "training": {"epochs": 1}}
    engram.sweep([base | {"method": "ER", "seeds": [0, 1]}], out=tmp_path, device="cpu")
    more = [base | {"method": "ER", "seeds": [0]}, base | {"method": "LwF", "seeds": [1]}]
    found = engram.sweep(more, out=tmp_path, device="cpu")
    assert [run.seed for run in found.runs] == [0, 1]
    assert found.labels == ["ER", "LwF"]


def test_saved_results_keep_their_order(tmp_path: Path) -> None:
    result = run(together=True)
    turned = result.of_runs(reversed(result.runs))
    turned.save(tmp_path)
    assert engram.read(tmp_path).labels == turned.labels == ASKED[::-1]
