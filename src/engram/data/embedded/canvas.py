"""Shapes drawn on many pictures at once: signed distances, painted with smooth edges.

Nothing but sums, products, quotients and roots touches a pixel, so that all machines draw the
same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Canvas:
    """[N, 3, S, S] pictures in the making, and the places of their pixels.

    `x` (to the right) and `y` (down) are [N, S, S] places, `pixel` [N, 1, 1] the side of a pixel in
    the same unit. `moved` gives the same pictures with other places: what is painted on either is
    painted on both.
    """

    image: Tensor
    x: Tensor
    y: Tensor
    pixel: Tensor
    within: Tensor | None = None  # [N, S, S] how far each pixel may be painted at all

    @classmethod
    def blank(cls, count: int, size: int) -> Canvas:
        """Black pictures whose sides reach from -1 to 1.

        Examples
        --------
        >>> canvas = Canvas.blank(1, 2)
        >>> canvas.x[0].tolist(), canvas.pixel.item()
        ([[-0.5, 0.5], [-0.5, 0.5]], 1.0)
        """
        line = (torch.arange(size) * 2.0 + 1.0) / size - 1.0
        place = (count, size, size)
        return cls(
            torch.zeros(count, 3, size, size), line.expand(place), line[:, None].expand(place),
            torch.full((count, 1, 1), 2.0 / size),
        )  # fmt: skip

    def moved(self, x: Tensor, y: Tensor, scale: Tensor | float = 1.0) -> Canvas:
        """The same pictures, measured in other places."""
        return replace(self, x=x, y=y, pixel=self.pixel / scale)

    def part(self, x0: float, x1: float, y0: float, y1: float) -> Canvas:
        """The rows and columns that have a pixel of that range in some picture: less to paint."""
        edge = self.pixel  # smooth edges reach half a pixel further
        inside = (self.x > x0 - edge) & (self.x < x1 + edge)
        inside &= (self.y > y0 - edge) & (self.y < y1 + edge)
        at = (..., _true_range(inside.any(0).any(1)), _true_range(inside.any(0).any(0)))
        within = self.within if self.within is None else self.within[at]
        return Canvas(self.image[at], self.x[at], self.y[at], self.pixel, within)

    def cover(self, distance: Tensor) -> Tensor:
        """How much of each pixel lies inside a shape, from its signed distance."""
        return (0.5 - distance / self.pixel).clamp_(0.0, 1.0)

    def paint(self, distance: Tensor, colour: Tensor, alpha: Tensor | float = 1.0) -> None:
        """Paint a shape in a colour [N, 3], as opaque as `alpha` (a number, or [N, ...])."""
        self.blend(self.cover(distance).mul_(alpha), colour)

    def blend(self, share: Tensor, colour: Tensor) -> None:
        """Mix a colour [N, 3] into every pixel by its share [N, S, S]."""
        if self.within is not None:
            share = share * self.within
        self.image.add_(share[:, None] * (colour[:, :, None, None] - self.image))

    def ellipse(
        self, x: Tensor | float, y: Tensor | float, a: Tensor | float, b: Tensor | float
    ) -> Tensor:
        """Distance (near the edge) from an ellipse around (x, y) with half axes a and b."""
        across, down = (self.x - x) / a, (self.y - y) / b
        level = (across * across + down * down).sqrt_()
        shorter = torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
        return (level - 1.0) * shorter

    def segment(
        self,
        x0: Tensor | float,
        y0: Tensor | float,
        x1: Tensor | float,
        y1: Tensor | float,
        half: Tensor | float,
    ) -> Tensor:
        """Distance from a line between two points, twice `half` thick, with round ends."""
        along_x, along_y = torch.as_tensor(x1 - x0), torch.as_tensor(y1 - y0)
        px, py = self.x - x0, self.y - y0
        length = (along_x * along_x + along_y * along_y).clamp(min=1e-9)
        t = ((px * along_x + py * along_y) / length).clamp_(0.0, 1.0)
        px, py = px - t * along_x, py - t * along_y
        return (px * px + py * py).sqrt_() - half

    def curve(
        self, x0: Tensor | float, x1: Tensor | float, y0: Tensor | float, mid: Tensor | float,
        y1: Tensor | float, half: Tensor | float,
    ) -> Tensor:  # fmt: skip
        """Distance from a parabola from (x0, y0) to (x1, y1) that is at height `mid` half way."""
        t = (self.x - x0) / (x1 - x0)
        inside = t.clamp(0.0, 1.0)
        first, second = 4 * mid - 3 * y0 - y1, 2 * (y0 + y1 - 2 * mid)
        height = y0 + inside * (first + inside * second)
        slope = (first + 2 * second * inside) / (x1 - x0)
        down = (self.y - height) / (1.0 + slope * slope).sqrt_()
        across = (t - inside) * (x1 - x0)
        return (down * down + across * across).sqrt_() - half


def _true_range(inside: Tensor) -> slice:
    """From the first to the last place that is True."""
    places = inside.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)
