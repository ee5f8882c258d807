"""What README and guide say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import engram as package
from engram.checks import METHOD_CHECKS
from engram.checks.check_report import run_check
from engram.experiments.build_methods import load_user_class
from tests.cli.conftest import SMALL

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(page: str, language: str) -> str:
    """The first code block of a language in a page of the guide."""
    text = (ROOT / "docs" / "guide" / page).read_text(encoding="utf-8")
    return re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL).group(1)


def test_the_table_of_methods_is_complete():
    table = README.split("| method | what it does |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \| \S", table, re.MULTILINE)
    assert sorted(named) == sorted(package.methods.__all__), (
        "renew the table of methods in README.md with: engram list methods --markdown"
    )


def test_the_quick_start_shows_true_numbers():
    stream = package.class_incremental(package.load("digits"), classes_per_task=2)
    result = package.run(stream, method=["Finetune", "ER"], epochs=5, seeds=3)
    for label, row in result.summary().iterrows():
        for line in re.findall(rf"^ *{label} .*±.*$", README, re.MULTILINE):
            accuracy, *more = (float(v) for v in re.findall(r"(-?[\d.]+) ±", line))
            # in Python, average incremental accuracy stands between them
            forgetting = more[1 if len(more) > 1 else 0]
            # Other processors round otherwise, and small differences grow in training.
            assert accuracy == pytest.approx(row["average_accuracy"], abs=0.02)
            assert forgetting == pytest.approx(row["forgetting"], abs=0.02)
    assert len(re.findall(r"^ *(Finetune|ER) .*±.*$", README, re.MULTILINE)) == 4


def test_the_method_of_the_guide_keeps_the_rules_and_runs(engram):
    Path("my_method.py").write_text(block("own-method.md", "python"))
    method = load_user_class("my_method.py:Anchor", package.Method)()
    for rule in METHOD_CHECKS[:11]:  # of all: what `engram new` writes, which does the same
        found = run_check(rule, method)
        assert found.passed, found.message
    engram("run", *SMALL, "-m", "my_method:Anchor", "-s", "strength=0.1", "-o", "out")
    losses = package.read("out").frame()["metric"].astype(str)
    assert "loss/pull" in set(losses)


def test_the_recipe_of_the_guide_is_one():
    recipe = package.Recipe.of(yaml.safe_load(block("recipes.md", "yaml")))
    assert recipe.method.memory.policy == "herding"
    assert recipe.seeds == (0, 1, 2)
