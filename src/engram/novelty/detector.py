"""The contract of detectors, what they may know of a run, the passes over rows that they share,
and the base class of those that read outputs only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.errors import BadArgument, EngramError, bad, check_choice
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, Net
from engram.learner.tensor_tree import leaves, stack, tree_map
from engram.models.forward_pass import Output
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.long_table import Rows
from engram.records.novelty_records import CALIBRATION, FAMILIARITY

State = Mapping[str, Any]
REFITS = ("never", "memory")


@dataclass(frozen=True)
class Detector(Probe):
    """Base class: scores every test item after every stage; higher means more familiar.

    Write `score`, and `fit` where something is fitted to training rows: pure, for one run, row by
    row. Everything else is done here: all runs of a group at once, head by head, state over the
    stages, records. A detector is a probe, so it changes no training and no id.

    Parameters
    ----------
    refit
        ``never``: what `fit` learnt of a task stays as it was, although the network goes on
        changing; so are the published detectors. ``memory``: after every task all is fitted anew
        with the present network, to the rows of the task and those of the method's memory (all
        earlier rows, for a method that may read them).

    Attributes
    ----------
    fits
        Whether `fit` reads training rows.
    by_head
        Whether a score depends on the head's columns; if not, one pass serves all heads.
    mapped
        Whether all of it can be mapped over runs with `torch.func.vmap`; if not, they take turns.
    for_label_sets
        Whether a learner of label sets may use it: its scores do not suppose that one label of a
        row excludes the others.
    searched
        Options and values among which `Tuned` chooses where it is given no others.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Norm(Detector):
    ...     def score(self, net, x, columns, state):
    ...         return net(x).features.norm(dim=1)
    >>> Norm().name
    'norm'
    """

    needs: ClassVar[tuple[str, ...]] = ("networks", "unseen")
    fits: ClassVar[bool] = False
    by_head: ClassVar[bool] = True
    mapped: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = False
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {}
    refit: str = field(default="never", kw_only=True)

    def start(self, facts: Facts) -> State:
        """Return the state before the first stage, or before a new fit: a tree of tensors."""
        return {}

    def begin(self, state: State, stage: int) -> State:
        """Return the state before the training rows of a stage."""
        return state

    @property
    def passes(self) -> int:
        """Number of passes of `fit` over training rows; if above 1, in a new order each time."""
        return 1

    def passes_over(self, rows: int) -> int:
        """Return the number of passes for a task with so many rows."""
        return self.passes

    @property
    def rows_at_once(self) -> int:
        """Maximum number of rows in a batch of `fit`."""
        return ROWS_PER_BATCH

    @property
    def only_scores(self) -> tuple[str, ...]:
        """Options that do not affect `fit`, so that a search over them needs one fit."""
        return ()

    def fit_options(self, rows: Sequence[int]) -> dict[str, Any]:
        """Options that decide a fit to tasks of so many rows, one of each run.

        Two detectors of one class for which they are equal need one fit.
        """
        left_out = self.only_scores
        return {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out
        }

    def digest(self, net: Net, x: Tensor) -> Tensor:
        """Compute what `fit` receives as ``batch.x`` [B, ...] if it makes several passes."""
        return x

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        """Return the state after some training rows of the task (weight 0 marks padding)."""
        return state

    def finish(self, state: State) -> State:
        """Return the state after all training rows of the task."""
        return state

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        """Score [B] how familiar inputs are under the head with the columns [C] (a mask)."""
        raise NotImplementedError(f"{type(self).__name__}.score is not written")

    def missing_methods(self) -> tuple[str, ...]:
        """List required methods that a user's detector does not implement."""
        return ("score",) if type(self).score is Detector.score else ()

    def refuse(self, facts: Facts) -> None:
        """Raise an error if the detector cannot work on such a run."""

    def check_refit(self, learner: RunLearner | None = None) -> None:
        """Raise for a value of `refit` that is wrong, or that a learner has no rows for."""
        name = type(self).__name__
        check_choice("refit", self.refit, REFITS)
        if self.refit != "never" and not self.fits:
            raise bad("refit", f"'never' for {name}, which fits nothing", self.refit)
        if self.refit != "never" and learner is not None and not learner.rereads:
            expected = f"'never' for a method that keeps no rows of earlier tasks, for {name}"
            raise bad("refit", expected, self.refit)

    def limit_rows(self) -> Detector:
        """Return the detector with no more rows to keep than a budget for each class.

        For a learner that goes on for ever; by default the detector itself.
        """
        return self

    def check(self, learner: RunLearner) -> None:
        stream, name = learner.stream, type(self).__name__
        for verb in self.missing_methods():
            raise bad(f"{name}.{verb}", "a method that the detector defines itself", "none")
        if stream.labels == "set":
            raise bad("stream", f"one label per row for {name}", "sets of labels")
        if len(stream) < 2:
            raise bad("stream", f"at least two tasks for {name}: what comes is novel", 1)
        if learner.tells_task:
            expected = f"one head for all classes for {name}, where the method is told no tasks"
            raise bad("stream", expected, "a method whose answers depend on the task given")
        self.check_refit(learner)
        self.refuse(gather_facts(learner))

    # -- over all runs ---------------------------------------------------------------------------
    def after_stage(self, view: StageView) -> Rows | Mapping[str, Any]:
        began = time.perf_counter()
        return self.record_scores(view, self.fit_stage(view), began)

    def record_scores(self, view: StageView, state: Any, began: float) -> dict[str, Any]:
        """Store state and scores; also record seconds since `began` and bytes of each run."""
        view.keep(state)
        view.store(FAMILIARITY, torch.stack(self._scores(view, state), 1))
        calibration = self.calibration_scores(view, state)
        if calibration is not None:
            view.store(CALIBRATION, calibration)
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(state))
        seconds = (time.perf_counter() - began) / len(view)
        return {"seconds": np.full(len(view), seconds), "bytes": np.full(len(view), float(size))}

    def _map(self, view: StageView, function: Callable[..., Any], *args: Any) -> Any:
        """Call `view.map`, or loop over runs if the detector cannot be mapped."""
        if self.mapped or len(view) == 1:
            return view.map(function, *args)
        each = []
        for r in range(len(view)):
            own = (tree_map(lambda leaf, r=r: leaf[r : r + 1], arg) for arg in args)
            each.append(view.select_runs([r], None).map(function, *own))
        return tree_map(lambda *parts: torch.cat(parts), *each)

    def fit_stage(self, view: StageView) -> Any:
        """Fit the stage, and return the state [R, ...]."""
        state = view.state
        if self.begins_anew(view):
            state = stack([dict(self.start(gather_facts(one))) for one in view.learners])
        if self.fits:
            state = self._map(view, lambda net, state: self.begin(state, view.stage), state)
            state = self._fit_all(view, state)
            state = self._map(view, lambda net, state: self.finish(state), state)
        return tree_map(torch.detach, state)

    def begins_anew(self, view: StageView) -> bool:
        """Whether nothing of the state before a stage counts."""
        return not view.stage or self.refit == "memory"

    def rows_to_fit(self, view: StageView, size: int) -> Iterator[Batch]:
        """Iterate over the rows to fit to, in batches of at most `size`."""
        return view.batches(size, memory=self.refit == "memory")

    def _fit_all(self, view: StageView, state: Any) -> Any:
        """Fit all batches, and return the state."""
        if self.passes == 1 and type(self).digest is Detector.digest:
            for batch in self.rows_to_fit(view, self.rows_at_once):
                state = tree_map(torch.detach, self._map(view, self.fit, batch, state))
            return state
        digested = [
            batch._replace(x=self._map(view, self.digest, batch.x))
            for batch in self.rows_to_fit(view, ROWS_PER_BATCH)
        ]
        return self._fit_several(view, digested, state)

    def _fit_several(self, view: StageView, digested: list[Batch], state: Any) -> Any:
        """Fit all passes over the results of `digest`, and return the state."""
        found = state
        for found in self._passes(view, digested, state):  # noqa: B007 - the last one counts
            pass
        return found

    def _passes(self, view: StageView, digested: list[Batch], state: Any) -> Iterator[Any]:
        """Iterate over the states after each pass."""
        count = torch.stack([(batch.w > 0).sum(-1) for batch in digested]).sum(0)
        wanted = [self.passes_over(rows) for rows in count.tolist()]
        for again in range(max(wanted)):
            for batch in shuffle_rows(digested, view, again, self.rows_at_once, wanted):
                state = tree_map(torch.detach, self._map(view, self.fit, batch, state))
            yield state

    def calibration_scores(self, view: StageView, state: Any) -> Tensor | None:
        """Score correctly classified validation rows [R, V], with NaN for the others."""
        columns = list_heads(view)[-1].columns
        parts = []
        for (batch, output), x in zip(
            validation_outputs(view), self._validation(view), strict=False
        ):
            right = self._map(view, _is_right, batch, output, columns)
            scores = self._of_rows(view, x, output, columns, state)
            parts.append(torch.where(right, scores.float(), torch.nan))
        return torch.cat(parts, 1) if parts else None

    def _validation(self, view: StageView) -> Iterator[Any]:
        """Iterate over the inputs of validation rows, which have been counted as read before."""
        return (batch.x for batch in view.for_probe(view.needs, None).validation(ROWS_PER_BATCH))

    def _of_rows(
        self, view: StageView, x: Any, output: Output, columns: Tensor, state: Any
    ) -> Tensor:
        found: Tensor = self._map(view, self.score, x, columns, state)
        return found

    def outside_scores(self, view: StageView, state: Any) -> Tensor:
        """Score the outside set's validation rows [R, M] under the newest head."""
        columns = list_heads(view)[-1].columns
        parts = [
            self._map(view, self.score, x, columns, state)
            for x in view.outside("valid", ROWS_PER_BATCH)
        ]
        return torch.cat(parts, 1).float()

    def _scores(self, view: StageView, state: Any) -> list[Tensor]:
        """Score items [R, n] under every head, NaN for items not compared under it."""
        heads = list_heads(view)
        if self.by_head:
            return [self._scored(view, head, state) for head in heads]
        wanted = torch.stack([head.wanted for head in heads]).any(0)
        whole = self._scored(view, ComparedHead(heads[-1].columns, wanted), state)
        return [torch.where(head.wanted, whole, torch.nan) for head in heads]

    def _scored(self, view: StageView, head: ComparedHead, state: Any) -> Tensor:
        found = torch.full(head.wanted.shape, torch.nan, device=view.device)
        for part, x in view.inputs(ROWS_PER_BATCH):
            wanted = head.wanted[:, part]
            if wanted.any():
                scores = check_scores(self, self._map(view, self.score, x, head.columns, state))
                found[:, part] = torch.where(wanted, scores, torch.nan)
        return found


