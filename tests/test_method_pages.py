"""The pages of methods, memories, metrics and protocols say what the code does."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engram import methods, metrics
from engram.data import load
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.memory import Memory, policies
from engram.memory.budget import BUDGETS
from engram.methods.method import Method
from engram.records.printed_tables import reference
from engram.reproduce.papers.rwalk_paper import RWalkPreset, RWalkProtocol
from engram.streams import class_incremental

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "site"))
try:
    from pages import described, with_tables
finally:
    sys.path.remove(str(DOCS / "site"))

INDEX = DOCS / "methods" / "README.md"
SHOWN = re.compile(r"^```python run\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
VERBS = ("replay", "prologue", "phases", "networks", "start", "loss", "remember", "gradient",
         "step", "finish", "answer", "admit")  # fmt: skip
# in none of the benchmarks
OUTSIDE = {
    "AdamNSCL", "APER", "BiC", "CBRS", "ClassifierAlignment", "CLSER", "CODAPrompt", "DERpp",
    "DualPrompt", "DynamicER", "EASE", "ERACE", "FDR", "FeCAM", "FOSTER", "GDumb", "GPM", "GSS",
    "HAT", "InfLoRA", "Join", "L2P", "LaMAML", "MER", "MIR", "NCM", "OWM", "PackNet", "PCR", "PNN",
    "PODNet", "RanPAC", "SCR", "SeparateNetworks", "SLCA", "SLDA", "SupSup", "WA", "XdG", "XDER",
}  # fmt: skip
NO_NAME = "no such name"


def page(name: str) -> Path:
    return DOCS / "methods" / f"{getattr(methods, name).__module__.rpartition('.')[2]}.md"


def text_of(path: Path) -> str:
    """A page as the site shows it: with the tables that are made from the code."""
    return with_tables(path.read_text(encoding="utf-8"), path.relative_to(DOCS).as_posix())


def quoted(path: Path) -> set[str]:
    """Everything in single backticks, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.M | re.S)
    return set(re.findall(r"`([^`\n]+)`", text))


def names(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def values(kind: type, field: str, **others: Any) -> set[str]:
    """The names a field accepts, as the code itself lists them when it refuses one."""
    try:
        kind(**others, **{field: NO_NAME})
    except BadArgument as error:
        _, listed, valid = str(error).partition("Valid: ")
        return set(valid.split(", ")) if listed else set(re.findall(r'"(\w+)"', str(error)))
    return set()


def options(kind: type, **others: Any) -> dict[str, set[str]]:
    """The fields that take names, and the names."""
    made = kind(**others)
    texts = [n for n in names(kind) if isinstance(getattr(made, n), str)]
    numbers_or_texts = [n for n in names(kind) if n == "group"]
    return {n: values(kind, n, **others) for n in dict.fromkeys([*texts, *numbers_or_texts])}


# -- methods ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", methods.__all__)
def test_every_method_has_a_page_of_all_sections(name: str) -> None:
    text = page(name).read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)
    expected = ["Formula", "Cost", "Options", "Deviations", "Example", "Ours / paper"]
    assert headings == [*expected, "References"]
    assert text.startswith(f"# {name}\n")


def test_no_page_is_of_nothing() -> None:
    expected = {page(name) for name in methods.__all__} | {INDEX}
    assert set((DOCS / "methods").glob("*.md")) == expected


@pytest.mark.parametrize("name", methods.__all__)
def test_every_field_is_named(name: str) -> None:
    missing = set(names(getattr(methods, name))) - quoted(page(name))
    assert not missing


@pytest.mark.parametrize("name", methods.__all__)
def test_every_option_is_described(name: str) -> None:
    said = described(getattr(methods, name))
    assert set(said) == set(names(getattr(methods, name)))
    assert all(said.values())


@pytest.mark.parametrize("name", [n for n in methods.__all__ if n != "Join"])
def test_every_value_of_an_option_is_named(name: str) -> None:
    found = options(getattr(methods, name))
    missing = {f: left for f, valid in found.items() if (left := valid - quoted(page(name)))}
    assert not missing
    assert all(found.values())  # a field that takes any text would be listed without a value


def test_options_are_found() -> None:
    assert options(methods.ER) == {
        "mix": {"paired", "union"}, "reduce": {"mean", "sum"}, "renew": {"task", "step"},
    }  # fmt: skip
    assert options(methods.EWC)["group"] == {"full"}
    assert options(methods.LwF)["blocks"] == {"auto", "joint", "per_task"}


