"""The contract, executable: every rule that a method, policy, probe, detector or network must
keep is one check.

The contracts themselves are in `methods`, `memory`, `probes`, `novelty` and `models`; tests of the
library are in `tests`. Begin with `check_suite` (`check`), then `form_rules`; `toy_runs` has what
checks train. (keep the example)

>>> from engram.checks import check
>>> print(check("herding"))
herding: all 7 checks passed
...
"""

from __future__ import annotations

from engram.checks.check_report import BrokenRule, CheckFinding, CheckReport, DoesNotApply
from engram.checks.check_suite import METHOD_CHECKS, POLICY_CHECKS, check

__all__ = [
    "METHOD_CHECKS",
    "POLICY_CHECKS",
    "BrokenRule",
    "DoesNotApply",
    "CheckFinding",
    "CheckReport",
    "check",
]
