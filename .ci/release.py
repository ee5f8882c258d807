"""Make a release: version, changelog, build, checks, commit, tag. Nothing is published.

    make release VERSION=0.2.0

The version goes into the package and CITATION.cff, today's date into the changelog, whose section
must be there: ``## [0.2.0] - unreleased``. Then the whole check runs, wheel and source distribution
are built and looked at, and the commit gets the tag v0.2.0. If anything fails, the files are put
back as they were. Whoever pushes the tag publishes.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
PLACES = ("src/engram/__init__.py", "CHANGELOG.md", "CITATION.cff")


class Refused(Exception):
    """Something is not as a release needs it; nothing was changed."""


def release(
    root: Path, version: str, check: str, build: Callable[[Path, str], None] | None = None
) -> None:
    """Make the release `version` of the checkout `root`."""
    refuse_unready(root, version)
    kept = {name: (root / name).read_text(encoding="utf-8") for name in PLACES}
    today = datetime.now(UTC).date().isoformat()
    try:
        for name, text in write_version(kept, version, today).items():
            (root / name).write_text(text, encoding="utf-8")
        if check:
            subprocess.run(shlex.split(check), cwd=root, check=True)
        (build or build_and_check)(root, version)
    except BaseException:
        for name, text in kept.items():
            (root / name).write_text(text, encoding="utf-8")
        raise
    ask_git(root, "commit", "--quiet", "-m", f"Release {version}", "--", *PLACES)
    ask_git(root, "tag", "-a", f"v{version}", "-m", f"Engram {version}")


def refuse_unready(root: Path, version: str) -> None:
    """Raise unless `version` can be released from here."""
    if not VERSION.fullmatch(version):
        raise Refused(f"VERSION: expected a version such as 1.2.3 or 1.2.3rc1, got {version!r}")
    if changed := ask_git(root, "status", "--porcelain"):
        raise Refused(f"the tree has changes that are in no commit:\n{changed}")
    if ask_git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} exists already")
    if heading(version) not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise Refused(f"CHANGELOG.md: expected a section {heading(version)!r}")


def heading(version: str) -> str:
    """What the changelog calls a version before it is released."""
    return f"## [{version}] - unreleased"


def write_version(texts: dict[str, str], version: str, today: str) -> dict[str, str]:
    """The files with the version, and with the day it is released."""
    package, changelog, citation = (texts[name] for name in PLACES)
    citation = re.sub(r"^date-released:.*\n", "", citation, flags=re.M)
    line = f"version: {version}\ndate-released: {today}"
    return dict(
        zip(
            PLACES,
            (
                re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', package, flags=re.M),
                changelog.replace(heading(version), f"## [{version}] - {today}"),
                re.sub(r"^version: .*$", line, citation, flags=re.M),
            ),
            strict=True,
        )
    )


def build_and_check(root: Path, version: str) -> None:
    """Build both distributions in `dist`, and look at them as the index will."""
    shutil.rmtree(root / "dist", ignore_errors=True)
    run = [sys.executable, "-m"]
    subprocess.run([*run, "build", "--outdir", "dist", "."], cwd=root, check=True)
    made = sorted(path.name for path in (root / "dist").iterdir())
    wanted = [f"engram_cl-{version}-py3-none-any.whl", f"engram_cl-{version}.tar.gz"]
    if made != wanted:
        raise Refused(f"dist: expected {wanted}, got {made}")
    paths = [f"dist/{name}" for name in made]
    subprocess.run([*run, "twine", "check", "--strict", *paths], cwd=root, check=True)


def ask_git(root: Path, *words: str) -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="make release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("version")
    parser.add_argument("--check", default=".ci/run", help="what must pass first")
    asked = parser.parse_args(words)
    try:
        release(Path(__file__).parents[1], asked.version, asked.check)
    except (Refused, subprocess.CalledProcessError) as problem:
        print(f"no release: {problem}", file=sys.stderr)
        return 1
    print(f"v{asked.version} is tagged; publish it with: git push --follow-tags")
    return 0


if __name__ == "__main__":
    sys.exit(main())
