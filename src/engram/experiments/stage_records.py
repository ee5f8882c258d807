"""Preparation of stage results for recording: names, probes, stored arrays."""

from __future__ import annotations

from collections.abc import Sequence

from engram.engine.backend import probe_numerics
from engram.experiments.plan import Plan
from engram.probes import measure, standard
from engram.probes.standard_probes import run_facts
from engram.records.probe_arrays import StoredArrays
from engram.records.stage_result import StageResult


def measure_results(results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
    """Add names and the measurements of probes to the results of runs that trained together.

    States of probes and rows read by them are noted in the learners, too.
    """
    for one, plan in zip(results, plans, strict=True):
        set_plan(one, plan)
        one.states = one.learner.probes
        one.facts = run_facts(one.learner, seconds=one.seconds, steps=one.steps)
    usual = [standard(plan.average) for plan in plans]
    with probe_numerics(plans[0].run.training.precision):  # shared by runs that train together
        measure(results, usual, [plan.probes for plan in plans])
    for one in results:
        one.learner.probes = dict(one.states)
        for kind, count in one.reads.items():
            one.learner.ledger.record(one.learner.stage, kind, count)


def set_plan(result: StageResult, plan: Plan) -> None:
    """Set the names under which a plan is recorded, what is recorded, and its outside set."""
    result.recipe, result.label, result.order = plan.recipe, plan.label, plan.order
    result.outside, result.records_unseen = plan.outside, plan.evaluate_unseen


def stored_arrays(results: Sequence[StageResult]) -> list[StoredArrays]:
    """Collect the arrays that probes store, with the names of their runs."""
    return [StoredArrays(one.key, key, own) for one in results for key, own in one.arrays.items()]
