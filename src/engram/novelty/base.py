"""The contract of detectors: how familiar does a network find an input?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.errors import EngramError, bad, choose
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.net import FunctionalNet, Net
from engram.learner.tree import leaves, stack, tree_map
from engram.models.output import Output
from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.novelty import CALIBRATION, FAMILIARITY
from engram.records.stage_rows import StageRows

State = Mapping[str, Any]
SIZE = 256  # rows of a batch


class Facts(NamedTuple):
    """What a detector may know of a run before it has seen anything."""

    columns: int  # C, output columns
    features: int  # F, what the last layer sees
    std: Tensor  # deviation by which inputs were divided, broadcast to a sample; 1 if they were not
    like: Tensor  # a tensor of the network's device and precision
    bias: bool  # whether the last layer adds a bias
    sample: tuple[int, ...] = ()  # shape of an input
    seed: int = 0  # of the run
    learner: Learner | None = None  # only to be asked about its network

    def width(self, layer: str) -> int:
        """How many numbers a layer of the model gives, averaged over places; checks its name."""
        return layer_width(self.learner, layer)


@dataclass(frozen=True)
class Detector(Probe):
    """Scores every test item after every stage; higher is more familiar.

    Write `score`, and `fit` where something is fitted to training rows: pure, for one run, row by
    row. Everything else is done here: all runs of a group at once, head by head, state over the
    stages, records. A detector is a probe, so it changes no training and no id.

    Attributes
    ----------
    fits
        Whether `fit` reads training rows.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Norm(Detector):
    ...     def score(self, net, x, columns, state):
    ...         return net(x).features.norm(dim=1)
    >>> Norm().name
    'norm'
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)
    fits: ClassVar[bool] = False

    def start(self, facts: Facts) -> State:
        """The state before the first stage: a tree of tensors."""
        return {}

    def begin(self, state: State, stage: int) -> State:
        """The state before the training rows of a stage."""
        return state

    @property
    def passes(self) -> int:
        """How often `fit` sees every training row; beyond 1, each time in another order."""
        return 1

    @property
    def rows_at_once(self) -> int:
        """The most rows of a batch of `fit`."""
        return SIZE

    def digest(self, net: Net, x: Tensor) -> Tensor:
        """[B, ...] what `fit` gets as ``batch.x`` where it makes several passes; computed once."""
        return x

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        """The state after some training rows of the task (those of weight 0 are padding)."""
        return state

    def finish(self, state: State) -> State:
        """The state after all training rows of the task."""
        return state

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        """[B] how familiar the inputs are under the head with these columns [C] (a mask)."""
        raise NotImplementedError(f"{type(self).__name__}.score is not written")

    def refuse(self, facts: Facts) -> None:
        """Raise an error if the detector cannot work on such a run."""

    def check(self, learner: Learner) -> None:
        stream, name = learner.stream, type(self).__name__
        if stream.labels == "set":
            raise bad("stream", f"one label per row for {name}", "sets of labels")
        if len(stream) < 2:
            raise bad("stream", f"at least two tasks for {name}: what comes is novel", 1)
        self.refuse(facts_of(learner))

    # -- over all runs ---------------------------------------------------------------------------
    def after_stage(self, view: StageView) -> StageRows | Mapping[str, Any]:
        began = time.perf_counter()
        state = self._fitted(view)
        view.keep(state)
        heads = _heads(view)  # [R, H, C]
        view.store(FAMILIARITY, torch.stack([self._scored(view, h, state) for h in heads], 1))
        parts = list(self._calibrated(view, heads[-1][0], state))
        if parts:
            view.store(CALIBRATION, torch.cat(parts, 1))
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(state))
        seconds = (time.perf_counter() - began) / len(view)
        return {"seconds": np.full(len(view), seconds), "bytes": np.full(len(view), float(size))}

    def _fitted(self, view: StageView) -> Any:
        state = view.state
        if not view.stage:
            state = stack([dict(self.start(facts_of(one))) for one in view.learners])
        if self.fits:
            state = view.map(lambda net, state: self.begin(state, view.stage), state)
            for batch in self._batches(view):
                state = tree_map(torch.detach, view.map(self.fit, batch, state))
            state = view.map(lambda net, state: self.finish(state), state)
        return tree_map(torch.detach, state)

    def _batches(self, view: StageView) -> Iterator[Batch]:
        if self.passes == 1:
            yield from view.batches(self.rows_at_once)
            return
        parts = [batch._replace(x=view.map(self.digest, batch.x)) for batch in view.batches(SIZE)]
        for again in range(self.passes):
            yield from shuffled(parts, view, again, self.rows_at_once)

    def _calibrated(self, view: StageView, columns: Tensor, state: Any) -> Iterator[Tensor]:
        """[R, B] scores of validation rows that the network gets right, NaN for the others."""

        def one_run(net: Net, batch: Batch, columns: Tensor, state: State) -> Tensor:
            right = among(net(batch.x).logits, columns).argmax(-1) == batch.target
            scores = self.score(net, batch.x, columns, state).float()
            return torch.where(right & (batch.w > 0), scores, torch.nan)

        for batch in view.validation(SIZE):
            yield view.map(one_run, batch, columns, state)

    def _scored(self, view: StageView, head: tuple[Tensor, Tensor], state: Any) -> Tensor:
        """[R, n] scores under one head, NaN for items that are never compared under it."""
        columns, wanted = head
        found = torch.full(wanted.shape, torch.nan, device=view.device)
        for part, x in view.inputs(SIZE):
            if wanted[:, part].any():
                scores = view.map(self.score, x, columns, state).float()
                found[:, part] = torch.where(wanted[:, part], scores, torch.nan)
        return found


