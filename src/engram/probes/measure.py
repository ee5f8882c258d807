"""The one way from finished stages to rows: make views, ask every probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from engram.errors import bad
from engram.learner.tensor_tree import stack, tree_shapes
from engram.probes.probe import Probe, RunStage
from engram.probes.stage_view import StageView
from engram.records.stage_rows import StageRows
from engram.records.stage_rows import stacking_key as form_of
from engram.streams.stream_warnings import count_repeated_test_rows


class ProbeFindings(NamedTuple):
    """What probes found in some runs that they saw together, and what they keep for later."""

    places: list[int]  # of the runs, among those given
    rows: StageRows
    states: list[dict[str, Any]]  # one per run: state by the probe's key
    reads: list[dict[str, int]]  # one per run: rows read to fit on, by kind
    arrays: list[dict[str, dict[str, Any]]]  # one per run: what it stored, by the probe's key


def measure(
    runs: Sequence[RunStage],
    standard: Sequence[Sequence[Probe]],
    probes: Sequence[Mapping[str, Probe]],
) -> list[ProbeFindings]:
    """Ask the standard probes of each run, and then its own (by their keys, which name states).

    Own probes see all runs that ask for them in one view; standard ones those whose rows have the
    same places. No run's numbers depend on which others are seen with it.
    """
    usual: dict[Any, list[int]] = {}
    own: dict[Any, list[int]] = {}
    for place, one in enumerate(runs):
        if standard[place]:
            form = _rows_key(one)
            key: Any = place if form is None else (form, tuple(standard[place]))
            usual.setdefault(key, []).append(place)
        if probes[place] and not one.diverged:
            key = (_items_key(one), tuple(probes[place]), tree_shapes(dict(one.probes)))
            own.setdefault(key, []).append(place)
    found: list[ProbeFindings] = []
    for places in usual.values():
        found += _measure_in_halves(places, runs, standard[places[0]], {})
    for places in own.values():
        found += _measure_in_halves(places, runs, (), probes[places[0]])
    return found


def _items_key(one: RunStage) -> Any:
    """What runs must share so that their test items can be stacked."""
    items = one.items
    return one.stage, len(items), items.targets.shape, items.tasks, items.width, items.multilabel


def _rows_key(one: RunStage) -> Any:
    """What runs must share to have rows of the same places; None for runs counted alone."""
    items = form_of(one.items, one.stage)
    if items is None or one.diverged:
        return None
    losses = tuple((step, *terms) for step, terms in one.losses)
    curve = tuple(step for step, _ in one.curve)
    held = one.learner is not None and len(one.learner.exemplars) > 0
    twice = one.stage == 0 and count_repeated_test_rows(one.stream) > 0
    scored = one.stream.held_out if one.held is not None else ""
    return one.stage, items, held, losses, curve, twice, tuple(one.facts), scored


def _measure_in_halves(
    places: list[int], runs: Sequence[RunStage], standard: Sequence[Probe],
    probes: Mapping[str, Probe],
) -> list[ProbeFindings]:  # fmt: skip
    """Nothing is changed before all is measured, so where memory runs out, halves begin again."""
    try:
        return [_measure_together(places, [runs[p] for p in places], standard, probes)]
    except torch.OutOfMemoryError:
        if len(places) == 1:
            raise
    half = len(places) // 2
    return [
        one
        for part in (places[:half], places[half:])
        for one in _measure_in_halves(part, runs, standard, probes)
    ]


def _measure_together(
    places: list[int], runs: Sequence[RunStage], standard: Sequence[Probe],
    probes: Mapping[str, Probe],
) -> ProbeFindings:  # fmt: skip
    view = StageView(runs)
    rows = view.rows()
    reads: list[dict[str, int]] = [{} for _ in runs]
    states: list[dict[str, Any]] = [{} for _ in runs]
    arrays: list[dict[str, dict[str, Any]]] = [{} for _ in runs]
    for probe in standard:
        own = view.of(probe.needs, None)
        rows.extend(_ask_probe(probe, own))
        _add_arrays(arrays, probe.name, own)
    for key, probe in probes.items():
        before = [one.probes.get(key, {}) for one in runs]
        own = view.of(probe.needs, stack(before))
        rows.extend(_ask_probe(probe, own), prefix=f"{probe.name}/")
        for r in range(len(runs)):
            states[r][key] = {} if own.kept is None else own.kept[r]
            for kind, count in own.reads.items():
                reads[r][kind] = reads[r].get(kind, 0) + int(count[r])
        _add_arrays(arrays, key, own)
    return ProbeFindings(places, rows, states, reads, arrays)


def _add_arrays(arrays: list[dict[str, dict[str, Any]]], key: str, view: StageView) -> None:
    """To the arrays of each run what a probe stored."""
    if view.stored:
        for r, own in enumerate(arrays):
            own[key] = {name: value[r] for name, value in view.stored.items()}


def _ask_probe(probe: Probe, view: StageView) -> StageRows:
    found: Any = probe.after_stage(view)
    if isinstance(found, StageRows):
        return found
    if not isinstance(found, Mapping):
        expected = "rows of view.rows(), or a mapping from metrics to values of all runs"
        raise bad(f"{type(probe).__name__}.after_stage", expected, type(found).__name__)
    rows = view.rows()
    for name, value in found.items():
        rows.add(str(name), value)
    return rows
