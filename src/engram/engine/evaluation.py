"""One pass per stage over all test rows, which gives the scores of every class for every run;
and when a run has diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from engram import distributed
from engram.engine.backend import without_cudnn_benchmark
from engram.engine.hyperparameters import make_tensors, replace_values, varying_values
from engram.engine.run_definition import score_batch
from engram.learner.batch import TrainingRows
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.learner.tensor_tree import stack, tree_shapes
from engram.methods.method import Method, compute_scores
from engram.records.scored_items import EvaluationItems
from engram.records.stage_result import StageResult
from engram.streams.stream import Stream

if TYPE_CHECKING:
    from engram.engine.history import PhaseLog
    from engram.engine.trainers.trainer import Trainer

ENTRIES_AT_ONCE = 1 << 27
CONVOLVED_AT_ONCE = 1 << 21  # on the CPU, whose caches hold so much between two layers


def test_items(stream: Stream) -> tuple[Tensor, Tensor]:
    """(rows, stages) of all test items, task after task."""
    if "_test_items" not in stream.__dict__:  # many runs go over one stream, stage after stage
        rows = torch.cat([task.test for task in stream.tasks])
        sizes = torch.tensor([len(task.test) for task in stream.tasks])
        stages = torch.repeat_interleave(torch.arange(len(stream)), sizes)
        stream.__dict__["_test_items"] = rows, stages
    found: tuple[Tensor, Tensor] = stream.__dict__["_test_items"]
    return found


def scored_validation_items(stream: Stream) -> tuple[Tensor, Tensor]:
    """(rows, stages) of all validation items that are scored after a stage, task after task."""
    if "_held_items" not in stream.__dict__:
        kind = stream.held_out
        rows = [getattr(task, kind) if kind else task.test[:0] for task in stream.tasks]
        stages = [torch.full_like(part, k) for k, part in enumerate(rows)]
        stream.__dict__["_held_items"] = torch.cat(rows), torch.cat(stages)
    found: tuple[Tensor, Tensor] = stream.__dict__["_held_items"]
    return found


def count_scored(learners: Sequence[RunLearner], *, held: bool) -> None:
    """Note in ledgers that the test items were scored, and validation items if `held`."""
    for learner in learners:
        for kind, count in _count_rows(learner.stream, held).items():
            learner.ledger.record(learner.stage, kind, count)


def _count_rows(stream: Stream, held: bool) -> dict[str, int]:
    """How many rows one evaluation reads; a test row of the data is one, whatever it stands for."""
    known: dict[bool, dict[str, int]] = stream.__dict__.setdefault("_scored", {})
    if held not in known:
        rows, more = test_items(stream)[0], scored_validation_items(stream)[0] if held else None
        counts = {"test": 0, "held_out": 0}
        for part, own in ((rows, stream.judged_on == "test"), (more, False)):
            if part is not None and len(part):
                tests = len(part) if own else int(torch.isin(part, stream.data.test).sum())
                counts["test"] += tests
                counts["held_out"] += len(part) - tests
        known[held] = counts
    return known[held]


def score_test_items(learners: Sequence[RunLearner], methods: Sequence[Method]) -> list[np.ndarray]:
    """Scores [items, C] of each learner on all test items.

    Columns are classes in order of introduction; nothing is masked here, so that any head view can
    be taken later.
    """
    return [scores for scores, _ in _evaluate(learners, methods, test_items, features=False)]


def learner_scores_are_sound(learner: RunLearner, scores: np.ndarray) -> bool:
    """Whether a learner answers the test rows of the tasks that it has seen."""
    if np.isfinite(scores).all():  # the usual case
        return True
    rows = test_items(learner.stream)[1] <= learner.stage
    return scores_are_sound(scores, rows.numpy(), learner.seen.cpu().numpy())


def evaluate(
    learners: Sequence[RunLearner], methods: Sequence[Method], *, features: bool = False
) -> list[StageResult]:
    """What each learner gives after its stage: scores of the test items and of validation items.

    `features` of the test items are kept where they are wanted. What the training took and what it
    is to be called is for others to add.
    """
    tested = _evaluate(learners, methods, test_items, features)
    more = _evaluate(learners, methods, scored_validation_items, features=False)
    return [
        StageResult(
            stage=learner.stage, stream=learner.stream, method=method, seed=learner.seed,
            items=EvaluationItems.of_stream(learner.stream), scores=scores, features=seen,
            held=held if len(held) else None, trained=learner,
        )
        for learner, method, (scores, seen), (held, _) in zip(
            learners, methods, tested, more, strict=True
        )
    ]  # fmt: skip


Scored = tuple[np.ndarray, Tensor | None]  # scores [items, C], features [items, F] where wanted


@torch.no_grad()
def _evaluate(
    learners: Sequence[RunLearner], methods: Sequence[Method],
    which: Callable[[Stream], tuple[Tensor, Tensor]], features: bool,
) -> list[Scored]:  # fmt: skip
    # the state of a run that diverged lacks what `finish` adds: it cannot be stacked, nor scored by
    alike: dict[Any, list[int]] = {}
    for place, learner in enumerate(learners):
        alike.setdefault(tree_shapes(learner.state), []).append(place)
    methods = [
        one if learner.diverged < 0 else Method()
        for one, learner in zip(methods, learners, strict=True)
    ]
    found: dict[int, Scored] = {}
    for places in alike.values():
        some = [learners[p] for p in places]
        items = [which(one.stream) for one in some]
        scored = _evaluate_items(some, [methods[p] for p in places], items, features)
        found |= dict(zip(places, scored, strict=True))
    return [found[place] for place in range(len(learners))]


def _evaluate_items(
    learners: Sequence[RunLearner], methods: Sequence[Method], items: list[tuple[Tensor, Tensor]],
    features: bool,
) -> list[Scored]:  # fmt: skip
    if not any(len(rows) for rows, _ in items):
        return [(np.zeros((0, len(one.opened)), np.float32), None) for one in learners]
    # with the channels last: mapped convolutions are slower than one by one
    if len(learners) == 1 or learners[0].networks.channels_last:
        # on the CPU a row's last bits may depend on the rows beside it
        answer = _evaluate_distinct_rows if learners[0].device.type == "cuda" else _evaluate_one
        each = zip(learners, methods, items, strict=True)
        return [answer(one, method, *own, features) for one, method, own in each]
    shared, where = _shared_items(learners, items)
    scores, seen = _evaluate_mapped(learners, methods, *shared, features)  # [R, U, C], [R, U, F]
    host = scores.float().cpu().numpy()
    return [
        (host[r][index.numpy()], seen[r][index.to(seen.device)] if features else None)
        for r, index in enumerate(where)
    ]


def _shared_items(
    learners: Sequence[RunLearner], items: list[tuple[Tensor, Tensor]]
) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """Distinct inputs of all runs, and where each run's items are among them."""
    viewed = learners[0].feed.view is not None
    span = len(learners[0].stream.data)
    codes = [rows + span * stages if viewed else rows for rows, stages in items]
    distinct, inverse = torch.cat(codes).unique(return_inverse=True)
    where = list(inverse.split([len(code) for code in codes]))
    return (distinct % span, distinct // span), where


def _evaluate_distinct_rows(
    learner: RunLearner, method: Method, rows: Tensor, stages: Tensor, features: bool
) -> Scored:
    """As `_evaluate_one`, with one pass for a row that several tasks test."""
    distinct, (where,) = _shared_items([learner], [(rows, stages)])
    if len(distinct[0]) == len(rows):
        return _evaluate_one(learner, method, rows, stages, features)
    scores, seen = _evaluate_one(learner, method, *distinct, features)
    return scores[where.numpy()], seen if seen is None else seen[where.to(seen.device)]


def _evaluate_one(
    learner: RunLearner, method: Method, rows: Tensor, stages: Tensor, features: bool
) -> Scored:
    if not len(rows):  # a learner that goes on learning has no test rows
        return np.zeros((0, len(learner.opened)), np.float32), None
    net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
    parts, seen = [], []
    every, ranks = _split_rows(rows, learner, 1), distributed.current_ranks()
    ranks = ranks if ranks is not None and len(every) >= ranks.world else None
    mine = every if ranks is None else ranks.shard(every)
    for _, x in learner.feed.chunks(rows, stages, mine):
        output = net(x)
        found = compute_scores(method, output, learner.state).float()
        parts.append(found.cpu() if ranks is None else found)
        seen += [output.features] if features else []
    if ranks is not None:
        parts = [ranks.gather(parts, mine, len(rows)).cpu()]
        seen = [ranks.gather(seen, mine, len(rows))] if features else []
    return torch.cat(parts).numpy(), torch.cat(seen) if features else None


def _evaluate_mapped(
    learners: Sequence[RunLearner], methods: Sequence[Method], rows: Tensor, stages: Tensor,
    features: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    first = learners[0]
    vectors = torch.stack([one.vector for one in learners])
    buffers, state = (
        stack([one.buffers for one in learners]),
        stack([one.state for one in learners]),
    )
    hyper = make_tensors(varying_values(methods) or {}, vectors)

    def one_run(vector: Tensor, own: Any, state: Any, values: Any, x: Tensor) -> Any:
        output = FunctionalNet(first.networks, vector, own, training=False)(x)
        scores = compute_scores(replace_values(methods[0], values), output, state)
        return (scores, output.features) if features else (scores,)

    parts = []
    for _, x in first.feed.chunks(rows, stages, _split_rows(rows, first, len(learners))):
        parts.append(vmap(one_run, in_dims=(0, 0, 0, 0, None))(vectors, buffers, state, hyper, x))
    scores, *seen = (torch.cat(every, 1) for every in zip(*parts, strict=True))
    return scores, seen[0] if features else scores


def _split_rows(rows: Tensor, learner: RunLearner, runs: int) -> list[slice]:
    """Rows that fit: an activation is guessed as four times the input."""
    sample = 4 * int(np.prod(learner.stream.data.sample_shape))
    small = learner.device.type == "cpu" and learner.networks.convolves
    entries = CONVOLVED_AT_ONCE if small else ENTRIES_AT_ONCE
    size = int(np.clip(entries // max(1, runs * sample), 16, 8192))
    return [slice(start, start + size) for start in range(0, len(rows), size)]


@torch.no_grad()
def validate(learners: Sequence[RunLearner], methods: Sequence[Method]) -> dict[str, np.ndarray]:
    """Validation loss and score (accuracy, or what label sets are judged by) [R] in the task."""
    kind = learners[0].stream.labels
    losses, figures = [], []
    for learner, method in zip(learners, methods, strict=True):
        items, net = validation_items(learner, method), learner.net()
        batch, parts = learner.collate(items, inputs=False), _split_rows(items.stages, learner, 1)
        with without_cudnn_benchmark():  # a task's own number of rows, once in an epoch
            outputs = [net(x) for _, x in learner.feed.chunks(items.rows, items.stages, parts)]
        logits = torch.cat([one.logits for one in outputs])
        losses.append(learner.networks.objective(logits, batch))
        scores = torch.cat([compute_scores(method, one, learner.state) for one in outputs])
        figures.append(score_batch(scores, batch, kind))
    return {
        "loss": torch.stack(losses).double().cpu().numpy(),
        "score": torch.stack(figures).cpu().numpy(),
    }


def validation_items(learner: RunLearner, method: Method) -> TrainingRows:
    """The task's validation rows with the labels that it shows.

    A method that trains on all tasks so far with complete labels is validated on their rows, in the
    same way: each once, with all its labels opened so far.
    """
    if method.replay(learner.stage).kind != "complete":
        return learner.items(learner.task.valid)
    tasks = learner.stream.tasks[: learner.stage + 1]
    stages = [torch.full_like(task.valid, k) for k, task in enumerate(tasks)]
    every = torch.cat([task.valid for task in tasks]), torch.cat(stages)
    return learner.complete_items(*every)


# -- detecting divergence --------------------------------------------------------------------------
# A diverged run has no accuracy: a network with exploded weights predicts one class for every
# input, which would look like a poor learner that forgets little.

# In single precision numbers of this size are 8 apart: the whole cross-entropy of guessing among a
# thousand classes (6.9) is lost in rounding.
MOST_GROWTH = 1e8

Sums = Mapping[str, Tensor]


def is_penalty(name: str) -> bool:
    """Whether a loss term pulls at weights.

    A strong one may be huge for a few steps of a sound run; and where it throws the weights away,
    the other terms show it.

    Examples
    --------
    >>> [is_penalty(name) for name in ("penalty", "penalty.1", "task")]
    [True, True, False]
    """
    return name.split(".")[0] == "penalty"


def add_loss_units(units: Mapping[str, float], first: Sums, run: int) -> dict[str, float]:
    """The size of every loss term in the first step that had it, over all stages of a run.

    It says in which units a method counts: a sum over pixels is large from the beginning.

    Examples
    --------
    >>> first = {"task": torch.tensor([0.5, 9.0]), "distill": torch.tensor([3e5, 3e5])}
    >>> add_loss_units({"task": 0.5}, first, run=1)
    {'task': 0.5, 'distill': 300000.0}
    """
    return {name: abs(float(value[run])) for name, value in first.items()} | dict(units)


def losses_are_sound(
    logs: Sequence[Sums], units: Sequence[Mapping[str, float]], steps: np.ndarray
) -> list[bool]:
    """[R] whether the losses of a stage are finite and not beyond all measure.

    They are beyond it where the mean of some term over the stage exceeds `MOST_GROWTH` times its
    unit, and a unit is at least 1. Penalties need to be finite only.

    Parameters
    ----------
    logs
        Sums of every loss term over parts of the stage, [R] each.
    units
        [R] what `add_loss_units` found.
    steps
        [R] steps that each run took.

    Examples
    --------
    >>> logs, units = [{"task": torch.tensor([2.0, 1e9, 1e9])}], [{"task": 0.7}] * 2
    >>> losses_are_sound(logs, [*units, {"task": 1e7}], np.array([1, 1, 1]))
    [True, False, True]
    """
    if not logs:
        return [True] * len(units)
    taken = np.maximum(steps, 1)
    totals = {}  # a sum that is not finite stays so
    for name, last in logs[-1].items():  # those of before an interruption lie on the CPU
        parts = torch.stack([sums[name].to(last.device, torch.float64) for sums in logs])
        totals[name] = parts.sum(0).cpu().numpy() / taken
    found = []
    for run, unit in enumerate(units):
        sizes = {name: abs(float(total[run])) for name, total in totals.items()}
        limits = {
            n: math.inf if is_penalty(n) else MOST_GROWTH * max(unit.get(n, 1), 1) for n in sizes
        }
        found.append(all(size < math.inf and size <= limits[n] for n, size in sizes.items()))
    return found


def mark_diverged(learners: Sequence[RunLearner], trainer: Trainer, log: PhaseLog) -> None:
    """Note in which stage a learner diverged, by its losses or its weights after a phase."""
    first = {name: value.cpu() for name, value in (trainer.first or {}).items()}
    for run, learner in enumerate(learners):
        learner.units = add_loss_units(learner.units, first, run)
    logs = [sums for _, _, sums in log.sums]
    sound = losses_are_sound(logs, [one.units for one in learners], log.steps)
    finite = trainer.finite().tolist()
    for learner, *fine in zip(learners, sound, finite, strict=True):
        if not all(fine):
            learner.diverged = learner.stage


def scores_are_sound(scores: np.ndarray, rows: np.ndarray, open_: np.ndarray) -> bool:
    """Whether each of the rows [n] can be won by an open column [C], and all scores are numbers.

    Only rows of tasks seen so far count: who has not seen a task need not answer it.
    -inf rules a class out; NaN and +inf are none of a sound run's scores.

    Examples
    --------
    >>> one, two = np.array([True]), np.array([True, True, False])
    >>> scores_are_sound(np.array([[0.1, -np.inf, np.nan]]), one, two)  # the last class is not open
    True
    >>> scores_are_sound(np.array([[0.1, np.nan, 0.0]]), one, two)
    False
    """
    shown = scores[rows][:, open_]
    with np.errstate(invalid="ignore"):
        return bool((shown < np.inf).all() and (shown > -np.inf).any(axis=1).all())