def _is_right(net: Net, batch: Batch, output: Output, columns: Tensor) -> Tensor:
    """Return [B] whether the largest logit of the head is that of the row's class."""
    return (mask_logits(output.logits, columns).argmax(-1) == batch.target) & (batch.w > 0)


# -- facts about a run and its network -------------------------------------------------------------


class Facts(NamedTuple):
    """Facts about a run that a detector may use before it has seen any rows."""

    columns: int  # C, output columns
    features: int  # F, what the last layer sees
    std: Tensor  # deviation by which inputs were divided, broadcast to a sample; 1 if they were not
    like: Tensor  # a tensor of the network's device and precision
    bias: bool  # whether the last layer adds a bias
    sample: tuple[int, ...] = ()  # shape of an input
    seed: int = 0  # of the run
    learner: RunLearner | None = None  # only to be asked about its network
    rows: int = 0  # training rows of the first task
    tokens: bool = False  # whether inputs are token ids, which are no quantities

    def width(self, layer: str) -> int:
        """Return the number of channels of a layer of the model; raise for unknown names."""
        return layer_width(self.learner, layer)


def gather_facts(learner: RunLearner) -> Facts:
    """Return the facts about a run."""
    net: Any = learner.networks.eval.get_submodule("net")
    data, names = learner.feed.data, learner.networks.layout.shapes
    std = torch.ones(1) if not data.std else torch.tensor(data.std)
    std = std.reshape(-1, *[1] * (len(data.sample_shape) - 1)).to(learner.vector)
    return Facts(
        columns=len(learner.stream.order), features=_answer_width(learner, net), std=std,
        like=learner.vector, bias="net.head.bias" in names,
        sample=tuple(data.sample_shape), seed=learner.seed, learner=learner,
        rows=len(learner.stream.tasks[0].train), tokens=data.tokenizer is not None,
    )  # fmt: skip


