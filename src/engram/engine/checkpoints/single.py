"""A learner as files: tensors in safetensors, numbers and structure in its header, no pickle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.disk import make_folder
from engram.errors import BadArgument, RecordError, read_as
from engram.learner.learner import Learner
from engram.learner.tree import flatten
from engram.memory import Exemplars
from engram.streams.ledger import Ledger
from engram.tensor_file import TensorFile, save_tensors

FORMAT = "engram-learner-2"
KEPT = 2  # checkpoints after a task: should the newest be damaged, there is one before it
DAMAGED = ".damaged"
Note = Callable[[str], None]
EXEMPLARS = ("rows", "stages", "columns", "ranks")


def structure(tree: Any) -> Any:
    """The shape of a tree as JSON: empty parts survive, tuples are told from dicts."""
    if isinstance(tree, dict):
        return {"dict": {str(k): structure(v) for k, v in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [structure(v) for v in tree]}
    return None


def rebuild(shape: Any, flat: dict[str, Tensor], prefix: str = "") -> Any:
    """The tree of a `structure` with these leaves.

    Examples
    --------
    >>> import torch
    >>> tree = {"0": {}, "1": {"a": (torch.zeros(1),)}}
    >>> rebuild(structure(tree), flatten(tree))
    {'0': {}, '1': {'a': (tensor([0.]),)}}
    """
    if shape is None:
        return flat[prefix]
    join = (prefix + "/") if prefix else ""
    if "dict" in shape:
        return {k: rebuild(v, flat, f"{join}{k}") for k, v in shape["dict"].items()}
    return tuple(rebuild(v, flat, f"{join}#{i}") for i, v in enumerate(shape["tuple"]))


def tree_of(learner: Learner, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """All tensors of a learner; those of a part that is left out are missing."""
    tree = {
        "vector": learner.vector, "buffers": learner.buffers, "free": learner.free,
        "state": learner.state, "opt": learner.opt, "opened": learner.opened,
        "exemplars": dict(zip(EXEMPLARS, learner.exemplars[:4], strict=True)),
        "values": learner.values, "probes": learner.probes,
    }  # fmt: skip
    return {name: part for name, part in tree.items() if name not in leave_out}


def state_dict(
    learner: Learner, leave_out: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the facts beside them.

    `leave_out` names what the next task makes anew: ``free``, and ``opt`` where optimisers are
    reset.
    """
    tree = tree_of(learner, leave_out)
    tensors = {k: v.detach().to("cpu", copy=True) for k, v in flatten(tree).items()}
    tensors = {k: v.contiguous() for k, v in tensors.items()}  # a copy already, and only one
    return tensors, facts_beside(learner, tree)


