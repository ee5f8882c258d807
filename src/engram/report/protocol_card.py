"""The protocol card: one page that says how the numbers of run directories were made."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engram import __version__, metrics
from engram.errors import RecordError, bad, plural
from engram.html_repr import escape, html_table
from engram.io import list_names, make_folders, read_json, write_text
from engram.metrics import human_bytes
from engram.records import Result, read
from engram.records.display_names import stream_key
from engram.records.run_arrays import RunKey
from engram.records.saved_models import read_model_facts
from engram.records.summary import search_facts, summarise_groups, summary_names
from engram.report.table import escape_markdown, strip_controls

CARD_SUFFIXES = (".md", ".html", ".htm")
_FORMAT = "engram-card-1"
_UNKNOWN = "not recorded"
_TOLD = ("kind", "data", "head", "valid")  # options of a stream that have words of their own
_MOST_CLASSES = 20  # of an order that is printed whole
_LEDGER = {
    "train": "training rows of the task, each pass counted", "valid": "validation rows of the task",
    "memory": "stored rows", "past": "rows of earlier tasks that are not stored",
    "probe": "rows on which probes were fitted", "prologue": "rows for pretraining",
    "outside": "rows of other data", "held_out": "validation rows scored",
    "test": "test rows scored",
}  # fmt: skip
_COSTS = {
    "parameters": "numbers that training may change",
    "memory_bytes": "largest size of the stored rows and values over the stages",
    "state_bytes": "largest size of what else the method keeps between tasks",
    "network_bytes": "largest size of further networks that the method keeps",
    "optimizer_bytes": "size of the optimiser's moments",
    "seconds": "training and evaluation of a run; runs that train together share theirs",
    "steps": "optimiser steps of a run",
}  # fmt: skip


@dataclass(frozen=True)
class CardSection:
    """A heading with sentences and tables of texts."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[tuple[Sequence[str], Sequence[Sequence[str]]], ...] = ()


