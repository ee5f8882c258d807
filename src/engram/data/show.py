"""Data as notebooks show it: counts of every class, and a picture of each where there are some."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from engram.html_text import block, escape, table

if TYPE_CHECKING:
    from engram.data.core import Data

MOST_CLASSES = 20  # lines of the table
MOST_PICTURES = 10


def html_of(data: Data) -> str:
    """What `Data` is, in HTML."""
    kinds = [kind for kind in ("train", "valid", "test") if len(getattr(data, kind))]
    counts = {kind: class_counts(data, getattr(data, kind)) for kind in kinds}
    shown = range(min(data.n_classes, MOST_CLASSES))
    rows = [[data.classes[c], *(int(counts[kind][c]) for kind in kinds)] for c in shown]
    more = data.n_classes - len(shown)
    if more:
        rest = [int(counts[kind][MOST_CLASSES:].sum()) for kind in kinds]
        rows.append([f"{more} more", *rest])
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.notes)
    return block(f"<p>{escape(repr(data))}</p>", notes, pictures(data),
                 table(["class", *kinds], rows))  # fmt: skip


def class_counts(data: Data, rows: Tensor) -> Tensor:
    """[classes] rows that have each class among their labels."""
    labels = data.y.cpu()[rows.cpu()]
    return torch.bincount(labels[labels >= 0].flatten(), minlength=data.n_classes)


def pictures(data: Data) -> str:
    """The first training image of each class, side by side; empty where rows are no images."""
    shape = data.stored_shape
    if len(shape) != 3 or shape[0] not in (1, 3) or data.x.dtype not in (torch.uint8, "uint8"):
        return ""
    train = data.train.cpu()
    first = {int(c): int(r) for r, c in zip(train.flip(0), data.labels.cpu()[train].flip(0))}
    chosen = [first[c] for c in sorted(first)[:MOST_PICTURES] if c >= 0]
    parts = []
    for row, pixels in zip(chosen, data.stored(torch.tensor(chosen)).cpu(), strict=True):
        image = Image.fromarray(pixels[0].numpy() if shape[0] == 1 else
                                pixels.permute(1, 2, 0).contiguous().numpy())  # fmt: skip
        image.thumbnail((96, 96))
        out = io.BytesIO()
        image.save(out, format="png")
        code = base64.b64encode(out.getvalue()).decode()
        name = escape(data.classes[int(data.labels[row])])
        parts.append(
            f'<figure style="display:inline-block;margin:2px;text-align:center">'
            f'<img src="data:image/png;base64,{code}" alt="{name}" '
            f'style="width:48px;image-rendering:pixelated"><figcaption>{name}</figcaption></figure>'
        )
    return f"<div>{''.join(parts)}</div>"
