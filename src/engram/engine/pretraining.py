"""Pretraining before the first task: roots learn from rows that are split off from all tasks.

A stand-in of each learner trains on the stream of those rows, all tasks and classes at once, by the
same loop as any task; then its root goes to the learner, whose top and head are still untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram import keys
from engram.engine.checkpoints import Checkpointer, ResumePoint
from engram.engine.loop import train_task
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import tree_map
from engram.methods.method import Method, Phase, Prologue, ReplaySpec
from engram.records.stage_result import StageResult
from engram.streams.access_guard import READ_KINDS, SCORED_KINDS
from engram.streams.stream import Stream

PRETRAINING_STAGE = -1  # in place of a task, or of a phase of the first one
PRETRAINING_NAME = "prologue"  # of its phase and of its loss
STAND_IN_FIELDS = (
    "vector",
    "buffers",
    "free",
    "opt",
    "units",
)  # what a checkpoint keeps of a stand-in


def declared_pretraining(method: Method) -> Prologue | None:
    """The training before the first task that a method asks for."""
    found = method.prologue()
    return found if isinstance(found, Prologue) else None


def pending_pretraining(run: Run) -> Prologue | None:
    """The training before the first task that is still to be done in a run."""
    return None if run.begun else declared_pretraining(run.method)


def split_stream(run: Run) -> tuple[Stream, Stream | None]:
    """The stream that a run learns, and that of the rows set aside from it."""
    asked = pending_pretraining(run)
    if asked is None:
        return run.stream, None
    known: dict[Any, tuple[Stream, Stream]] = run.stream.__dict__.setdefault("_aside", {})
    key = asked.share, run.seed
    if key not in known:
        known[key] = split_off_rows(run.stream, *key)
    return known[key]


def needs_pretraining(learner: RunLearner) -> bool:
    """Whether the prologue of a learner that is to begin, or to go on, is still to be done."""
    point = learner.resume_point
    return point is None or point.position[0] == PRETRAINING_STAGE


@dataclass(frozen=True)
class RootPretraining(Method):
    """Plain training of the main network on all rows of a stream at once."""

    reads: ClassVar[str] = "past"

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("past")

    def phases(self, stage: int) -> tuple[Phase, ...]:
        return (Phase(name=PRETRAINING_NAME, trainable=("net",)),)


class _OfLearners:
    """Saves the learners whose stand-ins are being trained."""

    def __init__(self, checkpointer: Checkpointer, learners: Sequence[RunLearner]) -> None:
        self.checkpointer, self.learners = checkpointer, learners

    @property
    def every(self) -> float:
        return self.checkpointer.every

    @property
    def should_stop(self) -> bool:
        return self.checkpointer.should_stop

    def due(self) -> bool:
        return self.checkpointer.due()

    def save(
        self, places: Sequence[int], learners: Sequence[RunLearner], points: Sequence[ResumePoint]
    ) -> None:
        for learner, stand, point in zip(self.learners, learners, points, strict=True):
            _hand_over(stand, learner)
            learner.enter(0)
            point.position = (PRETRAINING_STAGE, *point.position[1:])
        self.checkpointer.save(places, self.learners, points)


def train_prologue(
    runs: Sequence[Run], learners: Sequence[RunLearner], *, checkpointer: Checkpointer | None,
    **options: Any,
) -> list[StageResult] | None:  # fmt: skip
    """Train the roots of learners, with the options of `train_task`.

    None if the `checkpointer` ends the training inside.
    """
    stands = [_make_stand_in(*pair) for pair in zip(runs, learners, strict=True)]
    training = _pretraining_settings(runs[0])
    last = len(runs[0].stream) - 1  # all classes are open then
    methods = [RootPretraining()] * len(stands)
    saver = None if checkpointer is None else _OfLearners(checkpointer, learners)
    results = train_task(
        stands, methods, training, last, keep_final_state=True, checkpointer=saver, **options
    )
    if results is None:
        return None
    for learner, stand, result in zip(learners, stands, results, strict=True):
        _take_over_root(learner, stand)
        learner.before = [
            (step, {PRETRAINING_NAME: terms["total"]}) for step, terms in result.losses
        ]
    return results


def add_pretraining_costs(run: Run, first: StageResult, seconds: float) -> None:
    """Add to the result of a run's first task the steps and seconds of what came before it."""
    asked = declared_pretraining(run.method)
    steps = 0 if asked is None else asked.iterations
    first.seconds, first.steps = first.seconds + seconds, first.steps + steps


