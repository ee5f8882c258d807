"""Drawn faces: eight expressions of subjects with looks of their own, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from engram import keys
from engram.data.core import Data
from engram.data.drawn_people import (
    GROUPS,
    Draw,
    Looks,
    Scene,
    groups_of,
    looks_of,
    scenes_of,
    take,
)
from engram.data.drawn_pictures import draw
from engram.data.drawn_units import mix
from engram.data.expressions import EXPRESSIONS
from engram.errors import number, whole

# Share of each expression, unequal as in sets that were collected.
_SHARES = (0.22, 0.12, 0.07, 0.10, 0.09, 0.18, 0.11, 0.11)
_TESTED = 0.3  # of the subjects, and of the clips
_CHUNK = 1 << 17  # pixels drawn at a time: they stay in the cache


def faces(
    *,
    size: int = 32,
    samples: int = 6000,
    subjects: int = 120,
    frames: int = 1,
    strength: float = 1.0,
    noise: float = 0.05,
    seed: int = 0,
) -> Data:
    """Drawn faces with the eight expressions, uint8 [3, size, size].

    An expression is a mixture of facial action units of random strength, seen in brows, lids,
    nose and mouth. Subjects differ in looks and belong to groups; three of ten are tested, and
    trained on never. Pose, light, clutter and grain differ from picture to picture. Expressions
    and groups are not equally frequent. Attributes: subject, gender, age, tone (of the skin),
    glasses.

    Parameters
    ----------
    size
        Height and width. The same seed gives the same faces in any size.
    samples
        Number of clips, each of one subject with one expression.
    subjects
        Number of subjects.
    frames
        Pictures of each clip, from the onset to the apex; 1: the apex alone. Of several, the first
        shows nothing yet and is labelled Neutral; attributes clip and frame tell them apart.
    strength
        Factor of all action units: below 1 expressions are harder to tell apart.
    noise
        Standard deviation of the grain, where 1 is the step from black to white.

    Examples
    --------
    >>> data = faces(samples=100)
    >>> data
    Data('faces': 70 train, 30 test rows of (3, 32, 32), 8 classes)
    >>> data.attribute_names["age"]
    ('young', 'middle', 'old')
    """
    whole("size", size, low=16)
    whole("samples", samples, low=100)
    whole("subjects", subjects, low=20)  # so that every group is trained and tested
    whole("frames", frames, low=1)
    number("strength", strength, 0.0, 1.5)
    number("noise", noise, 0.0, 1.0)
    key = keys.fold(whole("seed", seed), "faces")
    people = _people(keys.fold(key, "people"), subjects)
    clips = _clips(key, people, samples)
    x, shown, frame = _pictures(clips, people.looks, size, frames, strength, noise)
    clip = torch.arange(samples).repeat_interleave(frames)
    who, held = clips.subject[clip], clips.tested[clip]
    attributes = {"subject": who, **{kind: people.groups[kind][who] for kind in GROUPS}}
    if frames > 1:
        attributes |= {"clip": clip, "frame": frame}
    return Data(
        x=x, y=shown[:, None], train=(~held).nonzero()[:, 0], test=held.nonzero()[:, 0],
        classes=EXPRESSIONS, name="faces", attributes=attributes,
        attribute_names={kind: tuple(shares) for kind, shares in GROUPS.items()},
    )  # fmt: skip


class _People(NamedTuple):
    looks: Looks
    groups: dict[str, Tensor]  # [subjects] each
    trained: int  # the first subjects; the others are tested


class _Clips(NamedTuple):
    key: Tensor  # [samples]
    label: Tensor
    subject: Tensor
    tested: Tensor


def _people(key: keys.Key, subjects: int) -> _People:
    """Groups have their shares among the trained and among the tested subjects."""
    trained = subjects - round(_TESTED * subjects)
    first = groups_of(keys.fold(key, "trained"), trained)
    last = groups_of(keys.fold(key, "tested"), subjects - trained)
    groups = {kind: torch.cat([first[kind], last[kind]]) for kind in GROUPS}
    own = _each(keys.fold(key, "looks"), subjects)
    return _People(looks_of(own, groups), groups, trained)


def _clips(key: keys.Key, people: _People, samples: int) -> _Clips:
    tested, all_people = round(_TESTED * samples), len(people.looks.width)
    parts = (("train", samples - tested, 0, people.trained),
             ("test", tested, people.trained, all_people))  # fmt: skip
    label = [_labels(keys.fold(key, name), count) for name, count, *_ in parts]
    subject = [_subjects(keys.fold(key, name), *rest) for name, *rest in parts]
    return _Clips(
        _each(keys.fold(key, "clips"), samples), torch.cat(label), torch.cat(subject),
        torch.arange(samples) >= samples - tested,
    )  # fmt: skip


def _each(key: keys.Key, count: int) -> Tensor:
    """A key for each of `count`."""
    return torch.as_tensor(keys.fold(key, torch.arange(count)))


def _labels(key: keys.Key, count: int) -> Tensor:
    """Expressions in exact shares, shuffled."""
    edges = (torch.tensor(_SHARES, dtype=torch.float64).cumsum(0) * count).round()
    ordered = torch.bucketize(torch.arange(count), edges, right=True)
    return ordered[keys.order(keys.fold(key, "labels"), count, count)]


def _subjects(key: keys.Key, count: int, first: int, last: int) -> Tensor:
    """Subjects `first` to `last` - 1, some of them up to three times as often as others."""
    weight = 0.5 + keys.uniform(keys.fold(key, "often"), last - first)
    edges = weight.cumsum(0) / weight.sum()
    drawn = torch.bucketize(keys.uniform(keys.fold(key, "subjects"), count), edges, right=True)
    return first + drawn.clamp(max=last - first - 1)


def _pictures(
    clips: _Clips, looks: Looks, size: int, frames: int, strength: float, noise: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, labels and frame numbers, clip by clip."""
    count = len(clips.key) * frames
    x = torch.empty(count, 3, size, size, dtype=torch.uint8)
    frame = torch.arange(frames).repeat(len(clips.key))
    label = clips.label.repeat_interleave(frames)
    if frames > 1:
        label = torch.where(frame == 0, EXPRESSIONS.index("Neutral"), label)
    step = max(1, _CHUNK // (size * size))
    for start in range(0, count, step):
        rows = torch.arange(start, min(start + step, count))
        clip, left = rows // frames, frames - 1 - rows % frames  # frames left to the apex
        key, time = clips.key[clip], 1.0 - left / max(1, frames - 1)
        risen = time * (2.0 - time)  # quickly at first, as faces do
        units = {
            unit: risen * size_ for unit, size_ in mix(key, clips.label[clip], strength).items()
        }
        image = draw(units, take(looks, clips.subject[clip]), _drifted(key, time), size)
        x[start : start + step] = _grainy(keys.fold(key, "grain", left), image, noise)
    return x, label, frame


def _drifted(key: Tensor, time: Tensor) -> Scene:
    """The scene of a clip: the head moves a little until the apex."""
    scene, move = scenes_of(key), Draw(key)
    rest = 1.0 - time
    return replace(
        scene,
        roll=scene.roll + rest * move.about("roll drift", 0.02),
        yaw=scene.yaw + rest * move.about("yaw drift", 0.08),
        shift=scene.shift + rest[:, None] * move.about("shift drift", 0.01, 2),
    )


def _grainy(key: keys.Key, image: Tensor, noise: float) -> Tensor:
    """uint8 pictures with grain, of each pixel and channel its own: nearly normal, and exact."""
    drawn = keys.bits(key, *image.shape[1:])
    low = 2**15 - 1
    total = sum((drawn >> shift) & low for shift in (0, 15, 30, 45))
    grain = (torch.as_tensor(total).float() / 2**15 - 2.0) * (3.0**0.5 * noise)
    levels: Tensor = ((image + grain) * 255.0).round_().clamp_(0, 255)
    return levels.to(torch.uint8)
