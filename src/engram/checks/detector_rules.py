"""Rules for novelty detectors, in addition to those for probes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from engram.checks.check_report import DoesNotApply, require
from engram.checks.leakage_rules import _noise_outside
from engram.checks.probe_rules import (
    KEY,
    States,
    empty_states,
    largest_difference,
    measure_probe,
    replace_tests,
    train_stages,
)
from engram.checks.toy_runs import (
    CLOSE,
    ORDERS,
    largest_gap,
    make_clouds,
    make_streams,
    trees_equal,
)
from engram.data import Data
from engram.learner.tensor_tree import leaves
from engram.metrics.detection import auroc
from engram.novelty import Detector, Tuned
from engram.probes import StageView
from engram.records.stage_result import StageResult
from engram.streams import Stream


def _score_rows(detector: Detector, run: StageResult, state: Any, rows: slice) -> torch.Tensor:
    """Score some test rows of one run."""
    view = StageView([run], needs=detector.needs)
    _, x = next(view.inputs(64))
    one = torch.utils._pytree.tree_map(lambda leaf: leaf[None], state)
    found: torch.Tensor = view.map(detector.score, x[:, rows], view.open, one)
    return found[0]


def check_scores_row_by_row(detector: Detector) -> None:
    """A row's score does not depend on the rows beside it."""
    states = empty_states()
    for runs in train_stages():
        _, states = measure_probe(detector, runs, states)
        whole = _score_rows(detector, runs[0], states[0][KEY], slice(0, 12))
        require(whole.shape == (12,), f"score gives {tuple(whole.shape)} for 12 rows, not (12,)")
        some = _score_rows(detector, runs[0], states[0][KEY], slice(3, 8))
        known = whole[3:8].isnan() & some.isnan()  # NaN is left to another check
        apart = largest_gap(whole[3:8].masked_fill(known, 0), some.masked_fill(known, 0))
        require(apart <= CLOSE, "score mixes rows: use no statistics of the batch")


def check_finite_on_constant_features(detector: Detector) -> None:
    """Scores are finite for a network with constant outputs."""
    states = empty_states()
    for runs in train_stages():
        for run in runs:
            run.learner.vector = torch.zeros_like(run.learner.vector)
        dull = [replace(run, scores=run.scores * 0) for run in runs]
        _, states = measure_probe(detector, dull, states)
        found = _score_rows(detector, dull[0], states[0][KEY], slice(0, 12))
        require(bool(torch.isfinite(found).all()), "a score is NaN or infinite")


def check_beats_chance(detector: Detector) -> None:
    """After the first task its rows are more familiar than those of an outside set, on average.

    Average over three runs whose networks have learnt the task, validation rows against the set.
    """
    runs = next(train_stages())
    view = StageView(runs, needs=detector.needs, state=None)
    state = detector.fit_stage(view)
    inside = detector.calibration_scores(view, state)
    assert inside is not None  # the toy streams have validation rows
    # as in `compare_sets`, NaN is the least familiar
    outside = detector.outside_scores(view, state).nan_to_num(nan=-torch.inf)
    areas = [
        auroc(near[~near.isnan()].numpy(), far.numpy())
        for near, far in zip(inside, outside, strict=True)
    ]
    require(all(map(math.isfinite, areas)), "no row that the network gets right has a score")
    mean = sum(areas) / len(areas)
    require(mean > 0.5, f"rows it was fitted on look more foreign than foreign ones ({mean:.2f})")


def check_tuned_once(detector: Detector) -> None:
    """Its options are chosen after the first stage, without test rows, and stay.

    Later stages read nothing of the outside set for that.
    """
    if isinstance(detector, Tuned):
        tuned = detector
    elif detector.searched:
        name, values = next(iter(detector.searched.items()))
        tuned = Tuned(detector, {name: values[:2]})
    else:
        raise DoesNotApply("it declares no values to choose among (searched)")
    states, chosen = empty_states(), []
    for number, runs in enumerate(train_stages()):
        _, found = measure_probe(tuned, runs, states)
        other = [replace_tests(run, number) for run in runs]
        # after the first stage nothing depends on the outside set, unless the detector itself does
        if number and not tuned.detector.outside:
            other = [replace(run, outside=None) for run in other]
        _, again = measure_probe(tuned, other, states)
        chosen.append([int(one[KEY]["choice"]) for one in found])
        require(chosen[-1] == chosen[0], "an option was chosen anew after a later stage")
        same_choice = chosen[-1] == [int(one[KEY]["choice"]) for one in again]
        require(same_choice, "the choice depends on test rows")
        states = found


def check_class_ids_do_not_matter(detector: Detector) -> None:
    """Other ids for the same classes in the same order: the same scores and state, bitwise."""
    rename, order = (3, 5, 0, 1, 4, 2), ORDERS[1]
    usual = make_streams(orders=[order], valid=0.2)
    renamed = make_streams(make_clouds(rename=rename), [[rename[c] for c in order]], valid=0.2)
    states, others = empty_states()[:1], empty_states()[:1]
    for runs, named in zip(train_stages(usual), train_stages(renamed), strict=True):
        (first,), states = measure_probe(detector, runs, states)
        (second,), others = measure_probe(detector, named, others)
        fair = largest_difference(first, second) == 0 and trees_equal(tuple(states), tuple(others))
        require(fair, "scores depend on class ids: columns are places in order of introduction")


def check_future_rows_change_no_state(detector: Detector) -> None:
    """With noise in place of the test rows and of all later tasks, a detector knows the same."""
    stream = make_streams(valid=0.2)[0]
    known = list(_fit_states(detector, stream))
    if not any(True for state in known[-1] for _ in leaves(state)):
        raise DoesNotApply("it keeps no state")
    for stage in range(len(known) - 1):
        noisy = replace(stream, data=_noise_after(stream, stage))
        states = next(itertools.islice(_fit_states(detector, noisy), stage, None))
        fair = trees_equal(tuple(states), tuple(known[stage]))
        require(fair, "state depends on test rows or later tasks: fit on view.batches() alone")


def _fit_states(detector: Detector, stream: Stream) -> Iterator[States]:
    """Iterate over the states of a detector after each stage of one run."""
    states = empty_states()[:1]
    for runs in train_stages([stream]):
        _, states = measure_probe(detector, runs, states)
        yield states


def _noise_after(stream: Stream, stage: int) -> Data:
    """Replace all rows by noise but the training and validation rows up to a stage."""
    seen = [torch.cat([task.train, task.valid]) for task in stream.tasks[: stage + 1]]
    return _noise_outside(stream.data, torch.cat(seen))


DETECTOR_CHECKS = (
    check_scores_row_by_row,
    check_finite_on_constant_features,
    check_beats_chance,
    check_tuned_once,
    check_class_ids_do_not_matter,
    check_future_rows_change_no_state,
)
