"""Checks of the contracts: one function per rule for methods, policies, probes, detectors and
networks.

Not here: the contracts (engram.methods, memory, probes, novelty, models). Begin with
check_suite.check, then form_rules; toy_runs has the data and networks that checks train.

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
