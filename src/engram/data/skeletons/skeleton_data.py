"""Skeleton sequences as data: reading, repair, normalisation, resampling, splits, and the bones
of the sensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.data.checked_files import read_npz
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.label_checks import check_labels
from engram.data.packed import NAME_KEYS, RESERVED
from engram.data.skeletons.augmentation import draw_rotations, draw_scales
from engram.errors import bad, check_choice, check_int, plural

SPLITS = ("cil", "tuning", "official")
HELD = ("drawn", "together", "stored")
AUGMENTED = ("none", "train", "source")


def build_skeleton_data(
    sequences: Sequences,
    *,
    name: str,
    frames: int | None,
    padded: bool = False,
    longest: int | None = None,
    normalised: bool = True,
    repair: str = "interpolate",
    split: str = "cil",
    held: str = "drawn",
    augment: str = "none",
    seed: int = 0,
    notes: tuple[str, ...] = (),
) -> Data:
    """Data [N, C, T, V] of float32 from raw sequences.

    Parameters
    ----------
    frames
        Frames to resample to; None if all sequences have one length already.
    padded
        Bring sequences to `frames` by zeros behind the end instead.
    longest
        Sequences of more frames are damaged: they are cut.
    normalised
        Apply `normalise` to each sequence.
    repair
        What happens to damaged sequences, see `repair_sequences`.
    split
        ``cil``: 8:1:1 within each class; ``tuning``: the same, with the validation rows to test on
        and the test rows left out; ``official``: the source's.
    held
        Which rows of a class are held out by the first two: ``drawn`` ones
        (`split_within_classes`), the same with equal sequences ``together`` in one part,
        or the last ``stored``, with the source's test part behind the rest (`split_as_stored`).
    augment
        Which sequences are turned at random once and for all, and given random frames
        (`turn_sequence`): ``none``; those of our ``train`` part; those of the training part of the
        ``source``, wherever the split puts them, as when a loader that knows only the source's
        parts fills a table. Anew in every step: ``augment=("rotate", "frames")`` of the training,
        on coordinates that are not normalised, with ``stretch`` in the network.
    """
    check_choice("split", split, SPLITS)
    check_choice("held", held, HELD)
    check_choice("augment", augment, AUGMENTED)
    if held != "drawn" and split == "official":
        raise bad("held", "'drawn', the official split holds out no share of a class", held)
    sequences, told = repair_sequences(sequences, repair, longest)
    fit = pad if padded else resample

    def prepare(one: Array, fit: Callable[[Array, int], Array]) -> Array:
        whole = fit(normalise(one) if normalised else one, frames or len(one))
        return whole.transpose(2, 0, 1).astype(np.float32)

    x = np.stack([prepare(one, fit) for one in sequences.joints])  # [N, C, T, V]
    label = torch.from_numpy(np.asarray(sequences.label, np.int64))
    facts = {key: value.astype(np.int64) for key, value in sequences.attributes.items()}
    rows: dict[str, Any]
    if split in ("cil", "tuning"):
        rows = (
            split_as_stored(label, _official_test(sequences, "held", held), seed)
            if held == "stored"
            else split_within_classes(label, seed, _find_copies(x) if held == "together" else None)
        )
        if split == "tuning":
            rows["test"] = rows.pop("valid")
    elif sequences.official_test is None:
        raise bad("split", "'cil', the source has no test part", split)
    else:
        test = torch.from_numpy(sequences.official_test)
        rows = {"train": (~test).nonzero()[:, 0], "test": test.nonzero()[:, 0]}
    if augment != "none":
        source = augment == "source"
        chosen = (
            (~_official_test(sequences, "augment", augment)).nonzero()[:, 0]
            if source
            else torch.as_tensor(rows["train"])
        )
        key = torch.as_tensor(keys.fold(check_int("seed", seed), "skeleton augmentation"))
        lengths = torch.tensor([len(sequences.joints[row]) for row in chosen])
        drawn = draw_turns(torch.as_tensor(keys.fold(key, chosen)), lengths, frames)
        for row, turn, scale, places in zip(chosen.tolist(), *drawn, strict=True):
            one = turn_sequence(sequences.joints[row], turn, scale)
            x[row] = prepare(one, partial(draw_frames, places=places, padded=padded))
        part = "the source's training part" if source else "the training rows"
        told += (f"{plural(len(chosen), 'sequence')} turned at random: {part}",)
    return Data(
        x=torch.from_numpy(x), y=label[:, None], classes=sequences.classes, name=name,
        attributes={key: torch.from_numpy(value) for key, value in facts.items()},
        notes=notes + told, **rows,
    )  # fmt: skip


def _official_test(sequences: Sequences, option: str, got: str) -> Tensor:
    if sequences.official_test is None:
        source = "the source does not tell its test part (NW-UCLA: no view)"
        other = "'drawn'" if option == "held" else "'none' or 'train'"
        raise bad(option, f"{other}, {source}", got)
    return torch.from_numpy(sequences.official_test)


# ------------------------------------------------------------------------------------------------
# Raw sequences, and the packed file that holds them


@dataclass(frozen=True)
class Sequences:
    """Raw sequences [frames, V, C] with their labels and where they came from."""

    joints: Sequence[Array]
    label: Array
    names: Sequence[str]
    classes: tuple[str, ...]
    attributes: Mapping[str, Array] = field(default_factory=dict)
    official_test: Array | None = None  # [N] bool, where the source has a test part

    def __len__(self) -> int:
        return len(self.joints)

    def take(self, rows: Sequence[int]) -> Sequences:
        """Some of the sequences, in that order."""
        index = np.asarray(rows, np.int64)
        return replace(
            self,
            joints=[self.joints[i] for i in index],
            names=[self.names[i] for i in index],
            label=self.label[index],
            attributes={key: value[index] for key, value in self.attributes.items()},
            official_test=None if self.official_test is None else self.official_test[index],
        )


def read_packed_sequences(file: Path, *, classes: tuple[str, ...] = ()) -> Sequences:
    """Sequences from a packed file with the keys joints, offsets, label."""
    arrays = read_npz(file)
    missing = sorted({"joints", "offsets", "label"} - arrays.keys())
    if missing:
        raise bad(str(file), "the keys joints, offsets and label", f"no {', '.join(missing)}")
    joints, offsets, label = (arrays[key] for key in ("joints", "offsets", "label"))
    fits = offsets[0] == 0 and offsets[-1] == len(joints) and len(offsets) == len(label) + 1
    if not fits or not bool((np.diff(offsets.astype(np.int64)) >= 0).all()):
        wanted = f"{len(label) + 1} rising numbers from 0 to {len(joints)}"
        raise bad(f"{file}: offsets", wanted, (len(offsets), offsets[-1]))
    titles = next((tuple(map(str, arrays[key])) for key in NAME_KEYS if key in arrays), ())
    known = len(titles or classes) or None
    label = check_labels(f"{file}: label", label, len(offsets) - 1, known)
    count = int(label.max(initial=0)) + 1
    names = arrays.get("name", np.array([]))
    return Sequences(
        joints=[joints[a:b] for a, b in pairwise(offsets)],
        label=label,
        names=list(map(str, names)) if len(names.shape) and len(names) else
        [f"sequence {i}" for i in range(len(label))],
        classes=titles or classes or tuple(map(str, range(count))),
        attributes={key: value for key, value in arrays.items() if key not in RESERVED
                    and value.shape == label.shape and value.dtype.kind in "iu"},
    )  # fmt: skip


def pack_sequences(sequences: Sequences) -> dict[str, Any]:
    """The arrays of a packed file that holds these sequences unprepared."""
    lengths = [len(one) for one in sequences.joints]
    return {
        "joints": np.concatenate(list(sequences.joints)).astype(np.float32),
        "offsets": np.cumsum([0, *lengths]).astype(np.int64),
        "label": sequences.label.astype(np.int64),
        "name": np.array(sequences.names),
        "names": np.array(sequences.classes),
        **sequences.attributes,
    }


# ------------------------------------------------------------------------------------------------
# One sequence [frames, V, C]: scaled, and given a number of frames


def normalise(sequence: Array) -> Array:
    """Subtract joint 2 of the first frame, then stretch each axis of the sequence to [-1, 1].

    The stretching makes the subtraction invisible; it is kept so that either can be left out. An
    axis without extent becomes 0.

    Examples
    --------
    >>> normalise(np.array([[[0.0], [1.0]], [[2.0], [4.0]]]))[..., 0].tolist()
    [[-1.0, -0.5], [0.0, 1.0]]
    """
    centred = sequence.astype(np.float64) - sequence[0, 1].astype(np.float64)  # [T, V, C]
    low, high = centred.min((0, 1)), centred.max((0, 1))
    extent = np.where(high > low, high - low, 1.0)
    return np.where(high > low, (centred - low) / extent * 2.0 - 1.0, 0.0)


def resample(sequence: Array, frames: int) -> Array:
    """Pick `frames` frames at even distance, rounding down; shorter sequences repeat frames.

    Examples
    --------
    >>> resample(np.arange(4)[:, None, None], 3).ravel().tolist()
    [0, 1, 3]
    """
    return sequence[np.linspace(0, len(sequence) - 1, frames).astype(np.int64)]


def pad(sequence: Array, frames: int) -> Array:
    """`frames` frames, zeros behind the end.

    Examples
    --------
    >>> pad(np.ones((2, 1, 1)), 4).ravel().tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return np.concatenate([sequence, np.zeros_like(sequence, shape=(
        frames - len(sequence), *sequence.shape[1:]))])  # fmt: skip


