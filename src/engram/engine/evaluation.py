"""Evaluation: scores of every class for all test rows after each stage, validation scores, and the
detection of diverged runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
from engram.learner.tensor_tree import nbytes, stack, tree_shapes
from engram.methods.method import Method, compute_answer, tells_task
from engram.records.scored_items import EvaluationItems, spread_places
from engram.records.stage_result import StageResult
from engram.streams.stream import Stream

if TYPE_CHECKING:
    from engram.engine.history import PhaseLog
    from engram.engine.trainers.trainer import Trainer

ENTRIES_AT_ONCE = 1 << 27
STACKED_BYTES = 1 << 30  # of method states that are stacked for one mapped pass
OWN_SHARE = 0.75  # of the rows that any run of a group has: below it, each passes its own
MULTIPLIED_AT_ONCE = 1 << 22  # for other networks on the CPU
CONVOLVED_AT_ONCE = 1 << 21  # for convolutions on the CPU, to fit into its caches


Items = tuple[Tensor, Tensor]  # row numbers and tasks, [n] each


def test_items(stream: Stream, tasks: slice = slice(None)) -> Items:  # noqa: PT028
    """Return (rows, stages) of the test items of some tasks, by default all, task by task."""
    return _items_of(stream, "test", tasks)


def _items_of(stream: Stream, kind: str, tasks: slice) -> Items:
    """Return (rows, stages) of one kind of rows of consecutive tasks; all of them are cached."""
    known: dict[str, tuple[Tensor, Tensor, list[int]]] = stream.__dict__.setdefault(
        "_evaluated", {}
    )
    if kind not in known:
        every = [getattr(task, kind) if kind else task.test[:0] for task in stream.tasks]
        sizes = [len(rows) for rows in every]
        stages = torch.repeat_interleave(torch.arange(len(every)), torch.tensor(sizes))
        known[kind] = torch.cat(every), stages, list(itertools.accumulate(sizes, initial=0))
    rows, stages, ends = known[kind]
    start, stop, _ = tasks.indices(len(stream))
    return rows[ends[start] : ends[stop]], stages[ends[start] : ends[stop]]


def _learnt(learner: RunLearner) -> slice:
    return slice(0, learner.stage + 1)


def _to_come(learner: RunLearner) -> slice:
    return slice(learner.stage + 1, None)


def count_scored(learners: Sequence[RunLearner], *, held: bool, most: int = 0) -> None:
    """Record in the ledgers that test items, and validation items if `held`, were scored.

    At most so many of each task; 0: all.
    """
    for learner in learners:
        for kind, count in _count_rows(learner, held, most).items():
            learner.ledger.record(learner.stage, kind, count)


def _thin(items: Items, most: int) -> Items:
    """Select at most so many items of each task; 0: all."""
    if not most:
        return items
    where = torch.from_numpy(spread_places(items[1].numpy(), most))
    return items[0][where], items[1][where]


def _count_rows(learner: RunLearner, held: bool, most: int) -> dict[str, int]:
    """Count the rows that one evaluation reads; test rows of the data always count as such."""
    stream, tasks = learner.stream, _learnt(learner)
    known: dict[Any, dict[str, int]] = stream.__dict__.setdefault("_scored", {})
    key = learner.stage, learner.scores_unseen, held, most
    if key not in known:
        rows, _ = _thin(test_items(stream, slice(None) if learner.scores_unseen else tasks), most)
        more = _items_of(stream, stream.held_out, tasks)[0] if held else None
        counts = {"test": 0, "held_out": 0}
        for part, own in ((rows, stream.judged_on == "test"), (more, False)):
            if part is not None and len(part):
                tests = len(part) if own else int(torch.isin(part, stream.data.test).sum())
                counts["test"] += tests
                counts["held_out"] += len(part) - tests
        known[key] = counts
    return known[key]


def score_test_items(
    learners: Sequence[RunLearner], methods: Sequence[Method], most: int = 0
) -> list[np.ndarray]:
    """Compute the scores [items, C] of each learner on the test items of the tasks learnt so far.

    At most so many of each task; 0: all. A learner with `scores_unseen` scores those of the tasks
    to come as well. Columns are classes in order of introduction. Nothing is masked, so that any
    head view can be applied later.
    """
    return [scores for scores, _ in _score_tests(learners, methods, features=False, most=most)]


def _score_tests(
    learners: Sequence[RunLearner], methods: Sequence[Method], features: bool, most: int = 0
) -> list[Scored]:
    """Score test items as `score_test_items` does, with features on request.

    Tasks to come have passes of their own: on the CPU the last bits of a row may depend on the
    other rows of a batch, so they would change the scores of the tasks learnt.
    """
    found = _evaluate(
        learners, methods,
        [_thin(test_items(one.stream, _learnt(one)), most) for one in learners], features,
    )  # fmt: skip
    asked = [place for place, one in enumerate(learners) if one.scores_unseen]
    more = _evaluate(
        [learners[place] for place in asked], [methods[place] for place in asked],
        [
            _thin(test_items(learners[place].stream, _to_come(learners[place])), most)
            for place in asked
        ],
        features,
    )  # fmt: skip
    for place, (scores, seen) in zip(asked, more, strict=True):
        own, before = found[place]
        if len(scores):
            joined = None if before is None or seen is None else torch.cat([before, seen])
            found[place] = np.concatenate([own, scores]), joined
    return found


def learner_scores_are_sound(learner: RunLearner, scores: np.ndarray, most: int = 0) -> bool:
    """Whether a learner's scores of the test rows of seen tasks are valid."""
    if np.isfinite(scores).all():  # the usual case
        return True
    rows = _thin(test_items(learner.stream), most)[1][: len(scores)] <= learner.stage
    return scores_are_sound(scores, rows.numpy(), learner.seen.cpu().numpy())


