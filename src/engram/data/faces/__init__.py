"""Readers of facial-expression sets, one module per set, and the class names that they share.

Cropping and resizing of listed pictures are in `data.picture_sets`, drawn faces in
`data.embedded`. Begin with `expressions`, then the shortest reader, `icv_mefed`.
"""

from __future__ import annotations
