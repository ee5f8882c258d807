"""Numbers recomputed from stored predictions, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import RecordError, bad, check_choice
from engram.records import head_views, run_arrays
from engram.records.label_tree import LABEL_VIEWS
from engram.records.long_table import COLUMNS, TEXT_COLUMNS, Rows
from engram.records.prediction_scoring import check_average
from engram.records.predictions import Prediction
from engram.records.run_arrays import Floats, RunKey
from engram.records.scored_items import EvaluationItems
from engram.records.stage_rows import add_predicted, make_counts

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

_REPLACED = (*head_views.FIGURES, *LABEL_VIEWS, "class_accuracy", "predicted")


def recompute(result: Result, *, score: str | None, average: str, threshold: float) -> Result:
    """Implement `Result.recompute` from scores or labels where kept, else from class counts."""
    import pandas as pd

    check_choice("average", average, ["micro", "macro"])
    if score is not None:
        check_choice("score", score, head_views.FIGURES)
    _check_threshold(result, threshold)
    rows = Rows()
    counted: list[int] = []
    for number, run in enumerate(result.runs):
        rows.bind(label=result._arranged.written[number], **run._asdict())
        if not _from_predictions(result, rows, run, score, average, threshold):
            counted.append(number)
    frame = result._frame
    old = frame["metric"].isin(_REPLACED).to_numpy() & (frame["step"].to_numpy() == -1)
    parts = [frame[~old], rows.frame()]
    if counted:
        _refuse_label_sets(result, counted, score)
        parts += _from_counts(result, np.isin(result._arranged.run, counted), average)
    plain = [part.astype(dict.fromkeys(TEXT_COLUMNS, str)) for part in parts if len(part)]
    return result._like(pd.concat(plain, ignore_index=True), head=result._head)


def _check_threshold(result: Result, threshold: Any) -> None:
    """Raise if the threshold is no number, or given where predictions use none."""
    plain = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if not plain or not np.isfinite(threshold):
        raise bad("threshold", "a finite number", threshold)
    known = [result.items(run.recipe, run.order) for run in result.runs]
    if threshold and not any(items is not None and items.multilabel for items in known):
        raise bad("threshold", "0, because no run has label sets", threshold)


def _from_predictions(
    result: Result, rows: Rows, run: RunKey, score: str | None, average: str, threshold: float
) -> bool:
    """Add the rows of one run; False if its predictions were not kept."""
    items = result.items(run.recipe, run.order)
    stages = result.stages[run]
    kept = [result.predictions.get(*run, k) for k in stages]
    if items is None or any(p is None for p in kept):
        return False
    check_average(average, sets=items.multilabel)
    for stage, one in zip(stages, kept, strict=True):
        if one is None:
            continue
        found, counts = Rows(runs=1), make_counts([one.scored(items)], stage)
        for head in items.heads:
            predicted = one.predicted(items, head=head, threshold=threshold)[None]
            add_predicted(
                found, predicted, counts, stage=stage, head=head, average=average, score=score
            )
        rows.add_stage(found, stage=stage)
    return True


def _refuse_label_sets(result: Result, numbers: list[int], score: str | None) -> None:
    """Raise for label sets, since counts per class give accuracies only."""
    frame = result._frame
    sets = run_arrays.end_of_stage_rows(frame, "jaccard") & np.isin(result._arranged.run, numbers)
    if sets.any() or score in head_views.SET_SCORES:
        run = result.runs[numbers[0]]
        raise RecordError(f'{run}: multi-label scores need stored predictions (keep="scores")')


def _from_counts(result: Result, mine: Any, average: str) -> list[pd.DataFrame]:
    """Make accuracy rows from class accuracies and counts; exact, since hits are whole numbers."""
    frame, run = result._frame, result._arranged.run
    wanted = run_arrays.end_of_stage_rows(frame, "class_accuracy") & mine
    counted = run_arrays.end_of_stage_rows(frame, "class_count") & mine
    without = set(run[mine]) - (set(run[wanted]) & set(run[counted]))
    if without:
        raise RecordError(f"{result.runs[min(without)]}: neither predictions nor counts were kept")
    key = ["run", "task", "cls"]
    counts = frame[counted].assign(run=run[counted])[[*key, "value"]]
    rows = frame[wanted].assign(run=run[wanted]).merge(counts, on=key, suffixes=("", "_count"))
    rows = rows.assign(hit=(rows["value"] * rows["value_count"]).round())
    groups = rows.groupby(["run", "stage", "head", "task"], observed=True, as_index=False)
    first = groups[["recipe", "label", "seed", "order", "step", "metric"]].first()
    if average == "macro":
        first["value"] = groups["value"].mean()["value"]
    else:
        sums = groups[["hit", "value_count"]].sum()
        first["value"] = sums["hit"] / sums["value_count"]
    made = first.assign(metric="accuracy", cls=-1)[list(COLUMNS)]
    kept = frame[mine & frame["metric"].isin(("class_accuracy", "predicted")).to_numpy()]
    return [made, kept]


def find_prediction(
    result: Result, run: RunKey | int, stage: int | None
) -> tuple[int, EvaluationItems, Prediction]:
    """Find stage, items and prediction of a run; the error says what was not kept."""
    number = result.number_of(run)
    run = result.runs[number]
    stages = result.stages[run]
    if not stages:
        raise RecordError(f"{run}: never evaluated")
    if stage is not None and not 0 <= stage < (most := int(result.tasks[number])):
        raise bad("stage", f"a number from 0 to {most - 1}", stage)
    k = stages[-1] if stage is None else stage
    items, kept = result.items(run.recipe, run.order), result.predictions.get(*run, k)
    if items is None or kept is None:
        raise RecordError(f"{run}: no predictions of stage {k} were kept")
    return k, kept.scored(items), kept


def find_final_prediction(
    result: Result, number: int, stage: int | None
) -> tuple[int, EvaluationItems, Prediction] | None:  # fmt: skip
    """Find as `find_prediction`, by default after the last stage of the stream; None for a run
    without it.

    Runs that are unfinished or diverged are excluded from means.
    """
    tasks = int(result.tasks[number])
    k = tasks - 1 if stage is None else stage + tasks * (stage < 0)
    run = result.runs[number]
    have = result.stages[run]
    return (
        None
        if not have or (k not in have and k in range(tasks))
        else find_prediction(result, run, k)
    )


def confusion(
    result: Result, run: RunKey | int, *, stage: int | None, head: str | None
) -> pd.DataFrame:
    """Count true by predicted class of one run, classes in order of introduction."""
    import pandas as pd

    k, items, kept = find_prediction(result, run, stage)
    number = result.number_of(run)
    predicted = kept.predicted(items, head=head or result.heads[number])
    counts = head_views.confusion(predicted, items, stage=k)
    opened = np.flatnonzero(items.opening <= k)
    names = [items.names[c] for c in opened]
    return pd.DataFrame(
        counts[np.ix_(opened, opened)],
        index=pd.Index(names, name="true"), columns=pd.Index(names, name="predicted"),
    )  # fmt: skip


def calibration(result: Result, *, stage: int | None, bins: int) -> Floats:
    """Compute the expected calibration error of every run, [run]."""
    values = []
    for number, (run, head) in enumerate(zip(result.runs, result.heads, strict=True)):
        found = find_final_prediction(result, number, stage)
        if found is None:
            values.append(np.nan)
            continue
        k, items, kept = found
        if kept.scores is None:
            raise RecordError(f'{run}: only labels were kept; calibration needs keep="scores"')
        values.append(
            head_views.calibration_error(kept.full(), items, stage=k, head=head, bins=bins)
        )
    return np.array(values)
