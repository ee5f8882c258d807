"""Commands that read results: report, metrics, verify, card, diff, novelty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.console import FAILED, emit, report_unreadable, say
from engram.cli.options import Device, Directories, Root, Trust
from engram.cli.wide_tables import print_table
from engram.errors import bad, plural

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from engram.records import Result
    from engram.records.method_comparison import MethodComparison
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
) -> None:  # fmt: skip
    """Write a self-contained HTML report on run directories; it needs no network."""
    from engram.report import build, from_directories, write_images, write_tables

    if out.suffix.lower() not in PAGE_SUFFIXES:
        expected = "a name that ends in .html (--images DIR writes figures, --tables DIR tables)"
        raise bad("--out", expected, str(out))
    inputs = from_directories(*directories)
    say(f"wrote {build(inputs, out, title=title)}")
    if tables is not None:
        say(f"wrote {len(write_tables(inputs, tables))} tables to {tables}")
    if images is not None:
        say(f"wrote {plural(len(write_images(inputs, images)), 'image')} to {images}")


# ``engram metrics``.


EVERY_DEFINITION = "every"  # "all" is the name of a definition


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
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:  # fmt: skip
    """Show all metrics of run directories, with every definition of forgetting."""
    from engram.cli.result_display import describe_view
    from engram.errors import check_choice, check_int
    from engram.metrics import FORGETTING_DEFINITIONS
    from engram.records import read
    from engram.records.summary import describe_excluded_runs, describe_search, runs_at_stage
    from engram.report.table import frame_to_csv

    check_choice("--definition", definition, (EVERY_DEFINITION, *FORGETTING_DEFINITIONS))
    result = read(*directories)
    if head is not None:
        result = result.view(head=head)
    last = None if stage is None else check_int("--stage", stage, 1, int(result.tasks.max())) - 1
    wanted = list(FORGETTING_DEFINITIONS) if definition == EVERY_DEFINITION else [definition]
    asked: dict[str, dict[str, Any]] = {"f1_score": {}} if f1 else {}
    if top is not None:
        asked["top_k_accuracy"] = {"k": check_int("--top-k", top, 1)}
    tables = {"metrics": metric_table(result, wanted, last, ece=calibration, asked=asked)}
    probed = _probe_table(result, head)
    if len(probed):
        tables["probes"] = probed
    if classes:
        tables[_class_title(result)] = _class_table(result, last)
    if curves:
        tables["after every task"] = _curve_table(result)
    if refinement:
        tables["refinement"] = _refinement_table(result, last)
    if by is not None:
        tables[f"accuracy by {by}"] = _group_table(result, by, last)
    told = None if compare is None else _compare(result, compare, definition, last)
    if told is not None:
        tables |= _comparison_tables(told, csv)
    for label in result.labels:
        if matrix:
            chosen = result.select(label=label)
            tables[f"{_figure_names(chosen)} matrix, {label}"] = _mean_matrix(chosen)
        if confusion and (known := runs_at_stage(result.select(label=label), last)):
            tables |= _confusion_tables(result.select(label=label), label, last, known)
    for title, table in tables.items():
        if csv:
            emit(frame_to_csv(table, index=title != "metrics"))
        else:
            print_table(title, table)
    say(describe_view(result, last), style="dim")
    if told is not None:
        say(told.note, style="dim")
    _explain_dashes(result, tables["metrics"])
    if "accuracy" in result.figures:
        _explain_absent(tables["metrics"], wanted)
    for words in (*describe_excluded_runs(result, last), *describe_search(result.recipes)):
        say(words, style="yellow")
    report_unreadable(result)
    if result.problems:
        raise typer.Exit(FAILED)


def metric_table(
    result: Result, definitions: list[str], stage: int | None, *, ece: bool,
    asked: dict[str, dict[str, Any]],
) -> pd.DataFrame:  # fmt: skip
    """Tabulate label, metric, definition, mean, std, runs; `asked` are further metrics."""
    import numpy as np
    import pandas as pd

    from engram import metrics
    from engram.errors import BadArgument
    from engram.records.summary import plain_metric_names

    labels = np.array(result.run_labels, dtype=object)
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
        which = " ".join(f"{key}={value}" for key, value in options.items())
        values[name, which] = result.metric(name, stage=stage, **options)
    if ece:
        values["calibration_error", ""] = result.calibration(stage=stage)
    rows = []
    for (name, definition), found in values.items():
        for label in result.labels:
            known = found[(labels == label) & ~np.isnan(found)]
            mean, std = float(metrics.mean(known)), float(metrics.std(known))
            rows.append((label, name, definition, mean, std, len(known)))
    columns = ["label", "metric", "definition", "mean", "std", "runs"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _probe_table(result: Result, head: str | None) -> pd.DataFrame:
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
        format_mean_std(mean, std) for mean, std in zip(table["mean"], table["std"], strict=True)
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


def _curve_table(result: Result) -> pd.DataFrame:
    """Tabulate metrics as rows, stages as columns, mean and spread as text."""
    from engram.cli.result_display import format_mean_std

    table = result.curves()
    several = len(result.labels) > 1
    names = table["metric"] + (" " + table["label"] if several else "")
    text = [
        format_mean_std(mean, std) for mean, std in zip(table["mean"], table["std"], strict=True)
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
    budgets, test rows and models against the data where it is at hand. Prints one line per finding;
    the exit code is 1 if there is any.
    """
    import json

    from engram.experiments.verification import verify as check

    found = check(directory, root=root, trust=trust)
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
    """
    from engram.report.protocol_card import make_card

    made = make_card(*directories)
    emit(made.markdown().partition("<!--engram-card")[0].rstrip())
    say(f"wrote {made.write(directories[0] / 'card.md' if out is None else out)}")


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
