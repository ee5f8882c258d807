"""Weights of a root that was trained elsewhere, from a file whose content is known."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.errors import bad
from engram.models.classifier import Classifier


def load_root(net: Classifier, path: str, sha256: str) -> None:
    """Write the weights and statistics of a file into the root of a network.

    The file holds tensors by name, as safetensors or as torch saves a ``state_dict``. A name may
    leave out leading parts: ``net.backbone.trunk.conv1.weight`` is found as ``conv1.weight``, too.
    Every tensor of the root must be there and have its shape; others are not looked at.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise bad("root_file", "the path of a file of weights", path)
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256.lower():
        raise bad("root_sha256", f"{found}, the SHA-256 of {file.name}", sha256)
    given = _tensors(file)
    own = {k: v for k, v in net.state_dict().items() if k.startswith(net.root_prefixes)}
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(_matching(name, mine, given, file.name))


def _matching(name: str, mine: Tensor, given: Mapping[str, Tensor], file: str) -> Tensor:
    parts = ("net", *name.split("."))
    for start in range(len(parts)):
        other = given.get(".".join(parts[start:]))
        if other is None:
            continue
        if other.shape != mine.shape:
            expected = f"{name} of shape {tuple(mine.shape)} in {file}"
            raise bad("root_file", expected, tuple(other.shape))
        return other
    raise bad("root_file", f"a tensor called {name} in {file}", sorted(given)[:5])


def _tensors(file: Path) -> Mapping[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    try:
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, all of which say that the file is no such thing
        expected = "safetensors, or a state_dict that torch saved without other objects"
        raise bad("root_file", expected, f"{file.name} ({type(error).__name__})") from error
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise bad("root_file", f"tensors by name in {file.name}", type(found).__name__)
    return found
