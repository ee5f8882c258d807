"""Pages that are made from the package itself, so that a new method or metric has one at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from command_line import command_line

from engram import methods, metrics
from engram.data.named_sets import NAMED_SETS
from engram.memory import policies
from engram.methods.method import VERBS
from engram.models import models
from engram.novelty import detectors
from engram.reproduce import table_names
from engram.streams import NEEDED, SCENARIOS

API = {  # pages of the reference and what stands on each
    "run": ["engram.run", "engram.sweep", "engram.read", "engram.load", "engram.open_world"],
    "search": ["engram.search"],
    "data": ["engram.data.Data"],
    "streams": ["engram.streams.stream.Stream", "engram.streams.stream.Task"],
    "results": ["engram.records.result.Result"],
    "learner": ["engram.deploy.deployed_learner.Learner"],
    "methods": ["engram.methods.method.Method", "engram.methods.method.ReplaySpec"],
    "memory": ["engram.memory.Memory"],
    "training": ["engram.engine.training.Training"],
    "recipes": ["engram.experiments.Recipe", "engram.experiments.Callback"],
    "probes": ["engram.probes.probe.Probe", "engram.probes.stage_view.StageView"],
    "detectors": ["engram.novelty.detector.Detector", "engram.novelty.detector.OutputDetector"],
    "report": ["engram.report.report_inputs", "engram.report.hyperparameter_figures"],
    "export": [
        f"engram.records.experiment_trackers.to_{tool}"
        for tool in ("tensorboard", "wandb", "mlflow")
    ],
    "errors": ["engram.errors"],
}  # fmt: skip


def first_line(thing: Any) -> str:
    """The first sentence of a docstring, in one line."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


def generated(docs: Path) -> dict[str, str]:
    """Path in the site and text of every page that is not written by hand."""
    pages = {
        **_kind("metrics", "Metrics", _metrics(), "metrics.md",
                "One page for each function of `engram.metrics`; all formulas side by side: "
                "[metrics](../metrics.md)."),
        **_kind("detectors", "Detectors", detectors(), "guide/novelty.md",
                "What finds an input familiar, new or forgotten; how to use them: "
                "[novelty](../guide/novelty.md)."),
        **_kind("streams", "Streams", SCENARIOS, "guide/streams.md",
                "Scenarios by name; how to choose one: [streams](../guide/streams.md).", _needed),
        **_method_pages(docs),
        **_protocol_pages(docs),
        "catalogue.md": _catalogue(),
        "command-line.md": command_line(),
        "api/index.md": _api_index(),
    }  # fmt: skip
    for page, things in API.items():
        blocks = "\n\n".join(f"::: {thing}" for thing in things)
        pages[f"api/{page}.md"] = f"# {page.capitalize()}\n\n{blocks}\n"
    return pages


def _metrics() -> dict[str, Callable[..., Any]]:
    every = {name: getattr(metrics, name) for name in metrics.__all__}
    return {name: one for name, one in every.items() if inspect.isfunction(one)}


def _kind(
    folder: str, title: str, things: Mapping[str, Any], guide: str, intro: str,
    more: Callable[[str], str] = lambda name: "",
) -> dict[str, str]:  # fmt: skip
    """An index with one line each, and a page of each with its docstring."""
    lines = [f"| [{name}]({name}.md) | {first_line(one)} |" for name, one in sorted(things.items())]
    pages = {f"{folder}/index.md": "\n".join([
        f"# {title}", "", intro, "", "| name | what it is |", "|---|---|", *lines, "",
    ])}  # fmt: skip
    for name, one in things.items():
        path = f"{one.__module__}.{one.__qualname__}"
        pages[f"{folder}/{name}.md"] = "\n".join([
            f"# {name}", "", first_line(one), "", *([more(name), ""] if more(name) else []),
            f"More: [{title.lower()} in use](../{guide}).", "", f"::: {path}", "",
        ])  # fmt: skip
    return pages


def _needed(name: str) -> str:
    needed = NEEDED.get(name, {})
    if not needed:
        return f"On the command line: `--stream {name}`."
    options = " ".join(f"--set '{key}={value}'" for key, value in needed.items())
    return f"On the command line: `--stream {name} {options}`."


def _method_pages(docs: Path) -> dict[str, str]:
    """A page for every method that has none of its own yet."""
    pages = {}
    for name in methods.__all__:
        kind = getattr(methods, name)
        stem = _stem(kind)
        if not (docs / "methods" / f"{stem}.md").is_file():
            pages[f"methods/{stem}.md"] = "\n".join([
                f"# {name}", "", first_line(kind), "", options_table(kind), "",
                f"::: {kind.__module__}.{name}", "",
            ])  # fmt: skip
    return pages


def _protocol_pages(docs: Path) -> dict[str, str]:
    """A page for every paper whose tables can be run and that has none yet."""
    tables: dict[str, list[str]] = {}
    for name, line in table_names().items():
        tables.setdefault(name.partition("/")[0], []).append(f"| `{name}` | {line} |")
    pages = {"protocols/index.md": "\n".join([
        "# Protocols", "", "Tables of papers that `engram reproduce NAME` runs, and the choices "
        "behind them: [reproductions](../reproduce.md).", "", "| paper | tables |", "|---|---|",
        *(f"| [{paper}]({paper}.md) | {len(lines)} |" for paper, lines in tables.items()), "",
    ])}  # fmt: skip
    for paper, lines in tables.items():
        if not (docs / "protocols" / f"{paper}.md").is_file():
            pages[f"protocols/{paper}.md"] = "\n".join(
                [f"# {paper}", "", "| table | what it is |", "|---|---|", *lines, ""]
            )
    return pages