def facts_beside(learner: Learner, tree: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a learner beside the tensors in `tree`."""
    return {
        "format": FORMAT, "structure": structure(tree), "stage": learner.stage,
        "seed": learner.seed, "seen": learner.exemplars.seen, "diverged": learner.diverged,
        "stream": learner.stream.fingerprint(), "ledger": learner.ledger.to_dict(),
        "units": learner.units,
    }  # fmt: skip


def load_state_dict(learner: Learner, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put a saved learner's tensors and facts into a fresh one."""
    tree = rebuild(facts["structure"], tensors)
    device = learner.device

    def move(part: Any) -> Any:
        flat = {k: v.to(device) for k, v in flatten(part).items()}
        return rebuild(structure(part), flat)

    for name in ("vector", "opened"):
        found, own = tuple(tree[name].shape), tuple(getattr(learner, name).shape)
        if found != own:
            raise ValueError(f"{name} of shape {found} in place of {own}")
    parts = tree["exemplars"]
    # all is made before anything is put in: a learner is never half of one and half of another
    made: dict[str, Any] = {
        "vector": tree["vector"].to(device), "opened": tree["opened"],
        "free": tree["free"].to(device) if "free" in tree else learner.free,
        **{k: move(tree.get(k, {})) for k in ("buffers", "state", "opt", "values", "probes")},
        "exemplars": Exemplars._make([*(parts[name] for name in EXEMPLARS), int(facts["seen"])]),
        "stage": int(facts["stage"]), "diverged": int(facts["diverged"]),
        "units": {str(k): float(v) for k, v in facts["units"].items()},
        "ledger": Ledger.from_dict(facts["ledger"]),
    }  # fmt: skip
    for name, value in made.items():
        setattr(learner, name, value)


def save(learner: Learner, folder: Path, leave_out: Collection[str] = ()) -> Path:
    """Write the learner after its present stage; `prune` removes older ones later.

    The folder bears the name of the run; its parent must be in a run directory.
    """
    tensors, facts = state_dict(learner, leave_out)
    path = folder / f"stage-{learner.stage:04d}.safetensors"
    return write(path, tensors, {**facts, "run": folder.name})


def write(path: Path, tensors: dict[str, Tensor], facts: Any) -> Path:
    """Write tensors and facts to `path`, which appears only once it is complete and on disk.

    Two folders are made for it where they are missing, ``checkpoint/RUN``; a run directory that has
    vanished stays so.
    """
    make_folder(path.parent, inside=path.parents[2])
    return save_tensors(path, tensors, {"facts": json.dumps(facts)})


def prune(folder: Path, *, finished: bool = False) -> None:
    """Keep the newest checkpoints only; none of a run that is `finished`."""
    files = sorted(folder.glob("stage-*.safetensors"))
    for old in files if finished else files[:-KEPT]:
        old.unlink(missing_ok=True)
    if finished:
        for broken in folder.glob(f"*{DAMAGED}"):
            broken.unlink(missing_ok=True)
    if finished and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def warn(text: str) -> None:
    """A note where nobody else takes it."""
    warnings.warn(text, stacklevel=3)


def load(learner: Learner, folder: Path, finished: Collection[int], note: Note = warn) -> int:
    """Load the newest checkpoint whose stages are all recorded; returns the next stage to train.

    A checkpoint is written before the records of its stage, so the newest one may be too new. One
    that is damaged is named in a `note`, and the one before it is taken.
    """
    for path in sorted(folder.glob("stage-*.safetensors"), reverse=True):
        stage = int(path.stem.split("-")[1])
        if not set(range(stage + 1)) <= set(finished):
            continue
        try:
            file = TensorFile(path, what="checkpoint", framework="pt")
            facts = facts_of(file)
            check_place(path, facts, run=folder.name, stage=stage)
            take(learner, path, {name: file.get(name) for name in file.keys()}, facts)  # noqa: SIM118
        except RecordError as problem:
            put_aside(path)
            note(f"{problem}; using the previous checkpoint")
            continue
        return learner.stage + 1
    return 0


def facts_of(file: TensorFile) -> Any:
    """What was written beside the tensors of a checkpoint."""
    with read_as(file.path, "checkpoint"):
        found = json.loads(file.facts["facts"])
        found.keys()
        return found


def check_place(path: Path, facts: dict[str, Any], *, run: str, stage: int) -> None:
    """Refuse a file that was put in the place of another one."""
    if facts.get("run", run) != run or facts.get("stage") != stage:
        raise RecordError(f"{path}: belongs to another run or stage")


def put_aside(path: Path) -> None:
    """Give a damaged checkpoint another name, so that it is named once and stays as evidence."""
    with suppress(OSError):
        path.rename(path.with_name(path.name + DAMAGED))


def take(learner: Learner, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put what was read from `path` into a fresh learner, after a look at whose it is."""
    if facts.get("format") != FORMAT:
        raise RecordError(f"{path}: not a checkpoint of this version ({facts.get('format')})")
    if (facts.get("stream"), facts.get("seed")) != (learner.stream.fingerprint(), learner.seed):
        raise RecordError(f"{path}: belongs to another stream or seed")
    try:
        with read_as(path, "checkpoint"):
            load_state_dict(learner, tensors, facts)
    except BadArgument as problem:  # of a ledger with kinds that there are not
        raise RecordError(f"{path}: is not a valid checkpoint ({problem})") from problem
