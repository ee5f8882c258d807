"""Formulas in the pages, ``$x$`` in a line and ``$$x$$`` on lines of their own, as MathML.

Browsers draw MathML by themselves, so that the site needs no script and no network. Hosts of
repositories understand the same dollar signs.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# No space inside next to the dollar signs, no letter or digit outside: "$5 and $6" is no formula.
FORMULA = r"(?<![\\$\w])(\$\$?)(?!\s)([^$]+?)(?<!\s)\1(?![\w$])"


def mathml(latex: str, *, block: bool = False) -> str:
    """A formula in LaTeX as MathML; what cannot be typeset is an error, not a gap."""
    drawn = convert(" ".join(latex.split()), display="block" if block else "inline")
    if unknown := re.search(r"<m[a-z]+>(\\[A-Za-z]+)", drawn):
        raise ValueError(f"a formula has {unknown[1]}, which cannot be typeset: {latex}")
    return drawn


class _Formula(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802
        self, m: re.Match[str], data: str
    ) -> tuple[Element | str, int, int]:
        drawn = mathml(m[2], block=m[1] == "$$")
        return self.md.htmlStash.store(drawn), m.start(0), m.end(0)


class Formulas(Extension):
    """What MkDocs is given: after code in backticks, before anything else inside a line."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.inlinePatterns.register(_Formula(FORMULA, md), "formula", 185)


def add_formulas(config: Any) -> None:
    """Formulas in every page of a site, also in docstrings."""
    config.markdown_extensions.append(Formulas())