def draw_turns(key: Tensor, lengths: Tensor, frames: int | None) -> tuple[Array, Array, Array]:
    """Draw turns [N, 3, 3], scales [N] and places [N, frames] in sequences of `lengths` [N].

    As Chen et al. do: whole degrees up to 60 around x and around y, 0.5 to 1.5, and frames with
    replacement (theirs come from a hundred copies of every frame, which is nearly the same).
    """
    count = int(lengths.max()) if frames is None else frames
    places = keys.randint(keys.fold(key, "frames"), lengths, count)
    turns, scales = draw_rotations(key), draw_scales(key)
    return turns.numpy(), scales.numpy(), places.numpy()


def turn_sequence(sequence: Array, turn: Array, scale: float = 1.0) -> Array:
    """Turn a sequence [T, V, C] about joint 2 of its first frame, and scale it from there.

    Normalising undoes the scaling. Joints that are all zeros are not there, and stay.

    Examples
    --------
    >>> mirror = np.diag([-1.0, 1.0, -1.0])
    >>> turn_sequence(np.array([[[1.0, 0, 0], [2.0, 1, 0]]]), mirror).tolist()
    [[[3.0, 0.0, 0.0], [2.0, 1.0, 0.0]]]
    """
    bodies = sequence.astype(np.float64).reshape(*sequence.shape[:2], -1, 3)  # [T, V, M, 3]
    centre = bodies[0, 1, 0]
    moved = (bodies - centre) @ (turn * scale) + centre
    there = (bodies != 0).any(-1, keepdims=True)
    return np.where(there, moved, bodies).reshape(sequence.shape)


