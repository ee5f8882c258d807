"""A variational autoencoder of flat layers: the generator of generative replay."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import check_choice, check_int

LIKELIHOODS = ("bernoulli", "gaussian")


def kl_divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    """[B] Kullback-Leibler divergence of normal codes from the standard normal.

    Examples
    --------
    >>> import torch
    >>> found = kl_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(0.5)]]))
    >>> round(found.item(), 6)
    0.596574
    """
    return 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1)


class VAEGenerator(nn.Module):
    """Two ReLU layers into a normal code, and two out of it.

    Its cost is the error of the reconstruction, averaged over the numbers of a sample, plus the
    divergence of the code divided by how many they are. Noise is an argument, so that draws can
    be keyed.

    Parameters
    ----------
    shape
        Shape of a sample.
    width
        Width of the hidden layers.
    noise
        Width of the code.
    likelihood
        ``bernoulli``: samples in [0, 1], sigmoid output, binary cross-entropy; ``gaussian``: any
        numbers, linear output, half the squared error.

    Notes
    -----
    Kingma and Welling 2014 (ICLR).

    Examples
    --------
    >>> sum(p.numel() for p in VAEGenerator((200,), width=200, noise=100).parameters())
    221200
    """

    def __init__(
        self, shape: tuple[int, ...], *, width: int = 1600, noise: int = 100,
        likelihood: str = "bernoulli",
    ) -> None:  # fmt: skip
        super().__init__()
        check_int("width", width, 1)
        check_int("noise", noise, 1)
        self.likelihood = check_choice("likelihood", likelihood, LIKELIHOODS)
        self.shape, self.noise, size = tuple(shape), noise, math.prod(shape)
        self.encoder = nn.Sequential(*_layer(size, width), *_layer(width, width))
        self.mean, self.logvar = nn.Linear(width, noise), nn.Linear(width, noise)
        self.decoder = nn.Sequential(
            *_layer(noise, width), *_layer(width, width), nn.Linear(width, size)
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance [B, noise] of the codes of samples."""
        hidden = self.encoder(x.flatten(1))
        return self.mean(hidden), self.logvar(hidden)

    def decode(self, z: Tensor) -> Tensor:
        """[B, *shape] the samples that codes [B, noise] stand for."""
        found: Tensor = self.decoder(z)
        if self.likelihood == "bernoulli":
            found = found.sigmoid()
        return found.reshape(-1, *self.shape)

    def cost(self, x: Tensor, noise: Tensor) -> Tensor:
        """[B] what it costs to send each sample through its code, with `noise` [B, noise]."""
        mean, logvar = self.encode(x)
        found: Tensor = self.decoder(mean + (0.5 * logvar).exp() * noise)
        return self.error(found, x.flatten(1)) + kl_divergence(mean, logvar) / found.shape[-1]

    def error(self, found: Tensor, x: Tensor) -> Tensor:
        """[B] mean error of reconstructions [B, numbers], given before the sigmoid.

        Examples
        --------
        >>> import torch
        >>> seen = torch.logit(torch.tensor([[0.8, 0.3]]))
        >>> round(
        ...     VAEGenerator((2,), width=1, noise=1).error(seen, torch.tensor([[1.0, 0.0]])).item(),
        ...     6,
        ... )
        0.289909
        """
        if self.likelihood == "bernoulli":
            return F.binary_cross_entropy_with_logits(found, x, reduction="none").mean(-1)
        return 0.5 * (found - x).square().mean(-1)


def _layer(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]
