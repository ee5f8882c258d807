"""Northwestern-UCLA Multiview Action 3D: 1484 sequences of 20 joints, ten actions, three views."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.skeletons.skeleton_data import (
    Sequences,
    build_skeleton_data,
    read_packed_sequences,
)
from engram.errors import bad, check_int

JOINTS, AXES, FRAMES, SEQUENCES = 20, 3, 52, 1484
ACTIONS = {
    1: "pick up with one hand", 2: "pick up with two hands", 3: "drop trash", 4: "walk around",
    5: "sit down", 6: "stand up", 8: "donning", 9: "doffing", 11: "throw", 12: "carry",
}  # fmt: skip
CLASSES = tuple(ACTIONS.values())
_LABEL = {action: label for label, action in enumerate(ACTIONS)}
_NAME = re.compile(r"a(\d\d)_s(\d\d)_e(\d\d)_v(\d\d)")
_TEST_VIEW = 3


def is_nw_ucla(folder: Path) -> bool:
    """Whether a folder holds sequences in the JSON form."""
    return folder.is_dir() and any(_NAME.fullmatch(one.stem) for one in folder.glob("a*_v*.json"))


def read_nw_ucla(path: Path) -> Sequences:
    """Unprepared sequences from a folder of aXX_sYY_eZZ_vWW.json or from a packed file."""
    found = read_packed_sequences(path, classes=CLASSES) if path.is_file() else _read_json(path)
    for name, one in zip(found.names, found.joints, strict=True):
        if len(one) and one.shape[1:] != (JOINTS, AXES):
            raise bad(name, f"{JOINTS} joints of {AXES} axes", one.shape[1:])
    view = found.attributes.get("view")
    return replace(found, official_test=None if view is None else view == _TEST_VIEW)


def _read_json(folder: Path) -> Sequences:
    files = sorted(one for one in folder.glob("*.json") if _NAME.fullmatch(one.stem))
    if not files:
        raise bad("path", "a folder of aXX_sYY_eZZ_vWW.json or a packed file", str(folder))
    facts = np.array([[int(n) for n in _NAME.fullmatch(f.stem).groups()] for f in files])  # type: ignore[union-attr]
    strange = sorted(set(facts[:, 0].tolist()) - set(ACTIONS))
    if strange:
        raise bad(str(folder), f"actions {list(ACTIONS)}", strange)
    return Sequences(
        joints=[_skeletons(file) for file in files],
        label=np.array([_LABEL[action] for action in facts[:, 0].tolist()]),
        names=[file.stem for file in files],
        classes=CLASSES,
        attributes=dict(zip(("action", "subject", "episode", "view"), facts.T, strict=True)),
    )


def _skeletons(file: Path) -> Array:
    try:
        content = json.loads(file.read_text())
        value = np.array(content["skeletons"], np.float32)  # None reads as nan
    except (ValueError, KeyError, TypeError) as problem:
        shape = f"JSON with 'skeletons': frames x {JOINTS} x {AXES}"
        raise bad(str(file), shape, f"{type(problem).__name__}: {problem}") from None
    return value if value.size else np.zeros((0, JOINTS, AXES), np.float32)


def load_nw_ucla(
    path: Path,
    *,
    frames: int = FRAMES,
    repair: str = "interpolate",
    split: str = "cil",
    held: str = "drawn",
    augment: str = "none",
    seed: int = 0,
    normalised: bool = True,
    name: str = "nw_ucla",
) -> Data:
    """NW-UCLA as [N, 3, 52, 20]: all sequences together, split 8:1:1 within each class.

    ``split="tuning"`` tests on the validation rows and leaves the test rows out;
    ``split="official"`` trains on views 1 and 2 and tests on view 3. With ``held="stored"`` the
    rows of a class are not drawn but cut with view 3 behind the others, training first, test last:
    all test rows are of view 3. 95 sequences of view 3 equal one of view 2 to the bit;
    ``held="together"`` draws as by default, but keeps copies in one part. Two sequences of the
    usual distribution have a single frame; by default they are kept by repeating it. `augment`
    turns sequences at random, those of our ``train`` part or views 1 and 2 (``source``), see
    `engram.data.skeletons.skeleton_data.build_skeleton_data`.
    """
    sequences = read_nw_ucla(path)
    count = len(sequences)
    notes = (f"{count} of {SEQUENCES} sequences",) if count != SEQUENCES else ()
    return build_skeleton_data(
        sequences, name=name, frames=check_int("frames", frames, low=1), normalised=normalised,
        repair=repair, split=split, held=held, augment=augment, seed=seed, notes=notes,
    )  # fmt: skip
