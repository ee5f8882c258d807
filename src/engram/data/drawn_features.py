"""What moves in a face: creases, eyes, brows, nose and mouth, by the action units."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.data.canvas import Canvas
from engram.data.drawn_people import Looks, Scene, over_pixels, spread

DARK = (0.10, 0.05, 0.05)
_MOUTH = (0.22, 0.06, 0.07)
_WHITE = (0.93, 0.92, 0.90)


class Features:
    """Some faces at once. Places are in units of half a picture, around the middle of the head.

    `page` measures the picture, `head` the head however it is held, and `front` its front, which a
    turn of the head moves further than its outline.
    """

    def __init__(self, units: dict[int, Tensor], looks: Looks, scene: Scene, size: int) -> None:
        units = {unit: over_pixels(value) for unit, value in units.items()}
        looks, scene = spread(looks), spread(scene)
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

    def colour(self, rgb: tuple[float, float, float]) -> Tensor:
        return torch.tensor(rgb).expand(len(self.page.image), 3)

    @property
    def shadow(self) -> Tensor:
        return self.looks.skin * 0.52

    def _crease(self, face: Canvas, distance: Tensor, alpha: Tensor) -> None:
        face.paint(distance, self.shadow, alpha.clamp(0.0, 0.9))

    def lines(self) -> None:
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

    def eyes(self) -> None:
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
        face.blend(opened, self.colour(_WHITE))
        x, y = side * looks.eyes + 0.05 * gaze_x, self.eye_y - 0.01 + 0.02 * gaze_y
        face.paint(face.ellipse(x, y, 0.075, 0.075), looks.iris, opened)
        face.paint(face.ellipse(x, y, 0.038, 0.038), self.colour(DARK), opened)
        lid = torch.maximum((face.y - top).abs() - 0.019, across)
        face.paint(lid, self.colour(DARK), 0.9)
        under = torch.maximum((face.y - bottom).abs() - 0.009, across)
        face.paint(under, self.shadow, 0.6)

    def brows(self) -> None:
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

    def nose(self) -> None:
        looks, face = self.looks, self.front.part(-0.25, 0.25, -0.2, 0.4)
        tip = self.eye_y + looks.nose - 0.04 * self.au[9]
        wing = looks.wings + 0.02 * self.au[9] + 0.01 * self.au[10]
        shade = torch.where(self.scene.light[:, 0, None, None] > 0, -1.0, 1.0)
        bridge = face.segment(shade * 0.045, self.eye_y, shade * 0.06, tip - 0.03, 0.02)
        face.paint(bridge, self.shadow, 0.30)
        below = face.curve(-wing, wing, tip - 0.02, tip + 0.035, tip - 0.02, 0.013)
        face.paint(below, self.shadow, 0.7)
        for side in (-1.0, 1.0):
            nostril = face.ellipse(side * 0.5 * wing, tip + 0.005, 0.028, 0.018)
            face.paint(nostril, self.colour(DARK), 0.7)

    def mouth(self) -> None:
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
        face.blend(opened, self.colour(_MOUTH))
        teeth = torch.maximum(gap, face.y - torch.minimum(top + 0.09, bottom - 0.01))
        shown = (au[12] + au[20] + au[10] + au[23]).clamp(0.0, 1.0)
        face.paint(teeth, self.colour(_WHITE), 0.95 * shown * opened)
        closed = torch.maximum((face.y - line).abs() - 0.016, across)
        face.paint(closed, self.colour(DARK), 0.8 * (1.0 - opened))
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


def _sides(side: float, near: float, far: float) -> tuple[float, float]:
    """The range from `near` to `far` on the left (-1) or on the right (1)."""
    return (near, far) if side > 0 else (-far, -near)
