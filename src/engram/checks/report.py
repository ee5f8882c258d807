"""What a check found, in words that say what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

NAMED = 12  # checks not run that are named one by one


class Broken(Exception):
    """A rule of the contract is broken; the message says which and what to do."""


class DoesNotApply(Exception):
    """A check has nothing to look at; the message says why."""


class Finding(NamedTuple):
    """What one check found.

    A check that could only repeat what another one found is not run: its message says which one.
    """

    check: str
    passed: bool
    message: str = ""
    ran: bool = True
    raised: bool = False  # the target's own code raised an error


class Report(list[Finding]):
    """The findings of all checks on one target.

    Examples
    --------
    >>> report = Report("Mine", [Finding("form", True), Finding("resume", False, "save it")])
    >>> report.ok, [finding.check for finding in report.failed]
    (False, ['resume'])
    >>> print(report)
    Mine: 1 of 2 checks failed
      ok    form
      FAIL  resume
            save it
    >>> report.append(Finding("lockstep", False, "resume", ran=False))
    >>> print(report)
    Mine: 1 of 3 checks failed, 1 not run
      ok    form
      FAIL  resume
            save it
      not run, because "resume" failed: lockstep
    """

    def __init__(self, target: str, findings: Iterable[Finding] = ()) -> None:
        super().__init__(findings)
        self.target = target

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def passed(self) -> bool:
        """The same as `ok`."""
        return self.ok

    @property
    def failed(self) -> list[Finding]:
        """The findings that broke a rule."""
        return [finding for finding in self if finding.ran and not finding.passed]

    @property
    def not_run(self) -> list[Finding]:
        """The checks that another one's failure made pointless."""
        return [finding for finding in self if not finding.ran]

    def __str__(self) -> str:
        total, wrong, idle = len(self), len(self.failed), len(self.not_run)
        verdict = f"{wrong} of {total} checks failed" if wrong else f"all {total} checks passed"
        lines = [f"{self.target}: {verdict}" + (f", {idle} not run" if idle else "")]
        for one in self:
            if not one.ran:
                continue
            aside = f" ({one.message})" if one.passed and one.message else ""
            lines.append(f"  {'ok  ' if one.passed else 'FAIL'}  {one.check}{aside}")
            if not one.passed:
                lines += [f"        {line}" for line in one.message.splitlines()]
        for cause in dict.fromkeys(one.message for one in self.not_run):
            names = [one.check for one in self.not_run if one.message == cause]
            shown = ", ".join(names) if len(names) <= NAMED else f"{len(names)} other checks"
            text = f'not run, because "{cause}" failed: {shown}'
            lines += textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)


def require(fact: bool, message: str) -> None:
    """Raise `Broken` unless something holds."""
    if not fact:
        raise Broken(message)


def name_of(check: Callable[..., None]) -> str:
    """``check_loss_is_pure`` is shown as "loss is pure"."""
    return check.__name__.removeprefix("check_").replace("_", " ")


def finding(check: Callable[..., None], *args: Any) -> Finding:
    """Call a check; whatever it raises is a finding."""
    name = name_of(check)
    try:
        check(*args)
    except DoesNotApply as reason:
        return Finding(name, True, f"does not apply: {reason}")
    except Broken as fault:
        return Finding(name, False, str(fault))
    except Exception as error:  # a user's own code may raise anything
        from engram.checks.explain import explain, line_of

        target = args[0] if args else None
        return Finding(name, False, explain(error, target), raised=bool(line_of(error, target)))
    return Finding(name, True)


def findings(
    checks: Sequence[Callable[..., None]], target: Any, needs: Callable[[Any], Iterable[Any]]
) -> list[Finding]:
    """Call checks one after the other, except those that need one that failed.

    Where the target's own code raises the same error again, the first check alone names it.
    """
    found: list[Finding] = []
    broken: dict[str, str] = {}  # check that failed or was not run -> check that names the fault
    errors: dict[str, str] = {}  # message of an error -> check that names it
    for check in checks:
        name = name_of(check)
        cause = next((broken[n] for n in map(name_of, needs(check)) if n in broken), "")
        if not cause:
            one = finding(check, target)
            cause = errors.get(one.message, "") if one.raised else ""
            if one.raised:
                errors.setdefault(one.message, name)
            if not one.passed:
                broken[name] = cause or name
        else:
            broken[name] = cause
        found.append(Finding(name, False, cause, ran=False) if cause else one)
    return found