@pytest.mark.parametrize("name", [n for n in methods.__all__ if n != "Join"])
def test_defaults_are_those_of_the_code(name: str) -> None:
    made = getattr(methods, name)()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text_of(page(name)), re.M)
    checked = {field: shown for field, shown in rows if field in names(type(made))}
    for field, shown in checked.items():
        default = getattr(made, field)
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            assert float(shown.strip("`")) == default, field
        else:
            assert shown.strip("`").replace('"', "'") == str(default), field


STREAM = class_incremental(load("skeletons", per_class=10, frames=3), classes_per_task=5)
GCN = {"name": "gcn", "edges": "ucla", "width": 4, "hidden": 4}


@pytest.mark.parametrize("name", ["EWC", "OnlineEWC", "EWCpp", "SI", "RWalk", "MAS", "TWP"])
def test_size_of_the_state_is_as_said(name: str) -> None:
    text = page(name).read_text("utf-8").partition("## Cost\n\n")[2]
    vectors, more = re.match(r"(\d) P( \+ 1| numbers and a counter|)", text).groups()  # type: ignore[union-attr]
    run = Run(stream=STREAM, method=getattr(methods, name)(), model=GCN)
    *_, last = Engine([run], device="cpu").stages()
    kept = sum(tensor.numel() for tensor in last.learner.state.values())
    assert kept == int(vectors) * len(last.learner.vector) + bool(more)


# -- the index -------------------------------------------------------------------------------------
def rows_of(path: Path, columns: int) -> list[list[str]]:
    lines = [line for line in text_of(path).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns]


def test_the_index_lists_all() -> None:
    listed = {row[0]: row for row in rows_of(INDEX, 5)[1:]}
    expected = {f"[{name}]({page(name).name})" for name in methods.__all__}
    assert set(listed) == expected
    assert set(re.findall(r"\[\w+\]\(\w+\.md\)", INDEX.read_text("utf-8"))) >= expected


@pytest.mark.parametrize("name", [n for n in methods.__all__ if n != "Join"])
def test_the_index_is_right(name: str) -> None:
    (row,) = (row for row in rows_of(INDEX, 5) if row[0].startswith(f"[{name}]"))
    made: Method = getattr(methods, name)()
    verbs = [verb for verb in VERBS if made.implements(verb)]
    budget = made.memory
    assert row[2] == (", ".join(verbs) or "none")
    assert row[3] == (budget.describe() if budget else "(-)" if hasattr(made, "memory") else "-")
    assert row[4] == made.reads


# -- printed numbers -------------------------------------------------------------------------------
def printed() -> list[tuple[str, list[str]]]:
    cells = [(name, rows_of(page(name), 6)) for name in methods.__all__]
    return [(name, row) for name, rows in cells for row in rows if row[0] != "source"]


@cache
def table(paper: str, number: str) -> list[dict[str, str]]:
    frame = reference(paper.lower(), number)
    return [{str(k): str(v) for k, v in row.items()} for row in frame.to_dict("records")]


@pytest.mark.parametrize(("name", "row"), printed(), ids=lambda x: x if isinstance(x, str) else "")
def test_numbers_of_papers_are_the_printed_ones(name: str, row: list[str]) -> None:
    paper, number = row[0].split()
    about = {part.removeprefix("stage ") for part in row[1].split(", ")}
    same_row = [c for c in table(paper, number) if (c["method"], c["metric"]) == (row[2], row[3])]
    found = [cell for cell in same_row if about <= set(cell.values())]
    assert [float(cell["value"]) for cell in found] == [float(row[4])]


