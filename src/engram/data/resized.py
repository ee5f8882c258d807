"""Images in memory as faces: RGB of one size, classes by the names of the expressions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engram.data.arrays import Array
from engram.data.core import Data
from engram.data.crops import Frame, cut_image
from engram.data.expressions import expression_ids
from engram.errors import bad, whole


def as_faces(data: Data, size: int | None) -> Data:
    """The same rows as uint8 [N, 3, size, size] with `EXPRESSIONS` as classes; None: as they are.

    Examples
    --------
    >>> x = torch.arange(5 * 16, dtype=torch.uint8).reshape(5, 1, 4, 4)
    >>> data = as_faces(Data.from_arrays(x, ["sad", "neutral", "sad", "sad", "sad"]), 8)
    >>> data.sample_shape, data.classes, data.labels.tolist()
    ((3, 8, 8), ('Neutral', 'Sadness'), [1, 0, 1, 1, 1])
    """
    if size is None:
        return data
    whole("size", size, low=8)
    if data.x.dtype not in (torch.uint8, np.uint8) or len(data.sample_shape) != 3:
        raise bad("size", "None, since these are no images of whole numbers", size)
    classes, place = expression_ids(f"classes of {data.name}", data.classes)
    y = torch.where(data.y >= 0, torch.from_numpy(place)[data.y.clamp(min=0)], -1)
    if data.sample_shape == (3, size, size):
        return replace(data, y=y, classes=classes)
    from PIL import Image

    x = np.empty((len(data), 3, size, size), np.uint8)
    blank = 0
    for row in range(len(data)):
        picture: Array = np.asarray(data.x[row])
        image = Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))
        cut = cut_image(image, size, Frame())
        x[row], blank = cut.pixels, blank + cut.blank
    notes = (*data.notes, *([f"{blank} blank images of one colour, kept"] if blank else []))
    return replace(data, x=torch.from_numpy(x), y=y, classes=classes, notes=notes)
