"""Names that a shell completes. They are read from the source files: importing torch for a key
stroke would take seconds.
"""

from __future__ import annotations

import ast
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# where the names of a kind are written down: a file, and the variable in it
_LISTS = {
    "methods": ("methods/__init__.py", "__all__"),
    "models": ("models/build.py", "_MODELS"),
    "streams": ("streams/__init__.py", "SCENARIOS"),
    "data": ("data/known.py", "KNOWN"),
    "tools": ("records/export/live.py", "TOOLS"),
}


def names(kind: str) -> list[str]:
    """All names of a kind, without an import.

    Examples
    --------
    >>> names("models")[:2]
    ['mlp', 'lenet']
    """
    file, variable = _LISTS[kind]
    tree = ast.parse((_PACKAGE / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and target.id == variable and node.value is not None:
            return _listed(node.value)
    return []


def _listed(value: ast.expr) -> list[str]:
    """Texts of a list, keys of a dict, or the functions that a dict is made of."""
    if isinstance(value, ast.Dict):
        return [str(k.value) for k in value.keys if isinstance(k, ast.Constant)]
    if isinstance(value, ast.DictComp):
        functions = value.generators[0].iter
        return [node.id for node in ast.walk(functions) if isinstance(node, ast.Name)]
    return [str(k.value) for k in ast.walk(value) if isinstance(k, ast.Constant)]


def methods(incomplete: str) -> list[str]:
    """Methods; of ``A+B`` the last part is completed.

    Examples
    --------
    >>> methods("LwF+EWC")
    ['LwF+EWC', 'LwF+EWCpp']
    """
    before, plus, last = incomplete.rpartition("+")
    return [before + plus + name for name in sorted(names("methods")) if name.startswith(last)]


def models(incomplete: str) -> list[str]:
    """Networks."""
    return _starting("models", incomplete)


def streams(incomplete: str) -> list[str]:
    """Scenarios."""
    return _starting("streams", incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Data sets by name; files are the shell's own business."""
    return _starting("data", incomplete)


def tools(incomplete: str) -> list[str]:
    """Tools that are told of runs while they train."""
    return _starting("tools", incomplete)


def _starting(kind: str, incomplete: str) -> list[str]:
    return [name for name in sorted(names(kind)) if name.startswith(incomplete)]
