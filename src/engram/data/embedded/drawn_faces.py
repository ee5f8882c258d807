"""Drawn faces without files: eight expressions as mixtures of action units, on subjects with
looks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.data.embedded.canvas import Canvas
from engram.data.faces.expressions import EXPRESSIONS
from engram.errors import check_float, check_int

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
    check_int("size", size, low=16)
    check_int("samples", samples, low=100)
    check_int("subjects", subjects, low=20)  # so that every group is trained and tested
    check_int("frames", frames, low=1)
    check_float("strength", strength, 0.0, 1.5)
    check_float("noise", noise, 0.0, 1.0)
    key = keys.fold(check_int("seed", seed), "faces")
    people = _draw_people(keys.fold(key, "people"), subjects)
    clips = _draw_clips(key, people, samples)
    x, shown, frame = _draw_pictures(clips, people.looks, size, frames, strength, noise)
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


def _draw_people(key: keys.Key, subjects: int) -> _People:
    """Groups have their shares among the trained and among the tested subjects."""
    trained = subjects - round(_TESTED * subjects)
    first = _draw_groups(keys.fold(key, "trained"), trained)
    last = _draw_groups(keys.fold(key, "tested"), subjects - trained)
    groups = {kind: torch.cat([first[kind], last[kind]]) for kind in GROUPS}
    own = _fold_each(keys.fold(key, "looks"), subjects)
    return _People(_draw_looks(own, groups), groups, trained)


def _draw_clips(key: keys.Key, people: _People, samples: int) -> _Clips:
    tested, all_people = round(_TESTED * samples), len(people.looks.width)
    parts = (("train", samples - tested, 0, people.trained),
             ("test", tested, people.trained, all_people))  # fmt: skip
    label = [_draw_labels(keys.fold(key, name), count) for name, count, *_ in parts]
    subject = [_draw_subjects(keys.fold(key, name), *rest) for name, *rest in parts]
    return _Clips(
        _fold_each(keys.fold(key, "clips"), samples), torch.cat(label), torch.cat(subject),
        torch.arange(samples) >= samples - tested,
    )  # fmt: skip


def _fold_each(key: keys.Key, count: int) -> Tensor:
    """A key for each of `count`."""
    return torch.as_tensor(keys.fold(key, torch.arange(count)))


def _draw_labels(key: keys.Key, count: int) -> Tensor:
    """Expressions in exact shares, shuffled."""
    edges = (torch.tensor(_SHARES, dtype=torch.float64).cumsum(0) * count).round()
    ordered = torch.bucketize(torch.arange(count), edges, right=True)
    return ordered[keys.permutation(keys.fold(key, "labels"), count, count)]


def _draw_subjects(key: keys.Key, count: int, first: int, last: int) -> Tensor:
    """Subjects `first` to `last` - 1, some of them up to three times as often as others."""
    weight = 0.5 + keys.uniform(keys.fold(key, "often"), last - first)
    edges = weight.cumsum(0) / weight.sum()
    drawn = torch.bucketize(keys.uniform(keys.fold(key, "subjects"), count), edges, right=True)
    return first + drawn.clamp(max=last - first - 1)


def _draw_pictures(
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
        apex = mix_units(key, clips.label[clip], strength)
        units = {unit: risen * value for unit, value in apex.items()}
        who = _take_rows(looks, clips.subject[clip])
        image = _FacePainter(units, who, _drift(key, time), size).paint()
        x[start : start + step] = _add_grain(keys.fold(key, "grain", left), image, noise)
    return x, label, frame


def _drift(key: Tensor, time: Tensor) -> Scene:
    """The scene of a clip: the head moves a little until the apex."""
    scene, move = _draw_scenes(key), _RowDraws(key)
    rest = 1.0 - time
    return replace(
        scene,
        roll=scene.roll + rest * move.about("roll drift", 0.02),
        yaw=scene.yaw + rest * move.about("yaw drift", 0.08),
        shift=scene.shift + rest[:, None] * move.about("shift drift", 0.01, 2),
    )


def _add_grain(key: keys.Key, image: Tensor, noise: float) -> Tensor:
    """uint8 pictures with grain, of each pixel and channel its own: nearly normal, and exact."""
    drawn = keys.bits(key, *image.shape[1:])
    low = 2**15 - 1
    total = sum((drawn >> shift) & low for shift in (0, 15, 30, 45))
    grain = (torch.as_tensor(total).float() / 2**15 - 2.0) * (3.0**0.5 * noise)
    levels: Tensor = ((image + grain) * 255.0).round_().clamp_(0, 255)
    return levels.to(torch.uint8)


# ------------------------------------------------------------------------------------------------
# Expressions: mixtures of facial action units

# Number in the Facial Action Coding System: what moves.
UNITS = {
    1: "inner brow raiser", 2: "outer brow raiser", 4: "brow lowerer", 5: "upper lid raiser",
    6: "cheek raiser", 7: "lid tightener", 9: "nose wrinkler", 10: "upper lip raiser",
    12: "lip corner puller", 14: "dimpler, one side", 15: "lip corner depressor",
    16: "lower lip depressor", 17: "chin raiser", 20: "lip stretcher", 23: "lip tightener",
    25: "lips part", 26: "jaw drop", 43: "eyes closed",
}  # fmt: skip
_NUMBERS = tuple(UNITS)

# Of each expression: units with their usual strength, and how often they take part.
MIXTURES: dict[str, dict[int, tuple[float, float]]] = {
    "Neutral": {},
    "Anger": {4: (1.0, 1.0), 5: (0.5, 0.6), 7: (0.8, 0.9), 23: (1.0, 0.8), 10: (0.4, 0.3),
              25: (0.6, 0.3), 17: (0.4, 0.4)},
    "Contempt": {14: (1.0, 1.0), 12: (0.15, 0.3), 7: (0.3, 0.3), 2: (0.3, 0.2)},
    "Disgust": {9: (1.0, 0.95), 10: (0.9, 0.9), 4: (0.4, 0.5), 7: (0.5, 0.6), 15: (0.4, 0.4),
                16: (0.5, 0.4), 17: (0.4, 0.4), 25: (0.5, 0.4)},
    "Fearful": {1: (1.0, 1.0), 2: (0.5, 0.7), 4: (0.6, 0.8), 5: (0.9, 0.9), 20: (1.0, 0.9),
                25: (0.8, 0.8), 26: (0.3, 0.5)},
    "Happiness": {12: (1.0, 1.0), 6: (0.8, 0.8), 25: (0.8, 0.6), 26: (0.2, 0.3)},
    "Sadness": {1: (0.9, 0.95), 4: (0.6, 0.7), 15: (1.0, 0.95), 17: (0.6, 0.6), 43: (0.3, 0.4)},
    "Surprised": {1: (1.0, 0.95), 2: (1.0, 0.95), 5: (0.8, 0.9), 26: (1.0, 0.95), 25: (0.5, 0.8)},
}  # fmt: skip


def mix_units(key: Tensor, label: Tensor, strength: float) -> dict[int, Tensor]:
    """[N] strength of every unit at the apex, for rows with keys [N] and expressions [N].

    A face shows its expression more or less (by a factor that its units share, and one for each),
    some units take part at times only, and every face has a weak unit of no meaning.
    """
    shape = (len(EXPRESSIONS), len(_NUMBERS))
    usual, often = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for row, name in enumerate(EXPRESSIONS):
        for unit, (size, share) in MIXTURES[name].items():
            usual[row, _NUMBERS.index(unit)] = size
            often[row, _NUMBERS.index(unit)] = share
    count = len(_NUMBERS)
    shared = 0.65 + 0.5 * keys.uniform(keys.fold(key, "shared"), 1)  # [N, 1]
    own = 0.7 + 0.5 * keys.uniform(keys.fold(key, "own"), count)  # [N, units]
    taking_part = keys.uniform(keys.fold(key, "part"), count) < often[label]
    drawn = strength * usual[label] * shared * own * taking_part
    stray = keys.randint(keys.fold(key, "stray"), count, 1) == torch.arange(count)
    drawn = drawn + stray * 0.3 * keys.uniform(keys.fold(key, "weak"), 1)
    return {unit: drawn[:, column] for column, unit in enumerate(_NUMBERS)}


# ------------------------------------------------------------------------------------------------
# Who is drawn, and where: the looks of subjects, and the scene of each picture

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


class _RowDraws:
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


def _take_rows(values: _T, rows: Tensor) -> _T:
    """The looks, or scenes, of some rows."""
    return replace(values, **{one.name: getattr(values, one.name)[rows] for one in fields(values)})


def _spread_over_pixels(values: _T) -> _T:
    """The same as float32, ready to meet pixels."""
    ready = {one.name: _broadcast_to_pixels(getattr(values, one.name)) for one in fields(values)}
    return replace(values, **ready)


def _broadcast_to_pixels(value: Tensor) -> Tensor:
    """float32 of [N, 1, 1] where one number is given per row; others keep their shape."""
    value = value.float()
    return value[:, None, None] if value.ndim == 1 else value


def _draw_groups(key: keys.Key, count: int) -> dict[str, Tensor]:
    """[count] group of each subject, for every kind of groups, in fixed shares."""
    out = {}
    for kind, shares in GROUPS.items():
        place = (keys.permutation(keys.fold(key, kind), count, count).double() + 0.5) / count
        edges = torch.tensor(list(shares.values()), dtype=torch.float64).cumsum(0)[:-1]
        out[kind] = (place[:, None] > edges).sum(1)
    return out


def _draw_looks(key: Tensor, groups: dict[str, Tensor]) -> Looks:
    """Looks of subjects with keys [subjects] in their groups."""
    draw = _RowDraws(key)
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
        hair=_draw_hair_colour(draw, old, tone),
        lip=skin * torch.tensor(_LIP, dtype=torch.float64) + rouge,
        iris=0.15 + 0.35 * draw.between("iris", 0.0, 1.0, 3) * (1.0 - 0.8 * (tone / 2.0))[:, None],
        cloth=draw.between("cloth", 0.1, 0.9, 3),
    )  # fmt: skip


def _draw_hair_colour(draw: _RowDraws, old: Tensor, tone: Tensor) -> Tensor:
    kinds = torch.tensor(_HAIR, dtype=torch.float64)
    place = draw.between("hair", 0.0, 1.0) * (len(_HAIR) - tone)  # darker skin, darker hair
    colour = kinds[place.long().clamp(max=len(_HAIR) - 1)] * draw.between("shade", 0.85, 1.1, 1)
    grey = (old * draw.between("grey", 0.2, 1.2)).clamp(0.0, 1.0)[:, None]
    return colour + grey * (torch.tensor(_GREY, dtype=torch.float64) - colour)


def _draw_scenes(key: Tensor) -> Scene:
    """Scenes of clips with keys [N]."""
    draw = _RowDraws(key)
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


# ------------------------------------------------------------------------------------------------
# The picture

_DARK = (0.10, 0.05, 0.05)
_MOUTH = (0.22, 0.06, 0.07)
_WHITE = (0.93, 0.92, 0.90)


class _FacePainter:
    """Paints some faces at once, back to front.

    Places are in units of half a picture, around the middle of the head.
    `page` measures the picture, `head` the head however it is held, and `front` its front, which a
    turn of the head moves further than its outline.
    """

    def __init__(self, units: dict[int, Tensor], looks: Looks, scene: Scene, size: int) -> None:
        units = {unit: _broadcast_to_pixels(value) for unit, value in units.items()}
        looks, scene = _spread_over_pixels(looks), _spread_over_pixels(scene)
        self.au, self.looks, self.scene = units, looks, scene
        self.page = Canvas.blank(len(scene.gain), size)
        shift_x, shift_y = (scene.shift[:, i, None, None] for i in range(2))
        x, y = (self.page.x - shift_x) / scene.scale, (self.page.y - shift_y) / scene.scale
        cos, sin = scene.roll.cos(), scene.roll.sin()
        x, y = x * cos + y * sin, y * cos - x * sin
        self.head = self.page.moved(x, y, scene.scale)
        # the middle of a face is nearer to the eye of the beholder, so a turn moves it further
        round_x = (1.0 - x * x * 1.3).clamp_(min=0.0)
        round_y = (1.0 - y * y * 0.9).clamp_(min=0.0)
        x = x / looks.width - 0.22 * scene.yaw * round_x
        self.front = self.page.moved(x, y - 0.16 * scene.pitch * round_y, scene.scale)
        self.eye_y = -0.08
        self.low = 0.90 * looks.chin + 0.05 * units[26]
        self.mouth_y = 0.42 * looks.chin - 0.03 * units[17] - 0.02 * units[10] - 0.01 * units[12]

    def paint(self) -> Tensor:
        """[N, 3, size, size] brightness, 0 to about 1, of the faces row by row."""
        self._background()
        self._behind()
        self._head()
        self._lines()
        self._eyes()
        self._nose()
        self._mouth()
        self._brows()
        self._hair()
        self._glasses()
        self._held()
        return self._lit()

    def _background(self) -> None:
        top, bottom = self.scene.ground.unbind(1)
        self.page.image += top[:, :, None, None]
        self.page.blend(self.page.y * 0.5 + 0.5, bottom)
        for i in range(self.scene.shapes.shape[1]):
            x, y, a, b, turn = (one[:, None, None] for one in self.scene.shapes[:, i].unbind(1))
            across, down = self.page.x - x, self.page.y - y
            turned = self.page.moved(across + turn * down, down - turn * across)
            if i % 2:
                shape = turned.ellipse(0.0, 0.0, a, b)
            else:
                shape = torch.maximum(turned.x.abs() - a, turned.y.abs() - b)
            self.page.paint(shape, self.scene.paints[:, i])

    def _behind(self) -> None:
        head, looks = self.head, self.looks
        back = torch.maximum(head.ellipse(0.0, -0.1, 0.84 * looks.width, 0.95), head.y - 0.85)
        straight = torch.maximum(head.x.abs() - 0.84 * looks.width, (head.y - 0.35).abs() - 0.55)
        head.paint(torch.minimum(back, straight), looks.hair * 0.8, looks.long_hair)
        neck = torch.maximum(head.x.abs() - 0.36, 0.5 - head.y)
        head.paint(neck, looks.skin * 0.75)
        head.paint(head.ellipse(0.0, 1.45, 1.1, 0.45), looks.cloth)
        for side in (-1.0, 1.0):
            head.paint(head.ellipse(side * 0.71 * looks.width, 0.02, 0.09, 0.17), looks.skin * 0.85)

    def _head(self) -> None:
        head, looks = self.head, self.looks
        low = torch.where(head.y > 0, self.low, torch.full_like(self.low, 0.92))
        down = head.y / low
        width = 0.72 * looks.width * (1.0 - looks.jaw * down.clamp(min=0.0))
        across = head.x / width
        level = (across * across + down * down).sqrt_()
        self.within = head.cover((level - 1.0) * 0.72)
        head.blend(self.within, looks.skin)
        self.front = replace(self.front, within=self.within)
        rim = ((level - 0.7) * 1.6).clamp_(0.0, 1.0) * self.within
        head.blend(rim * 0.35, self._shadow)
        for side in (-1.0, 1.0):
            glow = self.front.ellipse(side * 0.40, 0.20 - 0.05 * self.au[12], 0.2, 0.15)
            flush = (-glow / 0.15).clamp_(0.0, 1.0) * (0.12 + 0.1 * self.au[6])
            head.blend(flush, looks.skin * torch.tensor([1.06, 0.82, 0.80]))
        beard = torch.maximum(0.22 + 0.25 * across.abs() - head.y, (level - 1.0) * 0.72)
        head.paint(beard, looks.hair, looks.beard)

    def _lines(self) -> None:
        au, lines = self.au, self.looks.lines
        face = self.front.part(-0.35, 0.35, -0.7, -0.45)
        raised = 0.7 * torch.minimum(au[1], au[2]) + 0.5 * lines - 0.05
        for height in (-0.52, -0.60):
            arc = face.curve(-0.3, 0.3, height, height - 0.04, height, 0.014)
            self._crease(face, arc, raised)
        face = self.front.part(-0.15, 0.15, -0.4, 0.05)
        for side in (-1.0, 1.0):
            frown = face.segment(side * 0.05, -0.33, side * 0.045, -0.2, 0.016)
            self._crease(face, frown, 0.9 * au[4] + 0.3 * au[9])
        for height in (-0.14, -0.07, 0.0):
            wrinkle = face.curve(-0.1, 0.1, height, height - 0.02, height, 0.016)
            self._crease(face, wrinkle, 0.9 * au[9])
        for side in (-1.0, 1.0):
            self._cheek(side)

    def _cheek(self, side: float) -> None:
        au, looks = self.au, self.looks
        face = self.front.part(*_sides(side, 0.05, 0.6), 0.0, 0.7)
        end = looks.mouth + 0.10 + 0.07 * au[12]
        low = self.mouth_y - 0.08 * au[12]
        fold = face.segment(side * 0.18, 0.17 - 0.03 * au[9], side * end, low, 0.018)
        self._crease(face, fold, 0.6 * au[12] + 0.7 * au[10] + 0.6 * au[9] + 0.4 * looks.lines)
        face = self.front.part(*_sides(side, 0.05, 0.8), -0.3, 0.25)
        outer = side * (looks.eyes + 0.2)
        for way in (-0.06, 0.06):
            y0, y1 = self.eye_y + way * 0.3, self.eye_y + way
            crow = face.segment(outer, y0, outer + side * 0.1, y1, 0.010)
            self._crease(face, crow, 0.6 * au[6] + 0.4 * looks.lines)
        bag = self.eye_y + 0.11 - 0.01 * au[6]
        near, far = side * (looks.eyes - 0.14), side * (looks.eyes + 0.14)
        under = face.curve(near, far, bag, bag + 0.04, bag, 0.014)
        self._crease(face, under, 0.6 * au[6] + 0.35 * au[7] + 0.4 * looks.lines)

    def _eyes(self) -> None:
        au, looks = self.au, self.looks
        shut = 1.0 - au[43].clamp(0.0, 0.9)
        upper = 0.085 * looks.opening + 0.06 * au[5] - 0.035 * au[7] - 0.025 * (au[6] + au[9])
        upper = upper.clamp(min=0.015) * shut
        lower = 0.056 + 0.01 * au[5] - 0.030 * au[6] - 0.025 * au[7] - 0.015 * au[9]
        for side in (-1.0, 1.0):
            self._eye(side, upper, lower.clamp(min=0.008))

    def _eye(self, side: float, upper: Tensor, lower: Tensor) -> None:
        au, looks, half = self.au, self.looks, 0.165
        face = self.front.part(*_sides(side, 0.02, 0.6), -0.45, 0.25)
        gaze_x, gaze_y = (self.scene.gaze[:, i, None, None] for i in range(2))
        t = (face.x - side * looks.eyes) / half
        bend = (1.0 - t * t).clamp_(min=0.0)
        middle = self.eye_y + (0.02 * (au[1] - au[4]) - looks.slant) * t * side
        top, bottom = middle - upper * bend, middle + lower * bend
        across = (t.abs() - 1.0) * half
        inside = torch.maximum(torch.maximum(top - face.y, face.y - bottom), across)
        opened = face.cover(inside)
        face.blend(opened, self._colour(_WHITE))
        x, y = side * looks.eyes + 0.05 * gaze_x, self.eye_y - 0.01 + 0.02 * gaze_y
        face.paint(face.ellipse(x, y, 0.075, 0.075), looks.iris, opened)
        face.paint(face.ellipse(x, y, 0.038, 0.038), self._colour(_DARK), opened)
        lid = torch.maximum((face.y - top).abs() - 0.019, across)
        face.paint(lid, self._colour(_DARK), 0.9)
        under = torch.maximum((face.y - bottom).abs() - 0.009, across)
        face.paint(under, self._shadow, 0.6)

    def _nose(self) -> None:
        looks, face = self.looks, self.front.part(-0.25, 0.25, -0.2, 0.4)
        tip = self.eye_y + looks.nose - 0.04 * self.au[9]
        wing = looks.wings + 0.02 * self.au[9] + 0.01 * self.au[10]
        shade = torch.where(self.scene.light[:, 0, None, None] > 0, -1.0, 1.0)
        bridge = face.segment(shade * 0.045, self.eye_y, shade * 0.06, tip - 0.03, 0.02)
        face.paint(bridge, self._shadow, 0.30)
        below = face.curve(-wing, wing, tip - 0.02, tip + 0.035, tip - 0.02, 0.013)
        face.paint(below, self._shadow, 0.7)
        for side in (-1.0, 1.0):
            nostril = face.ellipse(side * 0.5 * wing, tip + 0.005, 0.028, 0.018)
            face.paint(nostril, self._colour(_DARK), 0.7)

    def _mouth(self) -> None:
        au, looks, face = self.au, self.looks, self.front.part(-0.6, 0.6, 0.1, 0.95)
        half = looks.mouth + 0.09 * (au[12] + au[20]) - 0.05 * (au[23] + au[26]) - 0.02 * au[17]
        corner = 0.16 * (au[15] - au[12]) - looks.corners + 0.04 * au[20] + 0.02 * au[10]
        t = face.x / half - 0.15 * au[14] * self.scene.side
        bend = (1.0 - t * t).clamp_(min=0.0)
        lifted = (t * self.scene.side > 0) * 0.19 * au[14]
        line = self.mouth_y + (corner - lifted) * t * t - 0.35 * corner
        above = bend * (0.05 * au[25] + 0.05 * au[10] * (au[25] > 0) + 0.04 * au[26])
        below = bend * (0.07 * au[25] + 0.05 * au[16] + 0.24 * au[26])
        full = looks.lips * (1.0 - 0.6 * au[23].clamp(max=1.1))
        top, bottom = line - above, line + below
        across = (t.abs() - 1.0) * half
        edge_up = top - bend * (0.055 * full + 0.03 * au[10])
        edge_low = bottom + bend * (0.075 * full + 0.02 * au[17])
        lips = torch.maximum(torch.maximum(edge_up - face.y, face.y - edge_low), across)
        face.paint(lips, looks.lip)
        gap = torch.maximum(torch.maximum(top - face.y, face.y - bottom), across)
        opened = face.cover(gap) * ((bottom - top) / face.pixel).clamp_(0.0, 1.0)
        face.blend(opened, self._colour(_MOUTH))
        teeth = torch.maximum(gap, face.y - torch.minimum(top + 0.09, bottom - 0.01))
        shown = (au[12] + au[20] + au[10] + au[23]).clamp(0.0, 1.0)
        face.paint(teeth, self._colour(_WHITE), 0.95 * shown * opened)
        closed = torch.maximum((face.y - line).abs() - 0.016, across)
        face.paint(closed, self._colour(_DARK), 0.8 * (1.0 - opened))
        self._corners(face, half, corner)

    def _corners(self, face: Canvas, half: Tensor, corner: Tensor) -> None:
        au, side = self.au, self.scene.side
        low = self.mouth_y + 0.2
        chin = face.curve(-0.13, 0.13, low, low - 0.05, low, 0.018)
        self._crease(face, chin, 0.8 * au[17])
        x, y = side * (half + 0.09), self.mouth_y + corner - 0.15 * au[14]
        self._crease(face, face.segment(x, y - 0.07, x + 0.03 * side, y + 0.06, 0.022), au[14])
        for way in (-1.0, 1.0):
            x, y = way * (half + 0.04), self.mouth_y + 0.6 * corner
            drop = face.segment(x, y, x + 0.04 * way, y + 0.1, 0.018)
            self._crease(face, drop, 0.8 * au[15])

    def _brows(self) -> None:
        au, looks = self.au, self.looks
        rest = self.eye_y - looks.brow
        inner = rest - 0.13 * au[1] + 0.12 * au[4] + 0.04 * au[9]
        middle = rest - looks.arch - 0.06 * au[1] - 0.10 * au[2] + 0.08 * au[4] + 0.04 * au[9]
        outer = rest + 0.01 - 0.12 * au[2] + 0.02 * au[4] + 0.03 * au[1]
        near, far = 0.13 - 0.05 * au[4], looks.eyes + 0.2
        for side in (-1.0, 1.0):
            face = self.front.part(*_sides(side, 0.0, 0.65), -0.75, -0.05)
            lift = 0.06 * au[14] * (self.scene.side == side)
            brow = face.curve(
                side * near, side * far, inner, middle - lift, outer - lift, looks.thick
            )
            face.paint(brow, looks.hair * 0.6, 0.95)

    def _hair(self) -> None:
        head, looks = self.head, self.looks
        x = head.x / looks.width
        cap = head.ellipse(0.0, -0.02, 0.78 * looks.width, 1.0)
        line = looks.hairline + 0.9 * x * x
        line = torch.where(looks.fringe > 0, -0.42 + 0.35 * x * x, line)
        hair = torch.maximum(cap, head.y - line)
        head.paint(hair, looks.hair, 1.0 - looks.bald)

    def _glasses(self) -> None:
        face, looks = self.front.part(-0.85, 0.85, -0.4, 0.25), self.looks
        frames = face.segment(-0.08, self.eye_y, 0.08, self.eye_y, looks.rim)
        for side in (-1.0, 1.0):
            ring = face.ellipse(side * looks.eyes, self.eye_y + 0.01, 0.21, 0.18).abs() - looks.rim
            near = side * (looks.eyes + 0.2)
            arm = face.segment(near, self.eye_y, side * 0.75, self.eye_y - 0.02, looks.rim)
            frames = torch.minimum(frames, torch.minimum(ring, arm))
        face.paint(frames, self._colour(_DARK), 0.8 * looks.glasses)

    def _held(self) -> None:
        """A hand or a thing before the edge of some faces."""
        x0, y0, x1, y1 = (one[:, None, None] for one in self.scene.cover.unbind(1))
        self.page.paint(
            self.page.segment(x0, y0, x1, y1, 0.13), self.scene.paints[:, 0], self.scene.hidden
        )

    def _lit(self) -> Tensor:
        right, down = (self.scene.light[:, i, None, None] for i in range(2))
        light = (1.0 + right * self.head.x + down * self.head.y) * self.scene.gain
        return self.page.image * light[:, None] * self.scene.cast[:, :, None, None]

    def _colour(self, rgb: tuple[float, float, float]) -> Tensor:
        return torch.tensor(rgb).expand(len(self.page.image), 3)

    @property
    def _shadow(self) -> Tensor:
        return self.looks.skin * 0.52

    def _crease(self, face: Canvas, distance: Tensor, alpha: Tensor) -> None:
        face.paint(distance, self._shadow, alpha.clamp(0.0, 0.9))


def _sides(side: float, near: float, far: float) -> tuple[float, float]:
    """The range from `near` to `far` on the left (-1) or on the right (1)."""
    return (near, far) if side > 0 else (-far, -near)
