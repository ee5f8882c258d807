"""`RunTable`, the base of `Result`: the runs of a long table, their matrices, and selections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import BadArgument, RecordError, bad, check_choice, unknown
from engram.records import run_arrays as _arrange
from engram.records.display_names import DisplayNames
from engram.records.predictions import Prediction, Predictions
from engram.records.probe_arrays import ProbeArrays
from engram.records.run_arrays import Floats, RunKey
from engram.records.scored_items import HEADS, EvaluationItems
from engram.records.table_parts import Problem

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd

    from engram.records.saved_models import ModelLocation, ModelSource

_SELECTED_BY = ("label", "method", "stream", "recipe", "seed", "order")
_FEW_SEEDS = 8  # seeds listed in a message
ItemSource = (
    Callable[[str, str], "EvaluationItems | None"] | Mapping[tuple[str, str], EvaluationItems]
)


class RunTable:
    """Numbers and other records of some runs; see `Result`.

    The first axis of every array follows `runs`.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        *,
        recipes: Mapping[str, Mapping[str, Any]] | None = None,
        predictions: Predictions | Iterable[Prediction | None] | None = None,
        arrays: ProbeArrays | None = None,
        items: ItemSource | None = None,
        problems: Sequence[Problem] = (),
        ledger: Sequence[Mapping[str, Any]] = (),
        environment: Sequence[Mapping[str, Any]] = (),
        head: str | None = None,
        arranged: _arrange.RunArrangement | None = None,
        models: ModelSource | None = None,
        names: DisplayNames | None = None,
    ) -> None:
        if head is not None:
            check_choice("head", head, HEADS)
        self._frame = _arrange.tidy_frame(frame)
        self._arranged = arranged or _arrange.arrange_runs(self._frame)
        self.recipes = {key: dict(value) for key, value in (recipes or {}).items()}
        if not isinstance(predictions, Predictions):
            predictions = Predictions(memory=predictions or ())
        self.predictions: Predictions = predictions
        self.stored = ProbeArrays() if arrays is None else arrays
        self._items: ItemSource = {} if items is None else items
        self._problems = tuple(problems)
        self.ledger = list(ledger)
        self.environment = list(environment)
        self._head = head
        self._models = models
        self._given_names = names

    # -- what is there -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def runs(self) -> list[RunKey]:
        """The runs as (recipe, seed, order); the first axis of every array follows this list."""
        return list(self._arranged.runs)

    @cached_property
    def display_names(self) -> DisplayNames:
        """Names of recipes; those of a part are the names that the whole has."""
        if self._given_names is not None:
            return self._given_names
        pairs = zip(self._arranged.runs, self._arranged.written, strict=True)
        written = {run.recipe: label for run, label in pairs}
        return DisplayNames({one: self.recipes.get(one, {}) for one in written}, written)

    @property
    def run_labels(self) -> list[str]:
        """The label of each run, in the order of `runs`; no two recipes have the same.

        It is the label that was given or else the name of the method, with the options and the
        stream by which recipes of one name differ.
        """
        names = self.display_names.labels
        return [names[run.recipe] for run in self._arranged.runs]

    @property
    def labels(self) -> list[str]:
        """Each label once, in order of appearance."""
        return list(dict.fromkeys(self.run_labels))

    @property
    def run_methods(self) -> list[str]:
        """The name of each run's method, in the order of `runs`; the same on several streams."""
        names = self.display_names.methods
        return [names[run.recipe] for run in self._arranged.runs]

    @property
    def run_streams(self) -> list[str]:
        """The name of each run's stream, in the order of `runs`."""
        names = self.display_names.streams
        return [names[run.recipe] for run in self._arranged.runs]

    @property
    def streams(self) -> list[str]:
        """The name of each stream once, in order of appearance.

        Numbers on different streams are not comparable: tables have them apart.
        """
        return list(dict.fromkeys(self.run_streams))

    def name_streams(self, table: pd.DataFrame) -> pd.DataFrame:
        """Put the streams before the labels of a table, if there are several; lines by stream.

        Labels then are the names of methods, which are the same on all streams.
        """
        if len(self.streams) < 2:
            return table
        keys = [str(name) for name in table.index.names] if "label" in table.index.names else []
        flat = table.reset_index() if keys else table
        who = zip(self.run_streams, self.run_methods, strict=True)
        told = dict(zip(self.run_labels, who, strict=True))
        place = {stream: number for number, stream in enumerate(self.streams)}
        pairs = [told[label] for label in flat["label"]]
        flat = flat.assign(label=[method for _, method in pairs])
        flat.insert(0, "stream", [stream for stream, _ in pairs])
        order = np.argsort([place[stream] for stream, _ in pairs], kind="stable")
        found: pd.DataFrame = flat.iloc[order].reset_index(drop=True)
        return found.set_index(["stream", *keys]) if keys else found

    def rename(self, names: Mapping[str, str]) -> Self:
        """Return the same runs with other labels; nothing is trained.

        Parameters
        ----------
        names
            Old to new. The name of a method renames it on every stream.

        Examples
        --------
        >>> from engram.records import Rows
        >>> rows = Rows(recipe="r", label="ER", seed=0)
        >>> rows.add("accuracy", 0.5, stage=0, task=0, head="single")
        >>> RunTable(rows.frame()).rename({"ER": "Replay"}).labels
        ['Replay']
        """
        return self._like(
            self._frame,
            head=self._head,
            arranged=self._arranged,
            names=self.display_names.rename(names),
        )

    @cached_property
    def by_label(self) -> dict[str, _arrange.Ints]:
        """The indices of the runs of each label, in order of appearance."""
        found: dict[str, list[int]] = {}
        for number, label in enumerate(self.run_labels):
            found.setdefault(label, []).append(number)
        return {label: np.array(numbers, np.int64) for label, numbers in found.items()}

    @cached_property
    def _numbers(self) -> dict[RunKey, int]:
        return {run: number for number, run in enumerate(self._arranged.runs)}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Files that could not be used, each with the reason."""
        return (*self._problems, *self.predictions.problems, *self.stored.problems)

    @cached_property
    def heads(self) -> list[str]:
        """Head view of each run in `matrix`: the stream's own, or the one chosen by `view`."""
        own = {run.recipe: self._own_head(run.recipe) for run in self._arranged.runs}
        return [own[run.recipe] for run in self._arranged.runs]

    def _own_head(self, recipe: str) -> str:
        if self._head is not None:
            return self._head
        stream = self.recipes.get(recipe, {}).get("stream")
        if isinstance(stream, Mapping) and stream.get("head") in HEADS:
            return str(stream["head"])
        found = self._recorded_heads.get(recipe, [])
        if len(found) > 1:
            raise RecordError(
                f"recipe {recipe}: does not name the head view of its stream; "
                "use result.view(head=...)"
            )
        return found[0] if found else ""

    @cached_property
    def _recorded_heads(self) -> dict[str, list[str]]:
        """The head views in which the scores of each recipe were recorded."""
        rows = self._frame.loc[_arrange.score_rows(self._frame), ["recipe", "head"]]
        found: dict[str, list[str]] = {}
        for recipe, head in rows.drop_duplicates().itertuples(index=False):
            found.setdefault(str(recipe), []).append(str(head))
        return found

    def items(self, recipe: str, order: str = "") -> EvaluationItems | None:
        """The test items of a recipe under an order, None if they were not kept."""
        if callable(self._items):
            return self._items(recipe, order)
        return self._items.get((recipe, order))

    def number_of(self, run: RunKey | int) -> int:
        """Return the index of a run in `runs`, given by its index (or negative) or its key."""
        if isinstance(run, (int, np.integer)) and not isinstance(run, bool):
            if not -len(self) <= run < len(self):
                raise bad("run", f"a number from 0 to {len(self) - 1}", run)
            return int(run) % len(self)
        if run not in self._numbers:
            raise bad("run", "a number, or one of result.runs (recipe, seed, order)", run)
        return self._numbers[RunKey(*run)]

    def arrays(
        self, probe: str, run: RunKey | int = 0, *, stage: int | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """What a probe stored of one run after a stage (default: the last), by its own names."""
        where = self.runs[self.number_of(run)]
        known = sorted(m.stage for m, name in self.stored if m[:3] == where and name == probe)
        if not known:
            raise unknown("probe", probe, {name for m, name in self.stored if m[:3] == where})
        k = known[-1] if stage is None else stage
        if k not in known:
            raise bad("stage", f"one of {known}, for which {probe} stored arrays", k)
        return self.stored.get((*where, k), probe)

    def kept_model(self, run: RunKey) -> ModelLocation | None:
        """Return the model kept of a run: a file or an object in memory; None if there is none."""
        return None if self._models is None else self._models(run)

    # -- matrices ----------------------------------------------------------------------------

    @cached_property
    def figures(self) -> list[str]:
        """The figure of each run: accuracy, or precision_weighted_jaccard for label sets."""
        return _arrange.run_figures(self._frame, self._arranged)

    @cached_property
    def full_matrix(self) -> Floats:
        """[run, stage, task] accuracy (see `figures`) of the head view, future tasks included."""
        return _arrange.score_cube(self._frame, self._arranged, self.figures, self.heads)

    @cached_property
    def matrix(self) -> Floats:
        """[run, stage, task] accuracy (see `figures`) of the head view, NaN above the diagonal."""
        return _arrange.below_diagonal(self.full_matrix)

    @cached_property
    def tasks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """[run] number of tasks of each run's stream."""
        return _arrange.task_counts(self._frame, self._arranged)

    @cached_property
    def stages(self) -> dict[RunKey, list[int]]:
        """The stages after which each run was evaluated."""
        return _arrange.list_stages(self._frame, self._arranged)

    @cached_property
    def diverged(self) -> dict[RunKey, int]:
        """Runs that diverged, with the first stage in which they did."""
        rows = _arrange.end_of_stage_rows(self._frame, "diverged") & (
            self._frame["value"].to_numpy() > 0
        )
        stages: dict[RunKey, int] = {}
        stage = self._frame["stage"].to_numpy()[rows]
        for number, k in zip(self._arranged.run[rows], stage, strict=True):
            run = self._arranged.runs[number]
            stages[run] = min(int(k), stages.get(run, int(k)))
        return stages

    # -- the table and parts of it -----------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """The long table: one number per row, with the labels shown in all tables."""
        return _arrange.replace_labels(self._frame, self.display_names.labels)

    def _like(
        self,
        frame: pd.DataFrame,
        *,
        head: str | None,
        arranged: _arrange.RunArrangement | None = None,
        names: DisplayNames | None = None,
    ) -> Self:
        return type(self)(
            frame, recipes=self.recipes, predictions=self.predictions, items=self._items,
            arrays=self.stored, problems=self._problems, ledger=self.ledger,
            environment=self.environment, head=head, arranged=arranged, models=self._models,
            names=names or self.display_names,
        )  # fmt: skip

    def ends(self) -> Self:
        """Keep only the numbers at the ends of stages, a far smaller table."""
        rows = self._frame["step"].to_numpy() == -1
        return self._like(self._frame[rows], head=self._head)

    def recorded_frame(self) -> pd.DataFrame:
        """Return the long table as it is recorded: with the labels that were given."""
        new = self.display_names.renamed
        if not new:
            return self._frame
        pairs = zip(self._arranged.runs, self._arranged.written, strict=True)
        written = {run.recipe: label for run, label in pairs}
        return _arrange.replace_labels(self._frame, written | new)

    def labelled_recipes(self) -> dict[str, dict[str, Any]]:
        """Return the recipes, with the labels of those that were renamed."""
        new = self.display_names.renamed
        return {
            one: {**content, "label": new[one]} if one in new else content
            for one, content in self.recipes.items()
        }

    def view(self, *, head: str) -> Self:
        """Return the same runs in another head view: ``single`` or ``multi``."""
        check_choice("head", head, HEADS)
        rows = _arrange.score_rows(self._frame)
        found = [str(h) for h in self._frame.loc[rows, "head"].unique()]
        if head not in found:
            raise bad("head", f"a view that was recorded ({', '.join(found) or 'none'})", head)
        return self._like(self._frame, head=head, arranged=self._arranged)

    def select(self, **wanted: Any) -> Self:
        """Select runs by label, method, stream, recipe, seed or order (a value or several each).

        Raises for a value that no run has, and for values that no run has together.
        """
        keep = np.ones(len(self.runs), np.bool_)
        for name, values in wanted.items():
            if name not in _SELECTED_BY:
                raise unknown("select", name, _SELECTED_BY)
            several = isinstance(values, Iterable) and not isinstance(values, str)
            allowed = set(values) if several else {values}
            have = self._values_by_run(name)
            for value in allowed - set(have):
                raise (
                    _raise_absent_seed(value, have)
                    if name == "seed"
                    else unknown(name, value, {*have})
                )
            keep &= np.array([h in allowed for h in have], np.bool_)
        if wanted and not keep.any():
            raise bad("select", "values that some run has together", wanted)
        names = None
        if "stream" in wanted:
            chosen = {run.recipe for run, kept in zip(self.runs, keep, strict=True) if kept}
            names = self.display_names.only(chosen)
        return self._like(self._frame[keep[self._arranged.run]], head=self._head, names=names)

    def _values_by_run(self, name: str) -> list[Any]:
        own = {"label": "run_labels", "method": "run_methods", "stream": "run_streams"}
        if name in own:
            return list(getattr(self, own[name]))
        return [getattr(run, name) for run in self.runs]

    def of_runs(self, runs: Iterable[tuple[str, int, str]]) -> Self:
        """Keep only these runs (recipe, seed, order); recipes in the order given.

        The table is sorted by run, so it does not depend on which trained first or together.

        Examples
        --------
        >>> from engram.records import Rows
        >>> rows = Rows()
        >>> for name in ("ER", "EWC", "LwF"):
        ...     rows.bind(recipe=name, label=name, seed=0)
        ...     rows.add("accuracy", 0.5, stage=0, task=0, head="single")
        >>> RunTable(rows.frame()).of_runs([("LwF", 0, ""), ("ER", 0, "")]).labels
        ['LwF', 'ER']
        """
        named = [RunKey(*run) for run in runs]
        frame = _arrange.sort_by_run(self._frame, self._arranged, [run.recipe for run in named])
        wanted = set(named)
        if any(run not in wanted for run in self._arranged.runs):
            arranged = _arrange.arrange_runs(frame)
            frame = frame[np.array([r in wanted for r in arranged.runs], np.bool_)[arranged.run]]
        return self._like(frame, head=self._head)


def _raise_absent_seed(seed: Any, have: Sequence[Any]) -> BadArgument:
    known = sorted(set(have))
    if len(known) > _FEW_SEEDS and isinstance(seed, (int, np.integer)):
        known = sorted(sorted(known, key=lambda one: abs(one - int(seed)))[:_FEW_SEEDS])
    return bad("seed", f"a seed of these runs, such as {', '.join(map(str, known))}", seed)