@dataclass(frozen=True)
class OutputDetector(Detector):
    """A detector that only reads features and logits: all of them share one pass per stage."""

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        """[B] from features [B, F], logits [B, C] and the last layer's class rows [C, F]."""
        raise NotImplementedError(f"{type(self).__name__}.familiarity is not written")

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        return self._of(net, net(x), columns, state)

    def _of(self, net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
        flat = output._replace(features=output.features.flatten(1))
        return self.familiarity(flat, class_rows(net), columns, state)

    def _scored(self, view: StageView, head: tuple[Tensor, Tensor], state: Any) -> Tensor:
        columns, wanted = head
        features, logits, _ = view.outputs
        size = 16 * SIZE
        parts = []
        for start in range(0, features.shape[1], size):
            some = features[:, start : start + size], logits[:, start : start + size]
            parts.append(
                view.map(
                    lambda net, f, z, columns, state: self._of(net, Output(f, z), columns, state),
                    *some, columns, state,
                )
            )  # fmt: skip
        return torch.where(wanted, torch.cat(parts, 1).float(), torch.nan)


def shuffled(parts: list[Batch], view: StageView, again: int, size: int) -> Iterator[Batch]:
    """The rows of some batches [R, B, ...] in an order of each run's own, padding behind."""
    names = Batch._fields[: len(parts[0].per_row)]
    rows: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], 1) for name in names
    }
    drawn = [keys.fold(seed, "detector", view.stage, again) for seed in view.seeds]
    count = (rows["w"] > 0).sum(1)
    order = keys.order(torch.tensor(drawn, device=view.device), rows["w"].shape[1], count)
    run = torch.arange(len(view), device=view.device)[:, None]
    for start in range(0, order.shape[1], size):
        index = order[:, start : start + size]
        yield parts[0]._replace(**{name: value[run, index] for name, value in rows.items()})


def class_rows(net: Net) -> Tensor:
    """[C, F] the weights of the last layer."""
    rows = net.params.get("net.head.weight")
    if rows is None:
        raise EngramError("detectors: the network has no head.weight with one row per class")
    return rows


def among(logits: Tensor, columns: Tensor) -> Tensor:
    """Logits [B, C] of the columns [C] that compete, minus infinity for the others."""
    return logits.masked_fill(~columns, -torch.inf)


def facts_of(learner: Learner) -> Facts:
    """What is known of a run."""
    net: Any = learner.networks.eval.get_submodule("net")
    data, names = learner.stream.data, learner.networks.layout.shapes
    std = torch.ones(1) if not data.std else torch.tensor(data.std)
    std = std.reshape(-1, *[1] * (len(data.sample_shape) - 1)).to(learner.vector)
    return Facts(
        columns=len(learner.stream.order), features=int(net.features), std=std,
        like=learner.vector, bias="net.head.bias" in names,
        sample=tuple(data.sample_shape), seed=learner.seed, learner=learner,
    )  # fmt: skip


def layer_width(learner: Learner | None, layer: str) -> int:
    """See `Facts.width`."""
    if learner is None:
        raise EngramError("layers: no network is known here")
    model = learner.networks.eval.get_submodule("net.backbone")
    choose("layers", layer, [name for name, _ in model.named_modules() if name])
    net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
    x, path = (
        learner.vector.new_zeros(1, *learner.stream.data.sample_shape),
        f"net.backbone.{layer}",
    )
    with torch.no_grad():
        found = net(x, want=(path,)).layers.get(path)
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise bad("layers", "layers that give one tensor [B, F, ...] in a forward pass", layer)
    return found.shape[1]


def _heads(view: StageView) -> list[tuple[Tensor, Tensor]]:
    """For each head: its columns [R, C], and which items [R, n] are compared under it.

    Streams with a head per task have one for each task learnt, others one for all classes seen.
    """
    task, later = view.task, view.task > view.stage
    if view.streams[0].head == "single":
        return [(view.open, torch.ones_like(later))]
    found = []
    for i in range(view.stage + 1):
        visible = np.stack([one.visible[i] for one in view.items])
        columns = torch.from_numpy(visible).to(view.device)
        found.append((columns, (task == i) | later))
    return found
