from __future__ import annotations

import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.checks.toy_runs import EXACT, make_clouds, make_runs, trees_equal
from engram.engine import checkpoints as checkpoint
from engram.engine import group_checkpoints
from engram.engine.checkpoints import rebuild_tree, tree_structure
from engram.engine.engine import Engine
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import flatten, leaves, tree_shapes
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune, Join, LwF
from engram.streams import class_incremental

STREAM = class_incremental(make_clouds())
LEAVES = st.sampled_from([
    torch.zeros(()), torch.arange(3), torch.empty(0), torch.ones(2, 2, dtype=torch.bool),
    torch.tensor([1.5], dtype=torch.float64),
])  # fmt: skip
NAMES = st.text("abc#01", min_size=1, max_size=3)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, TREES, max_size=3))
def test_trees_survive_with_their_empty_parts(tree):
    through_json = json.loads(json.dumps(tree_structure(tree)))
    again = rebuild_tree(through_json, flatten(tree))
    assert tree_shapes(again) == tree_shapes(tree)
    assert trees_equal(again, tree)


def learners(method, count=3) -> tuple[Engine, list[RunLearner]]:
    engine = Engine(make_runs(method, [STREAM], model="normed"), device="cpu")
    return engine, [s.learner for s in engine.stages()][:count]


METHODS = [Finetune(), ER(memory=Memory(total=12)), ER(memory=Memory(total=9, policy="reservoir")),
           EWC(strength=1.0), SI(), LwF(), Join(ER(), LwF())]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_everything_comes_back(method, tmp_path):
    engine, (*_, last) = learners(method)
    checkpoint.save_checkpoint(last, tmp_path)
    fresh = engine.learner(engine.runs[0])
    assert checkpoint.load_checkpoint(fresh, tmp_path, {0, 1, 2}) == 3
    for part in ("vector", "buffers", "state", "opt", "free", "opened"):
        assert tree_shapes(getattr(fresh, part)) == tree_shapes(getattr(last, part))
        assert trees_equal(getattr(fresh, part), getattr(last, part))
    assert fresh.exemplars.seen == last.exemplars.seen
    assert trees_equal(tuple(fresh.exemplars[:4]), tuple(last.exemplars[:4]))
    assert (fresh.stage, fresh.diverged) == (2, -1)
    assert fresh.ledger.to_dict() == last.ledger.to_dict()


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_read_lies_where_new_tensors_lie(inside, tmp_path):
    """A product of tensors at other addresses may be rounded differently."""
    engine, (*_, last) = learners(Join(ER(), LwF()))
    fresh = engine.learner(engine.runs[0])
    if inside:  # of many runs in one file
        group_checkpoints.save_group({"a-0-": last, "b-0-": last}, tmp_path / "checkpoint")
        files = group_checkpoints.GroupFiles(tmp_path / "checkpoint")
        assert files.load(fresh, "b-0-", {0, 1, 2}) == 3
    else:
        checkpoint.save_checkpoint(last, tmp_path / "checkpoint" / "a-0-")
        assert checkpoint.load_checkpoint(fresh, tmp_path / "checkpoint" / "a-0-", {0, 1, 2}) == 3
    parts = (fresh.vector, fresh.buffers, fresh.state, fresh.opt)
    numbers = [one for one in leaves(parts) if one.is_floating_point() and one.numel()]
    assert numbers
    assert [one.data_ptr() % 64 for one in numbers] == [0] * len(numbers)


def flipped(content, place):
    """The bytes with one bit of another value."""
    changed = bytearray(content)
    changed[place] ^= 4
    return bytes(changed)


