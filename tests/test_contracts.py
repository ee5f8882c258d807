"""Everything public keeps the contract."""

from __future__ import annotations

import inspect
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engram import methods
from engram.checks import (
    METHOD_CHECKS,
    POLICY_CHECKS,
    CheckFinding,
    CheckReport,
    check,
    leakage_rules,
    learning_rules,
)
from engram.checks.check_report import check_name, run_check
from engram.checks.check_suite import make_default
from engram.checks.form_rules import check_frozen_dataclass_with_defaults
from engram.checks.toy_runs import share_runs
from engram.errors import AccessError, BadArgument
from engram.memory import Herding, Memory, policies
from engram.methods.method import VERBS, Method


@pytest.fixture(scope="module")
def shared_runs():
    """The checks of one method follow each other, and share their toy runs."""
    with ExitStack() as stack:
        last = [""]

        def share(name: str) -> None:
            if name != last[0]:
                stack.close()
                stack.enter_context(share_runs())
                last[0] = name

        yield share


@pytest.mark.parametrize("rule", METHOD_CHECKS, ids=check_name)
@pytest.mark.parametrize("name", methods.__all__)
def test_method(name, rule, shared_runs):
    shared_runs(name)
    found = run_check(rule, make_default(getattr(methods, name)))
    assert found.passed, found.message


# What labels that come later must not change, for variants beside the defaults.
REFINED = [
    learning_rules.check_refined_labels_in_lockstep,
    learning_rules.check_stored_labels_stay_incomplete,
    leakage_rules.check_labels_out_of_sight_do_not_matter,
]


@pytest.mark.parametrize("rule", REFINED, ids=check_name)
@pytest.mark.parametrize(
    "method",
    [
        methods.LUCIR(variant="no_margin"),
        methods.LUCIR(variant="distil"),
        methods.LUCIR(variant="distil_no_margin"),
        methods.BiC(variant="sigmoid"),
        methods.BiC(variant="distil"),
    ],
    ids=lambda method: f"{type(method).__name__}-{method.variant}",
)
def test_variants_on_labels_that_are_refined(method, rule):
    found = run_check(rule, method)
    assert found.passed, found.message
    assert "does not apply" not in found.message


@pytest.mark.parametrize("rule", POLICY_CHECKS, ids=check_name)
@pytest.mark.parametrize("name", policies())
def test_policy(name, rule):
    found = run_check(rule, name)
    assert found.passed, found.message


def test_every_check_has_one_line():
    for rule in (*METHOD_CHECKS, *POLICY_CHECKS):
        assert rule.__doc__
        assert "\n" not in rule.__doc__.strip()


