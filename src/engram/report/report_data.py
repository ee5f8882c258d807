"""`ReportData`: aggregates of the long table per run and per method, with costs and ledger
entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram import metrics
from engram.metrics.tolerance import merge_ties
from engram.records.confusion import FinalAnswers
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.novelty_records import Familiarity, FeatureSample
from engram.records.prediction_scoring import SCORE_WORDS
from engram.records.probe_arrays import GeneratedPictures
from engram.records.run_arrays import ScoresWithin, build_trace
from engram.records.run_metrics import (
    ANYTIME_METRICS,
    lacks_tasks_to_come,
    leaves_out_stages,
    pair_by_seed,
)
from engram.report.recipe_facts import is_reference, trains_on_past
from engram.report.report_inputs import ReportInput

# The data-access ledger, summed over stages and runs, whatever its depth.


_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])")
_IDENTITY = ("recipe", "run", "seed", "order")  # keys that identify the run of a ledger


@dataclass(frozen=True)
class LedgerEntry:
    """One entry: its recipe ("" if unknown), its path, and its value."""

    recipe: str
    path: tuple[str, ...]
    value: Any


def ledger_entries(ledger: Mapping[str, Any], recipes: Collection[str]) -> Iterator[LedgerEntry]:
    """Yield the entries of a ledger; of repeated ones for a run and stage, the last.

    Runs are resolved one by one: the entries of a hundred thousand would take gigabytes.

    Examples
    --------
    >>> ledger = {
    ...     "part-1": {"0a1b2c3d4e5f-0-": {"0": {"train": 64}}},
    ...     "part-2": {"0a1b2c3d4e5f-0-": {"0": {"train": 64}, "1": {"train": 32}}},
    ... }
    >>> [(e.path, e.value) for e in ledger_entries(ledger, ["0a1b2c3d4e5f"])]
    [(('0a1b2c3d4e5f-0-', '0', 'train'), 64), (('0a1b2c3d4e5f-0-', '1', 'train'), 32)]
    """
    known = frozenset(recipes)
    runs: dict[tuple[str, ...], list[tuple[str, Any]]] = {}  # of each, its records in all parts
    for path, recipe, value in _walk_ledger(ledger, (), "", known):
        # A run is written in several parts, which do not matter here.
        start = next((i for i, word in enumerate(path) if _find_recipe(word, known)), 0)
        runs.setdefault(path[start:], []).append((recipe, value))
    for run, records in runs.items():
        found: dict[tuple[str, ...], LedgerEntry] = {}
        for recipe, value in records:
            for path, inner in _walk_record(value, run):
                found[path] = LedgerEntry(recipe, path, inner)
        yield from found.values()


def _walk_record(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk_record(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
        for number, inner in enumerate(value):
            yield from _walk_record(inner, (*path, str(number)))
    else:
        yield path, value


def _find_recipe(word: str, known: Collection[str]) -> str:
    if word in known:
        return word
    return next((match for match in _ID.findall(word) if match in known), "")


def _walk_ledger(
    value: Any, path: tuple[str, ...], recipe: str, known: Collection[str]
) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield path, recipe and content of the record of each run, and of all that is in none."""
    if isinstance(value, Mapping):
        identity = [str(value[key]) for key in _IDENTITY if key in value]
        told = next(filter(None, (_find_recipe(word, known) for word in identity)), "")
        if told:
            rest = {key: inner for key, inner in value.items() if key not in _IDENTITY}
            yield (*path, "-".join(identity)), told, rest
            return
        for key, inner in value.items():
            owner = _find_recipe(str(key), known)
            if owner:
                yield (*path, str(key)), owner, inner
            else:
                yield from _walk_ledger(inner, (*path, str(key)), recipe, known)
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
        for number, inner in enumerate(value):
            yield from _walk_ledger(inner, (*path, str(number)), recipe, known)
    else:
        yield path, recipe, value


