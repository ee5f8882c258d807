"""Recipes whose ids are held: of every method, of streams, settings and models, and of papers."""

from __future__ import annotations

import hashlib
from typing import Any

import engram
from engram import methods
from tests.frozen.cases import GCN, GRAPHS, RECIPE, TRAININGS, VARIANTS, method

BLOBS = RECIPE["stream"]
STREAMS: list[dict[str, Any]] = [
    {"data": "blobs"}, {**BLOBS, "classes_per_task": [3, 1, 2]}, {**BLOBS, "seed": 3},
    {**BLOBS, "kind": "task_incremental"}, {**BLOBS, "valid": 0.25}, {**BLOBS, "kind": "joint"},
    {**BLOBS, "kind": "new_instances", "tasks": 3}, {**BLOBS, "kind": "blurry"},
    {"data": "digits", "kind": "rotated", "angles": [40]}, {**BLOBS, "online": True},
    {**BLOBS, "kind": "hierarchical", "hierarchy": {"low": [0, 1], "high": [2, 3]}},
    {"data": "digits", "kind": "permuted", "tasks": 2}, {"data": "digits", "balance": True},
]  # fmt: skip
MODELS: list[Any] = [
    "mlp", "lenet", "cnn", "resnet32", "vgg11_slim", {"name": "resnet18_slim", "nf": 4},
    {"name": "mlp", "hidden": [8], "head": {"name": "cosine", "scale": 10}},
]  # fmt: skip
TABLES = ("rwalk/1", "cgl/2", "confer/3", "iirc/C.1", "cnd/1")


def recipes() -> dict[str, engram.Recipe]:
    """Recipes by what they vary."""
    graphs = {"stream": {"data": "skeletons", "classes_per_task": 4}, "model": GCN}
    said: dict[str, dict[str, Any]] = {}
    for name in methods.__all__:
        on = graphs if name in GRAPHS else {}
        said[name] = {"method": method(name), **on}
        said[f"{name} as it is"] = {"method": method(name) if name == "Join" else name, **on}
    for name, options in VARIANTS:
        on = graphs if name in GRAPHS else {}
        said[f"{name} {options}"] = {"method": {"name": name, **options}, **on}
    said |= {f"stream {one}": {"stream": one} for one in STREAMS}
    said |= {f"model {one}": {"stream": {"data": "shapes"}, "model": one} for one in MODELS}
    for name, options in TRAININGS.items():
        rest = {k: v for k, v in options.items() if k != "stream"}
        said[f"training {name.strip('~')}"] = {"training": rest}
    return {name: engram.Recipe.of({**RECIPE, "method": "ER", **one}) for name, one in said.items()}


def ids() -> dict[str, Any]:
    """Ids, and for tables of papers keys as well, which need no data: their number and a hash."""
    found: dict[str, Any] = {name: one.id for name, one in recipes().items()}
    for table in TABLES:
        here = engram.reproduce.find_table(table, embedded=True).recipes
        found[f"{table} embedded"] = [len(here), here[0].id, here[-1].id]
        real = [one.key for one in engram.reproduce.find_table(table).recipes]
        found[f"{table} keys"] = [len(real), real[0], real[-1], _hash(real)]
    return found


def _hash(keys: list[str]) -> str:
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16]
