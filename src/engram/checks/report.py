"""What a check found, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Broken(Exception):
    """A rule of the contract is broken; the message says which and what to do."""


class DoesNotApply(Exception):
    """A check has nothing to look at; the message says why."""


class Finding(NamedTuple):
    """What one check found."""

    check: str
    passed: bool
    message: str = ""


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
        return [finding for finding in self if not finding.passed]

    def __str__(self) -> str:
        total, wrong = len(self), len(self.failed)
        verdict = f"{wrong} of {total} checks failed" if wrong else f"all {total} checks passed"
        lines = [f"{self.target}: {verdict}"]
        for check, passed, message in self:
            aside = f" ({message})" if passed and message else ""
            lines.append(f"  {'ok  ' if passed else 'FAIL'}  {check}{aside}")
            if not passed:
                lines += [f"        {line}" for line in message.splitlines()]
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
        from engram.checks.blame import blame

        return Finding(name, False, blame(error, args[0] if args else None))
    return Finding(name, True)
