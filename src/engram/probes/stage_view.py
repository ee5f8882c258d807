"""`StageView`: what probes see after a stage of all runs that trained together, training rows
included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from engram.errors import EngramError, bad
from engram.learner.batch import Batch, TrainingRows
from engram.learner.learner import RunLearner
from engram.learner.networks import AnsweringNet, FunctionalNet, Net
from engram.learner.tensor_tree import leaves, pick, stack, tree_map, tree_shapes
from engram.methods.method import Method, compute_answer, tells_task
from engram.models.forward_pass import Output
from engram.probes.probe import LEARNER_NEEDS
from engram.records.long_table import Rows
from engram.records.predictions import as_float32_scores, from_float16, to_float16
from engram.records.scored_items import EvaluationItems
from engram.records.stage_result import StageResult
from engram.streams.access_guard import Ledger, MethodView
from engram.streams.stream import Stream


class StageView:
    """View of R runs after a stage; the first axis of every tensor is the run.

    Test items (n of each run) are those of the tasks learnt so far, or of all tasks for a probe
    that needs ``unseen``, in the order of their tasks; classes (C columns) in order of
    introduction. A probe fits on `batches`, which the learner's guard
    admits; `targets`, the labels of test items, are for measuring only.
    """

    def __init__(
        self, runs: Sequence[StageResult], *, needs: Sequence[str] = (), state: Any = None
    ):
        self.members = tuple(runs)
        self.stage = runs[0].stage
        self.needs = tuple(needs)
        self.state: Any = {} if state is None else state
        self.kept: list[Any] | None = None  # states, one per run
        self.stored: dict[str, Any] = {}
        # rows read [R], by their kind in the ledger
        self.reads = {kind: np.zeros(len(runs), np.int64) for kind in ("probe", "outside")}
        self._known: dict[str, Tensor] = {}  # tensors computed once for all probes
        self.shared: dict[str, Any] = {}  # passes over rows, shared by all probes
        self.whole: tuple[StageView, list[int]] | None = None  # the view of which this is a part

    def for_probe(self, needs: Sequence[str], state: Any) -> StageView:
        """Return the same view for one probe, with its needs and its previous state."""
        other = StageView(self.members, needs=needs, state=state)
        other._known, other.shared, other.whole = self._known, self.shared, self.whole
        return other

    def select_runs(self, places: Sequence[int], state: Any) -> StageView:
        """Return a view of some of the runs, which shares the passes of this one."""
        other = StageView([self.members[r] for r in places], needs=self.needs, state=state)
        other.whole = self, list(places)
        return other

    def __len__(self) -> int:
        """R, the number of runs."""
        return len(self.members)

    def rows(self) -> Rows:
        """Return an empty collection of rows for `after_stage` to fill and return."""
        return Rows(runs=len(self))

    def keep(self, state: Any) -> None:
        """Set the `state` that the probe receives after the next stage, a tree of [R, ...]."""
        for leaf in leaves(state):
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or len(leaf) != len(self):
                expected = f"dicts and tuples of tensors [{len(self)}, ...], one entry per run"
                raise bad("state", expected, tuple(leaf.shape) if hasattr(leaf, "shape") else leaf)
        whole = tree_map(torch.detach, state)
        self.kept = [pick(whole, r) for r in range(len(self))]

    def store(self, name: str, values: Any) -> None:
        """Store an array [R, ...] in the records of the runs, to be read by `Result.arrays`.

        For what is too large for rows, such as scores of every item or pictures. The dtype is kept.
        """
        whole = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if whole.ndim == 0 or len(whole) != len(self) or whole.dtype == object:
            raise bad(name, f"an array [{len(self)}, ...], one entry per run", whole.shape)
        self.stored[name] = whole

    # -- facts -----------------------------------------------------------------------------------
    @property
    def device(self) -> torch.device:
        learner = self.members[0].trained
        return torch.device("cpu") if learner is None else learner.device

    @property
    def seeds(self) -> list[int]:
        return [one.seed for one in self.members]

    @property
    def streams(self) -> list[Stream]:
        return [one.stream for one in self.members]

    @property
    def methods(self) -> list[Method]:
        return [one.method for one in self.members]

    @property
    def items(self) -> list[EvaluationItems]:
        """The scored test items of each run."""
        return [one.items for one in self.members]

    @property
    def facts(self) -> list[Mapping[str, float]]:
        """Seconds, steps and bytes of each run, by the names of their metrics."""
        return [one.facts for one in self.members]

    # -- the test items --------------------------------------------------------------------------
    @property
    def scores(self) -> Tensor:
        """Scores of the test items, [R, n, C], in the precision in which they are recorded."""
        if "scores" not in self._known:
            every = np.stack([as_float32_scores(one.scores) for one in self.members])
            rounded = torch.from_numpy(from_float16(*to_float16(every)))
            self._known["scores"] = rounded.to(self.device)
        return self._known["scores"]

    @property
    def targets(self) -> Tensor:
        """True labels of the test items as columns, [R, n, L], padded by -1."""
        return self._of_items("targets")

    @property
    def task(self) -> Tensor:
        """The task of each test item, [R, n]."""
        return self._of_items("task")

    @property
    def seen(self) -> Tensor:
        """Whether the item's task has been learnt, [R, n]."""
        return self.task <= self.stage

    @property
    def open(self) -> Tensor:
        """The classes introduced so far, [R, C]."""
        return self._of_items("opening") <= self.stage

    def predicted(self, head: str) -> Tensor:
        """Return predicted columns [R, n], or label sets [R, n, C], in a head view."""
        every = [one.predict(head) for one in self.members]
        return torch.from_numpy(np.stack(every)).to(self.device)

    def _of_items(self, name: str) -> Tensor:
        if name not in self._known:
            every = np.stack([getattr(one.items, name) for one in self.members])
            self._known[name] = torch.from_numpy(every).to(self.device)
        return self._known[name]

    @property
    def features(self) -> Tensor:
        """Inputs of the last layer for the test items, [R, n, F]; needs ``features``."""
        if "features" not in self.needs:
            raise _undeclared_error("view.features", "features")
        if "features" not in self._known:
            found = [one.features for one in self.members if one.features is not None]
            if len(found) < len(self):
                raise EngramError("features: the pass over the test items kept none")
            self._known["features"] = torch.stack(found).flatten(2)
        return self._known["features"]

    def inputs(self, size: int = 256) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over the test items: a slice, and inputs [R, B, ...]; needs ``networks``."""
        learners = self.learners
        items = [(torch.from_numpy(one.rows), torch.from_numpy(one.task)) for one in self.items]
        for start in range(0, len(items[0][0]), size):
            part = slice(start, start + size)
            found = [
                learner.feed(rows[part].to(self.device), stages[part].to(self.device))
                for learner, (rows, stages) in zip(learners, items, strict=True)
            ]
            yield part, torch.stack(found)

    @property
    def outputs(self) -> Output:
        """Features [R, n, F] and logits [R, n, C] of the test items, in one pass for all probes.

        What the method answers, like `scores`, but not rounded; needs ``networks``.
        """
        if self.whole is not None:
            view, places = self.whole
            whole = view.outputs
            return Output(whole.features[places], whole.logits[places])
        if "test" not in self.shared:
            parts = [self.map(_forward, x) for _, x in self.inputs()]
            features, logits = (torch.cat(each, 1) for each in zip(*parts, strict=True))
            self.shared["test"] = Output(features, logits)
        found: Output = self.shared["test"]
        return found

    # -- the networks ----------------------------------------------------------------------------
    @property
    def learners(self) -> list[RunLearner]:
        """The learners of the runs; needs ``networks`` or ``features``."""
        if not set(self.needs) & set(LEARNER_NEEDS):
            raise _undeclared_error("view.map and view.batches", "networks")
        return [one.trained for one in self.members if one.trained is not None]

    @torch.no_grad()
    def map(self, function: Callable[..., Any], *args: Any) -> Any:
        """Map ``function(net, *args)`` over the runs; arguments and results are trees [R, ...].

        `function` is written for one run and pure; `net` is its network in eval mode with its own
        buffers, and ``net(x)`` what its method answers. Input gradients: ``torch.func.grad``
        inside.
        """
        learners, methods = self.learners, self.methods
        first, answers = learners[0], methods[0].implements("answer")
        if len(learners) == 1:
            net: Net = first.net()
            if answers:
                net = answering_net(net, methods[0], first.state, first.stream)
            found = function(net, *(pick(arg, 0) for arg in args))
            return tree_map(lambda leaf: _call_on_tensor(function, leaf)[None], found)
        forms = {tree_shapes(one.state) for one in learners} if answers else set()
        if len(forms) > 1 or (answers and any(one != methods[0] for one in methods)):
            each = [
                self.select_runs([r], None).for_probe(self.needs, None).map(
                    function, *(tree_map(lambda leaf, r=r: leaf[r : r + 1], arg) for arg in args)
                )
                for r in range(len(self))
            ]  # fmt: skip
            return tree_map(lambda *parts: torch.cat(parts), *each)
        states = stack([one.state for one in learners]) if answers else {}

        def one_run(vector: Tensor, own: Any, state: Any, *rest: Any) -> Any:
            net: Net = FunctionalNet(first.networks, vector, own, training=False)
            if answers:
                net = answering_net(net, methods[0], state, first.stream)
            return function(net, *rest)

        vectors = torch.stack([one.vector for one in learners])
        buffers = stack([one.buffers for one in learners])
        return vmap(one_run)(vectors, buffers, states, *args)

    def batches(self, size: int = 256, *, memory: bool = False) -> Iterator[Batch]:
        """Iterate over the task's training rows (and exemplars if `memory`) as [R, B, ...].

        Where a method may read all earlier rows, these take the place of exemplars. Labels are
        those visible in the task. Rows of weight 0 are padding. Reads are counted in
        the ledger under ``probe``.
        """
        learners = self.learners
        items = [probe_items(one, memory) for one in learners]
        sizes = [len(one.rows) for one in items]
        self.reads["probe"] += np.array(sizes)
        for start in range(0, max(sizes), size):
            yield stack_rows(learners, items, start, min(start + size, max(sizes)))

    def validation(self, size: int = 256) -> Iterator[Batch]:
        """Iterate over the task's validation rows as batches [R, B, ...]; empty if no run has any.

        For thresholds, as the networks were not fitted to them. Reads are counted in the ledger.
        """
        learners = self.learners
        held = [len(one.task.valid) for one in learners]
        if not any(held):
            return
        # a run without validation rows is padded with a training row
        items = [
            validation_items(one) if n else probe_items(one, False)
            for one, n in zip(learners, held, strict=True)
        ]
        self.reads["probe"] += np.array(held)
        for start in range(0, max(held), size):
            yield stack_rows(learners, items, start, min(start + size, max(held)), held)

    def outside(self, part: str = "valid", size: int = 256) -> Iterator[Tensor]:
        """Iterate over the outside set as inputs [R, B, ...], transformed like the newest task's.

        `part` is ``train`` (for fitting) or ``valid`` (for choosing). Reads count in the ledger.
        """
        learners = self.learners
        sets = [one.outside for one in self.members if one.outside is not None]
        if len(sets) < len(self):
            raise EngramError("view.outside: the runs have no outside set")
        self.reads["outside"] += np.array([len(one.rows(part)) for one in sets])
        for start in range(0, len(sets[0].rows(part)), size):
            found: dict[int, Tensor] = {}  # runs mostly share their feed
            each = []
            for learner, own in zip(learners, sets, strict=True):
                feed, rows = own.feed(learner), own.rows(part)[start : start + size]
                if id(feed) not in found:
                    rows = rows.to(self.device)
                    found[id(feed)] = feed(rows, torch.full_like(rows, self.stage))
                each.append(found[id(feed)])
            yield torch.stack(each) if len(found) > 1 else each[0].expand(len(self), *each[0].shape)


def answering_net(net: Net, method: Method, state: Any, stream: Any) -> AnsweringNet:
    """Return networks whose ``net(x)`` is what the method answers about rows of any task."""

    def answer(net: Net, x: Tensor) -> Output:
        if tells_task(method, stream.head):
            raise EngramError(
                f"net(x): the answers of {type(method).__name__} depend on the task of each row, "
                "which this probe is not told"
            )
        return compute_answer(method, net, x, state)

    return AnsweringNet(net, answer)


def _forward(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    output = net(x)
    return output.features.flatten(1), output.logits


def _call_on_tensor(function: Callable[..., Any], leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise bad(getattr(function, "__qualname__", str(function)), "tensors in return", leaf)
    return leaf


def _undeclared_error(what: str, need: str) -> EngramError:
    return EngramError(f'{what}: declare needs = ("{need}",) in the probe\'s class')


# Training rows for probes, read through the learner's guard and counted separately.


def probe_items(learner: RunLearner, memory: bool) -> TrainingRows:
    """Return the task's training rows and, if `memory`, the exemplars of earlier tasks.

    For a method that may read all rows of earlier tasks, these instead of the exemplars. The guard
    counts on a ledger that is discarded; the caller counts the rows as the probe's.
    """
    usual = learner.guard
    learner.guard = MethodView(learner.stream, learner.stage, reads=learner.reads, ledger=Ledger())
    try:
        own, kept = learner.items(), learner.exemplars
        if memory and learner.reads == "past":
            for stage, task in enumerate(learner.stream.tasks[: learner.stage]):
                own = own.join(learner.items(task.train, torch.full_like(task.train, stage)))
            return own
        if not memory or not len(kept):
            return own
        held = learner.items(kept.rows, kept.stages)
        past = held.stages < learner.stage  # exemplars of the task are among its rows
        return own.join(held.take(past))
    finally:
        learner.guard = usual


def validation_items(learner: RunLearner) -> TrainingRows:
    """Return the in-task validation rows of the current task, counted as the probe's."""
    usual = learner.guard
    learner.guard = MethodView(learner.stream, learner.stage, reads=learner.reads, ledger=Ledger())
    try:
        return learner.items(learner.task.valid)
    finally:
        learner.guard = usual


def stack_rows(
    learners: Sequence[RunLearner], items: Sequence[TrainingRows], start: int, stop: int,
    counts: Sequence[int] | None = None,
) -> Batch:  # fmt: skip
    """Stack rows `start` to `stop` of every run to one batch [R, B, ...], with padding.

    `counts` is the number of real items of each run; by default, all are.
    """
    found = []
    for r, (learner, own) in enumerate(zip(learners, items, strict=True)):
        place = torch.arange(start, stop)
        last = (len(own.rows) if counts is None else counts[r]) - 1
        index = place.clamp(max=max(last, 0))  # padding repeats a real row, weight 0
        batch = learner.collate(own.take(index))
        found.append(batch._replace(w=(place <= last).to(batch.w)))
    return stack(found)  # type: ignore[no-any-return]
