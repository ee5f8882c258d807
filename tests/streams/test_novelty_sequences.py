"""The sequences of the novelty-detection benchmark."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import engram
from engram.data.dataset import Data
from engram.streams.novelty_sequences import EIGHT, eight_task, tinyimagenet_seq
from tests.refusals import refuses

WNIDS = [f"n{i:08d}" for i in range(200)]


def tiny(names: list[str] = WNIDS) -> Data:
    x = torch.zeros(len(names) * 12, 1)
    labels = names * 10
    return Data.from_arrays(x[: len(labels)], labels, test=(x[: 2 * len(names)], names * 2))


def test_ten_tasks_of_twenty_classes_and_a_fifth_for_validation():
    stream = tinyimagenet_seq(tiny())
    assert [len(task.new) for task in stream] == [20] * 10
    assert sorted(stream.order) == list(range(200))
    assert stream.order != tuple(range(200))
    for task in stream:
        assert (len(task.train), len(task.valid), len(task.test)) == (160, 40, 40)
        counts = stream.data.labels[task.valid].bincount(minlength=200)
        assert counts[list(task.new)].tolist() == [2] * 20
    assert stream.head == "multi"
    assert tinyimagenet_seq(tiny(), shared_head=True).head == "single"
    assert tinyimagenet_seq(tiny(), seed=1).order != stream.order
    assert tinyimagenet_seq(tiny()).fingerprint() == stream.fingerprint()


def test_other_data_and_options_are_refused():
    for data in (tiny(WNIDS[:199]), tiny([f"class {i}" for i in range(200)])):
        with pytest.raises(engram.BadArgument, match="200 classes of Tiny ImageNet, by WordNet"):
            tinyimagenet_seq(data)
    for options in ({"shared_head": "yes"}, {"seed": -1}, {"valid": 1.0}):
        with pytest.raises(engram.BadArgument, match=next(iter(options))):
            tinyimagenet_seq(tiny(), **options)


def test_recipes_tell_heads_apart():
    section = {"data": "tiny_imagenet", "kind": "tinyimagenet_seq"}
    one, other = (
        engram.Recipe.of({"stream": {**section, "shared_head": shared}, "method": "ER"})
        for shared in (False, True)
    )
    assert one.key != other.key
    assert engram.Recipe.of(other.plain()).key == other.key


def several(name: str, domains: tuple[str, ...]) -> Data:
    """Two classes of each domain, domains in an order of their own."""
    count = 2 * len(domains)
    labels = [f"{domains[c // 2]}/{c % 2}" for c in range(count)] * 10
    domain = torch.arange(count).div(2, rounding_mode="floor").repeat(10)
    return Data.from_arrays(
        torch.zeros(len(labels), 1), labels, name=name, attributes={"domain": domain},
        attribute_names={"domain": domains},
    )  # fmt: skip


def test_the_eight_sets_come_in_the_order_of_the_paper():
    stream = eight_task(several("eight_task", EIGHT[::-1]))
    assert stream.name == "eight_task"
    assert [task.domain for task in stream] == list(EIGHT)
    for task, name in zip(stream, EIGHT, strict=True):
        assert {stream.data.classes[c].split("/")[0] for c in task.new} == {name}
        assert (len(task.train), len(task.valid), len(task.test)) == (14, 2, 4)
    assert stream.head == "multi"


def test_what_stands_in_says_so():
    stream = eight_task(several("multi_domain", ("cars", "flowers", "letters")))
    assert stream.name == "eight_task (stand-in: multi_domain)"
    titles = [task.domain for task in stream]
    assert titles == [f"stand-in for {name}" for name in ("flowers", "cars", "letters")]


def test_sets_that_are_none_of_the_eight_are_refused():
    data = several("mine", ("cars", "flowers"))
    with refuses("data"):
        eight_task(tiny())
    with pytest.raises(engram.BadArgument, match=r"two or more domains .* \['boats'\]"):
        eight_task(several("mine", ("cars", "boats")))
    domain = data.attributes["domain"].clone()
    domain[0] = 1  # of a class whose other rows are of domain 0
    mixed = replace(data, attributes={"domain": domain})
    with pytest.raises(engram.BadArgument, match="that no other domain has"):
        eight_task(mixed)


def test_the_stand_in_of_the_data_folder(engram_data):
    data = engram.load("multi_domain", root=engram_data)
    stream = eight_task(data)
    kinds = ("flowers", "scenes", "birds", "cars", "letters")
    assert [task.domain for task in stream] == [f"stand-in for {kind}" for kind in kinds]
    assert sum(len(task.new) for task in stream) == data.n_classes
