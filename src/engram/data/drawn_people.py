"""Who is drawn, and where: subjects with looks of their own, and the scene of each picture."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from engram import keys

# Groups of subjects, each with its share: unequal on purpose.
GROUPS: dict[str, dict[str, float]] = {
    "gender": {"female": 0.6, "male": 0.4},
    "age": {"young": 0.5, "middle": 0.3, "old": 0.2},
    "tone": {"light": 0.5, "medium": 0.3, "dark": 0.2},
    "glasses": {"without": 0.75, "with": 0.25},
}
_SKIN = ((0.93, 0.77, 0.67), (0.78, 0.58, 0.44), (0.45, 0.31, 0.23))
_HAIR = ((0.08, 0.06, 0.05), (0.30, 0.18, 0.10), (0.80, 0.64, 0.36), (0.55, 0.24, 0.12))
_LIP = (0.86, 0.52, 0.50)  # as factors of the skin
_GREY = (0.72, 0.72, 0.72)
_CLUTTER = 5  # shapes behind a head

_T = TypeVar("_T", "Looks", "Scene")


@dataclass(frozen=True)
class Looks:
    """What stays the same in all pictures of a subject: [subjects, ...] tensors."""

    width: Tensor  # of the head, as a factor
    jaw: Tensor  # how much narrower the head becomes downwards
    chin: Tensor  # from the eyes to the chin, as a factor
    eyes: Tensor  # half the distance between the eyes
    opening: Tensor  # of the eyes at rest
    slant: Tensor  # of the eyes
    brow: Tensor  # height of the brows over the eyes
    thick: Tensor  # half the thickness of the brows
    arch: Tensor  # of the brows
    nose: Tensor  # its length
    wings: Tensor  # half its width
    mouth: Tensor  # half its width
    lips: Tensor  # fullness
    corners: Tensor  # of the mouth at rest: below 0 they hang
    hairline: Tensor
    long_hair: Tensor  # 0 or 1
    fringe: Tensor  # 0 or 1
    bald: Tensor  # 0 or 1
    beard: Tensor  # opacity
    lines: Tensor  # wrinkles of age
    glasses: Tensor  # 0 or 1
    rim: Tensor  # half the thickness of the glasses' frame
    skin: Tensor  # [subjects, 3] colours
    hair: Tensor
    lip: Tensor
    iris: Tensor
    cloth: Tensor


@dataclass(frozen=True)
class Scene:
    """What differs from clip to clip: pose, light and clutter."""

    roll: Tensor
    yaw: Tensor
    pitch: Tensor
    scale: Tensor
    shift: Tensor  # [N, 2]
    gaze: Tensor  # [N, 2]
    side: Tensor  # -1 or 1: the side that a one-sided unit moves
    light: Tensor  # [N, 2] brightness gained per unit to the right and down
    gain: Tensor
    cast: Tensor  # [N, 3] colour of the light
    ground: Tensor  # [N, 2, 3] background at the top and at the bottom
    shapes: Tensor  # [N, shapes, 5] x, y, half axes, turn of the things behind the head
    paints: Tensor  # [N, shapes, 3]
    hidden: Tensor  # 0 or 1: something is held before the face
    cover: Tensor  # [N, 4] the ends of it


class Draw:
    """Numbers of each row by name, from the rows' keys."""

    def __init__(self, key: Tensor) -> None:
        self.key = key

    def between(self, name: str, low: float, high: float, *shape: int) -> Tensor:
        """Uniform numbers, [N, *shape]."""
        return low + (high - low) * keys.uniform(keys.fold(self.key, name), *shape)

    def about(self, name: str, spread: float, *shape: int) -> Tensor:
        """Numbers around 0: the sum of three uniform ones, within 3 times `spread`."""
        drawn = keys.uniform(keys.fold(self.key, name), *shape, 3)
        return spread * 2.0 * (drawn.sum(-1) - 1.5)

    def chance(self, name: str, share: Tensor | float) -> Tensor:
        """1 with that probability, else 0."""
        return (keys.uniform(keys.fold(self.key, name)) < share).double()


def take(values: _T, rows: Tensor) -> _T:
    """The looks, or scenes, of some rows."""
    return replace(values, **{one.name: getattr(values, one.name)[rows] for one in fields(values)})


def spread(values: _T) -> _T:
    """The same as float32, ready to meet pixels."""
    ready = {one.name: over_pixels(getattr(values, one.name)) for one in fields(values)}
    return replace(values, **ready)


def over_pixels(value: Tensor) -> Tensor:
    """float32 of [N, 1, 1] where one number is given per row; others keep their shape."""
    value = value.float()
    return value[:, None, None] if value.ndim == 1 else value


def groups_of(key: keys.Key, count: int) -> dict[str, Tensor]:
    """[count] group of each subject, for every kind of groups, in fixed shares."""
    out = {}
    for kind, shares in GROUPS.items():
        place = (keys.order(keys.fold(key, kind), count, count).double() + 0.5) / count
        edges = torch.tensor(list(shares.values()), dtype=torch.float64).cumsum(0)[:-1]
        out[kind] = (place[:, None] > edges).sum(1)
    return out


