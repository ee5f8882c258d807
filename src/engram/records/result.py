"""`Result`: the records of one or many runs, with metrics, tables and plots.

The functions below it compute curves, group accuracy, label refinement and the HTML view.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engram.errors import RecordError, bad, plural, unknown
from engram.html_repr import escape, html_table, join_blocks
from engram.records import head_views
from engram.records.label_tree import distinct_rows, find_label_tree, refinement_pairs
from engram.records.long_table import from_frame
from engram.records.method_comparison import compare_methods
from engram.records.method_ranking import rank_methods_of
from engram.records.prediction_scoring import average_name
from engram.records.recompute import find_final_prediction, find_prediction
from engram.records.run_arrays import Floats, RunKey
from engram.records.run_directory import RunDirectory
from engram.records.run_metrics import CURRENT_TASK, recorded_views
from engram.records.run_table import RunTable
from engram.records.saved_models import save_models
from engram.records.scored_items import Bools, EvaluationItems
from engram.records.summary import _format_cell, headline, summarise_groups, summary_names

if TYPE_CHECKING:
    import pandas as pd

    from engram.deploy.deployed_learner import Learner
    from engram.records.novelty_records import ItemSets


class Result(RunTable):
    """Results of some runs: the long table, recipes and, where kept, predictions.

    Parameters
    ----------
    frame
        Long table, one number per row (columns of `engram.records.COLUMNS`; absent ones mean none).
    recipes
        Recipe id -> nested plain dict; ``stream.head`` names the stream's own head view.
    predictions, items
        Stored predictions, and a lookup of their test items by (recipe, order).
    arrays
        Arrays stored by probes.
    problems, ledger, environment
        Files that could not be read, the access ledger, facts about software and device.
    head
        Head view of `matrix` for all runs in place of each stream's own.
    arranged
        The runs of the table, if already known.
    models
        Lookup of the model that a run has kept, by its key; see `model`.

    Examples
    --------
    >>> from engram.records import Rows
    >>> rows = Rows(recipe="r", label="EWC", seed=0)
    >>> accuracy = [[0.9, 0.5], [0.7, 0.8]]
    >>> rows.add_array("accuracy", accuracy, head="single", stage=[[0], [1]], task=[0, 1])
    >>> result = Result(rows.frame())
    >>> result.matrix.tolist()
    [[[0.9, nan], [0.7, 0.8]]]
    >>> result.metric("forgetting").round(6).tolist()
    [0.2]
    """

    def __repr__(self) -> str:
        from engram.records.summary import describe_result

        return describe_result(self)

    def _repr_html_(self) -> str:
        return render_html(self)

    def metric(
        self, name: str | Callable[..., Any], *, stage: int | None = None, **options: Any
    ) -> Floats:
        """Compute a metric of every run, [run]; names and options as in `engram.metrics`.

        A function of your own gets the matrix [stage, task] of one run up to the stage, NaN above
        the diagonal, and returns a number.
        ``f1_score``, ``top_k_accuracy``: from stored predictions. Runs over label sets have
        ``[learning_]precision_weighted_jaccard`` in place of accuracies. NaN for runs scored
        otherwise or short of the stage (default: the last), and for ``forward_transfer`` where
        classes are new and all seen compete. A `reference` of ``intransigence`` may be a Result:
        run by run of the same seed and order, or its mean over seeds that differ (with a warning).
        """
        from engram.records.run_metrics import compute_metric

        return compute_metric(self, name, stage=stage, **options)

    def curve(self, name: str | Callable[..., Any], **options: Any) -> Floats:
        """Compute a matrix metric after every stage, [run, stage]."""
        stages = range(self.matrix.shape[1])
        return np.stack([self.metric(name, stage=k, **options) for k in stages], axis=-1)

    def curves(self) -> pd.DataFrame:
        """Tabulate scores after every stage: over all tasks so far, and of the task just learnt.

        One line per label, metric and stage: mean, standard deviation and number of runs.
        """
        return curves(self)

    def plot(self, name: str = "stages", *, head: str | None = None) -> Any:
        """Draw a figure of the report (plotly), which notebooks display.

        Parameters
        ----------
        name
            A section of the report: ``stages``, ``matrices``, ``iterations``, ``trade-off``,
            ``plane``, ``orders``, ``costs``, ``losses``, ``response``, ``classes``, ``confusion``,
            ``calibration`` and more; or one panel, such as ``stages-mean`` or ``matrix-1``.
        head
            The head view; default: the streams' own.
        """
        from importlib import import_module

        # imported here because reports build on records, which need no plotly
        return import_module("engram.report.result_plot").plot(self, name, head=head)

    # -- tables ------------------------------------------------------------------------------

    def summary(self, *, definition: str = "max", stage: int | None = None) -> pd.DataFrame:
        """Tabulate mean and standard deviation over runs of the main metrics, one line per label.

        Parameters
        ----------
        definition
            Which forgetting, see `engram.metrics.forgetting`.
        """
        from engram.records.summary import summary

        return summary(self, definition=definition, stage=stage)

    compare = compare_methods
    ranks = rank_methods_of

    def cost(self) -> pd.DataFrame:
        """Tabulate time, steps, parameters and memory: mean over runs, one line per label."""
        from engram.records.summary import cost_table

        return cost_table(self)

    def probes(self) -> pd.DataFrame:
        """Tabulate probe metrics: mean and standard deviation over runs by label, metric and stage.

        A metric with numbers by task, class or head view has one line for each of them.
        """
        from engram.records.summary import probe_table

        return probe_table(self)

    def sets(self, run: RunKey | int = 0, stage: int = 0) -> ItemSets:
        """Split the test items of one run into inside, forgotten and outside (see `ItemSets`)."""
        from engram.records.novelty_records import item_sets

        return item_sets(self, run, stage)

    def novelty(self) -> pd.DataFrame:
        """Tabulate how well detectors separate familiar items from novel and forgotten ones.

        One line per label, detector, stage and metric: mean and standard deviation over runs.
        """
        from engram.records.novelty_records import novelty_table

        return self.name_streams(novelty_table(self))

    def false_alarms(self, rate: float = 0.05) -> pd.DataFrame:
        """Tabulate how often detectors flag inside items, at a threshold for a given rate.

        One line per label, detector, stage and task, mean over runs: with the threshold ``frozen``
        after the task's own stage, and ``renewed`` after every stage on the newest task's
        validation rows. It takes a stream with validation rows.
        """
        from engram.records.novelty_records import false_alarms

        return self.name_streams(false_alarms(self, rate))

    def tuned(self) -> pd.DataFrame:
        """Tabulate the options chosen for tuned detectors (`engram.novelty.Tuned`).

        One line per run, detector and option: its value, and the area under the ROC curve of that
        choice on validation rows of the first task against the outside set.
        """
        from engram.records.novelty_records import tuning_table

        return self.name_streams(tuning_table(self))

    def class_accuracy(self, *, stage: int | None = None) -> pd.DataFrame:
        """Tabulate the accuracy of each class (columns: ids) after a stage (default: the last)."""
        from engram.records.summary import class_accuracy

        return class_accuracy(self, stage=stage)

    def group_accuracy(self, *, by: str, stage: int | None = None) -> pd.DataFrame:
        """Compute the accuracy on each group of test rows, [run, group], from stored predictions.

        Parameters
        ----------
        by
            An attribute of the data: gender, subject, view. Groups are the columns, by name.
        stage
            After which stage (default: the last of each run's stream; runs without it have no
            numbers); over the tasks met until then.
        """
        return group_accuracy(self, by=by, stage=stage)

    @cached_property
    def class_names(self) -> dict[int, str]:
        """Return the name of each class id, where recorded."""
        from engram.records.summary import class_names

        return class_names(self)

    def recompute(
        self, *, score: str | None = None, average: str = "micro", threshold: float = 0.0
    ) -> Result:
        """Recompute the accuracies of the runs from stored predictions, without training.

        Parameters
        ----------
        score
            ``accuracy``; for sets of labels ``exact_match``, ``jaccard`` or
            ``precision_weighted_jaccard``. Default: ``accuracy`` or the last.
        average
            Task accuracy over items (``micro``) or over the task's classes (``macro``).
        threshold
            Score above which a label belongs to a predicted set.
        """
        from engram.records.recompute import recompute

        return recompute(self, score=score, average=average, threshold=threshold)

    def confusion(
        self, run: RunKey | int = 0, *, stage: int | None = None, head: str | None = None
    ) -> pd.DataFrame:
        """Count true (rows) by predicted classes (columns) of one run."""
        from engram.records.recompute import confusion

        return confusion(self, run, stage=stage, head=head)

    def label_confusion(self, run: RunKey | int = 0, *, stage: int | None = None) -> LabelConfusion:
        """Compute the share of each true label's images by predicted label, for one run.

        For runs with label sets. Labels are in order of introduction; an image counts in the row of
        each of its labels, so rows do not sum to 1. `truth` has the shares without mistakes.
        """
        return label_confusion(self, run, stage=stage)

    def refinement(self, *, stage: int | None = None) -> pd.DataFrame:
        """Tabulate how superclasses were refined into subclasses, mean over runs.

        One line per label, superclass and subclass. ``superclass_kept`` is the share of the
        superclass's other images still predicted to have it, ``superclass_applied`` that of the
        subclass's images; ``subclass_found`` is the share of the subclass's images predicted to
        have the subclass, ``subclass_spread`` that of its siblings.
        """
        return refinement(self, stage=stage)

    def calibration(self, *, stage: int | None = None, bins: int = 15) -> Floats:
        """Compute the expected calibration error after a stage (default: the last), [run].

        From stored scores; NaN for runs without that stage.
        """
        from engram.records.recompute import calibration

        return calibration(self, stage=stage, bins=bins)

    def model(
        self, label: str | None = None, seed: int | None = None, *, order: str | None = None,
        device: str = "auto", model: Any = None, method: Any = None, trust: bool = False,
    ) -> Learner:  # fmt: skip
        """Load the trained model of one run: a `Learner` that predicts and can keep learning.

        Parameters
        ----------
        label, seed, order
            Which run. A label is needed if there are several; the default seed is the first.
        device
            Device on which it predicts and learns.
        model, method
            Your own network or method, if the run was read from a directory.
        trust
            Whether custom methods that the directory names as ``module:Class`` may be imported.

        Examples
        --------
        >>> import engram
        >>> data = engram.load("blobs")
        >>> learner = engram.run(data, method="ER", device="cpu").model("ER")
        >>> learner.predict(data.x[data.test][:3]).shape
        (3,)
        """
        from engram.records.saved_models import load_model

        return load_model(  # type: ignore[no-any-return]
            self, label, seed, order, device=device, model=model, method=method, trust=trust
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into a run directory, which `engram.read` loads."""
        save(self, path)


