"""What all papers have in common: presets with one protocol per data set, and tables by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from engram.data import Data
from engram.errors import bad
from engram.recipes import Recipe
from engram.reproduce.cells import Cell, cells_of
from engram.reproduce.papers.assign import assign, changes
from engram.reproduce.papers.elsewhere import moved
from engram.reproduce.table import OTHER_DATA, Entry, PaperFigure, PaperTable


class OfData(Protocol):
    """How one data set of a paper is learnt: at least, which data that is."""

    @property
    def data(self) -> str: ...


DataT = TypeVar("DataT", bound=OfData)


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
        changed: Any = moved(protocols, data, name)
        found: Self = replace(self, **changed)  # type: ignore[type-var]
        return found

    def reasons(self, dataset: str, *reasons: str) -> tuple[str, ...]:
        """Reasons for a difference, and before them that the data is not the paper's."""
        return reasons if self.shown(dataset) == dataset else (OTHER_DATA, *reasons)


PresetT = TypeVar("PresetT", bound=PaperPreset[Any])
Maker = Callable[[Cell], Entry]


def _in_order_of_cells(preset: Any) -> Callable[[Recipe], int]:
    return lambda recipe: 0


def _nothing_to_note(name: str, preset: Any, embedded: bool) -> tuple[str, ...]:
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
    tables: Mapping[str, Callable[[PresetT], Maker]]
    figures: Callable[[str, PresetT], tuple[PaperFigure, ...]]
    notes: Callable[[str, PresetT, bool], tuple[str, ...]] = _nothing_to_note
    without_data: tuple[str, ...] = ()
    kept_cells: tuple[str, ...] = ()
    with_figures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    rank: Callable[[PresetT], Callable[[Recipe], int]] = _in_order_of_cells

    def cells(self, name: str) -> tuple[Cell, ...]:
        """The printed cells of a table or group; none of a figure."""
        tables = (one for one in self.groups.get(name, (name,)) if one in self.tables)
        return tuple(cell for table in tables for cell in cells_of(self.name, table))

    def build(
        self, name: str, *, embedded: bool = False, assignments: Sequence[str] = (),
        on: Data | None = None,
    ) -> PaperTable:  # fmt: skip
        """A table or figure; `assignments` change the preset, `on` is data of the same kind."""
        base = self.embedded if embedded and name not in self.without_data else self.paper
        if on is not None:
            if name in self.without_data:
                raise bad("on", f"nothing, because {self.name}/{name} needs no data", on.name)
            base = base.on(on)
        preset = assign(base, assignments)
        common: dict[str, Any] = {
            "name": f"{self.name}/{name}", "title": self.titles[name], "preset": preset,
            "settings": changes(base, preset), "parts": preset.parts,
            "notes": self.notes(name, preset, embedded), "folder": self.folders.get(name, ""),
            "rank": self.rank(preset),
        }  # fmt: skip
        every = self.groups.get(name, (name,))
        tables = [one for one in every if one in self.tables]
        drawn = [one for one in every if one not in self.tables]
        drawn += self.with_figures.get(name, ())
        cells = self.cells(name)
        if name not in self.kept_cells:
            cells = tuple(cell for cell in cells if cell["dataset"] not in preset.absent)
        makers = {table: self.tables[table](preset) for table in tables}
        return PaperTable(
            cells=cells, entry=lambda cell: makers[cell.table](cell),
            figures=tuple(f for one in drawn for f in self.figures(one, preset)), **common,
        )  # fmt: skip
