"""What gets installed: all files of the package, with all requirements pinned."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "engram"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(found), "constraints.txt: expected lines of the form name==version"
    return {pin[1]: pin[2] for pin in found if pin}


def test_requirements_are_pinned():
    project = CONFIG["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=\[ ]", each)[0].lower() for each in wanted}
    assert names - set(pins()) == set()


def test_every_requirement_has_a_lowest_version_that_its_pin_reaches():
    for each in CONFIG["project"]["dependencies"]:
        name, least = each.lower().split(">=")
        low, pinned = (tuple(map(int, one.split("."))) for one in (least, pins()[name]))
        assert low <= pinned, each


def test_torch_pin_accepts_the_supported_versions():
    assert pins()["torch"] == "2.13.0"
    assert "torch>=2.11" in CONFIG["project"]["dependencies"]


def test_every_file_of_the_package_is_shipped():
    patterns = CONFIG["tool"]["setuptools"]["package-data"]["engram"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    shipped |= set(PACKAGE.rglob("*.py")) | set(PACKAGE.rglob("*.pyc"))
    missing = {p for p in PACKAGE.rglob("*") if p.is_file()} - shipped
    assert not missing, f"add to package-data in pyproject.toml: {sorted(map(str, missing))}"


def test_every_directory_of_modules_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").exists()] == []


def extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = CONFIG["project"]["optional-dependencies"]
    return found


def name_of(requirement: str) -> str:
    return re.split(r"[<>=\[ ]", requirement)[0].lower()


def test_what_results_are_sent_with_is_pinned():
    for extra in ("export", "docs", "release"):
        assert {name_of(each) for each in extras()[extra]} <= set(pins())


def test_every_extra_is_used_and_described():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("| extra | installs | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(extras())
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    # MLflow needs two for its database, torch one for ONNX; nobody else imports them.
    modules = {"mlflow-skinny": "mlflow", "torch-geometric": "torch_geometric",
               "pytorch-ood": "pytorch_ood", "prometheus-client": "prometheus_client"}  # fmt: skip
    for extra in set(extras()) - {"dev", "docs", "release"}:
        for each in map(name_of, extras()[extra]):
            if each not in ("sqlalchemy", "alembic", "onnxscript"):
                module = modules.get(each, each)
                assert re.search(rf"(import|from) {module}|import_extra\(\"{module}", source), each


def test_links_of_the_description_lead_somewhere_without_a_clone():
    setup = runpy.run_path(str(ROOT / "setup.py"))
    text = "[a](b.md#c) ![d](e.svg) [f](https://g) [h](#i)"
    assert setup["absolute_links"](text, "https://x") == (
        "[a](https://x/blob/main/b.md#c) ![d](https://x/raw/main/e.svg) [f](https://g) [h](#i)"
    )
    assert setup["absolute_links"](text, "") == "a  [f](https://g) [h](#i)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for address in ("", "https://host/owner/engram"):
        links = re.findall(r"\]\(([^)]+)\)", setup["absolute_links"](readme, address))
        assert [link for link in links if not link.startswith(("https://", "#"))] == []
        shown = f"{address}/raw/main/docs/images/forgetting.svg" in links
        assert shown == bool(address)


def test_the_address_is_given_in_one_place():
    project_urls = runpy.run_path(str(ROOT / "setup.py"))["project_urls"]
    assert project_urls("") == {}
    urls = project_urls("https://host/owner/engram")
    assert urls["Repository"] == "https://host/owner/engram"
    assert all(url.startswith("https://host/owner/engram") for url in urls.values())
    # made-up hosts of examples are example.com, and nothing links there
    assert "example" not in CONFIG["tool"]["engram"]["repository"]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The wheel and the source distribution, built from a copy of what they are made of."""
    place = tmp_path_factory.mktemp("build")
    shutil.copytree(
        ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in",
                 "CHANGELOG.md", "CITATION.cff"):  # fmt: skip
        shutil.copy(ROOT / name, place)
    (place / "benchmarks").mkdir()
    (place / "benchmarks" / "large.csv").write_text("not for users")
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=place, check=True, capture_output=True)
    (wheel,), (source,) = (place / "dist").glob("*.whl"), (place / "dist").glob("*.tar.gz")
    return zipfile.ZipFile(wheel), tarfile.open(source)


def test_the_wheel_has_the_package_and_its_licence(distributions):
    wheel, _ = distributions
    version = runpy.run_path(str(PACKAGE / "__init__.py"))["__version__"]
    about = f"engram_cl-{version}.dist-info"
    own = {p.relative_to(PACKAGE.parent).as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    own = {name for name in own if "__pycache__" not in name}
    rest = set(wheel.namelist()) - own
    assert own <= set(wheel.namelist())
    assert rest == {
        f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt",
                                       "top_level.txt", "licenses/LICENSE")
    }  # fmt: skip
    assert sum(one.compress_size for one in wheel.infolist()) < 4 << 20
    facts = wheel.read(f"{about}/METADATA").decode()
    for line in ("Name: engram-cl", f"Version: {version}", "License-Expression: MIT",
                 "License-File: LICENSE", "Description-Content-Type: text/markdown"):  # fmt: skip
        assert f"\n{line}\n" in facts
    assert ("Project-URL:" in facts) == bool(CONFIG["tool"]["engram"]["repository"])
    assert "engram = engram.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()


def test_the_source_distribution_builds_the_package_and_has_no_more(distributions):
    _, source = distributions
    names = {name.partition("/")[2] for name in source.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert "src/engram/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def test_extras_bring_something():
    assert [name for name, wanted in extras().items() if not wanted] == []