def draw_frames(sequence: Array, frames: int, places: Array, padded: bool = False) -> Array:
    """Choose frames by their places, in order: `frames`, or as many as there are if padded.

    Examples
    --------
    >>> draw_frames(np.arange(4)[:, None, None], 3, np.array([2, 0, 2])).ravel().tolist()
    [0, 2, 2]
    """
    chosen = sequence[np.sort(places[: len(sequence) if padded else frames])]
    return pad(chosen, frames) if padded else chosen


def trim_empty_frames(sequence: Array) -> int:
    """Frames up to the last one with a body.

    Examples
    --------
    >>> trim_empty_frames(np.array([0.0, 1.0, 0.0, 2.0, 0.0])[:, None, None])
    4
    """
    there = np.flatnonzero((sequence != 0).any((1, 2)))
    return int(there[-1]) + 1 if len(there) else 0


# ------------------------------------------------------------------------------------------------
# Damaged sequences

REPAIRS = ("interpolate", "drop", "error")
MIN_FRAMES = 3
_SHOWN = 5


def repair_sequences(
    sequences: Sequences, repair: str = "interpolate", longest: int | None = None
) -> tuple[Sequences, tuple[str, ...]]:
    """Repair damaged sequences and say what was done.

    ==================  ===================================  =====================  ========
    damage              repair="interpolate"                 "drop"                 "error"
    ==================  ===================================  =====================  ========
    over the longest    cut behind `longest` frames          left out               raises
    no body at all      left out                             left out               raises
    nan or inf joints   filled linearly over time from the   left out               raises
                        frames that have the joint; left out
                        if no frame has it
    frames without a    kept as zeros                        left out               raises
    body before others
    under 3 frames      kept, frames repeated up to 3        left out               raises
    ==================  ===================================  =====================  ========
    """
    check_choice("repair", repair, REPAIRS)
    shapes = {one.shape[1:] for one in sequences.joints}
    if len(shapes) > 1:
        raise bad("joints", "sequences of one number of joints and axes", sorted(shapes))
    told: list[str] = []
    for damage, found, cure, how in (*_too_long(longest), *_DAMAGES):
        hit = [i for i, one in enumerate(sequences.joints) if found(one)]
        if not hit:
            continue
        who = _list([sequences.names[i] for i in hit])
        if repair == "error":
            raise bad("sequences", f"none with {damage} (or another repair=)", who)
        cured = {i: cure(sequences.joints[i]) if repair == "interpolate" else None for i in hit}
        lost = [i for i in hit if cured[i] is None]
        if len(lost) < len(hit):
            saved = [sequences.names[i] for i in hit if cured[i] is not None]
            told.append(f"{plural(len(saved), 'sequence')} with {damage} {how}: {_list(saved)}")
        if lost:
            gone = _list([sequences.names[i] for i in lost])
            told.append(f"{plural(len(lost), 'sequence')} with {damage} left out: {gone}")
        whole_list = [cured.get(i, one) for i, one in enumerate(sequences.joints)]
        kept = [i for i, one in enumerate(whole_list) if one is not None]
        sequences = replace(sequences, joints=whole_list).take(kept)  # type: ignore[arg-type]
    if not len(sequences):
        raise bad("sequences", "at least one that can be used", "; ".join(told) or "none")
    return sequences, tuple(told)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _no_body(one: Array) -> bool:
    return len(one) == 0 or not bool((one != 0).any())


