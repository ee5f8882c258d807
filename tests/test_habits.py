"""The files that forges and editors read: they parse, and say what the package says."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import yaml

from engram import __version__

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Required, and typed in themselves or by stubs that `dev` brings.
TYPED = {"PIL", "jinja2", "markupsafe", "numpy", "pandas", "pydantic", "rich", "torch", "typer",
         "yaml"}  # fmt: skip


def parse(path: str) -> dict[str, object]:
    found = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    assert isinstance(found, dict), path
    return found


def workflow(name: str) -> tuple[dict, dict]:
    """When it runs (YAML reads the word `on` as true), and its jobs."""
    found = parse(f".github/workflows/{name}.yml")
    return found[True], found["jobs"]


def test_ci_runs_the_whole_check_on_every_supported_python():
    when, jobs = workflow("ci")
    assert {"push", "pull_request"} <= set(when)
    matrix = jobs["check"]["strategy"]["matrix"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(CONFIG["project"]["classifiers"]))
    assert matrix["python"] == classifiers
    assert matrix["os"] == ["ubuntu-latest", "macos-latest"]
    assert ".ci/run" in [step.get("run") for step in jobs["check"]["steps"]]


def test_only_a_checked_tag_is_published():
    when, jobs = workflow("release")
    assert when == {"push": {"tags": ["v*"]}}
    assert set(jobs["publish"]["needs"]) == {"check", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_other_files_of_the_forge_parse():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert forms
    for form in forms:
        parse(str(form.relative_to(ROOT)))
    (repo,) = parse(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repo["hooks"]:  # what `make style` runs; hooks may mend it
        assert " ".join(hook["entry"].split()[:2]).removeprefix(".venv/bin/") in makefile
    assert parse("CITATION.cff")["version"] == __version__


def test_types_do_not_depend_on_what_is_installed():
    skipped = {
        name.removesuffix(".*")
        for one in CONFIG["tool"]["mypy"]["overrides"]
        if one.get("follow_imports") == "skip"
        for name in one["module"]
    }
    used = set()
    for path in (ROOT / "src/engram").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                used.add(str(node.module).partition(".")[0])
    assert used - sys.stdlib_module_names - TYPED - skipped == {"engram"}
