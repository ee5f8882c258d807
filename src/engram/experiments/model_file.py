"""Model files: the learnt state of a run in one safetensors file, with facts in its header."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram.engine.portable_state import (
    CALIBRATION,
    FORMAT,
    PortableState,
    check_portable_facts,
    export_state,
)
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import RecordError, wrap_read_errors
from engram.experiments.build_methods import plain_method
from engram.experiments.build_probes import plain_probe
from engram.experiments.plain_values import code_name, to_plain
from engram.experiments.sealed_rows import KEY_VARIABLE, SEALED, seal, unseal
from engram.io import TensorFile, make_folder, save_tensors
from engram.learner.learner import RunLearner
from engram.methods.method import Method
from engram.probes import Probe

MODEL_FILE_NAME = "model.engram"
LOCKED = f"they are encrypted (key=..., or the environment variable {KEY_VARIABLE}, opens them)"
MOST_BYTES = 64 << 20  # limit of rows, or of optimiser moments, in a run directory's file


def describe_origin(
    *, method: Method, model: Any, training: Training, detectors: Iterable[Probe], labels: str = ""
) -> dict[str, Any]:
    """Describe how a model was trained in plain values, with user code by name."""
    name = model.get("name") if isinstance(model, dict) else model
    named = isinstance(name, str)
    return {
        "method": plain_method(method),
        "model": to_plain(model) if named else {"own": code_name(name)},
        "training": to_plain(training), "labels": labels,
        "detectors": [plain_probe(one) for one in detectors],
    }  # fmt: skip


def describe_run_origin(
    run: Run, probes: Iterable[Probe], key: tuple[str, int, str]
) -> dict[str, Any]:
    """Describe how the model of a run, recorded under `key`, was trained."""
    from engram.novelty import Detector

    able = [one for one in probes if isinstance(one, Detector) and not one.outside]
    made = describe_origin(
        method=run.method, model=run.model, training=run.training, detectors=able
    )
    return {**made, "run": list(key)}


@dataclass(frozen=True, eq=False, kw_only=True)
class UnsavedModel:
    """The model of a run without a file: its learnt state, and the run itself."""

    found: PortableState
    run: Run
    made: dict[str, Any]

    def save(self, path: Path) -> Path:
        """Write it as a model file."""
        return save_model(path, self.found, self.made)

    def open(self, learner: Any, **options: Any) -> Any:
        """Return a learner of the given class, with the run's method and model as defaults."""
        given = {k: v for k, v in options.items() if v is not None}
        own = {"method": self.run.method, "model": self.run.model}
        return learner.from_portable(self.found, self.made, **{**own, **given})


def save_model(
    path: str | os.PathLike[str], found: PortableState, made: dict[str, Any],
    key: str | None = None,
) -> Path:  # fmt: skip
    """Write the learnt state, and how it was trained, atomically; with a key, rows encrypted."""
    facts = {**found.facts, "made_by": made}
    tensors = {name: tensor.contiguous() for name, tensor in found.tensors.items()}
    if key is not None:
        tensors, facts[SEALED] = seal(tensors, key)
    return save_tensors(path, tensors, {"facts": json.dumps(facts)})


def save_run_model(
    folder: Path, learner: RunLearner, run: Run, probes: Iterable[Probe],
    key: tuple[str, int, str],
) -> Path:  # fmt: skip
    """Write the model of a finished run into the folder of its checkpoints."""
    make_folder(folder, inside=folder.parents[1])
    return save_model(
        folder / MODEL_FILE_NAME,
        export_state(learner, run, most_bytes=MOST_BYTES),
        describe_run_origin(run, probes, key),
    )


def load_model(
    path: str | os.PathLike[str], key: str | None = None
) -> tuple[PortableState, dict[str, Any]]:
    """Read what `save_model` wrote; raises for a file that is damaged or no model.

    Encrypted rows are left out without a key (`LOCKED`).
    """
    file = TensorFile(path, what="model file", framework="pt")
    try:
        facts = json.loads(file.facts["facts"])
        form = facts.get("format")
    except (KeyError, ValueError, AttributeError, RecursionError) as problem:
        raise RecordError(f"{path}: is not a model that a learner saved") from problem
    if form != FORMAT:
        raise RecordError(f"{path}: is a model of another version ({form}, this is {FORMAT})")
    made = facts.pop("made_by", {})
    tensors = {name: file.get(name) for name in file.keys()}  # noqa: SIM118
    if SEALED in tensors:
        with wrap_read_errors(path, "model file"):
            about = facts.pop(SEALED)
            if key is None:
                tensors, facts = _leave_out_sealed(tensors, facts)
            else:
                tensors = unseal(tensors, about, key, path)
    found = PortableState(tensors, facts)
    with wrap_read_errors(path, "model file"):
        check_portable_facts(found)
        made.keys()
    return found, made


def _leave_out_sealed(
    tensors: dict[str, Any], facts: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a model can be used for without the rows that a key would open."""
    kept = {k: v for k, v in tensors.items() if k != SEALED and not k.startswith(CALIBRATION)}
    parts = {**facts["structure"]["dict"], "values": {"dict": {}}}
    return kept, {**facts, "rows_left_out": LOCKED, "structure": {"dict": parts}}


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Return whether rows in a model file are encrypted."""
    return SEALED in TensorFile(path, what="model file", framework="pt").keys()  # noqa: SIM118