def evaluate(
    learners: Sequence[RunLearner], methods: Sequence[Method], *, features: bool = False
) -> list[StageResult]:
    """Evaluate each learner after its stage on test items and validation items.

    Only tasks learnt so far are evaluated, and on test items those to come for learners with
    `scores_unseen`. `features` of the test items are kept on request. Losses, steps and seconds are
    added by the caller.
    """
    tested = _score_tests(learners, methods, features)
    held_out = [_items_of(one.stream, one.stream.held_out, _learnt(one)) for one in learners]
    more = _evaluate(learners, methods, held_out, features=False)
    return [
        StageResult(
            stage=learner.stage, stream=learner.stream, method=method, seed=learner.seed,
            items=scored_items(learner, method), scores=scores, features=seen,
            held=held if len(held) else None, trained=learner,
        )
        for learner, method, (scores, seen), (held, _) in zip(
            learners, methods, tested, more, strict=True
        )
    ]  # fmt: skip


def scored_items(learner: RunLearner, method: Method) -> EvaluationItems:
    """Return the test items that are scored after the learner's stage."""
    items = items_of(learner.stream, method)
    return items if learner.scores_unseen else items.up_to(learner.stage)


def items_of(stream: Stream, method: Method) -> EvaluationItems:
    """Return all test items of a run over a stream, in the order in which they are scored."""
    return EvaluationItems.of_stream(stream, task_given=tells_task(method, stream.head))


def told_task(learner: RunLearner, method: Method, stage: int) -> int:
    """Return what a method is told of the task of some rows: -1 unless given, and begun."""
    told = tells_task(method, learner.stream.head) and stage <= learner.stage
    return stage if told else -1


Scored = tuple[np.ndarray, Tensor | None]  # scores [items, C], features [items, F] if requested


