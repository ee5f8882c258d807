"""Recipes are read by libyaml, and mean what they mean to the loader written in Python."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import BadArgument
from engram.io import MAX_YAML_LEVELS, _make_loader, dump_yaml, parse_yaml

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
WORDS = st.text("ab: -#'\"\n\t[]{},&*!|>%@`01e.~é世\U0001f600", max_size=30)
VALUES = st.recursive(
    LEAVES | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read(value):
    assert parse_yaml("it", dump_yaml(value)) == value


def outcome(parse, text):
    try:
        return repr(parse(text))
    except (BadArgument, yaml.YAMLError, ValueError):
        return "refused"


@given(st.text("ab: -#'\"\n\t[]{},&*!|>%@`01e.~<?=\\xu", max_size=30))
def test_both_loaders_agree(text):
    slow = outcome(lambda text: yaml.load(text, Loader=_make_loader("SafeLoader")), text)
    assert outcome(lambda text: parse_yaml("it", text), text) == slow


@pytest.mark.parametrize("text", ["a: [1, 2", "a: 1\na: 2", "a:\t1", "|#"])
def test_complaints_are_those_of_the_loader_written_in_python(text, monkeypatch):
    with pytest.raises(BadArgument) as fast:
        parse_yaml("it", text)
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    with pytest.raises(BadArgument) as slow:
        parse_yaml("it", text)
    assert str(fast.value) == str(slow.value)


@pytest.mark.parametrize("opening", ["[", "- ", "{a: "])
def test_deep_nesting_is_refused(opening):
    with pytest.raises(BadArgument, match="nested too deeply"):
        parse_yaml("it", opening * 20 * MAX_YAML_LEVELS)
    closing = {"[": "]", "- ": "", "{a: ": "}"}[opening]
    outcome(lambda text: parse_yaml("it", text), opening * 900 + "1" + closing * 900)
