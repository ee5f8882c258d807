"""Reconstruction by a variational autoencoder that is trained along the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from engram import keys
from engram.errors import choose, number, whole
from engram.learner.batch import Batch
from engram.learner.net import Net
from engram.novelty.base import Detector, State
from engram.novelty.facts import Facts, facts_of
from engram.novelty.vae_nets import Convolutional, Dense
from engram.probes.view import StageView

BETAS, TINY = (0.9, 0.999), 1e-8  # Adam's
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class VAE(Detector):
    """How well an autoencoder of its own, trained on task after task, knows an input.

    Nothing keeps it from forgetting: at every task it goes on from its weights with that task's
    rows alone. It costs ``epochs`` times its own step for every batch; the network itself is asked
    once per training row.

    Parameters
    ----------
    of
        What it reads: the network's ``features``, through two hidden layers of twice the latent
        size; or the ``inputs``, through gated convolutions where they are images with sides that
        are multiples of 8, through the same two layers otherwise.
    latent
        Size of z.
    epochs, batch_size, lr
        Its training with Adam on every task.
    steps
        The least steps for a task: of few rows it sees more epochs.
    scaled
        Whether what it reads is centred and divided by one number, the deviation of the first
        task's rows. In units so large that all of them vary by less than 1, z costs more than it
        explains and stays unused; the score is then the distance from the mean, to which novel
        features, which are short, are nearer than known ones.
    form
        ``inverse``: 1 / (squared error + divergence); ``neg_elbo``: minus that sum.
    z
        What a score decodes: the ``mean``, or a ``sample`` (one draw, the same for all rows).

    Examples
    --------
    >>> VAE(of="inputs", latent=8).name
    'vae of=inputs latent=8'
    """

    fits: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {
        "of": ("features", "inputs"),
        "latent": (8, 16, 32, 64, 128),
        "epochs": (10, 20, 30, 50, 100),
    }
    of: str = "features"
    latent: int = 32
    epochs: int = 10
    batch_size: int = 200
    lr: float = 1e-3
    form: str = "inverse"
    z: str = "mean"
    steps: int = 400
    scaled: bool = True

    def __post_init__(self) -> None:
        choose("of", self.of, ("features", "inputs"))
        choose("form", self.form, ("inverse", "neg_elbo"))
        choose("z", self.z, ("mean", "sample"))
        for name in ("latent", "epochs", "batch_size"):
            whole(name, getattr(self, name), 1)
        whole("steps", self.steps)
        number("lr", self.lr, 0.0, float("inf"), open_low=True)

    @property
    def passes(self) -> int:
        return self.epochs

    def passes_over(self, rows: int) -> int:
        """Epochs of a task with so many rows.

        Examples
        --------
        >>> VAE(epochs=10).passes_over(40000), VAE(epochs=10).passes_over(300)
        (10, 200)
        """
        by_epoch = max(1, -(-rows // self.batch_size))
        return max(self.epochs, -(-self.steps // by_epoch))

    def fit_options(self, rows: Sequence[int]) -> dict[str, Any]:
        """As always; epochs and least steps matter by what comes of them.

        Examples
        --------
        >>> few, more = VAE(epochs=10), VAE(epochs=30)
        >>> few.fit_options([1600]) == more.fit_options([1600])  # 50 epochs are 400 steps
        True
        """
        made = super().fit_options(rows)
        return {**made, "epochs": [self.passes_over(own) for own in rows], "steps": None}

    @property
    def rows_at_once(self) -> int:
        return self.batch_size

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("form", "z")

    def start(self, facts: Facts) -> State:
        shape = self._shape(facts)
        key = keys.fold(facts.seed, "vae")
        weights = {k: v.to(facts.like) for k, v in beginning(shape, self.latent, key).items()}
        nothing = {k: torch.zeros_like(v) for k, v in weights.items()}
        return {
            "weights": weights, "first": nothing, "second": dict(nothing),
            "steps": facts.like.new_zeros((), dtype=torch.long),
            "centre": facts.like.new_zeros(shape), "unit": facts.like.new_ones(()),
            "key": torch.tensor(key, device=facts.like.device),
        }  # fmt: skip

    def begin(self, state: State, stage: int) -> State:
        nothing = {k: torch.zeros_like(v) for k, v in state["weights"].items()}
        return {
            **state, "first": nothing, "second": dict(nothing),
            "steps": torch.zeros_like(state["steps"]),
        }  # fmt: skip

    def digest(self, net: Net, x: Tensor) -> Tensor:
        return net(x).features.flatten(1) if self.of == "features" else x

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        """One step of Adam; rows are what `digest` made of them."""
        x = (batch.x - state["centre"]) / state["unit"]
        place = torch.arange(len(x), device=x.device)
        key: Any = keys.fold(state["key"], batch.now, state["steps"], place)  # [B]
        noise = keys.normal(keys.fold(key, "z"), self.latent).to(x)

        def cost(weights: Weights) -> Tensor:
            error, divergence = self._ask(weights, x, noise, key)
            rows: Tensor = (batch.w * (error + divergence)).sum()
            return rows / batch.w.sum().clamp(min=1e-12)

        slope = torch.func.grad(cost)(state["weights"])
        return adam(state, slope, self.lr, batch.w.sum() > 0)

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        seen = (self.digest(net, x) - state["centre"]) / state["unit"]
        noise = None
        if self.z == "sample":
            noise = keys.normal(keys.fold(state["key"], "score"), self.latent).to(seen)
        return familiarity(*self._ask(state["weights"], seen, noise), form=self.form)

    def _fit_several(self, view: StageView, digested: list[Batch], state: Any) -> Any:
        if self.scaled and not view.stage:
            rows = [torch.cat([getattr(batch, name) for batch in digested], 1) for name in "xw"]
            centre, unit = self._map(view, lambda net, x, w: units(x, w), *rows)
            state = {**state, "centre": centre, "unit": unit}
        return super()._fit_several(view, digested, state)

    def _shape(self, facts: Facts) -> tuple[int, ...]:
        return (facts.features,) if self.of == "features" else facts.sample

    def fitted(self, view: StageView) -> Any:
        # layers cannot be made in vmap
        module(self._shape(facts_of(view.learners[0])), self.latent)
        return super().fitted(view)

    def _ask(
        self, weights: Weights, x: Tensor, noise: Tensor | None, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = functional_call(
            module(tuple(x.shape[1:]), self.latent), dict(weights), (x, noise, key)
        )
        return found


def familiarity(error: Tensor, divergence: Tensor, form: str = "inverse") -> Tensor:
    """[B] from squared errors and divergences.

    Examples
    --------
    >>> round(familiarity(torch.tensor(2.0), torch.tensor(0.596574)).item(), 6)
    0.385123
    """
    total = error + divergence
    return -total if form == "neg_elbo" else 1 / total.clamp(min=1e-12)


def units(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows [B, ...] with weights [B], and the deviation over all their numbers.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 4.0], [2.0, 4.0], [9.0, 9.0]])
    >>> [one.tolist() for one in units(x, torch.tensor([1.0, 1.0, 0.0]))]
    [[1.0, 4.0], 0.7071067690849304]
    """
    share = (w > 0).to(x)
    share = (share / share.sum().clamp(min=1)).reshape(-1, *[1] * (x.ndim - 1))
    centre = (share * x).sum(0)
    variance = (share * (x - centre) ** 2).sum(0).mean()
    return centre, torch.where(variance > 0, variance, 1.0).sqrt()


