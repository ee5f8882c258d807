"""Deep generative replay: a generator samples old inputs, which the old network labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.parameter_layout import OPTIMIZERS
from engram.losses import CLOSED_LOGIT, distill_rows, mean
from engram.methods.method import Method, MethodNetworks, Network, Phase, State, Terms
from engram.models.vae_generator import LIKELIHOODS, VAEGenerator
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

ORDERS = ("interleaved", "generator_first")
NEW_CLASSES = ("zero_pad", "slice")
PASSES = ("joint", "apart")
NARROW, WIDE = 64, 1600  # bounds of the default width of the generator
ROWS_AT_ONCE = 1024
Noise = dict[str, Tensor]  # by purpose


def hard_label_loss(student: Tensor, teacher: Tensor, heads: Tensor, rivals: Tensor) -> Tensor:
    """Compute the cross-entropy [B, K] with the teacher's top class of each head [K, C].

    The student's softmax runs over the `rivals` [K, C] of the head.

    Examples
    --------
    >>> student, teacher = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[2.0, 1.0, 9.0]])
    >>> old, all_ = torch.tensor([[True, True, False]]), torch.tensor([[True, True, True]])
    >>> round(hard_label_loss(student, teacher, old, all_).item(), 6)  # the third class is new
    1.098612
    """
    shape = (len(student), *heads.shape)  # [B, K, C]
    target = teacher[:, None].expand(shape).masked_fill(~heads, CLOSED_LOGIT).argmax(-1)
    log_p = student[:, None].expand(shape).masked_fill(~rivals, CLOSED_LOGIT).log_softmax(-1)
    return -log_p.gather(-1, target[..., None]).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class DGR(Method):
    """Replay samples from a generator, labelled by the network as it was before the task.

    A scholar is the network and a variational autoencoder of its inputs. From the second task on,
    every step draws as many samples as the batch has rows from the generator of the previous
    scholar, whose network labels them. Both networks minimise ``r * new + (1 - r) * replayed``.

    With known tasks (multi-head) every replayed row goes through every old head, and the loss is
    averaged over heads; otherwise replayed rows compete with the new classes too.

    Parameters
    ----------
    distill
        Soft labels: softmax of old logits over `temperature` (DGR+D), instead of the top class.
    temperature
        T of soft labels; their term is multiplied by T squared.
    ratio
        The share r of the new rows; None: ``1 / t`` at task t.
    kd_new_classes
        ``zero_pad``: soft labels give new classes the probability 0; ``slice``: new classes are
        left out.
    size
        Generated rows per step; 0: as many as the batch has.
    passes
        ``joint``: new and generated rows go through the network together, so batch normalisation
        sees both; ``apart``: one after the other, as in ConFER's base code.
    order
        ``interleaved``: both networks learn in every step; ``generator_first``: the generator is
        trained on the task first, for as long as the recipe says, then the network (ConFER's text).
    width
        Width of the generator's layers; 0: the number of values in a sample, but between 64 and
        1600. ConFER: 1600.
    noise
        Dimension of the generator's code.
    likelihood
        ``bernoulli``: samples in [0, 1], binary cross-entropy; ``gaussian``: half the squared
        error; ``auto``: bernoulli where the data are images of bytes and not standardised.
    generator_lr
        Learning rate of the generator; 0: the recipe's.
    generator_optimizer
        ``same``: the recipe's; or ``adam``, ``adamw``, ``sgd``.

    Notes
    -----
    Shin et al. 2017 (NeurIPS); with soft labels van de Ven and Tolias 2018.

    Examples
    --------
    >>> DGR(ratio=2.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: ratio: expected a number in [0, 1], got 2.0
    """

    generates: ClassVar[str] = "inputs"

    distill: bool = False
    temperature: PerRun = 2.0
    ratio: PerRun | None = None
    kd_new_classes: str = "zero_pad"
    size: int = 0
    passes: str = "joint"
    order: str = "interleaved"
    width: int = 0
    noise: int = 100
    likelihood: str = "auto"
    generator_lr: float = 0.0
    generator_optimizer: str = "same"

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_float("ratio", self.ratio, 0.0, 1.0)
        check_float("temperature", self.temperature, open_low=True)
        check_float("generator_lr", self.generator_lr)
        check_int("size", self.size)
        check_int("width", self.width)
        check_int("noise", self.noise, 1)
        check_choice("kd_new_classes", self.kd_new_classes, NEW_CLASSES)
        check_choice("passes", self.passes, PASSES)
        check_choice("order", self.order, ORDERS)
        check_choice("likelihood", self.likelihood, ("auto", *LIKELIHOODS))
        check_choice("generator_optimizer", self.generator_optimizer, ("same", *OPTIMIZERS))

    # -- the generator ---------------------------------------------------------------------------
    def networks(self, stream: StreamOutline) -> MethodNetworks:
        if stream.data.tokens:
            expected = "inputs that a generator can make, not texts (LGR makes features of them)"
            raise bad("data", expected, stream.data.name)
        return {"generator": self._network(stream.data.sample_shape, stream.data.unit_range)}

    def _network(self, shape: tuple[int, ...], unit_range: bool) -> Network:
        likelihood = self.likelihood
        if likelihood == "auto":
            likelihood = "bernoulli" if unit_range else "gaussian"
        width = self.width or min(max(math.prod(shape), NARROW), WIDE)
        module = VAEGenerator(shape, width=width, noise=self.noise, likelihood=likelihood)
        optimizer = "" if self.generator_optimizer == "same" else self.generator_optimizer
        return Network(module, lr=self.generator_lr, optimizer=optimizer, counts=True)

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if self.order == "interleaved":
            return (Phase(),)
        return (
            Phase(name="generator", trainable=("generator",)),
            Phase(name="solver", trainable=("net",)),
        )

    # -- a task ----------------------------------------------------------------------------------
    def start(self, learner: RunLearner, task: Task) -> None:
        self._need_unit_range(learner)
        learner.state = {}
        if learner.stage == 0:
            return
        heads = learner.stream.visible[: learner.stage]  # [K, C]
        known = learner.known
        among = {"own": heads, "at_time": known[None], "all": torch.ones_like(known)[None]}
        rivals = among.get(learner.scope, learner.seen[None])
        learner.state = {
            "before": learner.snapshot(),
            "heads": (heads if learner.scope == "own" else known[None]).to(learner.device),
            "rivals": rivals.to(learner.device),
        }

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        terms: Terms = {}
        noise = self._noise(net, batch, state)
        replayed_rows = self._replay_samples(net, batch, state, noise) if state else None
        if net.phase != "generator":
            terms |= self._solver(net, batch, state, replayed_rows)
        if net.phase != "solver":
            terms |= self._generator(net, batch, replayed_rows, noise)
        if replayed_rows is None:
            return terms
        share = 1 / (batch.now + 1).to(batch.w.dtype) if self.ratio is None else self.ratio
        replayed = ("replay", "generator_replay")
        return {k: (1 - share if k in replayed else share) * v for k, v in terms.items()}

    def _noise(self, net: Net, batch: Batch, state: State) -> Noise:
        """Draw the codes [rows, noise] of a step by purpose; equal numbers are drawn together."""
        own, replayed = len(batch.w), self.size or len(batch.w)
        rows = {} if net.phase == "solver" else {"own": own}
        if state:
            rows |= (
                {"dreams": replayed}
                if net.phase == "solver"
                else {"dreams": replayed, "again": replayed}
            )
        found: Noise = {}
        for count in sorted(set(rows.values())):
            names = [name for name in rows if rows[name] == count]  # part of the keys
            drawn = keys.normal(keys.fold_each(batch.key, *names), count, self.noise)
            found |= dict(zip(names, drawn.to(batch.w.dtype).unbind(0), strict=True))
        return found

    def _replay_samples(
        self, net: Net, batch: Batch, state: State, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Sample from the old generator; also return weights, 0 where the batch is padding."""
        w = batch.w.new_ones(self.size) if self.size else (batch.w > 0).to(batch.w.dtype)
        return net.frozen(state["before"]).generator.decode(noise["dreams"]), w

    def _solver(
        self, net: Net, batch: Batch, state: State, replayed_rows: tuple[Tensor, Tensor] | None
    ) -> Terms:
        if replayed_rows is None:
            return {"task": net.task(batch)}
        x, w = replayed_rows
        if self.passes == "apart":
            task, student = net.task(batch), net(x, w).logits
        else:
            weights = None if net.may_omit_weights(batch.w) else self._concatenate(batch.w, w)
            both = net(self._concatenate(batch.x, x), weights).logits
            own = slice(self.size, None) if self.size else slice(0, None, 2)
            task = net.networks.objective(both[own], batch)
            student = both[: self.size] if self.size else both[1::2]
        teacher = net.frozen(state["before"])(x).logits
        rows = self._replay_rows(student, teacher, state["heads"], state["rivals"])
        return {"task": task, "replay": mean(rows.mean(-1), w)}

    def _concatenate(self, own: Tensor, replayed_rows: Tensor) -> Tensor:
        """Join new and replayed rows to one batch, at positions that do not depend on padding."""
        if self.size:
            return torch.cat([replayed_rows, own])
        return torch.stack([own, replayed_rows], 1).flatten(0, 1)

    def _replay_rows(
        self, student: Tensor, teacher: Tensor, heads: Tensor, rivals: Tensor
    ) -> Tensor:
        """Compute the loss [B, K] of replayed rows at each old head."""
        if not self.distill:
            return hard_label_loss(student, teacher, heads, rivals)
        shape = (len(student), *heads.shape)
        return distill_rows(
            student[:, None].expand(shape), teacher[:, None].expand(shape), heads,
            temperature=self.temperature, scale=True,
            new_classes=rivals if self.kd_new_classes == "zero_pad" else None,
        )  # fmt: skip

    def _generator(
        self, net: Net, batch: Batch, replayed_rows: tuple[Tensor, Tensor] | None, noise: Noise
    ) -> Terms:
        cost, x = net.generator.cost, self._generator_targets(net, batch)
        real = (batch.w > 0).to(batch.w.dtype)  # weights of classes are the classifier's
        if replayed_rows is None:
            return {"generator": mean(cost(x, noise["own"]), real)}
        again, w = replayed_rows
        # the generator works row by row, so both kinds share one pass
        both = cost(torch.cat([x, again]), torch.cat([noise["own"], noise["again"]]))
        own, replayed = both.split([len(x), len(again)])
        return {"generator": mean(own, real), "generator_replay": mean(replayed, w)}

    def _generator_targets(self, net: Net, batch: Batch) -> Tensor:
        """Return the samples of a batch that the generator models."""
        return batch.x

    def _generator_samples(self, learner: RunLearner, rows: Tensor) -> Tensor:
        """Return the samples of rows in the form that the generator models."""
        return learner.batch(rows).x

    def _need_unit_range(self, learner: RunLearner) -> None:
        """Raise if samples are outside of [0, 1], for which binary cross-entropy is unbounded."""
        if self.likelihood != "bernoulli":  # auto has checked it
            return
        for rows in learner.task.train.split(ROWS_AT_ONCE):
            x = self._generator_samples(learner, rows)
            if bool((x < 0).any() | (x > 1).any()):
                low, high = float(x.min()), float(x.max())
                expected = f"gaussian, because {self.generates} are not all in [0, 1]"
                raise bad("likelihood", expected, f"bernoulli, for {low:.3g} to {high:.3g}")
