"""Facts about the software and device of a run; nothing that identifies the machine."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "engram-cl", "torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "safetensors",
)  # fmt: skip


def environment(device: Any = None, **timings: float) -> dict[str, Any]:
    """Collect versions, device, git commits and timings in seconds.

    `engram` is the library itself, with its commit if it runs from a checkout; `git` is the working
    directory.

    Examples
    --------
    >>> facts = environment("cpu", training=12.5)
    >>> facts["device"]["name"], facts["timings"]
    ('cpu', {'training': 12.5})
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "engram": _own_version(),
        "packages": _versions(),
        "device": _device(device),
        "git": _git(os.getcwd()),
        "timings": {name: float(seconds) for name, seconds in timings.items()},
    }


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _device(device: Any) -> dict[str, Any]:
    """Describe the device by name and, if torch is loaded, by model and threads."""
    name = "cpu" if device is None else str(device)
    facts: dict[str, Any] = {"name": name, "cores": os.cpu_count()}
    torch = sys.modules.get("torch")
    if torch is None:
        return facts
    facts["threads"] = torch.get_num_threads()
    if name.startswith("cuda") and torch.cuda.is_available():
        facts["model"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


@functools.cache
def _own_version() -> dict[str, Any]:
    """Return the version of the code that runs, and its commit if git knows this file."""
    version = getattr(sys.modules.get("engram"), "__version__", None)
    file = Path(__file__)
    try:  # an installed package may lie inside the repository of another project
        _ask_git(str(file.parent), "ls-files", "--error-unmatch", file.name)
    except (OSError, subprocess.SubprocessError):
        return {"version": version, "git": None}
    return {"version": version, "git": _git(str(file.parent))}


@functools.cache
def _git(folder: str) -> dict[str, Any] | None:
    """Return the commit and whether tracked files differ; None outside a git checkout."""
    try:
        commit = _ask_git(folder, "rev-parse", "HEAD")
        changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changed)}


def _ask_git(folder: str, *words: str) -> str:
    command = ["git", "-C", folder, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
