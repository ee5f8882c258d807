"""`CheckReport`: findings of checks, and explanations of errors with file, line and hint."""

from __future__ import annotations

import inspect
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from engram.errors import AccessError, EngramError

MOST_NAMED = 12  # names listed of checks that were not run


class BrokenRule(Exception):
    """Raised when a rule of the contract is broken; the message says which and what to do."""


class DoesNotApply(Exception):
    """Raised when a check does not apply; the message says why."""


class CheckFinding(NamedTuple):
    """The finding of one check.

    A check that could only repeat the finding of another is not run; its message names the other.
    """

    check: str
    passed: bool
    message: str = ""
    ran: bool = True
    raised: bool = False  # the target's own code raised an error


class CheckReport(list[CheckFinding]):
    """The findings of all checks on one target.

    Examples
    --------
    >>> report = CheckReport(
    ...     "Mine", [CheckFinding("form", True), CheckFinding("resume", False, "save it")]
    ... )
    >>> report.ok, [run_check.check for run_check in report.failed]
    (False, ['resume'])
    >>> print(report)
    Mine: 1 of 2 checks failed
      ok    form
      FAIL  resume
            save it
    >>> report.append(CheckFinding("lockstep", False, "resume", ran=False))
    >>> print(report)
    Mine: 1 of 3 checks failed, 1 not run
      ok    form
      FAIL  resume
            save it
      not run, because "resume" failed: lockstep
    """

    def __init__(self, target: str, findings: Iterable[CheckFinding] = ()) -> None:
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
    def failed(self) -> list[CheckFinding]:
        """The findings that broke a rule."""
        return [finding for finding in self if finding.ran and not finding.passed]

    @property
    def not_run(self) -> list[CheckFinding]:
        """The checks that were not run because another one failed."""
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
            shown = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} other checks"
            text = f'not run, because "{cause}" failed: {shown}'
            lines += textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)


def require(fact: bool, message: str) -> None:
    """Raise `BrokenRule` unless a fact holds."""
    if not fact:
        raise BrokenRule(message)


def check_name(check: Callable[..., None]) -> str:
    """Return the shown name of a check: "loss is pure" for ``check_loss_is_pure``."""
    return check.__name__.removeprefix("check_").replace("_", " ")


def run_check(check: Callable[..., None], *args: Any) -> CheckFinding:
    """Run a check; whatever it raises becomes a finding."""
    name = check_name(check)
    try:
        check(*args)
    except DoesNotApply as reason:
        return CheckFinding(name, True, f"does not apply: {reason}")
    except BrokenRule as fault:
        return CheckFinding(name, False, str(fault))
    except Exception as error:  # a user's own code may raise anything
        target = args[0] if args else None
        return CheckFinding(
            name, False, explain(error, target), raised=bool(find_line(error, target))
        )
    return CheckFinding(name, True)


def run_checks(
    checks: Sequence[Callable[..., None]], target: Any, needs: Callable[[Any], Iterable[Any]]
) -> list[CheckFinding]:
    """Run checks in order, except those that need one that failed.

    If the target's code raises the same error again, only the first check reports it.
    """
    found: list[CheckFinding] = []
    broken: dict[str, str] = {}  # check that failed or was not run -> check that names the fault
    errors: dict[str, str] = {}  # message of an error -> check that names it
    for check in checks:
        name = check_name(check)
        cause = next((broken[n] for n in map(check_name, needs(check)) if n in broken), "")
        if not cause:
            one = run_check(check, target)
            cause = errors.get(one.message, "") if one.raised else ""
            if one.raised:
                errors.setdefault(one.message, name)
            if not one.passed:
                broken[name] = cause or name
        else:
            broken[name] = cause
        found.append(CheckFinding(name, False, cause, ran=False) if cause else one)
    return found


# Explanations of exceptions.


CONTRACTS = (
    "builtins",
    "engram.methods.method",
    "engram.novelty.detector",
    "engram.novelty.detector",
    "engram.probes.probe",
    "torch.nn.modules.module",
)
# Messages of torch and hints. Only errors raised by torch are looked up, since a user's error
# may contain any word.
HINTS = (
    (("data-dependent control flow", "GuardOnDataDependent", "Could not guard on"),
     "it decides by a tensor's value: use torch.where and weights in place of `if`"),
    ((".item()", "DataDependentOutput", "unbacked"),
     "it reads a number out of a tensor: keep it a tensor"),
    (("dynamic shape", "nonzero", "masked_select"),
     "its shape depends on values: multiply by weights in place of boolean indexing"),
    (("called random operation",),
     "it draws from torch's generator: draw with engram.keys and batch.key, and in a network let "
     "nn.Dropout do it"),
    (("one_hot",),
     "F.one_hot does not map: compare with torch.arange"),
    (("same dtype", "expected scalar type", "must have the same dtype", "Found dtype"),
     "two precisions meet: give new tensors the dtype of batch.x (engram.keys draws float64, "
     "torch makes float32)"),
)  # fmt: skip


def own_files(target: Any) -> set[str]:
    """Return the source files of a target's classes, without those of the contract."""
    target = getattr(target, "maker", target)  # the class of a network candidate
    kinds = (target if isinstance(target, type) else type(target)).__mro__
    files = set()
    for kind in kinds:
        if kind.__module__ not in CONTRACTS:
            try:
                files.add(inspect.getfile(kind))
            except (TypeError, OSError):  # made at run time, without a file
                continue
    return files


def find_line(error: BaseException, target: Any) -> str:
    """Return ``file.py:12: code`` of the innermost frame in the target's files, or ""."""
    files = own_files(target)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}: {last.line}"


def find_place(kind: type, name: str) -> str:
    """Return ``file.py:12: `` of a function in its class, or ""."""
    found = inspect.unwrap(getattr(kind, name, None) or kind)
    try:
        file, line = inspect.getfile(found), inspect.getsourcelines(found)[1]
    except (TypeError, OSError):  # made at run time
        return ""
    return f"{file.rsplit('/', 1)[-1]}:{line}: "


HOST_READS = (".item(", ".tolist(", ".numpy(", "float(", "int(")


def find_hint(error: BaseException, line: str = "") -> str:
    """Return a hint for an error raised through a line, or ""."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AccessError) and "row" in text:
        return "read the task's own rows, or what the memory holds"
    if isinstance(error, EngramError) or not _is_from_torch(error):
        return ""
    reads = any(sign in line for sign in HOST_READS) and "if " not in line
    if reads and any(sign in text for sign in HINTS[0][0]):
        return HINTS[1][1]  # torch has one message for both
    return next((words for signs, words in HINTS if any(sign in text for sign in signs)), "")


def _is_from_torch(error: BaseException) -> bool:
    """Return whether torch raised an error, in its Python code or in C++."""
    frames = traceback.extract_tb(error.__traceback__)
    if type(error).__module__.startswith("torch") or (frames and "/torch/" in frames[-1].filename):
        return True
    raised = bool(frames) and (frames[-1].line or "").lstrip().startswith("raise")
    return isinstance(error, RuntimeError | NotImplementedError) and not raised


def explain(error: BaseException, target: Any) -> str:
    """Explain an error: what, where, and a hint."""
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    line = find_line(error, target)
    parts = (line, find_hint(error, line), first)
    return "\n".join(part for part in parts if part)