def _not_finite(one: Array) -> bool:
    return not bool(np.isfinite(one).all())


def _has_gaps(one: Array) -> bool:
    return not bool((one[: trim_empty_frames(one)] != 0).any((1, 2)).all())


def _fill(one: Array) -> Array | None:
    """Linear in time between the frames that have the joint, constant beyond them."""
    out = one.astype(np.float64).reshape(len(one), -1).copy()  # [T, V * C]
    time = np.arange(len(out))
    for track in out.T:
        good = np.isfinite(track)
        if not good.any():
            return None
        track[~good] = np.interp(time[~good], time[good], track[good])
    return out.reshape(one.shape)


_Damage = tuple[str, Callable[[Array], bool], Callable[[Array], Array | None], str]
_DAMAGES: tuple[_Damage, ...] = (
    ("no body", _no_body, lambda one: None, ""),
    ("nan or inf joints", _not_finite, _fill, "filled over time"),
    ("frames without a body", _has_gaps, lambda one: one, "kept as they are"),
    (
        f"fewer than {MIN_FRAMES} frames",
        lambda one: len(one) < MIN_FRAMES,
        lambda one: resample(one, MIN_FRAMES),
        "kept by repeating frames",
    ),
)


def _too_long(longest: int | None) -> tuple[_Damage, ...]:
    if longest is None:
        return ()
    most = longest
    cut: _Damage = (
        f"more than {most} frames", lambda one: len(one) > most, lambda one: one[:most], "cut"
    )  # fmt: skip
    return (cut,)


# ------------------------------------------------------------------------------------------------
# Training, validation and test rows, class by class


def split_within_classes(
    label: Tensor, seed: int = 0, copies: Tensor | None = None
) -> dict[str, Tensor]:
    """Rows of train, valid and test, 8:1:1 per class with floors; what is left over is unused.

    Rows of a class with the same number in `copies` [N] stay in one part. A part may then lack a
    row that has no place for its copies.

    Examples
    --------
    >>> parts = split_within_classes(torch.zeros(66, dtype=torch.long))
    >>> {part: len(rows) for part, rows in parts.items()}
    {'train': 52, 'valid': 6, 'test': 6}
    """
    chosen: dict[str, list[Tensor]] = {"train": [], "valid": [], "test": []}
    for mixed in _mixed_classes(label, seed):
        held, kept = len(mixed) // 10, len(mixed) * 8 // 10
        groups: dict[int, list[int]] = {}
        for row in mixed.tolist():
            groups.setdefault(row if copies is None else int(copies[row]), []).append(row)
        left = list(groups.values())
        for part, size in (("test", held), ("valid", held), ("train", kept)):
            rows: list[int] = []
            rest: list[list[int]] = []
            for group in left:
                if len(rows) + len(group) <= size:
                    rows += group
                else:
                    rest.append(group)
            chosen[part].append(torch.tensor(rows, dtype=torch.long))
            left = rest
    return _sorted_parts(chosen)


