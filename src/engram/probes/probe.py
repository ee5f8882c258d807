"""`Probe`, the contract of measurements after every stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from engram.errors import bad, check_choice
from engram.learner.learner import RunLearner
from engram.records.long_table import Rows

if TYPE_CHECKING:
    from engram.probes.stage_view import StageView

LEARNER_NEEDS = ("features", "networks")  # what takes the learner, or parameters that were kept
NEEDS = (*LEARNER_NEEDS, "unseen")
RESERVED_NAMES = ("loss",)  # prefixes of metrics that no probe may take


@dataclass(frozen=True)
class Probe:
    """A measurement after every stage: a frozen dataclass of options.

    Override `after_stage`. It receives all runs that trained together at once, [R, ...], and must
    treat each as if it were alone. It runs after training and cannot change it, so adding
    a probe changes no id and no other number.

    Attributes
    ----------
    needs
        ``features`` of the test items, or ``networks`` (to map over, with batches to fit on).
        Without either, a probe receives scores only, and finished runs are measured from their
        recorded predictions; with one of them, from kept parameters. ``unseen``: the test items of
        tasks to come as well as of those learnt.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Confidence(Probe):
    ...     def after_stage(self, view):
    ...         likely = view.scores.softmax(-1).amax(-1)  # [R, n]
    ...         return {"mean": (likely * view.seen).sum(1) / view.seen.sum(1)}
    >>> Confidence().name
    'confidence'
    """

    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def outside(self) -> bool:
        """Whether the probe needs an outside set (`view.outside`)."""
        return False

    def check(self, learner: RunLearner) -> None:
        """Raise if such a run cannot be measured; called before anything is trained."""

    def after_stage(self, view: StageView) -> Rows | Mapping[str, Any]:
        """Measure all runs: return rows, made by `view.rows()`, or {metric: values [R]}."""
        raise NotImplementedError(f"{type(self).__name__}.after_stage is not implemented")

    @property
    def name(self) -> str:
        """The prefix of the probe's metrics: its class, and options other than the defaults."""
        words = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()]
        for option in fields(self):
            value, default = getattr(self, option.name), option.default
            if option.default_factory is not MISSING:
                default = option.default_factory()
            if option.init and value != default:
                words.append(f"{option.name}={f'{value:g}' if isinstance(value, float) else value}")
        return " ".join(words)


def check_probe(probe: Any) -> Probe:
    """Check that an object is a well-formed probe and return it; raises if it is not."""
    if not isinstance(probe, Probe):
        raise bad("probes", "a Probe, its module:Class, or a mapping with that name", probe)
    needs: Any = probe.needs
    if not isinstance(needs, tuple):
        raise bad(f"{type(probe).__name__}.needs", "a tuple such as ('features',)", needs)
    for need in needs:
        check_choice(f"{type(probe).__name__}.needs", need, NEEDS)
    name = probe.name
    if not name or "/" in name or name in RESERVED_NAMES:
        expected = f"a name without a slash, and not {' or '.join(RESERVED_NAMES)}"
        raise bad(f"{type(probe).__name__}.name", expected, name)
    return probe