def _answer_width(learner: RunLearner, net: Any) -> int:
    """Return the width of the features that a run answers with."""
    if learner.answer is None:
        return int(net.features)
    shape = learner.feed.data.sample_shape
    x, stage = learner.vector.new_zeros(1, *shape), torch.tensor(-1, device=learner.device)
    with torch.no_grad():
        return learner.answer(learner.net(), x, learner.state, stage).features.flatten(1).shape[1]


def layer_width(learner: RunLearner | None, layer: str) -> int:
    """See `Facts.width`."""
    if learner is None:
        raise EngramError("layers: no network is known here")
    model = learner.networks.eval.get_submodule("net.backbone")
    check_choice("layers", layer, [name for name, _ in model.named_modules() if name])
    net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
    x, path = (
        learner.vector.new_zeros(1, *learner.feed.data.sample_shape),
        f"net.backbone.{layer}",
    )
    found = None
    with torch.no_grad(), suppress(BadArgument):  # it may never be called
        found = net(x, want=(path,)).layers[path]
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise bad("layers", "layers that give one tensor [B, F, ...] in a forward pass", layer)
    return found.shape[1]


def class_vectors(net: Net) -> Tensor:
    """Return the weights [C, F] of the last layer."""
    rows: Tensor | None = net.params.head.get("weight")
    if rows is None:
        raise EngramError("detectors: the network has no head.weight with one row per class")
    return rows