@torch.no_grad()
def _evaluate(
    learners: Sequence[RunLearner], methods: Sequence[Method], which: Sequence[Items],
    features: bool,
) -> list[Scored]:  # fmt: skip
    """Score the items of each learner; on CUDA and in lockstep, each distinct row once."""
    # states of diverged runs lack what `finish` adds: they cannot be stacked, nor used for scores
    alike: dict[Any, list[int]] = {}
    for place, learner in enumerate(learners):
        lost = learner.diverged >= 0 and methods[place].implements("answer")
        alike.setdefault((lost, tree_shapes(learner.state)), []).append(place)
    methods = [
        one if learner.diverged < 0 else Method()
        for one, learner in zip(methods, learners, strict=True)
    ]
    found: dict[int, Scored] = {}
    for places in alike.values():
        some = [learners[p] for p in places]
        items = [which[p] for p in places]
        scored = _evaluate_items(some, [methods[p] for p in places], items, features)
        found |= dict(zip(places, scored, strict=True))
    return [found[place] for place in range(len(learners))]


def _evaluate_items(
    learners: Sequence[RunLearner], methods: Sequence[Method], items: list[Items], features: bool
) -> list[Scored]:
    told = tells_task(methods[0], learners[0].stream.head)
    if not told or not any(len(rows) for rows, _ in items):
        return _evaluate_passes(learners, methods, items, features)
    # rows of one task in a pass, which has one answer to what the task is
    found: list[list[Scored]] = [[] for _ in learners]
    for stage in range(1 + max(int(stages.max()) for _, stages in items if len(stages))):
        own = [(rows[stages == stage], stages[stages == stage]) for rows, stages in items]
        for place, scored in enumerate(_evaluate_passes(learners, methods, own, features, stage)):
            found[place].append(scored)
    return [_join_scored(parts) for parts in found]


def _join_scored(parts: Sequence[Scored]) -> Scored:
    seen = [one for _, one in parts if one is not None]
    return np.concatenate([scores for scores, _ in parts]), torch.cat(seen) if seen else None


def _evaluate_passes(
    learners: Sequence[RunLearner], methods: Sequence[Method], items: list[Items], features: bool,
    stage: int = -1,
) -> list[Scored]:  # fmt: skip
    """Score items; methods that are told tasks get those of `stage` alone."""
    if not any(len(rows) for rows, _ in items):
        return [(np.zeros((0, len(one.opened)), np.float32), None) for one in learners]
    told = told_task(learners[0], methods[0], stage)
    # in channels-last format mapped convolutions are slower than one by one
    if len(learners) == 1 or learners[0].networks.channels_last:
        # on the CPU the last bits of a row may depend on the other rows of a batch
        on_cuda = learners[0].device.type == "cuda"
        evaluate_run = _evaluate_distinct_rows if on_cuda else _evaluate_one
        each = zip(learners, methods, items, strict=True)
        return [evaluate_run(one, method, *own, features, told) for one, method, own in each]
    if sum(nbytes(one.state) for one in learners) > STACKED_BYTES:  # Gram matrices, say
        half = len(learners) // 2
        return [
            one
            for some in (slice(half), slice(half, None))
            for one in _evaluate_passes(learners[some], methods[some], items[some], features, stage)
        ]
    shared, where = _shared_items(learners, items)
    most = max(len(rows) for rows, _ in items)
    if learners[0].feed.on_device and most < OWN_SHARE * len(shared[0]):
        # in other orders of tasks runs have learnt other tasks: each passes its own rows
        shared, where = _pad_items(items), [torch.arange(len(rows)) for rows, _ in items]
    # [R, U, C], [R, U, F]
    scores, seen = _evaluate_mapped(learners, methods, *shared, features, told)
    host = scores.float().cpu().numpy()
    return [
        (host[r][index.numpy()], seen[r][index.to(seen.device)] if features else None)
        for r, index in enumerate(where)
    ]


