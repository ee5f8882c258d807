"""Pages whose examples are run when the site is built, and show what they gave."""

from __future__ import annotations

import ast
import contextlib
import html
import io
import os
import re
import sys
import tempfile
import warnings
from types import ModuleType
from typing import Any

BLOCK = re.compile(
    r"^```python (run|script)[^\n]*\n(.*?)^```\n(?P<shown>\n```(?:text)?\n)?", re.M | re.S
)
PLOTLY = "assets/plotly.min.js"


def executed(markdown: str, page: str, root: str) -> str:
    """The page with the results of its ``python run`` blocks; blocks build on each other.

    A block that is followed by its output, as written in the page, gets none. `root` leads from
    the page to the root of the site.
    """
    space = ModuleType("__example__")
    sys.modules["__example__"] = space  # dataclasses look their module up
    drawn = False

    def run(found: re.Match[str]) -> str:
        nonlocal drawn
        kind, code = found[1], found[2]
        block = f"```python\n{code}```\n"
        if kind != "run":
            return block + (found["shown"] or "")
        output, value = evaluate(code, space.__dict__, page)
        if found["shown"]:
            return block + found["shown"]
        shown = as_markdown(output, value)
        drawn = drawn or "Plotly" in shown
        return block + shown

    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            done = BLOCK.sub(run, markdown)
        finally:
            os.chdir(before)
    script = f'<script src="{root}{PLOTLY}"></script>\n\n' if drawn else ""
    return script + done if not script else _below_title(done, script)


def _below_title(markdown: str, script: str) -> str:
    title, newline, rest = markdown.partition("\n")
    return f"{title}{newline}\n{script}{rest}"


def evaluate(code: str, space: dict[str, Any], page: str) -> tuple[str, Any]:
    """What a block prints, and the value of its last line where that is an expression."""
    tree = ast.parse(code, page)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(tree, page, "exec", dont_inherit=True), space)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(
                compile(ast.Expression(last.value), page, "eval", dont_inherit=True), space
            )
    return out.getvalue(), value


def as_markdown(output: str, value: Any) -> str:
    """What a notebook would show below a cell."""
    parts = [f"\n```text\n{output.rstrip()}\n```\n"] if output.strip() else []
    if value is None:
        return "".join(parts)
    if hasattr(value, "to_plotly_json"):
        shown = value.to_html(full_html=False, include_plotlyjs=False, default_width="100%")
    elif hasattr(value, "_repr_html_"):
        shown = value._repr_html_()
    else:
        shown = f"<pre>{html.escape(repr(value))}</pre>"
    lines = "\n".join(line for line in shown.splitlines() if line.strip())
    return "".join([*parts, f'\n<div class="output">\n{lines}\n</div>\n'])