def mask_logits(logits: Tensor, columns: Tensor) -> Tensor:
    """Mask logits [B, C] of columns that do not compete with minus infinity."""
    return logits.masked_fill(~columns, -torch.inf)


# -- passes over rows, and the heads under which test items are compared ---------------------------

ROWS_PER_BATCH = 256  # rows of a batch


class ComparedHead(NamedTuple):
    """Competing columns [R, C], and the test items [R, n] that are compared under them."""

    columns: Tensor
    wanted: Tensor


def list_heads(view: StageView) -> list[ComparedHead]:
    """Return a head per learnt task for multi-head streams, otherwise one for all classes."""
    task, later = view.task, view.task > view.stage
    if view.streams[0].head == "single":
        return [ComparedHead(view.open, torch.ones_like(later))]
    found = []
    for i in range(view.stage + 1):
        visible = np.stack([one.visible[i] for one in view.items])
        columns = torch.from_numpy(visible).to(view.device)
        found.append(ComparedHead(columns, (task == i) | later))
    return found


def newest_columns(view: StageView) -> Tensor:
    """Return the columns [R, C] of the newest task's head, or of all classes so far."""
    return list_heads(view)[-1].columns


def features_and_logits(net: Net, x: Tensor) -> Output:
    """Return the output with flattened features."""
    output = net(x)
    return Output(output.features.flatten(1), output.logits)


def train_outputs(view: StageView, *, memory: bool = False) -> list[tuple[Batch, Output]]:
    """Iterate over the task's training rows with features as inputs, and the outputs.

    With `memory`, also over the rows of earlier tasks that are still there.
    """
    return _read_outputs(view, "train and memory" if memory else "train")


def validation_outputs(view: StageView) -> list[tuple[Batch, Output]]:
    """Do the same for the task's validation rows."""
    return _read_outputs(view, "valid")


def _read_outputs(view: StageView, part: str) -> list[tuple[Batch, Output]]:
    """Count rows as read by every detector, although they are passed only once."""
    found, sizes = _pass_rows(view, part)
    view.reads["probe"] += sizes
    return found


def _pass_rows(view: StageView, part: str) -> tuple[list[tuple[Batch, Output]], Any]:
    """Return the outputs for rows, and their number [R]; cached for a stage."""
    if view.whole is not None:
        parent, places = view.whole
        every, counts = _pass_rows(parent, part)
        sizes = counts[places]
        return list(_trim_padding(every, places, int(sizes.max(initial=0)))), sizes
    if part not in view.shared:
        other = view.for_probe(view.needs, None)
        batches = (
            other.validation(ROWS_PER_BATCH)
            if part == "valid"
            else other.batches(ROWS_PER_BATCH, memory=part == "train and memory")
        )
        each = []
        for batch in batches:
            output = view.map(features_and_logits, batch.x)
            each.append((batch._replace(x=output.features), output))
        view.shared[part] = each, other.reads["probe"]
    return view.shared[part]  # type: ignore[no-any-return]


