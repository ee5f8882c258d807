"""Reconstruction error of a variational autoencoder that is trained along the stream: the
detector, its networks and its Adam step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engram import keys
from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.tensor_tree import tree_map
from engram.models.functional_call import differentiate
from engram.novelty.detector import ROWS_PER_BATCH, Detector, Facts, State, gather_facts
from engram.probes.stage_view import StageView


@dataclass(frozen=True)
class VAE(Detector):
    """How well a separate autoencoder, trained task by task, reconstructs an input.

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
    best
        Whether the weights of a task are those of the epoch with the least loss on its validation
        rows, as in the benchmark's code; otherwise of the last epoch.

    Examples
    --------
    >>> VAE(of="inputs", latent=8).name
    'vae of=inputs latent=8'
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
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
    best: bool = False

    def __post_init__(self) -> None:
        check_choice("of", self.of, ("features", "inputs"))
        check_choice("form", self.form, ("inverse", "neg_elbo"))
        check_choice("z", self.z, ("mean", "sample"))
        for name in ("latent", "epochs", "batch_size"):
            check_int(name, getattr(self, name), 1)
        check_int("steps", self.steps)
        check_float("lr", self.lr, 0.0, float("inf"), open_low=True)

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
        weights = {k: v.to(facts.like) for k, v in initial_weights(shape, self.latent, key).items()}
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
        """Take one step of Adam; rows are results of `digest`."""
        x = (batch.x - state["centre"]) / state["unit"]
        place = torch.arange(len(x), device=x.device)
        key: Any = keys.fold(state["key"], batch.now, state["steps"], place)  # [B]
        noise = keys.normal(keys.fold(key, "z"), self.latent).to(x)

        def cost(weights: Weights) -> Tensor:
            error, divergence = self._ask(weights, x, noise, key)
            rows: Tensor = (batch.w * (error + divergence)).sum()
            return rows / batch.w.sum().clamp(min=1e-12)

        slope = differentiate(cost)(state["weights"])
        return adam_step(state, slope, self.lr, batch.w.sum() > 0)

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        seen = (self.digest(net, x) - state["centre"]) / state["unit"]
        noise = None
        if self.z == "sample":
            noise = keys.normal(keys.fold(state["key"], "score"), self.latent).to(seen)
        return reconstruction_familiarity(*self._ask(state["weights"], seen, noise), form=self.form)

    def check(self, learner: RunLearner) -> None:
        super().check(learner)
        for place, task in enumerate(learner.stream.tasks, 1):
            if self.best and not len(task.valid):
                expected = f"validation rows in task {place} to choose an epoch by, as valid=0.2"
                raise bad("stream.valid", expected, 0)

    def _fit_several(self, view: StageView, digested: list[Batch], state: Any) -> Any:
        if self.scaled and self.begins_anew(view):
            rows = [torch.cat([getattr(batch, name) for batch in digested], 1) for name in "xw"]
            centre, unit = self._map(view, lambda net, x, w: mean_and_deviation(x, w), *rows)
            state = {**state, "centre": centre, "unit": unit}
        if not self.best:
            return super()._fit_several(view, digested, state)
        held = [
            (self._map(view, self.digest, one.x), one.w) for one in view.validation(ROWS_PER_BATCH)
        ]
        least, chosen = torch.full((len(view),), torch.inf, device=view.device), state
        for after in self._passes(view, digested, state):
            loss = sum(self._map(view, self._held, x, w, after) for x, w in held)
            better = loss < least
            least = torch.where(better, loss, least)
            chosen = tree_map(partial(_keep_better, better), after, chosen)
        return chosen

    def _held(self, net: Net, x: Tensor, w: Tensor, state: State) -> Tensor:
        """Compute the loss summed over rows [B], without dropout."""
        seen = (x - state["centre"]) / state["unit"]
        error, divergence = self._ask(state["weights"], seen, None)
        return ((w > 0) * (error + divergence)).sum()

    def _shape(self, facts: Facts) -> tuple[int, ...]:
        if facts.tokens and self.of != "features":
            raise bad("VAE.of", "'features' for texts, whose token ids are no quantities", self.of)
        return (facts.features,) if self.of == "features" else facts.sample

    def fit_stage(self, view: StageView) -> Any:
        # layers cannot be made in vmap
        make_autoencoder(self._shape(gather_facts(view.learners[0])), self.latent)
        return super().fit_stage(view)

    def _ask(
        self, weights: Weights, x: Tensor, noise: Tensor | None, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = functional_call(
            make_autoencoder(tuple(x.shape[1:]), self.latent), dict(weights), (x, noise, key)
        )
        return found


def reconstruction_familiarity(error: Tensor, divergence: Tensor, form: str = "inverse") -> Tensor:
    """[B] from squared errors and divergences.

    Examples
    --------
    >>> round(reconstruction_familiarity(torch.tensor(2.0), torch.tensor(0.596574)).item(), 6)
    0.385123
    """
    total = error + divergence
    return -total if form == "neg_elbo" else 1 / total.clamp(min=1e-12)


def _keep_better(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Take new leaves [R, ...] for runs that improved [R], old ones for the others."""
    return torch.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def mean_and_deviation(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows [B, ...] with weights [B], and the deviation over all their numbers.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 4.0], [2.0, 4.0], [9.0, 9.0]])
    >>> [one.tolist() for one in mean_and_deviation(x, torch.tensor([1.0, 1.0, 0.0]))]
    [[1.0, 4.0], 0.7071067690849304]
    """
    share = (w > 0).to(x)
    share = (share / share.sum().clamp(min=1)).reshape(-1, *[1] * (x.ndim - 1))
    centre = (share * x).sum(0)
    variance = (share * (x - centre) ** 2).sum(0).mean()
    return centre, torch.where(variance > 0, variance, 1.0).sqrt()


@lru_cache(maxsize=64)
def make_autoencoder(shape: tuple[int, ...], latent: int) -> nn.Module:
    """Build the autoencoder for samples of a shape; its own weights are never used."""
    with torch.random.fork_rng(devices=[]):
        return _build_autoencoder(shape, latent)


def _build_autoencoder(shape: tuple[int, ...], latent: int) -> nn.Module:
    image = len(shape) == 3 and all(side % 8 == 0 for side in shape[1:])
    return ConvolutionalAutoencoder(shape, latent) if image else DenseAutoencoder(shape, latent)


def initial_weights(shape: tuple[int, ...], latent: int, key: keys.Key) -> dict[str, Tensor]:
    """Draw initial weights with a key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.torch_seed(key))
        return {
            k: v.detach().clone() for k, v in _build_autoencoder(shape, latent).named_parameters()
        }


# -- autoencoders: ``net(x, noise, key)`` returns errors and divergences ---------------------------

VARIANCE_RANGE = (0.01, 7.0)  # within which the variances of z stay
DROPOUT = 0.2


def kl_divergence(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence [B] of N(mean, variance) from N(0, 1).

    Examples
    --------
    >>> round(kl_divergence(torch.tensor([[1.0]]), torch.tensor([[0.5]])).item(), 6)
    0.596574
    """
    return 0.5 * (mean**2 + variance - 1 - variance.log()).sum(-1)


class Autoencoder(nn.Module):
    """Base class. Without noise the mean of z is decoded; without a key there is no dropout."""

    def forward(
        self, x: Tensor, noise: Tensor | None = None, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kept = None if key is None else self.kept(key)
        mean, spread = self.encode(x, kept)
        variance = F.softplus(spread).clamp(*VARIANCE_RANGE)
        z = mean if noise is None else mean + variance.sqrt() * noise
        error = (x - self.decode(z, kept)).flatten(1).square().sum(-1)
        return error, kl_divergence(mean, variance)

    def kept(self, key: Tensor) -> Tensor | None:
        """Which hidden units keys [B] leave in place; None for all of them."""
        return None

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        raise NotImplementedError


class DenseAutoencoder(Autoencoder):
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
        own: Any = keys.fold(keys.fold_each(key, "down", "up").unsqueeze(-1), place)
        return keys.dropout_mask(own, DROPOUT, self.mean.in_features)

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = _apply_layers(self.down, x.flatten(1), None if kept is None else kept[:, 0])
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        out: Tensor = self.out(_apply_layers(self.up, z, None if kept is None else kept[:, 1]))
        return out.reshape(-1, *self.shape)


def _apply_layers(layers: nn.ModuleList, x: Tensor, kept: Tensor | None) -> Tensor:
    for place, layer in enumerate(layers):
        x = torch.relu(layer(x))
        if kept is not None:
            x = x * kept[:, place].to(x) / (1 - DROPOUT)
    return x


class GatedConvolution(nn.Module):
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


class ConvolutionalAutoencoder(Autoencoder):
    """Gated convolutions down to an eighth of each side and to one vector, and back."""

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        channels, side = shape[0], (shape[1] // 8, shape[2] // 8)
        down, up = nn.Conv2d, nn.ConvTranspose2d
        self.down = nn.Sequential(
            GatedConvolution(down, (channels, 32), 4, stride=2, padding=1),
            GatedConvolution(down, (32, 32), 5, stride=2, padding=2),
            GatedConvolution(down, (32, 64), 5, padding=2),
            GatedConvolution(down, (64, 64), 5, stride=2, padding=2),
            GatedConvolution(down, (64, 64), 5, padding=2),
            GatedConvolution(down, (64, 256), side),
        )
        self.mean, self.spread = nn.Linear(256, latent), nn.Linear(256, latent)
        self.up = nn.Sequential(
            GatedConvolution(up, (latent, 64), side),
            GatedConvolution(up, (64, 64), 5, padding=2),
            GatedConvolution(up, (64, 64), 5, stride=2, padding=2, output_padding=1),
            GatedConvolution(up, (64, 32), 5, padding=2),
            GatedConvolution(up, (32, 32), 5, stride=2, padding=2, output_padding=1),
            GatedConvolution(up, (32, 32), 4, stride=2, padding=1),
            GatedConvolution(down, (32, 256), 5, padding=2),
            nn.Conv2d(256, channels, 1),
        )

    def encode(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.down(x).flatten(1)
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z: Tensor, kept: Tensor | None) -> Tensor:
        out: Tensor = self.up(z[..., None, None])
        return out


# -- Adam as a pure function, for detectors that train a model of their own ------------------------

BETAS, TINY = (0.9, 0.999), 1e-8
AdamState = Mapping[str, Any]
Weights = Mapping[str, Tensor]


def adam_step(state: AdamState, slope: Weights, lr: float, real: Tensor) -> AdamState:
    """Return the state after a step; unchanged if a batch has no rows.

    All weights at once: a step of a small network is over before the next kernel is launched.
    """
    steps = state["steps"] + 1
    weights, first, second = (
        flatten_tensors(state[part]) for part in ("weights", "first", "second")
    )
    gradient = flatten_tensors({name: slope[name] for name in state["weights"]})
    (a, b), count = BETAS, steps.to(gradient)
    after_first = a * first + (1 - a) * gradient
    after_second = b * second + (1 - b) * gradient**2
    move = after_first / (1 - a**count) / ((after_second / (1 - b**count)).sqrt() + TINY)
    chosen = {
        part: unflatten_vector(torch.where(real, new, old), state["weights"])
        for part, new, old in (
            ("weights", weights - lr * move, weights), ("first", after_first, first),
            ("second", after_second, second),
        )
    }  # fmt: skip
    return {**state, **chosen, "steps": torch.where(real, steps, state["steps"])}


def flatten_tensors(parts: Weights) -> Tensor:
    """Flatten tensors to one vector [P]."""
    return torch.cat([part.reshape(-1) for part in parts.values()])


def unflatten_vector(vector: Tensor, like: Weights) -> dict[str, Tensor]:
    """Return views of a vector with the names and shapes of other tensors.

    Examples
    --------
    >>> found = unflatten_vector(torch.arange(3), {"w": torch.ones(1, 2), "b": torch.ones(1)})
    >>> found["w"].tolist(), found["b"].tolist()
    ([[0, 1]], [2])
    """
    found = vector.split([part.numel() for part in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, found, strict=True)}
