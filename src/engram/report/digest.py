"""From the long table to one row per run and one row per method, before anything is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram import metrics
from engram.metrics.ties import tied
from engram.records.answered import Answers
from engram.records.features import FeatureSample
from engram.records.generated import GeneratedPictures
from engram.records.judging import WORDS
from engram.records.novelty import Familiarity
from engram.records.references import paired_by_seed
from engram.records.views import FIGURES, SET_SCORES
from engram.report.access import readers_of_the_past
from engram.report.costs import BESIDE, COSTS, RUN, costs_of
from engram.report.inputs import ReportInput
from engram.report.overall import overall_scores
from engram.report.recipe_facts import is_reference, names_past, stream_name

__all__ = [
    "BESIDE",
    "COSTS",
    "DEFINITIONS",
    "RUN",
    "SPREADS",
    "Digest",
    "Floats",
    "digest",
    "named",
]

Floats = npt.NDArray[np.float64]

# Definitions that any matrix supports; "first" needs accuracies of tasks before they are learnt.
DEFINITIONS = ("max", "diagonal", "all", "mean_T", "mammoth", "libcontinual", "cglb", "pyclad")
SPREADS = (
    "average_accuracy", *(f"forgetting/{d}" for d in DEFINITIONS), "backward_transfer",
    "learning_accuracy", "intransigence", "bound", "distance", *COSTS,
)  # fmt: skip


@dataclass(frozen=True)
class Digest:
    """All aggregates a report needs.

    Where rows carry sets of labels, their figure (the precision-weighted Jaccard score) stands in
    the place of accuracies, and its value over all test rows, each once, in that of their average;
    `figure` and `average` say what to call them.

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
        What generators drew, and the names of classes.
    novelty, familiarity, alarms, features, samples, answers, recipes
        What detectors found, features of the sets of items, and more, see `ReportInput`.
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
    tuned: Sequence[str] = ()  # what was chosen for tuned detectors, in words
    answers: Sequence[Answers] = ()
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each recipe."""
        pairs = self.frame[["recipe", "name"]].drop_duplicates("recipe").astype(str)
        return dict(zip(pairs["recipe"], pairs["name"], strict=True))

    def by_name(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table by recipe with the column `name` as well."""
        return table.assign(name=[self.names[one] for one in table["recipe"]], head="")

    @property
    def figure(self) -> str:
        """What the runs are judged by, in words."""
        return " or ".join(WORDS[name] for name in self._figures)

    @property
    def average(self) -> str:
        """What sums up a run, in words."""
        words = {**WORDS, "accuracy": "average accuracy"}
        return " or ".join(words[name] for name in self._figures)

    @property
    def learning(self) -> str:
        """What a task just learnt is judged by, in words."""
        return " or ".join(f"learning {WORDS[name]}" for name in self._figures)

    @property
    def only_accuracy(self) -> bool:
        return self._figures == ["accuracy"]

    @property
    def _figures(self) -> list[str]:
        known = set(self.runs["figure"].unique())
        return [name for name in FIGURES if name in known] or ["accuracy"]


