"""``engram metrics``: numbers from records, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.options import Directories
from engram.cli.shell import emit, say, say_unread
from engram.cli.wide_table import show_table

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.records.compared import MethodComparison

EVERY = "every"  # not "all", which is a definition


def command(
    directories: Directories,
    definition: Annotated[
        str, typer.Option(
            metavar="NAME|every",
            help="Definition of forgetting: max, diagonal, all, first, ...; every: all of them.",
        ),
    ] = EVERY,
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
    from engram.cli.show import how_seen
    from engram.errors import choose, whole
    from engram.metrics import FORGETTING_DEFINITIONS
    from engram.records import read
    from engram.records.left_out import left_out_in_words, runs_with
    from engram.records.searched import searched_in_words

    choose("--definition", definition, (EVERY, *FORGETTING_DEFINITIONS))
    result = read(*directories)
    if head is not None:
        result = result.view(head=head)
    last = None if stage is None else whole("--stage", stage, 1, int(result.tasks.max())) - 1
    wanted = list(FORGETTING_DEFINITIONS) if definition == EVERY else [definition]
    asked: dict[str, dict[str, Any]] = {"f1_score": {}} if f1 else {}
    if top is not None:
        asked["top_k_accuracy"] = {"k": whole("--top-k", top, 1)}
    tables = {"metrics": numbers(result, wanted, last, ece=calibration, asked=asked)}
    probed = _probes(result, head)
    if len(probed):
        tables["probes"] = probed
    if classes:
        tables[_class_title(result)] = _classes(result, last)
    if curves:
        tables["after every task"] = _curves(result)
    if refinement:
        tables["refinement"] = _refinement(result, last)
    if by is not None:
        tables[f"accuracy by {by}"] = _groups(result, by, last)
    told = None if compare is None else _compare(result, compare, definition, last)
    if told is not None:
        tables |= _compared(told, csv)
    for label in result.labels:
        if matrix:
            chosen = result.select(label=label)
            tables[f"{_figure(chosen)} matrix, {label}"] = _matrix(chosen)
        if confusion and (known := runs_with(result.select(label=label), last)):
            tables |= _confusions(result.select(label=label), label, last, known)
    for title, table in tables.items():
        if csv:
            emit(table.to_csv(index=title != "metrics"))
        else:
            show_table(title, table)
    say(how_seen(result, last), style="dim")
    if told is not None:
        say(told.note, style="dim")
    _say_what_is_missing(result, tables["metrics"])
    for words in (*left_out_in_words(result, last), *searched_in_words(result.recipes)):
        say(words, style="yellow")
    say_unread(result)


def numbers(
    result: Result, definitions: list[str], stage: int | None, *, ece: bool,
    asked: dict[str, dict[str, Any]],
) -> pd.DataFrame:  # fmt: skip
    """Long table: label, metric, definition, mean, std, runs; `asked` are further metrics."""
    import numpy as np
    import pandas as pd

    from engram import metrics
    from engram.errors import BadArgument
    from engram.records.summary import plain_names

    labels = np.array(result.run_labels, dtype=object)
    values: dict[tuple[str, str], Any] = {}
    for name in plain_names(result):
        try:
            values[name, ""] = result.metric(name, stage=stage)
        except BadArgument:  # chance was not recorded, or a stream of one task
            continue
    for definition in definitions:
        if definition == "first" and len(definitions) > 1 and "accuracy" not in result.figures:
            continue  # of label sets no task is judged before it is learnt
        values["forgetting", definition] = result.metric(
            "forgetting", stage=stage, definition=definition
        )
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


def _probes(result: Result, head: str | None) -> pd.DataFrame:
    """What probes measured: metrics as lines, stages as columns, mean and spread as text."""
    from engram.cli.show import pair
    from engram.records.probe_table import places_of

    table = result.probes()
    if head is not None:
        table = table[table["head"].isin(("", head))]
    if not len(table):
        return table
    several = len(result.labels) > 1
    names = [
        " ".join([metric, *([f"({place})"] if place else []), *([label] * several)])
        for metric, label, place in zip(
            table["metric"], table["label"], places_of(table, result.class_names), strict=True
        )
    ]
    text = [pair(mean, std) for mean, std in zip(table["mean"], table["std"], strict=True)]
    wide = table.assign(probe=names, text=text).pivot(index="probe", columns="stage", values="text")
    wide = wide.loc[list(dict.fromkeys(names))].fillna("").rename_axis(columns=None)
    return wide.rename(columns=lambda stage: f"after {stage + 1}")


def _figure(result: Result) -> str:
    """What the runs are judged by, in words."""
    return " or ".join(dict.fromkeys(figure.replace("_", " ") for figure in result.figures))


def _class_title(result: Result) -> str:
    """Of a set of labels, the share of a class's rows that were said to have it is its recall."""
    sets = any(figure != "accuracy" for figure in result.figures)
    return "class recall" if sets else "class accuracy"


