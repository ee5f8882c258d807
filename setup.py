"""The description and the addresses of the project, from README.md and ``[tool.engram]``.

Everything else is in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!#|[a-z]+:)([^)\s]+)\)")
PLACES = {
    "Repository": "",
    "Documentation": "/blob/main/docs/README.md",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}


def absolute_links(text: str, address: str) -> str:
    """Markdown whose relative links lead into the repository at `address`.

    Pictures are linked as raw files, since a page about one is none. Without an address the words
    of links remain, and pictures go.
    """

    def lead(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not address:
            return "" if picture else words
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(lead, text)


def project_urls(address: str) -> dict[str, str]:
    """The addresses that the page of the package links."""
    return {name: f"{address}{place}" for name, place in PLACES.items()} if address else {}


if __name__ == "__main__":
    here = Path(__file__).parent
    config = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))
    address = config["tool"]["engram"]["repository"].rstrip("/")
    setup(
        long_description=absolute_links((here / "README.md").read_text(encoding="utf-8"), address),
        long_description_content_type="text/markdown",
        project_urls=project_urls(address),
    )
