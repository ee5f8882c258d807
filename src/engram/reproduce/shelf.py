"""Data sets and streams of a reproduction, and why some recipe cannot be run here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from engram.data.catalogue import find, missing_rows, search_root
from engram.data.core import Data
from engram.data.known import KNOWN
from engram.errors import BadArgument
from engram.models import build as build_model
from engram.recipes import Plan, Recipe
from engram.recipes.plain import to_plain
from engram.recipes.plan import Planner
from engram.reproduce.table import SUBSET, words
from engram.streams.core import Stream


class Shelf:
    """Data and streams, each loaded once; what cannot be loaded is remembered with the reason.

    `settings` are the user's changes of the preset. With some, only data that is not here is a
    reason not to run: everything else is a mistake in them, and raised before anything trains.
    """

    def __init__(self, root: str | None, settings: Mapping[str, str]) -> None:
        self.root = root
        self.settings = settings
        self.data: dict[str, Data | str] = {}
        self.streams: dict[str, Stream] = {}
        # By identity: cells share recipe objects, and a study of orders has thousands of runs.
        self._sources: dict[int, tuple[Recipe, str]] = {}
        self._runs: dict[int, list[Plan]] = {}
        self._models: set[str] = set()  # those that were tried
        self._planner = Planner(root)

    def refused(self, error: BadArgument) -> str:
        """The reason not to run a cell, unless settings are to blame."""
        if self.settings:
            raise BadArgument(f"{error} (with {words(self.settings)})") from error
        return str(error)

    def find(self, recipe: Recipe) -> Data | str:
        source = self._source(recipe)
        if source not in self.data:
            try:
                self.data[source] = recipe.data(self.root)
            except BadArgument as error:
                absent = not self._mistaken(recipe)
                self.data[source] = str(error) if absent else self.refused(error)
        return self.data[source]

    def _mistaken(self, recipe: Recipe) -> bool:
        """Whether a name or option is wrong, rather than files being absent or damaged."""
        name = str(recipe.stream["data"])
        known = KNOWN.get(name)
        if known is None:
            return os.sep not in name
        root = search_root(self.root)
        here = known.make is not None or (root is not None and find(name, root) is not None)
        return here and bool(recipe.stream.get("data_options"))

    def _source(self, recipe: Recipe) -> str:
        if id(recipe) not in self._sources:
            source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
            self._sources[id(recipe)] = recipe, source  # kept alive: its id is a key
        return self._sources[id(recipe)][1]

    def stream(self, recipe: Recipe) -> Stream:
        where = repr(to_plain(recipe.stream))
        if where not in self.streams:
            data = self.find(recipe)
            if isinstance(data, str):
                raise BadArgument(data)
            self.streams[where] = recipe.build_stream(data)
        return self.streams[where]

    def runs(self, recipe: Recipe) -> list[Plan]:
        self._source(recipe)
        if id(recipe) not in self._runs:
            stream = self.stream(recipe)
            self._try_model(recipe, stream)
            self._runs[id(recipe)] = self._planner.plans(recipe, stream)
        return self._runs[id(recipe)]

    def _try_model(self, recipe: Recipe, stream: Stream) -> None:
        """Build the model once where settings may have spoilt it; training would be too late."""
        shape = stream.data.sample_shape
        key = repr((recipe.model, shape))
        if self.settings and key not in self._models:
            build_model(recipe.model, sample_shape=shape, classes=len(stream.order), seed=0)
            self._models.add(key)

    def why_not(self, recipes: Iterable[Recipe]) -> str:
        """Why some recipe cannot be run here, "" if all can."""
        for recipe in recipes:
            data = self.find(recipe)
            if isinstance(data, str):
                return data
            try:
                self.runs(recipe)
            except BadArgument as error:
                return self.refused(error)
        return ""

    def reasons(self, recipes: Iterable[Recipe]) -> list[str]:
        found = (self.find(recipe) for recipe in recipes)
        return [SUBSET] if any(missing_rows(d) for d in found if isinstance(d, Data)) else []

    @property
    def notes(self) -> tuple[str, ...]:
        loaded = [data for data in self.data.values() if isinstance(data, Data)]
        return tuple(dict.fromkeys(f"{d.name}: {note}" for d in loaded for note in d.notes))
