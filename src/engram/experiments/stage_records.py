"""What is recorded of finished stages: rows of the long table and arrays of probes, of one run
or of all that trained together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engram.engine.backend import probe_numerics
from engram.engine.engine import FinishedStage
from engram.experiments.plan import Plan
from engram.probes import RunStage, measure, standard
from engram.probes.standard_probes import run_facts
from engram.records import EvaluationItems, Rows, StageKey, StageRows
from engram.records.probe_arrays import StoredArrays

Done = tuple[Plan, FinishedStage, EvaluationItems]


def group_rows(done: Sequence[Done]) -> tuple[list[Rows], list[StoredArrays]]:
    """The rows of each run, and the arrays that probes store.

    What probes keep, and what they read, is noted in the learners.
    """
    runs = [make_run_stage(*one) for one in done]
    usual = [standard(plan.average) for plan, _, _ in done]
    found: list[list[Rows]] = [[] for _ in done]
    stored: list[StoredArrays] = []
    with probe_numerics(done[0][0].run.training.precision):  # runs that train together share it
        measured = measure(runs, usual, [plan.probes for plan, _, _ in done])
    for part in measured:
        for place, state, reads in zip(part.places, part.states, part.reads, strict=True):
            learner = done[place][1].learner
            learner.probes = {**learner.probes, **state}
            for kind, count in reads.items():
                learner.ledger.record(learner.stage, kind, count)
        rows = label_rows(part.rows, [done[place][0] for place in part.places], runs[0].stage)
        for place, own, arrays in zip(part.places, rows, part.arrays, strict=True):
            found[place].append(own)
            stored += label_arrays(arrays, done[place][0], runs[0].stage)
    return [one[0] if len(one) == 1 else Rows.joined(one) for one in found], stored


def label_arrays(
    arrays: Mapping[str, Mapping[str, Any]], plan: Plan, stage: int
) -> list[StoredArrays]:
    """What the probes of a run store after a stage, with its names."""
    key = StageKey(*plan.key, stage)
    return [StoredArrays(key, probe, own) for probe, own in arrays.items()]


def make_run_stage(plan: Plan, stage: FinishedStage, items: EvaluationItems) -> RunStage:
    """A finished stage as probes see it."""
    learner, outcome = stage.learner, stage.outcome
    return RunStage(
        stage=stage.stage, stream=plan.run.stream, method=plan.run.method, seed=plan.run.seed,
        items=items, scores=outcome.scores, learner=learner, features=outcome.features,
        held=outcome.held, outside=plan.outside,
        losses=outcome.losses, curve=outcome.curve, probes=learner.probes,
        facts=run_facts(learner, seconds=outcome.seconds, steps=outcome.steps),
    )  # fmt: skip


def label_rows(rows: StageRows, plans: Sequence[Plan], stage: int) -> list[Rows]:
    """The rows of each run, which bear its names."""
    if not len(rows):
        return [Rows() for _ in plans]
    whole = rows.rows(
        recipe=[plan.recipe for plan in plans], label=[plan.label for plan in plans],
        seed=[plan.run.seed for plan in plans], order=[plan.order for plan in plans], stage=stage,
    )  # fmt: skip
    return whole.parts(len(rows))
