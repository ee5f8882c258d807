"""Checkpoints of a learner (safetensors with facts in the header, no pickle), the point inside a
task at which a run resumes, and copies of a learner to all ranks.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engram import distributed
from engram.distributed import Ranks
from engram.errors import BadArgument, RecordError, wrap_read_errors
from engram.io import TensorFile, make_folder, save_tensors
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import flatten, tree_map
from engram.memory import Exemplars
from engram.streams.access_guard import Ledger

if TYPE_CHECKING:
    from engram.engine.history import History
    from engram.engine.loop import PhaseTraining
    from engram.learner.torch_startup import Stopwatch

FORMAT = "engram-learner-2"
KEPT_CHECKPOINTS = 2  # the previous one is used if the newest is damaged
DAMAGED_SUFFIX = ".damaged"
Notify = Callable[[str], None]
EXEMPLARS = ("rows", "stages", "columns", "ranks")


def tree_structure(tree: Any) -> Any:
    """Return the structure of a tree as JSON values, including empty parts and tuples."""
    if isinstance(tree, dict):
        return {"dict": {str(k): tree_structure(v) for k, v in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [tree_structure(v) for v in tree]}
    return None


def rebuild_tree(shape: Any, flat: dict[str, Tensor], prefix: str = "") -> Any:
    """Rebuild a tree from its `tree_structure` and leaves.

    Examples
    --------
    >>> import torch
    >>> tree = {"0": {}, "1": {"a": (torch.zeros(1),)}}
    >>> rebuild_tree(tree_structure(tree), flatten(tree))
    {'0': {}, '1': {'a': (tensor([0.]),)}}
    """
    if shape is None:
        return flat[prefix]
    join = (prefix + "/") if prefix else ""
    if "dict" in shape:
        return {k: rebuild_tree(v, flat, f"{join}{k}") for k, v in shape["dict"].items()}
    return tuple(rebuild_tree(v, flat, f"{join}#{i}") for i, v in enumerate(shape["tuple"]))


def learner_tree(learner: RunLearner, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return all tensors of a learner as a tree, without the parts in `leave_out`."""
    tree = {
        "vector": learner.vector, "buffers": learner.buffers, "free": learner.free,
        "state": learner.state, "opt": learner.opt, "opened": learner.opened,
        "exemplars": dict(zip(EXEMPLARS, learner.exemplars[:4], strict=True)),
        "values": learner.values, "probes": learner.probes,
    }  # fmt: skip
    return {name: part for name, part in tree.items() if name not in leave_out}


