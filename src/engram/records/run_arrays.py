"""Arrays of the long table: its runs, and their matrices [run, stage, task]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.long_table import COLUMNS, TEXT_COLUMNS, from_frame, to_frame

if TYPE_CHECKING:
    import pandas as pd

SPARSE, MOST_CELLS = 4000, 1_000_000  # cells of a matrix allowed per row, and in any case
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class RunKey(NamedTuple):
    """One training run: a recipe with a seed and an order."""

    recipe: str
    seed: int
    order: str = ""


class RunArrangement(NamedTuple):
    """The runs of a long table, and the run of each row."""

    runs: list[RunKey]
    written: list[str]  # label of each run, as in the table
    run: Ints  # [rows] index into the runs


def tidy_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with exactly the columns of the long table, text as categories."""
    right = list(frame.columns) == list(COLUMNS) and all(
        str(frame[name].dtype) == "category" for name in TEXT_COLUMNS
    )
    return frame if right else to_frame(from_frame(frame))


def arrange_runs(frame: pd.DataFrame) -> RunArrangement:
    """Number the runs: recipes in order of appearance, within a recipe by order and seed."""
    import pandas as pd

    recipe, order = frame["recipe"].cat, frame["order"].cat
    place, _ = pd.factorize(frame["recipe"].cat.codes.to_numpy())
    seed = frame["seed"].to_numpy().astype(np.int64)
    low, span = int(seed.min(initial=0)), int(np.ptp(seed)) + 1 if len(seed) else 1
    # Rank orders by their text, so that the numbering does not depend on who wrote first.
    rank = np.argsort(np.argsort(np.asarray(order.categories, dtype=object)))
    orders = rank[order.codes.to_numpy()] if len(frame) else np.empty(0, np.int64)
    key = (place.astype(np.int64) * max(len(rank), 1) + orders) * span + (seed - low)
    number, found = pd.factorize(key)  # a hash: sorting millions of rows would be slow
    rank_of = np.argsort(np.argsort(found))
    run = rank_of[number] if len(frame) else np.empty(0, np.int64)
    first = np.zeros(len(found), np.int64)
    first[run[::-1]] = np.arange(len(frame))[::-1]  # the first row of each run is written last
    ids = recipe.categories[recipe.codes.to_numpy()[first]]
    names = order.categories[order.codes.to_numpy()[first]]
    runs = [RunKey(str(r), int(s), str(o)) for r, s, o in zip(ids, seed[first], names, strict=True)]
    given = [str(x) for x in frame["label"].iloc[first]]
    return RunArrangement(runs, given, np.asarray(run, np.int64))


def sort_by_run(
    frame: pd.DataFrame, arranged: RunArrangement, recipes: Iterable[str]
) -> pd.DataFrame:
    """Sort rows by run: those of `recipes` first, in that order, then others as they appear."""
    every = dict.fromkeys([*recipes, *(run.recipe for run in arranged.runs)])
    place = {recipe: i for i, recipe in enumerate(every)}
    rank = np.array([place[run.recipe] for run in arranged.runs], np.int64)
    number = np.empty(len(rank), np.int64)
    number[np.argsort(rank, kind="stable")] = np.arange(len(rank))
    row = number[arranged.run]
    if (row[1:] >= row[:-1]).all():  # usual after runs that trained alone
        return frame
    return frame.iloc[np.argsort(row, kind="stable")].reset_index(drop=True)


