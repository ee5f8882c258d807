from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument, RecordError
from engram.io import DiskError
from engram.records import (
    EvaluationItems,
    Prediction,
    Rows,
    RunDirectory,
    environment,
    journal,
    new_part,
    read,
    run_directory,
    run_id,
    table_parts,
)
from engram.records.journal import RecordFile, read_journal
from engram.records.locks import Claims
from engram.records.table_parts import PartContents, Reduce, merge_parts, read_part, read_parts
from tests.loose_files import unpack
from tests.records.synthetic import RECIPES, fill, make_items, make_scores
from tests.refusals import refuses


def one_row(seed: int, stage: int = 0, value: float = 0.5) -> Rows:
    rows = Rows(recipe="r", label="ER", seed=seed)
    rows.add("accuracy", value, stage=stage, task=0, head="single")
    return rows


def test_part_ids_sort_by_time() -> None:
    ids = [new_part() for _ in range(100)]
    assert ids == sorted(set(ids))


def test_what_is_rerun_counts_when_the_clock_stepped_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which record is newer follows from what the directory holds, not from the time."""
    first = RunDirectory(tmp_path)
    first.append(one_row(0, value=0.1))
    first.append(one_row(1, value=0.2))
    before = time.time_ns()
    monkeypatch.setattr(run_directory.time, "time_ns", lambda: before - 3600 * 10**9)
    second = RunDirectory(tmp_path)
    assert second.supersede([("r", 0, "")]) == 1
    assert second.finished("r", 0) == set()
    assert second.finished("r", 1) == {0}
    second.append(one_row(0, value=0.9))
    RunDirectory(tmp_path).append(one_row(0, stage=1, value=0.8))  # by another process
    assert RunDirectory(tmp_path).finished("r", 0) == {0, 1}
    for _ in range(2):
        frame = read(tmp_path).frame()
        assert sorted(frame["value"]) == [0.2, 0.8, 0.9]
        second.compact()


def test_finished_stages_follow_the_files(tmp_path: Path) -> None:
    writer, reader = RunDirectory(tmp_path), RunDirectory(tmp_path)
    assert reader.finished("r", 0) == set()
    writer.append(one_row(0))
    assert reader.finished("r", 0) == {0}
    inside = Rows(recipe="r", seed=0)
    inside.add("loss/total", 1.0, stage=2, step=5)
    writer.append(inside)  # numbers inside a stage do not finish it
    writer.append(one_row(0, stage=1))
    assert reader.finished("r", 0) == {0, 1}
    assert reader.finished("r", 1) == set()
    assert reader.finished("r", 0, "1-0") == set()
    assert reader.finished_runs() == {("r", 0, ""): {0, 1}}


def journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("results-*.tar"))


def test_a_part_that_is_cut_anywhere_is_not_there(tmp_path: Path) -> None:
    """What a killed process leaves at the end of its journal, block by block."""
    folder, items = RunDirectory(tmp_path), make_items()

    def part(stage: int) -> None:
        kept = Prediction.from_scores(make_scores(items, 0), items, recipe="r", seed=0, stage=stage)
        folder.append(
            one_row(0, stage), predictions=[kept], ledger={"stage": stage}, environment={}
        )

    part(0)
    (path,) = journals(tmp_path)
    before = path.stat().st_size
    part(1)
    whole = path.read_bytes()
    last = read_journal(path).files[-1]
    assert (last.kind, last.start > before) == ("results", True)
    end = last.start + (last.size or 0)
    for size in (*range(before, end, 300), end - 1):
        # killed; or without power, on a disk that grew the file before it wrote to it
        for rest in (0, len(whole) - size) if size < last.start - 512 else (0,):
            path.write_bytes(whole[:size] + bytes(rest))
            fresh, result = RunDirectory(tmp_path), read(tmp_path)
            assert fresh.finished("r", 0) == {0}
            assert (len(result.predictions), len(result.ledger)) == (1, 1)
            assert result.frame()["stage"].tolist() == [0]


def test_a_block_that_cannot_be_written_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunDirectory(tmp_path)

    def half(handle: int, content: bytes) -> None:
        os.write(handle, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "full")

    for parts in (0, 1):
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_block", half)
            with pytest.raises(DiskError, match="the disk is full"):
                folder.append(one_row(0, parts), ledger={})
        assert folder.finished("r", 0) == set(range(parts))
        assert len(journals(tmp_path)) == parts
        folder.append(one_row(0, parts), ledger={})
    assert RunDirectory(tmp_path).finished("r", 0) == {0, 1}
    assert read(tmp_path).problems == ()


def seeds_read(folder: Path, seed: int) -> tuple[set[int], list[int]]:
    """The finished stages of a seed, and the seeds whose files were read to know them."""
    read_of: list[int] = []

    def reading(files: Sequence[RecordFile], *reduce: Reduce) -> PartContents:
        parts = read_parts(files, *reduce)
        read_of.extend(sorted(set(parts.table.column("seed").to_pylist())))
        return parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engram.records.run_directory.read_parts", reading)
        return RunDirectory(folder).finished("r", seed), read_of


def test_files_of_other_runs_are_not_read(tmp_path: Path) -> None:
    for seed in range(5):
        folder = RunDirectory(tmp_path)
        for stage in range(3):
            folder.append(one_row(seed, stage))
        if seed < 4:
            folder.seal()
    assert len(journals(tmp_path)) == 5
    assert seeds_read(tmp_path, 2) == ({0, 1, 2}, [2, 4])  # 4 was not sealed: it may be killed
    assert seeds_read(tmp_path, 9) == (set(), [4])
    assert RunDirectory(tmp_path).finished_runs() == {("r", k, ""): {0, 1, 2} for k in range(5)}
    index = tmp_path / ".index"
    whole = index.read_bytes()
    for damaged in (whole[:-9], whole.replace(b'"0":', b'"1":').replace(b"results", b"Results", 1)):
        index.write_bytes(damaged)  # such lines do not count, and their files are read
        assert seeds_read(tmp_path, 9)[0] == set()
        assert seeds_read(tmp_path, 2)[0] == {0, 1, 2}
        assert len(seeds_read(tmp_path, 9)[1]) == 2
    index.write_bytes(whole)
    journals(tmp_path)[2].write_bytes(b"")  # what the index says is looked up
    assert RunDirectory(tmp_path).finished("r", 2) == set()


def test_many_sealed_journals_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.records.run_directory.MANY_FILES", 8)
    for seed in range(20):
        folder = RunDirectory(tmp_path)
        folder.append(one_row(seed))
        folder.seal()
    merged = list(tmp_path.glob("*-merged.parquet"))
    assert merged
    assert len(RunDirectory(tmp_path).result_files()) <= 8 + len(merged)
    assert seeds_read(tmp_path, 99) == (set(), [])
    assert len(read(tmp_path)) == 20
    assert RunDirectory(tmp_path).finished_runs() == {("r", k, ""): {0} for k in range(20)}


def test_the_former_layout_is_read_and_goes_on(tmp_path: Path) -> None:
    whole = read(fill(tmp_path, keep="parameters").path)
    before = whole.frame(), {k: whole.predictions.get(*k) for k in whole.predictions}
    folder = RunDirectory(unpack(tmp_path))
    assert not journals(tmp_path)
    result = read(tmp_path)
    pd.testing.assert_frame_equal(result.frame(), before[0])
    for key, one in before[1].items():
        again = result.predictions.get(*key)
        assert one is not None
        assert again is not None
        np.testing.assert_array_equal(again.full(), one.full())
    assert result.ledger == whole.ledger
    assert result.environment == whole.environment
    folder.append(one_row(0))
    assert folder.finished_runs() == RunDirectory(tmp_path).finished_runs()
    assert len(read(tmp_path)) == len(whole) + 1


def test_predictions_come_back(tmp_path: Path) -> None:
    folder = fill(tmp_path, keep="parameters")
    items, store = make_items(), folder.predictions()
    assert len(store) == 12
    kept = store.get("bbbbbbbbbbbb", 1, "", 2)
    assert kept is not None
    assert kept.scores is not None
    assert kept.scores.dtype == np.float16
    np.testing.assert_array_equal(kept.scores, make_scores(items, 112).astype(np.float16))
    np.testing.assert_array_equal(kept.parameters, np.arange(4.0))
    assert store.get("bbbbbbbbbbbb", 9, "", 2) is None


def test_items_come_back_under_long_orders(tmp_path: Path) -> None:
    folder, items = RunDirectory(tmp_path), make_items()
    for order in ("", "2-0-1", "-".join(map(str, range(200))), "a/b"):
        folder.write_items("r", order, items)
        back = folder.items("r", order)
        assert back is not None
        for name in ("rows", "task", "targets", "opening", "visible", "classes"):
            np.testing.assert_array_equal(getattr(back, name), getattr(items, name))
        assert back.names == items.names
    assert len(list(tmp_path.glob("items-*"))) == 4
    assert len(run_id("r", 0, "-".join(map(str, range(200))))) < 100


def test_items_of_a_stream() -> None:
    import torch

    from engram.data.dataset import Data
    from engram.streams.stream import Stream, Task

    y = torch.tensor([3, 1, 3, 1, 0, 0] * 2).reshape(-1, 1)
    rows, names = torch.arange(12), ("n0", "n1", "n2", "n3")
    data = Data(x=torch.zeros(12, 2), y=y, train=rows[:6], test=rows[6:], classes=names)
    first = Task(train=rows[:4], test=rows[6:10], new=(3, 1), visible=(3, 1))
    second = Task(train=rows[4:6], test=rows[10:], new=(0,), visible=(0,))
    items = EvaluationItems.of_stream(Stream(data=data, tasks=(first, second)))
    assert items.classes.tolist() == [3, 1, 0]
    assert items.names == ("n3", "n1", "n0")
    assert items.task.tolist() == [0, 0, 0, 0, 1, 1]
    assert items.rows.tolist() == [6, 7, 8, 9, 10, 11]
    assert items.targets[:, 0].tolist() == [0, 1, 0, 1, 2, 2]
    assert items.visible.tolist() == [[True, True, False], [False, False, True]]
    assert not items.multilabel


def test_a_recipe_is_kept_once_and_never_contradicted(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    recipe = {"method": {"name": "ER"}, "stream": {"order": [1, 0], "head": "single"}, "seeds": [0]}
    path = folder.write_recipe("r", recipe)
    before = path.stat().st_mtime_ns
    folder.write_recipe("r", recipe)
    assert path.stat().st_mtime_ns == before
    folder.write_recipe("r", {**recipe, "seeds": [0, 1], "stream": {"head": "single"}})
    assert folder.recipe("r")["seeds"] == [0, 1]
    with pytest.raises(RecordError, match=r"r\.yaml.*method differs"):
        folder.write_recipe("r", {**recipe, "method": {"name": "EWC"}})


WRITERS = """
import os, sys
import pandas, pyarrow.parquet
from engram.records import Rows, RunDirectory
children = []
for seed in range(4):
    child = os.fork()
    if child == 0:
        folder = RunDirectory(sys.argv[1])
        for stage in range(5):
            rows = Rows(recipe="r", label="ER", seed=seed)
            rows.add("accuracy", 0.5, stage=stage, task=0, head="single")
            folder.append(rows, ledger={"seed": seed})
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_many_processes_write_side_by_side(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITERS, str(tmp_path)], check=True)
    folder = RunDirectory(tmp_path)
    assert folder.finished_runs() == {("r", seed, ""): set(range(5)) for seed in range(4)}
    assert len(folder.result_files()) == 20
    assert len(journals(tmp_path)) == 4  # each process has its own
    assert sorted(entry["seed"] for entry in read(tmp_path).ledger) == sorted([0, 1, 2, 3] * 5)


