"""What all papers have in common: presets with one protocol per data set, assignments to them,
other data in place of the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import resources
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from engram.data import Data
from engram.errors import bad, check_choice, check_int, unknown
from engram.experiments import Recipe
from engram.experiments.plain_values import convert, from_plain, to_plain
from engram.io import parse_key_value, parse_yaml
from engram.renamed import new_name
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import (
    OTHER_DATA,
    VARIANT_UNSTATED,
    CellEntry,
    PaperFigure,
    PaperTable,
)

AnyPreset = TypeVar("AnyPreset")
OURS, PRINTED = "ours", "printed"
PRESETS = (OURS, PRINTED)


class PaperData:
    """What a paper enumerates, from ``tables/<paper>.yaml``: rows, presets, titles, figures.

    Examples
    --------
    >>> PaperData("rwalk")["titles"]["fig4"]
    'accuracy over the number of samples'
    >>> PaperData("rwalk")["title"]
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: tables/rwalk.yaml: unknown name 'title', did you mean 'titles'? ...
    """

    def __init__(self, paper: str) -> None:
        self.file = f"tables/{paper}.yaml"
        folder = resources.files("engram.reproduce.papers")
        self._parts = parse_yaml(self.file, folder.joinpath(self.file).read_text(encoding="utf-8"))

    def __getitem__(self, part: str) -> Any:
        if part not in self._parts:
            raise unknown(self.file, part, self._parts)
        return self._parts[part]

    def get(self, part: str, default: Any) -> Any:
        """A part that not every paper has."""
        return self._parts.get(part, default)

    def build(self, kind: type[AnyPreset], part: str) -> AnyPreset:
        """A part as a preset: the fields that differ from its defaults."""
        found: AnyPreset = from_plain(kind, self[part], path=f"{self.file} {part}")
        return found

    def build_each(self, kind: type[AnyPreset], part: str) -> dict[str, AnyPreset]:
        """A part that holds several protocols by name."""
        path = f"{self.file} {part}"
        return {k: from_plain(kind, v, path=f"{path}.{k}") for k, v in self[part].items()}


def default_options(**values: Any) -> Any:
    """The field of a preset that holds options, with those it has by default."""
    return field(default_factory=lambda: dict(values))


def check_ints(preset: Any, *names: str, low: int = 0) -> None:
    """Refuse a preset one of whose fields, or a value in it, is no whole number from `low` on."""
    for name in names:
        value = getattr(preset, name)
        for one in value if isinstance(value, tuple) else (value,):
            check_int(name, one, low)


def check_choices(preset: Any, valid: Iterable[str], *names: str) -> None:
    """Refuse a preset one of whose fields has none of the valid names."""
    for name in names:
        check_choice(name, getattr(preset, name), valid)


class DataProtocol(Protocol):
    """How one data set of a paper is learnt: at least, which data that is."""

    @property
    def data(self) -> str: ...


DataT = TypeVar("DataT", bound=DataProtocol)


class PaperPreset(Generic[DataT]):
    """Every choice of a paper, fields of a dataclass; one field per data set, None to leave it out.

    Class variables
    ---------------
    parts
        Field to the name of its data set in the paper.
    official
        Name of a data set in the paper to the name under which it is loaded.
    """

    parts: ClassVar[Mapping[str, str]]
    official: ClassVar[Mapping[str, str]]

    @property
    def as_printed(self) -> bool:
        """Whether ours is judged by the printed number where a table is corrected."""
        return False

    def protocol(self, dataset: str) -> DataT:
        """How a data set is learnt, by its name in the paper."""
        found: dict[str, DataT | None] = {n: getattr(self, f) for f, n in self.parts.items()}
        one = found.get(dataset)
        if one is None:
            raise bad("dataset", "a data set of this preset", dataset)
        return one

    @property
    def absent(self) -> frozenset[str]:
        """Data sets of the paper that this preset leaves out."""
        return frozenset(n for f, n in self.parts.items() if getattr(self, f) is None)

    def shown(self, dataset: str) -> str:
        """The name of the data that stands for a data set of the paper: its own, or another."""
        data = self.protocol(dataset).data
        return dataset if data == self.official[dataset] else data

    def on(self, data: Data) -> Self:
        """The preset with another data set of the same kind; those of other kinds are left out."""
        name = data.name if data.source is None else data.source.name
        protocols = {f: (self.official[n], getattr(self, f)) for f, n in self.parts.items()}
        changed: Any = move_protocols(protocols, data, name)
        found: Self = replace(self, **changed)  # type: ignore[type-var]
        return found

    def reasons(self, dataset: str, *reasons: str) -> tuple[str, ...]:
        """Reasons for a difference, and before them that the data is not the paper's."""
        return reasons if self.shown(dataset) == dataset else (OTHER_DATA, *reasons)


