"""Which package may import which, and no circles. It reads files only: `make lint` runs it, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "engram"

BASE = {
    "distributed",
    "errors",
    "html_repr",
    "io",
    "keys",
    "linear_algebra",
    "losses",
    "per_run",
    "plugins",
    "process",
    "renamed",
}
STATE = BASE | {"data", "streams", "models", "memory"}  # what a learner is built from
ENGINE = STATE | {"learner", "methods", "metrics"}
STUDY = ENGINE | {"engine", "novelty", "probes", "records"}

# Each package and the lower ones it may import. A new package needs a line here.
ALLOWED: dict[str, set[str]] = {
    "distributed": {"errors", "process"},
    "errors": set(),
    "html_repr": set(),
    "io": {"errors"},
    "key_kernels": set(),
    "keys": {"errors", "key_kernels"},
    "linear_algebra": set(),
    "losses": {"errors"},
    "per_run": set(),
    "plugins": {"errors"},
    "process": set(),
    "renamed": {"errors"},
    "data": BASE,
    "streams": BASE | {"data"},
    "models": BASE | {"data", "streams"},
    "memory": BASE | {"data", "streams", "models"},
    "learner": STATE,
    "methods": STATE | {"learner"},
    "metrics": {"errors"},
    "novelty": STATE | {"learner", "metrics", "probes", "records"},
    "engine": ENGINE | {"records"},
    "records": {"errors", "html_repr", "io", "metrics"},
    "probes": STATE | {"learner", "methods", "metrics", "records"},
    "experiments": STUDY,
    "deploy": STUDY | {"experiments"},
    "serve": STUDY | {"experiments", "deploy"},
    "report": {"errors", "experiments", "html_repr", "io", "metrics", "records", "streams"},
    "reproduce": STUDY | {"experiments", "report"},
    "checks": STUDY | {"experiments"},
    "cli": STUDY | {"experiments", "deploy", "serve", "report", "reproduce", "checks"},
    "__main__": {"cli"},
}


@dataclass(frozen=True)
class Import:
    """One import statement's target inside the package."""

    target: str  # dotted module
    line: int
    for_types: bool  # under `if TYPE_CHECKING`


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name, packages under their own."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(
    node: ast.AST, for_types: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All import statements, those inside functions too."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, for_types
    guarded = list(node.body) if is_type_checking(node) else []  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        yield from statements(child, for_types or child in guarded)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What module `name` imports from its own package."""
    root = name.split(".")[0]
    is_package = path.name == "__init__.py"
    for node, for_types in statements(parsed(path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: None if is_package else -1]
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*parents, base] if base else parents)
            inside = [f"{base}.{alias.name}" for alias in node.names]
            targets = [deep if deep in known else base for deep in inside]
            targets += [d for d in inside if base == root and d not in known]
        for target in dict.fromkeys(targets):
            if target.split(".")[0] == root and target != root:
                yield Import(target, node.lineno, for_types)


def layer_faults(package: Path, allowed: dict[str, set[str]]) -> list[str]:
    """Imports that go upwards, or to a package that the table does not know."""
    known = modules(package)
    faults = []
    for name, path in known.items():
        layer = name.split(".")[1] if "." in name else "__init__"
        if layer != "__init__" and layer not in allowed:
            faults.append(f"{name}: package {layer!r} has no line in ALLOWED")
            continue
        for found in imports(name, path, known):
            target = found.target.split(".")[1]
            where = f"{path.relative_to(package.parent)}:{found.line}"
            if target == "__version__" or target == layer:
                continue
            if target not in allowed:
                faults.append(f"{where}: imports {found.target}, not a package of the table")
            elif layer == "__init__":
                if not found.for_types:
                    faults.append(f"{where}: imports {found.target} before it is asked for")
            elif target not in allowed[layer] and not found.for_types:
                faults.append(f"{where}: {layer} may not import {found.target}")
    return faults


def cycle(package: Path) -> list[str]:
    """A circle of modules that import each other, empty if there is none."""
    known = modules(package)
    graph = {
        name: {i.target for i in imports(name, path, known) if not i.for_types} - {name}
        for name, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def write(package: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_table_is_a_hierarchy():
    assert set().union(*ALLOWED.values()) <= set(ALLOWED)
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_packages_import_downwards_only():
    faults = layer_faults(PACKAGE, ALLOWED)
    assert not faults, "\n".join(faults)


def test_modules_form_no_circle():
    assert not cycle(PACKAGE)


@pytest.mark.parametrize(
    "text",
    [
        "from pkg.high import x",
        "import pkg.high.deep",
        "from pkg import high",
        "from ..high import x",
        "def f():\n    from pkg.high import x",
        "try:\n    import pkg.high\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import pkg.high",
        "if TYPE_CHECKING:\n    import pkg.nowhere",
        "from pkg import run",
    ],
)
def test_faults_are_found(tmp_path, text):
    files = {"__init__.py": "", "low/__init__.py": "", "low/a.py": text, "high/__init__.py": ""}
    package = write(tmp_path / "pkg", files)
    assert len(layer_faults(package, {"low": set(), "high": {"low"}})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from pkg.low import x",
        "from pkg import low, __version__",
        "import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.top import x",
    ],
)
def test_good_imports_pass(tmp_path, text):
    files = {"__init__.py": "", "low/__init__.py": "", "top.py": "", "high/a.py": text}
    package = write(tmp_path / "pkg", files)
    assert not layer_faults(package, {"low": set(), "high": {"low"}, "top": {"high"}})


def test_eager_import_in_the_root_is_a_fault(tmp_path):
    package = write(tmp_path / "pkg", {"__init__.py": "from pkg.low import x", "low.py": ""})
    assert layer_faults(package, {"low": set()})


def test_circles_are_found(tmp_path):
    files = {"a.py": "def f():\n    import pkg.b", "b.py": "from pkg import a", "c.py": ""}
    assert set(cycle(write(tmp_path / "pkg", files))) == {"pkg.a", "pkg.b"}
