"""The site has a page for everything that has a name, and shows what its examples give."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

from engram import methods, metrics
from engram.cli import app
from engram.novelty import detectors
from engram.reproduce import table_names
from engram.streams import SCENARIOS
from tests.test_docs import commands, misused

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site():
    """The modules of docs/site, as MkDocs loads them."""
    sys.path.insert(0, str(DOCS / "site"))
    try:
        names = ["command_line", "pages", "running"]
        if importlib.util.find_spec("mkdocs") is not None:
            names += ["hooks", "formulas"]
        return {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(DOCS / "site"))


def test_everything_with_a_name_has_a_page(site):
    made = set(site["pages"].generated(DOCS))
    there = made | {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")}
    functions = [n for n in metrics.__all__ if callable(getattr(metrics, n)) and n.islower()]
    assert {f"metrics/{name}.md" for name in functions} <= made
    assert {f"detectors/{name}.md" for name in detectors()} <= made
    assert {f"streams/{name}.md" for name in SCENARIOS} <= made
    stems = [getattr(methods, name).__module__.rpartition(".")[2] for name in methods.__all__]
    assert {f"methods/{stem}.md" for stem in stems} <= there
    papers = {name.partition("/")[0] for name in table_names()}
    assert {f"protocols/{paper}.md" for paper in papers} <= there
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", site["pages"].generated(DOCS)["api/index.md"])
    assert {f"api/{one}" if "/" not in one else one.removeprefix("../") for one in linked} <= there


def test_a_new_method_has_a_page_by_itself(site, tmp_path, monkeypatch):
    pages = site["pages"].generated(tmp_path)  # as if no page were written
    assert "| `strength` | `" in pages["methods/ewc.md"]
    assert "::: engram.methods.ewc.EWC" in pages["methods/ewc.md"]
    assert "| `rwalk/1` |" in pages["protocols/rwalk.md"]


def test_every_command_is_in_the_reference(site):
    page = site["pages"].generated(DOCS)["command-line.md"]
    sections = dict(re.findall(r"^## (engram .+?)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for name, command in site["command_line"].walk(get_command(app), "engram"):
        options = [max(one.opts, key=len) for one in command.params if one.opts[0][0] == "-"]
        assert [one for one in options if one not in sections[name]] == []
        (example,) = commands(re.search(r"^```sh\n.*?^```", sections[name], re.M | re.S)[0])
        assert example.startswith(f"{name}")
        assert misused(example) == ""
    assert "| `-d, --data NAME|PATH` |" in sections["engram run"]
    assert re.search(r"\| `--port .*` \| .* \| `8000` \|", sections["engram serve"])


def test_options_are_taken_from_docstrings(site):
    table = site["pages"].options_table(methods.OnlineEWC)
    assert "| `gamma` | `1.0` | Decay of" in table
    assert "`sample`: one class drawn" in table  # said by EWC, whose option it is
    shown = site["pages"].with_tables("# EWC\n\n## Options\n\nMore.\n", "methods/ewc.md")
    assert "## Options\n\n| option | default |" in shown
    assert shown.endswith("More.\n")
    assert site["pages"].with_tables("## Options\n", "guide/ewc.md") == "## Options\n"


def test_the_reference_names_what_there_is(site):
    for things in site["pages"].API.values():
        for thing in things:
            module, _, name = thing.rpartition(".")
            found = importlib.util.find_spec(module)
            assert found is not None, thing
            whole = importlib.import_module(module)
            assert hasattr(whole, name) or importlib.util.find_spec(thing), thing


PAGE = """# A page

```python run
print("a < b")
value = {"k": 1}
value
```

```python run
print(value["k"])
```

```
as written
```

```python
left.alone()
```
"""


def test_examples_are_run_and_shown(site):
    done = site["running"].executed(PAGE, "guide/page.md", "../")
    assert "```text\na < b\n```" in done
    assert "<pre>{&#x27;k&#x27;: 1}</pre>" in done
    assert "\n1\n" not in done  # output that the page writes itself is not doubled
    assert "```\nas written\n```" in done
    assert "python run" not in done
    assert "left.alone()" in done
    assert "<script" not in done
    with pytest.raises(ZeroDivisionError):
        site["running"].executed("```python run\n1 / 0\n```\n", "guide/page.md", "")


def test_figures_bring_their_script(site):
    class Figure:
        def to_plotly_json(self): ...

        def to_html(self, **_):
            return "<div>\n\n<script>Plotly.newPlot()</script></div>"

    sys.modules["figure_of_a_test"] = SimpleNamespace(Figure=Figure)  # type: ignore[assignment]
    page = "# T\n\n```python run\nimport figure_of_a_test\nfigure_of_a_test.Figure()\n```\n"
    done = site["running"].executed(page, "guide/page.md", "../")
    assert done.startswith('# T\n\n<script src="../assets/plotly.min.js"></script>')
    assert "\n\n<script>" not in done  # a blank line would end the HTML


def test_links_that_leave_the_site(site, monkeypatch):
    if "hooks" not in site:
        pytest.skip("needs mkdocs, of the extra docs")
    lead, place = site["hooks"]._led, "https://host/engram"
    assert lead("[a](../CONTRIBUTING.md#x)", "architecture.md") == "[a](contributing.md#x)"
    assert lead("[a](../b.md) [c](#d)", "guide/e.md") == "[a](../b.md) [c](#d)"
    monkeypatch.setattr(site["hooks"], "REPOSITORY", "")
    assert lead("[a `b`](../../benchmarks)", "guide/e.md") == "a `b`"
    monkeypatch.setattr(site["hooks"], "REPOSITORY", place)
    assert lead("[a](../../benchmarks)", "guide/e.md") == f"[a]({place}/tree/main/benchmarks)"
    assert lead("a[k][j] `b[k][j]`", "e.md") == "a[k]\\[j] `b[k][j]`"
    assert site["hooks"].slug("`a`: B c", "-") == "a-b-c"


def test_formulas_are_typeset(site):
    if "formulas" not in site:
        pytest.skip("needs mkdocs, of the extra docs")
    import markdown

    def drawn(text):
        return markdown.markdown(text, extensions=["tables", site["formulas"].Formulas()])

    inside = drawn("of $A_k$ and `$A_k$`, $5 and $6")
    assert inside.count("<math") == 1
    assert "<msub><mi>A</mi><mi>k</mi></msub>" in inside
    assert "<code>$A_k$</code>, $5 and $6" in inside
    assert 'display="block"' in drawn("$$\\frac{1}{k}$$")
    assert "<td><math" in drawn("| a |\n|---|\n| $x_1 * y_1 * z$ |")
    with pytest.raises(ValueError, match="nowhere"):
        drawn("$\\nowhere$")


def test_formulas_of_all_pages_can_be_typeset(site):
    if "formulas" not in site:
        pytest.skip("needs mkdocs, of the extra docs")
    import markdown

    for path in DOCS.rglob("*.md"):
        formulas = site["formulas"].Formulas()
        markdown.markdown(path.read_text("utf-8"), extensions=["tables", "fenced_code", formulas])
