from __future__ import annotations

import copy
import pickle

import torch
from torch.utils import _pytree

from engram.memory import Exemplars


def some(n: int = 5) -> Exemplars:
    here = torch.arange(n)
    return Exemplars(here + 10, here // 2, here % 3, here, seen=40)


def test_len_counts_items() -> None:
    assert [len(some(n)) for n in (0, 4, 5)] == [0, 4, 5]
    assert repr(some(3)) == "Exemplars(3 items of tasks [0, 1], 40 rows seen)"


def test_it_stays_a_named_tuple() -> None:
    for n in (0, 2, 5):
        kept = some(n)
        rows, _stages, _columns, _ranks, seen = kept
        assert rows is kept.rows
        assert seen == 40
        changed = kept._replace(seen=41)
        assert (changed.seen, len(changed)) == (41, n)
        assert isinstance(changed, Exemplars)
        for copied in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
            assert copied.columns.tolist() == kept.columns.tolist()
        doubled = _pytree.tree_map(lambda leaf: leaf * 2, kept)
        assert isinstance(doubled, Exemplars)
        assert doubled.rows.tolist() == (kept.rows * 2).tolist()


def test_take_and_join() -> None:
    kept = some()
    part = kept.take(kept.columns == 1)
    assert (part.rows.tolist(), part.stages.tolist(), part.seen) == ([11, 14], [0, 2], 40)
    both = part.join(some(2), Exemplars.empty())
    assert both.rows.tolist() == [11, 14, 10, 11]
    assert both.seen == 40


def test_counts_and_bytes() -> None:
    assert some().counts(6).tolist() == [2, 2, 1, 0, 0, 0]
    assert some().nbytes(28 * 28) == 5 * 784
    hidden = some()._replace(columns=torch.tensor([-1, 0, 0, -1, 2]))
    assert hidden.counts().tolist() == [2, 0, 1]
