"""Readers of facial-expression sets, one module per set.

What sets share is in `face_images` (cropping, one size) and `expressions` (common class names);
drawn faces are in `data.embedded`. Begin with `face_images`, then the shortest reader, `ck_plus`.
"""

from __future__ import annotations