PresetT = TypeVar("PresetT", bound=PaperPreset[Any])
EntryMaker = Callable[[Cell], CellEntry]


def _rank_equally(preset: Any) -> Callable[[Recipe], int]:
    return lambda recipe: 0


def _no_notes(name: str, preset: Any, embedded: bool) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Paper(Generic[PresetT]):
    """The tables and figures of a paper.

    Parameters
    ----------
    titles
        Table or figure (``fig2``) to a line about it.
    paper, embedded
        The preset that the paper is reproduced with, and one on embedded data.
    tables
        Table to a function from a preset to the maker of its cells' entries.
    figures
        From a figure's name and a preset to what is drawn.
    notes
        What is to be said about a table, from its name, preset and whether it is embedded; may
        refuse what cannot be made.
    counted
        Tables of numbers of the data itself, for which nothing is trained.
    without_data
        Tables that need no data, and so no embedded stand-in.
    kept_cells
        Tables whose cells stay when the preset leaves their data set out.
    with_figures
        Tables to figures that are drawn from their runs, and whose further runs they include.
    groups
        Names for several tables and figures at once, which are then made by one call.
    folders
        Tables, figures and groups to the run directory they share with others.
    rank
        From a preset to which recipes are run first, see `PaperTable`.
    """

    name: str
    titles: Mapping[str, str]
    paper: PresetT
    embedded: PresetT
    tables: Mapping[str, Callable[[PresetT], EntryMaker]]
    figures: Callable[[str, PresetT], tuple[PaperFigure, ...]]
    notes: Callable[[str, PresetT, bool], tuple[str, ...]] = _no_notes
    counted: tuple[str, ...] = ()
    without_data: tuple[str, ...] = ()
    kept_cells: tuple[str, ...] = ()
    with_figures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    rank: Callable[[PresetT], Callable[[Recipe], int]] = _rank_equally

    def cells(self, name: str, *, as_printed: bool = False) -> tuple[Cell, ...]:
        """The printed cells of a table or group; none of a figure."""
        tables = (one for one in self.groups.get(name, (name,)) if one in self.tables)
        return tuple(
            cell for table in tables for cell in read_cells(self.name, table, as_printed=as_printed)
        )

    def build(
        self, name: str, *, embedded: bool = False, preset_name: str = OURS,
        assignments: Sequence[str] = (), on: Data | None = None,
    ) -> PaperTable:  # fmt: skip
        """A table or figure; `assignments` change the preset, `on` is data of the same kind.

        Preset ``printed`` is ours with the `printed_settings` of ``tables/<paper>.yaml``, as if
        they had been assigned.
        """
        check_choice("preset", preset_name, PRESETS)
        data = PaperData(self.name)
        base = self.embedded if embedded and name not in self.without_data else self.paper
        if on is not None:
            if name in self.without_data:
                raise bad("on", f"nothing, because {self.name}/{name} needs no data", on.name)
            base = base.on(on)
        printed = data.get("printed_settings", ()) if preset_name == PRINTED else ()
        preset = assign_settings(base, [*_list_printed(base, printed), *assignments])
        known = data.get("known", ())
        common: dict[str, Any] = {
            "name": f"{self.name}/{name}", "title": self.titles[name], "preset": preset,
            "settings": list_changes(base, preset), "parts": preset.parts,
            "notes": self.notes(name, preset, embedded), "folder": self.folders.get(name, ""),
            "rank": self.rank(preset),
        }  # fmt: skip
        every = self.groups.get(name, (name,))
        tables = [one for one in every if one in self.tables]
        drawn = [one for one in every if one not in self.tables]
        drawn += self.with_figures.get(name, ())
        cells = self.cells(name, as_printed=preset.as_printed)
        if name not in self.kept_cells:
            cells = tuple(cell for cell in cells if cell["dataset"] not in preset.absent)
        makers = {table: self.tables[table](preset) for table in tables}
        return PaperTable(
            cells=cells, entry=lambda cell: _add_known(cell, makers[cell.table](cell), known),
            figures=tuple(f for one in drawn for f in self.figures(one, preset)), **common,
        )  # fmt: skip


