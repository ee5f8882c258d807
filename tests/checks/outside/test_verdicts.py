"""Methods written outside the package, by its public names alone, and what the suite says of them.

Seven are known methods, some in a simpler form, and one is a cheat. A method that
keeps the contract passes; where one fails, the suite or the engine is wrong.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import engram
from engram.checks import CheckReport, check
from engram.checks.learning_rules import LEARNS
from engram.checks.toy_runs import accuracies, make_runs, make_streams, train_runs
from engram.methods import Finetune
from tests.checks.outside.bic import BiC
from tests.checks.outside.derpp import DERpp
from tests.checks.outside.er_ace import ERACE
from tests.checks.outside.gdumb import GDumb
from tests.checks.outside.generative import GenerativeReplay
from tests.checks.outside.hoarder import Hoarder
from tests.checks.outside.lucir import LUCIR
from tests.checks.outside.slda import SLDA

MEMORY = "exemplars are trained on"
KNOWN = "known classes are learnt"
# which of these two have nothing to look at
IDLE = {
    DERpp: set(),
    ERACE: set(),
    GDumb: set(),
    SLDA: {MEMORY, KNOWN},  # keeps no rows; refuses streams whose classes come back
    GenerativeReplay: {MEMORY},
    LUCIR: set(),
    BiC: {KNOWN},
}


def idle(report: CheckReport) -> set[str]:
    return {one.check for one in report if one.passed and "does not apply" in one.message}


@pytest.mark.parametrize("kind", IDLE, ids=lambda kind: kind.__name__)
def test_an_outside_method_keeps_the_contract(kind):
    report = check(kind)
    assert report.ok, str(report)
    assert not report.not_run
    assert idle(report) & {MEMORY, KNOWN} == IDLE[kind]


def test_a_cheat_that_hoards_samples_is_caught():
    report = check(Hoarder)
    keeps, grows = report.failed
    assert keeps.check == "keeps no samples outside its memory"
    assert grows.check == "state is a tree of tensors"
    assert "learner.state/x holds 12 inputs" in keeps.message
    assert not report.not_run


@pytest.mark.parametrize("kind", IDLE, ids=lambda kind: kind.__name__)
def test_an_outside_method_forgets_less_than_finetuning(kind):
    mine, plain = (
        train_runs(make_runs(method, make_streams()[:1], training=LEARNS))
        for method in (kind(), Finetune())
    )
    last = max(mine)
    ours, theirs = accuracies(mine[last]), accuracies(plain[last])
    assert sum(ours) / 3 > sum(theirs) / 3 + 0.3


def test_outside_methods_train_through_the_front_door():
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    methods = [kind() for kind in IDLE]
    result = engram.run(stream, method=methods, model="mlp", seeds=2, epochs=1)
    assert len(result.runs) == 2 * len(methods)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parent.glob("[!t]*.py")), ids=lambda path: path.stem
)
def test_only_public_names_are_imported(path):
    public = {*engram.__all__, "keys", "losses"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "engram":
            if node.module == "engram":
                assert {alias.name for alias in node.names} <= public
            else:
                assert node.module in ("engram.keys", "engram.losses")
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("engram.") for alias in node.names)