def digest(inputs: ReportInput) -> Digest:
    """Aggregate the long table of `inputs`."""
    frame = named(inputs.frame)
    runs, arrays = _runs(frame, inputs.recipes)
    runs = _with_overall(_with_metrics(runs, arrays, inputs), frame)
    runs = runs.merge(costs_of(frame), on=RUN, how="left")
    finished = runs[runs["finished"]]
    tasks, where = finished["tasks"].to_numpy(), finished.index.to_numpy()
    groups: dict[Any, Any] = finished.groupby(["name", "head"]).indices
    matrices = {
        (str(name), str(head)): _square(arrays[where[places]], int(tasks[places[0]]))
        for (name, head), places in groups.items()
    }
    methods = _methods(runs, frame, inputs)
    return Digest(
        frame, runs, methods, matrices, inputs.pictures, inputs.classes, inputs.novelty,
        inputs.familiarity, inputs.alarms, inputs.features, inputs.samples, inputs.tuned,
        inputs.answers, inputs.recipes,
    )  # fmt: skip


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with texts as categories and a column `name`, unique per recipe.

    Two recipes may carry the same label (a method on two streams); their numbers must not be mixed.
    """
    whole = dict.fromkeys(("seed", "stage", "step", "task", "cls"), np.int32)
    result = frame[[*whole, "value"]].astype({**whole, "value": np.float64})
    for column in ("recipe", "label", "order", "head", "metric"):
        result[column] = frame[column].astype(str).astype("category")
    groups = result.groupby(["label", "recipe"], observed=True, sort=True)
    codes = groups.ngroup().to_numpy()
    pairs = [(str(label), str(recipe)) for label, recipe in groups.size().index]
    uses = Counter(label for label, _ in pairs)
    texts = [f"{la} [{re[:8]}]" if uses[la] > 1 else la for la, re in pairs]
    categories = sorted(set(texts))
    position = {text: i for i, text in enumerate(categories)}
    place = np.array([position[text] for text in texts], np.int64)
    result["name"] = pd.Categorical.from_codes(place[codes], categories=pd.Index(categories))
    return result


def _runs(
    frame: pd.DataFrame, recipes: Mapping[str, Mapping[str, Any]]
) -> tuple[pd.DataFrame, Floats]:
    """One row per run and head view, and its matrix `[run, stage, task]` at the same position."""
    rows = frame[frame["metric"].isin(FIGURES) & (frame["step"] == -1) & (frame["task"] >= 0)]
    keys = [*RUN, "head", "recipe"]
    code = rows.groupby(keys, observed=True, sort=True).ngroup().to_numpy()
    runs = rows.assign(code=code).drop_duplicates("code").sort_values("code")[[*keys, "metric"]]
    texts = dict.fromkeys(("name", "order", "head", "recipe", "metric"), str)
    runs = runs.reset_index(drop=True).astype(texts).rename(columns={"metric": "figure"})
    size = int(max(rows["stage"].max(), rows["task"].max())) + 1 if len(rows) else 1
    arrays = np.full((len(runs), size, size), np.nan)
    arrays[code, rows["stage"].to_numpy(), rows["task"].to_numpy()] = rows["value"].to_numpy()
    by_code = rows.groupby(code)
    runs["stages"] = by_code["stage"].max().to_numpy() + 1 if len(rows) else 0
    tasks = by_code["task"].max() + 1 if len(rows) else pd.Series(dtype=int)
    runs["tasks"] = tasks.to_numpy()
    runs["tasks"] = runs.groupby(["name", "head"])["tasks"].transform("max")
    runs["diverged"] = _diverged(frame, runs)
    runs["finished"] = (runs["stages"] >= runs["tasks"]) & ~runs["diverged"]
    runs["stream"] = [stream_name(recipes.get(recipe, {})) for recipe in runs["recipe"]]
    return runs, arrays


def _diverged(frame: pd.DataFrame, runs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    rows = frame[(frame["metric"] == "diverged") & (frame["value"] > 0)]
    bad = {tuple(row) for row in rows[RUN].astype({"name": str, "order": str}).to_numpy()}
    return np.array([tuple(row) in bad for row in runs[RUN].to_numpy()], np.bool_)


def _square(arrays: Floats, tasks: int) -> Floats:
    return arrays[:, :tasks, :tasks]


def _with_metrics(runs: pd.DataFrame, arrays: Floats, inputs: ReportInput) -> pd.DataFrame:
    """Summary metrics of every finished run; the others stay NaN and are counted, not averaged."""
    wanted = [c for c in SPREADS if c not in COSTS]
    runs = runs.assign(**dict.fromkeys(wanted, np.nan))
    past = readers_of_the_past(inputs.ledger, set(runs["recipe"])) | {
        recipe for recipe in set(runs["recipe"]) if names_past(recipe, inputs.recipes)
    }
    runs["reads_past"] = runs["recipe"].isin(past)
    for _, rows in runs[runs["finished"]].groupby("tasks"):
        where, tasks = rows.index, int(rows["tasks"].iloc[0])
        matrix = _square(arrays[where.to_numpy()], tasks)  # [run, stage, task]
        lower = np.where(np.tril(np.ones(matrix.shape[-2:], np.bool_)), matrix, np.nan)
        runs.loc[where, "average_accuracy"] = metrics.average_accuracy(lower)
        runs.loc[where, "backward_transfer"] = metrics.backward_transfer(lower)
        runs.loc[where, "learning_accuracy"] = metrics.learning_accuracy(lower)
        runs.loc[where, "bound"] = metrics.forgetting_bound(lower)
        for definition in DEFINITIONS:
            seen = matrix if definition == "pyclad" else lower  # it reads what was before a task
            values = metrics.forgetting(seen, definition=definition)
            runs.loc[where, f"forgetting/{definition}"] = values
        runs.loc[where, "intransigence"] = _intransigence(rows, lower, inputs)
    runs["distance"] = np.hypot(runs["forgetting/max"], runs["intransigence"])
    return runs


def _with_overall(runs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Label sets are summed up over all test rows of the tasks so far, each once."""
    sets = runs["finished"] & runs["figure"].isin(SET_SCORES)
    if not sets.any():
        return runs
    chosen = runs[sets]
    values = overall_scores(frame, chosen, chosen["tasks"] - 1)
    return runs.assign(average_accuracy=runs["average_accuracy"].where(~sets)).fillna(
        {"average_accuracy": pd.Series(values, index=chosen.index)}
    )