def _shared_items(learners: Sequence[RunLearner], items: list[Items]) -> tuple[Items, list[Tensor]]:
    """Return the distinct inputs of all runs, and the position of each run's items."""
    viewed = learners[0].feed.view is not None
    span = len(learners[0].stream.data)
    codes = [rows + span * stages if viewed else rows for rows, stages in items]
    distinct, inverse = torch.cat(codes).unique(return_inverse=True)
    where = list(inverse.split([len(code) for code in codes]))
    return (distinct % span, distinct // span), where


def _pad_items(items: Sequence[Items]) -> Items:
    """Stack the rows and stages of runs, [R, n]; those of fewer items repeat their last one."""
    whole = max(items, key=lambda one: len(one[0]))  # a run may have no items at all
    most = torch.arange(len(whole[0]))
    each = [one if len(one[0]) else whole for one in items]
    places = [most.clamp(max=len(rows) - 1) for rows, _ in each]
    rows, stages = (
        torch.stack([one[part][place] for one, place in zip(each, places, strict=True)])
        for part in (0, 1)
    )
    return rows, stages


def _evaluate_distinct_rows(
    learner: RunLearner,
    method: Method,
    rows: Tensor,
    stages: Tensor,
    features: bool,
    told: int = -1,
) -> Scored:
    """Like `_evaluate_one`, but rows tested by several tasks are passed once."""
    distinct, (where,) = _shared_items([learner], [(rows, stages)])
    if len(distinct[0]) == len(rows):
        return _evaluate_one(learner, method, rows, stages, features, told)
    scores, seen = _evaluate_one(learner, method, *distinct, features, told)
    return scores[where.numpy()], seen if seen is None else seen[where.to(seen.device)]


def _evaluate_one(
    learner: RunLearner,
    method: Method,
    rows: Tensor,
    stages: Tensor,
    features: bool,
    told: int = -1,
) -> Scored:
    if not len(rows):  # a deployed learner has no test rows
        return np.zeros((0, len(learner.opened)), np.float32), None
    net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
    parts, seen = [], []
    every, ranks = _split_rows(rows, learner, 1, stages), distributed.current_ranks()
    ranks = ranks if ranks is not None and len(every) >= ranks.world else None
    mine = every if ranks is None else ranks.shard(every)
    for _, x in learner.feed.chunks(rows, stages, mine):
        output = compute_answer(method, net, x, learner.state, told)
        found = output.logits.float()
        parts.append(found.cpu() if ranks is None else found)
        seen += [output.features] if features else []
    if ranks is not None:
        parts = [ranks.gather(parts, mine, len(rows)).cpu()]
        seen = [ranks.gather(seen, mine, len(rows))] if features else []
    return torch.cat(parts).numpy(), torch.cat(seen) if features else None


def _evaluate_mapped(
    learners: Sequence[RunLearner], methods: Sequence[Method], rows: Tensor, stages: Tensor,
    features: bool, told: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Score rows [U] by all learners, or rows [R, U], one line of them by each learner."""
    first = learners[0]
    vectors = torch.stack([one.vector for one in learners])
    buffers, state = (
        stack([one.buffers for one in learners]),
        stack([one.state for one in learners]),
    )
    hyper = make_tensors(varying_values(methods) or {}, vectors)

    def one_run(vector: Tensor, own: Any, state: Any, values: Any, x: Tensor) -> Any:
        net = FunctionalNet(first.networks, vector, own, training=False)
        output = compute_answer(replace_values(methods[0], values), net, x, state, told)
        return (output.logits, output.features) if features else (output.logits,)

    axes = (0, 0, 0, 0, None if rows.ndim == 1 else 0)
    parts = []
    for _, x in first.feed.chunks(rows, stages, _split_rows(rows, first, len(learners), stages)):
        parts.append(vmap(one_run, in_dims=axes)(vectors, buffers, state, hyper, x))
    scores, *seen = (torch.cat(every, 1) for every in zip(*parts, strict=True))
    return scores, seen[0] if features else scores


def _split_rows(rows: Tensor, learner: RunLearner, runs: int, stages: Tensor) -> list[Any]:
    """Split rows [..., n] into passes that fit in memory, and on the CPU into its caches.

    Activations are guessed as four times the input. Under a view a pass has rows of one task, whose
    inputs are made once.
    """
    sample = 4 * int(np.prod(learner.stream.data.sample_shape))
    least, entries = 16, ENTRIES_AT_ONCE
    if learner.device.type == "cpu":
        convolves = learner.networks.convolves
        least, entries = (16, CONVOLVED_AT_ONCE) if convolves else (512, MULTIPLIED_AT_ONCE)
    size = int(np.clip(entries // max(1, runs * sample), least, 8192))
    n = rows.shape[-1]
    if rows.ndim > 1:
        return [(slice(None), slice(start, start + size)) for start in range(0, n, size)]
    ends = [n]
    if learner.feed.view is not None:
        ends = [*(stages.diff().nonzero()[:, 0] + 1).tolist(), n]
    return [
        slice(at, min(at + size, end))
        for start, end in itertools.pairwise([0, *ends])
        for at in range(start, end, size)
    ]


@torch.no_grad()
def validate(learners: Sequence[RunLearner], methods: Sequence[Method]) -> dict[str, np.ndarray]:
    """Compute validation loss and score [R] in the task."""
    kind = learners[0].stream.labels
    losses, figures = [], []
    for learner, method in zip(learners, methods, strict=True):
        items = validation_items(learner, method)
        batch = learner.collate(items, inputs=False)
        with without_cudnn_benchmark():  # shapes occur once per epoch
            scores = _answer_items(learner, method, items)
        losses.append(learner.networks.objective(scores, batch))
        figures.append(score_batch(scores, batch, kind))
    return {
        "loss": torch.stack(losses).double().cpu().numpy(),
        "score": torch.stack(figures).cpu().numpy(),
    }


def _answer_items(learner: RunLearner, method: Method, items: TrainingRows) -> Tensor:
    """Return the scores [n, C] of some rows; a method that is told tasks gets them task by task."""
    net, groups = learner.net(), [(-1, torch.arange(len(items.rows)))]
    if tells_task(method, learner.stream.head):
        stages = items.stages.unique().tolist()
        groups = [(stage, (items.stages == stage).nonzero()[:, 0]) for stage in stages]
    parts = []
    for stage, place in groups:
        own = items if len(groups) == 1 else items.take(place)
        told = told_task(learner, method, stage)
        splits = _split_rows(own.rows, learner, 1, own.stages)
        for _, x in learner.feed.chunks(own.rows, own.stages, splits):
            parts.append(compute_answer(method, net, x, learner.state, told).logits)
    found = torch.cat(parts)
    if len(groups) == 1:
        return found
    return found[torch.cat([place for _, place in groups]).argsort().to(found.device)]


def validation_items(learner: RunLearner, method: Method) -> TrainingRows:
    """Return the task's validation rows with visible labels.

    For a method that trains on all tasks so far with complete labels, these are the validation rows
    of all tasks, each once, with all labels opened so far.
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

# The spacing of single-precision numbers of this size is 8, more than the cross-entropy of guessing
# among a thousand classes (6.9).
MOST_GROWTH = 1e8

Sums = Mapping[str, Tensor]


def is_penalty(name: str) -> bool:
    """Whether a loss term is a penalty on weights.

    A strong penalty may be huge for a few steps without divergence; if it ruins the weights, the
    other terms show it.

    Examples
    --------
    >>> [is_penalty(name) for name in ("penalty", "penalty.1", "task")]
    [True, True, False]
    """
    return name.split(".")[0] == "penalty"


def add_loss_units(units: Mapping[str, float], first: Sums, run: int) -> dict[str, float]:
    """Add the size of each loss term in the first step that had it, as its unit.

    Terms have different scales: a sum over pixels is large from the beginning.

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
    """Return [R] whether the losses of a stage are finite and of reasonable size.

    The mean of a term over the stage must not exceed `MOST_GROWTH` times its unit, which is at
    least 1. Penalties need only be finite.

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
    totals = {}
    for name, last in logs[-1].items():  # sums of before an interruption are on the CPU
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
    """Mark learners that diverged, by their losses or weights after a phase."""
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
    """Whether each of the rows [n] has a score above -inf in an open column [C] and no NaN or inf.

    `rows` are those of tasks seen so far. A score of -inf excludes a class.

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