def looks_of(key: Tensor, groups: dict[str, Tensor]) -> Looks:
    """Looks of subjects with keys [subjects] in their groups."""
    draw = Draw(key)
    male, age, tone = (groups[kind].double() for kind in ("gender", "age", "tone"))
    old = (age / 2.0).clamp(0.0, 1.0)
    lines = 0.5 * old * draw.between("lines", 0.5, 1.2)
    skin = torch.tensor(_SKIN, dtype=torch.float64)[groups["tone"]] * draw.between(
        "skin", 0.9, 1.08, 1
    )
    painted = (1 - male)[:, None] * draw.between("rouge", 0.0, 0.12, 1)
    rouge = painted * torch.tensor([1.0, -0.4, -0.2], dtype=torch.float64)
    return Looks(
        width=draw.between("width", 0.88, 1.08),
        jaw=draw.between("jaw", 0.16, 0.30) - 0.12 * male,
        chin=draw.between("chin", 0.93, 1.07) + 0.02 * male,
        eyes=draw.between("eyes", 0.26, 0.32),
        opening=draw.between("opening", 0.8, 1.15) - 0.12 * old,
        slant=draw.about("slant", 0.03),
        brow=draw.between("brow", 0.19, 0.25) - 0.02 * male,
        thick=draw.between("thick", 0.020, 0.032) + 0.012 * male,
        arch=draw.between("arch", 0.02, 0.06) - 0.015 * male,
        nose=draw.between("nose", 0.26, 0.34),
        wings=draw.between("wings", 0.09, 0.14),
        mouth=draw.between("mouth", 0.22, 0.28),
        lips=draw.between("lips", 0.75, 1.15) + 0.15 * (1 - male) - 0.15 * old,
        corners=draw.about("corners", 0.01) - 0.01 * old,
        hairline=draw.between("hairline", -0.72, -0.55),
        long_hair=draw.chance("long", 0.75 - 0.65 * male),
        fringe=draw.chance("fringe", 0.35 - 0.2 * male),
        bald=draw.chance("bald", male * (0.12 + 0.25 * old)),
        beard=draw.chance("beard", 0.3 * male) * draw.between("bearded", 0.35, 0.7),
        lines=lines,
        glasses=groups["glasses"].double(),
        rim=draw.between("rim", 0.012, 0.028),
        skin=skin,
        hair=_hair(draw, old, tone),
        lip=skin * torch.tensor(_LIP, dtype=torch.float64) + rouge,
        iris=0.15 + 0.35 * draw.between("iris", 0.0, 1.0, 3) * (1.0 - 0.8 * (tone / 2.0))[:, None],
        cloth=draw.between("cloth", 0.1, 0.9, 3),
    )  # fmt: skip


def _hair(draw: Draw, old: Tensor, tone: Tensor) -> Tensor:
    kinds = torch.tensor(_HAIR, dtype=torch.float64)
    place = draw.between("hair", 0.0, 1.0) * (len(_HAIR) - tone)  # darker skin, darker hair
    colour = kinds[place.long().clamp(max=len(_HAIR) - 1)] * draw.between("shade", 0.85, 1.1, 1)
    grey = (old * draw.between("grey", 0.2, 1.2)).clamp(0.0, 1.0)[:, None]
    return colour + grey * (torch.tensor(_GREY, dtype=torch.float64) - colour)


def scenes_of(key: Tensor) -> Scene:
    """Scenes of clips with keys [N]."""
    draw = Draw(key)
    ground = draw.between("ground", 0.05, 0.95, 2, 3)
    middle = ground.mean(-1, keepdim=True)
    shapes = draw.between("shapes", -1.0, 1.0, _CLUTTER, 5)
    shapes[..., :2] *= 1.1
    shapes[..., 2:4] = 0.08 + 0.35 * shapes[..., 2:4].abs()
    start = draw.between("held", -1.0, 1.0, 2)
    start[:, 1] = 0.75 + 0.2 * start[:, 1]
    return Scene(
        roll=draw.about("roll", 0.06),
        yaw=draw.about("yaw", 0.28),
        pitch=draw.about("pitch", 0.15),
        scale=draw.between("scale", 1.02, 1.18),
        shift=draw.about("shift", 0.035, 2),
        gaze=draw.about("gaze", 0.35, 2),
        side=2.0 * draw.chance("side", 0.5) - 1.0,
        light=draw.about("light", 0.10, 2),
        gain=draw.between("gain", 0.75, 1.1),
        cast=draw.between("cast", 0.92, 1.06, 3),
        ground=middle + 0.6 * (ground - middle),
        shapes=shapes,
        paints=draw.between("paints", 0.05, 0.95, _CLUTTER, 3),
        hidden=draw.chance("hidden", 0.08),
        cover=torch.cat([start, start * 0.55 + draw.about("aim", 0.12, 2)], 1),
    )
