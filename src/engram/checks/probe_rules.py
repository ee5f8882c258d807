"""Rules for probes: runs are independent, nothing is modified, no state from test rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from engram import keys
from engram.checks.check_report import DoesNotApply, require
from engram.checks.toy_runs import (
    CLOSE,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    trees_equal,
)
from engram.engine import checkpoints as checkpoint
from engram.engine.engine import Engine
from engram.experiments.build_probes import build_probes, plain_probe
from engram.learner.tensor_tree import flatten, leaves, tree_map, tree_shapes
from engram.methods.er import ER
from engram.novelty import Detector
from engram.probes import Probe, measure
from engram.probes.ood_data import OODData
from engram.probes.probe import check_probe
from engram.records import Rows
from engram.records.stage_result import StageResult
from engram.streams import Stream

KEY = "probe"
States = list[dict[str, Any]]
Numbers = list[dict[Any, float]]  # per run: value by metric, task, class, head and step


def train_stages(on: Sequence[Stream] | None = None) -> Iterator[list[StageResult]]:
    """Train three runs over tasks of unequal size in lockstep, and yield each stage."""
    on = make_streams(valid=0.2) if on is None else on
    runs = [replace(run, features=True) for run in make_runs(ER(), on)]
    outside = make_ood_data()
    group: list[StageResult] = []
    for stage in Engine(runs, device="cpu", together=True).stages():
        stage.facts, stage.outside = {"seconds": 1.0, "steps": float(stage.steps)}, outside
        group.append(stage)
        if stage.last_of_group:
            yield group
            group = []


def make_ood_data() -> OODData:
    """Make an outside set of the toy streams' input shape."""
    data = make_clouds()
    return OODData(replace(data, x=-1.5 * torch.as_tensor(data.x) + 0.5, name="foreign"))


def measure_probe(
    probe: Probe, runs: Sequence[StageResult], states: States
) -> tuple[Numbers, States]:
    """Measure runs in one view; returns the numbers and states."""
    ready = [
        replace(run, states=state, rows=Rows(), reads={}, arrays={})
        for run, state in zip(runs, states, strict=True)
    ]
    measure(ready, [()] * len(runs), [{KEY: probe}] * len(runs))
    numbers: Numbers = [{} for _ in runs]
    place = ["metric", "task", "cls", "head", "step"]
    for found, own in zip(ready, numbers, strict=True):
        frame = found.rows.frame()
        frame = frame[~frame["metric"].str.endswith("/seconds")]  # never reproducible
        for value, *rest in frame[["value", *place]].itertuples(index=False):
            own[tuple(map(str, rest))] = float(value)
        for name, array in found.arrays.get(KEY, {}).items():
            flat = np.asarray(array, np.float64).reshape(-1)
            # NaN pads runs of one view, so it does not count
            stored = {(name, j): float(value) for j, value in enumerate(flat)}
            own |= {k: v for k, v in stored.items() if v == v}
    return numbers, [dict(one.states) for one in ready]


def empty_states() -> States:
    """Return empty states."""
    return [{}, {}, {}]


def largest_difference(first: dict[Any, float], second: dict[Any, float]) -> float:
    """Return the largest difference between the numbers of two runs; inf for other keys."""
    if first.keys() != second.keys():
        return float("inf")
    a, b = (np.array([one[key] for key in first]) for one in (first, second))
    off = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b) / np.maximum(1, np.abs(b)))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))


def _run_tensors(run: StageResult) -> Any:
    learner = run.learner
    numbers = (torch.tensor(run.scores), run.features, torch.tensor(run.items.targets))
    return (learner.vector, learner.buffers, learner.state, *numbers)


def check_frozen_dataclass_with_options(probe: Probe) -> None:
    """A probe is a frozen dataclass of options with defaults; a recipe gives it back."""
    kind, name = type(probe), type(probe).__name__
    require("__dataclass_fields__" in vars(kind), f"decorate {name} with @dataclass(frozen=True)")
    require(is_dataclass(kind), f"decorate {name} with @dataclass(frozen=True)")
    bare = [
        f.name
        for f in fields(probe)
        if f.init and f.default is MISSING and f.default_factory is MISSING
    ]
    require(not bare, f"give every option a default; {', '.join(bare)} has none")
    check_probe(probe)
    if "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__":
        (again,) = build_probes([plain_probe(probe)])
        require(again == probe, f"{name} is another one after a recipe; keep options plain")


def check_measures_after_every_stage(probe: Probe) -> None:
    """Three tasks are measured; at least one number comes out, and none is infinite."""
    states, count = empty_states(), 0
    for runs in train_stages():
        numbers, states = measure_probe(probe, runs, states)
        values = [value for run in numbers for value in run.values()]
        require(not np.isinf(values).any(), "a number is infinite; NaN says that there is none")
        count += len(values)
    require(count > 0, "three stages, and not one number")


