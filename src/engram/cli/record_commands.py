"""Commands that read results: report, metrics, verify, card, diff, novelty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.console import FAILED, emit, print_heading, report_unreadable, say
from engram.cli.options import (
    DIGITS,
    Decimals,
    Device,
    Directories,
    Rename,
    Root,
    Trust,
    check_decimals,
    parse_names,
    parse_renames,
)
from engram.cli.wide_tables import print_table
from engram.errors import bad, plural

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from engram.experiments.verification import Verification
    from engram.records import Result
    from engram.records.method_comparison import MethodComparison
    from engram.records.method_ranking import MethodRanking
    from engram.reproduce import Difference

PAGE_SUFFIXES = (".html", ".htm")


def report(
    directories: Directories,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="HTML file to write.")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write every table as CSV, LaTeX and Markdown."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write figures as SVG, PNG, PDF (extra: images)."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="single|multi", help="Only this head view (default: all recorded)."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(
            "--columns", metavar="A,B",
            help="Only these columns of numbers in tables: average_accuracy,forgetting, ...",
        ),
    ] = None,
    decimals: Decimals = None,
    rename: Rename = None,
) -> None:  # fmt: skip
    """Write a self-contained HTML report on run directories; it needs no network."""
    from engram.report import build, from_directories, write_images, write_tables

    if out.suffix.lower() not in PAGE_SUFFIXES:
        expected = "a name that ends in .html (--images DIR writes figures, --tables DIR tables)"
        raise bad("--out", expected, str(out))
    inputs = from_directories(*directories, names=parse_renames(rename)).present(
        head=head, columns=() if columns is None else parse_names("--columns", columns),
        decimals=check_decimals(decimals),
    )  # fmt: skip
    say(f"wrote {build(inputs, out, title=title)}")
    if tables is not None:
        say(f"wrote {len(write_tables(inputs, tables))} tables to {tables}")
    if images is not None:
        say(f"wrote {plural(len(write_images(inputs, images)), 'image')} to {images}")


# ``engram metrics``.


EVERY_DEFINITION = "every"  # "all" is the name of a definition
CLASS_METRICS = ("class_accuracy", "class_count", "predicted", "memory_count")


def metrics(
    directories: Directories,
    definition: Annotated[
        str, typer.Option(
            metavar="NAME|every",
            help="Definition of forgetting: max, diagonal, all, first, ...; every: all of them.",
        ),
    ] = EVERY_DEFINITION,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="single|multi",
            help="Head view (default: that of the stream).",
        ),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="After which task, from 1 (default: the last).")
    ] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Accuracy by stage and task.")] = False,
    classes: Annotated[bool, typer.Option("--classes", help="Accuracy of each class.")] = False,
    by: Annotated[
        str | None, typer.Option(
            "--by", metavar="ATTRIBUTE", help="Accuracy per group: gender, subject, view, ..."
        ),
    ] = None,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Confusion matrix, summed over runs.")
    ] = False,
    curves: Annotated[
        bool, typer.Option("--curves", help="After every task: all tasks so far, and the newest.")
    ] = False,
    refinement: Annotated[
        bool, typer.Option("--refinement", help="Superclasses and subclasses, by pair.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--ece", help="Expected calibration error.")
    ] = False,
    f1: Annotated[bool, typer.Option("--f1", help="Macro F1: mean over classes.")] = False,
    top: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Top-k accuracy.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option(
            "--compare", metavar="METRIC",
            help="Confidence intervals per method and p values of all pairs, by METRIC: "
            "average_accuracy, forgetting, ...",
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(
            metavar="LABEL|DIR",
            help="Intransigence against these runs: a label, or another run directory.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(
            "--ranks", metavar="METRIC",
            help="Methods by data set: means, ranks, and which differ (Friedman, Nemenyi).",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(
            "--columns", metavar="A,B", help="Only these metrics: average_accuracy,forgetting, ..."
        ),
    ] = None,
    decimals: Decimals = None,
    rename: Rename = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:  # fmt: skip
    """Show all metrics of run directories by stream, with every definition of forgetting."""
    from engram.errors import check_choice, check_int
    from engram.metrics import FORGETTING_DEFINITIONS
    from engram.records import read

    check_choice("--definition", definition, (EVERY_DEFINITION, *FORGETTING_DEFINITIONS))
    whole = classes or by is not None or confusion or f1 or refinement
    result = read(*directories, metrics=None if whole else _is_overall)
    result = result.rename(parse_renames(rename))
    if head is not None:
        result = result.view(head=head)
    last = None if stage is None else check_int("--stage", stage, 1, int(result.tasks.max())) - 1
    wanted = list(FORGETTING_DEFINITIONS) if definition == EVERY_DEFINITION else [definition]
    asked: dict[str, dict[str, Any]] = {"f1_score": {}} if f1 else {}
    if top is not None:
        asked["top_k_accuracy"] = {"k": check_int("--top-k", top, 1)}
    chosen = None if columns is None else parse_names("--columns", columns)
    shown = _Shown(wanted, last, asked, chosen, check_decimals(decimals), csv)
    parts = {one: result.select(stream=one) for one in result.streams}
    tables: dict[str, dict[str, pd.DataFrame]] = {}  # by stream and title
    notes: list[str] = []
    for stream, part in parts.items():
        given = shown
        if reference is not None:
            against = {"reference": find_reference(part, reference, head)}
            given = replace(shown, asked=asked | {"intransigence": against})
        own = {"metrics": _choose_metrics(part, given, ece=calibration)}
        probed = _probe_table(part, head, shown.digits)
        if len(probed):
            own["probes"] = probed
        if classes:
            own[_class_title(part)] = _class_table(part, last)
        if curves:
            own["after every task"] = _curve_table(part, shown.digits)
        if refinement:
            own["refinement"] = _refinement_table(part, last)
        if by is not None:
            own[f"accuracy by {by}"] = _group_table(part, by, last)
        if compare is not None:
            told = _compare(part, compare, definition, last)
            own |= _comparison_tables(told, csv)
            notes += [f"{stream}: {told.note}" if len(parts) > 1 else told.note]
        own |= _tables_by_label(part, last, matrix, confusion)
        tables[stream] = own
    ranked = None if ranks is None else _rank(result, ranks, definition, last)
    _print_tables(tables, shown)
    if ranked is not None:
        _print_ranks(ranked, shown)
        notes.append(ranked.note)
    _print_remarks(result, tables, shown, notes)


@dataclass(frozen=True)
class _Shown:
    """Which metrics are shown, and how."""

    definitions: list[str]
    stage: int | None
    asked: dict[str, dict[str, Any]]
    columns: list[str] | None
    decimals: int | None
    csv: bool

    @property
    def digits(self) -> int:
        return DIGITS if self.decimals is None else self.decimals

    @property
    def float_format(self) -> str | None:
        """How CSV has numbers: with all digits, unless some were asked for."""
        return None if self.decimals is None else f"%.{self.decimals}f"


def _choose_metrics(result: Result, shown: _Shown, *, ece: bool) -> pd.DataFrame:
    """Tabulate the metrics of one stream, all or those of ``--columns``."""
    from engram.errors import check_choice

    table = metric_table(result, shown.definitions, shown.stage, ece=ece, asked=shown.asked)
    if shown.columns is None:
        return table
    for name in shown.columns:
        check_choice("--columns", name, list(dict.fromkeys(table["metric"])))
    place = {name: number for number, name in enumerate(shown.columns)}
    chosen = table[table["metric"].isin(place)]
    return chosen.sort_values("metric", key=lambda names: names.map(place), kind="stable")


def _tables_by_label(
    result: Result, stage: int | None, matrix: bool, confusion: bool
) -> dict[str, pd.DataFrame]:
    from engram.records.summary import runs_at_stage

    tables: dict[str, pd.DataFrame] = {}
    for label in result.labels:
        chosen = result.select(label=label)
        if matrix:
            tables[f"{_figure_names(chosen)} matrix, {label}"] = _mean_matrix(chosen)
        if confusion and (known := runs_at_stage(chosen, stage)):
            tables |= _confusion_tables(chosen, label, stage, known)
    return tables


def _print_tables(tables: dict[str, dict[str, pd.DataFrame]], shown: _Shown) -> None:
    """Print the tables of every stream under its name; as CSV, each with a column for it."""
    import pandas as pd

    from engram.report.table import frame_to_csv

    several = len(tables) > 1
    if not shown.csv:
        for stream, own in tables.items():
            if several:
                print_heading(stream)
            for title, table in own.items():
                print_table(title, table, shown.digits)
        return
    for title in dict.fromkeys(title for own in tables.values() for title in own):
        parts = {stream: own[title] for stream, own in tables.items() if title in own}
        flat = {one: t if title == "metrics" else t.reset_index() for one, t in parts.items()}
        whole = pd.concat(
            [t.assign(stream=one)[["stream", *t.columns]] if several else t
             for one, t in flat.items()]
        )  # fmt: skip
        emit(frame_to_csv(whole, float_format=shown.float_format))


def _rank(result: Result, metric: str, definition: str, stage: int | None) -> MethodRanking:
    chosen = metric == "forgetting" and definition != EVERY_DEFINITION
    options: dict[str, Any] = {"definition": definition} if chosen else {}
    return result.ranks(metric, stage=stage, **options)


def _print_ranks(found: MethodRanking, shown: _Shown) -> None:
    """Print methods by data set and, after a test, the pairs."""
    from engram.records.method_comparison import format_p
    from engram.report.table import frame_to_csv

    tables = {f"{found.metric}, ranks": found.frame()}
    if len(found.pairs):
        pairs = found.pairs
        for column in () if shown.csv else ("wilcoxon_p", "wilcoxon_p_holm"):
            pairs = pairs.assign(**{column: pairs[column].map(format_p)})
        names = [f"{a} - {b}" for a, b in pairs.index]
        told = pairs.assign(differs=["yes" if one else "no" for one in pairs["differs"]])
        tables["differences of ranks"] = told.set_axis(names, axis=0).rename_axis("pair")
    for title, table in tables.items():
        if shown.csv:
            emit(frame_to_csv(table, index=True, float_format=shown.float_format))
        else:
            print_table(title, table, shown.digits)


def _print_remarks(
    result: Result, tables: dict[str, dict[str, pd.DataFrame]], shown: _Shown, notes: list[str]
) -> None:
    import pandas as pd

    from engram.cli.result_display import describe_view
    from engram.records.summary import describe_excluded_runs, describe_search

    say(describe_view(result, shown.stage), style="dim")
    for words in notes:
        say(words, style="dim")
    numbers = pd.concat([own["metrics"] for own in tables.values()])
    _explain_dashes(result, numbers)
    if "accuracy" in result.figures and shown.columns is None:
        _explain_absent(numbers, shown.definitions)
    for words in (
        *describe_excluded_runs(result, shown.stage), *describe_search(result.recipes)
    ):  # fmt: skip
        say(words, style="yellow")
    report_unreadable(result)
    if result.problems:
        raise typer.Exit(FAILED)


def _is_overall(metric: str) -> bool:
    """Whether a metric is not one of single classes or losses, which are most of the rows."""
    return metric not in CLASS_METRICS and not metric.startswith("loss/")


def metric_table(
    result: Result, definitions: list[str], stage: int | None, *, ece: bool,
    asked: dict[str, dict[str, Any]],
) -> pd.DataFrame:  # fmt: skip
    """Tabulate label, metric, definition, mean, std, runs; `asked` are further metrics."""
    import pandas as pd

    from engram.errors import BadArgument
    from engram.records.summary import plain_metric_names, summarise_groups

    values: dict[tuple[str, str], Any] = {}
    for name in plain_metric_names(result):
        try:
            values[name, ""] = result.metric(name, stage=stage)
        except BadArgument:  # chance or tasks to come were not recorded, or a stream of one task
            continue
    for definition in definitions:
        if definition == "first" and len(definitions) > 1 and "accuracy" not in result.figures:
            continue  # label sets have no scores before a task is learnt
        try:
            values["forgetting", definition] = result.metric(
                "forgetting", stage=stage, definition=definition
            )
        except BadArgument:  # tasks to come were not recorded
            if len(definitions) == 1:
                raise
    for name, options in asked.items():
        told = {key: _title(value) for key, value in options.items()}
        which = " ".join(f"{key}={value}" for key, value in told.items())
        values[name, which] = result.metric(name, stage=stage, **options)
    if ece:
        values["calibration_error", ""] = result.calibration(stage=stage)
    groups, parts = list(result.by_label.values()), []
    for (name, definition), numbers in values.items():
        found = summarise_groups(numbers, groups)
        own = {"label": result.labels, "metric": name, "definition": definition}
        parts.append(pd.DataFrame({**own, **found._asdict()}))
    return pd.concat(parts, ignore_index=True)


def find_reference(result: Result, name: str, head: str | None = None) -> Result:
    """Return the runs of a label, or of another directory, to compare with."""
    from engram.errors import unknown
    from engram.records import read

    if name in result.labels:
        return result.select(label=name)
    if not Path(name).is_dir():
        raise unknown("--reference", name, result.labels)
    found = read(name)
    return found if head is None else found.view(head=head)


def _title(value: Any) -> Any:
    """Return the labels of a result, and any other value as it is."""
    return ", ".join(value.labels) if hasattr(value, "labels") else value


def _probe_table(result: Result, head: str | None, digits: int) -> pd.DataFrame:
    """Tabulate probes: metrics as rows, stages as columns, mean and spread as text."""
    from engram.cli.result_display import format_mean_std
    from engram.records.summary import describe_places

    table = result.probes()
    if head is not None:
        table = table[table["head"].isin(("", head))]
    if not len(table):
        return table
    several = len(result.labels) > 1
    names = [
        " ".join([metric, *([f"({place})"] if place else []), *([label] * several)])
        for metric, label, place in zip(
            table["metric"], table["label"], describe_places(table, result.class_names), strict=True
        )
    ]
    text = [
        format_mean_std(mean, std, digits)
        for mean, std in zip(table["mean"], table["std"], strict=True)
    ]
    wide = table.assign(probe=names, text=text).pivot(index="probe", columns="stage", values="text")
    wide = wide.loc[list(dict.fromkeys(names))].fillna("").rename_axis(columns=None)
    return wide.rename(columns=lambda stage: f"after {stage + 1}")


def _figure_names(result: Result) -> str:
    """Return the names of the scores of the runs."""
    return " or ".join(dict.fromkeys(figure.replace("_", " ") for figure in result.figures))


def _class_title(result: Result) -> str:
    """Return the title of class accuracies, which are recalls for label sets."""
    sets = any(figure != "accuracy" for figure in result.figures)
    return "class recall" if sets else "class accuracy"


def _explain_dashes(result: Result, table: pd.DataFrame) -> None:
    """Explain dashes in place of numbers."""
    from engram.records.run_metrics import NO_FORWARD_TRANSFER, TOP_K, meets_new_classes

    dashes = table.loc[table["mean"].isna(), "metric"].tolist()
    if "forward_transfer" in dashes and meets_new_classes(result).any():
        say(NO_FORWARD_TRANSFER, style="dim")
    if TOP_K in dashes:
        say(f"{TOP_K}: not defined where k or fewer classes compete", style="dim")


def _explain_absent(table: pd.DataFrame, definitions: list[str]) -> None:
    """Say how to get metrics that are left out because only learnt tasks were scored."""
    from engram.records.run_metrics import READ_AHEAD

    found = {*table["metric"], *table["definition"]}
    named = ["forward_transfer", *(f"forgetting ({d})" for d in definitions if d in READ_AHEAD)]
    absent = [name for name in named if name.rpartition("(")[2].rstrip(")") not in found]
    if absent:
        say(
            f"{', '.join(absent)}: from accuracies of tasks before they are learnt, which "
            "engram run --evaluate-unseen records (with --rerun for finished runs)",
            style="dim",
        )


def _class_table(result: Result, stage: int | None) -> pd.DataFrame:
    """Average class accuracies over runs: one row per label, columns by class."""
    table = result.class_accuracy(stage=stage).rename(columns=result.class_names)
    return table.groupby(result.run_labels, sort=False).mean().rename_axis("label")


def _group_table(result: Result, by: str, stage: int | None) -> pd.DataFrame:
    """Average group accuracies over runs: one row per label, columns by group."""
    table = result.group_accuracy(by=by, stage=stage)
    return table.groupby(result.run_labels, sort=False).mean().rename_axis("label")


def _compare(result: Result, metric: str, definition: str, stage: int | None) -> MethodComparison:
    chosen = metric == "forgetting" and definition != EVERY_DEFINITION
    options: dict[str, Any] = {"definition": definition} if chosen else {}
    return result.compare(metric, stage=stage, **options)


def _comparison_tables(found: MethodComparison, csv: bool) -> dict[str, pd.DataFrame]:
    """Return the tables of methods and pairs, with all digits of p for CSV."""
    from engram.records.method_comparison import format_p_values

    tables = {f"{found.metric}, intervals": found.methods}
    if len(found.pairs):
        pairs = found.pairs if csv else format_p_values(found.pairs)
        names = [f"{a} - {b}" for a, b in pairs.index]
        tables["differences"] = pairs.set_axis(names, axis=0).rename_axis("pair")
    return tables


def _mean_matrix(result: Result) -> pd.DataFrame:
    """Average the matrices of the runs of one label."""
    import numpy as np
    import pandas as pd

    known = ~np.isnan(result.matrix)
    total = np.where(known, result.matrix, 0.0).sum(axis=0)
    mean = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
    names = [f"task {t + 1}" for t in range(mean.shape[1])]
    after = [f"after {k + 1}" for k in range(mean.shape[0])]
    return pd.DataFrame(mean, index=pd.Index(after, name="stage"), columns=pd.Index(names))


def _curve_table(result: Result, digits: int) -> pd.DataFrame:
    """Tabulate metrics as rows, stages as columns, mean and spread as text."""
    from engram.cli.result_display import format_mean_std

    table = result.curves()
    several = len(result.labels) > 1
    names = table["metric"] + (" " + table["label"] if several else "")
    text = [
        format_mean_std(mean, std, digits)
        for mean, std in zip(table["mean"], table["std"], strict=True)
    ]
    wide = table.assign(line=names, text=text).pivot(index="line", columns="stage", values="text")
    wide = wide.loc[list(dict.fromkeys(names))].fillna("").rename_axis(columns=None)
    return wide.rename_axis("metric").rename(columns=lambda stage: f"after {stage + 1}")


def _refinement_table(result: Result, stage: int | None) -> pd.DataFrame:
    table = result.refinement(stage=stage)
    several = len(result.labels) > 1
    lines = [f"{above} > {sub}" + f" ({label})" * several for label, above, sub in table.index]
    return table.set_axis(lines, axis=0).rename_axis("pair")


def _confusion_tables(
    result: Result, label: str, stage: int | None, runs: list[int]
) -> dict[str, pd.DataFrame]:
    """Tabulate confusion counts or, for label sets, shares with the truth."""
    if result.figures[0] == "accuracy":
        return {f"confusion, {label}": _count_confusion(result, stage, runs)}
    found = [result.label_confusion(run, stage=stage) for run in runs]
    total = found[0].predicted
    for one in found[1:]:
        total = total + one.predicted
    return {f"confusion, {label}": total / len(found), f"the truth, {label}": found[0].truth}


def _count_confusion(result: Result, stage: int | None, runs: list[int]) -> pd.DataFrame:
    """Sum confusion counts over some runs of one label."""
    tables = [result.confusion(run, stage=stage) for run in runs]
    total = tables[0]
    for table in tables[1:]:
        total = total.add(table, fill_value=0.0)
    return total.astype(int)


# ``engram verify`` and ``engram card``.


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Check that the records of a run directory belong together and to what they claim.

    Files against checksums, recipes against ids, numbers against predictions, ledgers against
    budgets, test rows and models against the data where it is at hand; of each method, one model
    scores rows in other batches. Prints one line per finding; the exit code is 1 if there is any.
    """
    import json

    from engram.experiments.verification import verify as check

    found = check(directory, root=root, trust=trust)
    if found.ok:  # else the records may not be readable
        found = _check_batches(directory, found, trust=trust)
    if as_json:
        emit(json.dumps(found.to_dict(), indent=1))
    else:
        *details, verdict = str(found).splitlines()
        for line in details[: len(found.findings)]:
            emit(line)
        for line in details[len(found.findings) :]:
            say(line, style="dim")
        emit(verdict)
    if not found.ok:
        raise typer.Exit(FAILED)