def _pretraining_settings(run: Run) -> Training:
    asked = declared_pretraining(run.method) or Prologue()
    return replace(
        run.training, iterations=asked.iterations, batch_size=asked.batch_size,
        lr=asked.lr or run.training.lr, first_task_scale=1.0, schedule="constant", patience=0,
        restore_best=False, evaluate_every=0, evaluate_rows=0,
    )  # fmt: skip


def _make_stand_in(run: Run, learner: RunLearner) -> RunLearner:
    """A learner of the rows set aside, where the other one stands."""
    stream = split_stream(run)[1]
    assert stream is not None  # only methods with a prologue come here
    stand = RunLearner(
        networks=learner.networks, stream=stream, feed=learner.feed, scope="seen", reads="past",
        seed=int(keys.fold(run.seed, "prologue")),
    )  # fmt: skip
    if (point := learner.resume_point) is not None:
        _hand_over(learner, stand)
        stand.resume_point = replace(point, position=(0, *point.position[1:]))
    return stand


def _hand_over(source: RunLearner, target: RunLearner) -> None:
    for name in STAND_IN_FIELDS:
        setattr(target, name, tree_map(lambda leaf: leaf, getattr(source, name)))


def copy_pretraining(source: RunLearner, target: RunLearner) -> None:
    """Let a learner whose prologue is the same have what it gave."""
    _hand_over(source, target)
    target.ledger, target.resume_point = source.ledger.copy(), None
    target.before = list(source.before)


def _take_over_root(learner: RunLearner, stand: RunLearner) -> None:
    """The root of the stand-in below a top, a head and further networks as they began."""
    networks = learner.networks
    vector, buffers = networks.initial()
    mine, theirs = networks.layout(vector), networks.layout(stand.vector)
    for name in networks.root_names:
        mine[name].copy_(theirs[name])
    inside = {k: v for k, v in stand.buffers.items() if k.startswith(networks.root_prefixes)}
    learner.vector, learner.buffers = vector, buffers | inside
    learner.opt, learner.units, learner.resume_point = {}, {}, None
    kinds = [kind for kind in READ_KINDS if kind not in SCORED_KINDS]
    read = sum(stand.ledger.total(kind) for kind in kinds)
    learner.ledger.record(0, "prologue", read)


# -- setting rows aside for pretraining ------------------------------------------------------------


def split_off_rows(stream: Stream, share: float, seed: int) -> tuple[Stream, Stream]:
    """The stream without a share of its training rows, and the stream of those rows alone.

    Which rows, depends on the seed and on the rows of each task, not on labels. A row that several
    tasks have is set aside from all of them.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams.incremental_streams import class_incremental
    >>> stream = class_incremental(Data.from_arrays([[float(i)] for i in range(60)], [0, 1] * 30))
    >>> rest, aside = split_off_rows(stream, 0.25, seed=0)
    >>> [len(part.tasks[0].train) for part in (stream, rest, aside)]
    [48, 36, 12]
    """
    chosen = _choose_rows(stream, share, seed)
    rest, aside = [], []
    for number, task in enumerate(stream.tasks):
        mine = chosen[task.train]
        if not mine.any() or mine.all():
            expected = f"a fraction that takes some rows of task {number} and leaves some"
            raise bad("share", expected, f"{share:g} of {len(task.train)} rows")
        rest.append(replace(task, train=task.train[~mine]))
        own, none = task.train[mine], task.valid[:0]
        aside.append(replace(task, train=own, valid=none, test=task.test[:1]))
    before = replace(stream, tasks=tuple(aside), head="single", name=f"{stream.name}, set aside")
    return replace(stream, tasks=tuple(rest)), before


def _choose_rows(stream: Stream, share: float, seed: int) -> Tensor:
    """[N] whether each row of the data is set aside; a generated copy goes with its source."""
    stored = len(stream.data.x)
    draws = keys.uniform(keys.fold(seed, "aside"), stored)
    chosen = torch.zeros(stored, dtype=torch.bool)
    for task in stream.tasks:
        own = task.train[task.train < stored]
        count = max(1, int(share * len(own) + 1e-9))
        chosen[own[draws[own].argsort(stable=True)[:count]]] = True
    return chosen[stream.data.sources(torch.arange(len(stream.data)))]
