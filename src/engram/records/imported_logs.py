"""Import of accuracies from logs of Mammoth, Avalanche, PyCIL and LAMDA-PILOT, and from CSV.

Logs are read as text and never run or unpickled. A log has accuracies of tasks after stages, so a
result made from it has every metric, definition and test that needs no more than these.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engram.errors import RecordError, bad, check_choice
from engram.io import read_text
from engram.records.long_table import Rows
from engram.records.reading import combine, from_csv
from engram.records.result import Result
from engram.records.scored_items import HEADS

Cells = dict[tuple[int, int], float]  # by (stage, task), from 0
MOST_TASKS = 32_767  # what the long table can hold


@dataclass
class LoggedRun:
    """Accuracies of one run, and what the log says about it."""

    label: str
    seed: int | None
    head: str = "single"
    cells: Cells = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # plain values that tell experiments apart


def import_log(
    form: str, *paths: str | os.PathLike[str], label: str = "", head: str = "",
    percent: bool = False,
) -> Result:  # fmt: skip
    r"""Read the accuracies in logs of another library.

    Scores of single rows, tasks to come, chance and costs are not in a log; what needs them is
    absent from the result or raises an error that says so.

    Parameters
    ----------
    form
        ``mammoth``: ``logs.pyd``, or the printed log with its raw accuracy values. ``avalanche``:
        ``eval_results.csv`` of its CSVLogger, text of its InteractiveLogger or TextLogger, or JSON:
        of ``get_all_metrics()``, or a list of what ``eval`` returned after every experience.
        ``pycil``: log files of PyCIL and LAMDA-PILOT. ``csv``: columns label, seed, stage, task,
        value (and optionally head), stages and tasks counted from 1; or a matrix as in
        `engram.from_csv`.
    label
        Name of the method, in place of the log's own.
    head
        ``single`` or ``multi`` in place of what the log says: whether all classes seen compete, or
        those of the row's task.
    percent
        Whether a CSV file holds percentages. Mammoth and PyCIL always log them.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "eval_results.csv"
    >>> lines = ["eval_exp,training_exp,eval_accuracy,eval_loss,forgetting", "0,0,0.9,0.3,0"]
    >>> _ = path.write_text("\n".join([*lines, "0,1,0.4,1.2,0.5", "1,1,0.8,0.4,0"]))
    >>> result = import_log("avalanche", path, label="Naive")
    >>> result.matrix.tolist(), result.metric("forgetting").round(6).tolist()
    ([[[0.9, nan], [0.4, 0.8]]], [0.5])
    """
    check_choice("form", form, LOG_FORMS)
    if head:
        check_choice("head", head, HEADS)
    if percent and form != "csv":
        raise bad("percent", f"False: what {form} logs is known", percent)
    if not paths:
        raise bad("paths", "at least one file", "none")
    if form == "csv" and not _is_long_csv(paths[0]):
        return from_csv(*paths, label=label, head=head or "single", percent=percent)
    runs: list[LoggedRun] = []
    for path in paths:
        found = [one for one in LOG_FORMS[form](Path(path)) if one.cells]
        if not found:
            raise RecordError(f"{path}: no accuracies of single tasks found ({WANTED[form]})")
        for one in found:
            one.label, one.head = label or one.label, head or one.head
            _check_cells(one, path, scale=100.0 if percent or form in PERCENT_FORMS else 1.0)
        runs += found
    return _make_result(form, runs)


def _check_cells(run: LoggedRun, path: str | os.PathLike[str], scale: float) -> None:
    """Scale accuracies to 0..1 and raise for what cannot be one."""
    for (stage, task), value in run.cells.items():
        if not (0 <= stage < MOST_TASKS and 0 <= task < MOST_TASKS):
            raise RecordError(f"{path}: stage {stage + 1}, task {task + 1} are out of range")
        if not 0.0 <= value / scale <= 1.0 + 1e-9:
            limit = "0 and 100" if scale > 1 else "0 and 1"
            where = f"after stage {stage + 1}, task {task + 1}"
            raise RecordError(f"{path}: accuracies must lie between {limit}, not {value} ({where})")
        run.cells[stage, task] = min(value / scale, 1.0)


def _make_result(form: str, runs: Sequence[LoggedRun]) -> Result:
    """Make a result: equal labels and facts are one recipe, told apart by seeds."""
    groups: dict[tuple[str, str, str], list[LoggedRun]] = {}
    for run in runs:
        facts = json.dumps(run.facts, sort_keys=True)
        groups.setdefault((run.label, run.head, facts), []).append(run)
    results = []
    for (label, head, facts), same in groups.items():
        shown = _name_group(label, facts, [g for g in groups if g[:2] == (label, head)])
        recipe = blake2b(f"{form}|{label}|{head}|{facts}".encode(), digest_size=6).hexdigest()
        seeds = [run.seed for run in same]
        named = None not in seeds and len(set(seeds)) == len(seeds)
        rows = Rows()
        for number, run in enumerate(same):
            seed = run.seed if named and run.seed is not None else number
            rows.bind(recipe=recipe, label=shown, seed=seed)
            stage, task = zip(*sorted(run.cells), strict=True)
            values = [run.cells[cell] for cell in sorted(run.cells)]
            rows.add_array("accuracy", values, stage=list(stage), task=list(task), head=head)
        content = {
            "method": {"name": label}, "stream": {"head": head}, "source": form,
            "logged": json.loads(facts),
        }  # fmt: skip
        results.append(Result(rows.frame(), recipes={recipe: content}))
    return combine(results)


def _name_group(label: str, facts: str, alike: Sequence[tuple[str, str, str]]) -> str:
    """Add to a label what distinguishes it from groups that share it."""
    if len(alike) == 1:
        return label
    own, every = json.loads(facts), [json.loads(one[2]) for one in alike]
    differing = [name for name in own if len({str(one.get(name)) for one in every}) > 1]
    return " ".join([label, *(f"{name}={own[name]}" for name in differing)])


# Mammoth. A line of logs.pyd is the text of a dictionary: arguments and accuracies of one run.


_CELL = re.compile(r"accuracy_(\d+)_task(\d+)")
_RESULT_KEY = re.compile(
    r"accmean_task\d+|accuracy_\d+_task\d+|conf_|(cpu|gpu)_memory|forgetting|(for|back)ward_transfer"
    r"|seed$|base_path|results_path|checkpoint_path|ckpt_name|wandb|num_workers|notes$|device$"
)
_RAW = re.compile(
    r"Raw accuracy values: (?:Class-IL|Domain-IL) \[(.*?)\](?: \| Task-IL \[(.*?)\])?"
)
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan", re.IGNORECASE)


def read_mammoth(path: Path) -> Iterator[LoggedRun]:
    """Read a log of Mammoth."""
    text = read_text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    if not any(line.lstrip().startswith("{") for line in lines):
        yield from _read_raw_values(path, text)
        return
    head = "multi" if "task-il" in path.parts else "single"
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("{"):
            continue
        content = read_dictionary(line, f"{path}, line {number}")
        run = LoggedRun(
            str(content.get("model", path.parent.name)), _whole(content.get("seed")), head
        )
        for name, value in content.items():
            if (cell := _CELL.fullmatch(name)) and isinstance(value, (int, float)):
                run.cells[int(cell[2]) - 1, int(cell[1]) - 1] = float(value)
            elif not _RESULT_KEY.match(name) and isinstance(value, (str, int, float, bool)):
                run.facts[name] = value
        yield run


def _read_raw_values(path: Path, text: str) -> Iterator[LoggedRun]:
    single, multi = (LoggedRun(path.stem, None, head) for head in HEADS)
    stage, known = -1, ""
    for found in _RAW.finditer(text):
        if found[0] == known:  # printed and logged
            continue
        known, stage = found[0], stage + 1
        for run, values in ((single, found[1]), (multi, found[2] or "")):
            for task, value in enumerate(_numbers(values)):
                run.cells[stage, task] = value
    yield from (single, multi)


def _numbers(text: str) -> list[float]:
    """Read numbers of a printed list; numpy may have wrapped them in its type.

    Examples
    --------
    >>> _numbers("97.5, np.float64(88.25)")
    [97.5, 88.25]
    """
    plain = re.sub(r"(?:np|numpy)\.float\d+", "", text)
    return [float(one) for one in _NUMBER.findall(plain)]


def read_dictionary(text: str, where: str) -> dict[str, Any]:
    """Read the plain entries of a printed dictionary; others are left out, and nothing is run.

    Examples
    --------
    >>> read_dictionary("{'a': np.float64(2.5), 'b': device(type='cpu'), 'c': None}", "line 1")
    {'a': 2.5, 'c': None}
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise RecordError(f"{where}: not a printed dictionary") from problem
    if not isinstance(tree, ast.Dict):
        raise RecordError(f"{where}: not a printed dictionary")
    found = {}
    for key, node in zip(tree.keys, tree.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
                node = node.args[0]  # np.float64(2.5)
            try:
                found[key.value] = ast.literal_eval(node)
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
    return found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**31 else None


# Avalanche.


_EXPERIENCE = re.compile(r"Top1_Acc_Exp/eval_phase/(\w+)_stream(?:/Task(\d+))?/Exp(\d+)")
_STARTS = re.compile(r"-- Starting training on experience (\d+)")
_TEXT_VALUE = re.compile(_EXPERIENCE.pattern + r"\s*=\s*(\S+)")


def read_avalanche(path: Path) -> Iterator[LoggedRun]:
    """Read a log of Avalanche."""
    text = read_text(path)
    own_name = path.stem not in ("eval_results", "training_results", "log")
    run = LoggedRun(path.stem if own_name else path.absolute().parent.name, None)
    start = text.lstrip()[:1]
    if start in ("{", "["):
        _read_avalanche_json(path, text, run)
    elif text.startswith("eval_exp"):
        for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
            if row["training_exp"] == "None":  # evaluated before any training
                continue
            where = f"{path}, line {number}"
            stage, task = (_count(row[name], where) for name in ("training_exp", "eval_exp"))
            run.cells[stage, task] = _value(row["eval_accuracy"], where)
    else:
        stage, tasks = -1, set()
        for line in text.splitlines():
            if found := _STARTS.search(line):
                stage = int(found[1])
            elif stage >= 0 and (value := _TEXT_VALUE.search(line)) and value[1] == "test":
                tasks.add(value[2])
                run.cells[stage, int(value[3])] = _value(value[4], str(path))
        run.head = "multi" if len(tasks) > 1 else "single"
    yield run


def _read_avalanche_json(path: Path, text: str, run: LoggedRun) -> None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{path}: not JSON ({problem})") from problem
    entries: list[tuple[int, str, Any]] = []
    if isinstance(content, list):  # one dictionary per evaluation
        entries = [(k, *pair) for k, one in enumerate(content) if isinstance(one, Mapping)
                   for pair in one.items()]  # fmt: skip
    else:  # name: (steps, values)
        series = {name: one for name, one in content.items() if _EXPERIENCE.fullmatch(str(name))}
        for one in series.values():
            if not (isinstance(one, list) and len(one) == 2 and len(one[0]) == len(one[1])):
                raise RecordError(f"{path}: not what get_all_metrics returns, [steps, values]")
        steps = sorted({step for one in series.values() for step in one[0]})
        for name, (when, values) in series.items():
            entries += [(steps.index(s), name, v) for s, v in zip(when, values, strict=True)]
    tasks = set()
    for stage, name, value in entries:
        found = _EXPERIENCE.fullmatch(str(name))
        if found and found[1] == "test":
            tasks.add(found[2])
            run.cells[stage, int(found[3])] = _value(value, str(path))
    run.head = "multi" if len(tasks) > 1 else "single"


# PyCIL and LAMDA-PILOT, whose trainers write the same lines.


_GROUPS = re.compile(r"=> (CNN|NME): (\{.*\})\s*$")
_ARGUMENT = re.compile(r"=> (\w+): (.*)$")
_PYCIL_FACTS = ("dataset", "memory_size", "init_cls", "increment", "convnet_type", "backbone_type")


def read_pycil(path: Path) -> Iterator[LoggedRun]:
    """Read a log of PyCIL or LAMDA-PILOT; CNN and NME are two classifiers of the same run."""
    runs: dict[str, LoggedRun] = {}
    known: dict[str, str] = {}
    for line in read_text(path).splitlines():
        groups = _GROUPS.search(line)
        if groups is None:
            if told := _ARGUMENT.search(line):
                if told[1] == "seed" and runs:  # the log goes on with another seed
                    yield from runs.values()
                    runs = {}
                known[told[1]] = told[2].strip()
            continue
        name = known.get("model_name", path.stem)
        kind = groups[1]
        run = runs.get(kind)
        if run is None:
            seed = _numbers(known.get("seed", ""))
            label = name if kind == "CNN" else f"{name} ({kind})"
            facts = {key: known[key] for key in _PYCIL_FACTS if key in known}
            run = LoggedRun(label, int(seed[0]) if len(seed) == 1 else None, facts=facts)
            runs[kind] = run
        _add_groups(run, read_dictionary(groups[2], str(path)), path)
    yield from runs.values()


def _add_groups(run: LoggedRun, content: Mapping[str, Any], path: Path) -> None:
    """Add accuracies of groups of classes, which are tasks if every stage adds one."""
    named = [name for name in content if re.fullmatch(r"\d+-\d+", name)]
    named.sort(key=lambda name: int(name.split("-")[0]))
    stage = 1 + max((stage for stage, _ in run.cells), default=-1)
    if len(named) != stage + 1:
        raise RecordError(
            f"{path}: stage {stage + 1} has accuracies of {len(named)} groups of classes "
            f"({', '.join(named[:4])}, ...), which are not its tasks: PyCIL groups classes by ten"
        )
    for task, name in enumerate(named):
        run.cells[stage, task] = _value(content[name], str(path))


# CSV in long form.


LONG_COLUMNS = ("label", "seed", "stage", "task", "value")


def _is_long_csv(path: str | os.PathLike[str]) -> bool:
    lines = read_text(path).splitlines()
    first = [one.strip().lower() for one in next(csv.reader(lines[:1]), [])]
    return {"stage", "task", "value"} <= set(first)


def read_long_csv(path: Path) -> Iterator[LoggedRun]:
    """Read columns label, seed, stage, task, value, and head."""
    lines = csv.reader(read_text(path).splitlines())
    names = [one.strip().lower() for one in next(lines, [])]
    if odd := sorted(set(names) - {*LONG_COLUMNS, "head"}):
        raise RecordError(f"{path}: unknown columns {', '.join(odd)}; known: {WANTED['csv']}")
    runs: dict[tuple[str, str, str], LoggedRun] = {}
    for number, cells in enumerate(lines, 2):
        if not any(map(str.strip, cells)):
            continue
        where = f"{path}, line {number}"
        if len(cells) != len(names):
            raise RecordError(f"{where}: {len(cells)} cells where {len(names)} are expected")
        row = dict(zip(names, map(str.strip, cells), strict=True))
        label, seed = row.get("label") or path.stem, row.get("seed", "0")
        head = row.get("head") or "single"
        if head not in HEADS:
            raise RecordError(f"{where}: head is {head!r}, not one of {', '.join(HEADS)}")
        key = label, seed, head
        run = runs.setdefault(key, LoggedRun(label, _count(seed, where), head))
        stage, task = (_count(row[name], where) - 1 for name in ("stage", "task"))
        if (stage, task) in run.cells:
            raise RecordError(f"{where}: a second value of stage {stage + 1}, task {task + 1}")
        run.cells[stage, task] = _value(row["value"], where)
    yield from runs.values()


def _count(text: str | None, where: str) -> int:
    try:
        found = int(text or "")
    except ValueError:
        found = -1
    if not 0 <= found < 2**31:
        raise RecordError(f"{where}: expected a whole number, not {text!r}")
    return found


def _value(given: Any, where: str) -> float:
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise RecordError(f"{where}: expected an accuracy, not {given!r}")
    return found


LOG_FORMS: dict[str, Callable[[Path], Iterator[LoggedRun]]] = {
    "mammoth": read_mammoth,
    "avalanche": read_avalanche,
    "pycil": read_pycil,
    "csv": read_long_csv,
}
PERCENT_FORMS = ("mammoth", "pycil")
WANTED = {
    "mammoth": "expected accuracy_1_task1, ... in logs.pyd, or lines of raw accuracy values; "
    "domain-il logs hold means only",
    "avalanche": "expected eval_results.csv, or Top1_Acc_Exp of the test stream",
    "pycil": "expected lines with CNN: {'total': ..., '00-09': ...}",
    "csv": f"{', '.join(LONG_COLUMNS)}, head",
}
