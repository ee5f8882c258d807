"""Deep generative replay (Shin et al. 2017, NeurIPS) with a small variational autoencoder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from engram import Method, PerRun, keys
from engram.losses import distill_rows, mean


class Generator(nn.Module):
    """A variational autoencoder of flat inputs; the noise is an argument."""

    def __init__(self, shape: tuple[int, ...], width: int, latent: int) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        size = math.prod(shape)
        self.inner = nn.Linear(size, width)
        self.middle, self.spread = nn.Linear(width, latent), nn.Linear(width, latent)
        self.outer, self.last = nn.Linear(latent, width), nn.Linear(width, size)

    def decode(self, z):
        return self.last(torch.tanh(self.outer(z))).reshape(-1, *self.shape)

    def cost(self, x, noise):
        """[B] squared error of the reconstruction and divergence from the prior."""
        hidden = torch.tanh(self.inner(x.flatten(1)))
        middle, spread = self.middle(hidden), self.spread(hidden)
        seen = self.decode(middle + (0.5 * spread).exp() * noise)
        error = 0.5 * (seen - x).square().flatten(1).sum(1)
        return error + 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1)


@dataclass(frozen=True, kw_only=True)
class GenerativeReplay(Method):
    """The old generator dreams inputs, the old classifier names them, the new ones learn both."""

    width: int = 16
    latent: int = 4
    share: PerRun = 1.0
    rate: PerRun = 0.02

    def networks(self, stream):
        return {"generator": Generator(stream.data.sample_shape, self.width, self.latent)}

    def start(self, learner, task):
        learner.state = {"teacher": learner.snapshot()} if learner.stage else {}

    def loss(self, net, batch, state):
        rows = len(batch.w)
        noise = self._noise(batch, "noise", rows)
        cost = mean(net.generator.cost(batch.x, noise), batch.w)
        terms = {"task": net.task(batch), "generator": self.rate * cost}
        if "teacher" not in state:
            return terms
        z = self._noise(batch, "dreams", rows)
        dreams = net.frozen(state["teacher"]).generator.decode(z)
        named = net.frozen(state["teacher"])(dreams).logits
        answer = net(dreams, batch.w).logits
        again = net.generator.cost(dreams, self._noise(batch, "again", rows))
        names = distill_rows(
            answer, named, batch.known, temperature=1.0, new_classes=batch.new
        )  # a dream is of no new class
        return {
            **terms,
            "replay": self.share * mean(names, batch.w),
            "memory": self.rate * self.share * mean(again, batch.w),
        }

    def _noise(self, batch, purpose, rows):
        drawn = keys.normal(keys.fold(batch.key, purpose), rows, self.latent)
        return drawn.to(batch.x.dtype)
