"""The generator: its sizes, its cost by hand, and its range."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from engram.errors import BadArgument
from engram.models import VAEGenerator
from engram.models.vae_generator import kl_divergence


@pytest.mark.parametrize(
    ("shape", "width", "count"),
    [((3, 100, 100), 1600, 101_636_600), ((200,), 200, 221_200)],
    ids=["images", "latents"],
)
def test_sizes_are_those_of_the_benchmark(shape, width, count):
    with torch.device("meta"):  # shapes only
        made = VAEGenerator(shape, width=width, noise=100)
    assert sum(p.numel() for p in made.parameters()) == count


def test_golden_cost():
    """mu = (1, 0), logvar = (0, ln 0.5); x = (1, 0) drawn as (0.8, 0.3)."""
    mean, logvar = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(0.5)]])
    assert kl_divergence(mean, logvar).item() == pytest.approx(0.596574, abs=1e-6)
    made = VAEGenerator((2,), width=3, noise=2)
    x, drawn = torch.tensor([[1.0, 0.0]]), torch.logit(torch.tensor([[0.8, 0.3]]))
    assert made.error(drawn, x).item() == pytest.approx(0.289909, abs=1e-6)
    _set(made.mean, mean)
    _set(made.logvar, logvar)
    _set(made.decoder[-1], drawn)  # whatever the code is
    cost = made.cost(x, torch.randn(1, 2))
    assert cost.item() == pytest.approx(0.588196, abs=1e-6)  # + KL / 2


def _set(layer: nn.Module, answer: torch.Tensor) -> None:
    """Let a layer answer the same to everything."""
    layer.weight.data.zero_()
    layer.bias.data.copy_(answer[0])


def test_noise_is_the_reparametrised_one():
    made = VAEGenerator((2,), width=3, noise=2, likelihood="gaussian").double()
    x, noise = torch.rand(5, 2).double(), torch.randn(5, 2).double()
    mean, logvar = made.encode(x)
    z = mean + logvar.exp().sqrt() * noise
    error = (made.decode(z) - x).square().sum(1) / 2
    kl = (mean**2 + logvar.exp() - logvar - 1).sum(1) / 2
    assert torch.allclose(made.cost(x, noise), (error + kl) / 2)


def test_range_of_what_is_drawn():
    z = 100 * torch.randn(64, 4)
    images = VAEGenerator((1, 3, 2), width=8, noise=4).decode(z)
    assert images.shape == (64, 1, 3, 2)
    assert images.min() >= 0
    assert images.max() <= 1
    assert VAEGenerator((6,), width=8, noise=4, likelihood="gaussian").decode(z).abs().max() > 1


@pytest.mark.parametrize("wrong", [{"width": 0}, {"noise": 0}, {"likelihood": "laplace"}])
def test_bad_arguments(wrong):
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        VAEGenerator((2,), **wrong)
