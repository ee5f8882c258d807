"""NTU RGB+D 60: raw .skeleton files, prepared npz arrays, npy arrays with a label pickle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.data.checked_files import read_npz
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.label_checks import check_labels
from engram.data.packed import is_one_hot
from engram.data.pickles import read_pickle
from engram.data.skeletons.skeleton_data import (
    SPLITS,
    Sequences,
    build_skeleton_data,
    trim_empty_frames,
)
from engram.errors import BadArgument, bad, check_choice, check_int

JOINTS, AXES, PERSONS, FRAMES = 25, 3, 2, 300
CIL_SEQUENCES = 6667  # first ten classes of the cross-subject training part
TRAIN_SUBJECTS = (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)
_TITLES = """
    drink water|eat meal|brush teeth|brush hair|drop|pick up|throw|sit down|stand up|clapping|
    reading|writing|tear up paper|put on jacket|take off jacket|put on a shoe|take off a shoe|
    put on glasses|take off glasses|put on a hat|take off a hat|cheer up|hand waving|
    kicking something|reach into pocket|hopping|jump up|phone call|play with phone|
    type on a keyboard|point to something|taking a selfie|check time|rub two hands|nod head|
    shake head|wipe face|salute|put palms together|cross hands in front|sneeze|staggering|falling|
    headache|chest pain|back pain|neck pain|nausea|fan self|punch|kicking|pushing|pat on back|
    point finger|hugging|giving object|touch pocket|shaking hands|walking towards|walking apart
