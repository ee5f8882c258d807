"""Drawn glyphs: signs of an invented script, written anew for every row, without files."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.data.embedded.canvas import Canvas
from engram.errors import bad, check_float, check_int

_STROKES = 4  # of every sign at most
_PIECES = 5  # straight lines that a bent stroke is drawn with
_FEWEST = 2  # strokes
_JOINED = 0.7  # chance that a stroke begins where the one before it ended
_WIDE, _HIGH = 0.62, 0.75  # half the frame in which signs are written, where 1 is half a side
_CHUNK = 1 << 18  # pixels drawn at a time
CHANNELS = (1, 3)


def glyphs(
    *,
    size: int = 28,
    channels: int = 1,
    classes: int = 20,
    per_class: int = 100,
    noise: float = 0.05,
    seed: int = 0,
) -> Data:
    """Signs of an invented script, uint8 [channels, size, size], a fifth of each for testing.

    A class is a sign of two to four bent strokes. Each row writes it in a hand of its own: strokes
    waver, the sign is turned, slanted, stretched and shifted, the pen is thin or thick. One channel
    has light ink on a dark ground, as `digits` and MNIST have it; three have colours drawn by row.
    The script is no alphabet and has no numerals: a set from outside, to tune detectors with.

    Parameters
    ----------
    size
        Height and width: 8 for `digits`, 28 for MNIST, 32 for CIFAR, 64 for Tiny ImageNet. The same
        seed writes the same signs in any size.
    channels
        1 or 3.
    classes, per_class
        Number of signs, and of rows of each.
    noise
        Standard deviation of the noise on every pixel, where 1 is the step from black to white.

    Examples
    --------
    >>> glyphs(size=8, classes=3, per_class=10)
    Data('glyphs': 24 train, 6 test rows of (1, 8, 8), 3 classes)
    """
    check_int("size", size, low=8)
    if channels not in CHANNELS or isinstance(channels, bool):
        raise bad("channels", "1 or 3", channels)
    check_int("classes", classes, low=1)
    check_int("per_class", per_class, low=5)  # four rows to train, one to test
    check_float("noise", noise)
    key = keys.fold(check_int("seed", seed), "glyphs")
    x = torch.cat([_write_sign(keys.fold(key, sign), per_class, size, channels, noise)
                   for sign in range(classes)])  # fmt: skip
    names = [f"glyph {sign}" for sign in range(classes)]
    y = torch.arange(classes).repeat_interleave(per_class)
    return Data.from_arrays(x, y, classes=names, name="glyphs")


def _draw_sign(key: keys.Key) -> Tensor:
    """[S, 3, 2] begin, bend and end (x, y) of every stroke, each coordinate in [-1, 1]."""
    count = _FEWEST + int(keys.randint(keys.fold(key, "count"), _STROKES - _FEWEST + 1, 1))
    drawn = 2 * keys.uniform(keys.fold(key, "points"), _STROKES, 3, 2) - 1
    joined = keys.uniform(keys.fold(key, "joined"), _STROKES) < _JOINED
    strokes: list[Tensor] = []
    for begin, bend, end in drawn[:count]:
        if strokes and bool(joined[len(strokes)]):
            begin = strokes[-1][2]
        # no dots: a stroke goes on into another quarter of the frame
        end = torch.where((begin * end > 0).all(), -end, end)
        strokes.append(torch.stack([begin, bend, end]))
    return torch.stack(strokes)


def _write_sign(key: keys.Key, rows: int, size: int, channels: int, noise: float) -> Tensor:
    """uint8 [rows, channels, size, size]: one sign, written `rows` times."""
    strokes = _draw_sign(keys.fold(key, "sign"))
    waver = 2 * keys.uniform(keys.fold(key, "waver"), rows, *strokes.shape) - 1
    lines = _stroke_points((strokes + 0.12 * waver) * torch.tensor([_WIDE, _HIGH]))
    hand = 2 * keys.uniform(keys.fold(key, "hand"), rows, 7) - 1
    lines, pen = _bend(lines, hand).float(), (0.105 + 0.035 * hand[:, 6]).float()[:, None, None]
    ink, ground = _draw_colours(keys.fold(key, "paints"), rows, channels)
    step = max(1, _CHUNK // size**2)
    parts = [slice(i, i + step) for i in range(0, rows, step)]
    image = torch.cat([_render(lines[at], pen[at], ink[at], ground[at], size) for at in parts])
    grain = keys.uniform(keys.fold(key, "grain"), rows, channels, size, size) - 0.5
    grain = (grain * (12**0.5 * noise)).float()  # uniform numbers have a deviation of 1 / root 12
    return (255 * (image[:, :channels] + grain).clamp(0, 1)).round().to(torch.uint8)


def _stroke_points(strokes: Tensor) -> Tensor:
    """[N, S, P + 1, 2] points along the parabolas of strokes [N, S, 3, 2]."""
    t = (torch.arange(_PIECES + 1) / _PIECES)[:, None].double()
    begin, bend, end = (strokes[:, :, i, None] for i in range(3))
    return (1 - t) ** 2 * begin + 2 * t * (1 - t) * bend + t**2 * end


def _bend(lines: Tensor, hand: Tensor) -> Tensor:
    """Points turned, slanted, stretched and shifted, as the row's hand writes."""
    half, slant = 0.1 * hand[:, 0, None, None], 0.2 * hand[:, 1, None, None]
    x = lines[..., 0] * (1 + 0.15 * hand[:, 2, None, None])
    y = lines[..., 1] * (1 + 0.15 * hand[:, 3, None, None])
    x = x + slant * y
    # sine and cosine of a turn from the tangent of its half: the same bytes on all machines
    cos, sin = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    right, down = 0.08 * hand[:, 4, None, None], 0.08 * hand[:, 5, None, None]
    return torch.stack([cos * x - sin * y + right, sin * x + cos * y + down], dim=-1)


def _draw_colours(key: keys.Key, rows: int, channels: int) -> tuple[Tensor, Tensor]:
    """[rows, 3] of ink and of ground; colours are dark on light as often as light on dark."""
    drawn = keys.uniform(key, rows, 7).float()
    if channels == 1:
        return (0.8 + 0.2 * drawn[:, :1]).expand(rows, 3), torch.zeros(rows, 3)
    light, dark = 0.55 + 0.45 * drawn[:, :3], 0.45 * drawn[:, 3:6]
    swap = drawn[:, 6:] < 0.5
    return torch.where(swap, dark, light), torch.where(swap, light, dark)


def _render(lines: Tensor, pen: Tensor, ink: Tensor, ground: Tensor, size: int) -> Tensor:
    """[N, 3, size, size] brightness of lines [N, S, P + 1, 2], `pen` half as thick."""
    page = Canvas.blank(len(lines), size)
    page.image += ground[:, :, None, None]
    nearest = torch.full_like(page.x, 4.0)
    for stroke in lines.unbind(1):
        corners = [(one[:, 0, None, None], one[:, 1, None, None]) for one in stroke.unbind(1)]
        for (x0, y0), (x1, y1) in pairwise(corners):
            nearest = torch.minimum(nearest, page.segment(x0, y0, x1, y1, pen))
    page.paint(nearest, ink)
    return page.image