def adam(state: State, slope: Weights, lr: float, real: Tensor) -> State:
    """The state after a step; the same state where a batch holds no row.

    All weights at once: a step of a small network is over before the next kernel is launched.
    """
    steps = state["steps"] + 1
    weights, first, second = (flat(state[part]) for part in ("weights", "first", "second"))
    gradient = flat({name: slope[name] for name in state["weights"]})
    (a, b), count = BETAS, steps.to(gradient)
    after_first = a * first + (1 - a) * gradient
    after_second = b * second + (1 - b) * gradient**2
    move = after_first / (1 - a**count) / ((after_second / (1 - b**count)).sqrt() + TINY)
    chosen = {
        part: unflat(torch.where(real, new, old), state["weights"])
        for part, new, old in (
            ("weights", weights - lr * move, weights), ("first", after_first, first),
            ("second", after_second, second),
        )
    }  # fmt: skip
    return {**state, **chosen, "steps": torch.where(real, steps, state["steps"])}


def flat(parts: Weights) -> Tensor:
    """[P] some tensors as one vector."""
    return torch.cat([part.reshape(-1) for part in parts.values()])


def unflat(vector: Tensor, like: Weights) -> dict[str, Tensor]:
    """Views of a vector with the names and shapes of others.

    Examples
    --------
    >>> found = unflat(torch.arange(3), {"w": torch.ones(1, 2), "b": torch.ones(1)})
    >>> found["w"].tolist(), found["b"].tolist()
    ([[0, 1]], [2])
    """
    found = vector.split([part.numel() for part in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, found, strict=True)}


@lru_cache(maxsize=64)
def module(shape: tuple[int, ...], latent: int) -> nn.Module:
    """The autoencoder of samples of a shape; its own weights are never used."""
    with torch.random.fork_rng(devices=[]):
        return _made(shape, latent)


def _made(shape: tuple[int, ...], latent: int) -> nn.Module:
    image = len(shape) == 3 and all(side % 8 == 0 for side in shape[1:])
    return Convolutional(shape, latent) if image else Dense(shape, latent)


def beginning(shape: tuple[int, ...], latent: int, key: keys.Key) -> dict[str, Tensor]:
    """Weights to begin with, drawn with a key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.torch_seed(key))
        return {k: v.detach().clone() for k, v in _made(shape, latent).named_parameters()}