def replace_labels(frame: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """Return the frame with the label of each recipe id; the original stays as it is."""
    import pandas as pd

    recipe = frame["recipe"].cat
    words = [labels.get(str(one), "") for one in recipe.categories]
    known = list(dict.fromkeys(words))
    place = {word: number for number, word in enumerate(known)}
    codes = np.array([place[word] for word in words], np.int64)[recipe.codes.to_numpy()]
    column = pd.Categorical.from_codes(codes, categories=pd.Index(known))
    return frame.assign(label=column)


def end_of_stage_rows(frame: pd.DataFrame, metric: str) -> npt.NDArray[np.bool_]:
    """Mark the end-of-stage rows of a metric, [rows]."""
    code = category_code(frame, "metric", metric)
    wanted = frame["metric"].cat.codes.to_numpy() == code
    return np.asarray(wanted & (frame["step"].to_numpy() == -1) & (code >= 0))


def category_code(frame: pd.DataFrame, column: str, word: str) -> int:
    """Return the category code of a word, -1 if the column never holds it."""
    categories = list(frame[column].cat.categories)
    return categories.index(word) if word in categories else -1


def own_rows(
    frame: pd.DataFrame, arranged: RunArrangement, metric: str, heads: list[str]
) -> npt.NDArray[np.bool_]:
    """Mark the end-of-stage rows of a metric in the head view of each run, [rows]."""
    wanted = end_of_stage_rows(frame, metric)
    known = {head: category_code(frame, "head", head) for head in set(heads)}
    code = np.array([known[head] for head in heads], np.int64)
    if len(code):
        wanted &= frame["head"].cat.codes.to_numpy() == code[arranged.run]
    return wanted


def score_rows(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mark the end-of-stage rows with the score of a task, whatever the figure, [rows]."""
    known = [
        end_of_stage_rows(frame, name)
        for name in FIGURES
        if category_code(frame, "metric", name) >= 0
    ]
    every = np.logical_or.reduce(known) if known else np.zeros(len(frame), np.bool_)
    return np.asarray(every & (frame["task"].to_numpy() >= 0))


def run_figures(frame: pd.DataFrame, arranged: RunArrangement) -> list[str]:
    """Return the figure of each run: the metric of its rows per task."""
    found = [FIGURES[0]] * len(arranged.runs)
    for name in SET_SCORES:
        if category_code(frame, "metric", name) >= 0:
            rows = end_of_stage_rows(frame, name) & (frame["task"].to_numpy() >= 0)
            for number in np.unique(arranged.run[rows]):
                found[number] = name
    return found


def score_cube(
    frame: pd.DataFrame, arranged: RunArrangement, figures: list[str], heads: list[str]
) -> Floats:
    """Collect the values of each run's figure, [run, stage, task], NaN where there is none.

    There is none for tasks to come, unless the run scored them.
    """
    wanted = np.zeros(len(frame), np.bool_)
    for name in set(figures):
        mine = np.array([figure == name for figure in figures], np.bool_)
        wanted |= own_rows(frame, arranged, name, heads) & mine[arranged.run]
    wanted &= frame["task"].to_numpy() >= 0
    run = arranged.run[wanted]
    stage = frame["stage"].to_numpy()[wanted].astype(np.int64)
    task = frame["task"].to_numpy()[wanted].astype(np.int64)
    size = max(stage.max(initial=-1) + 1, task_counts(frame, arranged).max(initial=0))
    _refuse_sparse(arranged, run, stage, task)
    values = np.full((len(arranged.runs), size, size), np.nan)
    values[run, stage, task] = frame["value"].to_numpy()[wanted]
    return values


def _refuse_sparse(arranged: RunArrangement, run: Ints, stage: Ints, task: Ints) -> None:
    """Raise for stages far beyond what a run has rows for, before a matrix is allocated."""
    rows = np.bincount(run, minlength=len(arranged.runs))
    reach = np.zeros(len(arranged.runs), np.int64)
    np.maximum.at(reach, run, np.maximum(stage, task) + 1)
    wrong = np.flatnonzero(reach**2 > SPARSE * rows + MOST_CELLS)
    if len(wrong):
        one = arranged.runs[wrong[0]]
        raise RecordError(
            f"recipe {one.recipe}, seed {one.seed}: has {rows[wrong[0]]} rows that reach to stage "
            f"or task {reach[wrong[0]] - 1}; no run has"
        )


def below_diagonal(matrix: Floats) -> Floats:
    """Return the matrix with NaN for tasks that a stage has not reached."""
    future = np.triu(np.ones(matrix.shape[-2:], np.bool_), 1)
    return np.where(future, np.nan, matrix)


def task_counts(frame: pd.DataFrame, arranged: RunArrangement) -> Ints:
    """Count the tasks of each run's stream from its scores and counts of test items, [run]."""
    wanted = score_rows(frame) | end_of_stage_rows(frame, "class_count")
    counts = np.zeros(len(arranged.runs), np.int64)
    task = frame["task"].to_numpy()[wanted].astype(np.int64)
    np.maximum.at(counts, arranged.run[wanted], task + 1)
    return counts


class ScoresWithin(NamedTuple):
    """Scores of one run during training, [rows] each."""

    stage: npt.NDArray[Any]
    step: npt.NDArray[Any]  # steps taken in the stage
    task: npt.NDArray[Any]
    value: npt.NDArray[Any]


def build_trace(within: ScoresWithin, ends: Floats, steps: Floats) -> tuple[Floats, Ints]:
    """Arrange the scores of a run by time: a trace [point, task], and the stage of each point.

    The last point of each stage are the scores at its end, `ends` [stage, task], on all test rows;
    they replace those after its last step, of which it has `steps` [stage].

    Examples
    --------
    >>> gap = np.nan
    >>> within = ScoresWithin(*np.array([[0, 1, 1, 1], [2, 2, 2, 4], [0, 0, 1, 0], [5, 6, 7, 8]]))
    >>> trace, stages = build_trace(within, np.array([[0.9, gap], [0.3, 0.8]]), np.array([4, 4]))
    >>> trace.tolist(), stages.tolist()
    ([[5.0, nan], [0.9, nan], [6.0, 7.0], [0.3, 0.8]], [0, 0, 1, 1])
    """
    last = len(ends) - 1
    at, step, task, value = within
    kept = (at <= last) & (task <= at) & (step < steps[np.minimum(at, last)])
    pairs = np.stack([at[kept], step[kept]], axis=1).astype(np.int64)
    points, place = np.unique(pairs, axis=0, return_inverse=True)
    trace = np.full((len(points) + last + 1, last + 1), np.nan)
    trace[place.reshape(-1), task[kept]] = value[kept]
    trace[len(points) :] = ends
    stages = np.concatenate([points[:, 0], np.arange(last + 1)])
    order = np.argsort(stages, kind="stable")
    return trace[order], stages[order]


def list_stages(frame: pd.DataFrame, arranged: RunArrangement) -> dict[RunKey, list[int]]:
    """List the stages after which each run was evaluated, ascending."""
    rows = score_rows(frame)
    stage = frame["stage"].to_numpy()[rows].astype(np.int64)
    span = int(stage.max(initial=0)) + 1
    found: dict[RunKey, list[int]] = {run: [] for run in arranged.runs}
    for code in np.unique(arranged.run[rows] * span + stage):
        found[arranged.runs[code // span]].append(int(code % span))
    return found


def reduce_stages(frame: pd.DataFrame, arranged: RunArrangement, metric: str, how: str) -> Floats:
    """Reduce an end-of-stage metric over stages by ``sum`` or ``max``, [run]; NaN without rows."""
    wanted = end_of_stage_rows(frame, metric)
    values: Any = frame["value"].to_numpy()[wanted]
    run = arranged.run[wanted]
    result = np.full(len(arranged.runs), 0.0 if how == "sum" else -np.inf)
    (np.add if how == "sum" else np.maximum).at(result, run, values)
    present = np.bincount(run, minlength=len(arranged.runs)) > 0
    return np.where(present, result, np.nan)


def list_finished_stages(frame: pd.DataFrame) -> dict[tuple[str, int, str], set[int]]:
    """List the stages with end-of-stage rows in a long table, per (recipe, seed, order).

    Examples
    --------
    >>> from engram.records.long_table import Rows
    >>> rows = Rows(recipe="r", seed=3)
    >>> rows.add_array("accuracy", [0.9, 0.8], stage=[0, 1], task=0)
    >>> list_finished_stages(rows.frame())
    {('r', 3, ''): {0, 1}}
    """
    stage = frame["stage"].to_numpy()
    ended = frame[(frame["step"].to_numpy() == -1) & (stage >= 0)]
    arranged = arrange_runs(ended)
    span = int(stage.max(initial=0)) + 1
    number = np.unique(arranged.run * span + ended["stage"].to_numpy())
    found: dict[tuple[str, int, str], set[int]] = {}
    for code in number.tolist():
        run, last = divmod(code, span)
        found.setdefault(tuple(arranged.runs[run]), set()).add(last)
    return found