def _list_printed(preset: PaperPreset[Any], assignments: Sequence[str]) -> list[str]:
    """The assignments of the printed text, without those about data that others stand for."""

    def applies(text: str) -> bool:
        part = text.partition(".")[0]
        protocol = getattr(preset, part, None)
        return part not in preset.parts or (
            protocol is not None and protocol.data == preset.official[preset.parts[part]]
        )

    return [text for text in assignments if applies(text)]


def _add_known(cell: Cell, entry: CellEntry, known: Sequence[Mapping[str, Any]]) -> CellEntry:
    """The entry with what is known of its row, on the paper's own data."""
    if entry.missing or OTHER_DATA in entry.reasons:
        return entry
    found = [one["reason"] for one in known if _is_at(cell, one["where"])]
    if not found:
        return entry
    own = tuple(one for one in entry.reasons if one != VARIANT_UNSTATED)  # this says which
    return replace(entry, reasons=(*own, *found))


def _is_at(cell: Cell, where: Mapping[str, Any]) -> bool:
    own = {"table": cell.table, **cell.key}
    return all(
        own.get(key, "") in (value if isinstance(value, list) else [value])
        for key, value in where.items()
    )


# ------------------------------------------------------------------------------------------------
# Changing single choices of a preset from the command line.


_ABSENT = object()


def assign_settings(preset: AnyPreset, assignments: Sequence[str]) -> AnyPreset:
    """The preset with ``key=value`` applied; dots lead into protocols and methods.

    Examples
    --------
    >>> from engram.reproduce.papers.rwalk_paper import PAPER
    >>> assign_settings(PAPER, ["mnist.epochs=5"]).mnist.epochs
    5
    """
    for text in assignments:
        key, value = parse_key_value(text)
        preset = _replace_value(preset, key.split("."), value, "preset")
    return preset


def _replace_value(owner: Any, path: Sequence[str], value: Any, where: str) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(owner, Mapping):
        if rest and not isinstance(owner.get(name), Mapping):
            raise bad(f"{where}.{name}", "a field of the method", ".".join(path))
        inner = _replace_value(owner[name], rest, value, f"{where}.{name}") if rest else value
        return {**owner, name: inner}
    names = {f.name for f in fields(owner)} if is_dataclass(owner) else set()
    name = new_name(type(owner), name)
    if name not in names:
        raise unknown(where, name, names)
    now = getattr(owner, name)
    if rest:
        value = _replace_value(now, rest, value, f"{where}.{name}")
    elif isinstance(now, (bool, int, float, str, tuple)) and name != "model":
        value = convert(type(now), value, path=f"{where}.{name}")
    elif is_dataclass(now) and value is not None:
        expected = f"null, to leave it out, or a field of it such as {name}.data"
        raise bad(f"{where}.{name}", expected, value)
    return replace(owner, **{name: value})


def list_changes(base: Any, preset: Any) -> dict[str, str]:
    """Where a preset differs from another one, as assignments; how they were written is no matter.

    Examples
    --------
    >>> from engram.reproduce.papers.rwalk_paper import PAPER
    >>> list_changes(
    ...     PAPER,
    ...     assign_settings(PAPER, ["seeds=5", "mnist.epochs=2", "mnist.epochs=1", "cifar=null"]),
    ... )
    {'mnist.epochs': '1', 'cifar': 'null'}
    """
    return dict(_walk_changes(to_plain(base), to_plain(preset), ""))


def _walk_changes(base: Any, now: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(base, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*base, *now]):
            where = f"{path}.{key}" if path else key
            yield from _walk_changes(base.get(key, _ABSENT), now.get(key, _ABSENT), where)
    elif now is _ABSENT:  # an option that was left out again
        yield path, "default"
    elif base != now:
        yield path, now if isinstance(now, str) else json.dumps(now)


# ------------------------------------------------------------------------------------------------
# A paper's protocol on another data set of the same kind.


GREY, COLOUR, FACES, VECTORS = "grey images", "colour images", "facial expressions", "vectors"
SETS = "images with sets of labels"
JOINTS = {20: "skeletons of 20 joints", 25: "skeletons of 25 joints"}
EXPRESSIONS = frozenset({"Neutral", "Anger", "Disgust", "Happiness", "Sadness"})
# What the papers' own data sets are.
KINDS = {
    "mnist": GREY, "cifar100": COLOUR, "tiny_imagenet": COLOUR, "eight_task": COLOUR,
    "imagenet": COLOUR, "nw_ucla": JOINTS[20], "ntu60": JOINTS[25], "ck_plus": FACES,
    "raf_db": FACES, "affectnet": FACES, "fer2013": FACES, "icv_mefed": FACES, "baum1": FACES,
}  # fmt: skip