def _find_copies(x: Array) -> Tensor:
    """Number [N] of each sequence; those that are equal to the bit share one."""
    numbers: dict[bytes, int] = {}
    return torch.tensor([numbers.setdefault(one.tobytes(), len(numbers)) for one in x])


def split_as_stored(label: Tensor, last: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Rows of train, valid and test, cut per class in that order with the rows of `last` behind.

    Validation and test get a tenth each, rounded down but at least one row, training all others.
    Within the rows of `last` [N] bool, and within the others, the seed draws the order.

    Examples
    --------
    >>> label = torch.zeros(66, dtype=torch.long)
    >>> parts = split_as_stored(label, torch.arange(66) % 3 == 0)
    >>> {part: len(rows) for part, rows in parts.items()}
    {'train': 54, 'valid': 6, 'test': 6}
    >>> (parts["test"] % 3).unique().tolist()
    [0]
    """
    chosen: dict[str, list[Tensor]] = {"train": [], "valid": [], "test": []}
    for mixed in _mixed_classes(label, seed):
        count, late = len(mixed), last[mixed]
        held = max(1, count // 10)
        if int(late.sum()) < held or count < 3:
            wanted = f"'drawn', or 3 sequences and more in each class, {held} of its test part"
            raise bad("held", wanted, f"stored, a class of {count} with {int(late.sum())}")
        stored = torch.cat([mixed[~late], mixed[late]])
        for part, rows in zip(chosen, stored.split([count - 2 * held, held, held]), strict=True):
            chosen[part].append(rows)
    return _sorted_parts(chosen)


def _mixed_classes(label: Tensor, seed: int) -> Iterator[Tensor]:
    """The rows of one class after the other, in an order that the seed draws."""
    for value in label.unique().tolist():
        rows = (label == value).nonzero()[:, 0]
        key = keys.fold(check_int("seed", seed), "skeleton split", value)
        yield rows[keys.permutation(key, len(rows), len(rows))]


def _sorted_parts(chosen: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    return {part: torch.cat(list(rows)).sort().values for part, rows in chosen.items()}


# ------------------------------------------------------------------------------------------------
# Bones: which joints are joined

Edges = tuple[tuple[int, int], ...]


def _bones(text: str) -> Edges:
    """(child, parent) from the 1-based numbers of the sensors' manuals to row numbers."""
    pairs = (pair.split("-") for pair in text.split())
    return tuple((int(child) - 1, int(parent) - 1) for child, parent in pairs)


UCLA_BONES: Edges = _bones(
    "1-2 2-3 4-3 5-3 6-5 7-6 8-7 9-3 10-9 11-10 12-11 13-1 14-13 15-14 16-15 17-1 18-17 19-18 20-19"
)
NTU_BONES: Edges = _bones(
    "1-2 2-21 3-21 4-3 5-21 6-5 7-6 8-7 9-21 10-9 11-10 12-11 13-1 14-13 15-14 16-15 17-1 18-17 "
    "19-18 20-19 22-23 23-8 24-25 25-12"
)
BONES_BY_JOINTS = {20: UCLA_BONES, 25: NTU_BONES}


def bones(joints: int) -> Edges:
    """The (child, parent) pairs of a skeleton with that many joints, counted from 0.

    Examples
    --------
    >>> bones(20)[:3]
    ((0, 1), (1, 2), (3, 2))
    """
    if joints not in BONES_BY_JOINTS:
        raise bad("joints", f"one of {sorted(BONES_BY_JOINTS)}", joints)
    return BONES_BY_JOINTS[joints]


def adjacency(edges: Sequence[tuple[int, int]], joints: int) -> Tensor:
    """[V, V] symmetric 0/1 matrix without self loops, not normalised.

    Examples
    --------
    >>> adjacency(((0, 1),), 3).sum().item()
    2.0
    """
    out = torch.zeros(joints, joints)
    for child, parent in edges:
        out[child, parent] = out[parent, child] = 1.0
    return out


def count_bones_between(edges: Edges, start: int, end: int) -> int:
    """Number of bones on the shortest way between two joints, -1 if there is none.

    Examples
    --------
    >>> count_bones_between(UCLA_BONES, 7, 15)
    10
    """
    reached, frontier, steps = {start}, {start}, 0
    while frontier:
        if end in frontier:
            return steps
        ways = edges + tuple((b, a) for a, b in edges)
        frontier = {b for a, b in ways if a in frontier} - reached
        reached |= frontier
        steps += 1
    return -1
