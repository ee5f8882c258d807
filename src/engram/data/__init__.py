"""Data sets: the container `Data`, its constructors, and the readers of official files, in
folders by kind.

No tasks and no training here: streams cut data into tasks, the learner's feed brings it to the
device. Begin with `dataset` (what data is), then `catalogue` (`load` by name) and `formats` (which
reader takes which path).
"""

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