# Scores after every stage.


def curves(result: Result) -> pd.DataFrame:
    """Implement `Result.curves`."""
    import pandas as pd

    names = [
        *map(average_name, dict.fromkeys(result.figures)),
        CURRENT_TASK,
        *recorded_views(result),
    ]
    groups = list(result.by_label.values())
    rows = []
    for name in names:
        found = [summarise_groups(values, groups) for values in result.curve(name).T]  # by stage
        rows += [
            (label, name, k, one.mean[place], one.std[place], int(one.runs[place]))
            for place, label in enumerate(result.labels)
            for k, one in enumerate(found)
            if one.runs[place]
        ]
    columns = ["label", "metric", "stage", "mean", "std", "runs"]
    return result.name_streams(pd.DataFrame(rows, columns=pd.Index(columns)))


# Accuracy on groups of test rows, given by an attribute of the data.


def group_accuracy(result: Result, *, by: str, stage: int | None) -> pd.DataFrame:
    """Implement `Result.group_accuracy`."""
    import pandas as pd

    lines: list[dict[str, float]] = []
    names: dict[str, None] = {}  # in the order of the attribute's values, over all runs
    for number, (run, head) in enumerate(zip(result.runs, result.heads, strict=True)):
        found = find_final_prediction(result, number, stage)
        if found is None:
            lines.append({})
            continue
        k, items, kept = found
        if items.multilabel:
            raise RecordError(f"{run}: has label sets; group_accuracy needs one label per item")
        met = items.task <= k
        right = np.asarray(head_views.mark_hits(kept.predicted(items, head=head), items).any(-1))
        groups = items_by_group(items, by)
        whole = result.items(run.recipe, run.order) or items
        names |= dict.fromkeys(items_by_group(whole, by))  # of tasks to come, too
        lines.append({
            name: float(right[mine & met].mean()) for name, mine in groups.items()
            if (mine & met).any()
        })  # fmt: skip
    index = pd.MultiIndex.from_tuples(
        [tuple(run) for run in result.runs], names=["recipe", "seed", "order"]
    )
    return pd.DataFrame(lines, index=index, columns=pd.Index(list(names), name=by))


