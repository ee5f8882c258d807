"""The verbs of a method, written for one run and mapped over all that train in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad as func_grad
from torch.func import vmap

from engram.engine.groups.hyperparameters import with_values
from engram.learner.batch import Batch
from engram.learner.kept_answers import KeptAnswers
from engram.learner.layout import Networks
from engram.learner.moving import Moving
from engram.learner.net import FunctionalNet
from engram.methods.answers import direction, named_terms, next_state
from engram.methods.base import Gradient, Method

# update, gradient through the networks, loss terms, buffers, what is remembered, kept answers
Gradients = tuple[Tensor, Tensor, dict[str, Tensor], Any, dict[str, Tensor], tuple[Any, ...]]


class MappedVerbs:
    """``loss``, ``gradient``, ``step`` and ``interval`` of a method for R runs.

    No tensor of a run is kept here: all come as arguments, so that a step can be traced on others.

    Parameters
    ----------
    moving
        What is trained; the rest of the vector stands beside it.
    remembers
        Whether the method says what is remembered of a batch.
    latents
        Whether inputs are latents, which only the main network's top sees.
    """

    def __init__(
        self, method: Method, networks: Networks, moving: Moving, *, phase: str, remembers: bool,
        latents: bool,
    ) -> None:  # fmt: skip
        self.method, self.networks, self.moving = method, networks, moving
        self.phase, self.remembers, self.latents = phase, remembers, latents
        self.projects = method.implements("gradient")
        self.touches: bool | None = None  # whether the loss writes penalties on the vector
        self.padded = True  # whether some rows of a batch may not count
        self.stays = False  # whether batch and state are the same in all steps

    # -- gradients: the step itself calls what `mapped` returns, so that whoever looks at the stack
    # inside of a loss finds few frames
    def mapped(self) -> Callable[..., Any]:
        """From `arguments` to what `results` takes apart, for all runs."""
        if self.projects:
            return vmap(self._projected_of_one)
        apart = (0, 1) if self._apart else 0
        return vmap(func_grad(self._loss_of_one, argnums=apart, has_aux=True))

    @property
    def _apart(self) -> bool:
        """Whether the gradient of penalties is had beside that of the data terms."""
        return self.touches is not False and self.moving.all

    def arguments(
        self, vector: Tensor, whole: Tensor | None, buffers: Any, state: Any, batch: Batch,
        hyper: Any, answers: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:  # fmt: skip
        """Weights, what stands beside them, and all that a loss needs.

        Beside weights that are all there are: the vector that penalties are on, or nothing. Beside
        those that move: the `whole` vector. `answers` are what older networks said to the batch.
        """
        beside: Any = vector if self._apart and not self.projects else ()
        return vector, beside if whole is None else whole, buffers, state, batch, hyper, answers

    def results(self, found: Any) -> Gradients:
        """Update, gradient through the networks, loss terms, buffers, what is remembered, kept."""
        if self.projects:
            return found  # type: ignore[no-any-return]
        data, (*rest, kept) = found
        if not isinstance(data, tuple):
            return data, data, *rest, kept
        return data[0] + data[1], data[0], *rest, kept

    def _loss_of_one(
        self, weights: Tensor, beside: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        answers: tuple[Any, ...] = (), names: tuple[str, ...] = (), remembers: bool | None = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """The loss of one run, or some of its terms, and what comes with it."""
        method = with_values(self.method, hyper)
        net = FunctionalNet(
            self.networks, weights, buffers, key=batch.key,
            penalty=weights.detach() if isinstance(beside, tuple) else beside,
            still=None if self.moving.all else (self.moving, beside),
            real=() if self.padded else batch.row_weights,
        )  # fmt: skip
        net.phase = self.phase
        net.kept = KeptAnswers(batch.x, state, answers) if self.stays else None
        if self.latents:
            net.main = "net.top"
        terms = named_terms(method, method.loss(net, batch, state))
        if self.touches is None or net.touched:
            self.touches = net.touched
        total = sum(t for name, t in terms.items() if not names or name in names)
        found: dict[str, Tensor] = {}
        if self.remembers if remembers is None else remembers:  # of the pass that the loss made
            found = method.remember(net, batch, state)
        kept = tuple(net.kept.made) if net.kept is not None else ()
        return total, (terms, net.buffers, found, kept)  # type: ignore[return-value]

    def _projected_of_one(
        self, vector: Tensor, _: Any, buffers: Any, state: Any, batch: Batch, hyper: Any,
        answers: tuple[Any, ...] = (),
    ) -> Gradients:  # fmt: skip
        """What a method makes of gradients of its choice."""
        own: dict[str, Any] = {"buffers": buffers}

        def of(which: Batch, names: tuple[str, ...], at: Tensor | None) -> Tensor:
            remembers = self.remembers and which is batch
            weights = vector if at is None else at
            rest = (own["buffers"], state, which, hyper, (), names, remembers)
            apart = (0, 1) if self.touches is not False else 0
            penalised = weights if self.touches is not False else ()
            found = func_grad(self._loss_of_one, argnums=apart, has_aux=True)(
                weights, penalised, *rest
            )
            data, (terms, after, remembered, _) = found
            penalty = None
            if isinstance(data, tuple):
                data, penalty = data
            own["buffers"] = after
            if which is batch:
                own.setdefault("data", data)
                own.setdefault("terms", terms)
                own.setdefault("found", remembered)
            return torch.as_tensor(data if penalty is None else data + penalty)

        grad = Gradient(of, vector, self.networks.layout)
        total = with_values(self.method, hyper).gradient(grad, batch, state)
        total = direction(self.method, total, vector, "terms" in own)
        return total, own["data"], own["terms"], own["buffers"], own["found"], ()

    # -- what follows a step ----------------------------------------------------------------------
    def after_step(
        self, before: Tensor, after: Tensor, data: Tensor, state: Any, hyper: Any
    ) -> Any:
        """The states of all runs after the method's ``step``."""
        return vmap(self._step_of_one)(before, after, data, state, hyper)

    def _step_of_one(
        self, before: Tensor, after: Tensor, data: Tensor, state: Any, hyper: Any
    ) -> Any:
        found = with_values(self.method, hyper).step(before, after, data, state)
        return next_state(self.method, "step", found)

    def after_interval(self, after: Tensor, state: Any, hyper: Any) -> Any:
        """The states of all runs after its ``interval``; those not at its end stay as they are."""
        return vmap(self._interval_of_one)(after, state, hyper)

    def _interval_of_one(self, after: Tensor, state: Any, hyper: Any) -> Any:
        found = with_values(self.method, hyper).interval(after, state)
        return next_state(self.method, "interval", found)