def data_kinds(data: Data) -> list[str]:
    """What a data set is, by its inputs and classes; faces are images, too.

    Examples
    --------
    >>> from engram import load
    >>> data_kinds(load("digits")), data_kinds(load("blobs")), data_kinds(load("skeletons"))
    (['grey images'], ['vectors'], ['skeletons of 20 joints'])
    >>> data_kinds(load("faces"))
    ['facial expressions', 'colour images']
    """
    shape = data.sample_shape
    if int((data.y >= 0).sum(1).max()) > 1:
        return [SETS]
    if len(shape) < 3:
        return [VECTORS]
    # images are stored as bytes, or have as few channels as a skeleton has coordinates
    if "uint8" not in str(data.x.dtype) and shape[0] == 3 and shape[2] in JOINTS:
        return [JOINTS[shape[2]]]
    found = [FACES] if set(data.classes) >= EXPRESSIONS else []
    return [*found, GREY if shape[0] == 1 else COLOUR]


def move_protocols(
    protocols: Mapping[str, tuple[str, Any]], data: Data, name: str
) -> dict[str, Any]:
    """Field of a preset to its protocol on other data, None where the data is of another kind.

    `protocols` has field to the name under which the paper's own data set is loaded, and how it is
    learnt. Refused where no kind fits.
    """
    wanted = {
        field: KINDS.get(official, official)
        for field, (official, protocol) in protocols.items()
        if protocol is not None
    }
    fitting = set(wanted.values()) & set(data_kinds(data))
    if not fitting:
        expected = " or ".join(dict.fromkeys(wanted.values()))
        raise bad("on", f"{expected}, which this paper is about", f"{name}: {data_kinds(data)[0]}")
    return {
        field: _move_protocol(protocol, data, name) if wanted.get(field) in fitting else None
        for field, (_, protocol) in protocols.items()
    }


def _move_protocol(protocol: Any, data: Data, name: str) -> Any:
    """The protocol with other data, and as many classes as those have."""
    if protocol.data == name:
        return protocol
    own = getattr(protocol, "on", None)
    if own is not None:
        return own(data, name)
    names = {f.name for f in fields(protocol)}
    changed: dict[str, Any] = {"data": name}
    changed |= {option: {} for option in ("options", "data_options") if option in names}
    if "classes" in names:
        changed["classes"] = data.n_classes
    if "classes_per_task" in names:
        tasks = _tasks(protocol)
        changed["classes_per_task"] = fit_classes_per_task(
            data, protocol.classes_per_task, tasks, name
        )
        if "stages" in names:
            changed["stages"] = data.n_classes // changed["classes_per_task"]
    return replace(protocol, **changed)


def _tasks(protocol: Any) -> int:
    stages: int = getattr(protocol, "stages", 0)
    return stages or protocol.classes // protocol.classes_per_task


def fit_classes_per_task(data: Data, size: int, tasks: int, name: str) -> int:
    """Classes of a task: as many as in the paper if they go into two tasks or more, else fewer.

    Examples
    --------
    >>> from engram import load
    >>> (
    ...     fit_classes_per_task(load("digits"), 2, 5, "digits"),
    ...     fit_classes_per_task(load("digits"), 10, 5, "digits"),
    ... )
    (2, 2)
    """
    classes = data.n_classes
    if classes % size == 0 and classes > size:
        return size
    if classes % tasks == 0:
        return classes // tasks
    expected = f"a set whose classes go into tasks of {size}, or into {tasks} equal tasks"
    raise bad("on", expected, f"{name} with {classes} classes")


def require_classes(data: Data, name: str, classes: Iterable[str] | int) -> None:
    """Refuse data without the classes that a protocol names, or with another number of them."""
    if isinstance(classes, int):
        if data.n_classes != classes:
            raise bad("on", f"a set of {classes} classes", f"{name} with {data.n_classes}")
        return
    absent = [one for one in classes if one not in data.classes]
    if absent:
        raise bad("on", f"a set with the classes {', '.join(absent)} as well",
                  f"{name} with {', '.join(data.classes)}")  # fmt: skip
