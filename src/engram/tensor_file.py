"""Tensors in a file with checksums: a bit that flips on the disk is noticed, not computed with.

The files are plain safetensors; sums stand in the header beside the facts, one for each tensor, so
that a reader of one tensor checks just that.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.disk import appearing
from engram.errors import RecordError

SUMS = "checksums"  # in the header
_OWN = "checksum"  # of the header's other entries


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], facts: Mapping[str, str]
) -> Path:
    """Write tensors, or arrays, by name, and facts beside them, as one file that appears whole.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"x": np.ones(2)}, {"of": "me"})
    >>> file = TensorFile(path)
    >>> file.facts["of"], file.get("x").tolist()
    ('me', [1.0, 1.0])
    """
    sums = json.dumps({name: checksum(name, one) for name, one in tensors.items()})
    header = {**facts, SUMS: sums}
    header[_OWN] = _header_sum(header)
    with appearing(path) as temporary:
        _save_file(dict(tensors), temporary, header)
    return Path(path)


def _save_file(tensors: dict[str, Any], path: Path, header: dict[str, str]) -> None:
    from safetensors import SafetensorError

    first = next(iter(tensors.values()), None)
    try:
        if hasattr(first, "detach"):
            from safetensors.torch import save_file as save_torch

            save_torch(tensors, path, metadata=header)
        else:
            from safetensors.numpy import save_file

            save_file(tensors, str(path), metadata=header)
    except SafetensorError as problem:  # it tells of the disk in words only
        number = re.search(r"(?:code: |os error )(\d+)", str(problem))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code)) from problem


def checksum(name: str, tensor: Any) -> int:
    """A sum over the name, the kind and the bytes of a tensor or an array."""
    kind = f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if 0 in tensor.shape:  # without numbers there may be no stride by which to read bytes
        return zlib.crc32(kind.encode())
    if hasattr(tensor, "detach"):  # numpy knows no bfloat16
        import torch

        tensor = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
    return zlib.crc32(tensor.reshape(-1).data, zlib.crc32(kind.encode()))


def _header_sum(header: Mapping[str, str]) -> str:
    entries = sorted((k, v) for k, v in header.items() if k != _OWN)
    return str(zlib.crc32(json.dumps(entries).encode()))


class TensorFile:
    """A file of tensors, open for reading; what is read is checked.

    Parameters
    ----------
    what
        What the file should be, for the error that names it.
    framework
        ``np`` for arrays, ``pt`` for tensors.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, what: str = "file of tensors", framework: str = "np"
    ) -> None:
        from safetensors import SafetensorError, safe_open

        self.path, self.what = Path(path), what
        if not self.path.is_file():
            found = "is not a regular file" if self.path.exists() else "does not exist"
            raise RecordError(f"{path}: {found}, expected a {what}")
        try:
            file: Any = safe_open(str(path), framework=framework)
            self.facts: dict[str, str] = file.metadata() or {}
            self._sums = json.loads(self.facts.get(SUMS, "null"))
        except (SafetensorError, OSError, ValueError) as problem:
            raise RecordError(f"{path}: is not a valid {what} ({problem})") from problem
        self._file = file
        if not isinstance(self._sums, dict):
            raise RecordError(f"{path}: is not a valid {what} (no checksums in its header)")
        if self.facts.get(_OWN) != _header_sum(self.facts):
            raise self._damaged("its header")

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._file.keys())

    def get(self, name: str) -> Any:
        """One tensor; `RecordError` with the file's name where it is not as it was written."""
        from safetensors import SafetensorError

        try:
            found = self._file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as problem:
            raise RecordError(f"{self.path}: is not a valid {self.what} ({problem})") from problem
        if self._sums.get(name) != checksum(name, found):
            raise self._damaged(repr(name))
        return found

    def _damaged(self, part: str) -> RecordError:
        return RecordError(f"{self.path}: is damaged (checksum mismatch in {part})")