def test_merged_parts_hold_the_same_numbers(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    before, matrix = folder.finished_runs(), read(tmp_path).full_matrix
    assert folder.compact() == 12
    assert folder.compact() == 0
    assert len(folder.result_files()) == 1
    assert RunDirectory(tmp_path).finished_runs() == before
    np.testing.assert_array_equal(read(tmp_path).full_matrix, matrix)
    assert len(read(tmp_path).predictions) == 12
    folder.append(one_row(0, value=0.1))
    folder.append(one_row(0, value=0.2))
    assert folder.compact() == 3
    result = read(tmp_path).select(recipe="r")
    assert result.full_matrix[0, 0, 0] == 0.2


CLAIMER = """
import os, signal, sys
from pathlib import Path
from engram.records.locks import Claims
claims = Claims(Path(sys.argv[1]))
assert claims.take("a run")
print("taken", flush=True)
sys.stdin.readline()
"""


def test_what_another_process_claimed_is_free_when_it_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIMER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        mine = Claims(tmp_path)
        assert not mine.take("a run")
        assert mine.take("another")
        process.kill()
    assert mine.take("a run")


def test_an_interrupted_merge_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    folder = RunDirectory(unpack(tmp_path))  # journals are never removed
    rows = len(read(tmp_path).frame())

    def killed(_: Path, **__: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        assert merge_parts(tmp_path, later=0.0) == 12
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):  # parts are removed by a later call
            merge_parts(tmp_path, later=0.0)
    assert len(list(tmp_path.glob("results-*"))) == 13
    assert len(folder.result_files()) == 1
    assert len(read(tmp_path).frame()) == rows
    merge_parts(tmp_path, later=0.0)
    assert len(list(tmp_path.glob("results-*"))) == 1
    assert len(read(tmp_path).frame()) == rows


def test_parts_of_killed_writers_stay_incomplete_after_a_merge(tmp_path: Path) -> None:
    folder, items = RunDirectory(tmp_path), make_items()
    kept = Prediction.from_scores(make_scores(items, 0), items, recipe="r", seed=7, stage=0)
    folder.append(one_row(7), predictions=[kept], ledger={"seed": 7})
    (path,) = journals(tmp_path)
    os.truncate(path, path.stat().st_size - 1024)
    folder = RunDirectory(tmp_path)
    folder.append(one_row(0), ledger={"seed": 0})
    folder.append(one_row(1), ledger={"seed": 1})
    assert folder.compact() == 2
    assert [one["seed"] for one in read(tmp_path).ledger] == [0, 1]
    assert len(folder.predictions()) == 0


def test_many_parts_are_merged_by_themselves_and_readers_see_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engram.records.run_directory.MANY_FILES", 8)
    folder, reader, copied = RunDirectory(tmp_path), RunDirectory(tmp_path), 0
    usual = table_parts._merge_files

    def counting(where: Path, files: list[RecordFile], sealed: Collection[str]) -> int:
        nonlocal copied
        copied += sum(len(read_part(path)) for path in files)
        return usual(where, files, sealed)

    monkeypatch.setattr(table_parts, "_merge_files", counting)
    for seed in range(64):
        folder.append(one_row(seed))
        assert len(reader.finished_runs()) == seed + 1
    assert len(folder.result_files()) < 16
    assert copied < 64 * 6  # every row a few times, not 64 times
    assert len(read(tmp_path)) == 64
    assert reader.problems == ()


def test_lists_of_recipes_become_one_in_the_same_order(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    for number in range(70):
        folder.list_recipes([f"{(number * 37) % 101:03d}"])
    before = folder.listed()
    merge_parts(tmp_path)
    assert len(list(tmp_path.glob("listed-*"))) == 1
    assert folder.listed() == before


def test_environment_has_versions_and_no_host_name() -> None:
    import platform

    facts = environment("cpu", training=1.5)
    assert {"python", "packages", "device", "git", "timings"} <= set(facts)
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["timings"] == {"training": 1.5}
    text = json.dumps(facts)
    assert f'"{platform.node()}"' not in text


def test_bad_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="existing run directory"):
        RunDirectory(tmp_path / "none", create=False)
    items = make_items()
    kept = Prediction.from_scores(make_scores(items, 0), items, recipe="r", seed=0, stage=0)
    with refuses("rows"):
        RunDirectory(tmp_path).append(None, predictions=[kept])


def test_broken_files_are_listed_and_the_rest_is_read(folder: RunDirectory) -> None:
    whole = read(folder.path)
    unpack(folder.path)
    broken = [
        sorted(folder.path.glob(pattern))[0]
        for pattern in ("results-*", "predictions-*", "ledger-*", "recipes/bbbbbbbbbbbb.yaml")
    ]
    for path in broken:
        path.write_bytes(path.read_bytes()[:9] + b'"[{')
    result = read(folder.path)
    assert {problem.file for problem in result.problems} == {str(path) for path in broken}
    assert len(result.frame()) < len(whole.frame())
    assert len(result.ledger) == 11
    assert all(str(problem.file) in str(problem) for problem in result.problems)
    assert list(result.recipes) == ["aaaaaaaaaaaa"]
    assert RunDirectory(folder.path).problems[0].file == str(broken[0])
    assert len(RECIPES) == 2