def items_by_group(items: EvaluationItems, by: str) -> dict[str, Bools]:
    """Mark the items [n] of each group that occurs, by its name.

    Examples
    --------
    >>> items = EvaluationItems(
    ...     rows=[0, 1, 2],
    ...     task=[0, 0, 0],
    ...     targets=[0, 1, 0],
    ...     opening=[0, 0],
    ...     visible=[[1, 1]],
    ...     classes=[0, 1],
    ...     attributes={"camera": [1, 0, 1]},
    ...     attribute_names={"camera": ("left", "right")},
    ... )
    >>> {name: mine.tolist() for name, mine in items_by_group(items, "camera").items()}
    {'left': [False, True, False], 'right': [True, False, True]}
    """
    if by not in items.attributes:
        if not items.attributes:
            raise bad("by", "an attribute of the data, but none was recorded", by)
        raise unknown("by", by, items.attributes)
    values, names = items.attributes[by], items.attribute_names.get(by, ())
    return {
        names[value] if 0 <= value < len(names) else str(value): values == value
        for value in np.unique(values).tolist()
    }


# The view in notebooks.


MOST_LABELS = 50  # lines of the table


def render_html(result: Result) -> str:
    """Render the summary of a result in HTML."""
    if not result.runs:
        return join_blocks("<p>Result: no runs</p>")
    numbers, names = result.summary(), summary_names(result)
    costs = result.cost()
    rows = []
    several = ["stream"] if len(result.streams) > 1 else []
    for label, row in list(numbers.iterrows())[:MOST_LABELS]:
        cells = [_format_cell(row[name], row[f"{name}_std"]) for name in names]
        seconds = costs["seconds"].get(label, np.nan) if "seconds" in costs else np.nan
        taken = "-" if np.isnan(seconds) else f"{seconds:.1f} s"
        who = label if isinstance(label, tuple) else (label,)
        rows.append([*who, int(row["runs"]), *cells, taken])
    titles = [
        *several,
        "method",
        "runs",
        *(name.replace("_", " ") for name in names),
        "time per run",
    ]
    more = len(numbers) - len(rows)
    lost = len(result.diverged)
    remarks = [
        f"{more} more methods" if more else "", f"{plural(lost, 'run')} diverged" if lost else "",
    ]  # fmt: skip
    remarks += [f"could not read: {problem}" for problem in result.problems]
    return join_blocks(
        f"<p>{escape(headline(result))}; mean ± standard deviation over runs</p>",
        html_table(titles, rows),
        *(f"<p>{escape(r)}</p>" for r in remarks if r),
    )