def state_dict(
    learner: RunLearner, leave_out: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return named tensors and plain facts of a learner.

    `leave_out` names parts that the next task creates anyway: ``free``, and ``opt`` if optimisers
    are reset.
    """
    tree = learner_tree(learner, leave_out)
    tensors = {k: v.detach().to("cpu", copy=True) for k, v in flatten(tree).items()}
    tensors = {k: v.contiguous() for k, v in tensors.items()}  # copied once, above
    return tensors, learner_facts(learner, tree)


def learner_facts(learner: RunLearner, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a learner besides the tensors in `tree`.

    Of constant parameters, which come with the model, a checkpoint has the checksum only.
    """
    constants = learner.networks.constants_digest
    return {
        **({"constants": constants} if constants else {}),
        "format": FORMAT, "structure": tree_structure(tree), "stage": learner.stage,
        "seed": learner.seed, "seen": learner.exemplars.seen, "diverged": learner.diverged,
        "stream": learner.stream.fingerprint(), "ledger": learner.ledger.to_dict(),
        "units": learner.units,
    }  # fmt: skip


def load_state_dict(learner: RunLearner, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Load tensors and facts into a new learner."""
    tree = rebuild_tree(facts["structure"], tensors)
    device = learner.device

    def move(part: Any) -> Any:
        # copied, since a file's tensors are not aligned, and products could round differently
        flat = {k: v.to(device, copy=True) for k, v in flatten(part).items()}
        return rebuild_tree(tree_structure(part), flat)

    for name in ("vector", "opened"):
        found, own = tuple(tree[name].shape), tuple(getattr(learner, name).shape)
        if found != own:
            raise ValueError(f"{name} of shape {found} in place of {own}")
    parts = tree["exemplars"]
    # convert everything before assigning anything, so that a failure leaves the learner unchanged
    made: dict[str, Any] = {
        "vector": tree["vector"].to(device, copy=True), "opened": tree["opened"],
        "free": tree["free"].to(device) if "free" in tree else learner.free,
        **{k: move(tree.get(k, {})) for k in ("buffers", "state", "opt", "values", "probes")},
        "exemplars": Exemplars._make([*(parts[name] for name in EXEMPLARS), int(facts["seen"])]),
        "stage": int(facts["stage"]), "diverged": int(facts["diverged"]),
        "units": {str(k): float(v) for k, v in facts["units"].items()},
        "ledger": Ledger.from_dict(facts["ledger"]),
    }  # fmt: skip
    for name, value in made.items():
        setattr(learner, name, value)


def save_checkpoint(
    learner: RunLearner, folder: Path, leave_out: Collection[str] = (), *, synced: bool = True
) -> Path:
    """Write the learner after its current stage; `prune_checkpoints` removes older ones.

    The folder is named after the run; its parent must be in a run directory. A checkpoint that is
    not `synced` outlives the process, but may not outlive a power failure.
    """
    tensors, facts = state_dict(learner, leave_out)
    path = folder / f"stage-{learner.stage:04d}.safetensors"
    return write_tensors_and_facts(path, tensors, {**facts, "run": folder.name}, synced=synced)


def write_tensors_and_facts(
    path: Path, tensors: dict[str, Tensor], facts: Any, *, synced: bool = True
) -> Path:
    """Write tensors and facts to `path` atomically.

    Creates missing folders ``checkpoint/RUN``, but not a run directory that has been deleted.
    """
    make_folder(path.parent, inside=path.parents[2], synced=synced)
    return save_tensors(path, tensors, {"facts": json.dumps(facts)}, synced=synced)


def prune_checkpoints(folder: Path, *, finished: bool = False, spare: Path | None = None) -> None:
    """Delete all but the newest checkpoints and `spare`, or all if the run is `finished`."""
    found = sorted(os.listdir(folder)) if folder.is_dir() else []
    files = [one for one in found if one.startswith("stage-") and one.endswith(".safetensors")]
    old = set(files if finished else files[:-KEPT_CHECKPOINTS])
    if spare is not None and not finished:
        old.discard(spare.name)
    if finished:
        old |= {one for one in found if one.endswith(DAMAGED_SUFFIX)}
    for one in old:
        (folder / one).unlink(missing_ok=True)
    if finished and old == set(found) and folder.is_dir():
        with suppress(OSError):  # written to by another process just now
            folder.rmdir()


def warn(text: str) -> None:
    """Issue a note as a warning."""
    warnings.warn(text, stacklevel=3)


def load_checkpoint(
    learner: RunLearner, folder: Path, finished: Collection[int], note: Notify = warn
) -> int:
    """Load the newest checkpoint whose stages are all recorded; returns the next stage to train.

    A checkpoint is written before the records of its stage, so the newest one may be too new. A
    damaged one is reported by `note`, and the previous one is used.
    """
    for path in sorted(folder.glob("stage-*.safetensors"), reverse=True):
        stage = int(path.stem.split("-")[1])
        if not set(range(stage + 1)) <= set(finished):
            continue
        try:
            file = TensorFile(path, what="checkpoint", framework="pt")
            facts = read_facts(file)
            check_owner(path, facts, run=folder.name, stage=stage)
            restore_learner(learner, path, {name: file.get(name) for name in file.keys()}, facts)  # noqa: SIM118
        except RecordError as problem:
            rename_damaged(path)
            note(f"{problem}; using the previous checkpoint")
            continue
        return learner.stage + 1
    return 0


def read_facts(file: TensorFile) -> Any:
    """Read the facts of a checkpoint."""
    with wrap_read_errors(file.path, "checkpoint"):
        found = json.loads(file.facts["facts"])
        found.keys()
        return found


def check_owner(path: Path, facts: dict[str, Any], *, run: str, stage: int) -> None:
    """Raise for a file of another run or stage."""
    if facts.get("run", run) != run or facts.get("stage") != stage:
        raise RecordError(f"{path}: belongs to another run or stage")


def rename_damaged(path: Path) -> None:
    """Rename a damaged checkpoint, so that it is reported once and can be inspected."""
    with suppress(OSError):
        path.rename(path.with_name(path.name + DAMAGED_SUFFIX))


def restore_learner(
    learner: RunLearner, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    """Load what was read from `path` into a new learner, after checking its owner."""
    if facts.get("format") != FORMAT:
        raise RecordError(f"{path}: not a checkpoint of this version ({facts.get('format')})")
    if (facts.get("stream"), facts.get("seed")) != (learner.stream.fingerprint(), learner.seed):
        raise RecordError(f"{path}: belongs to another stream or seed")
    if facts.get("constants", "") != learner.networks.constants_digest:
        raise RecordError(f"{path}: the model's frozen parameters were others")
    try:
        with wrap_read_errors(path, "checkpoint"):
            load_state_dict(learner, tensors, facts)
    except BadArgument as problem:  # a ledger with unknown kinds
        raise RecordError(f"{path}: is not a valid checkpoint ({problem})") from problem


# -- resuming inside a task, at the very next step -------------------------------------------------
# The state of a learner covers its weights, method state, optimiser and memory. This is the rest:
# the position in the task, the state of the schedule and the log, and what the trainer holds.

Position = tuple[int, int, int]  # phase, epoch (or stretch of iterations) in it, steps of that


@dataclass
class ResumePoint:
    """One run inside a task.

    `facts` are plain numbers, `tensors` a tree; together they are all that a fresh process needs
    besides the learner's state.
    """

    position: Position
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return named tensors and JSON values, for a file."""
        named = flatten(self.tensors).items()
        flat = {f"resume/{k}": v.detach().cpu().contiguous().clone() for k, v in named}
        facts = {"position": list(self.position), "facts": self.facts}
        return flat, facts | {"structure": tree_structure(self.tensors)}

    @classmethod
    def unpacked(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> ResumePoint:
        """Make a resume point from the values of `packed`."""
        flat = {k.removeprefix("resume/"): v for k, v in tensors.items() if k.startswith("resume/")}
        phase, epoch, step = facts["position"]
        tree = rebuild_tree(facts["structure"], flat)
        return cls((phase, epoch, step), facts["facts"], tree)

    @property
    def moment(self) -> tuple[int, ...]:
        """Position and steps of log entries; runs with equal ones can resume together."""
        return *self.position, *(entry[0] for entry in self.facts["log"]["sums"])


def restore_phase(now: PhaseTraining, points: Sequence[ResumePoint]) -> None:
    """Restore a phase to the resume points of its runs."""
    device = now.learners[0].device

    def move(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(device, copy=True), tree)

    _, *start = points[0].position
    now.start = (start[0], start[1])
    facts = [one.facts for one in points]
    for name, array in now.schedule.arrays().items():
        array[:] = [one["schedule"][name] for one in facts]
    now.log.load_state_dict([one["log"] for one in facts], [one.tensors["curve"] for one in points])
    if now.best is not None and points[0].tensors["best"]:
        now.best.saved = [move(one.tensors["best"]["0"]) for one in points]
    states = [move(one.tensors["trainer"]) for one in points]
    now.trainer.load_state_dict(states, [one["steps"] for one in facts])
    for learner, one in zip(now.learners, facts, strict=True):
        learner.ledger.load_dict(one["ledger"])


class Checkpointer(Protocol):
    """Protocol of an object that saves runs inside a task; it is polled about every second."""

    @property
    def every(self) -> float:
        """Seconds between two saves."""
        ...

    def due(self) -> bool:
        """Whether it is time to save."""
        ...

    def save(
        self, places: Sequence[int], learners: Sequence[RunLearner], points: Sequence[ResumePoint]
    ) -> None:
        """Write the states of runs that train together."""
        ...

    @property
    def should_stop(self) -> bool:
        """Whether to end training after saving: because of a signal, or a time limit."""
        ...


CHECKS_PER_INTERVAL = 5  # minimum number of polls of a checkpointer within its interval


class SliceLength:
    """Choose the number of steps per slice so that a slice takes about `seconds`."""

    def __init__(self, seconds: float = 1.0, first: int = 1) -> None:
        self.seconds, self.steps = seconds, first

    def took(self, steps: int, seconds: float) -> None:
        """Adapt the number of steps to the time of a slice."""
        wanted = int(steps * self.seconds / max(seconds, 1e-6))
        self.steps = min(max(wanted, 1), 4 * self.steps)  # the first steps may compile kernels


class StepSlices:
    """Cut the steps of a phase into slices, after which a checkpoint may be due.

    Parameters
    ----------
    now, history, clock
        The phase, the results of earlier phases, and the seconds of the task.
    free
        Masks of trainable parameters of each run, without the restriction of the phase.
    checkpointer
        Decides when to save.
    keep_final_state
        Whether to save after the last step, too, because no stage will be recorded.
    """

    def __init__(
        self, now: PhaseTraining, history: History, clock: Stopwatch, free: Sequence[Tensor],
        checkpointer: Checkpointer | None, keep_final_state: bool = False,
    ) -> None:  # fmt: skip
        self.now, self.history, self.clock, self.free = now, history, clock, free
        self.checkpointer, self._keep_final_state = checkpointer, keep_final_state
        self.sliced = checkpointer is not None
        seconds = (
            1.0 if checkpointer is None else min(1.0, checkpointer.every / CHECKS_PER_INTERVAL)
        )
        self._slices, self._began = SliceLength(seconds), 0.0
        self._taken = 0  # steps of the present slice; epochs may be shorter than a slice

    def cut(self, start: int, stop: int) -> int:
        """Return the end of the slice that continues at `start`, at most `stop`."""
        if not self.sliced:
            return stop
        if not self._taken:
            self._began = time.perf_counter()
        return min(stop, start + max(self._slices.steps - self._taken, 1))

    def took(self, steps: int) -> None:
        """Count launched steps, and wait for the device at the end of a slice only.

        An epoch may be a single step, and the host should prepare the next one meanwhile.
        """
        self._taken += steps
        if self._taken < self._slices.steps:
            return
        if self.now.learners[0].device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._slices.took(self._taken, time.perf_counter() - self._began)
        self._taken = 0

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        if self.checkpointer is None:
            return False
        at_end = self._keep_final_state and self.now.log.done >= self.now.log.total
        return at_end or self.checkpointer.due()

    def stopped(self, epoch: int, start: int) -> list[ResumePoint] | None:
        """Where the runs stand if the slice from `start` came to an end inside."""
        if self.checkpointer is None:
            return None
        now = self.now
        done = start + int(np.max(now.trainer.steps)) - int(now.log.steps.max())
        now.log.count(now.live[:, start:done])
        return self.points(epoch, done)

    def points(self, epoch: int, step: int) -> list[ResumePoint]:
        """Where the runs stand."""
        self.now.trainer.write_back()
        position = (self.now.number, epoch, step)
        return [self._point(run, position) for run in range(len(self.free))]

    def _point(self, run: int, position: Position) -> ResumePoint:
        """All that is needed to go on at this position."""
        now = self.now
        log, curve = now.log.state_dict(run)
        earlier, earlier_curve = self.history.state_dict(run)
        schedule = {name: value[run].item() for name, value in now.schedule.arrays().items()}
        best = now.best.saved if now.best is not None else []
        facts = {
            "seconds": self.clock.seconds, "ledger": now.learners[run].ledger.to_dict(),
            "earlier": earlier, "log": log, "schedule": schedule,
            "steps": int(np.asarray(now.trainer.steps).reshape(-1)[run]),
        }  # fmt: skip
        tensors = {
            "free": self.free[run], "aside": now.learners[run].aside,
            "earlier": earlier_curve, "curve": curve,
            "trainer": now.trainer.state_dict(run), "best": {"0": best[run]} if best else {},
        }  # fmt: skip
        return ResumePoint(position, facts, tensors)


# -- copying a learner from the first rank to all others -------------------------------------------


def copy_from_first_rank(ranks: Ranks, learner: RunLearner) -> None:
    """Copy the learner of rank 0, with its resume point, to all ranks."""
    first = ranks.rank == 0
    tensors, facts = state_dict(learner) if first else ({}, {})
    point = learner.resume_point if first else None
    if point is not None:
        more, facts["resume"] = point.packed()
        tensors |= more
    forms = {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()}
    forms, facts = ranks.broadcast((forms, facts))
    for name, (shape, dtype) in forms.items():
        raw = torch.uint8 if dtype == torch.bool else dtype
        value = tensors[name].to(raw) if first else torch.empty(shape, dtype=raw)
        tensors[name] = ranks.broadcast_(value.to(ranks.device)).cpu().to(dtype)
    if first:
        return
    where = facts.pop("resume", None)
    load_state_dict(learner, tensors, facts)
    learner.resume_point = None if where is None else ResumePoint.unpacked(tensors, where)


def synchronise_ranks(learners: Sequence[RunLearner]) -> None:
    """Copy all learners from rank 0 after a task, in case devices rounded differently."""
    ranks = distributed.current_ranks()
    for learner in learners if ranks is not None else ():
        copy_from_first_rank(ranks, learner)  # type: ignore[arg-type]