@dataclass(frozen=True)
class ProtocolCard:
    """A card; `digest` is a hash of the numbers, by which a card and a directory are compared.

    Examples
    --------
    >>> import tempfile, engram
    >>> out = tempfile.mkdtemp()
    >>> _ = engram.run(engram.load("blobs"), method="ER", epochs=1, out=out, device="cpu")
    >>> card = make_card(out)
    >>> print(card.markdown().splitlines()[0])
    # Protocol card
    >>> [section.title for section in card.sections][:3]
    ['Data and streams', 'Methods', 'Seeds and tuning']
    """

    digest: str
    recipes: Mapping[str, Mapping[str, Any]]
    sections: tuple[CardSection, ...] = field(default=())
    lead: str = ""

    def markdown(self) -> str:
        """Return the page as Markdown; the recipes stand in a comment at its end."""
        parts = ["# Protocol card", "", escape_markdown(self.lead)]
        for one in self.sections:
            parts += ["", f"## {one.title}"]
            for line in one.lines:
                parts += ["", escape_markdown(line)]
            for titles, rows in one.tables:
                cells = [titles, ["--"] * len(titles), *rows]
                shown = [[escape_markdown(c) if c != "--" else c for c in row] for row in cells]
                parts += ["", *("| " + " | ".join(row) + " |" for row in shown)]
        return "\n".join([*parts, "", f"<!--engram-card {self._facts()} -->", ""])

    def html(self) -> str:
        """Return the page as HTML that needs no network."""
        body = [f"<h1>Protocol card</h1><p>{escape(strip_controls(self.lead))}</p>"]
        for one in self.sections:
            body.append(f"<h2>{escape(one.title)}</h2>")
            body += [f"<p>{escape(strip_controls(line))}</p>" for line in one.lines]
            body += [
                f'<div class="wide">{strip_controls(html_table(titles, rows))}</div>'
                for titles, rows in one.tables
            ]
        facts = f'<script type="application/json" id="engram-card"> {self._facts()} </script>'
        return _PAGE.format(style=_STYLE, body="\n".join(body), facts=facts)

    def _facts(self) -> str:
        content = {"format": _FORMAT, "digest": self.digest, "recipes": self.recipes}
        text = json.dumps(content, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("--", "-\\u002d")

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; the name decides between Markdown and HTML."""
        target = Path(path)
        if target.suffix.lower() not in CARD_SUFFIXES:
            raise bad("path", f"a name that ends in {', '.join(CARD_SUFFIXES)}", str(path))
        make_folders(target.parent)
        return write_text(target, self.markdown() if target.suffix == ".md" else self.html())


_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0}th,td{padding:.15rem .6rem;"
    "border-bottom:1px solid #8884;vertical-align:top}.wide{overflow-x:auto}"
    ":root{color-scheme:light dark}h1,h2{line-height:1.2}"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Protocol card</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head>
<body>
{body}
{facts}
</body></html>
"""


def read_card(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read digest and recipes of a card that was written as Markdown or HTML."""
    from engram.io import read_text

    found = re.search(r"engram-card\"?>? (\{.*\}) (?:-->|</script>)", read_text(path))
    try:
        content = json.loads(found[1]) if found else {}
        if content["format"] != _FORMAT or not isinstance(content["recipes"], dict):
            raise KeyError("format")
    except (ValueError, KeyError, TypeError) as problem:
        raise RecordError(f"{path}: is not a protocol card of this version") from problem
    return dict(content)


def make_card(*paths: str | os.PathLike[str]) -> ProtocolCard:
    """Make the card of one or several run directories."""
    result = read(*paths)
    if result.problems:
        raise RecordError(f"{result.problems[0]}; engram verify names everything that is wrong")
    used = {run.recipe for run in result.runs}
    recipes = {name: hide_places(one) for name, one in result.recipes.items() if name in used}
    digest = digest_numbers(result)
    lead = (
        f"{plural(len(result.runs), 'run')} of {plural(len(recipes), 'recipe')}; "
        f"{_software(result)}. Hash of all numbers at the ends of tasks: {digest}. "
        "engram diff compares this card with a run directory, recipe, preset or other card."
    )
    sections = [
        _streams(result, recipes), _methods(result, recipes), _tuning(result, recipes, paths),
        _costs(result), _reads(result), _numbers(result, recipes), _definitions(result),
    ]  # fmt: skip
    return ProtocolCard(digest, recipes, tuple(sections), lead)


def digest_numbers(result: Result) -> str:
    """Hash the numbers at the ends of stages, whatever their order and labels."""
    frame = result.frame()
    frame = frame[frame["step"] == -1]
    names = ["recipe", "seed", "order", "stage", "task", "cls", "head", "metric"]
    columns = [frame[name].astype(str).tolist() for name in names]
    values = [float(value).hex() for value in frame["value"]]
    lines = sorted("\t".join(row) for row in zip(*columns, values, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def hide_places(content: Any, key: str = "") -> Any:
    """Return a recipe without the folders of this machine: paths become names of files.

    Examples
    --------
    >>> hide_places({"stream": {"data": "/sets/own/birds.npz"}, "identity": {"data_root": "/sets"}})
    {'stream': {'data': 'birds.npz'}, 'identity': {}}
    """
    if isinstance(content, Mapping):
        return {k: hide_places(v, str(k)) for k, v in content.items() if k != "data_root"}
    if isinstance(content, (list, tuple)):
        return [hide_places(one, key) for one in content]
    if isinstance(content, str) and (os.path.isabs(content) or key in ("data", "weights")):
        own, _, name = content.rpartition(":") if ".py:" in content else (content, "", "")
        return os.path.basename(own.rstrip("/\\")) + (f":{name}" if name else "")
    return content


def _software(result: Result) -> str:
    told = dict[str, None]()
    for facts in result.environment:
        own = facts.get("engram") or {"version": facts.get("packages", {}).get("engram")}
        git = own.get("git") or {}
        commit = f", commit {git['commit'][:12]}" if git.get("commit") else ""
        changed = " with local changes" if git.get("changed") else ""
        device = facts.get("device") or {}
        told[
            f"Engram {own.get('version')}{commit}{changed}, Python {facts.get('python')}, torch "
            f"{facts.get('packages', {}).get('torch')}, {device.get('model') or device.get('name')}"
        ] = None
    return "; ".join(told) or f"environment {_UNKNOWN}, read by Engram {__version__}"


# -- sections --------------------------------------------------------------------------------------


def _groups(result: Result, recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the numbers of the runs on each stream."""
    found: dict[str, list[int]] = {}
    for number, run in enumerate(result.runs):
        found.setdefault(stream_key(recipes.get(run.recipe, {})), []).append(number)
    return found


def _streams(result: Result, recipes: Mapping[str, Mapping[str, Any]]) -> CardSection:
    lines = []
    for place, numbers in enumerate(_groups(result, recipes).values()):
        run = result.runs[numbers[0]]
        content = recipes.get(run.recipe, {})
        stream = dict(content.get("stream") or {})
        identity = content.get("identity") or {}
        facts = [
            f"{stream.get('kind', _UNKNOWN)} over {stream.get('data', _UNKNOWN)} "
            f"(fingerprint {identity.get('data', _UNKNOWN)})",
            plural(int(result.tasks[numbers[0]]), "task"),
            *(f"{k}={v}" for k, v in stream.items() if k not in _TOLD and v is not None),
        ]
        lines.append(
            f"S{place + 1}: {', '.join(facts)}; head view: {stream.get('head', _UNKNOWN)}."
        )
        valid = stream.get("valid")
        share = f"{valid:g} of each task's training rows held out for validation" if valid else (
            "no validation rows" if valid is not None else f"validation rows {_UNKNOWN}"
        )  # fmt: skip
        lines.append(f"Split: {_split(result, run)}; {share}.")
        orders = dict.fromkeys(result.runs[n].order for n in numbers)
        if len(orders) > 1:
            lines.append(f"Class order: {len(orders)} orders were run.")
        else:
            lines.append(f"Class order, tasks separated by a bar: {_class_order(result, run)}.")
        lines.append(f"Inputs: {_inputs(result, run)}.")
    return CardSection("Data and streams", tuple(lines))


def _split(result: Result, run: RunKey) -> str:
    items, facts = result.items(run.recipe, run.order), _model_facts(result, run)
    train = [task["rows"] for task in facts.get("tasks", [])]
    words = f"{sum(train)} training rows ({', '.join(map(str, train))})" if train else (
        f"training rows {_UNKNOWN}"
    )  # fmt: skip
    if items is None:
        return f"{words}, test rows {_UNKNOWN}"
    sizes = np.bincount(items.task, minlength=items.tasks).tolist()
    return f"{words}, {len(set(items.rows.tolist()))} test rows ({', '.join(map(str, sizes))})"


def _class_order(result: Result, run: RunKey) -> str:
    items = result.items(run.recipe, run.order)
    if items is None:
        return run.order or _UNKNOWN
    tasks = [
        ", ".join(items.names[c] for c in np.flatnonzero(items.opening == k))
        for k in range(items.tasks)
    ]
    if len(items.names) > _MOST_CLASSES:
        text = "|".join(tasks)
        return (
            f"{len(items.names)} classes, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        )
    return " | ".join(tasks)


def _inputs(result: Result, run: RunKey) -> str:
    about = _model_facts(result, run).get("inputs")
    training = result.recipes.get(run.recipe, {}).get("training") or {}
    augment = training.get("augment")
    words = f"augmentation {', '.join(map(str, augment))}" if augment else "no augmentation"
    if not about:
        return f"{words}; scaling {_UNKNOWN}"
    shape = " x ".join(map(str, about["shape"]))
    crop = about.get("crop")
    cut = f", cut to {' x '.join(map(str, crop))}" if crop else ""
    mean, std = (", ".join(f"{one:.4g}" for one in about[name][:8]) for name in ("mean", "std"))
    scaled = f"minus {mean}, divided by {std}" if len(about["mean"]) <= 8 else "scaled by column"
    return f"{about['dtype']} {shape}{cut}, {scaled if about['mean'] else 'not scaled'}; {words}"


def _model_facts(result: Result, run: RunKey) -> dict[str, Any]:
    kept = result.kept_model(run)
    try:
        return read_model_facts(kept) if isinstance(kept, Path) else {}
    except RecordError:
        return {}


def _methods(result: Result, recipes: Mapping[str, Mapping[str, Any]]) -> CardSection:
    rows = []
    for label, name in dict.fromkeys(
        (label, run.recipe) for label, run in zip(result.run_labels, result.runs, strict=True)
    ):
        content = recipes.get(name, {})
        training = content.get("training") or {}
        weights = (content.get("identity") or {}).get("weights")
        length = (
            f"{training.get('iterations')} steps" if training.get("iterations")
            else plural(int(training.get("epochs", 0)), "epoch")
        )  # fmt: skip
        rows.append([
            label, name, _text(content.get("method")), _model(content.get("model"), weights),
            f"{length}, batches of {training.get('batch_size')}, {training.get('optimizer')}, "
            f"lr {training.get('lr')}, {training.get('precision')}" if training else _UNKNOWN,
        ])  # fmt: skip
    titles = ["method", "recipe", "options", "model and its weights", "training per task"]
    return CardSection("Methods", (), ((titles, rows),))


def _text(section: Any) -> str:
    if not isinstance(section, Mapping):
        return str(section) if section is not None else _UNKNOWN
    if "parts" in section:
        return " + ".join(map(_text, section["parts"]))
    options = [
        f"{key}={'(' + _text(value) + ')' if isinstance(value, Mapping) else value}"
        for key, value in section.items() if key != "name" and value is not None
    ]  # fmt: skip
    return " ".join([*([str(section["name"])] if "name" in section else []), ", ".join(options)])


def _model(section: Any, sha256: Any = None) -> str:
    if section is None:
        return _UNKNOWN
    given = section if isinstance(section, Mapping) else {"name": section}
    start = "weights drawn from the seed"
    if given.get("weights") or given.get("pretrained"):
        told = given.get("sha256") or sha256
        start = f"begins with given weights ({'sha256 ' + str(told)[:16] if told else _UNKNOWN})"
    frozen = ", frozen backbone" if given.get("freeze") else ""
    return f"{_text(given).strip()}: {start}{frozen}"


def _tuning(
    result: Result, recipes: Mapping[str, Mapping[str, Any]], paths: Iterable[Any]
) -> CardSection:
    seeds: dict[str, list[int]] = {}
    for label, run in zip(result.run_labels, result.runs, strict=True):
        seeds.setdefault(label, []).append(run.seed)
    lines = [
        f"Seeds of {label}: {', '.join(map(str, sorted(set(own))))}."
        for label, own in seeds.items()
    ]
    told = dict[str, None]()
    for path in paths:
        for folder in (Path(path), Path(path).parent):
            if not (folder / "searches").is_dir():
                continue
            for name in list_names(folder / "searches", "", ".json"):
                told[_describe_search(read_json(folder / "searches" / name))] = None
    trials = sum(search_facts(one) is not None for one in recipes.values())
    if trials:
        told[f"{plural(trials, 'recipe')} here {'is a trial' if trials == 1 else 'are trials'}"] = (
            None
        )
    lines.append(
        f"Tuning: {'; '.join(told)}." if told
        else "Tuning: none is recorded; whether values were tried elsewhere, records cannot tell."
    )  # fmt: skip
    return CardSection("Seeds and tuning", tuple(lines))


def _describe_search(content: Mapping[str, Any]) -> str:
    trials = content.get("trials") or []
    rows = "test rows" if content.get("on") == "test" else "validation rows"
    ranges = ", ".join(content.get("ranges") or {})
    count, tasks = plural(len(trials), "trial"), plural(int(content.get("tasks", 0)), "task")
    steps = sum(int(one.get("steps") or 0) for one in trials)
    return (
        f"search of {ranges} by {content.get('metric')} on {rows} of the first {tasks}, {count}, "
        f"{steps} steps, {float(content.get('seconds', 0.0)):.0f} s"
    )


def _costs(result: Result) -> CardSection:
    table = result.cost()
    names = [name for name in _COSTS if name in table and table[name].notna().any()]
    rows = []
    for label, row in table.iterrows():
        cells = [
            human_bytes(row[name])
            if name.endswith("_bytes")
            else f"{row[name]:,.1f}".removesuffix(".0")
            for name in names
        ]
        rows.append([str(label), *cells])
    titles = ["method", *(name.replace("_", " ") for name in names)]
    return CardSection("Memory and compute, mean over runs", (), ((titles, rows),) if names else ())


def _reads(result: Result) -> CardSection:
    totals: dict[str, dict[str, int]] = {}
    owners = dict(zip(result.runs, result.run_labels, strict=True))
    for document in result.ledger:
        for one in document.get("runs", ()):
            run = RunKey(str(one.get("recipe")), int(one.get("seed", 0)), str(one.get("order")))
            own = totals.setdefault(owners.get(run, str(one.get("label"))), {})
            for reads in (one.get("stages") or {}).values():
                for kind, count in reads.items():
                    own[kind] = own.get(kind, 0) + int(count)
    kinds = [kind for kind in _LEDGER if any(kind in own for own in totals.values())]
    rows = [[label, *(f"{own.get(k, 0):,}" for k in kinds)] for label, own in totals.items()]
    titles = ["method", *(kind.replace("_", " ") for kind in kinds)]
    return CardSection("Rows read, summed over runs", (), ((titles, rows),) if kinds else ())


def _numbers(result: Result, recipes: Mapping[str, Mapping[str, Any]]) -> CardSection:
    """Tabulate the numbers per stream, since those of two streams cannot be compared."""
    names, tables, lines = summary_names(result), [], []
    labels = np.array(result.run_labels, dtype=object)
    values = {name: result.metric(name) for name in names}
    groups = _groups(result, recipes)
    for place, numbers in enumerate(groups.values()):
        rows = []
        for label in dict.fromkeys(labels[numbers].tolist()):
            mine = [n for n in numbers if labels[n] == label]
            cells = []
            for name in names:
                (mean,), (std,), _ = summarise_groups(values[name], [np.array(mine, np.int64)])
                spread = "" if np.isnan(std) else f" ± {std:.4f}"
                cells.append("-" if np.isnan(mean) else f"{mean:.4f}{spread}")
            rows.append([label, f"S{place + 1}", str(len(mine)), *cells])
        titles = ["method", "stream", "runs", *(name.replace("_", " ") for name in names)]
        tables.append((titles, rows))
    if result.diverged:
        lines.append(f"{plural(len(result.diverged), 'run')} diverged and is in no mean.")
    return CardSection("Numbers after the last task", tuple(lines), tuple(tables))


def _definitions(result: Result) -> CardSection:
    rows = [["mean ± deviation", "over runs; the deviation is that of a sample (n - 1)"]]
    for name in summary_names(result):
        own = getattr(metrics, name, None) or getattr(metrics, name.removeprefix("learning_"), None)
        text = (own.__doc__ or "").strip().split("\n\n")[0] if own is not None else ""
        if name == "forgetting":
            text = (
                "Best accuracy on a task since it was learnt, minus that after the last task; mean "
                "over the earlier tasks (definition max)."
            )
        rows.append(
            [
                name.replace("_", " "),
                " ".join(text.replace("`", "").split()) or "see docs/metrics.md",
            ]
        )
    costs = result.cost()
    rows += [[n.replace("_", " "), text] for n, text in _COSTS.items() if n in costs]
    read_kinds = {
        kind for document in result.ledger for one in document.get("runs", ())
        for reads in (one.get("stages") or {}).values() for kind in reads
    }  # fmt: skip
    rows += [[kind.replace("_", " "), text] for kind, text in _LEDGER.items() if kind in read_kinds]
    rows.append(["fingerprint", "hash of the inputs, labels, names and split of the data"])
    rows.append(["recipe", "hash of data, stream, model, method, training and averaging"])
    return CardSection("Definitions", (), ((["word", "meaning"], rows),))
