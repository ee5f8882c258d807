"""Trees of classes: where they may come from, how deep they may be, what is refused."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engram
from engram.data.dataset import Data
from engram.streams import Stream, hierarchical, hierarchical_data
from engram.streams.class_tree import read_tree
from tests.refusals import refuses

NAMES = ("cat", "dog", "lion", "oak", "elm", "car")
DEEP = {"living": ["animal", "tree"], "animal": ["pet", "lion"], "pet": ["cat", "dog"],
        "tree": ["oak", "elm"]}  # fmt: skip
LINES = ("cat,pet", "dog,pet", "pet,animal", "lion,animal", "animal,living", "tree,living",
         "oak,tree", "elm,tree")  # fmt: skip
TASKS = [["living"], ["animal", "car"], ["pet", "tree"], ["cat", "oak"], ["dog", "elm", "lion"]]


def zoo(rows: int = 50, **options) -> Data:
    """Class after class, so that row numbers of a class run on."""
    y = [c for c in range(len(NAMES)) for _ in range(rows)]
    held = list(range(len(NAMES)))
    return Data.from_arrays(torch.zeros(len(y), 1), y, test=(torch.zeros(len(held), 1), held),
                            classes=NAMES, **options)  # fmt: skip


def written(folder, *lines: str, head: str = "child,parent"):
    path = folder / "tree.csv"
    path.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    return str(path)


def test_every_row_has_the_labels_of_its_whole_path():
    data = hierarchical_data(zoo(), hierarchy=DEEP)
    names = [name.split("/")[1] for name in data.classes]
    paths = [[names[c] for c in data.y[50 * k].tolist() if c >= 0] for k in range(6)]
    assert paths == [
        ["living", "animal", "pet", "cat"], ["living", "animal", "pet", "dog"],
        ["living", "animal", "lion"], ["living", "tree", "oak"], ["living", "tree", "elm"], ["car"],
    ]  # fmt: skip
    assert names[int(data.attributes["superclass"][0])] == "pet"


def test_rows_are_shared_out_from_the_top_down():
    stream = hierarchical(zoo(), hierarchy=DEEP, tasks=TASKS, valid=0.0, post_valid=0.0)
    cats = [[r for r in task.train.tolist() if r < 50] for task in stream]
    # of 50: living the first 20, the last 40 go on; animal 16 of these, 32 go on; pet 12, cat 25
    assert cats[0] == list(range(20))
    assert cats[1] == list(range(10, 26))
    assert cats[2] == list(range(18, 30))
    assert cats[3] == list(range(25, 50))
    assert cats[4] == []
    assert all(set(a) & set(b) for a, b in pairwise(cats[:4]))
    assert len(stream[0].train) == 5 * 20
    for row in (30, 49):
        assert [stream.data.classes[c] for c in stream.data.y[row].tolist()][-1] == "fine/cat"


def test_the_cap_counts_all_fine_classes_beneath():
    wide = hierarchical(zoo(), hierarchy=DEEP, tasks=TASKS, valid=0.0, post_valid=0.0, cap=2)
    counts = [int((task.train < 50).sum()) for task in wide]
    assert counts == [8, 10, 12, 25, 0]  # living: 2/5 of .4 * 50; animal: 2/3 of .4 * 40; pet: all


def test_all_ways_to_write_a_tree_are_one(tmp_path):
    data = zoo()
    path = written(tmp_path, *LINES)
    declared = (*LINES, "living,", "car,")
    known = {c: read_tree(data, DEEP).paths[c].tolist() for c in range(6)}
    for given_as in (path, tmp_path / "tree.csv"):
        tree = read_tree(data, given_as)
        named = [[(data.classes + tree.names)[c] for c in p if c >= 0] for p in tree.paths.tolist()]
        assert named[0] == ["living", "animal", "pet", "cat"]
        assert named[5] == ["car"]
        assert [len(p) for p in named] == [sum(c >= 0 for c in p) for p in known.values()]
    assert read_tree(data, written(tmp_path, *declared)) == tree
    turned = [",".join(reversed(line.split(","))) for line in LINES]
    assert read_tree(data, written(tmp_path, *turned, head="parent,child")) == tree


def test_an_attribute_of_the_data_is_a_tree():
    kinds = torch.tensor([0, 0, 0, 1, 1, -1])
    column = torch.cat([kinds.repeat_interleave(50), kinds])
    options = {"attributes": {"kind": column}, "attribute_names": {"kind": ("animal", "tree")}}
    data = zoo(**options)
    tree = {"animal": ["cat", "dog", "lion"], "tree": ["oak", "elm"]}
    assert read_tree(data, "kind") == read_tree(data, tree)
    assert read_tree(zoo(attributes={"kind": column}), "kind").names == ("0", "1")
    with refuses("hierarchy", near="kind"):
        read_tree(data, "kid")
    torn = zoo(attributes={"kind": torch.arange(len(column)) % 2})
    with pytest.raises(ValueError, match="expected one parent for the class 'cat'"):
        read_tree(torn, "kind")
    short = zoo(attributes={"kind": column}, attribute_names={"kind": ("animal",)})
    with pytest.raises(ValueError, match="a parent among the 1 values that have a name, got 1"):
        read_tree(short, "kind")
    with pytest.raises(ValueError, match="has no attributes"):
        read_tree(zoo(), "kind")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": ["b"], "b": ["a"]}, "hierarchy: expected no cycle, got 'a < b < a'"),
        ({"a": ["a"]}, "hierarchy: expected no cycle, got 'a < a'"),
        ({"a": ["cat", "b"], "b": ["c"], "c": ["b"]}, "subclasses that 'a' does not have"),
        ({"t": ["a"], "a": ["b"], "b": ["superclass/t", "cat"]}, "no cycle"),
        ({"a": ["cat"], "b": ["cat"]}, "subclasses that 'a' does not have, got 'cat'"),
        ({"a": ["cat", "cat"]}, "every subclass once, got 'cat'"),
        ({"a": ["c"], "b": ["c"], "c": ["cat"]}, "subclasses that 'a' does not have, got 'c'"),
        ({"a": ["cat", "dgo"]}, "unknown name 'dgo', did you mean 'dog'"),
        ({"cat": ["dog"], "a": ["cat"]}, "either 'fine/cat' or 'superclass/cat'"),
        ({1: ["cat"]}, "hierarchy: expected names of superclasses as keys, got 1"),
    ],
)
def test_trees_that_are_none_are_refused(tree, message):
    with pytest.raises(engram.BadArgument, match=message):
        hierarchical(zoo(), hierarchy=tree)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("cat,pet", "cat,animal"), "line 3: expected one parent for 'cat', which has 'pet'"),
        (("cat,pet", "cat,pet"), "line 3: expected one parent for 'cat'"),
        (("cat,pets", "pet,", "dog,pet"), "parent: unknown name 'pets', did you mean 'pet'"),
        (("cat,pet", "pet,cat"), "either 'fine/cat' or 'superclass/cat'"),
        (("cat,a", "a,b", "b,a"), "expected no cycle"),
        (("cta,pet",), "unknown name 'cta', did you mean 'cat'"),
        (("cat,pet", "dgo,"), "unknown name 'dgo', did you mean 'dog'"),
        ((",pet",), "line 2: expected a child"),
        (("cat,pet,more",), "line 2: expected two columns"),
        ((), "at least one child with a parent"),
    ],
)
def test_files_that_hold_no_tree_are_refused(tmp_path, lines, message):
    with pytest.raises(engram.BadArgument, match=message):
        hierarchical(zoo(), hierarchy=written(tmp_path, *lines))


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(engram.BadArgument, match="a file that exists"):
        read_tree(zoo(), str(tmp_path / "none.csv"))
    with pytest.raises(engram.BadArgument, match=r"the columns child,parent, got 'a,b'"):
        read_tree(zoo(), written(tmp_path, *LINES, head="a,b"))
    (tmp_path / "tree.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(engram.BadArgument, match="comma-separated text"):
        read_tree(zoo(), tmp_path / "tree.csv")


def test_every_ancestor_comes_strictly_earlier():
    for tasks, message in (
        ([["living"], ["pet"], ["animal"]], "'superclass/animal' in an earlier task"),
        ([["living", "animal"]], r"tasks\[0\]: expected 'superclass/living' in an earlier task"),
        ([["living"], ["animal"], ["cat"]], "'superclass/pet' in an earlier task"),
    ):
        with pytest.raises(engram.BadArgument, match=message):
            hierarchical(zoo(), hierarchy=DEEP, tasks=tasks)


def test_a_superclass_left_without_rows_is_refused():
    tight = {"hierarchy": DEEP, "valid": 0.0, "post_valid": 0.0}
    with pytest.raises(engram.BadArgument, match="leave some for 'superclass/living', got 'none"):
        hierarchical(zoo(2), tasks=TASKS, **tight)
    with pytest.raises(engram.BadArgument, match="leave some for 'superclass/pet'"):
        hierarchical(zoo(4), tasks=TASKS, **tight)
    assert hierarchical(zoo(4), tasks=TASKS[:2], **tight)  # nobody asks for the others


@st.composite
def trees(draw):
    """A random forest over 12 classes: groups of two or three are joined again and again."""
    free, tree = [f"c{i}" for i in range(12)], {}
    for k in range(draw(st.integers(1, 6))):
        size = min(draw(st.integers(1, 3)), len(free))
        members = [free.pop(draw(st.integers(0, len(free) - 1))) for _ in range(size)]
        tree[f"s{k}"] = members
        free.append(f"s{k}")
    return tree


@settings(max_examples=30)
@given(tree=trees(), seed=st.integers(0, 3))
def test_drawn_tasks_keep_the_order_of_any_tree(tree, seed):
    y = [c for c in range(12) for _ in range(40)]
    data = Data.from_arrays(torch.zeros(480, 1), y, classes=[f"c{i}" for i in range(12)])
    stream = hierarchical(data, hierarchy=tree, classes_per_task=1, seed=seed, cap=99)
    when = {stream.data.classes[c].split("/")[1]: k for k, t in enumerate(stream) for c in t.new}
    assert len(when) == 12 + len(tree)
    for above, members in tree.items():
        assert all(when[above] < when[member] for member in members)
    plain = json.loads(json.dumps(stream.to_dict()))
    assert Stream.from_dict(hierarchical_data(data, hierarchy=tree), plain) == stream


def test_streams_over_one_tree_share_their_data():
    data = zoo()
    one, two = (hierarchical(data, hierarchy=DEEP, tasks=TASKS[:k]) for k in (2, 3))
    assert one.data is two.data
    assert hierarchical(data, hierarchy={"pet": ["cat"]}).data is not one.data
    assert hierarchical(zoo(), hierarchy=DEEP, tasks=TASKS[:2]).data is not one.data


def test_trees_in_recipes(tmp_path):
    recipe = engram.Recipe.of({
        "stream": {"data": "blobs", "data_options": {"classes": 4}, "kind": "hierarchical",
                   "classes_per_task": 1,
                   "hierarchy": written(tmp_path, "0,low", "1,low", "low,all", "2,all")},
        "method": "ER",
    })  # fmt: skip
    stream = recipe.build_stream()
    assert stream.data.classes[4:] == ("superclass/low", "superclass/all")
    assert engram.Recipe.of(recipe.plain()).build_stream() == stream