# Refinement and confusion of label sets.


PAIR_SHARES = ["superclass_kept", "superclass_applied", "subclass_found", "subclass_spread"]


def refinement(result: Result, *, stage: int | None) -> pd.DataFrame:
    """Implement `Result.refinement`."""
    import pandas as pd

    rows = []
    for number, label in enumerate(result.run_labels):
        found = find_final_prediction(result, number, stage)
        if found is None:
            continue
        k, items, kept = found
        predicted = kept.predicted(items, head="single") if items.multilabel else None
        if predicted is None or find_label_tree(items) is None:
            what = "refinement needs a stream whose labels form a tree (hierarchical, iirc)"
            raise RecordError(f"{label}: the labels form no tree; {what}")
        for (above, sub), values in refinement_pairs(predicted, items, stage=k).items():
            names = (items.names[above], items.names[sub])
            rows.append((label, *(name.split("/", 1)[1] for name in names), *values))
    keys = ["label", "superclass", "subclass"]
    table = pd.DataFrame(rows, columns=pd.Index([*keys, *PAIR_SHARES]))
    return result.name_streams(table.groupby(keys, sort=False).mean())


class LabelConfusion(NamedTuple):
    """Shares of the images of a true label (row) predicted to have, or having, another."""

    predicted: pd.DataFrame
    truth: pd.DataFrame


def label_confusion(result: Result, run: RunKey | int, *, stage: int | None) -> LabelConfusion:
    """Implement `Result.label_confusion`."""
    import pandas as pd

    from engram import metrics

    k, items, kept = find_prediction(result, run, stage)
    if not items.multilabel:
        raise RecordError(f"{kept.key}: one label per item; use result.confusion")
    truth, predicted = distinct_rows(kept.predicted(items, head="single"), items, k)
    opened = np.flatnonzero(items.opening <= k)
    names = [items.names[c] for c in opened]

    def table(labels: Bools) -> pd.DataFrame:
        shares = metrics.confusion(truth, labels, order=opened.tolist())
        return pd.DataFrame(shares, index=pd.Index(names, name="true"), columns=pd.Index(names))

    return LabelConfusion(table(predicted), table(truth))


def save(result: Result, path: str | os.PathLike[str]) -> None:
    """Implement `Result.save`."""
    folder = RunDirectory(path)
    for recipe, content in result.labelled_recipes().items():
        folder.write_recipe(recipe, content)
    folder.list_recipes(run.recipe for run in result.runs)
    for run in dict.fromkeys((run.recipe, run.order) for run in result.runs):
        items = result.items(*run)
        if items is not None:
            folder.write_items(*run, items)
    folder.append(
        from_frame(result.recorded_frame()),
        predictions=[result.predictions.get(*key) for key in result.predictions],
        arrays=[
            one for place in result.stored if (one := result.stored.stored(*place)) is not None
        ],
    )
    for kind, documents in (("ledger", result.ledger), ("environment", result.environment)):
        for document in documents:
            content = {k: v for k, v in document.items() if k != "part"}
            folder.append(None, **{kind: content})  # type: ignore[arg-type]
    save_models(result, folder)
