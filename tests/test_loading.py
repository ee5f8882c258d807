"""What is loaded when: nothing heavy before it is needed, every public name at any time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.test_imports import ALLOWED, PACKAGE, modules

HEAVY = ("torch", "pandas", "sklearn", "scipy", "plotly", "pyarrow")
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")  # .8 s of CPU time


# Between two questions to one interpreter, so that torch need not be loaded for each.
FORGET = """
import sys
for name in [name for name in sys.modules if name.split(".")[0] == "engram"]:
    del sys.modules[name]
"""


def printed(code: str) -> list[str]:
    """The lines that `code` prints in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loaded_after(code: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of the heavy packages are loaded once `code` has run in a fresh interpreter."""
    report = f"\nimport sys\nprint('LOADED', *[m for m in {heavy!r} if m in sys.modules])"
    return printed(code + report)[-1].split()[1:]


def test_importing_engram_is_light():
    assert loaded_after("import engram; dir(engram); engram.__version__") == []


def test_heavy_packages_are_noticed():
    assert loaded_after("import scipy") == ["scipy"]


@pytest.mark.parametrize(("words", "expected"), [
    (["--help"], []), (["run", "--help"], []), (["list", "metrics"], []),
    (["list"], ["torch"]), (["list", "methods", "EWC"], ["torch"]),
    (["list", "datasets"], ["torch"]),
])  # fmt: skip
def test_looking_around_is_light(words, expected):
    code = (
        f"import sys\nsys.argv = ['engram', *{words!r}]\nfrom engram.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_after(code, (*HEAVY, *COMPILER)) == expected


def test_training_does_not_load_the_compiler_of_torch():
    code = """
import engram
from engram.methods import EWC, GEM, MAS, TWP
blobs = engram.load("blobs")
for together in (False, True):
    engram.run(blobs, method=[EWC(), GEM(), MAS()], epochs=1, together=together, device="cpu")
engram.run(engram.load("shapes"), method=EWC(), model="cnn", epochs=1, device="cpu")
skeletons = engram.load("skeletons", per_class=10, frames=3)
engram.run(skeletons, method=TWP(), model="gcn", epochs=1, seeds=2, together=True, device="cpu")
"""
    assert loaded_after(code, COMPILER) == []


def test_the_compiler_of_torch_is_noticed():
    assert loaded_after("import torch._dynamo", COMPILER) != []


def test_public_names_do_not_depend_on_what_was_imported_before():
    # Importing a subpackage binds its name in `engram`: a function of the same name would vanish.
    last = ("__main__", "_kernels")  # runs something; needs Triton
    packages = [n for n in modules(PACKAGE) if n.count(".") == 1 and not n.endswith(last)]
    show = "import engram\nprint({n: type(getattr(engram, n)).__name__ for n in engram.__all__})\n"
    first, second = printed(f"{show}{FORGET}import {', '.join(packages)}\n{show}")
    assert first == second


def test_a_module_is_an_attribute_from_the_start():
    parts = [
        f"import engram\nassert engram.{name}.__name__ == 'engram.{name}'\n"
        for name in ("losses", "keys")
    ]
    printed(FORGET.join(parts))


def test_every_package_is_an_attribute():
    import engram

    for name in {*ALLOWED} - {"__main__", "cli", "key_kernels"}:
        assert engram.__getattr__(name).__name__ == f"engram.{name}"