def _check_batches(directory: Path, found: Verification, *, trust: bool) -> Verification:
    """Add findings on models whose scores depend on the batch: of each method, the first model."""
    from engram.deploy import Learner
    from engram.deploy.batch_invariance import check_model_batches
    from engram.errors import EngramError
    from engram.records import read
    from engram.records.record_checks import RecordFinding

    result = read(directory)
    models: dict[str, Path] = {}
    for run, label in zip(result.runs, result.run_labels, strict=True):
        if label not in models and isinstance(kept := result.kept_model(run), Path):
            models[label] = kept
    findings, notes, count = list(found.findings), list(found.notes), 0
    for label, path in models.items():
        try:
            effects = check_model_batches(Learner.load(path, device="cpu", trust=trust))
        except EngramError as problem:
            notes.append(f"{label}: whether scores depend on their batch ({problem})")
            continue
        count += 1
        findings += [RecordFinding("batches", label, str(one)) for one in effects if not one.ok]
    checked = {**found.checked, "models in other batches": count} if count else found.checked
    return replace(found, findings=tuple(findings), notes=tuple(notes), checked=checked)


def card(
    directories: Directories,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE",
            help="File to write, .md or .html (default: card.md in the directory).",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Print and save the protocol card: one page that a paper can cite.

    Data and split, class order, transforms, weights, seeds, tuning, memory, compute, rows read,
    numbers and what each of them means. It names no folder of this machine.

    Of a model file or a store: its classes, and which rows of training it holds; printed, and saved
    with --out.
    """
    from engram.report.protocol_card import make_card

    if directories[0].is_file() or (directories[0] / "store.json").is_file():
        return _print_model_card(directories, out)

    made = make_card(*directories)
    emit(made.markdown().partition("<!--engram-card")[0].rstrip())
    say(f"wrote {made.write(directories[0] / 'card.md' if out is None else out)}")
    return None


def _print_model_card(models: list[Path], out: Path | None) -> None:
    from engram.deploy import Learner, ModelStore
    from engram.io import write_text

    if len(models) > 1:
        raise bad("DIR", "one model file or store, or run directories", f"{len(models)} paths")
    (path,) = models
    learner = Learner.load(path) if path.is_file() else ModelStore(path).learner
    text = learner.card()
    emit(text)
    if out is not None:
        say(f"wrote {write_text(out, text + chr(10))}")


# ``engram diff``.


def diff(
    run: Annotated[
        str,
        typer.Argument(metavar="ONE", help="A run directory, recipe file, card or PAPER/TABLE."),
    ],
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Another one, of any of these kinds.")
    ],
) -> None:
    """Show how two protocols differ: runs, recipe files, protocol cards, tables of papers.

    A card and the runs that it describes are compared by their numbers, too.
    Every recipe is compared with the nearest one of the other side; the most important
    differences come first.
    """
    from engram.cli.console import results_console, say
    from engram.reproduce import compare_recipes, read_recipes
    from engram.reproduce.protocol_differences import read_digest

    found = compare_recipes(read_recipes(run), read_recipes(other))
    digests = [one for one in map(read_digest, (run, other)) if one]
    if len(digests) == 2:
        words = "are the same" if digests[0] == digests[1] else "differ"
        say(f"numbers: {words} ({digests[0]} and {digests[1]})")
    if not found:
        return say(f"{run} and {other} follow the same protocol")
    results_console().print(_difference_table(found))
    _print_partners(found)
    _print_reasons(found)
    return None


def _difference_table(found: list[Difference]) -> Table:
    from rich.text import Text

    from engram.cli.result_display import make_plain_table

    table = make_plain_table("field", "here", "there", "in")
    for column in table.columns[1:]:
        column.justify = "left"
    for one in found:
        where = one.recipes[0] if len(one.recipes) == 1 else f"{len(one.recipes)} recipes"
        here, there = one.values
        table.add_row(Text(one.field), Text(here), Text(there), Text(where))
    return table


def _print_partners(found: list[Difference]) -> None:
    """Print the recipe that each was compared with, if the labels differ."""
    from engram.cli.console import say

    pairs = dict(pair for one in found for pair in zip(one.recipes, one.against, strict=True))
    for mine, other in pairs.items():
        if mine != other:
            say(f"{mine} was compared with {other}")


def _print_reasons(found: list[Difference]) -> None:
    from engram.cli.console import say

    for kind in dict.fromkeys(one.kind for one in found):
        fields = dict.fromkeys(one.field for one in found if one.kind == kind)
        why = next(one.why for one in found if one.kind == kind)
        say(f"{', '.join(fields)}: {why}", style="dim")


# ``engram novelty``.


METRIC_NAMES = {
    "combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC",
    "mean_auroc": "mAUC", "aupr_in": "AUPR", "detection_error": "DER", "fpr95": "FPR95",
    "inside_forgotten_auroc": "In/Forg AUC", "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_auroc": "Forg/Out AUC", "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip


def novelty(
    directories: Directories,
    detectors: Annotated[
        str | None, typer.Option(
            metavar="A,B", help="First score finished runs with these (engram list detectors)."
        ),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="After which task, from 1 (default: mean over all).")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(
            metavar="RATE", help="Instead show how many familiar items are flagged at this rate."
        ),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(
            "--ood", metavar="NAME|PATH",
            help="Outside set for tuning --detectors (default: as before).",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Tune --detectors after the first task, against --ood."),
    ] = False,
    assignments: Annotated[
        list[str] | None, typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="An option of --detectors, KNN.k=5, or of the outside set, outside.limit=2000. "
            "Repeatable.",
        ),
    ] = None,
    device: Device = "auto",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: every stage and metric.")] = False,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Show how well detectors separate familiar inputs from new and from forgotten ones.

    With --detectors, finished runs are scored from kept parameters (engram run --keep
    parameters); nothing is trained.
    """
    from engram.records import read
    from engram.records.novelty_records import describe_tuning

    more = _DetectorRequest(detectors, outside, tune, assignments or ())
    for directory in directories if detectors is not None else ():
        _score_runs(directory, more, device, trust)
    result = read(*directories)
    if false_alarms is not None:
        _print_alarms(result.false_alarms(false_alarms), stage, csv)
        return
    table = _at_stage(result.novelty(), stage)
    if csv:
        from engram.report.table import frame_to_csv

        emit(frame_to_csv(table.assign(stage=table["stage"] + 1)))
        return
    _print_scores(table, "mean over stages" if stage is None else f"after task {stage}")
    for line in describe_tuning(result):
        emit(line)


def _print_alarms(table: pd.DataFrame, stage: int | None, csv: bool) -> None:
    from engram.cli.wide_tables import print_table

    table = _at_stage(table, stage)
    table = table.assign(stage=table["stage"] + 1, task=table["task"] + 1)
    if csv:
        from engram.report.table import frame_to_csv

        emit(frame_to_csv(table))
        return
    names = [f"{one.detector} ({one.label}), task {one.task}" for one in table.itertuples()]
    shown = table[["frozen", "renewed"]].set_axis(names).groupby(level=0, sort=False).mean()
    when = "mean over stages" if stage is None else f"after task {stage}"
    print_table(f"false alarms, {when}", shown.rename_axis("detector"))


class _DetectorRequest:
    """Detectors to score finished runs with, their options and the outside set."""

    def __init__(
        self, detectors: str | None, outside: str | None, tune: bool, assignments: Sequence[str]
    ) -> None:
        from engram.cli.execution import detector_specs
        from engram.errors import bad
        from engram.experiments.build_probes import build_detectors
        from engram.experiments.overrides import set_detector_option
        from engram.io import parse_key_value

        for option, given in (("--tune", tune), ("--ood", outside), ("--set", assignments)):
            if given and detectors is None:
                raise bad(option, "--detectors with it", "none")
        self.outside = outside
        self.words = [*(["--detectors", detectors] if detectors else ())]
        self.words += [*(["--ood", outside] if outside else ()), *(["--tune"] if tune else ())]
        self.words += [word for one in assignments for word in ("--set", one)]
        content = {"detectors": detector_specs(detectors, tune)}
        pairs = [parse_key_value(one) for one in assignments]
        self.of_outside = [one for one in pairs if one[0].startswith("outside.")]
        for key, value in pairs:
            if not key.startswith("outside.") and not set_detector_option(content, key, value):
                expected = "an option of the --detectors, as in KNN.k=5, or of the outside set"
                raise bad("--set", expected, key)
        self.detectors = build_detectors(content)  # given by the user, not by the directory

    def add_to(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """Return a plain recipe with these detectors as its only probes."""
        import copy

        from engram.experiments.overrides import set_key

        found = {**recipe, "detectors": self.detectors, "probes": ()}
        found["outside"] = (
            copy.deepcopy(recipe.get("outside")) if not self.outside else self.outside
        )
        for key, value in self.of_outside:
            set_key(found, key, value)
        return found


def _score_runs(directory: Path, more: _DetectorRequest, device: str, trust: bool) -> None:
    """Score the runs of a directory by detectors that have not scored them."""
    from engram.cli import execution
    from engram.cli.console import read_requests
    from engram.cli.execution import allow_own_code, find_modules
    from engram.cli.run_commands import make_requests
    from engram.experiments import make_plans
    from engram.experiments.reevaluate import reevaluate_runs
    from engram.records import RunDirectory

    with allow_own_code(["novelty", str(directory), *more.words], trust):
        for request in read_requests(directory) or make_requests(directory):
            find_modules(request.folder)
            plans = make_plans(
                execution.build_recipes([more.add_to(one) for one in request.recipes]), request.root
            )
            reevaluate_runs(plans, RunDirectory(directory), device=device, together=None)


def _at_stage(table: pd.DataFrame, stage: int | None) -> pd.DataFrame:
    """Select the rows after a task, numbered from 1, or all."""
    from engram.errors import bad, check_int

    if stage is None:
        return table
    known = sorted({int(one) + 1 for one in table["stage"]})
    if check_int("--stage", stage, 1) not in known:
        expected = f"a task after which detectors were evaluated, {known[0]} to {known[-1]}"
        raise bad("--stage", expected, stage)
    return table[table["stage"] == stage - 1]


def _print_scores(table: pd.DataFrame, when: str) -> None:
    from engram.cli.wide_tables import print_table

    over = table.groupby(["label", "detector", "metric"], sort=False)["mean"].mean()
    means = over.unstack(sort=False)
    means.index = [f"{detector} ({label})" for label, detector in means.index]
    shown = means[[name for name in METRIC_NAMES if name in means]].rename(columns=METRIC_NAMES)
    print_table(f"novelty, {when}", shown.rename_axis("detector"))