def _say_what_is_missing(result: Result, table: pd.DataFrame) -> None:
    """Why there is a dash in place of a number."""
    from engram.records.prediction_metrics import TOP_K
    from engram.records.references import NO_FORWARD_TRANSFER, meets_new_classes

    dashes = table.loc[table["mean"].isna(), "metric"].tolist()
    if "forward_transfer" in dashes and meets_new_classes(result).any():
        say(NO_FORWARD_TRANSFER, style="dim")
    if TOP_K in dashes:
        say(f"{TOP_K}: not defined where k or fewer classes compete", style="dim")


def _classes(result: Result, stage: int | None) -> pd.DataFrame:
    """Mean over runs, one line per label, columns by class."""
    table = result.class_accuracy(stage=stage).rename(columns=result.class_names)
    return table.groupby(result.run_labels, sort=False).mean().rename_axis("label")


def _groups(result: Result, by: str, stage: int | None) -> pd.DataFrame:
    """Mean over runs, one line per label, columns by group."""
    table = result.group_accuracy(by=by, stage=stage)
    return table.groupby(result.run_labels, sort=False).mean().rename_axis("label")


def _compare(result: Result, metric: str, definition: str, stage: int | None) -> MethodComparison:
    chosen = metric == "forgetting" and definition != EVERY
    options: dict[str, Any] = {"definition": definition} if chosen else {}
    return result.compare(metric, stage=stage, **options)


def _compared(found: MethodComparison, csv: bool) -> dict[str, pd.DataFrame]:
    """Methods with their intervals, and pairs; for programs with all digits of p."""
    from engram.records.compared import with_p_as_text

    tables = {f"{found.metric}, intervals": found.methods}
    if len(found.pairs):
        pairs = found.pairs if csv else with_p_as_text(found.pairs)
        names = [f"{a} - {b}" for a, b in pairs.index]
        tables["differences"] = pairs.set_axis(names, axis=0).rename_axis("pair")
    return tables


def _matrix(result: Result) -> pd.DataFrame:
    """Mean matrix of the runs of one label."""
    import numpy as np
    import pandas as pd

    known = ~np.isnan(result.matrix)
    total = np.where(known, result.matrix, 0.0).sum(axis=0)
    mean = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
    names = [f"task {t + 1}" for t in range(mean.shape[1])]
    after = [f"after {k + 1}" for k in range(mean.shape[0])]
    return pd.DataFrame(mean, index=pd.Index(after, name="stage"), columns=pd.Index(names))


def _curves(result: Result) -> pd.DataFrame:
    """Metrics as lines, stages as columns, mean and spread as text."""
    from engram.cli.show import pair

    table = result.curves()
    several = len(result.labels) > 1
    names = table["metric"] + (" " + table["label"] if several else "")
    text = [pair(mean, std) for mean, std in zip(table["mean"], table["std"], strict=True)]
    wide = table.assign(line=names, text=text).pivot(index="line", columns="stage", values="text")
    wide = wide.loc[list(dict.fromkeys(names))].fillna("").rename_axis(columns=None)
    return wide.rename_axis("metric").rename(columns=lambda stage: f"after {stage + 1}")


def _refinement(result: Result, stage: int | None) -> pd.DataFrame:
    table = result.refinement(stage=stage)
    several = len(result.labels) > 1
    lines = [f"{above} > {sub}" + f" ({label})" * several for label, above, sub in table.index]
    return table.set_axis(lines, axis=0).rename_axis("pair")


def _confusions(
    result: Result, label: str, stage: int | None, runs: list[int]
) -> dict[str, pd.DataFrame]:
    """Counts; of label sets shares, with the truth beside them."""
    if result.figures[0] == "accuracy":
        return {f"confusion, {label}": _confusion(result, stage, runs)}
    found = [result.label_confusion(run, stage=stage) for run in runs]
    total = found[0].predicted
    for one in found[1:]:
        total = total + one.predicted
    return {f"confusion, {label}": total / len(found), f"the truth, {label}": found[0].truth}


def _confusion(result: Result, stage: int | None, runs: list[int]) -> pd.DataFrame:
    """Counts summed over some runs of one label."""
    tables = [result.confusion(run, stage=stage) for run in runs]
    total = tables[0]
    for table in tables[1:]:
        total = total.add(table, fill_value=0.0)
    return total.astype(int)
