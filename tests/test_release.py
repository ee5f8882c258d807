"""`make release`: what it refuses, writes, and puts back."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / ".ci" / "release.py"))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with the three files that a release writes."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "A")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@example.com")
    (tmp_path / "src" / "engram").mkdir(parents=True)
    (tmp_path / "src" / "engram" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.2.0] - unreleased\n\n- x\n")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.1.0\nlicense: MIT\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_a_release_is_one_commit_with_a_tag(tool, checkout):
    built = []
    tool["release"](checkout, "0.2.0", "git --version", lambda *given: built.append(given))
    assert built == [(checkout, "0.2.0")]
    git, today = tool["ask_git"], tool["datetime"].now(tool["UTC"]).date().isoformat()
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "describe") == "v0.2.0"
    assert '__version__ = "0.2.0"' in (checkout / "src" / "engram" / "__init__.py").read_text()
    assert f"## [0.2.0] - {today}" in (checkout / "CHANGELOG.md").read_text()
    cited = (checkout / "CITATION.cff").read_text()
    assert f"cff-version: 1.2.0\nversion: 0.2.0\ndate-released: {today}\nlicense" in cited


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "next", "0.3.0"])
def test_what_no_release_can_be_called(tool, checkout, version):
    with pytest.raises(tool["Refused"], match=r"VERSION|CHANGELOG"):
        tool["release"](checkout, version, "", print)


def test_a_tree_with_changes_is_refused(tool, checkout):
    (checkout / "new.txt").write_text("")
    with pytest.raises(tool["Refused"], match=r"new\.txt"):
        tool["release"](checkout, "0.2.0", "", print)


def test_a_release_happens_once(tool, checkout):
    subprocess.run(["git", "-C", str(checkout), "tag", "v0.2.0"], check=True)
    with pytest.raises(tool["Refused"], match=r"v0\.2\.0 exists"):
        tool["release"](checkout, "0.2.0", "", print)


@pytest.mark.parametrize("check", ["git no-such-command", ""])
def test_what_fails_leaves_no_trace(tool, checkout, check):
    def build(*_):
        raise tool["Refused"]("no wheel")

    with pytest.raises((tool["Refused"], subprocess.CalledProcessError)):
        tool["release"](checkout, "0.2.0", check, build)
    git = tool["ask_git"]
    assert git(checkout, "status", "--porcelain") == git(checkout, "tag") == ""


def test_the_files_are_there():
    """The patterns by which a version is written fit the files of this checkout."""
    tool = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in tool["PLACES"]}
    texts["CHANGELOG.md"] += "\n## [9.9.9] - unreleased\n"
    for text in tool["write_version"](texts, "9.9.9", "2030-01-01").values():
        assert "9.9.9" in text