class TestChoice:
    @pytest.fixture
    def folder(self, tmp_path):
        engine = Engine(make_runs(Finetune(), [STREAM]), device="cpu")
        for stage in engine.stages():
            checkpoint.save_checkpoint(stage.learner, tmp_path)
        return engine, tmp_path

    @pytest.mark.parametrize(("finished", "then"), [
        (set(), 0), ({0}, 1), ({0, 1}, 2), ({0, 1, 2}, 3), ({1, 2}, 0), ({0, 2}, 1),
    ])  # fmt: skip
    def test_the_newest_whose_stages_are_recorded(self, folder, finished, then):
        engine, path = folder
        fresh = engine.learner(engine.runs[0])
        assert checkpoint.load_checkpoint(fresh, path, finished) == then
        assert fresh.stage == then - 1

    def test_prune_keeps_the_newest(self, folder):
        _, path = folder
        checkpoint.prune_checkpoints(path)
        left = sorted(p.name for p in path.iterdir())
        assert left == ["stage-0001.safetensors", "stage-0002.safetensors"]

    def test_no_folder_is_a_fresh_start(self, folder, tmp_path):
        engine, _ = folder
        fresh = engine.learner(engine.runs[0])
        before = fresh.vector.clone()
        assert checkpoint.load_checkpoint(fresh, tmp_path / "none", {0, 1, 2}) == 0
        assert torch.equal(before, fresh.vector)

    def test_another_stream_or_seed_is_refused(self, folder):
        _, path = folder
        for old in ("stage-0000", "stage-0001"):
            (path / f"{old}.safetensors").unlink()
        other = class_incremental(make_clouds(), order=[1, 0, 2, 3, 4, 5])
        engine = Engine(make_runs(Finetune(), [other, STREAM]), device="cpu")
        for run in engine.runs:  # another stream; another seed
            with pytest.warns(UserWarning, match="belongs to another stream or seed"):
                assert checkpoint.load_checkpoint(engine.learner(run), path, {0, 1, 2}) == 0
            (path / "stage-0002.safetensors.damaged").rename(path / "stage-0002.safetensors")

    def test_a_damaged_file_is_named_and_the_one_before_is_taken(self, folder):
        engine, path = folder
        newest = path / "stage-0002.safetensors"
        whole = newest.read_bytes()
        header = int.from_bytes(whole[:8], "little")
        places = [12, header // 2, header - 3, header + 8, len(whole) - 1]  # then of tensors
        damages = [whole[:100], b"", *(flipped(whole, place) for place in places)]
        damages.append((path / "stage-0001.safetensors").read_bytes())  # another stage's
        for content in damages:
            newest.write_bytes(content)
            fresh, notes = engine.learner(engine.runs[0]), []
            assert checkpoint.load_checkpoint(fresh, path, {0, 1, 2}, notes.append) == 2
            assert len(notes) == 1
            assert str(newest) in notes[0]
            assert (path / "stage-0002.safetensors.damaged").read_bytes() == content
            assert not newest.exists()

    def test_a_file_of_another_run_is_not_taken(self, folder):
        engine, path = folder
        other = path.parent / "other"
        path.rename(other)
        with pytest.warns(UserWarning, match="belongs to another run or stage"):
            assert checkpoint.load_checkpoint(engine.learner(engine.runs[0]), other, {0, 1, 2}) == 0
        other.rename(path)

    def test_no_half_written_file_stays(self, folder, monkeypatch):
        engine, path = folder
        monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
        learner = engine.learner(engine.runs[0])
        learner.open_classes(0)
        before = {p.name: p.read_bytes() for p in path.glob("stage-*")}
        with pytest.raises(ZeroDivisionError):
            checkpoint.save_checkpoint(learner, path)
        assert {p.name: p.read_bytes() for p in path.glob("stage-*")} == before


def test_precision_is_kept(tmp_path):
    engine, (*_, last) = learners(SI())
    assert last.vector.dtype == torch.float64
    assert EXACT.precision == "float64"
    checkpoint.save_checkpoint(last, tmp_path)
    fresh = engine.learner(engine.runs[0])
    checkpoint.load_checkpoint(fresh, tmp_path, range(3))
    assert fresh.state["path"].dtype == torch.float64
