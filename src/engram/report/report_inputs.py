"""`ReportInput`, the content of a report, made from run directories or a `Result`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from engram.errors import RecordError, bad
from engram.records.display_names import DisplayNames

if TYPE_CHECKING:
    from engram.records import Result
    from engram.records.confusion import FinalAnswers
    from engram.records.novelty_records import Familiarity, FeatureSample
    from engram.records.probe_arrays import GeneratedPictures

COLUMNS: tuple[str, ...] = (
    "recipe", "label", "seed", "order", "stage", "step", "task", "cls", "head", "metric", "value",
)  # fmt: skip

REPRODUCTION_COLUMNS: tuple[str, ...] = (
    "paper", "table", "cell", "stage", "metric", "printed", "corrected", "correction", "ours",
    "difference", "low", "high", "verdict", "reason", "settings",
)  # fmt: skip
REPRODUCTION_FILE = "reproduction.csv"
ALARM_RATE = 0.05  # rate of false alarms for which thresholds are set
_NUMBERS = ("printed", "corrected", "ours", "difference", "low", "high")


@dataclass(frozen=True)
class ReportInput:
    """Everything a report shows.

    Parameters
    ----------
    frame
        Long table of results, one number per row, with the columns of `COLUMNS`.
    recipes
        Recipe id to the recipe as a plain nested dictionary.
    environment, ledger
        Software and device of the runs, and what they read and kept.
    problems
        Problems in reading the records, shown at the top.
    reproductions
        Paper-against-ours tables with the columns of `REPRODUCTION_COLUMNS`.
    classes
        Name of each class id, if known.
    pictures
        Samples of generators after each stage.
    novelty, familiarity, alarms
        Comparisons of detectors by recipe and stage, scores of single runs, and false alarms.
    features, samples
        Statistics of features of each item set by recipe and stage, and some whole vectors.
    answers
        Confusion and confidence after the last stage, by recipe and head view.
    display_names
        Names of methods and streams; by default short ones.
    columns, decimals
        Columns of numbers that tables show (default: all), and their digits.

    Examples
    --------
    >>> ReportInput(pd.DataFrame(columns=list(COLUMNS))).problems
    []
    >>> ReportInput(pd.DataFrame({"label": ["ER"], "value": [0.5]}))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: frame: expected the columns recipe, label, ... got a table without
    recipe, seed, order, stage, step, task, cls, head, metric
    """

    frame: pd.DataFrame
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reproductions: list[pd.DataFrame] = field(default_factory=list)
    classes: Mapping[int, str] = field(default_factory=dict)
    pictures: Sequence[GeneratedPictures] = ()
    novelty: pd.DataFrame = field(default_factory=pd.DataFrame)
    familiarity: Sequence[Familiarity] = ()
    alarms: pd.DataFrame = field(default_factory=pd.DataFrame)
    features: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: Sequence[FeatureSample] = ()
    tuned: Sequence[str] = ()  # descriptions of the options chosen for tuned detectors
    answers: Sequence[FinalAnswers] = ()
    display_names: DisplayNames | None = None
    columns: tuple[str, ...] = ()
    decimals: int | None = None

    @cached_property
    def names(self) -> DisplayNames:
        """Names of methods and streams; made from recipes and labels if not given."""
        if self.display_names is not None:
            return self.display_names
        pairs = self.frame[["recipe", "label"]].astype(str).drop_duplicates("recipe")
        written = dict(zip(pairs["recipe"], pairs["label"], strict=True))
        return DisplayNames({one: self.recipes.get(one, {}) for one in written}, written)

    def present(
        self, *, head: str | None = None, columns: Sequence[str] = (), decimals: int | None = None
    ) -> ReportInput:
        """Return the same records in one head view, some columns of numbers, or other decimals."""
        frame, answers = self.frame, self.answers
        if head is not None:
            known = sorted({*frame["head"].astype(str).unique()} - {""})
            if head not in known:
                raise bad("head", f"a view that was recorded ({', '.join(known) or 'none'})", head)
            frame = frame[frame["head"].astype(str).isin(("", head))]
            answers = [one for one in answers if one.head in ("", head)]
        return replace(
            self, frame=frame, answers=answers, columns=tuple(columns), decimals=decimals,
            display_names=self.names,
        )  # fmt: skip

    def split_by_stream(self) -> dict[str, ReportInput]:
        """Return the records of each stream by its name, without reproductions and ledger."""
        names: dict[str, list[str]] = {}
        for recipe, stream in self.names.streams.items():
            names.setdefault(stream, []).append(recipe)
        return {stream: self._of_recipes(set(own)) for stream, own in names.items()}

    def _of_recipes(self, wanted: set[str]) -> ReportInput:
        def select(table: pd.DataFrame) -> pd.DataFrame:
            return table[table["recipe"].astype(str).isin(wanted)] if len(table) else table

        def choose(records: Sequence[Any]) -> list[Any]:
            return [one for one in records if one.recipe in wanted]

        return replace(
            self, frame=select(self.frame), reproductions=[], problems=[],
            recipes={one: content for one, content in self.recipes.items() if one in wanted},
            pictures=choose(self.pictures), novelty=select(self.novelty),
            familiarity=choose(self.familiarity), alarms=select(self.alarms),
            features=select(self.features), samples=choose(self.samples),
            answers=choose(self.answers), display_names=self.names.only(wanted),
        )  # fmt: skip

    def __post_init__(self) -> None:
        _require_columns("frame", self.frame, COLUMNS)
        for number, table in enumerate(self.reproductions):
            _require_columns(f"reproductions[{number}]", table, REPRODUCTION_COLUMNS)


def from_directories(
    *directories: str | PathLike[str], names: Mapping[str, str] | None = None
) -> ReportInput:
    """Read run directories, with the paper's numbers if a table was reproduced.

    Reproducing a table without training leaves a directory without results; the report then shows
    the comparison only. A comparison that cannot be read is listed in `problems`. `names` are other
    labels of methods, old to new.

    Examples
    --------
    >>> import tempfile
    >>> from engram.records import Rows, RunDirectory
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> folder = RunDirectory(tempfile.mkdtemp())
    >>> part = folder.append(rows)
    >>> from_directories(folder.path).frame["label"].tolist()
    ['ER']
    """
    from engram.records import read

    tables: list[pd.DataFrame] = []
    problems: list[str] = []
    compared = [path for path in map(Path, directories) if (path / REPRODUCTION_FILE).is_file()]
    for folder in compared:
        try:
            tables += read_reproduction(folder / REPRODUCTION_FILE)
        except RecordError as problem:
            problems.append(str(problem))
    bare = [path for path in compared if not any(path.glob("results-*"))]
    trained = [path for path in map(Path, directories) if path not in bare]
    if bare and not trained:
        empty = pd.DataFrame(columns=list(COLUMNS))
        return ReportInput(empty, problems=problems, reproductions=tables)
    inputs = from_result(read(*trained).rename(names or {}), reproductions=tables)
    return replace(inputs, problems=[*inputs.problems, *problems])


def read_reproduction(path: str | PathLike[str]) -> list[pd.DataFrame]:
    r"""Read the comparisons in a CSV file, one per paper and table; raises for a broken file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "reproduction.csv"
    >>> line = "rwalk,1,EWC,,F,0.08,,,0.1,0.02,,,agrees,,"
    >>> _ = path.write_text(",".join(REPRODUCTION_COLUMNS) + f"\n{line}\n")
    >>> [table["ours"].tolist() for table in read_reproduction(path)]
    [[0.1]]
    """
    from engram.io import read_text

    try:
        lines = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as problem:
        raise RecordError(f"{path}: not a valid CSV file ({problem})") from problem
    header = lines[0] if lines else []
    if header != [*REPRODUCTION_COLUMNS]:
        expected = f"expected the columns {', '.join(REPRODUCTION_COLUMNS)}"
        raise RecordError(f"{path}: {expected}, got {', '.join(header) or 'none'}")
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise RecordError(f"{path}: row {number} has {len(line)} of {len(header)} values")
    frame = pd.DataFrame(lines[1:], columns=header)
    for name in _NUMBERS:
        try:
            frame[name] = [float(text or "nan") for text in frame[name]]
        except ValueError as problem:
            raise RecordError(f"{path}: column {name}: {problem}") from problem
    groups = frame.groupby(["paper", "table"], sort=False)
    return [table.reset_index(drop=True) for _, table in groups]


def from_result(result: Result, *, reproductions: Iterable[pd.DataFrame] = ()) -> ReportInput:
    """Make the input of a report from a `Result`."""
    from engram.records.confusion import count_confusions
    from engram.records.probe_arrays import generated_pictures

    problems = [str(problem) for problem in result.problems]
    return ReportInput(
        result.frame(),
        recipes=result.recipes,
        environment=_distinct_environments(result.environment),
        ledger={str(d.get("part", i)): _drop_keys(d, "part") for i, d in enumerate(result.ledger)},
        problems=problems,
        reproductions=list(reproductions),
        classes=result.class_names,
        pictures=generated_pictures(result),
        answers=count_confusions(result),
        display_names=result.display_names,
        **_novelty_tables(result, problems),
    )


def _novelty_tables(result: Result, problems: list[str]) -> dict[str, Any]:
    """Read tables of detectors and features; empty without them, with problems noted."""
    from engram.records.novelty_records import (
        CALIBRATION,
        FAMILIARITY,
        alarm_table,
        describe_tuning,
        familiarity_of_first_runs,
        feature_samples,
        feature_table,
        has_features,
        summarise_detectors,
    )

    names = [run.recipe for run in result.runs]
    stored = {name for key in result.stored for name in result.stored.get(*key)}
    found: dict[str, Any] = {}
    try:
        if FAMILIARITY in stored:
            found["novelty"] = summarise_detectors(result, "recipe", names)
            found["familiarity"] = familiarity_of_first_runs(result)
            found["tuned"] = describe_tuning(result)
        if {FAMILIARITY, CALIBRATION} <= stored:
            found["alarms"] = alarm_table(result, ALARM_RATE, "recipe", names)
        if has_features(result):
            found["features"] = feature_table(result, "recipe", names)
            found["samples"] = feature_samples(result)
    except RecordError as problem:
        problems.append(f"novelty: {problem}")
    return found


def _drop_keys(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def _distinct_environments(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each environment once, since every writer leaves one and most are equal."""
    distinct: list[dict[str, Any]] = []
    for document in documents:
        facts = _drop_keys(document, "part", "timings", "modes")
        if facts not in distinct:
            distinct.append(facts)
    if len(distinct) == 1:
        return distinct[0]
    return {f"environment {i + 1}": facts for i, facts in enumerate(distinct)}


def _require_columns(argument: str, table: object, columns: Iterable[str]) -> None:
    if not isinstance(table, pd.DataFrame):
        raise bad(argument, "a pandas DataFrame", type(table).__name__)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        problem = bad(argument, f"the columns {', '.join(columns)}", None)
        raise type(problem)(
            str(problem).removesuffix("None") + f"a table without {', '.join(missing)}"
        )
