"""The autoencoders of the detector VAE: ``net(x, noise, key)`` gives errors and divergences."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys

SPREAD = (0.01, 7.0)  # within which the variances of z stay
DROP = 0.2


def divergence(mean: Tensor, variance: Tensor) -> Tensor:
    """[B] Kullback-Leibler divergence of N(mean, variance) from N(0, 1).

    Examples
    --------
    >>> round(divergence(torch.tensor([[1.0]]), torch.tensor([[0.5]])).item(), 6)
    0.596574
    """
    return 0.5 * (mean**2 + variance - 1 - variance.log()).sum(-1)


class Autoencoder(nn.Module):
    """What both share. Without noise the mean of z is decoded; without key nothing is dropped."""

    def forward(
        self, x: Tensor, noise: Tensor | None = None, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kept = None if key is None else self.kept(key)
        mean, spread = self.encode(x, kept)
        variance = F.softplus(spread).clamp(*SPREAD)
        z = mean if noise is None else mean + variance.sqrt() * noise
        error = (x - self.decode(z, kept)).flatten(1).square().sum(-1)
        return error, divergence(mean, variance)

    def kept(self, key: Tensor) -> Tensor | None:
        """Which hidden units keys [B] leave in place; None for all of them."""
        return None

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        raise NotImplementedError


class Dense(Autoencoder):
    """Two hidden layers of twice the latent size on each side, with dropout."""

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.shape, width, hidden = shape, math.prod(shape), 2 * latent
        self.down = nn.ModuleList([nn.Linear(width, hidden), nn.Linear(hidden, hidden)])
        self.mean, self.spread = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.up = nn.ModuleList([nn.Linear(latent, hidden), nn.Linear(hidden, hidden)])
        self.out = nn.Linear(hidden, width)

    def kept(self, key: Tensor) -> Tensor | None:
        """[B, 2, 2, H]: down and up, each with its two layers, drawn at once."""
        place = torch.arange(2, device=key.device)
        own: Any = keys.fold(keys.each(key, "down", "up").unsqueeze(-1), place)
        return keys.keep(own, DROP, self.mean.in_features)

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = _through(self.down, x.flatten(1), None if kept is None else kept[:, 0])
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        out: Tensor = self.out(_through(self.up, z, None if kept is None else kept[:, 1]))
        return out.reshape(-1, *self.shape)


def _through(layers: nn.ModuleList, x: Tensor, kept: Tensor | None) -> Tensor:
    for place, layer in enumerate(layers):
        x = torch.relu(layer(x))
        if kept is not None:
            x = x * kept[:, place].to(x) / (1 - DROP)
    return x


class Gated(nn.Module):
    """A convolution times the sigmoid of another."""

    def __init__(
        self, kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], channels: tuple[int, int],
        kernel: int | tuple[int, int], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.value, self.gate = (kind(*channels, kernel, **options) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.value(x) * torch.sigmoid(self.gate(x))
        return out


class Convolutional(Autoencoder):
    """Gated convolutions down to an eighth of each side and to one vector, and back."""

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        channels, side = shape[0], (shape[1] // 8, shape[2] // 8)
        down, up = nn.Conv2d, nn.ConvTranspose2d
        self.down = nn.Sequential(
            Gated(down, (channels, 32), 4, stride=2, padding=1),
            Gated(down, (32, 32), 5, stride=2, padding=2),
            Gated(down, (32, 64), 5, padding=2),
            Gated(down, (64, 64), 5, stride=2, padding=2),
            Gated(down, (64, 64), 5, padding=2),
            Gated(down, (64, 256), side),
        )
        self.mean, self.spread = nn.Linear(256, latent), nn.Linear(256, latent)
        self.up = nn.Sequential(
            Gated(up, (latent, 64), side),
            Gated(up, (64, 64), 5, padding=2),
            Gated(up, (64, 64), 5, stride=2, padding=2, output_padding=1),
            Gated(up, (64, 32), 5, padding=2),
            Gated(up, (32, 32), 5, stride=2, padding=2, output_padding=1),
            Gated(up, (32, 32), 4, stride=2, padding=1),
            Gated(down, (32, 256), 5, padding=2),
            nn.Conv2d(256, channels, 1),
        )

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.down(x).flatten(1)
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        out: Tensor = self.up(z[..., None, None])
        return out
