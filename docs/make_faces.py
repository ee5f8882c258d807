"""Draw `docs/images/faces.png`: the eight expressions, one column each.

python docs/make_faces.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image

import engram

SIZE, ROWS, COLOURS = 64, 5, 64


def main() -> None:
    """Draw the sheet and write it."""
    data = engram.load("faces", size=SIZE, samples=400, noise=0.0)
    rows = [
        torch.cat(list(data.x[(data.labels == label).nonzero()[:ROWS, 0]]), dim=1)
        for label in range(data.n_classes)
    ]
    sheet = torch.cat(rows, dim=2).permute(1, 2, 0).numpy()
    path = Path(__file__).parent / "images" / "faces.png"
    Image.fromarray(sheet).quantize(COLOURS).save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
