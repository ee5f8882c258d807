"""A face from its units, looks and scene, painted back to front."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engram.data.drawn_features import DARK, Features
from engram.data.drawn_people import Looks, Scene


def draw(units: dict[int, Tensor], looks: Looks, scene: Scene, size: int) -> Tensor:
    """[N, 3, size, size] brightness, 0 to about 1, of faces given row by row."""
    return _Face(units, looks, scene, size).drawn()


class _Face(Features):
    """Faces with all that does not move: head, hair, glasses, what is behind and before them."""

    def drawn(self) -> Tensor:
        self._background()
        self._behind()
        self._head()
        self.lines()
        self.eyes()
        self.nose()
        self.mouth()
        self.brows()
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
        head.blend(rim * 0.35, self.shadow)
        for side in (-1.0, 1.0):
            glow = self.front.ellipse(side * 0.40, 0.20 - 0.05 * self.au[12], 0.2, 0.15)
            flush = (-glow / 0.15).clamp_(0.0, 1.0) * (0.12 + 0.1 * self.au[6])
            head.blend(flush, looks.skin * torch.tensor([1.06, 0.82, 0.80]))
        beard = torch.maximum(0.22 + 0.25 * across.abs() - head.y, (level - 1.0) * 0.72)
        head.paint(beard, looks.hair, looks.beard)

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
        face.paint(frames, self.colour(DARK), 0.8 * looks.glasses)

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
