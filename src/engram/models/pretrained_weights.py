"""Weights that were trained elsewhere, from a file whose content is known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from engram.errors import bad

if TYPE_CHECKING:
    from engram.models.classifier import Classifier

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_STATISTICS = ("mean", "var")  # of our batch normalisation; torch's are running_mean, running_var
_WRAPPED = "module."  # what torch's data parallelism puts before every name


def load_root(net: Classifier, path: str, sha256: str) -> None:
    """Write the weights and statistics of a file into the root of a network.

    The file holds tensors by name, as safetensors or as torch saves a ``state_dict``. A name may
    leave out leading parts: ``net.backbone.trunk.conv1.weight`` is found as ``conv1.weight``, too.
    Statistics of batch normalisation may be called as torch calls them, ``running_mean`` and
    ``running_var``. Every tensor of the root must be there and have its shape; others are not
    looked at.
    """
    given = read_weights(path, sha256, "root_file", "root_sha256")
    own = {k: v for k, v in net.state_dict().items() if k.startswith(net.root_prefixes)}
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(_find_matching(name, mine, given, Path(path).name))


def check_weights(weights: Any, sha256: Any) -> None:
    """Refuse a file without its checksum, and what is neither.

    Examples
    --------
    >>> check_weights("alexnet.pth", None)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: sha256: expected the SHA-256 of alexnet.pth, got None
    """
    if weights is None and sha256 is None:
        return
    if not isinstance(weights, str) or not weights:
        raise bad("weights", "the path of a file of weights with this sha256", weights)
    if sha256 is None:
        raise bad("sha256", f"the SHA-256 of {Path(weights).name}", None)
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise bad("sha256", "64 hexadecimal digits", sha256)


def read_weights(
    path: str, sha256: str, file_argument: str = "weights", sum_argument: str = "sha256"
) -> Mapping[str, Tensor]:
    """Tensors by name from a file, after its checksum was found to be right."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise bad(file_argument, "the path of a file of weights", path)
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256.lower():
        raise bad(sum_argument, f"{found}, the SHA-256 of {file.name}", sha256)
    return _tensors(file, file_argument)


def file_sha256(path: str) -> str:
    """The SHA-256 of a file of weights."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise bad("weights", "the path of a file of weights", path)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_into(
    net: nn.Module, given: Mapping[str, Tensor], file: str, *, renamed: Mapping[str, str]
) -> None:
    """Write tensors of a file into all of a network; `renamed` has the file's names of its parts.

    Tensors that the network has no place for are not looked at.
    """
    with torch.no_grad():
        for name, mine in net.state_dict().items():
            part, _, rest = name.partition(".")
            there = f"{renamed.get(part, part)}.{rest}"
            if there not in given:
                raise bad("weights", f"a tensor called {there} in {file}", sorted(given)[:5])
            _check_same_shape("weights", there, mine, given[there], file)
            mine.copy_(given[there])


def _find_matching(name: str, mine: Tensor, given: Mapping[str, Tensor], file: str) -> Tensor:
    *front, last = ("net", *name.split("."))
    for start in range(len(front) + 1):
        for end in (last, *([f"running_{last}"] if last in _STATISTICS else [])):
            other = given.get(".".join((*front[start:], end)))
            if other is None:
                continue
            _check_same_shape("root_file", name, mine, other, file)
            return other
    raise bad("root_file", f"a tensor called {name} in {file}", sorted(given)[:5])


def _check_same_shape(argument: str, name: str, mine: Tensor, other: Tensor, file: str) -> None:
    if other.shape != mine.shape:
        raise bad(argument, f"{name} of shape {tuple(mine.shape)} in {file}", tuple(other.shape))


def _tensors(file: Path, argument: str) -> Mapping[str, Tensor]:
    try:
        found = _read(file)
    except Exception as error:  # of many kinds, all of which say that the file is no such thing
        expected = "safetensors, or a state_dict that torch saved without other objects"
        raise bad(argument, expected, f"{file.name} ({type(error).__name__})") from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]  # saved beside an epoch, an optimiser
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise bad(argument, f"tensors by name in {file.name}", type(found).__name__)
    wrapped = all(str(name).startswith(_WRAPPED) for name in found)
    return {str(name).removeprefix(_WRAPPED if wrapped else ""): v for name, v in found.items()}


def _read(file: Path) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)
