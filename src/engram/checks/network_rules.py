"""Rules for networks: outputs depend on weights and inputs only, and the network learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from engram import keys
from engram.checks.check_report import BrokenRule, DoesNotApply, require
from engram.checks.equality_rules import random_states
from engram.checks.toy_runs import largest_gap, train_runs, trees_equal
from engram.data.dataset import Data
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import EngramError
from engram.methods.finetune import Finetune
from engram.models.build import build
from engram.models.classifier import read_unmappable
from engram.models.forward_pass import forward_context
from engram.models.user_networks import is_built
from engram.streams import class_incremental

# Input shapes that are tried in turn if none is given.
SHAPES = ((1, 8, 8), (3, 32, 32), (1, 28, 28), (16,), (3, 64, 64), (3, 224, 224))
ROWS = 6
CLASSES = 2
CLOSE = 1e-4  # relative, in single precision
SAME = 1e-8  # in double precision
STEPS = Training(iterations=4, batch_size=8, optimizer="sgd", lr=0.01)
EXACT = replace(STEPS, precision="float64")
LEARNS = replace(STEPS, iterations=60, optimizer="adam")
RATES = (0.002, 0.02)  # deep networks need small steps, a head alone large ones
KNOWN = 0.8  # accuracy on two clouds far apart
KEEP_NOTHING_HINT = (
    "keep nothing on self that changes from call to call (running values are buffers)"
)


@dataclass(frozen=True)
class NetworkCandidate:
    """A network to check: its class or factory, and its input shape."""

    maker: Any
    shape: tuple[int, ...]
    guessed: bool = False

    def build(self, seed: int = 0) -> nn.Module:
        """Build the network as runs do, without its head."""
        found = build(self.maker, sample_shape=self.shape, classes=CLASSES, seed=seed)
        return found.backbone

    @cached_property
    def net(self) -> nn.Module:
        """The network of seed 0."""
        return self.build()

    def rows(self, purpose: str = "rows") -> Tensor:
        """Draw inputs [ROWS, ...]."""
        return keys.normal(keys.fold(0, "networks", purpose), ROWS, *self.shape).float()

    def answer(self, rows: Tensor, *, training: bool = False) -> Tensor:
        """Compute features [B, F]; a key determines the noise of a training pass, as in runs."""
        self.net.train(training)
        key = keys.fold(0, "networks", "noise") if training else None
        with torch.random.fork_rng(devices=[]), forward_context(None, key):
            torch.default_generator.manual_seed(0)
            found: Tensor = self.net(rows)
        return found

    def runs(self, training: Training, seeds: int) -> list[Run]:
        """Make runs over one task of two separate clouds."""
        y = torch.arange(CLASSES).repeat_interleave(12)
        centres = 2 * keys.normal(keys.fold(0, "networks", "centres"), CLASSES, *self.shape)
        noise = keys.normal(keys.fold(0, "networks", "clouds"), 2 * len(y), *self.shape)
        x = (centres[y.repeat(2)] + 0.3 * noise).float()
        data = Data.from_arrays(x[: len(y)], y, test=(x[len(y) :], y), name="clouds")
        stream = class_incremental(data, classes_per_task=CLASSES)
        parts: dict[str, Any] = {"stream": stream, "method": Finetune(), "training": training}
        return [Run(model=self.maker, seed=seed, **parts) for seed in range(seeds)]


def make_candidate(maker: Any, shape: tuple[int, ...] | None = None) -> NetworkCandidate:
    """Make a candidate with the given input shape, or the first usual one that works."""
    if shape is not None:
        return NetworkCandidate(maker, shape)
    for usual in SHAPES:
        one = NetworkCandidate(maker, usual, guessed=True)
        try:
            one.net  # noqa: B018
        except (EngramError, RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            continue
        return one
    return NetworkCandidate(maker, SHAPES[0], guessed=True)


def check_answers_features(one: NetworkCandidate) -> None:
    """A batch of samples becomes finite features [B, F]."""
    try:
        found = one.answer(one.rows())
    except EngramError as error:
        tried = ", ".join(map(str, SHAPES))
        hint = f"\nsamples of {tried} were tried; --data NAME names data that it reads"
        raise BrokenRule(f"{error}{hint if one.guessed else ''}") from None
    for rows in (one.rows(), torch.zeros(ROWS, *one.shape)):
        found = one.answer(rows)
        require(found.ndim == 2 and len(found) == ROWS, f"it answers {tuple(found.shape)}")
        require(bool(torch.isfinite(found).all()), "its features are not finite on harmless inputs")


def check_the_seed_decides_its_weights(one: NetworkCandidate) -> None:
    """The seed determines the weights: equal for equal seeds, different for others."""
    if is_built(one.maker):
        raise DoesNotApply("it is built already: all seeds begin with its weights")
    first, again, other = (tuple(one.build(seed).parameters()) for seed in (0, 0, 1))
    if not first:
        raise DoesNotApply("it has no weights")
    require(
        trees_equal(first, again),
        "built twice with one seed, its weights differ: draw them from torch's generator, which "
        "the seed of the run sets, not from numpy's or Python's",
    )
    require(
        not trees_equal(first, other), "every seed has the same weights: set no seed of your own"
    )


def check_inputs_stay_as_they_are(one: NetworkCandidate) -> None:
    """A forward pass writes nothing into its inputs."""
    for training in (False, True):
        rows = one.rows()
        one.answer(rows, training=training)
        require(torch.equal(rows, one.rows()), "it writes into its inputs: x = x + 1, not x += 1")


def check_answers_the_same_again(one: NetworkCandidate) -> None:
    """In eval mode the same inputs have the same features, and nothing is drawn."""
    before, net = random_states(), one.net.eval()
    with torch.no_grad(), forward_context(None, None):
        first, second = net(one.rows()), net(one.rows())
    require(
        random_states() == before,
        "it draws random numbers in eval mode: ask self.training first, or use torch.nn.Dropout",
    )
    require(
        torch.equal(first, second),
        "the same inputs have other features the second time: " + KEEP_NOTHING_HINT,
    )


def check_rows_do_not_matter_to_each_other(one: NetworkCandidate) -> None:
    """In eval mode the features of a row do not depend on the rows beside it."""
    whole, alone = one.answer(one.rows()), one.answer(one.rows()[:1])
    away = largest_gap(alone.detach(), whole[:1].detach())
    require(
        away < CLOSE,
        f"a row alone has features that differ by {away:.1e} from those in a batch: take no mean "
        "over rows, and flatten by x.flatten(1)",
    )


def check_a_training_pass_can_be_repeated(one: NetworkCandidate) -> None:
    """Weights, inputs and the key of a step determine a training pass, as resuming needs."""
    kept = {name: value.clone() for name, value in one.net.state_dict().items()}
    first = one.answer(one.rows(), training=True)
    one.net.load_state_dict(kept)
    second = one.answer(one.rows(), training=True)
    one.net.load_state_dict(kept)
    require(
        torch.equal(first, second),
        "the same weights, inputs and seed give other features in training: "
        f"{KEEP_NOTHING_HINT}, and draw from torch's generator only",
    )


def check_gradients_reach_all_weights(one: NetworkCandidate) -> None:
    """Every weight that may move has a gradient."""
    named = {name: value for name, value in one.net.named_parameters() if value.requires_grad}
    if not named:
        raise DoesNotApply("no weight of it may move")
    found = one.answer(one.rows(), training=True)
    require(found.requires_grad, "none of its weights has a part in the features")
    slopes = torch.autograd.grad(found.square().sum(), list(named.values()), allow_unused=True)
    idle = [name for name, slope in zip(named, slopes, strict=True) if slope is None]
    require(
        not idle,
        f"{', '.join(idle[:5])} {'has' if len(idle) == 1 else 'have'} no part in the features: "
        "leave unused layers out",
    )


def check_lockstep_is_the_loop(one: NetworkCandidate) -> None:
    """Runs that train together end with the weights of runs that train alone."""
    reasons = read_unmappable(one.net)
    if reasons:
        raise DoesNotApply(f"it trains one run at a time: {'; '.join(reasons)}")
    runs = one.runs(EXACT, 2)
    try:
        alone, together = train_runs(runs), train_runs(runs, together=True)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise DoesNotApply("it computes in single precision only") from None
    away = max(largest_gap(together[key].vector, after.vector) for key, after in alone.items())
    require(
        away < SAME, f"weights differ by {away:.1e} between lockstep and loop: {KEEP_NOTHING_HINT}"
    )


def check_learns(one: NetworkCandidate) -> None:
    """Two separate clouds are distinguished after a few steps."""
    truth, best = torch.arange(CLASSES).repeat_interleave(12), 0.0
    for rate in RATES:
        (after,) = train_runs(one.runs(replace(LEARNS, lr=rate), 1)).values()
        right = (torch.as_tensor(after.scores).argmax(-1) == truth).float().mean()
        best = max(best, float(right))
        if best > KNOWN:
            return
    raise BrokenRule(
        f"after {LEARNS.iterations} steps of Adam it is right about {best:.2f} of two clouds that "
        "lie far apart: look for layers that lose the input, or for features that do not vary"
    )


# A network that remembers its inputs fails wherever two outputs are compared.
COMPARED_CHECKS = (
    check_rows_do_not_matter_to_each_other,
    check_a_training_pass_can_be_repeated,
    check_lockstep_is_the_loop,
)
NETWORK_CHECKS: tuple[Callable[[NetworkCandidate], None], ...] = (
    check_answers_features,
    check_the_seed_decides_its_weights,
    check_inputs_stay_as_they_are,
    check_answers_the_same_again,
    check_rows_do_not_matter_to_each_other,
    check_a_training_pass_can_be_repeated,
    check_gradients_reach_all_weights,
    check_lockstep_is_the_loop,
    check_learns,
)
