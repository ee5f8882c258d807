"""Which package may import which, no circles, and nothing heavy before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "engram"

BASE = {"errors", "keys", "losses", "shares", "yaml_text"}
STATE = BASE | {"data", "streams", "models", "memory"}  # what a learner is built from
ENGINE = STATE | {"learner", "methods", "metrics"}
STUDY = ENGINE | {"engine", "novelty", "probes", "records"}

# Each package and the lower ones it may import. A new package needs a line here.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "keys": {"errors"},
    "losses": {"errors"},
    "shares": set(),
    "yaml_text": {"errors"},
    "data": BASE,
    "streams": BASE | {"data"},
    "models": BASE | {"data", "streams"},
    "memory": BASE | {"data", "streams", "models"},
    "learner": STATE,
    "methods": STATE | {"learner"},
    "metrics": {"errors"},
    "novelty": STATE | {"learner", "probes", "records"},
    "engine": ENGINE,
    "records": {"errors", "metrics", "yaml_text"},
    "probes": STATE | {"learner", "methods", "metrics", "records"},
    "recipes": STUDY,
    "pools": STUDY | {"recipes"},
    "report": {"errors", "metrics", "records", "recipes", "pools"},
    "reproduce": STUDY | {"recipes", "report"},
    "checks": STUDY | {"recipes", "pools"},
    "cli": STUDY | {"recipes", "pools", "report", "reproduce", "checks"},
    "__main__": {"cli"},
}

HEAVY = ("torch", "pandas", "sklearn", "scipy", "plotly", "pyarrow")


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


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What module `name` imports from its own package."""
    root = name.split(".")[0]
    is_package = path.name == "__init__.py"
    for node, for_types in statements(ast.parse(path.read_text(encoding="utf-8"))):
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


def loaded_after(code: str) -> list[str]:
    """Which of the heavy packages are loaded once `code` has run in a fresh interpreter."""
    report = f"\nimport sys\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_importing_engram_is_light():
    assert loaded_after("import engram; dir(engram); engram.__version__") == []


def test_heavy_packages_are_noticed():
    assert loaded_after("import scipy") == ["scipy"]


def test_help_is_light():
    if not (PACKAGE / "cli.py").exists() and not (PACKAGE / "cli").exists():
        pytest.skip("engram.cli is not written yet")
    code = (
        "import sys\nsys.argv = ['engram', '--help']\nfrom engram.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_after(code) == []


def kinds_of_public_names(first: str) -> str:
    """Type of each public name, in a fresh interpreter that has run `first`."""
    show = "\nimport engram\nprint({n: type(getattr(engram, n)).__name__ for n in engram.__all__})"
    done = subprocess.run(
        [sys.executable, "-c", first + show], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names_do_not_depend_on_what_was_imported_before():
    # Importing a subpackage binds its name in `engram`: a function of the same name would vanish.
    if "__all__" not in (PACKAGE / "__init__.py").read_text(encoding="utf-8"):
        pytest.skip("engram has no list of public names yet")
    packages = [n for n in modules(PACKAGE) if n.count(".") == 1 and not n.endswith("__main__")]
    assert kinds_of_public_names("") == kinds_of_public_names(f"import {', '.join(packages)}")


@pytest.mark.parametrize("name", ["losses", "keys"])
def test_a_module_is_an_attribute_from_the_start(name):
    loaded_after(f"import engram; assert engram.{name}.__name__ == 'engram.{name}'")


def test_every_package_is_an_attribute():
    import engram

    unwritten = {name for name in ALLOWED if find_spec(f"engram.{name}") is None}
    for name in {*ALLOWED} - unwritten - {"__main__", "cli"}:
        assert engram.__getattr__(name).__name__ == f"engram.{name}"
