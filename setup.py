"""The long description: README.md with links that lead somewhere outside a clone, too.

Everything else is in pyproject.toml, the address of the project as well.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!#|[a-z]+:)([^)\s]+)\)")


def absolute_links(text: str, address: str) -> str:
    """Markdown whose relative links lead into the repository at `address`.

    Pictures are linked as raw files, since a page about one is none.
    """

    def lead(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        return f"{picture}{words}{address}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(lead, text)


if __name__ == "__main__":
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=absolute_links(
            (here / "README.md").read_text(encoding="utf-8"), project["urls"]["Repository"]
        ),
        long_description_content_type="text/markdown",
    )
