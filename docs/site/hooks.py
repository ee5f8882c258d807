"""What MkDocs asks for while it builds the site: navigation, generated pages, links, examples.

``ENGRAM_DOCS_RUN=0`` leaves examples unrun, for a look at the text.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import plotly.offline
import torch
from formulas import add_formulas
from mkdocs.structure.files import File
from pages import API, generated, with_tables
from running import BLOCK, PLOTLY, executed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = CONFIG["tool"]["engram"]["repository"].rstrip("/")  # empty until it is published
FOREIGN, SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)\)")
INDEX = re.compile(r"(`[^`]*`)|\]\[")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
_made: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Everything is navigated: what is written, in the order of docs/README.md, what is made."""
    _made.update(generated(DOCS))
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    add_formulas(config)
    config.nav = navigation()
    torch.set_num_threads(1)
    return config


def slug(text: str, separator: str) -> str:
    """Anchors as the hosts of repositories make them, which links in the pages expect."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def navigation() -> list[Any]:
    """Tabs, and below them pages: those of the guide as docs/README.md lists them."""

    def titled(folder: str, first: str) -> list[Any]:
        own = {p.relative_to(DOCS).as_posix() for p in (DOCS / folder).glob("*.md")}
        own |= {path for path in _made if path.startswith(f"{folder}/")}
        return [first, *sorted(own - {first}, key=str.lower)]

    listed = re.findall(r"\]\((guide/[\w-]+\.md)\)", (DOCS / "README.md").read_text("utf-8"))
    rest = sorted({f"guide/{p.name}" for p in (DOCS / "guide").glob("*.md")} - {*listed})
    return [
        {"Home": ["README.md", "comparison.md", "changelog.md"]},
        {"Guide": [*dict.fromkeys(listed), *rest]},
        {"Methods": [*titled("methods", "methods/README.md"), "memory.md"]},
        {"Metrics": [*titled("metrics", "metrics/index.md"), "metrics.md"]},
        {"Detectors": titled("detectors", "detectors/index.md")},
        {"Streams": titled("streams", "streams/index.md")},
        {"Protocols": [*titled("protocols", "protocols/index.md"), "reproduce.md", "papers.md"]},
        {"Reference": ["api/index.md", *(f"api/{page}.md" for page in API), "command-line.md",
                       "catalogue.md"]},
        {"Background": ["architecture.md", "contract.md", "glossary.md", "speed.md",
                        "contributing.md", "decisions.md"]},
    ]  # fmt: skip


def on_files(files: Any, config: Any) -> Any:
    """Pages from the package, pages from the root of the repository, and plotly for figures."""
    for path, text in _made.items():
        files.append(File.generated(config, path, content=text))
    for name, path in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=text.replace("](docs/", "](")))
    shim = (DOCS / "site" / "iframe-worker.js").read_text(encoding="utf-8")
    files.append(File.generated(config, SHIM, content=shim))
    style = (DOCS / "site" / "site.css").read_text(encoding="utf-8")
    files.append(File.generated(config, "assets/site.css", content=style))
    files.append(File.generated(config, PLOTLY, content=plotly.offline.get_plotlyjs()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Search in a folder by a script of our own instead of one from elsewhere."""
    return output.replace(FOREIGN, "../" * page.url.count("/") + SHIM)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave the documentation lead to the repository; tutorials are run."""
    path = page.file.src_uri
    text = outside_code(with_tables(markdown, path), lambda part: _led(part, path))
    wanted = path.startswith("guide/") and os.environ.get("ENGRAM_DOCS_RUN") != "0"
    if wanted:
        return executed(text, path, "../" * path.count("/"))
    return BLOCK.sub(lambda m: f"```python\n{m[2]}```\n{m['shown'] or ''}", text)


def _led(text: str, page: str) -> str:
    """Links to where they lead in the site; indices, a[k][j], are no references."""
    text = LINK.sub(lambda found: _lead(found, page), text)
    return INDEX.sub(lambda found: found[1] or r"]\[", text)


def outside_code(markdown: str, change: Any) -> str:
    """A change of everything but fenced code."""
    parts, start = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, change(markdown[start:])])


def _lead(found: re.Match[str], page: str) -> str:
    words, link = found.groups()  # the words in brackets, and "("
    if re.match(r"[a-z]+:|#", link):
        return found[0]
    target, mark, anchor = link.partition("#")
    below = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
    if page in COPIED.values():
        below = os.path.normpath(os.path.join("docs", target))
        if not (ROOT / below).exists() and below.removeprefix("docs/") not in _made:
            below = target  # relative to the root of the repository
    if below in COPIED:
        up = "../" * page.count("/")
        return f"{words}{up}{COPIED[below]}{mark}{anchor})"
    if below.startswith("docs/") and not below.endswith(".py"):
        return found[0]
    if not REPOSITORY:
        return words.removesuffix("](").lstrip("![")
    kind = "raw" if words.startswith("!") else "tree" if (ROOT / below).is_dir() else "blob"
    return f"{words}{REPOSITORY}/{kind}/main/{below}{mark}{anchor})"