"""
CLASSES = tuple(one.strip() for one in _TITLES.split("|"))
_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})")
_PADDLE = {"train": ("train_data.npy", "train_label.pkl"), "val": ("val_data.npy", "val_label.pkl")}


def is_ntu(path: Path) -> bool:
    """Whether a path holds NTU in one of the known forms."""
    if path.is_dir():
        paddle = all((path / one).is_file() for one in _PADDLE["train"])
        return paddle or any(path.glob("S*.skeleton"))
    return path.is_file() and path.suffix == ".npz" and path.stem.upper().startswith("NTU60_")


def load_ntu(
    path: Path,
    *,
    classes: int | Sequence[int | str] | None = 10,
    persons: str = "concat",
    frames: int = FRAMES,
    repair: str = "interpolate",
    split: str = "cil",
    augment: str = "none",
    seed: int = 0,
    name: str = "ntu60",
) -> Data:
    """NTU RGB+D 60 as [N, 6, 300, 25], coordinates as they are in the files.

    Parameters
    ----------
    path
        Folder of .skeleton files, folder with train_data.npy and train_label.pkl, or an npz with
        x_train, y_train (x_test, y_test).
    classes
        The first so many of 60, or a list of ids (from 0) and names; None for all. Each must have
        training sequences.
    persons
        ``concat``: the axes of both bodies as channels (zeros where there is one body);
        ``apart``: an axis of their own, [N, 3, T, 25, 2], over which ST-GCN takes the mean;
        ``first``: only the first body, [N, 3, T, 25].
    frames
        Other than 300: the filled frames are resampled to that many.
    repair
        What happens to damaged sequences, see
        `engram.data.skeletons.skeleton_data.repair_sequences`.
    split
        ``cil``: the cross-subject training part alone, 8:1:1 within each class; ``tuning``: the
        same, tested on its validation rows; ``official``: cross-subject training and test parts.
    augment
        Which sequences are turned at random, see
        `engram.data.skeletons.skeleton_data.build_skeleton_data`.
    """
    check_choice("persons", persons, ("concat", "apart", "first"))
    chosen = _choose_classes(classes)
    check_int("frames", frames, low=1)
    wanted = check_choice("split", split, SPLITS) == "official"
    parts = list(_parts(path, chosen, wanted))
    first = parts[0]
    empty = [CLASSES[c] for i, c in enumerate(chosen) if i not in first.label]
    if empty:
        expected = f"classes with training sequences in {path} (a list selects classes)"
        raise bad("classes", expected, f"none of {empty}")
    axes = AXES if persons == "first" else AXES * PERSONS
    sequences = replace(
        first,
        joints=[one[: trim_empty_frames(one), :, :axes] for part in parts for one in part.joints],
        label=np.concatenate([part.label for part in parts]),
        names=[name for part in parts for name in part.names],
        classes=tuple(CLASSES[c] for c in chosen),
        attributes={key: np.concatenate([part.attributes[key] for part in parts])
                    for key in first.attributes},
        official_test=np.concatenate([np.full(len(p), i > 0) for i, p in enumerate(parts)]),
    )  # fmt: skip
    notes: tuple[str, ...] = ()
    if not wanted and chosen == list(range(10)) and len(sequences) != CIL_SEQUENCES:
        notes = (f"{len(sequences)} sequences, the published count is {CIL_SEQUENCES}",)
    data = build_skeleton_data(
        sequences, name=name, frames=frames, padded=frames == FRAMES, longest=FRAMES,
        normalised=False, repair=repair, split=split, augment=augment, seed=seed, notes=notes,
    )  # fmt: skip
    return _separate_bodies(data) if persons == "apart" else data


def _choose_classes(classes: Any) -> list[int]:
    """Ids of the classes to read, in the order of their new labels."""
    if classes is None:
        return list(range(len(CLASSES)))
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        count = check_int("classes", classes, low=1)
        if count > len(CLASSES):
            raise bad("classes", f"at most {len(CLASSES)}", classes)
        return list(range(count))
    ids = []
    for one in classes:
        if isinstance(one, str):
            one = CLASSES.index(check_choice("classes", one, CLASSES))
        if check_int("classes", one) >= len(CLASSES):
            raise bad("classes", f"ids from 0 to {len(CLASSES) - 1}", one)
        ids.append(one)
    if not ids or len(set(ids)) < len(ids):
        raise bad("classes", "at least one class, each once", list(classes))
    return ids


def _separate_bodies(data: Data) -> Data:
    """[N, 6, T, V] to [N, 3, T, V, 2]."""
    x = torch.as_tensor(data.x).unflatten(1, (PERSONS, AXES)).permute(0, 2, 3, 4, 1)
    return replace(data, x=x.contiguous())


def _parts(path: Path, chosen: list[int], both: bool) -> Iterator[Sequences]:
    """The training part, then the test part if asked for; joints [T, 25, 6]."""
    if path.is_file():
        yield from _read_prepared(path, chosen, both)
    elif (path / _PADDLE["train"][0]).is_file():
        for part in ("train", "val") if both else ("train",):
            yield _read_paddle(path, part, chosen)
    else:
        for train in (True, False) if both else (True,):
            yield _read_raw(path, chosen, train)


def _sequences(rows: Array, label: Array, names: list[str], chosen: list[int]) -> Sequences:
    """From arrays [N, 3, T, V, M]; only rows of the wanted classes are read."""
    place = np.full(len(CLASSES), -1)
    place[chosen] = np.arange(len(chosen))
    keep = np.flatnonzero(place[label] >= 0)
    joints = [np.array(rows[i]).transpose(1, 2, 3, 0).reshape(rows.shape[2], JOINTS, -1)
              for i in keep]  # fmt: skip
    kept = [names[i] for i in keep]
    return Sequences(joints, place[label[keep]], kept, CLASSES, _facts(kept))


def _facts(names: list[str]) -> dict[str, Array]:
    found = [_NAME.search(name) for name in names]
    if not names or not all(found):
        return {}
    facts = np.array([[int(one) for one in match.groups()] for match in found if match])
    keys = ("setup", "view", "subject", "episode", "action")
    return dict(zip(keys, facts.T, strict=True))


def _read_paddle(folder: Path, part: str, chosen: list[int]) -> Sequences:
    data, labels = (folder / one for one in _PADDLE[part])
    for file in (data, labels):
        if not file.is_file():
            raise bad("path", f"{file.name} in {folder}", "no such file")
    rows = np.load(data, mmap_mode="r", allow_pickle=False)
    if rows.ndim != 5 or rows.shape[1:] != (AXES, FRAMES, JOINTS, PERSONS):
        raise bad(str(data), f"[N, {AXES}, {FRAMES}, {JOINTS}, {PERSONS}]", rows.shape)
    content = read_pickle(labels.read_bytes(), str(labels))
    if not isinstance(content, (tuple, list)) or len(content) < 2:
        raise bad(str(labels), f"(names, labels) of {len(rows)} rows", type(content).__name__)
    titles = content[0]
    if not isinstance(titles, (list, tuple, np.ndarray)) or len(titles) != len(rows):
        got = len(titles) if hasattr(titles, "__len__") else type(titles).__name__
        raise bad(f"{labels}: names", f"a list of {len(rows)} names, one per row", got)
    names = [one.decode() if isinstance(one, bytes) else str(one) for one in titles]
    label = check_labels(f"{labels}: labels", content[1], len(rows), len(CLASSES))
    return _sequences(rows, label, names, chosen)


def _read_prepared(file: Path, chosen: list[int], both: bool) -> Iterator[Sequences]:
    arrays = read_npz(file)
    for part in ("train", "test") if both else ("train",):
        x, y = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
        if x is None or y is None:
            raise bad(str(file), f"x_{part} and y_{part}", sorted(arrays))
        if x.ndim != 3 or x.shape[1:] != (FRAMES, PERSONS * JOINTS * AXES):
            wanted = f"[N, {FRAMES}, {PERSONS * JOINTS * AXES}]"
            raise bad(f"{file}: x_{part}", wanted, x.shape)
        rows = x.reshape(-1, FRAMES, PERSONS, JOINTS, AXES).transpose(0, 4, 1, 3, 2)
        ids = y.argmax(1) if is_one_hot(y) else y
        label = check_labels(f"{file}: y_{part}", ids, len(x), len(CLASSES))
        yield _sequences(rows, label, [f"{part} row {i}" for i in range(len(x))], chosen)


def _read_raw(folder: Path, chosen: list[int], train: bool) -> Sequences:
    files, labels = [], []
    for file in sorted(folder.glob("*.skeleton")):
        match = _NAME.fullmatch(file.stem)
        if match is None:
            raise bad(str(file), "a name as S001C001P001R001A001.skeleton", file.name)
        subject, action = int(match[3]), int(match[5]) - 1
        if action < 0:
            raise bad(str(file), "an action from A001", file.name)
        if action in chosen and (subject in TRAIN_SUBJECTS) == train:
            files.append(file)
            labels.append(chosen.index(action))
    if not files:
        part = "training" if train else "test"
        raise bad("path", f".skeleton files of the cross-subject {part} part", str(folder))
    names = [file.stem for file in files]
    joints = [read_skeleton(file) for file in files]
    return Sequences(joints, np.array(labels), names, CLASSES, _facts(names))


def read_skeleton(file: Path) -> Array:
    """[T, 25, 6] from one .skeleton file: the two bodies that move most, zeros where they are not.

    T is the number of frames that the file announces.
    """
    bodies: dict[str, Array] = {}
    content = file.read_text().split()
    words = iter(content)
    try:
        length = _count(file, "frames", next(words))
        if length > len(content):  # before room is made for them
            raise StopIteration
        for frame in range(length):
            for _ in range(_count(file, f"bodies in frame {frame}", next(words))):
                body = next(words)
                for _ in range(9):  # hands, confidences, lean, tracking state
                    next(words)
                count = int(next(words))
                if count != JOINTS:
                    raise bad(str(file), f"{JOINTS} joints in frame {frame}", count)
                values = np.array([[float(next(words)) for _ in range(12)] for _ in range(count)])
                track = bodies.setdefault(body, np.zeros((length, JOINTS, AXES)))
                track[frame] = values[:, :AXES]
    except StopIteration:
        raise bad(str(file), "a complete .skeleton file", "an early end") from None
    except BadArgument:
        raise
    except ValueError as problem:
        raise bad(str(file), "the numbers of a .skeleton file", str(problem)) from None
    ranked = sorted(bodies.values(), key=_measure_motion, reverse=True)[:PERSONS]
    out = np.zeros((length, JOINTS, PERSONS * AXES), np.float32)
    for person, track in enumerate(ranked):
        out[..., person * AXES :][..., :AXES] = track
    return out


def _count(file: Path, what: str, word: str) -> int:
    number = int(word)
    if number < 0:
        raise bad(str(file), f"a number of {what} of at least 0", number)
    return number


def _measure_motion(track: Array) -> float:
    """Spread of the joints over the frames in which the body is there."""
    there = track[(track != 0).any((1, 2))]
    return float(there.std(0).sum()) if len(there) else 0.0
