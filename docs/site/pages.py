"""Pages that are made from the package itself, so that a new method or metric has one at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from engram import methods, metrics
from engram.data.known import KNOWN
from engram.memory import policies
from engram.models import models
from engram.novelty import detectors
from engram.reproduce import table_names
from engram.streams import NEEDED, SCENARIOS

API = {  # pages of the reference and what stands on each
    "run": ["engram.run", "engram.sweep", "engram.read", "engram.load", "engram.open_world"],
    "search": ["engram.search"],
    "data": ["engram.data.Data"],
    "streams": ["engram.streams.core.Stream", "engram.streams.core.Task"],
    "results": ["engram.records.result.Result"],
    "learner": ["engram.deploy.learner.Learner"],
    "methods": ["engram.methods.base.Method", "engram.methods.base.ReplaySpec"],
    "memory": ["engram.memory.Memory"],
    "training": ["engram.engine.training.Training"],
    "recipes": ["engram.recipes.Recipe", "engram.recipes.Callback"],
    "probes": ["engram.probes.base.Probe", "engram.probes.view.StageView"],
    "detectors": ["engram.novelty.base.Detector", "engram.novelty.outputs.OutputDetector"],
    "report": ["engram.report.inputs", "engram.report.response"],
    "export": ["engram.records.export.tensorboard", "engram.records.export.wandb",
               "engram.records.export.mlflow"],
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
        stem = kind.__module__.rpartition(".")[2]
        if not (docs / "methods" / f"{stem}.md").is_file():
            pages[f"methods/{stem}.md"] = "\n".join([
                f"# {name}", "", first_line(kind), "", _field_table(kind), "",
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


def _field_table(kind: type[Any]) -> str:
    if not is_dataclass(kind):
        return ""
    rows = ["| field | default |", "|---|---|"]
    for one in fields(kind):
        default = one.default
        if default is MISSING and one.default_factory is not MISSING:
            default = one.default_factory()
        rows.append(f"| `{one.name}` | `{'' if default is MISSING else default}` |")
    return "\n".join(rows)


def _catalogue() -> str:
    """Everything that has a name, as `engram list` shows it."""
    parts = {
        "Data sets": {name: one.summary for name, one in KNOWN.items()},
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
