"""Skeleton sequences: NTU RGB+D, NW-UCLA, and torch_geometric graphs.

The graph networks are in `models`, synthetic skeletons in `data.embedded`. Begin with
`skeleton_data`, which turns raw sequences into `Data`.
"""

from __future__ import annotations