def check_measuring_is_pure(probe: Probe) -> None:
    """The same view gives the same rows and state; nothing is modified, no generator is used."""
    states = empty_states()
    for runs in train_stages():
        trees = [_run_tensors(run) for run in runs]
        kept, old = tree_map(torch.clone, tuple(trees)), tree_map(torch.clone, tuple(states))
        dice = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002
        first, found = measure_probe(probe, runs, states)
        now = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002
        fair = torch.equal(dice[0], now[0]) and dice[1:] == now[1:]
        require(fair, "a global generator is used: draw with engram.keys and view.seeds")
        require(
            trees_equal(tuple(trees), kept), "networks, features or scores were modified in place"
        )
        require(
            trees_equal(tuple(states), old), "view.state was modified in place; keep a new tree"
        )
        second, again = measure_probe(probe, runs, states)
        equal = all(largest_difference(a, b) == 0 for a, b in zip(first, second, strict=True))
        require(equal, "the same view gives other numbers: what is remembered goes to view.keep")
        require(trees_equal(tuple(found), tuple(again)), "the same view gives another state")
        states = found


def check_each_run_as_if_alone(probe: Probe) -> None:
    """Seen with two others or alone, a run has the same numbers and the same state."""
    together, apart = empty_states(), empty_states()
    for runs in train_stages():
        numbers, together = measure_probe(probe, runs, together)
        for r, run in enumerate(runs):
            alone, kept = measure_probe(probe, [run], [apart[r]])
            apart[r] = kept[0]
            off = largest_difference(alone[0], numbers[r])
            require(
                off <= CLOSE,
                f"a run seen alone differs by {off:.1e}: the first axis is the run, and batches "
                "are padded with rows of weight 0 (batch.w)",
            )
            require(
                tree_shapes(kept[0]) == tree_shapes(together[r])
                and largest_gap(kept[0], together[r]) <= CLOSE,
                "a run seen alone keeps another state",
            )


def check_state_survives_a_file(probe: Probe) -> None:
    """State is a tree of tensors; written to a checkpoint and read again, nothing changes."""
    states = empty_states()
    for runs in train_stages():
        found, states = measure_probe(probe, runs, states)
        del found
        for r, state in enumerate(states):
            require(all(isinstance(leaf, torch.Tensor) for leaf in leaves(state)), "no tensor")
            read = checkpoint.rebuild_tree(checkpoint.tree_structure(state), flatten(state))
            require(
                tree_shapes(read) == tree_shapes(state) and trees_equal(read, state),
                "keys must be texts",
            )
            states[r] = read


def check_test_rows_change_no_state(probe: Probe) -> None:
    """What a probe keeps is fitted on no test rows; it may hold them one by one, to compare."""
    states, kept = empty_states(), False
    for number, runs in enumerate(train_stages()):
        _, found = measure_probe(probe, runs, states)
        kept = kept or any(True for state in found for _ in leaves(state))
        # all rows for a detector, which must know none of them; for others every second one
        step = 1 if isinstance(probe, Detector) else 2
        other = [replace_tests(run, number, step) for run in runs]
        _, changed = measure_probe(probe, other, states)
        for run, mine, theirs in zip(runs, found, changed, strict=True):
            fair = tree_shapes(mine) == tree_shapes(theirs) and all(
                torch.equal(a, b) or (step > 1 and _differs_by_rows(a, b, len(run.scores), step))
                for a, b in zip(leaves(mine), leaves(theirs), strict=True)
            )
            require(
                fair,
                "state depends on test rows: fit on view.batches() alone (what is compared later "
                "may be kept row by row, as view.features is)",
            )
        states = found
    if not kept:
        raise DoesNotApply("it keeps no state")


def _differs_by_rows(one: torch.Tensor, other: torch.Tensor, rows: int, step: int) -> bool:
    """Whether two tensors have an axis of test rows, along which only every n-th differs."""
    stay = torch.arange(rows) % step != 0
    return any(
        torch.equal(one.movedim(axis, 0)[stay], other.movedim(axis, 0)[stay])
        for axis, size in enumerate(one.shape)
        if size == rows
    )


def replace_tests(run: StageResult, number: int, step: int = 1) -> StageResult:
    """Replace scores and features of every n-th test row by noise, and shuffle their labels."""
    key = keys.fold(number, "other tests")
    scores = run.scores.copy()
    scores[::step] = keys.normal(key, *run.scores.shape).numpy()[::step]
    assert run.features is not None
    features = run.features.clone()
    features[::step] = keys.normal(keys.fold(key, "features"), *features.shape).to(features)[::step]
    targets = run.items.targets.copy()
    for k in np.unique(run.items.task):  # within a task, so that only labels change
        mine = np.flatnonzero(run.items.task == k)
        mine = mine[mine % step == 0]
        targets[mine] = np.roll(targets[mine], 3, axis=0)
    return replace(run, scores=scores, features=features, items=replace(run.items, targets=targets))


def check_declared_needs_are_enough(probe: Probe) -> None:
    """A probe that needs no networks measures without them: from recorded predictions."""
    if probe.needs:
        raise DoesNotApply(f"it needs {' and '.join(probe.needs)}")
    live, recorded = empty_states(), empty_states()
    for runs in train_stages():
        wanted, live = measure_probe(probe, runs, live)
        bare = [replace(run, trained=None, features=None) for run in runs]
        found, recorded = measure_probe(probe, bare, recorded)
        equal = all(largest_difference(a, b) == 0 for a, b in zip(found, wanted, strict=True))
        require(equal, "recorded predictions give other numbers: declare needs = ('networks',)")


PROBE_CHECKS = (
    check_frozen_dataclass_with_options,
    check_measures_after_every_stage,
    check_measuring_is_pure,
    check_each_run_as_if_alone,
    check_state_survives_a_file,
    check_test_rows_change_no_state,
    check_declared_needs_are_enough,
)
