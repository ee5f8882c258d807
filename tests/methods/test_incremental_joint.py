from __future__ import annotations

import pytest
import torch

from engram.errors import AccessError
from engram.methods.finetune import Finetune
from engram.methods.incremental_joint import IncrementalJoint
from engram.methods.joint import Joint
from engram.methods.method import Method, ReplaySpec
from engram.streams import class_incremental
from tests.methods.rehearsal import clouds, final, spied, train
from tests.methods.test_er import two_labels


def test_complete_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """[T-P4] in the second task every row is shown once, with {A, a}."""
    seen = spied(monkeypatch, Method)
    train(IncrementalJoint(), two_labels(), loss="bce", epochs=1)
    assert {tuple(y) for b in seen.of(0) for y in b.y.tolist()} == {(0, -1)}
    assert {tuple(y) for b in seen.of(1) for y in b.y.tolist()} == {(0, 1)}
    rows = torch.cat([b.x for b in seen.of(1)])
    assert len(rows) == 10 == len(rows.unique(dim=0))
    assert {int(k) for b in seen.of(1) for k in b.stage} == {1}  # as of its latest task


def test_without_hidden_labels_it_is_joint_training() -> None:
    stream = class_incremental(clouds())
    gap = final(IncrementalJoint(), stream, batch_size=0) - final(Joint(), stream, batch_size=0)
    assert gap.abs().max() < 1e-12


def test_hidden_labels_need_a_declaration() -> None:
    class Sly(Finetune):
        def replay(self, stage: int) -> ReplaySpec:
            return ReplaySpec("complete")

    with pytest.raises(AccessError):
        train(Sly(), two_labels(), loss="bce")
