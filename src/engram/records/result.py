"""Result: what came out of one or many runs, ready for metrics, tables and plots."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.records.arrange import Floats, RunKey
from engram.records.compared import compare_methods
from engram.records.run_table import RunTable

if TYPE_CHECKING:
    import pandas as pd

    from engram.deploy.learner import Learner
    from engram.records.novelty import Sets
    from engram.records.refinement import LabelConfusion


class Result(RunTable):
    """The long table of some runs, with their recipes and, where kept, their predictions.

    Parameters
    ----------
    frame
        Long table, one number per row (columns of `engram.records.COLUMNS`; absent ones mean none).
    recipes
        Recipe id -> nested plain dict; ``stream.head`` names the stream's own head view.
    predictions, items
        Stored predictions, and the test items they speak about by (recipe, order).
    arrays
        What probes stored.
    problems, ledger, environment
        Files that could not be read, the access ledger, the facts about software and device.
    head
        Head view of `matrix` for all runs instead of each stream's own.
    arranged
        The runs of the table, where they are known already.
    models
        What a run has left to go on from, asked for by its key; see `model`.

    Examples
    --------
    >>> from engram.records import Rows
    >>> rows = Rows(recipe="r", label="EWC", seed=0)
    >>> accuracy = [[.9, .5], [.7, .8]]
    >>> rows.add_array("accuracy", accuracy, head="single", stage=[[0], [1]], task=[0, 1])
    >>> result = Result(rows.frame())
    >>> result.matrix.tolist()
    [[[0.9, nan], [0.7, 0.8]]]
    >>> result.metric("forgetting").round(6).tolist()
    [0.2]
    """

    def __repr__(self) -> str:
        from engram.records.summary import describe

        return describe(self)

    def _repr_html_(self) -> str:
        from engram.records.html import html_of

        return html_of(self)

    def metric(self, name: str, *, stage: int | None = None, **options: Any) -> Floats:
        """A metric of every run, [run]; names and options as in `engram.metrics`.

        ``f1_score``, ``top_k_accuracy``: from stored predictions. Runs over label sets have
        ``[learning_]precision_weighted_jaccard`` in place of accuracies. NaN for runs judged
        otherwise or short of the stage (default: the last), and for ``forward_transfer`` where
        classes are new and all seen compete. A `reference` of ``intransigence`` may be a Result:
        run by run of the same seed and order, or its mean over seeds that differ (with a warning).
        """
        from engram.records.metric_values import metric_of

        return metric_of(self, name, stage=stage, **options)

    def curve(self, name: str, **options: Any) -> Floats:
        """A matrix metric after every stage, [run, stage]."""
        stages = range(self.matrix.shape[1])
        return np.stack([self.metric(name, stage=k, **options) for k in stages], axis=-1)

    def curves(self) -> pd.DataFrame:
        """After every stage: the score over all tasks so far, that of the task just learnt, views.

        One line per label, metric and stage: mean, standard deviation and number of runs.
        """
        from engram.records.curves import curves

        return curves(self)

    def plot(self, name: str = "stages", *, head: str | None = None) -> Any:
        """A figure of the report (plotly), which notebooks show by themselves.

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

        # Drawn a layer above: records themselves need no plotly.
        return import_module("engram.report.plot").plot(self, name, head=head)

    # -- tables ------------------------------------------------------------------------------

    def summary(self, *, definition: str = "max", stage: int | None = None) -> pd.DataFrame:
        """Mean and standard deviation over runs of the main metrics, one line per label.

        Parameters
        ----------
        definition
            Which forgetting, see `engram.metrics.forgetting`.
        """
        from engram.records.summary import summary

        return summary(self, definition=definition, stage=stage)

    compare = compare_methods

    def cost(self) -> pd.DataFrame:
        """Time, steps, parameters and memory of a run, mean over runs, one line per label."""
        from engram.records.summary import cost

        return cost(self)

    def probes(self) -> pd.DataFrame:
        """What probes measured: mean and standard deviation over runs by label, metric and stage.

        A metric with numbers by task, class or head view has one line for each of them.
        """
        from engram.records.probe_table import probe_table

        return probe_table(self)

    def sets(self, run: RunKey | int = 0, stage: int = 0) -> Sets:
        """Test items of one run: inside, forgotten or outside after a stage (see `Sets`)."""
        from engram.records.novelty import sets

        return sets(self, run, stage)

    def novelty(self) -> pd.DataFrame:
        """How well detectors separate familiar items from novel and forgotten ones.

        One line per label, detector, stage and metric: mean and standard deviation over runs.
        """
        from engram.records.novelty import novelty

        return novelty(self)

    def false_alarms(self, rate: float = 0.05) -> pd.DataFrame:
        """How often detectors flag inside items as novel, at a threshold for a given rate.

        One line per label, detector, stage and task, mean over runs: with the threshold ``frozen``
        after the task's own stage, and ``renewed`` after every stage on the newest task's
        validation rows. It takes a stream with validation rows.
        """
        from engram.records.alarms import false_alarms

        return false_alarms(self, rate)

    def tuned(self) -> pd.DataFrame:
        """What was chosen for detectors that were tuned (`engram.novelty.Tuned`).

        One line per run, detector and option: its value, and the area under the ROC curve of that
        choice on validation rows of the first task against the outside set.
        """
        from engram.records.tuning import tuned

        return tuned(self)

    def class_accuracy(self, *, stage: int | None = None) -> pd.DataFrame:
        """Accuracy of each class (columns: class ids) of each run after a stage (default: last)."""
        from engram.records.summary import class_accuracy

        return class_accuracy(self, stage=stage)

    def group_accuracy(self, *, by: str, stage: int | None = None) -> pd.DataFrame:
        """Accuracy on the test rows of each group, [run, group], from stored predictions.

        Parameters
        ----------
        by
            An attribute of the data: gender, subject, view. Groups are the columns, by name.
        stage
            After which stage (default: the last of each run's stream; runs without it have no
            numbers); over the tasks met until then.
        """
        from engram.records.groups import group_accuracy

        return group_accuracy(self, by=by, stage=stage)

    @cached_property
    def class_names(self) -> dict[int, str]:
        """Name of each class id, as far as the records tell."""
        from engram.records.summary import class_names

        return class_names(self)

    def recompute(
        self, *, score: str | None = None, average: str = "micro", threshold: float = 0.0
    ) -> Result:
        """The same runs with accuracies recomputed from stored predictions, without training.

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
        """Counts of true (rows) by predicted class (columns) of one run."""
        from engram.records.recompute import confusion

        return confusion(self, run, stage=stage, head=head)

    def label_confusion(self, run: RunKey | int = 0, *, stage: int | None = None) -> LabelConfusion:
        """Of one run over label sets, shares of each true label's images by label, and the truth.

        Labels stand in order of introduction; an image counts once in the row of each of its
        labels, so rows do not sum to 1. `truth` is what a run without mistakes would have.
        """
        from engram.records.refinement import label_confusion

        return label_confusion(self, run, stage=stage)

    def refinement(self, *, stage: int | None = None) -> pd.DataFrame:
        """How labels were refined: one line per label, superclass and subclass, mean over runs.

        ``superclass_kept`` is the share of the superclass's other images that are still said to
        have it, ``superclass_applied`` that of the subclass's images; ``subclass_found`` the share
        of the subclass's images that are said to have it, ``subclass_spread`` that of its siblings.
        """
        from engram.records.refinement import refinement

        return refinement(self, stage=stage)

    def calibration(self, *, stage: int | None = None, bins: int = 15) -> Floats:
        """[run] expected calibration error after a stage (default: last), from stored scores.

        NaN for runs without that stage.
        """
        from engram.records.recompute import calibration

        return calibration(self, stage=stage, bins=bins)

    def model(
        self, label: str | None = None, seed: int | None = None, *, order: str | None = None,
        device: str = "auto", model: Any = None, method: Any = None, trust: bool = False,
    ) -> Learner:  # fmt: skip
        """The trained model of one run: a `Learner` that predicts and can keep learning.

        Parameters
        ----------
        label, seed, order
            Which run. A label is needed where there are several; of several seeds, the first.
        device
            Where it predicts and learns.
        model, method
            Your own network or method, where the run has been read from a directory.
        trust
            Whether own methods of a directory, ``module:Class``, may be imported.

        Examples
        --------
        >>> import engram
        >>> data = engram.load("blobs")
        >>> learner = engram.run(data, method="ER", device="cpu").model("ER")
        >>> learner.predict(data.x[data.test][:3]).shape
        (3,)
        """
        from engram.records.models import model_of

        return model_of(  # type: ignore[no-any-return]
            self, label, seed, order, device=device, model=model, method=method, trust=trust
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into a run directory, which `engram.read` can load."""
        from engram.records.saving import save

        save(self, path)
