"""`measure`: call the probes on the results of a stage and collect their rows and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engram.errors import bad
from engram.learner.tensor_tree import stack, tree_shapes
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.long_table import Rows
from engram.records.scored_items import EvaluationItems
from engram.records.stage_result import StageResult
from engram.records.stage_rows import stacking_key as form_of
from engram.streams.stream_warnings import count_repeated_test_rows


def measure(
    results: Sequence[StageResult],
    standard: Sequence[Sequence[Probe]],
    probes: Sequence[Mapping[str, Probe]],
) -> None:
    """Call the standard probes of each run, then its own, given by the keys of their states.

    Rows, arrays, counts of rows read and states of probes are added to the results.

    A run's own probes see all runs that have them in one view; standard ones see the runs whose
    rows have the same places. No run's numbers depend on which others share the view.
    """
    usual: dict[Any, list[int]] = {}
    own: dict[Any, list[int]] = {}
    for place, one in enumerate(results):
        if standard[place]:
            form = _rows_key(one)
            key: Any = place if form is None else (form, tuple(standard[place]))
            usual.setdefault(key, []).append(place)
        if probes[place] and not one.diverged:
            key = (_items_key(one), tuple(probes[place]), tree_shapes(dict(one.states)))
            own.setdefault(key, []).append(place)
    for places in usual.values():
        _measure_in_halves([results[p] for p in places], standard[places[0]], {})
    for places in own.values():
        _measure_in_halves([results[p] for p in places], (), probes[places[0]])


def _items_key(one: StageResult) -> Any:
    """Return the key that runs must share for their test items to be stacked."""
    items, learnt = one.items, len(one.items.up_to(one.stage))
    return (
        one.stage, learnt, items.targets.shape, items.tasks, items.width, items.heads,
    )  # fmt: skip


def _rows_key(one: StageResult) -> Any:
    """Return the key of runs whose rows have the same places; None for runs counted alone."""
    items = form_of(one.recorded.items, one.stage)
    if items is None or one.diverged:
        return None
    # rows of the first stage also count the items of tasks that were not scored
    whole = None if one.stage else form_of(EvaluationItems.of_stream(one.stream), one.stage)
    losses = tuple((step, *terms) for step, terms in one.losses)
    curve = tuple(step for step, _ in one.curve)
    held = one.trained is not None and len(one.trained.exemplars) > 0
    twice = one.stage == 0 and count_repeated_test_rows(one.stream) > 0
    scored = one.stream.held_out if one.held is not None else ""
    return one.stage, items, whole, held, losses, curve, twice, tuple(one.facts), scored


def _measure_in_halves(
    results: Sequence[StageResult], standard: Sequence[Probe], probes: Mapping[str, Probe]
) -> None:
    """Measure all runs at once, or in halves if memory runs out; results change only at the end."""
    try:
        _measure_together(results, standard, probes)
        return
    except torch.OutOfMemoryError:
        if len(results) == 1:
            raise
    half = len(results) // 2
    for part in (results[:half], results[half:]):
        _measure_in_halves(part, standard, probes)


def _measure_together(
    results: Sequence[StageResult], standard: Sequence[Probe], probes: Mapping[str, Probe]
) -> None:
    whole, learnt = StageView(results), StageView([one.learnt for one in results])
    view = StageView([one.recorded for one in results])
    rows, asked = view.rows(), dict[str, StageView]()
    for probe in standard:
        asked[probe.name] = view.for_probe(probe.needs, None)
        rows.extend(_ask_probe(probe, asked[probe.name]))
    for key, probe in probes.items():
        before = [one.states.get(key, {}) for one in results]
        declared = whole if "unseen" in probe.needs else learnt
        asked[key] = declared.for_probe(probe.needs, stack(before))
        rows.extend(_ask_probe(probe, asked[key]), prefix=f"{probe.name}/")
    parts = rows.by_run(
        recipe=[one.recipe for one in results], label=[one.label for one in results],
        seed=[one.seed for one in results], order=[one.order for one in results],
        stage=view.stage,
    )  # fmt: skip
    for r, (result, part) in enumerate(zip(results, parts, strict=True)):
        result.rows = Rows.join([result.rows, part]) if len(result.rows) else part
        result.arrays = {**result.arrays, **_arrays_of_run(asked, r)}
        for key in probes:
            kept = asked[key].kept
            result.states = {**result.states, key: {} if kept is None else kept[r]}
            for kind, count in asked[key].reads.items():
                result.reads[kind] = result.reads.get(kind, 0) + int(count[r])


def _arrays_of_run(views: Mapping[str, StageView], run: int) -> dict[str, dict[str, Any]]:
    """Collect the arrays that probes stored for one run."""
    return {
        key: {name: value[run] for name, value in view.stored.items()}
        for key, view in views.items() if view.stored
    }  # fmt: skip


def _ask_probe(probe: Probe, view: StageView) -> Rows:
    found: Any = probe.after_stage(view)
    if isinstance(found, Rows):
        return found
    if not isinstance(found, Mapping):
        expected = "rows of view.rows(), or a mapping from metrics to values of all runs"
        raise bad(f"{type(probe).__name__}.after_stage", expected, type(found).__name__)
    rows = view.rows()
    for name, value in found.items():
        rows.add(str(name), value)
    return rows
