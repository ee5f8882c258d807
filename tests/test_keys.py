"""Draws depend on their key, and on nothing that was done before."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from engram import keys
from tests.models.kernel_process import assert_equal, needs_kernels


def test_a_draw_that_was_traced_first_is_a_draw_of_numbers_later():
    shape = (7, 1231)  # a size that no other test draws

    def step(key: torch.Tensor) -> torch.Tensor:
        return keys.uniform(key, *shape)

    trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.tensor(1))
    drawn = keys.uniform(2, *shape)
    assert type(drawn) is torch.Tensor
    assert 0.4 < drawn.mean() < 0.6
    assert torch.equal(trace(torch.tensor(2)), drawn)


KERNELS = """
import torch
from engram import key_kernels, keys

for key in (torch.tensor(7), torch.tensor([[3, -5], [2**62, -(2**63)]])):
    for add in (0, 5, -(2**62), 2**63 - 1):
        mixed = key_kernels.mix(key.to(DEVICE), add).cpu()
        assert torch.equal(mixed, keys._mix_(key + add))
    for count in (1, 1024, 5000):
        expected = keys._bits(key, count)
        key = key.to(DEVICE)
        assert torch.equal(key_kernels.bits(key, count).cpu(), expected)
        for least in (0, 2**23, 2**24):
            kept = key_kernels.keep(key, least, count).cpu()
            assert kept.dtype == torch.bool
            assert torch.equal(kept, (expected >> 39) >= least)
        key = key.cpu()
print("equal")
"""


@needs_kernels
def test_kernels_draw_the_same_bits():
    assert_equal(KERNELS)


def test_a_draw_by_a_kernel_is_reshaped_and_asked_for_where_it_is_large(monkeypatch):
    """With torch's draws in the kernels' place, for there is no device here."""
    asked = []

    def drawn(key: torch.Tensor, *rest: int) -> torch.Tensor:
        asked.append(rest)
        found = keys._bits(key, rest[-1])
        return found if len(rest) == 1 else (found >> 39) >= rest[0]

    key, shape = torch.tensor([4, 5]), (3, 700)
    folded = keys.fold(key, "name", torch.tensor(3))
    plain = keys.bits(key, *shape), keys.dropout_mask(key, 0.25, *shape)
    stand_in = SimpleNamespace(
        bits=drawn,
        dropout_mask=drawn,
        mix=lambda key, add: asked.append(add) or keys._mix_(key + add),
    )
    monkeypatch.setitem(sys.modules, "engram.key_kernels", stand_in)
    monkeypatch.setattr(keys, "_has_kernel", lambda key, count=4096: count > 2000)
    assert torch.equal(keys.bits(key, *shape), plain[0])
    assert torch.equal(keys.dropout_mask(key, 0.25, *shape), plain[1])
    assert asked == [(2100,), (2**22, 2100)]
    assert torch.equal(keys.fold(key, "name", torch.tensor(3)), folded)
    assert asked[3] == keys._STEP


def test_large_draws_are_those_of_whole_numbers():
    def mixed(value: int) -> int:
        return keys._mix(keys._wrap(value))

    key = -(2**61) - 3
    expected = [
        mixed(mixed(key + keys._wrap(n * keys._STEP)) + key) & keys._LARGEST for n in range(1, 9)
    ]
    assert keys.bits(key, 8).tolist() == keys.bits(torch.tensor([key]), 8)[0].tolist() == expected


@pytest.mark.parametrize("wrong", ["mix", "bits", "dropout_mask"])
def test_a_kernel_that_draws_something_else_is_given_up_in_words(wrong, monkeypatch):
    right = {
        "mix": lambda key, add: keys._mix_(key + add),
        "bits": keys._bits,
        "dropout_mask": lambda key, least, count: (keys._bits(key, count) >> 39) >= least,
    }
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "engram.key_kernels", SimpleNamespace(**right))
    monkeypatch.setattr("engram.key_kernels", SimpleNamespace(**right), raising=False)
    assert keys._try_kernel(torch.device("cpu"))
    other = {**right, wrong: lambda key, *rest: torch.zeros_like(right[wrong](key, *rest))}
    monkeypatch.setattr("engram.key_kernels", SimpleNamespace(**other), raising=False)
    monkeypatch.setitem(sys.modules, "engram.key_kernels", SimpleNamespace(**other))
    with pytest.warns(UserWarning, match="without custom kernels: they differ"):
        assert not keys._try_kernel(torch.device("cpu"))