# -- methods: their table, and their options from the docstrings of their dataclasses --------------
AS_FOR = re.compile(r"As (?:for|in) `(?:\w+\.)*(\w+)`\.?\s*")


INDEX = re.compile(r"^<!-- methods -->\n.*?^<!-- end -->\n", re.M | re.S)


def with_tables(markdown: str, page: str) -> str:
    """A page of a method with the table of its options, their index with that of the methods."""
    if page == "methods/README.md":
        return INDEX.sub(lambda _: methods_table(), markdown)
    folder, _, stem = page.removesuffix(".md").rpartition("/")
    named = {_stem(getattr(methods, name)): getattr(methods, name) for name in methods.__all__}
    if folder != "methods" or stem not in named:
        return markdown
    return re.sub(r"^## Options\n", rf"## Options\n\n{options_table(named[stem])}\n", markdown,
                  count=1, flags=re.M)  # fmt: skip


def methods_table() -> str:
    """Every method in a line: what it does, overrides, keeps and reads."""
    rows = ["| method | in one line | verbs | memory by default | reads |", "|---|---|---|---|---|"]
    for name in sorted(methods.__all__, key=str.lower):
        kind = getattr(methods, name)
        cells = [f"[{name}]({_stem(kind)}.md)", first_line(kind)]
        if kind is methods.Join:  # a method only with its parts
            cells += ["those of its parts", "the parts'", "as its parts"]
        else:
            made = kind()
            budget = made.memory
            optional = "(-)" if hasattr(made, "memory") else "-"
            cells += [
                ", ".join(verb for verb in VERBS if made.implements(verb)) or "none",
                budget.describe() if budget else optional,
                made.reads,
            ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def options_table(kind: type[Any]) -> str:
    """Every option with its default and what the docstring says of it."""
    made = {one.name: one for one in fields(kind)} if is_dataclass(kind) else {}
    said = described(kind)
    groups: list[tuple[list[str], str]] = []
    for name in dict.fromkeys([*said, *made]):
        words = said.get(name, "")
        if groups and words and groups[-1][1] == words:
            groups[-1][0].append(name)
        else:
            groups.append(([name], words))
    if not groups:
        return ""
    rows = ["| option | default | what it does |", "|---|---|---|"]
    for names, words in groups:
        defaults = [f"`{_default(made[name])}`" for name in names]
        first = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {first} | {', '.join(defaults).replace('``', '')} | {words} |")
    memory = "\nValues of `memory`: [memory](../memory.md).\n" if "memory" in made else ""
    return "\n".join(rows) + "\n" + memory


def described(kind: type[Any]) -> dict[str, str]:
    """What the docstring says of each parameter, in its order; "As for `X`" is looked up in X."""
    text = inspect.cleandoc(kind.__doc__ or "")
    found = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", text, re.M | re.S)
    said: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", found[1]) if found else []:
        names, _, words = entry.partition("\n")
        words = " ".join(words.split()).replace("``", "`").replace("|", "\\|")
        other = AS_FOR.match(words)
        for name in names.split(", "):
            said[name] = described(_class_named(kind, other[1]))[name] if other else words
    return said


def _class_named(kind: type[Any], name: str) -> type[Any]:
    bases = {base.__name__: base for base in kind.__mro__}
    found: type[Any] = bases.get(name) or getattr(methods, name)
    return found


def _default(one: Any) -> Any:
    if one.default is MISSING and one.default_factory is not MISSING:
        return one.default_factory()
    return "" if one.default is MISSING else one.default


def _stem(kind: type[Any]) -> str:
    return kind.__module__.rpartition(".")[2]


def _catalogue() -> str:
    """Everything that has a name, as `engram list` shows it."""
    parts = {
        "Data sets": {name: one.summary for name, one in NAMED_SETS.items()},
        "Models": models(),
        "Memory policies": policies(),
        "Tables of papers": table_names(),
    }
    text = ["# What has a name", "", "Methods, metrics, detectors and streams have pages of their "
            "own; here is the rest of what `engram list` shows.", ""]  # fmt: skip
    for title, lines in parts.items():
        text += [f"## {title}", "", "| name | what it is |", "|---|---|"]
        text += [f"| `{name}` | {line.replace('``', '`')} |" for name, line in lines.items()]
        text.append("")
    return "\n".join(text)


def _api_index() -> str:
    lines = [f"| [{page}]({page}.md) | {', '.join(f'`{t}`' for t in things)} |"
             for page, things in API.items()]  # fmt: skip
    intro = (
        "From the docstrings, whose examples run with the tests. [Methods](../methods/README.md), "
        "[metrics](../metrics/index.md), [detectors](../detectors/index.md) and "
        "[streams](../streams/index.md) have pages of their own."
    )
    return "\n".join(["# Reference", "", intro, "", "| page | about |", "|---|---|", *lines, ""])