class TestTargets:
    def test_a_class_and_a_memory(self):
        reports = [check(Herding), check(Memory(total=9, policy="herding"))]
        assert all(report.ok for report in reports)
        assert {len(report) for report in reports} == {len(POLICY_CHECKS)}

    def test_a_file_of_ones_own(self, tmp_path, monkeypatch):
        text = (
            "from dataclasses import dataclass\nfrom engram import Method\n\n"
            "@dataclass(frozen=True, kw_only=True)\nclass Mine(Method):\n"
            "    def loss(self, net, batch, state):\n"
            "        scale = net.task(batch).item()\n"
            '        return {"task": net.task(batch)}\n'
        )
        (tmp_path / "mine_on_trial.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        try:
            report = check("mine_on_trial:Mine")
        finally:
            sys.modules.pop("mine_on_trial", None)
        broken = {one.check: one.message for one in report.failed}
        said = broken["maps without host decisions"]
        assert "mine_on_trial.py:7: scale = net.task(batch).item()" in said
        assert "it reads a number out of a tensor" in said
        assert "recipe round trip" not in broken

    def test_a_field_without_default(self):
        @dataclass(frozen=True)
        class Bare(Method):
            size: int

        report = check(Bare)
        assert [one.check for one in report.failed] == ["frozen dataclass with defaults"]
        assert "give every field a default" in report.failed[0].message

    def test_a_field_that_can_be_changed(self):
        @dataclass(frozen=True)
        class Listed(Method):
            sizes: list[int] = field(default_factory=list)

        said = run_check(check_frozen_dataclass_with_defaults, Listed()).message
        assert said.startswith("sizes can be changed")

    def test_unknown_names_are_refused(self):
        with pytest.raises(BadArgument, match="did you mean 'Finetune'"):
            check("Finetun")
        with pytest.raises(BadArgument, match="a method, a policy"):
            check(3)


class TestReport:
    def test_shows_what_to_do(self):
        report = CheckReport(
            "X", [CheckFinding("a", True, "does not apply: no"), CheckFinding("b", False, "do")]
        )
        assert str(report).splitlines() == [
            "X: 1 of 2 checks failed", "  ok    a (does not apply: no)", "  FAIL  b", "        do",
        ]  # fmt: skip
        assert not report.ok
        assert not report.passed

    def test_what_a_check_raises_is_a_finding(self):
        def check_nothing(_target: object) -> None:
            raise AccessError("task 1: row 3 is a test row")

        found = run_check(check_nothing, Method())
        assert not found.passed
        assert "read the task's own rows" in found.message
        assert "row 3 is a test row" in found.message


# -- methods that break one rule each --------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Dice(Method):
    def loss(self, net, batch, state):
        return {"task": net.task(batch) * (1 + 0.1 * torch.rand(()))}


@dataclass(frozen=True, kw_only=True)
class NumpyDice(Method):
    def loss(self, net, batch, state):
        return {"task": net.task(batch) * np.random.random()}  # noqa: NPY002


@dataclass(frozen=True, kw_only=True)
class Scribble(Method):
    def loss(self, net, batch, state):
        batch.w.mul_(0.5)
        return {"task": net.task(batch)}


@dataclass(frozen=True, kw_only=True)
class Unweighted(Method):
    def loss(self, net, batch, state):
        return {"task": net.task(batch._replace(w=torch.ones_like(batch.w)))}


@dataclass(frozen=True, kw_only=True)
class Unpadded(Method):
    """Forgets to hand the row weights to the network."""

    def loss(self, net, batch, state):
        logits = net(batch.x).logits
        return {"task": net.networks.objective(logits, batch)}


@dataclass(frozen=True, kw_only=True)
class Decides(Method):
    def gradient(self, grad, batch, state):
        found = grad(batch)
        return found if bool(found.sum() > 0) else 2 * found


@dataclass(frozen=True, kw_only=True)
class Selects(Method):
    def loss(self, net, batch, state):
        return {"task": net.task(batch), "extra": 0 * batch.x[batch.w > 0].sum()}


@dataclass(frozen=True, kw_only=True)
class Hoards(Method):
    """Keeps what it needs on itself, so a resumed run has lost it."""

    kept: dict[int, Tensor] = field(default_factory=dict, compare=False, hash=False)

    def loss(self, net, batch, state):
        terms = {"task": net.task(batch)}
        if self.kept:
            terms["pull"] = 0.1 * (net.vector - self.kept[0]).square().sum()
        return terms

    def start(self, learner, task):
        if learner.stage == 0:
            self.kept.clear()

    def finish(self, learner, task):
        self.kept[0] = learner.vector.clone()


@dataclass(frozen=True, kw_only=True)
class Grows(Method):
    def finish(self, learner, task):
        learner.state = {**learner.state, str(learner.stage): learner.vector}


@dataclass(frozen=True, kw_only=True)
class Numbers(Method):
    def finish(self, learner, task):
        learner.state = {"count": 3}


@dataclass(frozen=True, kw_only=True)
class Hasty(Method):
    """Takes for granted that a period ends for all runs at once."""

    def start(self, learner, task):
        learner.state = {"ends": torch.zeros(())}

    def step(self, update, state):
        return state if update.every(30) is None else {"ends": state["ends"] + 1}


@dataclass(frozen=True, kw_only=True)
class Mixes(Method):
    def answer(self, net, x, state, stage):
        output = net(x)
        return output._replace(logits=output.logits - output.logits.mean(0))


@dataclass(frozen=True, kw_only=True)
class Sleeps(Method):
    def loss(self, net, batch, state):
        return {"task": 0 * net.task(batch)}


@dataclass(frozen=True, kw_only=True)
class NoOp(Method):
    strength: float = 1.0

    def loss(self, net, batch, state):
        return {"task": net.task(batch), "penalty": self.strength * 0 * net.vector.sum()}


@dataclass(frozen=True, kw_only=True)
class Divides(Method):
    """Divides by the number of classes that are not new."""

    def loss(self, net, batch, state):
        closed = batch.opened.numel() - batch.seen.sum()
        return {"task": net.task(batch) * (closed / closed)}


BROKEN = {
    Dice: "loss is pure",
    NumpyDice: "loss is pure",
    Scribble: "loss is pure",
    Unweighted: "lockstep is the loop",
    Unpadded: "lockstep with batch norm",
    Decides: "maps without host decisions",
    Selects: "maps without host decisions",
    Hoards: "resume is uninterrupted",
    Grows: "state is a tree of tensors",
    Numbers: "state is a tree of tensors",
    Hasty: "step waits for each run",
    Mixes: "scores row by row",
    Sleeps: "beats chance",
    NoOp: "it does something",
    Divides: "one class first",
}


@pytest.mark.parametrize(("kind", "rule"), BROKEN.items(), ids=[k.__name__ for k in BROKEN])
def test_a_broken_rule_is_found(kind, rule):
    (one,) = [r for r in METHOD_CHECKS if check_name(r) == rule]
    found = run_check(one, kind())
    assert not found.passed
    assert len(found.message) > 20


def test_a_policy_with_luck_is_found():
    def lucky(learner, rows, column, count):
        return torch.randperm(len(rows))

    report = check(lucky)
    assert "only the seed decides" in {one.check for one in report.failed}


def test_a_policy_that_ranks_by_length_is_found():
    def backwards(learner, rows, column, count):
        return torch.arange(count).flip(0)

    failed = {one.check for one in check(backwards).failed}
    assert "prefix of a ranking is a ranking" in failed


def test_the_page_on_the_contract_lists_every_check():
    page = (Path(__file__).parents[1] / "docs" / "contract.md").read_text(encoding="utf-8")
    for rule in (*METHOD_CHECKS, *POLICY_CHECKS):
        assert f"| {check_name(rule)} | {(rule.__doc__ or '').strip()} |" in page


# -- verbs and their users -------------------------------------------------------------------------
DECLARATIONS = (
    "memory", "reads", "head", "decides", "for_label_sets", "task_identity", "grows",
    "needed_model",
)  # fmt: skip
SEAMS = {
    "Phase.before": "before=", "Phase.needs": "needs=", "learner.set_aside": ".set_aside(",
    "ReplaySpec.rewrites": "rewrites=True",
}  # fmt: skip
# What fewer than two built-in methods use, and why it is there all the same.
EXCEPTIONS = {
    "learner.set_aside": "any second stage that is fitted on rows which training has not seen",
    "ReplaySpec.rewrites": "any output or score of a stored row that has to follow the network",
}
MOST_LISTED = 6


def find_users(name):
    """The built-in methods with a verb, declaration or seam of their own or of a base."""
    kinds = {one: getattr(methods, one) for one in methods.__all__ if one not in ("Join", "Method")}
    found = []
    for one, kind in kinds.items():
        bases = kind.__mro__[: kind.__mro__.index(Method)]
        if name in SEAMS:
            text = "".join(inspect.getsource(base) for base in bases)
            used = SEAMS[name] in text
        else:
            used = any(name in {*vars(base), *inspect.get_annotations(base)} for base in bases)
        found += [one] if used else []
    return sorted(found)


def describe_users(name):
    users = find_users(name)
    named = f": {', '.join(users)}" if 0 < len(users) <= MOST_LISTED else ""
    why = f"; {EXCEPTIONS[name]}" if name in EXCEPTIONS else ""
    return f"| `{name}` | {len(users)}{named}{why} |"


@pytest.mark.parametrize("name", [*VERBS, *DECLARATIONS, *SEAMS])
def test_a_verb_has_two_users_or_a_reason(name):
    assert (len(find_users(name)) >= 2) != (name in EXCEPTIONS)


def test_every_declaration_is_listed():
    own = {n for n, value in vars(Method).items() if isinstance(value, property) and n[0] != "_"}
    assert {*own, "memory"} == {*DECLARATIONS}


def test_the_page_on_the_contract_lists_the_users_of_every_verb():
    page = (Path(__file__).parents[1] / "docs" / "contract.md").read_text(encoding="utf-8")
    for name in (*VERBS, *DECLARATIONS, *SEAMS):
        assert describe_users(name) in page