def _intransigence(rows: pd.DataFrame, matrix: Floats, inputs: ReportInput) -> Floats:
    """Against joint runs of the same stream, order and view; NaN where there are none.

    Seed by seed, or against the mean over the reference's seeds where they differ.
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
                joint_of = paired_by_seed(seeds[mine], seeds[reference], own)
                result[mine] = metrics.intransigence(matrix[mine], joint_of)
    return result


def _methods(runs: pd.DataFrame, frame: pd.DataFrame, inputs: ReportInput) -> pd.DataFrame:
    """One row per name and head; a name none of whose runs got as far as a stage has one too."""
    keys = ["name", "head"]
    groups = runs[runs["finished"]].groupby(keys)[list(SPREADS)]
    whole = runs.groupby(keys).agg(
        stream=("stream", "first"), tasks=("tasks", "first"), recipe=("recipe", "first"),
        reads_past=("reads_past", "first"), finished=("finished", "sum"),
    )  # fmt: skip
    table = whole.join(groups.mean()).join(groups.std(ddof=1).add_suffix("_std")).reset_index()
    table = pd.concat([table, _stillborn(frame, runs, inputs)], ignore_index=True)
    everyone = frame.drop_duplicates(RUN)
    lost = frame[(frame["metric"] == "diverged") & (frame["value"] > 0)].drop_duplicates(RUN)
    for column, rows in (("runs", everyone), ("diverged", lost)):
        counts = rows["name"].astype(str).value_counts()
        table[column] = table["name"].map(counts).fillna(0).astype(int)
    table["unfinished"] = table["runs"] - table["finished"].astype(int) - table["diverged"]
    fair = table["average_accuracy"].where(~table["reads_past"].astype(bool))
    fair = pd.Series(tied(fair.to_numpy(float)), index=fair.index)
    by_stream = fair.groupby([table["stream"], table["head"]])
    table["rank"] = by_stream.rank(ascending=False, method="min")
    order = ["stream", "head", "average_accuracy"]
    return table.sort_values(order, ascending=[True, True, False]).reset_index(drop=True)


def _stillborn(frame: pd.DataFrame, runs: pd.DataFrame, inputs: ReportInput) -> pd.DataFrame:
    """Rows for the names without any accuracy."""
    pairs = frame[["name", "recipe"]].drop_duplicates("name").astype(str)
    pairs = pairs[~pairs["name"].isin(runs["name"])]
    return pd.DataFrame(
        {
            "name": pairs["name"].astype(object), "recipe": pairs["recipe"].astype(object),
            "head": "", "tasks": 0, "finished": 0,
            "stream": [stream_name(inputs.recipes.get(r, {})) for r in pairs["recipe"]],
            "reads_past": [names_past(r, inputs.recipes) for r in pairs["recipe"]],
        }
    )  # fmt: skip