def readers_of_the_past(ledger: Mapping[str, Any], recipes: Collection[str]) -> set[str]:
    """Find recipes whose ledger has rows of earlier tasks outside the memory.

    Examples
    --------
    >>> readers_of_the_past({"0a1b2c3d4e5f-0-": {"1": {"past": 3}}}, ["0a1b2c3d4e5f"])
    {'0a1b2c3d4e5f'}
    """
    return {
        entry.recipe
        for entry in ledger_entries(ledger, recipes)
        if entry.recipe and (
            (entry.path[-1] == "past" and _is_count(entry.value) and entry.value > 0)
            or (entry.path[-1] == "reads" and entry.value == "past")
        )
    }  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sum_ledger_entries(
    ledger: Mapping[str, Any], names: Mapping[str, str]
) -> list[tuple[str, str, str, float | None]]:
    """Sum counts per recipe to rows (method, entry, text, number); other values follow.

    Parameters
    ----------
    names
        Recipe id to the name of its method.
    """
    sums: dict[tuple[str, str], float] = {}
    texts: dict[tuple[str, str], dict[str, None]] = {}
    for entry in ledger_entries(ledger, names):
        name = names.get(entry.recipe, "")
        if name and entry.path[-1] == "label":
            continue  # repeats the name
        key = (name, entry.path[-1]) if name else ("", " / ".join(entry.path))
        if _is_count(entry.value):
            sums[key] = sums.get(key, 0) + entry.value
        else:
            value = entry.value
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            texts.setdefault(key, {})[text] = None
    rows: list[tuple[str, str, str, float | None]] = [
        (*key, f"{total:,.12g}", float(total)) for key, total in sums.items()
    ]
    rows += [(*key, ", ".join(list(each)[:5]), None) for key, each in texts.items()]
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, *_ in rows))}
    return sorted(rows, key=lambda row: order[row[0]])


# Costs.


RUN_COLUMNS = ["name", "seed", "order"]
BYTES_BESIDE_MEMORY = (
    "state_bytes",
    "network_bytes",
    "buffer_bytes",
    "optimizer_bytes",
)  # the memory
COSTS = ("seconds", "kept_bytes", *BYTES_BESIDE_MEMORY, "memory_items", "parameters")


