"""Sets that need no files: digits, blobs, and faces, glyphs, shapes and skeletons made from a
seed.

Sets read from disk are in the folders beside this one. Begin with `small_sets`; `canvas` is what
faces are painted with.
"""

from __future__ import annotations
