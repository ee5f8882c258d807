"""What is loaded when: nothing heavy before it is needed, every public name at any time."""

from __future__ import annotations

import subprocess
import sys

from tests.test_imports import ALLOWED, PACKAGE, modules

HEAVY = ("torch", "pandas", "sklearn", "scipy", "plotly", "pyarrow")


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


def loaded_after(code: str) -> list[str]:
    """Which of the heavy packages are loaded once `code` has run in a fresh interpreter."""
    report = f"\nimport sys\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    return printed(code + report)[-1].split()[1:]


def test_importing_engram_is_light():
    assert loaded_after("import engram; dir(engram); engram.__version__") == []


def test_heavy_packages_are_noticed():
    assert loaded_after("import scipy") == ["scipy"]


def test_help_is_light():
    code = (
        "import sys\nsys.argv = ['engram', '--help']\nfrom engram.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_after(code) == []


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
