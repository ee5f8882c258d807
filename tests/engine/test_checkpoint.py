from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.checks.toys import EXACT, clouds, runs_of, same
from engram.engine.checkpoints import single as checkpoint
from engram.engine.checkpoints.single import rebuild, structure
from engram.engine.engine import Engine
from engram.errors import RecordError
from engram.learner.learner import Learner
from engram.learner.tree import flatten, shapes
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune, Join, LwF
from engram.streams import class_incremental

STREAM = class_incremental(clouds())
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
    through_json = json.loads(json.dumps(structure(tree)))
    again = rebuild(through_json, flatten(tree))
    assert shapes(again) == shapes(tree)
    assert same(again, tree)


def learners(method, count=3) -> tuple[Engine, list[Learner]]:
    engine = Engine(runs_of(method, [STREAM], model="normed"), device="cpu")
    return engine, [s.learner for s in engine.stages()][:count]


METHODS = [Finetune(), ER(memory=Memory(total=12)), ER(memory=Memory(total=9, policy="reservoir")),
           EWC(strength=1.0), SI(), LwF(), Join(ER(), LwF())]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_everything_comes_back(method, tmp_path):
    engine, (*_, last) = learners(method)
    checkpoint.save(last, tmp_path)
    fresh = engine.learner(engine.runs[0])
    assert checkpoint.load(fresh, tmp_path, {0, 1, 2}) == 3
    for part in ("vector", "buffers", "state", "opt", "free", "opened"):
        assert shapes(getattr(fresh, part)) == shapes(getattr(last, part))
        assert same(getattr(fresh, part), getattr(last, part))
    assert fresh.exemplars.seen == last.exemplars.seen
    assert same(tuple(fresh.exemplars[:4]), tuple(last.exemplars[:4]))
    assert (fresh.stage, fresh.diverged) == (2, -1)
    assert fresh.ledger.to_dict() == last.ledger.to_dict()


class TestChoice:
    @pytest.fixture
    def folder(self, tmp_path):
        engine = Engine(runs_of(Finetune(), [STREAM]), device="cpu")
        for stage in engine.stages():
            checkpoint.save(stage.learner, tmp_path)
        return engine, tmp_path

    @pytest.mark.parametrize(("finished", "then"), [
        (set(), 0), ({0}, 1), ({0, 1}, 2), ({0, 1, 2}, 3), ({1, 2}, 0), ({0, 2}, 1),
    ])  # fmt: skip
    def test_the_newest_whose_stages_are_recorded(self, folder, finished, then):
        engine, path = folder
        fresh = engine.learner(engine.runs[0])
        assert checkpoint.load(fresh, path, finished) == then
        assert fresh.stage == then - 1

    def test_prune_keeps_the_newest(self, folder):
        _, path = folder
        checkpoint.prune(path)
        assert [p.name for p in path.iterdir()] == ["stage-0002.safetensors"]

    def test_no_folder_is_a_fresh_start(self, folder, tmp_path):
        engine, _ = folder
        fresh = engine.learner(engine.runs[0])
        before = fresh.vector.clone()
        assert checkpoint.load(fresh, tmp_path / "none", {0, 1, 2}) == 0
        assert torch.equal(before, fresh.vector)

    def test_another_stream_or_seed_is_refused(self, folder):
        _, path = folder
        other = class_incremental(clouds(), order=[1, 0, 2, 3, 4, 5])
        engine = Engine(runs_of(Finetune(), [other, STREAM]), device="cpu")
        for run in engine.runs:  # another stream; another seed
            with pytest.raises(RecordError, match="belongs to another stream or seed"):
                checkpoint.load(engine.learner(run), path, {0, 1, 2})

    def test_a_broken_file_is_named(self, folder):
        engine, path = folder
        broken = path / "stage-0002.safetensors"
        broken.write_bytes(broken.read_bytes()[:100])
        with pytest.raises(RecordError, match=r"stage-0002\.safetensors: unreadable"):
            checkpoint.load(engine.learner(engine.runs[0]), path, {0, 1, 2})

    def test_no_half_written_file_stays(self, folder, monkeypatch):
        engine, path = folder
        monkeypatch.setattr(checkpoint.os, "replace", lambda *_: 1 / 0)
        learner = engine.learner(engine.runs[0])
        learner.open_classes(0)
        before = {p.name: p.read_bytes() for p in path.glob("stage-*")}
        with pytest.raises(ZeroDivisionError):
            checkpoint.save(learner, path)
        assert {p.name: p.read_bytes() for p in path.glob("stage-*")} == before


def test_precision_is_kept(tmp_path):
    engine, (*_, last) = learners(SI())
    assert last.vector.dtype == torch.float64
    assert EXACT.precision == "float64"
    checkpoint.save(last, tmp_path)
    fresh = engine.learner(engine.runs[0])
    checkpoint.load(fresh, tmp_path, range(3))
    assert fresh.state["path"].dtype == torch.float64
