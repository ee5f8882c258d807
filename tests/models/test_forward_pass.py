from __future__ import annotations

import pytest
import torch
from torch import nn

from engram.models import KEY, ROW_WEIGHTS, forward_context
from engram.models.forward_pass import call_number


def test_context_is_set_nested_and_restored():
    weights = torch.ones(2)
    assert ROW_WEIGHTS.get() is None
    with forward_context(weights, 3):
        assert ROW_WEIGHTS.get() is weights
        with forward_context(key=4):
            assert ROW_WEIGHTS.get() is None
            assert KEY.get() == 4
        assert KEY.get() == 3
    assert KEY.get() is None


def test_context_is_restored_after_an_error():
    with pytest.raises(RuntimeError, match="stop"), forward_context(torch.ones(1), 1):
        raise RuntimeError("stop")
    assert ROW_WEIGHTS.get() is None
    assert KEY.get() is None


def test_calls_are_counted_per_module_and_pass():
    one, two = nn.Identity(), nn.Identity()
    assert [call_number(one), call_number(one)] == [0, 0]
    with forward_context():
        assert [call_number(one), call_number(two), call_number(one)] == [0, 0, 1]
    with forward_context():
        assert call_number(one) == 0
