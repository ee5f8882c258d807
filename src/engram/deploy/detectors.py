"""Novelty detectors of a learner: fitted after every task, as in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from engram.errors import bad
from engram.learner.learner import Learner
from engram.learner.tree import pick, stack
from engram.methods.base import Method
from engram.novelty.base import Detector
from engram.novelty.facts import facts_of
from engram.probes.run_stage import RunStage
from engram.probes.view import StageView
from engram.recipes.probing import build_detectors, keyed


def keyed_detectors(specs: Any) -> dict[str, Detector]:
    """Detectors by the keys under which their state is kept, as in a run."""
    found = keyed(build_detectors({"detectors": specs}))
    for detector in found.values():
        if detector.outside:
            expected = "detectors that need no outside set"
            raise bad("detectors", expected, detector.name)
    return cast(dict[str, Detector], found)


def fitted(
    detectors: Mapping[str, Detector], learner: Learner, method: Method
) -> dict[str, Any]:  # fmt: skip
    """The state of every detector after the task that a learner has just learnt.

    A detector that is fitted, but has not seen the earlier tasks, has none.
    """
    stage = RunStage(
        stage=learner.stage, stream=learner.stream, method=method, seed=learner.seed,
        items=cast(Any, None), scores=np.zeros((0, len(learner.opened))), learner=learner,
        probes=learner.probes,
    )  # fmt: skip
    view, found = StageView([stage]), {}
    for key, detector in detectors.items():
        before = learner.probes.get(key)
        if not learner.stage:
            detector.refuse(facts_of(learner))
        if learner.stage and before is None and detector.fits:
            continue
        state = detector.fitted(view.of(detector.needs, stack([before or {}])))
        found[key] = pick(state, 0)
    return found


def chosen(detectors: Mapping[str, Detector], states: Mapping[str, Any], spec: Any) -> str:
    """The key of the detector that is meant; without a word, of the first."""
    if spec is None:
        if not detectors:
            raise bad("detector", "the name of a novelty detector, such as 'Energy'", None)
        key = next(iter(detectors))
    else:
        ((key, detector),) = keyed_detectors([spec]).items()
        if key not in detectors and detector.fits:
            known = sorted(one.name for one in detectors.values())
            expected = (
                f"a detector in use while tasks were learnt ({', '.join(known) or 'none'}) "
                "or one that needs no fitting"
            )
            raise bad("detector", expected, detector.name)
        if key not in detectors:
            return key
    if detectors[key].fits and key not in states:
        expected = "a detector that has seen all tasks"
        raise bad("detector", expected, f"{detectors[key].name}, which was named later")
    return key
