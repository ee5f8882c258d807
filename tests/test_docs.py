"""The documentation's links lead somewhere, its examples run, and the project speaks of itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from engram.cli import app
from engram.models import models

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / each for each in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

# Written in pieces, so that this file does not contain what it looks for.
PLACES = re.compile(rb"/(w[o]rk|f[a]rm|r[o]ot|h[o]me)/")
HOSTS = [b"pypi" + b".org", b"python" + b"hosted", b"/opt" + b"/wheels", b"/opt" + b"/pypi"]
BESIDE = b"../" + b"shared"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    """The link target a heading gets: lower case, no punctuation, spaces to dashes."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def dead_links(page: Path) -> list[str]:
    """Relative links of a page that lead to no file or no heading."""
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):  # http:, https:, mailto:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            dead.append(link)
        elif heading and target.suffix == ".md":
            text = FENCE.sub("", target.read_text(encoding="utf-8"))
            if heading not in map(anchor, HEADING.findall(text)):
                dead.append(link)
    return dead


def examples(page: Path) -> list[str]:
    """The code blocks of a page that open with `python run`."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for info, code in blocks if info.split() == ["python", "run"]]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b\n[x](nowhere.md) [y](#a-b) [z](#c) [w](https://x.org/)\n```\n[v](u)\n```\n"
    )
    assert dead_links(page) == ["nowhere.md", "#c"]


def named_files(text: str) -> set[str]:
    """Files of the package that a page names in backticks, `engine/run_definition.py`."""
    return {path for path in re.findall(r"`([a-z_/]+/\w+\.py)`", text) if "NAME" not in path}


def test_architecture_names_files_that_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"[a-z]+(?:/[a-z_]+)+\.py", FENCE.findall(text)[0][1]))
    named = {path for path in named_files(text) if not path.startswith("tests/")} | drawn
    assert {path for path in named if not (ROOT / "src" / "engram" / path).is_file()} == set()
    package = ROOT / "src" / "engram"
    engine = {path.relative_to(package).as_posix() for path in package.glob("engine/**/*.py")}
    unnamed = {path for path in engine - named if not path.endswith("/__init__.py")}
    assert unnamed == set()  # the guide through the engine is complete


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__example__")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "__example__", module)
    for code in examples(page):  # blocks of one page build on each other
        exec(compile(code, name(page), "exec", dont_inherit=True), module.__dict__)


def commands(text: str) -> list[str]:
    """Calls of `engram` in the code blocks and between the backticks of a page."""
    blocks = [code for info, code in FENCE.findall(text) if not info.startswith("python")]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(engram [^`]+)`", FENCE.sub("", text))
    return [found[1] for line in lines if (found := re.match(r"(?:\w+=\S+ )*(engram .+)", line))]


def misused(line: str) -> str:
    """The command or option of a call that is not there, if any; nothing is run."""
    command, args = get_command(app), shlex.split(line, comments=True)[1:]
    while isinstance(command, TyperGroup):
        if not args or args[0].startswith("-"):
            return ""
        if args[0] not in command.commands:
            return f"no command {args[0]}"
        command, args = command.commands[args[0]], args[1:]
    try:
        command.make_context("engram", [arg for arg in args if arg != "..."])
    except typer.Exit:  # --help
        return ""
    except TyperException as error:
        message = error.format_message()
        return message if "No such option" in message else ""  # values may be left out, or be N
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_understood(page):
    found = {line: misused(line) for line in commands(page.read_text(encoding="utf-8"))}
    assert {line: said for line, said in found.items() if said} == {}


def test_misused_commands_are_found():
    page = "```sh\nA=1 engram run --sedes 3\n```\n`engram load` and `engram data list --all`\n"
    said = [misused(line) for line in commands(page)]
    assert "--sedes" in said[0]
    assert said[1:] == ["no command load", ""]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_models_are_there(page):
    named = re.findall(r"\bmodel=\"(\w+)\"", page.read_text(encoding="utf-8"))
    assert set(named) <= set(models())


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: no list of tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / p.decode() for p in listed.stdout.split(b"\0") if p]
    return [p for p in paths if p.is_file()]


def foreign_words(content: bytes) -> list[str]:
    """Paths of one machine and hosts of package registries."""
    words = [found.group().decode() for found in PLACES.finditer(content)]
    return words + [host.decode() for host in HOSTS if host in content]


def test_project_speaks_only_of_itself():
    found = {name(p): words for p in tracked() if (words := foreign_words(p.read_bytes()))}
    assert found == {}


def test_nothing_reaches_beside_the_checkout():
    found = [name(p) for p in tracked() if BESIDE in p.read_bytes()]
    assert set(found) <= {".ci/run"}  # the one place that looks, and only if it is there


def test_foreign_words_are_found():
    for word in ("/wo" + "rk/x", "/ho" + "me/me", "https://py" + "pi.org/simple"):
        assert foreign_words(f"see {word}".encode())
    assert not foreign_words(b"engram/data/dataset.py and homework/root")


def test_what_verbs_are_given_is_there():
    """The names in the tables of the guide are those of the classes, and none that is closed."""
    from engram.learner.batch import Batch
    from engram.learner.learner_proxy import KNOWN
    from engram.learner.networks import Net
    from engram.methods.method import RESERVED_NAMES

    page = (ROOT / "docs/guide/own-method.md").read_text(encoding="utf-8")
    part = page.split("## What the verbs are given")[1].split("\n## ")[0]
    tables = {
        "net": ({*dir(Net), *RESERVED_NAMES, "phase", "generator"}, set()),
        "batch": ({*dir(Batch)}, set(Batch._fields) - {"now", "times"}),  # the latter: `clock`
        "learner": (set(KNOWN), {"vector", "state", "exemplars", "batch", "average_gradient"}),
    }
    for table in re.split(r"\n\n(?=\| `)", part)[1:]:
        head, *rows = table.strip().splitlines()
        allowed, needed = tables.pop(re.match(r"\| `(\w+)`", head).group(1))
        first = " ".join(row.split(" | ")[0] for row in rows[1:] if row.startswith("|"))
        named = {re.sub(r"^net\.", "", one) for one in re.findall(r"`((?:net\.)?\w+)", first)}
        assert named - {"net"} <= allowed
        assert needed <= named
    assert not tables