def summarize_costs(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise costs of each run: seconds summed over stages, memory at the last stage."""
    # Besides the trained network; rows read of earlier tasks count, since they must be available.
    kept = ["state_bytes", "network_bytes", "memory_bytes", "past_bytes"]
    names = (*COSTS, "memory_bytes", "past_items", "past_bytes")
    wanted = [name for name in names if name != "kept_bytes"]
    rows = frame[frame["metric"].isin(wanted)].sort_values("stage", kind="stable")
    rows = rows.astype({"name": str, "order": str, "metric": str})
    last = rows.drop_duplicates([*RUN_COLUMNS, "metric"], keep="last")
    table = last.pivot_table(index=RUN_COLUMNS, columns="metric", values="value")
    table = table.reindex(columns=wanted)
    seconds = rows[rows["metric"] == "seconds"].groupby(RUN_COLUMNS)["value"].sum()
    table["seconds"] = seconds.reindex(table.index)
    table["kept_bytes"] = table[kept].sum(axis=1, min_count=1)
    table["memory_items"] = table[["memory_items", "past_items"]].sum(axis=1, min_count=1)
    return table[list(COSTS)].reset_index()


__all__ = [
    "BYTES_BESIDE_MEMORY",
    "COSTS",
    "DEFINITIONS",
    "RUN_COLUMNS",
    "METRICS_WITH_SPREAD",
    "ReportData",
    "Floats",
    "build_report_data",
    "add_names",
]

Floats = npt.NDArray[np.float64]

# Definitions for any matrix; "first" needs accuracies of tasks before they are learnt.
DEFINITIONS = ("max", "diagonal", "all", "mean_T", "mammoth", "libcontinual", "cglb", "pyclad")
METRICS_WITH_SPREAD = (
    "average_accuracy", *(f"forgetting/{d}" for d in DEFINITIONS), "backward_transfer",
    "learning_accuracy", "average_incremental_accuracy", "intransigence", "bound", "distance",
    *ANYTIME_METRICS, *COSTS,
)  # fmt: skip


@dataclass(frozen=True)
class ReportData:
    """All aggregates a report needs.

    For label sets, their figure (the precision-weighted Jaccard score) takes the
    place of accuracies, and its value over all test rows, each once, that of their average;
    `figure` and `average` are their names.

    Parameters
    ----------
    frame
        The long table with one more column, `name`: the label, made unique per recipe.
    runs
        One row per run and head view with its summary metrics.
    methods
        One row per name and head view: mean and `<metric>_std` over finished runs, rank, counts.
    matrices
        `(name, head)` to accuracies `[run, stage, task]` of the finished runs.
    pictures, classes
        Samples of generators, and the names of classes.
    novelty, familiarity, alarms, features, samples, answers, recipes
        Records of detectors, features of the item sets, and more, see `ReportInput`.
    """

    frame: pd.DataFrame
    runs: pd.DataFrame
    methods: pd.DataFrame
    matrices: dict[tuple[str, str], Floats]
    pictures: Sequence[GeneratedPictures] = ()
    classes: Mapping[int, str] = field(default_factory=dict)
    novelty: pd.DataFrame = field(default_factory=pd.DataFrame)
    familiarity: Sequence[Familiarity] = ()
    alarms: pd.DataFrame = field(default_factory=pd.DataFrame)
    features: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: Sequence[FeatureSample] = ()
    tuned: Sequence[str] = ()  # descriptions of the options chosen for tuned detectors
    answers: Sequence[FinalAnswers] = ()
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    short_names: Mapping[str, str] = field(default_factory=dict)  # name to that of the method

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each recipe."""
        pairs = self.frame[["recipe", "name"]].drop_duplicates("recipe").astype(str)
        return dict(zip(pairs["recipe"], pairs["name"], strict=True))

    def by_name(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the column `name` to a table by recipe."""
        return table.assign(name=[self.names[one] for one in table["recipe"]], head="")

    @property
    def figure(self) -> str:
        """The name of the score of a task."""
        return " or ".join(SCORE_WORDS[name] for name in self._figures)

    @property
    def average(self) -> str:
        """The name of the metric that sums up a run."""
        words = {**SCORE_WORDS, "accuracy": "average accuracy"}
        return " or ".join(words[name] for name in self._figures)

    @property
    def learning(self) -> str:
        """The name of the score of a task just learnt."""
        return " or ".join(f"learning {SCORE_WORDS[name]}" for name in self._figures)

    @property
    def only_accuracy(self) -> bool:
        return self._figures == ["accuracy"]

    @property
    def _figures(self) -> list[str]:
        known = set(self.runs["figure"].unique())
        return [name for name in FIGURES if name in known] or ["accuracy"]


def build_report_data(inputs: ReportInput) -> ReportData:
    """Aggregate the long table of `inputs`."""
    frame = add_names(inputs.frame, inputs.names.labels)
    runs, arrays = _run_rows(frame, inputs.names.streams)
    runs = _add_anytime_metrics(_add_metrics(runs, arrays, inputs), arrays, inputs, frame)
    runs = _add_overall_scores(runs, frame)
    runs = runs.merge(summarize_costs(frame), on=RUN_COLUMNS, how="left")
    finished = runs[runs["finished"]]
    tasks, where = finished["tasks"].to_numpy(), finished.index.to_numpy()
    groups: dict[Any, Any] = finished.groupby(["name", "head"]).indices
    matrices = {
        (str(name), str(head)): _crop_matrices(arrays[where[places]], int(tasks[places[0]]))
        for (name, head), places in groups.items()
    }
    methods = _method_rows(runs, frame, inputs)
    return ReportData(
        frame, runs, methods, matrices, inputs.pictures, inputs.classes, inputs.novelty,
        inputs.familiarity, inputs.alarms, inputs.features, inputs.samples, inputs.tuned,
        inputs.answers, inputs.recipes,
        {label: inputs.names.methods[one] for one, label in inputs.names.labels.items()},
    )  # fmt: skip


StreamParts = Mapping[str, tuple[ReportInput, ReportData]]  # by the name of the stream


def digest_streams(inputs: ReportInput) -> tuple[StreamParts, ReportData]:
    """Aggregate every stream by itself, since their numbers are not comparable, and all together.

    In the first, names are those of methods; in the second, they name a recipe.
    """
    whole = build_report_data(inputs)
    parts = inputs.split_by_stream()
    if len(parts) < 2:
        return {"": (inputs, whole)}, whole
    return {name: (part, build_report_data(part)) for name, part in parts.items()}, whole


def add_names(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Convert texts to categories and add a column `name`, unique per recipe.

    Two recipes may have the same label (a method on two streams) and must not be mixed.
    """
    whole = dict.fromkeys(("seed", "stage", "step", "task", "cls"), np.int32)
    result = frame[[*whole, "value"]].astype({**whole, "value": np.float64})
    for column in ("recipe", "label", "order", "head", "metric"):
        result[column] = _as_text_category(frame[column])
    recipes = [str(one) for one in result["recipe"].cat.categories]
    categories = sorted({names[one] for one in recipes})
    position = {text: i for i, text in enumerate(categories)}
    place = np.array([position[names[one]] for one in recipes], np.int64)
    codes = place[result["recipe"].cat.codes.to_numpy()] if len(result) else place[:0]
    result["name"] = pd.Categorical.from_codes(codes, categories=pd.Index(categories))
    return result


def _as_text_category(values: pd.Series[Any]) -> pd.Series[Any]:
    """Convert values to categories of text, sorted; only the categories are touched if possible."""
    if not isinstance(values.dtype, pd.CategoricalDtype) or values.hasnans:
        return values.astype(str).astype("category")
    used = values.cat.remove_unused_categories()
    words = [str(word) for word in used.cat.categories]
    if len(set(words)) < len(words):
        return values.astype(str).astype("category")
    return used.cat.rename_categories(words).cat.reorder_categories(sorted(words))


def _run_rows(frame: pd.DataFrame, streams: Mapping[str, str]) -> tuple[pd.DataFrame, Floats]:
    """Make one row per run and head view, with matrices [run, stage, task] in the same order."""
    rows = frame[frame["metric"].isin(FIGURES) & (frame["step"] == -1) & (frame["task"] >= 0)]
    keys = [*RUN_COLUMNS, "head", "recipe"]
    code = rows.groupby(keys, observed=True, sort=True).ngroup().to_numpy()
    runs = rows.assign(code=code).drop_duplicates("code").sort_values("code")[[*keys, "metric"]]
    texts = dict.fromkeys(("name", "order", "head", "recipe", "metric"), str)
    runs = runs.reset_index(drop=True).astype(texts).rename(columns={"metric": "figure"})
    # tasks to come may have no scores yet, but their test items were counted
    counted = frame[(frame["metric"] == "class_count") & (frame["task"] >= 0)]
    known = counted.groupby("name", observed=True)["task"].max() + 1
    reach = [int(column.max()) + 1 for column in (rows["stage"], rows["task"]) if len(column)]
    size = max([1, *reach, *known.tolist()])
    arrays = np.full((len(runs), size, size), np.nan)
    arrays[code, rows["stage"].to_numpy(), rows["task"].to_numpy()] = rows["value"].to_numpy()
    by_code = rows.groupby(code)
    runs["stages"] = by_code["stage"].max().to_numpy() + 1 if len(rows) else 0
    tasks = by_code["task"].max() + 1 if len(rows) else pd.Series(dtype=int)
    told = runs["name"].map(known.to_dict()).fillna(0).to_numpy(int)
    runs["tasks"] = np.maximum(tasks.to_numpy(), told)
    runs["tasks"] = runs.groupby(["name", "head"])["tasks"].transform("max")
    runs["diverged"] = _diverged_runs(frame, runs)
    runs["finished"] = (runs["stages"] >= runs["tasks"]) & ~runs["diverged"]
    runs["stream"] = [streams[recipe] for recipe in runs["recipe"]]
    return runs, arrays


def _diverged_runs(frame: pd.DataFrame, runs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    rows = frame[(frame["metric"] == "diverged") & (frame["value"] > 0)]
    bad = {tuple(row) for row in rows[RUN_COLUMNS].astype({"name": str, "order": str}).to_numpy()}
    return np.array([tuple(row) in bad for row in runs[RUN_COLUMNS].to_numpy()], np.bool_)


def _crop_matrices(arrays: Floats, tasks: int) -> Floats:
    return arrays[:, :tasks, :tasks]


def _add_metrics(runs: pd.DataFrame, arrays: Floats, inputs: ReportInput) -> pd.DataFrame:
    """Add the summary metrics of finished runs; others stay NaN and are only counted."""
    wanted = [c for c in METRICS_WITH_SPREAD if c not in COSTS]
    runs = runs.assign(**dict.fromkeys(wanted, np.nan))
    past = readers_of_the_past(inputs.ledger, set(runs["recipe"])) | {
        recipe for recipe in set(runs["recipe"]) if trains_on_past(recipe, inputs.recipes)
    }
    runs["reads_past"] = runs["recipe"].isin(past)
    for _, rows in runs[runs["finished"]].groupby("tasks"):
        where, tasks = rows.index, int(rows["tasks"].iloc[0])
        matrix = _crop_matrices(arrays[where.to_numpy()], tasks)  # [run, stage, task]
        lower = np.where(np.tril(np.ones(matrix.shape[-2:], np.bool_)), matrix, np.nan)
        runs.loc[where, "average_accuracy"] = metrics.average_accuracy(lower)
        runs.loc[where, "average_incremental_accuracy"] = np.where(
            rows["figure"].eq(FIGURES[0]), metrics.average_incremental_accuracy(lower), np.nan
        )
        runs.loc[where, "backward_transfer"] = metrics.backward_transfer(lower)
        runs.loc[where, "learning_accuracy"] = metrics.learning_accuracy(lower)
        runs.loc[where, "bound"] = metrics.forgetting_bound(lower)
        for definition in DEFINITIONS:
            seen = matrix if definition == "pyclad" else lower  # uses accuracies before learning
            values = metrics.forgetting(seen, definition=definition)
            if definition == "pyclad":  # sets of labels have no scores of tasks to come
                absent = lacks_tasks_to_come(seen, tasks - 1, "pyclad")
                absent &= rows["figure"].eq(FIGURES[0])
                values = np.where(absent, np.nan, values)
            runs.loc[where, f"forgetting/{definition}"] = values
        runs.loc[where, "intransigence"] = _intransigence(rows, lower, inputs)
    skipping = {key for key, one in inputs.recipes.items() if leaves_out_stages(one)}
    history = ["backward_transfer", "learning_accuracy", "bound"]
    history += [f"forgetting/{definition}" for definition in DEFINITIONS]
    runs.loc[runs["recipe"].isin(skipping), history] = np.nan
    runs["distance"] = np.hypot(runs["forgetting/max"], runs["intransigence"])
    return runs


def _add_anytime_metrics(
    runs: pd.DataFrame, arrays: Floats, inputs: ReportInput, frame: pd.DataFrame
) -> pd.DataFrame:
    """Add the metrics of scores during training, for finished runs that have these."""
    keys = [*RUN_COLUMNS, "head", "recipe"]
    rows = frame[(frame["step"] >= 0) & (frame["task"] >= 0) & frame["metric"].isin(FIGURES)]
    if not len(rows):
        return runs
    taken = frame[(frame["metric"] == "steps") & (frame["step"] == -1)]
    steps = dict(iter(taken.groupby([*RUN_COLUMNS, "recipe"], observed=True)))
    traced: dict[Any, Any] = rows.groupby([*keys, "metric"], observed=True).indices
    runs = runs.copy()
    for number, run in runs[runs["finished"]].iterrows():
        found = traced.get((*run[keys], run["figure"]))
        if found is None or leaves_out_stages(inputs.recipes.get(run["recipe"], {})):
            continue
        own, tasks = rows.iloc[found], int(run["tasks"])
        counts = np.full(tasks, np.inf)
        known = steps.get(tuple(run[[*RUN_COLUMNS, "recipe"]]), taken[:0])  # imports have none
        counts[known["stage"].to_numpy()] = known["value"].to_numpy()
        parts = (own[name].to_numpy() for name in ("stage", "step", "task", "value"))
        ends = arrays[int(str(number)), :tasks, :tasks]
        trace, stages = build_trace(ScoresWithin(*parts), ends, counts)
        for name in ANYTIME_METRICS:
            runs.loc[number, name] = getattr(metrics, name)(trace, stages)
    return runs


def _add_overall_scores(runs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Replace averages of label sets by the score over all test rows, each once."""
    sets = runs["finished"] & runs["figure"].isin(SET_SCORES)
    if not sets.any():
        return runs
    chosen = runs[sets]
    values = overall_scores(frame, chosen, chosen["tasks"] - 1)
    return runs.assign(average_accuracy=runs["average_accuracy"].where(~sets)).fillna(
        {"average_accuracy": pd.Series(values, index=chosen.index)}
    )


def _intransigence(rows: pd.DataFrame, matrix: Floats, inputs: ReportInput) -> Floats:
    """Compute intransigence against joint runs of the same stream, order and view; else NaN.

    Runs are paired by seed, or compared with the mean over the reference's seeds if they differ.
    """
    result = np.full(len(rows), np.nan)
    seeds, recipes = rows["seed"].to_numpy(), rows["recipe"].to_numpy(str)
    joint = np.array([is_reference(r, inputs.recipes) for r in rows["recipe"]], np.bool_)
    group = rows.groupby(["stream", "order", "head"], sort=False).ngroup().to_numpy()
    for number in np.unique(group):
        places = np.flatnonzero(group == number)
        reference = places[joint[places]]
        if len(reference):
            own = np.diagonal(matrix[reference], axis1=-2, axis2=-1)  # [run, stage]
            for recipe in np.unique(recipes[places]):
                mine = places[recipes[places] == recipe]
                joint_of = pair_by_seed(seeds[mine], seeds[reference], own)
                result[mine] = metrics.intransigence(matrix[mine], joint_of)
    return result


def _method_rows(runs: pd.DataFrame, frame: pd.DataFrame, inputs: ReportInput) -> pd.DataFrame:
    """Make one row per name and head, including names without a finished stage."""
    keys = ["name", "head"]
    groups = runs[runs["finished"]].groupby(keys)[list(METRICS_WITH_SPREAD)]
    whole = runs.groupby(keys).agg(
        stream=("stream", "first"), tasks=("tasks", "first"), recipe=("recipe", "first"),
        reads_past=("reads_past", "first"), finished=("finished", "sum"),
    )  # fmt: skip
    table = whole.join(groups.mean()).join(groups.std(ddof=1).add_suffix("_std")).reset_index()
    table = pd.concat([table, _runs_without_results(frame, runs, inputs)], ignore_index=True)
    everyone = frame.drop_duplicates(RUN_COLUMNS)
    lost = frame[(frame["metric"] == "diverged") & (frame["value"] > 0)].drop_duplicates(
        RUN_COLUMNS
    )
    for column, rows in (("runs", everyone), ("diverged", lost)):
        counts = rows["name"].astype(str).value_counts()
        table[column] = table["name"].map(counts).fillna(0).astype(int)
    table["unfinished"] = table["runs"] - table["finished"].astype(int) - table["diverged"]
    fair = table["average_accuracy"].where(~table["reads_past"].astype(bool))
    fair = pd.Series(merge_ties(fair.to_numpy(float)), index=fair.index)
    by_stream = fair.groupby([table["stream"], table["head"]])
    table["rank"] = by_stream.rank(ascending=False, method="min")
    order = ["stream", "head", "average_accuracy"]
    return table.sort_values(order, ascending=[True, True, False]).reset_index(drop=True)


def _runs_without_results(
    frame: pd.DataFrame, runs: pd.DataFrame, inputs: ReportInput
) -> pd.DataFrame:
    """Make rows for names without any accuracy."""
    pairs = frame[["name", "recipe"]].drop_duplicates("name").astype(str)
    pairs = pairs[~pairs["name"].isin(runs["name"])]
    return pd.DataFrame(
        {
            "name": pairs["name"].astype(object), "recipe": pairs["recipe"].astype(object),
            "head": "", "tasks": 0, "finished": 0,
            "stream": [inputs.names.streams[recipe] for recipe in pairs["recipe"]],
            "reads_past": [trains_on_past(r, inputs.recipes) for r in pairs["recipe"]],
        }
    )  # fmt: skip


KEYS = [*RUN_COLUMNS, "head", "metric", "stage"]


def overall_scores(frame: pd.DataFrame, runs: pd.DataFrame, stage: Any) -> npt.NDArray[np.float64]:
    """Return the figure of each run after a stage, with every test row counted once, [run].

    For label sets it is not the mean over tasks, which share rows and differ in size.
    """
    rows = frame[frame["metric"].isin(SET_SCORES) & (frame["step"] == -1) & (frame["task"] == -1)]
    rows = rows.astype({"name": str, "order": str, "head": str, "metric": str})
    known = rows.drop_duplicates(KEYS, keep="last").set_index(KEYS)["value"]
    place = runs.assign(metric=runs["figure"], stage=stage)[KEYS]
    return known.reindex(pd.MultiIndex.from_frame(place)).to_numpy(np.float64)