def _trim_padding(
    found: list[tuple[Batch, Output]], places: list[int], longest: int
) -> Iterator[tuple[Batch, Output]]:
    """Select runs of a pass, without rows that are padding for all of them."""
    for batch, output in found:
        rows = min(longest, batch.w.shape[1])
        longest -= rows
        if rows:
            own = batch.map(lambda leaf: leaf[places])
            short = Batch._make([*(leaf[:, :rows] for leaf in own.per_row), *own[7:]])
            outputs = Output(output.features[places, :rows], output.logits[places, :rows])
            yield short, outputs


def check_scores(detector: Any, scores: Any) -> Tensor:
    """Return scores [R, B]; raise for a user's detector with another shape."""
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        got = ["B", *scores.shape[2:]] if isinstance(scores, Tensor) else scores
        raise bad(f"score of {type(detector).__name__}", "one number for each row, ['B'],", got)
    return scores.float()


def outside_outputs(view: StageView, part: str = "valid") -> list[Output]:
    """Iterate over the outputs for rows of the outside set."""
    return [view.map(features_and_logits, x) for x in view.outside(part, ROWS_PER_BATCH)]


def shuffle_rows(
    parts: list[Batch], view: StageView, again: int, size: int, passes: Sequence[int]
) -> Iterator[Batch]:
    """Shuffle the rows of batches [R, B, ...] separately for each run, with padding last.

    A run that has seen them in all its passes gets padding alone.
    """
    names = Batch._fields[: len(parts[0].per_row)]
    rows: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], 1) for name in names
    }
    drawn = [keys.fold(seed, "detector", view.stage, again) for seed in view.seeds]
    count = (rows["w"] > 0).sum(1)
    order = keys.permutation(torch.tensor(drawn, device=view.device), rows["w"].shape[1], count)
    run = torch.arange(len(view), device=view.device)[:, None]
    open_yet = torch.tensor([again < own for own in passes], device=view.device)
    rows["w"] = rows["w"] * open_yet[:, None]
    for start in range(0, order.shape[1], size):
        index = order[:, start : start + size]
        yield parts[0]._replace(**{name: value[run, index] for name, value in rows.items()})


# -- detectors that read features and logits only, from one shared pass ----------------------------


@dataclass(frozen=True)
class OutputDetector(Detector):
    """A detector that reads features and logits only, from a pass shared by all such detectors.

    Write `familiarity`, and `learn` where something is fitted.
    """

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        """Score [B] from features [B, F], logits [B, C] and the last layer's rows [C, F]."""
        raise NotImplementedError(f"{type(self).__name__}.familiarity is not written")

    def missing_methods(self) -> tuple[str, ...]:
        asks = type(self).familiarity is OutputDetector.familiarity
        usual = type(self).score is OutputDetector.score and type(self)._of is OutputDetector._of
        return ("familiarity",) if asks and usual else ()

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        """Like `fit`, from the outputs of the network."""
        return state

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        return self.learn(_flatten_output(net(batch.x)), batch, state)

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        return self._of(net, net(x), columns, state)

    def _of(self, net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
        return self.familiarity(_flatten_output(output), class_vectors(net), columns, state)

    def _fit_all(self, view: StageView, state: Any) -> Any:
        if type(self).fit is not OutputDetector.fit:  # it looks at inputs after all
            return super()._fit_all(view, state)
        for batch, output in train_outputs(view, memory=self.refit == "memory"):
            state = self._map(view, lambda net, *args: self.learn(*args), output, batch, state)
        return state

    def _validation(self, view: StageView) -> Iterator[Any]:
        return itertools.repeat(None)

    def _of_rows(
        self, view: StageView, x: Any, output: Output, columns: Tensor, state: Any
    ) -> Tensor:
        found: Tensor = self._map(view, self._of, output, columns, state)
        return found

    def outside_scores(self, view: StageView, state: Any) -> Tensor:
        columns = list_heads(view)[-1].columns
        parts = [
            self._map(view, self._of, output, columns, state) for output in outside_outputs(view)
        ]
        return torch.cat(parts, 1).float()

    def _scored(self, view: StageView, head: ComparedHead, state: Any) -> Tensor:
        features, logits, _ = view.outputs
        size, parts = 16 * ROWS_PER_BATCH, []
        for start in range(0, features.shape[1], size):
            some = Output(features[:, start : start + size], logits[:, start : start + size])
            parts.append(check_scores(self, self._map(view, self._of, some, head.columns, state)))
        return torch.where(head.wanted, torch.cat(parts, 1), torch.nan)


def _flatten_output(output: Output) -> Output:
    return Output(output.features.flatten(1), output.logits)