@pytest.mark.parametrize(
    ("name", "row"), [one for one in printed() if one[1][0] == "IIRC C.1"],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_our_numbers_of_iirc_are_the_recorded_ones(name: str, row: list[str]) -> None:
    with (DOCS.parent / "benchmarks/reproduce/iirc-C.1.csv").open(encoding="utf-8") as file:
        lines = {(line["cell"], line["stage"]): line for line in csv.DictReader(file)}
    line = lines[f"IIRC-CIFAR IIRC {row[2]}", row[1].rpartition(" ")[2]]
    assert "schedule=short" in line["settings"]
    doubts = [one for one in ("wide interval", "doubtful cell") if one in line["reason"]]
    words = ", ".join([line["verdict"], *doubts, "short schedule"])
    assert row[5] == f"{float(line['ours']):.2f} ({words})"


RECORDED = {"RWalk 1": "rwalk-1", "RWalk 2": "rwalk-2", "CGL 2": "cgl-2", "CND 1": "cnd-all"}


@pytest.mark.parametrize(
    ("name", "row"), [one for one in printed() if one[1][0] in RECORDED],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_our_numbers_are_the_recorded_ones(name: str, row: list[str]) -> None:
    source, setting, cell, metric, _, ours = row
    path = DOCS.parent / "benchmarks" / "reproduce" / f"{RECORDED[source]}.csv"
    with path.open(encoding="utf-8") as file:
        lines = [
            line for line in csv.DictReader(file)
            if (line["table"], line["metric"]) == (source.split()[1], metric)
            and {*setting.split(", "), cell} <= {*line["cell"].split()}
            # neither another length of training nor what is printed alone
            and not line["settings"].startswith(("mnist.", "weigh_samples=false"))
        ]  # fmt: skip
    (line,) = lines
    notes = {"one seed": "seeds=1", "a fifth of the data": "data subset"}
    facts = line["settings"] + line["reason"]
    words = ", ".join([line["verdict"], *(said for said, fact in notes.items() if fact in facts)])
    if not line["ours"]:
        assert ours == "not run"
        return
    shown, _, rest = ours.partition(" ")
    assert rest == f"({words})"
    digits = len(shown.partition(".")[2])
    assert abs(float(shown) - float(line["ours"])) <= 0.5 * 10**-digits + 1e-9


def test_most_pages_have_printed_numbers() -> None:
    assert {name for name, _ in printed()} == set(methods.__all__) - OUTSIDE


# -- examples --------------------------------------------------------------------------------------
PAGES = [*sorted((DOCS / "methods").glob("*.md")), DOCS / "memory.md", DOCS / "metrics.md"]


@pytest.mark.parametrize("name", methods.__all__)
def test_every_method_page_has_an_example_with_output(name: str) -> None:
    blocks = SHOWN.findall(page(name).read_text("utf-8"))
    assert blocks
    assert all(output for _, output in blocks)


@pytest.mark.parametrize("path", [p for p in PAGES if p != INDEX], ids=lambda p: p.stem)
def test_examples_print_what_the_page_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "__example__"}
    for code, shown in SHOWN.findall(path.read_text("utf-8")):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, path.name, "exec"), space)
        if shown:
            same(out.getvalue(), shown)


def same(printed: str, shown: str) -> None:
    """The same words, and numbers that differ no more than other arithmetic may explain."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    assert all(abs(float(a) - float(b)) <= 0.1 for a, b in pairs)


def test_differences_are_seen() -> None:
    same("ER 0.91\n", "ER  0.95")
    for other in ("ER 0.5", "EWC 0.91", "ER 0.91 0.1"):
        with pytest.raises(AssertionError):
            same("ER 0.91", other)


# -- memory, metrics, protocol ---------------------------------------------------------------------
def test_memory_page_names_fields_policies_and_values() -> None:
    said = quoted(DOCS / "memory.md")
    said |= {word.partition(" ")[0] for word in said}
    found = options(Memory, total=5)
    expected = set(names(Memory)) | set(policies()) | set(BUDGETS) | set().union(*found.values())
    assert not expected - said
    assert found["pd_transform"] == {"abs_eps", "softplus"}


def test_metrics_page_names_every_metric() -> None:
    assert not set(metrics.__all__) - quoted(DOCS / "metrics.md")


def test_definitions_of_forgetting_have_the_values_of_the_code() -> None:
    full = [[0.90, 0.85, 0.05], [0.95, 0.80, 0.20], [0.70, 0.50, 0.96]]
    triangle = [[0.90], [0.95, 0.80], [0.70, 0.50, 0.96]]
    rows = {row[0].strip("`"): row for row in rows_of(DOCS / "metrics.md", 5)[1:]}
    assert list(rows) == list(metrics.FORGETTING_DEFINITIONS)
    for definition, row in rows.items():
        assert row[3] == f"{metrics.forgetting(full, definition=definition):.4f}"
        if definition == "first":
            assert row[2] == "-"
        else:
            assert row[2] == f"{metrics.forgetting(triangle, definition=definition):.4f}"


def test_protocol_names_every_choice_and_erratum() -> None:
    path = DOCS / "protocols" / "rwalk.md"
    said = {part for word in quoted(path) for part in word.split(".")}
    assert not (set(names(RWalkPreset)) | set(names(RWalkProtocol))) - said
    errata = re.findall(r"^\| R(\d+) \|", path.read_text("utf-8"), re.M)
    assert errata == [str(number) for number in range(1, 18)]
    assert "`benchmarks/reproduce/rwalk-1.csv`" in path.read_text("utf-8")
