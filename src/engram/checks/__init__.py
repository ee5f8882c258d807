"""The contract, executable: every rule a method, policy, probe or network must keep is one check.

>>> from engram.checks import check
>>> print(check("herding"))
herding: all 7 checks passed
...
"""

from __future__ import annotations

from engram.checks.check_report import Broken, DoesNotApply, Finding, Report
from engram.checks.suite import METHOD_CHECKS, POLICY_CHECKS, check

__all__ = [
    "METHOD_CHECKS",
    "POLICY_CHECKS",
    "Broken",
    "DoesNotApply",
    "Finding",
    "Report",
    "check",
]
