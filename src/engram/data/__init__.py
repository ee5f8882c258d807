"""Data sets: one container, loaders by official format, bundled and synthetic sets."""

from __future__ import annotations

from engram.data.catalogue import SetInfo, datasets, load
from engram.data.dataset import Data
from engram.data.faces.expressions import EXPRESSIONS
from engram.data.manage import add, inspect, list_sets, pack, verify
from engram.data.skeletons.geometric_graphs import from_geometric, to_geometric

__all__ = [
    "EXPRESSIONS",
    "Data",
    "SetInfo",
    "add",
    "datasets",
    "from_geometric",
    "inspect",
    "list_sets",
    "load",
    "pack",
    "to_geometric",
    "verify",
]
